//! The live display of the demo: a picture that is redrawn in place on a terminal, or one line per second if the output
//! is not a terminal.
//!
//! A line that is wider than the terminal would wrap, and the next picture would be drawn in the wrong place.
//! Therefore bars adapt to the width of the terminal, and every line is cut at its edge.

use std::fmt::Write;
use std::io::{IsTerminal, stdout};
use std::time::Duration;

use rustix::termios::tcgetwinsize;
use tollgate_storm::plan::Phases;

use super::picture::{GroupStatus, StormSnapshot};
use crate::colours::{BARS, BOLD, Colours, GREEN, RED};
use crate::terminal_text::cut;

/// Columns of a terminal whose width is unknown.
const COLUMNS: usize = 80;
/// The fewest and the most columns of the CPU time bar.
const BAR_MIN: usize = 10;
const BAR_MAX: usize = 80;
/// Columns before a bar, for its label.
const LABEL: usize = 20;
/// The text after the CPU time bar.
const LEGEND: &str = "  ▒ people  █ crawler  · unused";
/// The most columns for one second of the history.
const SECOND_MAX: usize = 4;
/// The value of the highest bar of the history, in pages per second: somewhat more than all people together read
/// without a storm.
const HISTORY_MAX: usize = 16;
/// A longer p99 is shown in red.
const SLOW: Duration = Duration::from_millis(500);

/// The output of the live display.
pub(super) struct Screen {
    /// Whether the output is a terminal, so that pictures can be redrawn in place.
    live: bool,
    colours: Colours,
    /// Number of lines of the picture that is on the terminal now.
    lines: usize,
    /// The last second for which a line was printed.
    second: Option<u64>,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { live: stdout().is_terminal(), colours: Colours::for_stdout(), lines: 0, second: None }
    }

    /// Keeps the current picture and starts a new one below it.
    pub(super) fn begin(&mut self) {
        if self.lines > 0 {
            println!();
        }
        self.lines = 0;
        self.second = None;
    }

    /// Draws `picture` in place of the previous one, or prints it as a line, at most one per second.
    pub(super) fn show(&mut self, title: &str, phases: Phases, picture: &StormSnapshot) {
        if self.live {
            let columns = tcgetwinsize(stdout()).map_or(COLUMNS, |size| size.ws_col.into());
            let text = self.draw(title, phases, picture, if columns == 0 { COLUMNS } else { columns });
            let up = if self.lines > 0 { format!("\x1b[{}A", self.lines) } else { String::new() };
            self.lines = text.lines().count();
            // Clearing each line after it is overwritten avoids flicker.
            println!("{up}{}", text.trim_end().replace('\n', "\x1b[K\n") + "\x1b[K");
        } else if self.second != Some(picture.at.as_secs()) {
            self.second = Some(picture.at.as_secs());
            println!("{}", line(title, phases, picture));
        }
    }

    /// The text of a picture, in lines of at most `columns` columns.
    fn draw(&self, title: &str, phases: Phases, picture: &StormSnapshot, columns: usize) -> String {
        let mut text = String::new();
        let clock = format!("{} s of {} s", picture.at.as_secs(), phases.end_at().as_secs());
        let mut push = |line: String| {
            writeln!(text, "{}", cut(&line, columns)).expect("writing to a string does not fail");
        };
        push(format!(
            "  {}  {clock:>12}   {}",
            self.colours.paint(BOLD, &format!("{title:<16}")),
            phase_name(phases, picture.at)
        ));
        push(String::new());
        push(self.row("people", &picture.people));
        push(self.row("office", &picture.office));
        let crawled = format!("{:5.1} pages/s", picture.crawled_per_second);
        push(format!("  crawler  {crawled}   has {:.0} % of the site's CPU time", picture.crawler_cpu * 100.0));
        push(String::new());
        let room = columns.saturating_sub(LABEL + LEGEND.chars().count() + 1);
        push(format!("  CPU time          {}{LEGEND}", bar(picture, room.clamp(BAR_MIN, BAR_MAX))));
        let seconds = usize::try_from(phases.end_at().as_secs()).unwrap_or(usize::MAX);
        let room = columns.saturating_sub(LABEL + 1);
        let history = sparkline(&picture.history, seconds, room);
        push(format!("  people's pages/s  {}", self.colours.paint(GREEN, &history)));
        push(format!("{:LABEL$}{}", "", timeline(phases, room)).trim_end().to_owned());
        text
    }

    fn row(&self, name: &str, group: &GroupStatus) -> String {
        let slow = group.p99.is_some_and(|p99| p99 > SLOW);
        let p99 = self.colours.paint(if slow { RED } else { GREEN }, &format!("{:>8}", time(group.p99)));
        let waiting = match group.waiting {
            0 => String::new(),
            waiting => format!("{waiting} waiting"),
        };
        format!("  {name:<8} {:5.1} pages/s   99 of 100 articles within {p99}   {waiting}", group.pages_per_second)
    }
}

/// A picture as one line, for an output that is not a terminal.
fn line(title: &str, phases: Phases, picture: &StormSnapshot) -> String {
    let text = |group: &GroupStatus| {
        format!("{:.1} pages/s, p99 {}, {} waiting", group.pages_per_second, time(group.p99), group.waiting)
    };
    format!(
        "{title}, {} s ({}): people {}; office {}; crawler {:.1} pages/s, {:.0} % of the CPU time",
        picture.at.as_secs(),
        phase_name(phases, picture.at),
        text(&picture.people),
        text(&picture.office),
        picture.crawled_per_second,
        picture.crawler_cpu * 100.0,
    )
}

fn phase_name(phases: Phases, at: Duration) -> &'static str {
    if at < phases.storm_at() {
        "calm"
    } else if at < phases.recovery_at() {
        "the crawler is here"
    } else {
        "the crawler has left"
    }
}

/// A duration as text; a dash for none.
pub(super) fn time(time: Option<Duration>) -> String {
    match time {
        None => "-".to_owned(),
        Some(time) if time < Duration::from_secs(1) => format!("{} ms", time.as_millis()),
        Some(time) => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// A bar of this many columns: the CPU time of the site's core, by group of clients.
fn bar(picture: &StormSnapshot, columns: usize) -> String {
    let cells = |share: f64| (share * columns as f64).round().max(0.0) as usize;
    let crawler = cells(picture.crawler_cpu).min(columns);
    let people = cells(picture.people_cpu).min(columns - crawler);
    "▒".repeat(people) + &"█".repeat(crawler) + &"·".repeat(columns - crawler - people)
}

/// A chart of the pages served in each second so far. Its scale is such that all `seconds` of the half fit into the
/// columns; if they cannot, only the latest ones are shown.
fn sparkline(history: &[usize], seconds: usize, columns: usize) -> String {
    let level = |count: usize| BARS[1 + (count * 7).div_ceil(HISTORY_MAX).min(7)];
    let each = (columns / seconds.max(1)).clamp(1, SECOND_MAX);
    let shown = &history[history.len().saturating_sub(columns / each)..];
    shown.iter().flat_map(|&count| std::iter::repeat_n(level(count), each)).collect()
}

/// The name of each phase, below the seconds of the history that belong to it. Empty if not all seconds or names fit.
fn timeline(phases: Phases, columns: usize) -> String {
    let column = |moment: Duration| usize::try_from(moment.as_secs()).unwrap_or(usize::MAX);
    let each = (columns / column(phases.end_at()).max(1)).min(SECOND_MAX);
    let (storm, recovery) = (column(phases.storm_at()) * each, column(phases.recovery_at()) * each);
    let names = format!("{:<storm$}{:<2$}after", "calm", "crawler", recovery - storm);
    let has_room = storm > "calm".len() && recovery - storm > "crawler".len();
    if has_room { names } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::colours::PLAIN;

    const LONG: Duration = Duration::from_secs(200);
    const GLANCE: GroupStatus = GroupStatus { pages_per_second: 4.5, p99: Some(Duration::from_millis(42)), waiting: 3 };

    fn picture(people_cpu: f64, crawler_cpu: f64) -> StormSnapshot {
        StormSnapshot {
            at: Duration::from_secs(7),
            people: GLANCE,
            office: GroupStatus { p99: None, waiting: 0, ..GLANCE },
            crawled_per_second: 2.5,
            people_cpu,
            crawler_cpu,
            history: vec![0, 1, 8, 16, 99],
        }
    }

    #[test]
    fn the_bar_has_the_same_width_for_all_shares() {
        for (people, crawler) in [(0.0, 0.0), (0.25, 0.75), (0.3, 0.9), (9.0, 9.0), (f64::NAN, -1.0)] {
            assert_eq!(bar(&picture(people, crawler), 40).chars().count(), 40, "{people} {crawler}");
        }
        assert_eq!(bar(&picture(0.25, 0.5), 40), "▒".repeat(10) + &"█".repeat(20) + &"·".repeat(10));
    }

    #[test]
    fn more_pages_are_a_higher_bar_and_none_the_lowest() {
        assert_eq!(sparkline(&[0, 1, 8, 16, 99], 5, 5), "▁▂▅██");
        assert_eq!(sparkline(&[0, 16], 20, 60), "▁▁▁███", "a second has as many columns as fit");
        assert_eq!(sparkline(&[0, 1, 8, 16, 99], 600, 3), "▅██", "the last seconds are shown if not all fit");
    }

    #[test]
    fn the_phases_are_named_below_their_seconds() {
        let phases = |calm, storm, recovery| {
            let [calm, storm, recovery] = [calm, storm, recovery].map(Duration::from_secs);
            Phases { calm, storm, recovery }
        };
        assert_eq!(timeline(phases(5, 12, 3), 59), "calm      crawler                 after");
        assert_eq!(
            timeline(phases(5, 12, 3), 119),
            "calm                crawler                                         after"
        );
        assert_eq!(timeline(phases(1, 2, 1), 119), "", "the names would touch");
        assert_eq!(timeline(phases(150, 360, 90), 59), "", "the history does not show all seconds");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_the_legend_fits_into_80_columns() {
        let phases = Phases { calm: LONG, storm: LONG, recovery: LONG };
        let mut long = picture(0.1, 0.9);
        long.history = vec![7; 600];
        for (on, columns) in [(false, 20), (true, 20), (true, 80), (false, 80), (false, 140), (true, 300)] {
            let screen = Screen { live: true, colours: Colours { on }, lines: 0, second: None };
            let text = screen.draw("Without Tollgate", phases, &long, columns);
            for line in text.lines() {
                let visible =
                    [RED, GREEN, BOLD, PLAIN].iter().fold(line.to_owned(), |line, paint| line.replace(paint, ""));
                assert!(visible.chars().count() <= columns && !visible.contains('\x1b'), "{columns}: {visible}");
            }
            assert!(columns < 80 || (text.contains("· unused\n") && text.contains("3 waiting\n")), "{columns}: {text}");
            assert_eq!(text.lines().count(), 9);
        }
    }

    #[test]
    fn a_picture_shows_waiting_people_and_shares_of_the_cpu() {
        let phases =
            Phases { calm: Duration::from_secs(5), storm: Duration::from_secs(12), recovery: Duration::from_secs(3) };
        let screen = Screen { live: true, colours: Colours { on: false }, lines: 0, second: None };
        let text = screen.draw("Without Tollgate", phases, &picture(0.1, 0.9), 80);
        for part in ["7 s of 20 s", "the crawler is here", "42 ms", "3 waiting", "has 90 % of the site's CPU time"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains('\x1b'));
        assert!(line("x", phases, &picture(0.1, 0.9)).contains("90 % of the CPU time"));
    }
}
