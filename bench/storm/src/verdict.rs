//! The assessment of a storm: success, slowdown, containment and recovery, each compared with the same gate
//! without a storm.
//!
//! A page is compared with its own kind: one page in fifty costs fifteen times as much as the others, so a
//! p99 over all pages mostly shows how often expensive ones coincided. The overall p99 is reported, too,
//! because an external observer would measure it.

use crate::run::Outcome;
use std::{ops::Range, time::Duration};
use tollgate_storm::{
    crowd::Crowd,
    page::Kind,
    plan::Phases,
    tally::{View, percentile},
};

/// A page is slow if it exceeds its calm p99 by this factor.
const SLOW_FROM: u32 = 2;
/// The storm counts as contained, or the site as recovered, from the first moment that is followed by this much time
/// without slow pages.
const CLEAN_STRETCH: Duration = Duration::from_secs(1);
/// The time that is ignored at both ends of the calm phase: cold connections, and pages that the first second
/// of the storm affects.
const CALM_MARGIN: Duration = Duration::from_secs(1);

/// People's page p99, by kind of page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageTimes {
    pub(crate) article: Option<Duration>,
    pub(crate) archive: Option<Duration>,
    pub(crate) all: Option<Duration>,
}

impl PageTimes {
    /// Human page views during storms in scenarios without a crawler, over any number of runs.
    pub(crate) fn of_no_storm<'a>(views: impl Iterator<Item = &'a View> + Clone, phases: Phases) -> Self {
        Self::of_humans(views, phases.storm_at()..phases.recovery_at())
    }

    /// Human page views in the calm phase before the storm, over any number of runs.
    pub(crate) fn of_calm<'a>(views: impl Iterator<Item = &'a View> + Clone, phases: Phases) -> Self {
        let calm = CALM_MARGIN..phases.storm_at().saturating_sub(CALM_MARGIN);
        Self::of_humans(views, calm)
    }

    fn of_humans<'a>(views: impl Iterator<Item = &'a View> + Clone, when: Range<Duration>) -> Self {
        let p99 = |kind: Option<Kind>| {
            let views = views.clone().filter(|view| view.crowd == Crowd::Human && when.contains(&view.at));
            let mut times: Vec<Duration> =
                views.filter(|view| kind.is_none_or(|kind| view.kind == kind)).map(View::page_time).collect();
            percentile(&mut times, 99.0)
        };
        Self { article: p99(Some(Kind::Article)), archive: p99(Some(Kind::Archive)), all: p99(None) }
    }

    const fn of_kind(&self, kind: Kind) -> Option<Duration> {
        match kind {
            Kind::Archive => self.archive,
            Kind::Article | Kind::Asset => self.article,
        }
    }
}

/// The effect of one storm on people, and its cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    /// Share of the humans' page views in the storm that were complete.
    pub(crate) humans_ok: f64,
    /// The same for the office.
    pub(crate) office_ok: f64,
    /// Page p99 of humans in the storm.
    pub(crate) pages: PageTimes,
    /// The time from the crawler's arrival until people are unaffected; `None` if that never happens.
    pub(crate) contained: Option<Duration>,
    /// The time from the crawler's departure until people are unaffected.
    pub(crate) recovered: Option<Duration>,
    /// Share of the core that the crawler had in the storm.
    pub(crate) crawler_cpu: f64,
    /// Share of the core that was used at all in the storm.
    pub(crate) core_used: f64,
    /// Share of its own core that the gate used in the storm.
    pub(crate) gate_cpu: f64,
    /// Tolls charged per CPU time used, over the whole run.
    pub(crate) tolls: Option<f64>,
    /// The same in the storm for each crowd, in the order of [`Crowd::ALL`].
    pub(crate) crowd_tolls: Option<[f64; 3]>,
}

impl Verdict {
    pub(crate) fn of(outcome: &Outcome, phases: Phases, calm: &PageTimes) -> Self {
        let storm = phases.storm_at()..phases.recovery_at();
        let wall_s = outcome.storm.uptime.as_secs_f64();
        Self {
            humans_ok: share_ok(&outcome.views, Crowd::Human, &storm),
            office_ok: share_ok(&outcome.views, Crowd::Office, &storm),
            contained: calm_again(&outcome.views, calm, &storm),
            recovered: calm_again(&outcome.views, calm, &(phases.recovery_at()..phases.end_at())),
            pages: PageTimes::of_humans(outcome.views.iter(), storm),
            crawler_cpu: outcome.storm.cpu_of(Crowd::Crawler).as_secs_f64() / wall_s,
            core_used: outcome.storm.process_cpu.as_secs_f64() / wall_s,
            gate_cpu: outcome.gate_cpu.as_secs_f64() / wall_s,
            tolls: outcome.tolls,
            crowd_tolls: outcome
                .crowd_tolls
                .map(|tolls| [0, 1, 2].map(|at| tolls[at].as_secs_f64() / outcome.storm.cpu[at].as_secs_f64())),
        }
    }
}

/// The share of this crowd's page views in this window that were complete.
pub(crate) fn share_ok(views: &[View], crowd: Crowd, when: &Range<Duration>) -> f64 {
    let seen: Vec<&View> = views.iter().filter(|view| view.crowd == crowd && when.contains(&view.at)).collect();
    seen.iter().filter(|view| view.whole.is_ok()).count() as f64 / seen.len() as f64
}

/// The time after the start of `phase` at which the site recovered: the first moment that is followed by a
/// clean second and has a p99 within bounds until the end of the phase. `None` if there is no such moment.
fn calm_again(views: &[View], calm: &PageTimes, phase: &Range<Duration>) -> Option<Duration> {
    let mut seen: Vec<&View> = views.iter().filter(|view| phase.contains(&view.at)).collect();
    seen.sort_by_key(|view| view.at);
    let bad: Vec<bool> = seen.iter().map(|view| is_bad(view, calm)).collect();
    // Only the start of the phase and the moments just after a slow page can be the first good moment.
    let after_bad = (0..seen.len()).filter(|&index| bad[index]).map(|index| (index + 1, seen[index].at));
    std::iter::once((0, phase.start)).chain(after_bad).find_map(|(first, moment)| {
        if moment + CLEAN_STRETCH > phase.end {
            return None;
        }
        let stretch_end = moment + CLEAN_STRETCH;
        let clean = (first..seen.len()).take_while(|&index| seen[index].at <= stretch_end).all(|index| !bad[index]);
        let rest = &bad[first..];
        let slow_share_ok = rest.iter().filter(|&&bad| bad).count() * 100 <= rest.len();
        (clean && slow_share_ok).then(|| moment - phase.start)
    })
}

fn is_bad(view: &View, calm: &PageTimes) -> bool {
    let limit = calm.of_kind(view.kind).map(|p99| p99 * SLOW_FROM);
    view.whole.is_err() || limit.is_some_and(|limit| view.page_time() > limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_storm::tally::{Failure, PATIENCE};

    const CALM: PageTimes = PageTimes {
        article: Some(Duration::from_millis(50)),
        archive: Some(Duration::from_millis(400)),
        all: Some(Duration::from_millis(400)),
    };

    fn view(at_ms: u64, page_ms: Option<u64>) -> View {
        let time = page_ms.map(Duration::from_millis).ok_or(Failure::Late);
        let at = Duration::from_millis(at_ms);
        let ended = at + time.unwrap_or(PATIENCE);
        View { at, crowd: Crowd::Human, kind: Kind::Article, page: time, whole: time, ended }
    }

    /// A phase from second 10 to second 30 with a page every 100 ms, of which those in `bad_ms` fail.
    fn check(bad_ms: Range<u64>, expect_ms: Option<u64>) {
        let views: Vec<View> =
            (10_000..30_000).step_by(100).map(|at| view(at, (!bad_ms.contains(&at)).then_some(30))).collect();
        let phase = Duration::from_secs(10)..Duration::from_secs(30);
        assert_eq!(calm_again(&views, &CALM, &phase), expect_ms.map(Duration::from_millis), "{bad_ms:?}");
    }

    #[test]
    fn calm_returns_after_the_last_bad_page() {
        check(0..0, Some(0));
        check(10_000..11_500, Some(1_400));
        check(10_500..10_700, Some(600));
    }

    #[test]
    fn calm_that_does_not_last_is_none() {
        check(10_000..30_000, None);
        check(29_500..30_000, None);
    }

    #[test]
    fn one_slow_page_in_a_hundred_does_not_undo_the_calm() {
        check(20_000..20_100, Some(0));
        check(20_000..20_300, Some(10_200));
    }

    #[test]
    fn a_page_is_slow_by_the_measure_of_its_own_kind() {
        let slow = View { kind: Kind::Archive, ..view(0, Some(790)) };
        assert!(!is_bad(&slow, &CALM));
        assert!(is_bad(&view(0, Some(101)), &CALM));
        assert!(!is_bad(&view(0, Some(100)), &CALM));
        assert!(is_bad(&view(0, None), &CALM));
        let without_its_assets = View { whole: Err(Failure::Refused(429)), ..view(0, Some(30)) };
        assert!(is_bad(&without_its_assets, &CALM));
    }

    #[test]
    fn a_failed_page_counts_as_five_seconds() {
        let views = [view(100, Some(30)), view(200, None)];
        let pages = PageTimes::of_humans(views.iter(), Duration::ZERO..Duration::from_secs(1));
        assert_eq!(pages.article, Some(Duration::from_secs(5)));
        assert_eq!(pages.archive, None);
        assert!((share_ok(&views, Crowd::Human, &(Duration::ZERO..Duration::from_secs(1))) - 0.5).abs() < 1e-9);
    }
}
