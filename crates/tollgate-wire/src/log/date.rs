//! Converts the dates in logs to a [`Moment`], the nanoseconds since 1970 in UTC, and back.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;
use tollgate_core::time::Moment;

use super::decimal::Decimal;
use crate::decimal::parse as parse_digits;

/// The names of the months in logs.
pub const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The time of the common log format, without trailing text: `10/Oct/2000:13:55:36 -0700`.
#[inline]
pub(super) fn common(text: &[u8]) -> Option<Moment> {
    let text: &[u8; 26] = text.try_into().ok()?;
    if [text[2], text[6], text[11], text[14], text[17], text[20]] != *b"//::: " {
        return None;
    }
    let month = 1 + MONTHS.iter().position(|month| month.as_bytes() == &text[3..6])? as u64;
    let date = (parse_digits(&text[7..11])?, month, parse_digits(&text[..2])?);
    let time = (parse_digits(&text[12..14])?, parse_digits(&text[15..17])?, parse_digits(&text[18..20])?);
    moment(date, time, 0, zone(&text[21..])?)
}

/// `2026-11-15T03:27:00.123+01:00` and its variants: a space instead of `T`, slashes instead of dashes, a
/// comma instead of the point, a zone without colon, or no zone, which means UTC.
pub(super) fn rfc3339(text: &[u8]) -> Option<Moment> {
    let (stamp, rest) = text.split_at_checked(19)?;
    let marks = [stamp[4], stamp[7], stamp[10], stamp[13], stamp[16]];
    if !matches!(marks, [b'-', b'-', b'T' | b't' | b' ', b':', b':'] | [b'/', b'/', b' ' | b'T', b':', b':']) {
        return None;
    }
    let date = (parse_digits(&stamp[..4])?, parse_digits(&stamp[5..7])?, parse_digits(&stamp[8..10])?);
    let time = (parse_digits(&stamp[11..13])?, parse_digits(&stamp[14..16])?, parse_digits(&stamp[17..])?);
    let (nanos, rest) = fraction(rest)?;
    let offset = match rest {
        [] | [b'Z' | b'z'] => 0,
        _ => zone(rest)?,
    };
    moment(date, time, nanos, offset)
}

/// A Unix time in seconds, milliseconds, microseconds or nanoseconds. The magnitude determines the unit. It is
/// unambiguous for times from 1973 on; `None` after 2554, where a [`Moment`] ends.
pub(super) fn epoch(count: Decimal) -> Option<Moment> {
    let shift = match count.scaled(0)? {
        0..100_000_000_000 => 9,
        100_000_000_000..100_000_000_000_000 => 6,
        100_000_000_000_000..100_000_000_000_000_000 => 3,
        _ => 0,
    };
    count.scaled(shift).map(Moment::from_nanos)
}

/// A time in the form of [`rfc3339`], [`common`] or [`epoch`].
pub(super) fn parse(text: &[u8]) -> Option<Moment> {
    rfc3339(text).or_else(|| common(text)).or_else(|| epoch(Decimal::parse(text)?))
}

/// The fraction of a second at the start of `text`, if any, in nanoseconds, and the rest.
fn fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let [b'.' | b',', rest @ ..] = text else {
        return Some((0, text));
    };
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (places, rest) = rest.split_at(length);
    let nanos = parse_digits(&places[..length.min(9)])? * 10u64.pow(9 - length.min(9) as u32);
    (length > 0).then_some((nanos, rest))
}

/// `+hhmm` or `+hh:mm`, in seconds east of UTC.
fn zone(text: &[u8]) -> Option<i32> {
    let (sign, hours, minutes) = match text {
        [sign, hours @ .., b':', a, b] => (sign, hours, [*a, *b]),
        [sign, hours @ .., a, b] => (sign, hours, [*a, *b]),
        _ => return None,
    };
    let sign = match sign {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = (parse_digits(hours).filter(|_| hours.len() == 2)?, parse_digits(&minutes)?);
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60) as i32)
}

/// The moment of a date and time in a zone, which is in seconds east of UTC; `None` before 1970 or for an invalid date.
fn moment(
    (year, month, day): (u64, u64, u64),
    (hour, minute, second): (u64, u64, u64),
    nanos: u64,
    zone: i32,
) -> Option<Moment> {
    let small = |number: u64| i8::try_from(number).ok();
    let (year, month, day) = (i16::try_from(year).ok()?, small(month)?, small(day)?);
    // A leap second has the number 60. It is read as the second before, so that time does not go backwards.
    let second = if second == 60 { 59 } else { second };
    let date = DateTime::new(year, month, day, small(hour)?, small(minute)?, small(second)?, nanos as i32).ok()?;
    let nanos = Offset::from_seconds(zone).ok()?.to_timestamp(date).ok()?.as_nanosecond();
    u64::try_from(nanos).ok().map(Moment::from_nanos)
}

/// The date and time in UTC of a moment, which counts from 1970.
pub fn civil(at: Moment) -> DateTime {
    let timestamp = Timestamp::from_nanosecond(at.as_nanos().into());
    Offset::UTC.to_datetime(timestamp.expect("64 bits of nanoseconds end in 2554"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expect_nanos: u64) {
        assert_eq!(parse(text.as_bytes()), Some(Moment::from_nanos(expect_nanos)), "{text}");
    }

    #[test]
    fn the_same_instant_in_every_form_is_the_same_moment() {
        for text in [
            "10/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:20:55:36 +0000",
            "11/Oct/2000:02:25:36 +0530",
            "2000-10-10T20:55:36Z",
            "2000-10-10T20:55:36+00:00",
            "2000-10-10 13:55:36.000-07:00",
            "2000-10-10T13:55:36,000000-0700",
            "2000/10/10 20:55:36",
            "971211336",
            "971211336.000",
            "971211336000",
            "971211336000000",
            "971211336000000000",
            "9.71211336e8",
        ] {
            check(text, 971_211_336_000_000_000);
        }
    }

    #[test]
    fn fractions_are_kept_to_the_nanosecond() {
        check("2026-11-15T03:27:00.1Z", 1_794_713_220_100_000_000);
        check("2026-11-15T03:27:00.123456789123Z", 1_794_713_220_123_456_789);
        check("1646861401.5241024", 1_646_861_401_524_102_400);
    }

    #[test]
    fn leap_years_and_leap_seconds_are_on_the_calendar() {
        check("2000-02-29T00:00:00Z", 951_782_400_000_000_000);
        check("2016-12-31T23:59:60Z", 1_483_228_799_000_000_000);
        check("1970-01-01T00:00:00Z", 0);
        assert_eq!(parse(b"1900-02-29T00:00:00Z"), None);
        assert_eq!(parse(b"2026-02-29T00:00:00Z"), None);
    }

    #[test]
    fn invalid_dates_are_rejected() {
        for text in [
            "",
            "-",
            "10/Oct/2000:13:55:36",
            "10/Okt/2000:13:55:36 -0700",
            "32/Oct/2000:13:55:36 -0700",
            "10/Oct/2000:24:55:36 -0700",
            "10/Oct/2000:13:55:36 -070x",
            "10/Oct/2000:13:55:36 -0700 ",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+1:00",
            "2026-01-01T00:00:00+24:00",
            "0000-01-01T00:00:00Z",
            "2026-11-15",
            "yesterday",
            "-5",
            "9999-12-31T23:59:59Z",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_written_date_is_read_back(nanos in 0..=u64::MAX) {
            let moment = Moment::from_nanos(nanos);
            prop_assert_eq!(rfc3339(civil(moment).to_string().as_bytes()), Some(moment));
        }

        #[test]
        fn no_text_makes_the_date_parser_panic(text in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&text);
        }

        #[test]
        fn no_damaged_date_makes_the_parser_panic(text in "[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[T ][0-9:]{8}[.,+-]?[0-9:Z]{0,12}|[0-9]{2}/(Jan|Feb|Oct)/[0-9]{4}:[0-9:]{8} [+-][0-9:]{4}") {
            let _ = parse(text.as_bytes());
        }
    }
}
