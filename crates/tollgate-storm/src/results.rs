//! The results of a storm as data, for publication and comparison: computed from the [`Tally`] at the end of
//! `tollgate-storm run`, and written as JSON, as a table and as a picture.
//!
//! The field names and meanings are stable: `format` changes with them. Times of people count from the planned start of
//! the visit. A view that failed counts as the longest time after which people give up: 5 s on the page, and 10 s on
//! the page with its assets. A server therefore cannot look faster by refusing or hanging.

use crate::{
    counters::Reading,
    crowd::Crowd,
    plan::{Phases, Plan},
    tally::{Crawled, Failure, PATIENCE, Tally, View, percentile},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The version of the fields.
pub const FORMAT: u32 = 1;

/// The results of one storm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The version of the fields: [`FORMAT`].
    pub format: u32,
    /// The version of this crate.
    pub version: String,
    /// The name that the operator gave to the run.
    pub name: String,
    /// The parameters of the storm.
    pub storm: StormParameters,
    /// The results of each phase: calm, storm and recovery.
    pub phases: Vec<PhaseResults>,
    /// CPU time of the site in the storm, if the address of the site was given.
    pub site: Option<SiteResults>,
    /// One entry per second.
    pub seconds: Vec<SecondResults>,
}

/// The parameters of a storm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StormParameters {
    /// The URL under test.
    pub target: String,
    /// The seed.
    pub seed: u64,
    /// `source` or `x-forwarded-for`.
    pub identity: String,
    /// Networks of the crawler.
    pub networks: u16,
    /// Connections of the crawler.
    pub connections: u16,
    /// Pause of each of these connections before a request, in milliseconds.
    pub round_trip_ms: f64,
    /// Time after which people give up, in seconds.
    pub patience_s: f64,
    /// The duration of the calm, in seconds.
    pub calm_s: f64,
    /// The duration of the storm, in seconds.
    pub storm_s: f64,
    /// The duration of the recovery, in seconds.
    pub recovery_s: f64,
}

/// One phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseResults {
    /// `calm`, `storm` or `recovery`.
    pub name: String,
    /// People with separate addresses.
    pub people: CrowdResults,
    /// People behind one address.
    pub office: CrowdResults,
    /// Responses to the crawler.
    pub crawler: Crawled,
}

/// The page views of a crowd whose planned start is in a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CrowdResults {
    /// Page views.
    pub views: u64,
    /// Views in which the page and all its assets arrived in time.
    pub served: u64,
    /// Views without the page or an asset in time.
    pub late: u64,
    /// Views with a response other than the page or an asset.
    pub refused: u64,
    /// Views with a failed connection.
    pub broken: u64,
    /// Time to the page, in milliseconds.
    pub page_ms: Percentiles,
    /// Time to the page with all its assets, in milliseconds.
    pub whole_ms: Percentiles,
}

/// Percentiles of a time in milliseconds; zero without views.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// 90 % are not slower.
    pub p90: f64,
    /// 99 % are not slower.
    pub p99: f64,
    /// The slowest.
    pub max: f64,
}

/// CPU time of the site between the start of the storm and its end, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteResults {
    /// The time between the readings.
    pub elapsed_s: f64,
    /// The whole process.
    pub total_s: f64,
    /// For people.
    pub people_s: f64,
    /// For the office.
    pub office_s: f64,
    /// For the crawler.
    pub crawler_s: f64,
}

/// One second of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SecondResults {
    /// Views of people and office that were planned for this second.
    pub views: u64,
    /// Those in which the page and all its assets arrived in time.
    pub served: u64,
    /// The slowest page among them, in milliseconds.
    pub page_max_ms: f64,
    /// Pages that the crawler received in this second.
    pub crawler_answered: u64,
    /// Other responses to the crawler.
    pub crawler_refused: u64,
}

impl Results {
    /// Computes the results. `crawled` has the crawler's totals at the end of each second.
    pub fn new(name: &str, storm: StormParameters, plan: &Plan, tally: &Tally, crawled: &[Crawled]) -> Self {
        let views = tally.views();
        let phases = spans(plan.phases).map(|(phase, from, until)| {
            let crowd = |crowd: Crowd| {
                CrowdResults::of(views.iter().filter(|view| view.crowd == crowd && (from..until).contains(&view.at)))
            };
            let crawler = if phase == "storm" { tally.crawled() } else { Crawled::default() };
            PhaseResults { name: phase.into(), people: crowd(Crowd::Human), office: crowd(Crowd::Office), crawler }
        });
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            name: name.into(),
            storm,
            phases: phases.into(),
            site: None,
            seconds: seconds(&views, crawled, plan.phases.end_at()),
        }
    }

    /// The results of the phase of this name.
    pub fn phase(&self, name: &str) -> Option<&PhaseResults> {
        self.phases.iter().find(|phase| phase.name == name)
    }

    /// A table for a terminal.
    pub fn table(&self) -> String {
        let mut table = format!(
            "{:<10} {:<8} {:>6} {:>8} {:>6} {:>8} {:>7} {:>10} {:>10}\n",
            "phase", "who", "views", "served", "late", "refused", "broken", "page p50", "page p99"
        );
        for phase in &self.phases {
            for (who, crowd) in [("people", &phase.people), ("office", &phase.office)] {
                let served = 100.0 * crowd.served as f64 / (crowd.views.max(1)) as f64;
                table += &format!(
                    "{:<10} {who:<8} {:>6} {served:>6.1} % {:>6} {:>8} {:>7} {:>7.0} ms {:>7.0} ms\n",
                    phase.name,
                    crowd.views,
                    crowd.late,
                    crowd.refused,
                    crowd.broken,
                    crowd.page_ms.p50,
                    crowd.page_ms.p99
                );
            }
        }
        if let Some(storm) = self.phase("storm") {
            let Crawled { answered, refused, broken } = storm.crawler;
            table += &format!(
                "The crawler received {answered} pages, {refused} refusals and {broken} broken connections.\n"
            );
        }
        if let Some(site) = &self.site {
            table += &format!(
                "The site used {:.2} cores in the storm: {:.1} s for people, {:.1} s for the office, {:.1} s for the crawler.\n",
                site.total_s / site.elapsed_s.max(1e-9),
                site.people_s,
                site.office_s,
                site.crawler_s
            );
        }
        table
    }
}

/// Name, start and end of each phase.
fn spans(phases: Phases) -> [(&'static str, Duration, Duration); 3] {
    [
        ("calm", Duration::ZERO, phases.storm_at()),
        ("storm", phases.storm_at(), phases.recovery_at()),
        ("recovery", phases.recovery_at(), phases.end_at()),
    ]
}

impl SiteResults {
    /// The CPU time between two readings.
    pub fn between(before: &Reading, after: &Reading) -> Self {
        let spent = after.since(before);
        let of = |crowd| spent.cpu_of(crowd).as_secs_f64();
        Self {
            elapsed_s: spent.uptime.as_secs_f64(),
            total_s: spent.process_cpu.as_secs_f64(),
            people_s: of(Crowd::Human),
            office_s: of(Crowd::Office),
            crawler_s: of(Crowd::Crawler),
        }
    }
}

impl CrowdResults {
    fn of<'a>(views: impl Iterator<Item = &'a View>) -> Self {
        let mut results = Self::default();
        let (mut page, mut whole) = (Vec::new(), Vec::new());
        for view in views {
            results.views += 1;
            page.push(view.page_time());
            // On the page, and again on its assets.
            whole.push(view.whole.unwrap_or(PATIENCE * 2));
            *match view.whole {
                Ok(_) => &mut results.served,
                Err(Failure::Late) => &mut results.late,
                Err(Failure::Refused(_)) => &mut results.refused,
                Err(Failure::Broken) => &mut results.broken,
            } += 1;
        }
        (results.page_ms, results.whole_ms) = (Percentiles::of(&mut page), Percentiles::of(&mut whole));
        results
    }
}

impl Percentiles {
    fn of(times: &mut [Duration]) -> Self {
        let mut ms = |percent| percentile(times, percent).map_or(0.0, millis);
        Self { p50: ms(50.0), p90: ms(90.0), p99: ms(99.0), max: ms(100.0) }
    }
}

/// The results of each second; `crawled` is as in [`Results::new`].
fn seconds(views: &[View], crawled: &[Crawled], end_at: Duration) -> Vec<SecondResults> {
    let mut seconds = vec![SecondResults::default(); end_at.as_secs_f64().ceil() as usize];
    for view in views {
        if let Some(second) = seconds.get_mut(view.at.as_secs() as usize) {
            second.views += 1;
            second.served += u64::from(view.whole.is_ok());
            second.page_max_ms = second.page_max_ms.max(millis(view.page_time()));
        }
    }
    let mut before = Crawled::default();
    for (second, total) in seconds.iter_mut().zip(crawled) {
        second.crawler_answered = total.answered.saturating_sub(before.answered);
        second.crawler_refused = total.refused.saturating_sub(before.refused);
        before = *total;
    }
    seconds
}

/// Milliseconds, rounded to microseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{crowd::Origin, page::Kind};

    /// Results of three views, one of them late, and a crawler that was refused twice.
    pub(crate) fn example() -> Results {
        let second = Duration::from_secs(1);
        let phases = Phases { calm: second, storm: second * 2, recovery: second };
        let plan = Plan::new(1, phases, Origin::Networks(3));
        let tally = Tally::default();
        let view = |at_ms: u64, page: Result<Duration, Failure>| View {
            at: Duration::from_millis(at_ms),
            crowd: Crowd::Human,
            kind: Kind::Article,
            page,
            whole: page.map(|time| time * 2),
            ended: second,
        };
        tally.views().extend([
            view(100, Ok(Duration::from_millis(30))),
            view(1100, Ok(Duration::from_millis(50))),
            view(1200, Err(Failure::Late)),
        ]);
        let crawled = [Crawled::default(), Crawled { answered: 5, refused: 2, broken: 0 }];
        let parameters = StormParameters {
            target: "http://127.0.0.1:1".into(),
            seed: 1,
            identity: "source".into(),
            networks: 3,
            connections: 64,
            round_trip_ms: 20.0,
            patience_s: 5.0,
            calm_s: 1.0,
            storm_s: 2.0,
            recovery_s: 1.0,
        };
        Results::new("<gate> & \"co\"", parameters, &plan, &tally, &crawled)
    }

    #[test]
    fn a_failed_view_counts_as_the_time_after_which_people_give_up() {
        let results = example();
        let storm = results.phase("storm").unwrap();
        assert_eq!((storm.people.views, storm.people.served, storm.people.late), (2, 1, 1));
        assert_eq!((storm.people.page_ms.p50, storm.people.page_ms.p99), (50.0, 5000.0));
        // A served view takes up to 5 s for the page and 5 s for its assets.
        assert_eq!((storm.people.whole_ms.p50, storm.people.whole_ms.p99), (100.0, 10_000.0));
        assert_eq!(results.phase("calm").unwrap().people.whole_ms.max, 60.0);
        assert_eq!(results.phase("recovery").unwrap().people, CrowdResults::default());
    }

    #[test]
    fn every_second_has_its_views_and_the_crawlers_responses() {
        let seconds = example().seconds;
        assert_eq!(seconds.len(), 4);
        assert_eq!((seconds[0].views, seconds[1].views, seconds[1].served), (1, 2, 1));
        assert_eq!((seconds[1].crawler_answered, seconds[1].crawler_refused), (5, 2));
        assert_eq!(seconds[3], SecondResults::default());
    }
}
