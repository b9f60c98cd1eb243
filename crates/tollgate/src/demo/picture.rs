//! The state of the storm at one moment, as the live display of the demo shows it: computed from the finished page
//! views and from samples of the site's counters.

use std::collections::HashSet;
use std::time::Duration;

use tollgate_storm::counters::Reading;
use tollgate_storm::crowd::Crowd;
use tollgate_storm::page::Kind;
use tollgate_storm::plan::{Plan, Visit};
use tollgate_storm::tally::{View, percentile};

/// The time over which a rate is measured.
const RATE_SPAN: Duration = Duration::from_secs(2);
/// The p99 is that of the pages that ended within this time.
const PAGE_SPAN: Duration = Duration::from_secs(5);

/// The values read at one tick.
#[derive(Clone, Copy, Debug)]
pub(super) struct StormSample {
    /// The time since the start of the half.
    pub(super) at: Duration,
    /// The site's counters, such as its CPU time per group of clients.
    pub(super) reading: Reading,
    /// Pages served to the crawler so far.
    pub(super) crawled: u64,
}

/// The state of one group of visitors: people with separate addresses, or the office (30 people behind one address).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct GroupStatus {
    /// Complete pages served per second.
    pub(super) pages_per_second: f64,
    /// The 99th percentile of the time of articles, the ordinary pages. Pending ones count with their wait so far.
    pub(super) p99: Option<Duration>,
    /// People who wait for a page now.
    pub(super) waiting: usize,
}

/// The state at one moment.
#[derive(Clone, Debug)]
pub(super) struct StormSnapshot {
    /// The time since the start of the half.
    pub(super) at: Duration,
    pub(super) people: GroupStatus,
    pub(super) office: GroupStatus,
    /// Pages served to the crawler per second.
    pub(super) crawled_per_second: f64,
    /// Share of the site's core used for people and office.
    pub(super) people_cpu: f64,
    /// Share of the site's core used for the crawler.
    pub(super) crawler_cpu: f64,
    /// Pages served to people and office in each second so far.
    pub(super) history: Vec<usize>,
}

impl StormSnapshot {
    /// The state at the time of the last sample.
    pub(super) fn of(plan: &Plan, views: &[View], samples: &[StormSample]) -> Self {
        let now = samples.last().map_or(Duration::ZERO, |sample| sample.at);
        let (span, change, crawled) = recent_change(samples);
        let share = |crowd| change.cpu_of(crowd).as_secs_f64() / span.as_secs_f64();
        Self {
            at: now,
            people: GroupStatus::of(Crowd::Human, plan, views, now),
            office: GroupStatus::of(Crowd::Office, plan, views, now),
            crawled_per_second: crawled as f64 / span.as_secs_f64(),
            people_cpu: share(Crowd::Human) + share(Crowd::Office),
            crawler_cpu: share(Crowd::Crawler),
            history: history(views, now),
        }
    }
}

impl GroupStatus {
    fn of(crowd: Crowd, plan: &Plan, views: &[View], now: Duration) -> Self {
        let of_crowd = || views.iter().filter(|view| view.crowd == crowd);
        let since = now.saturating_sub(RATE_SPAN);
        let served = of_crowd().filter(|view| view.whole.is_ok() && view.ended > since).count();
        let ended: HashSet<Duration> = of_crowd().map(|view| view.at).collect();
        let due = plan.visits.iter().filter(|visit| visit.crowd == crowd).take_while(|visit| visit.at <= now);
        let waiting: Vec<&Visit> = due.filter(|visit| !ended.contains(&visit.at)).collect();
        let recent = of_crowd().filter(|view| view.kind == Kind::Article && view.ended + PAGE_SPAN > now);
        let mut times: Vec<Duration> = recent.map(View::page_time).collect();
        times.extend(waiting.iter().filter(|visit| visit.kind == Kind::Article).map(|visit| now - visit.at));
        Self {
            pages_per_second: served as f64 / (now - since).as_secs_f64().max(1.0),
            p99: percentile(&mut times, 99.0),
            waiting: waiting.len(),
        }
    }
}

/// The change over the samples of the last [`RATE_SPAN`]: the time between them, the difference of the site's counters,
/// and the number of pages served to the crawler.
fn recent_change(samples: &[StormSample]) -> (Duration, Reading, u64) {
    let instant = Duration::from_millis(1);
    let Some(last) = samples.last() else { return (instant, Reading::default(), 0) };
    let first = samples.iter().find(|sample| sample.at + RATE_SPAN >= last.at).unwrap_or(last);
    let span = (last.at - first.at).max(instant);
    (span, last.reading.since(&first.reading), last.crawled - first.crawled)
}

/// Complete pages served to people and office in each full second so far.
fn history(views: &[View], now: Duration) -> Vec<usize> {
    let mut seconds = vec![0; usize::try_from(now.as_secs()).unwrap_or(0)];
    for view in views.iter().filter(|view| view.whole.is_ok()) {
        let second = usize::try_from(view.ended.as_secs()).unwrap_or(usize::MAX);
        if let Some(count) = seconds.get_mut(second) {
            *count += 1;
        }
    }
    seconds
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_storm::{crowd::Origin, plan::Phases, tally::Failure};

    fn plan() -> Plan {
        let second = Duration::from_secs(1);
        Plan::new(1, Phases { calm: second * 4, storm: second * 4, recovery: second * 2 }, Origin::Address)
    }

    fn view(visit: &Visit, page_ms: u64) -> View {
        let time = Duration::from_millis(page_ms);
        let (at, crowd, kind) = (visit.at, visit.crowd, visit.kind);
        View { at, crowd, kind, page: Ok(time), whole: Ok(time), ended: at + time }
    }

    #[test]
    fn people_whose_pages_are_due_and_not_served_are_waiting() {
        let plan = plan();
        let now = Duration::from_secs(4);
        let due: Vec<&Visit> = plan.visits.iter().filter(|visit| visit.at <= now).collect();
        let nobody = GroupStatus::of(Crowd::Human, &plan, &[], now);
        assert_eq!(nobody.waiting, due.iter().filter(|visit| visit.crowd == Crowd::Human).count());
        assert!(nobody.p99.unwrap() > Duration::from_secs(1), "{nobody:?}");
        let views: Vec<View> = due.iter().map(|visit| view(visit, 30)).collect();
        let everybody = GroupStatus::of(Crowd::Human, &plan, &views, now);
        assert_eq!((everybody.waiting, everybody.p99), (0, Some(Duration::from_millis(30))));
        assert!(everybody.pages_per_second > 2.0);
    }

    #[test]
    fn a_failed_page_is_neither_served_nor_waited_for() {
        let plan = plan();
        let visit = plan.visits[0];
        let failed = View { page: Err(Failure::Late), whole: Err(Failure::Late), ..view(&visit, 5000) };
        let glance = GroupStatus::of(visit.crowd, &plan, &[failed], visit.at);
        assert_eq!((glance.waiting, glance.pages_per_second > 0.0), (0, false));
        assert_eq!(history(&[failed], Duration::from_secs(9)), vec![0; 9]);
    }

    #[test]
    fn shares_cover_the_last_samples_only() {
        let sample = |at_s: u64, cpu_ms: u64| StormSample {
            at: Duration::from_secs(at_s),
            reading: Reading {
                cpu: [Duration::ZERO, Duration::ZERO, Duration::from_millis(cpu_ms)],
                ..Reading::default()
            },
            crawled: cpu_ms / 300,
        };
        let samples = [sample(0, 0), sample(4, 0), sample(5, 600), sample(6, 1500)];
        let picture = StormSnapshot::of(&plan(), &[], &samples);
        assert!((picture.crawler_cpu - 0.75).abs() < 1e-9);
        assert!((picture.crawled_per_second - 2.5).abs() < 1e-9);
    }
}
