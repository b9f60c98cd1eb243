//! The live part: on a terminal one picture that changes in place, elsewhere one line per second.

use super::picture::{Glance, Picture};
use std::{
    fmt::Write,
    io::{IsTerminal, stdout},
    time::Duration,
};
use tollgate_storm::plan::Phases;

const BAR_WIDTH: usize = 40;
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The top of the history: what all people together read in a calm second, and then some.
const HISTORY_MAX: usize = 16;
/// From here on a wait is shown as a bad one.
const SLOW: Duration = Duration::from_millis(500);

const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

/// Where pictures are shown.
pub(super) struct Screen {
    live: bool,
    colour: bool,
    /// Lines of the picture that stands on the terminal now.
    lines: usize,
    /// The last second for which a line was printed.
    second: Option<u64>,
}

impl Screen {
    pub(super) fn new() -> Self {
        let live = stdout().is_terminal();
        Self { live, colour: live && std::env::var_os("NO_COLOR").is_none(), lines: 0, second: None }
    }

    /// Lets the picture stand and starts a new one below it.
    pub(super) fn begin(&mut self) {
        if self.lines > 0 {
            println!();
        }
        self.lines = 0;
        self.second = None;
    }

    /// Shows `picture`, in the place of the one before.
    pub(super) fn show(&mut self, title: &str, phases: Phases, picture: &Picture) {
        if self.live {
            let text = self.draw(title, phases, picture);
            let up = if self.lines > 0 { format!("\x1b[{}A", self.lines) } else { String::new() };
            self.lines = text.lines().count();
            // Each line is cleared to its end as it is overwritten, which does not flicker.
            println!("{up}{}", text.trim_end().replace('\n', "\x1b[K\n") + "\x1b[K");
        } else if self.second != Some(picture.at.as_secs()) {
            self.second = Some(picture.at.as_secs());
            println!("{}", line(title, phases, picture));
        }
    }

    fn draw(&self, title: &str, phases: Phases, picture: &Picture) -> String {
        let mut text = String::new();
        let clock = format!("{} s of {} s", picture.at.as_secs(), phases.end_at().as_secs());
        let mut push = |line: String| writeln!(text, "{line}").expect("a string takes all that is written");
        push(format!("  {}   {clock:>12}   {}", self.paint(BOLD, &format!("{title:<16}")), news(phases, picture.at)));
        push(String::new());
        push(self.row("people", &picture.people));
        push(self.row("office", &picture.office));
        let crawled = format!("{:5.1} pages/s", picture.crawled_per_second);
        push(format!("  crawler  {crawled}   has {:.0} % of the site's CPU", picture.crawler_cpu * 100.0));
        push(String::new());
        push(format!("  CPU              {}   ▒ people  █ crawler  · idle", bar(picture)));
        push(format!("  pages per second {}", self.paint(GREEN, &sparkline(&picture.history))));
        text
    }

    fn row(&self, name: &str, glance: &Glance) -> String {
        let slow = glance.p99.is_some_and(|p99| p99 > SLOW);
        let p99 = self.paint(if slow { RED } else { GREEN }, &format!("{:>8}", time(glance.p99)));
        let waiting = match glance.waiting {
            0 => String::new(),
            waiting => format!("{waiting} waiting"),
        };
        format!("  {name:<8} {:5.1} pages/s   99 of 100 pages within {p99}   {waiting}", glance.pages_per_second)
    }

    fn paint(&self, paint: &str, text: &str) -> String {
        if self.colour { format!("{paint}{text}{PLAIN}") } else { text.to_owned() }
    }
}

fn line(title: &str, phases: Phases, picture: &Picture) -> String {
    let glance = |glance: &Glance| {
        format!("{:.1} pages/s, p99 {}, {} waiting", glance.pages_per_second, time(glance.p99), glance.waiting)
    };
    format!(
        "{title}, {} s ({}): people {}; office {}; crawler {:.1} pages/s, {:.0} % of the CPU",
        picture.at.as_secs(),
        news(phases, picture.at),
        glance(&picture.people),
        glance(&picture.office),
        picture.crawled_per_second,
        picture.crawler_cpu * 100.0,
    )
}

fn news(phases: Phases, at: Duration) -> &'static str {
    if at < phases.storm_at() {
        "calm"
    } else if at < phases.recovery_at() {
        "the crawler is here"
    } else {
        "the crawler has left"
    }
}

/// A time as people say it.
pub(super) fn time(time: Option<Duration>) -> String {
    match time {
        None => "-".to_owned(),
        Some(time) if time < Duration::from_secs(1) => format!("{} ms", time.as_millis()),
        Some(time) => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// The site's core: who has how much of it.
fn bar(picture: &Picture) -> String {
    let cells = |share: f64| (share * BAR_WIDTH as f64).round().max(0.0) as usize;
    let crawler = cells(picture.crawler_cpu).min(BAR_WIDTH);
    let people = cells(picture.people_cpu).min(BAR_WIDTH - crawler);
    "▒".repeat(people) + &"█".repeat(crawler) + &"·".repeat(BAR_WIDTH - crawler - people)
}

fn sparkline(history: &[usize]) -> String {
    let level = |count: usize| LEVELS[(count * (LEVELS.len() - 1)).div_ceil(HISTORY_MAX).min(LEVELS.len() - 1)];
    history.iter().map(|&count| level(count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLANCE: Glance = Glance { pages_per_second: 4.5, p99: Some(Duration::from_millis(42)), waiting: 3 };

    fn picture(people_cpu: f64, crawler_cpu: f64) -> Picture {
        Picture {
            at: Duration::from_secs(7),
            people: GLANCE,
            office: Glance { p99: None, waiting: 0, ..GLANCE },
            crawled_per_second: 2.5,
            people_cpu,
            crawler_cpu,
            history: vec![0, 1, 8, 16, 99],
        }
    }

    #[test]
    fn the_bar_is_as_wide_whatever_the_shares() {
        for (people, crawler) in [(0.0, 0.0), (0.25, 0.75), (0.3, 0.9), (9.0, 9.0), (f64::NAN, -1.0)] {
            assert_eq!(bar(&picture(people, crawler)).chars().count(), BAR_WIDTH, "{people} {crawler}");
        }
        assert_eq!(bar(&picture(0.25, 0.5)), "▒".repeat(10) + &"█".repeat(20) + &"·".repeat(10));
    }

    #[test]
    fn more_pages_are_a_higher_bar_and_none_the_lowest() {
        assert_eq!(sparkline(&[0, 1, 8, 16, 99]), "▁▂▅██");
    }

    #[test]
    fn a_picture_says_who_waits_and_who_has_the_cpu() {
        let phases =
            Phases { calm: Duration::from_secs(5), storm: Duration::from_secs(12), recovery: Duration::from_secs(3) };
        let screen = Screen { live: true, colour: false, lines: 0, second: None };
        let text = screen.draw("Without Tollgate", phases, &picture(0.1, 0.9));
        for part in ["7 s of 20 s", "the crawler is here", "42 ms", "3 waiting", "has 90 % of the site's CPU"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(!text.contains('\x1b'));
        assert!(line("x", phases, &picture(0.1, 0.9)).contains("90 % of the CPU"));
    }
}
