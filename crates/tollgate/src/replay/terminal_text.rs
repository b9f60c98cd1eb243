//! Formats the values of a replay for people (the page on the terminal and the HTML report): counts, durations, times.

use std::time::Duration;

use tollgate_core::time::{Moment, Span};
use tollgate_wire::log::civil;

use crate::terminal_text::cut;

pub(super) use crate::terminal_text::{escape as shown, width};

/// `text` in exactly `columns`, cut with an ellipsis or padded with blanks.
pub(super) fn fitted(text: &str, columns: usize) -> String {
    let mut fitted = match columns {
        _ if width(text) <= columns => text.to_owned(),
        0 => String::new(),
        _ => cut(text, columns - 1) + "…",
    };
    fitted.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(&fitted))));
    fitted
}

/// `1234567` as `1,234,567`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    groups.join(",")
}

/// A count in about six columns.
pub(super) fn short(number: u64) -> String {
    match number {
        0..100_000 => count(number),
        100_000..10_000_000 => format!("{}k", count(number / 1000)),
        10_000_000..10_000_000_000 => format!("{}M", count(number / 1_000_000)),
        _ => format!("{}G", number / 1_000_000_000),
    }
}

/// `1 request`, `2 requests`.
pub(super) fn plural(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// A part of a whole, in percent.
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "0 %".to_string();
    }
    let percent = part as f64 * 100.0 / whole as f64;
    match percent {
        0.0 => "0 %".to_string(),
        percent if percent < 0.1 => "<0.1 %".to_string(),
        percent if percent > 99.9 && part < whole => ">99.9 %".to_string(),
        percent if percent >= 99.95 => "100 %".to_string(),
        percent => format!("{percent:.1} %"),
    }
}

/// A duration in its two largest units: `1 h 52 min`, `4.9 s`, `250 ms`.
pub(super) fn length(span: Span) -> String {
    let duration = Duration::from(span);
    let (seconds, millis) = (duration.as_secs(), duration.as_secs_f64() * 1e3);
    let pair = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {large_unit}"),
        small => format!("{large} {large_unit} {small} {small_unit}"),
    };
    match seconds {
        0 if span.is_zero() => "0 s".to_string(),
        0 if millis < 1.0 => "<1 ms".to_string(),
        0 => format!("{millis:.0} ms"),
        1..=59 => format!("{:.1} s", millis / 1e3).replace(".0 s", " s"),
        60..=3_599 => pair(seconds / 60, "min", seconds % 60, "s"),
        3_600..=86_399 => pair(seconds / 3600, "h", seconds % 3600 / 60, "min"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

/// Moments before this one, in March 1973, are times since the start of a trace; later ones are dates.
const FIRST_DATE: Moment = Moment::from_millis(100_000_000_000);

/// A point in time: `14:05` of a day in UTC, or the time since the start of a trace. With seconds: `14:05:09`.
pub(super) fn clock(at: Moment, with_seconds: bool) -> String {
    let seconds = at.as_nanos() / 1_000_000_000;
    let of_day = if at < FIRST_DATE { seconds } else { seconds % 86_400 };
    let (hours, minutes, seconds) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    if with_seconds { format!("{hours:02}:{minutes:02}:{seconds:02}") } else { format!("{hours:02}:{minutes:02}") }
}

/// A point in time with its month and day, if it has a date: `11-15 14:05`.
pub(super) fn dated_clock(at: Moment, with_seconds: bool) -> String {
    match date(at) {
        Some(date) => format!("{} {}", &date[5..], clock(at, with_seconds)),
        None => clock(at, with_seconds),
    }
}

/// A period: `14:05-15:07`, or with its day or days if `dated`.
pub(super) fn period(first: Moment, last: Moment, dated: bool) -> String {
    match (date(first), date(last)) {
        (Some(day), Some(other)) if dated && day != other => format!("{} to {}", &day[5..], &other[5..]),
        _ if dated => format!("{}-{}", dated_clock(first, false), clock(last, false)),
        _ => format!("{}-{}", clock(first, false), clock(last, false)),
    }
}

/// A day such as `2026-11-15`; `None` on a trace's own clock.
pub(super) fn date(at: Moment) -> Option<String> {
    (at >= FIRST_DATE).then(|| civil(at).date().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn untrusted_text_cannot_control_the_terminal() {
        assert_eq!(shown(b"plain \xc3\xa9"), "plain é");
        assert_eq!(shown(b"\x1b[2J\r\n\t\0\x07\x7f"), r"\x1b[2J\r\n\t\0\x07\x7f");
        assert_eq!(shown(b"\xff\xc3"), r"\xff\xc3");
        assert_eq!(
            shown("a\u{202e}b\u{200b}c\u{9b}d\u{feff}\u{301}\u{2028}\u{e0041}".as_bytes()),
            r"a\u{202e}b\u{200b}c\u{9b}d\u{feff}\u{301}\u{2028}\u{e0041}"
        );
    }

    #[test]
    fn values_are_formatted_for_people() {
        assert_eq!(
            ["0", "999", "1,000", "1,234,567"],
            [0, 999, 1000, 1_234_567].map(count).each_ref().map(String::as_str)
        );
        let lengths = [0, 1, 250_000_000, 4_900_000_000, 60_000_000_000, 6_720_000_000_000, 90_000_000_000_000];
        let expect = ["0 s", "<1 ms", "250 ms", "4.9 s", "1 min", "1 h 52 min", "1 d 1 h"];
        assert_eq!(lengths.map(|nanos| length(Span::from_nanos(nanos))), expect);
        assert_eq!(
            [(0, 0), (1, 2), (1, 100_000), (99_999, 100_000), (5, 5)].map(|(a, b)| percent(a, b)),
            ["0 %", "50.0 %", "<0.1 %", ">99.9 %", "100 %"]
        );
    }

    #[test]
    fn a_period_over_several_days_has_dates() {
        let at = |hours: u64| Moment::from_millis(1_794_713_220_000 + hours * 3_600_000);
        assert_eq!(period(at(0), at(2), false), "03:27-05:27");
        assert_eq!(period(at(0), at(2), true), "11-15 03:27-05:27");
        assert_eq!(period(at(0), at(49), true), "11-15 to 11-17");
        assert_eq!(period(Moment::from_millis(60_000), Moment::from_millis(120_000), true), "00:01-00:02");
    }

    #[test]
    fn a_moment_is_a_date_or_a_time_since_the_start() {
        let at = Moment::from_millis(1_794_713_220_000);
        assert_eq!(
            (date(at).as_deref(), clock(at, false).as_str(), clock(at, true).as_str()),
            (Some("2026-11-15"), "03:27", "03:27:00")
        );
        assert_eq!(
            (date(Moment::from_millis(5000)), clock(Moment::from_millis(90_061_000), true).as_str()),
            (None, "25:01:01")
        );
        assert_eq!(date(Moment::from_millis(951_782_400_000)).as_deref(), Some("2000-02-29"));
    }

    proptest! {
        #[test]
        fn text_is_shown_without_control_characters(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(!shown(&bytes).chars().any(char::is_control));
        }

        #[test]
        fn fitted_text_has_exactly_its_columns(text in "\\PC{0,30}", columns in 0usize..40) {
            let text = shown(text.as_bytes());
            prop_assert_eq!(width(&fitted(&text, columns)), columns);
        }
    }
}
