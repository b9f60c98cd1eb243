//! The law for storms, the bounds that Tollgate must meet, and how far a run is from it.
//!
//! A page is compared with calm pages of its own kind: an archive page costs many times an article, and a window of a
//! few seconds has one archive page or none. The slowdown of a page is its time over the calm p99 of its kind.

use crate::{course::Course, run::Outcome, scenario::Scenario, verdict::share_ok};
use std::{ops::Range, time::Duration};
use tollgate_storm::{
    counters::Reading,
    crowd::Crowd,
    page::{Costs, Kind},
    plan::Phases,
    tally::{View, percentile},
};

/// The length of the first window, after people and the crawler have met or the gate was restarted. It has separate
/// bounds.
pub(crate) const FIRST: Duration = Duration::from_secs(5);

/// The crawler's share of the core that people leave to it. People take 24 % in the fixed scenarios, so this is 60 %
/// of the core there.
const CRAWLER_SHARE_MIN: f64 = 0.79;
/// The share of the core that must be used while a crawler has requests for all of it.
const CORE_USED_MIN: f64 = 0.95;

/// Page p99 of people without a crawler, by kind of page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CalmPages {
    article: Duration,
    archive: Duration,
}

impl CalmPages {
    /// Of the views of people that no crawler disturbed. Where no archive page was seen, an archive page is expected
    /// to take its own cost beside the p99 of an article.
    pub(crate) fn of<'a>(views: impl Iterator<Item = &'a View> + Clone, costs: &Costs) -> Option<Self> {
        let p99 = |kind| {
            let views = views.clone().filter(|view| view.kind == kind);
            percentile(&mut views.map(View::page_time).collect::<Vec<_>>(), 99.0)
        };
        let article = p99(Kind::Article)?;
        Some(Self { article, archive: p99(Kind::Archive).unwrap_or(article + costs.archive.total()) })
    }

    fn slowdown(&self, view: &View) -> f64 {
        let calm = if view.kind == Kind::Archive { self.archive } else { self.article };
        view.page_time().as_secs_f64() / calm.as_secs_f64()
    }
}

/// One crowd in one window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Treatment {
    /// p99 of the slowdown of its pages; not a number if it had none.
    pub(crate) slowdown: f64,
    /// Share of its page views that were complete.
    pub(crate) served: f64,
}

impl Treatment {
    fn of(views: &[View], crowd: Crowd, calm: &CalmPages, when: &Range<Duration>) -> Self {
        let seen = views.iter().filter(|view| view.crowd == crowd && when.contains(&view.at));
        let mut slowdowns: Vec<f64> = seen.map(|view| calm.slowdown(view)).collect();
        slowdowns.sort_by(f64::total_cmp);
        let rank = (slowdowns.len() as f64 * 0.99).ceil() as usize;
        let slowdown = slowdowns.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN);
        Self { slowdown, served: share_ok(views, crowd, when) }
    }
}

/// People and the core in one window of a storm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) humans: Treatment,
    pub(crate) office: Treatment,
    /// Share of the core that was used.
    pub(crate) core_used: f64,
    /// Share of the core that the crawler had.
    pub(crate) crawler_share: f64,
    /// Share of the core that people had.
    people_share: f64,
}

impl Window {
    fn of(views: &[View], books: &Reading, calm: &CalmPages, when: &Range<Duration>) -> Self {
        let share = |time: Duration| time.as_secs_f64() / books.uptime.as_secs_f64();
        Self {
            humans: Treatment::of(views, Crowd::Human, calm, when),
            office: Treatment::of(views, Crowd::Office, calm, when),
            core_used: share(books.process_cpu),
            crawler_share: share(books.cpu_of(Crowd::Crawler)),
            people_share: share(books.cpu_of(Crowd::Human) + books.cpu_of(Crowd::Office)),
        }
    }
}

/// A storm from the moment that people and the crawler met, or from the restart of the gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(crate) first: Window,
    pub(crate) later: Window,
    /// The whole storm.
    pub(crate) whole: Window,
}

impl Windows {
    pub(crate) fn of(outcome: &Outcome, course: Course, phases: Phases, calm: &CalmPages) -> Self {
        let (meeting_at, end) = (course.meeting_at(phases), phases.recovery_at());
        let first_at = course.restart_at(phases).unwrap_or(meeting_at);
        let later_at = (first_at + FIRST).min(end);
        let window = |books: &Reading, when: Range<Duration>| Window::of(&outcome.views, books, calm, &when);
        Self {
            first: window(&outcome.first, first_at..later_at),
            later: window(&outcome.later, later_at..end),
            whole: window(&outcome.storm, meeting_at..end),
        }
    }
}

/// The bounds of one scenario in one course.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Bounds {
    /// The largest slowdown in the first window; `None` for no bound.
    first_slowdown: Option<f64>,
    /// The largest slowdown after it.
    later_slowdown: f64,
    /// The smallest share of complete page views.
    served: f64,
}

impl Bounds {
    const fn of(scenario: Scenario, course: Course) -> Self {
        let is_spread = matches!(scenario, Scenario::S3 | Scenario::S3Block);
        let (later_slowdown, served) = if is_spread { (4.0, 0.99) } else { (2.0, 0.995) };
        let first_slowdown = if is_spread { None } else { Some(3.0) };
        match course {
            Course::Storm => Self { first_slowdown, later_slowdown, served },
            // Requests in flight during the crash fail, so a window of 44 page views has no meaningful p99.
            Course::Restart => Self { first_slowdown: None, later_slowdown, served: 0.98 },
            Course::Alone3s => Self { first_slowdown: Some(4.0), later_slowdown: 4.0, served },
            Course::Alone40s if is_spread => Self { first_slowdown: Some(4.0), later_slowdown, served },
            Course::Alone40s => Self { first_slowdown: Some(2.0), later_slowdown, served },
        }
    }
}

/// How far a run is from one part of the law: 1 is on the bound, 2 is twice as bad.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Distance {
    pub(crate) part: String,
    pub(crate) times: f64,
}

/// The part of the law that a run breaks most, or meets least.
pub(crate) fn worst(windows: &Windows, scenario: Scenario, course: Course) -> Distance {
    let bounds = Bounds::of(scenario, course);
    let mut parts: Vec<Distance> = Vec::new();
    let mut at_most = |part: &str, value: f64, bound: f64| {
        // A window without page views is skipped.
        if !value.is_nan() {
            parts.push(Distance { part: format!("{part} {value:.1}x, at most {bound:.1}x"), times: value / bound });
        }
    };
    let Windows { first, later, whole } = windows;
    if let Some(bound) = bounds.first_slowdown {
        at_most("humans in the first 5 s", first.humans.slowdown, bound);
        at_most("office in the first 5 s", first.office.slowdown, bound);
    }
    at_most("humans later", later.humans.slowdown, bounds.later_slowdown);
    at_most("office later", later.office.slowdown, bounds.later_slowdown);
    let mut share = |part: &str, value: f64, bound: f64, times: f64| {
        let (value, bound) = (value * 100.0, bound * 100.0);
        parts.push(Distance { part: format!("{part} {value:.1} %, at least {bound:.1} %"), times });
    };
    let lack = |value: f64, bound: f64| (1.0 - value) / (1.0 - bound);
    let mut nearly_all = |part: &str, value: f64, bound: f64| share(part, value, bound, lack(value, bound));
    nearly_all("humans served", whole.humans.served, bounds.served);
    nearly_all("office served", whole.office.served, bounds.served);
    nearly_all("core used", whole.core_used, CORE_USED_MIN);
    let crawler_min = CRAWLER_SHARE_MIN * (1.0 - whole.people_share);
    share("crawler's share", whole.crawler_share, crawler_min, crawler_min / whole.crawler_share);
    parts.into_iter().max_by(|a, b| a.times.total_cmp(&b.times)).expect("the law has parts")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_storm::tally::Failure;

    const SECOND: Duration = Duration::from_secs(1);
    const PHASES: Phases = Phases { calm: SECOND, storm: Duration::from_secs(20), recovery: SECOND };
    const CALM: CalmPages = CalmPages { article: Duration::from_millis(50), archive: Duration::from_millis(400) };

    fn view(at_ms: u64, crowd: Crowd, kind: Kind, page_ms: Option<u64>) -> View {
        let at = Duration::from_millis(at_ms);
        let page = page_ms.map(Duration::from_millis).ok_or(Failure::Late);
        View { at, crowd, kind, page, whole: page, ended: at + SECOND }
    }

    fn outcome(first_ms: u64, later_ms: Option<u64>) -> Outcome {
        let mut views = Vec::new();
        for at_ms in (0..22_000).step_by(100) {
            let page_ms = match at_ms {
                1_000..6_000 => Some(first_ms),
                6_000..21_000 => later_ms,
                _ => Some(25),
            };
            let crowd = if at_ms % 200 == 0 { Crowd::Human } else { Crowd::Office };
            views.push(view(at_ms, crowd, Kind::Article, page_ms));
        }
        let books = |seconds: u64| Reading {
            uptime: SECOND * seconds as u32,
            process_cpu: Duration::from_millis(999 * seconds),
            cpu: [120, 120, 740].map(|share| Duration::from_millis(share * seconds)),
            ..Reading::default()
        };
        Outcome { views, first: books(5), later: books(15), storm: books(20), ..Outcome::default() }
    }

    fn judge(outcome: &Outcome, scenario: Scenario, course: Course) -> Distance {
        worst(&Windows::of(outcome, course, PHASES, &CALM), scenario, course)
    }

    #[test]
    fn the_first_five_seconds_and_the_rest_are_judged_apart() {
        let windows = Windows::of(&outcome(140, Some(75)), Course::Storm, PHASES, &CALM);
        assert!((windows.first.humans.slowdown - 2.8).abs() < 1e-9, "{windows:?}");
        assert!((windows.later.office.slowdown - 1.5).abs() < 1e-9, "{windows:?}");
        assert!(judge(&outcome(140, Some(75)), Scenario::S1, Course::Storm).times <= 1.0);
        let slow_first = judge(&outcome(200, Some(75)), Scenario::S2, Course::Storm);
        assert!(slow_first.times > 1.3 && slow_first.part.contains("first 5 s 4.0x"), "{slow_first:?}");
        let slow_later = judge(&outcome(50, Some(150)), Scenario::S1, Course::Storm);
        assert!(slow_later.times > 1.4 && slow_later.part.contains("later 3.0x"), "{slow_later:?}");
        assert!(judge(&outcome(50, Some(150)), Scenario::S3, Course::Storm).times <= 1.0);
    }

    #[test]
    fn a_page_that_is_not_served_counts_as_patience_and_as_not_served() {
        let lost = judge(&outcome(50, None), Scenario::S3, Course::Storm);
        assert!(lost.times > 20.0, "{lost:?}");
    }

    #[test]
    fn a_core_that_is_left_idle_breaks_the_law() {
        let mut idle = outcome(50, Some(50));
        idle.storm.process_cpu = SECOND * 18;
        let idle = judge(&idle, Scenario::S1, Course::Storm);
        assert!(idle.times > 1.9 && idle.part.contains("core used 90.0 %"), "{idle:?}");
    }

    #[test]
    fn the_crawler_is_judged_by_the_cpu_time_that_people_leave() {
        let mut starved = outcome(50, Some(50));
        starved.storm.cpu[Crowd::Crawler as usize] = SECOND * 10;
        let starved = judge(&starved, Scenario::S1, Course::Storm);
        assert!(starved.times > 1.1 && starved.part.contains("at least 60.0 %"), "{starved:?}");
    }

    #[test]
    fn an_archive_page_is_compared_with_calm_archive_pages() {
        let archive = view(2_000, Crowd::Human, Kind::Archive, Some(800));
        assert!((CALM.slowdown(&archive) - 2.0).abs() < 1e-9);
        let views = [view(0, Crowd::Human, Kind::Article, Some(50))];
        let calm = CalmPages::of(views.iter(), &Costs::default()).unwrap();
        assert_eq!(calm.archive, Duration::from_millis(350));
        assert_eq!(CalmPages::of([archive].iter(), &Costs::default()), None);
    }
}
