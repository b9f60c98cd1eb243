//! The text before and after the demo: an introduction, and the comparison of its two halves, for a reader who knows
//! nothing else about Tollgate.

use std::ops::Range;
use std::time::Duration;

use tollgate_storm::counters::Reading;
use tollgate_storm::crowd::Crowd;
use tollgate_storm::page::Kind;
use tollgate_storm::plan::{Phases, Plan, Visit};
use tollgate_storm::tally::{PATIENCE, View, percentile};

use super::screen::time;

/// The gate has kept the site usable if this part of the pages of people, and of the office, was served.
const SERVED_MIN: f64 = 0.95;
/// During the storm the site has work all the time. If it used less of its core than this, other programs used the
/// rest.
const CORE_USED_MIN: f64 = 0.85;

/// The results of one half. All but the first value are from the phase in which the crawler was active.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfResult {
    /// p99 of an article before the crawler arrived.
    calm_p99: Option<Duration>,
    /// p99 of an article while the crawler was active; one that was not served counts as [`PATIENCE`].
    p99: Option<Duration>,
    /// Pages of people and office that were due while the crawler was active.
    pages: usize,
    /// Articles among them.
    articles: usize,
    /// Part of the people's pages that were served, from 0 to 1.
    humans_served: f64,
    /// The same for the office.
    office_served: f64,
    /// Part of the site's core that was used for the crawler.
    crawler_cpu: f64,
    /// Part of its core that the site used in total.
    core_used: f64,
}

impl HalfResult {
    /// The results, from the finished page views, and from the change of the site's counters while the crawler was
    /// active.
    pub(super) fn of(plan: &Plan, views: &[View], storm: &Reading) -> Self {
        let (calm, stormy) =
            (Duration::ZERO..plan.phases.storm_at(), plan.phases.storm_at()..plan.phases.recovery_at());
        let wall_s = storm.uptime.as_secs_f64();
        let due = |visit: &&Visit| stormy.contains(&visit.at);
        Self {
            calm_p99: p99(plan, views, &calm),
            p99: p99(plan, views, &stormy),
            pages: plan.visits.iter().filter(due).count(),
            articles: plan.visits.iter().filter(due).filter(|visit| visit.kind == Kind::Article).count(),
            humans_served: served(plan, views, Crowd::Human, &stormy),
            office_served: served(plan, views, Crowd::Office, &stormy),
            crawler_cpu: storm.cpu_of(Crowd::Crawler).as_secs_f64() / wall_s,
            core_used: storm.process_cpu.as_secs_f64() / wall_s,
        }
    }

    /// Whether nearly all pages of people and office were served.
    fn is_served(&self) -> bool {
        self.humans_served.min(self.office_served) >= SERVED_MIN
    }
}

/// The 99th percentile of all articles that were due in this time, not only of those whose views have ended.
fn p99(plan: &Plan, views: &[View], when: &Range<Duration>) -> Option<Duration> {
    let is_article = |kind: Kind, at: Duration| kind == Kind::Article && when.contains(&at);
    let due = plan.visits.iter().filter(|visit| is_article(visit.kind, visit.at)).count();
    let mut times: Vec<Duration> =
        views.iter().filter(|view| is_article(view.kind, view.at)).map(View::page_time).collect();
    times.resize(due.max(times.len()), PATIENCE);
    percentile(&mut times, 99.0)
}

/// The part of a group's pages due in this time that were served completely.
fn served(plan: &Plan, views: &[View], crowd: Crowd, when: &Range<Duration>) -> f64 {
    let due = plan.visits.iter().filter(|visit| visit.crowd == crowd && when.contains(&visit.at)).count();
    let complete =
        views.iter().filter(|view| view.crowd == crowd && when.contains(&view.at) && view.whole.is_ok()).count();
    complete as f64 / due.max(1) as f64
}

/// The text before the first half.
pub(super) fn introduction(phases: Phases) -> String {
    format!(
        "
  A small site with one CPU core is read by 40 people, and by an office of 30
  behind one address. They open articles, which cost the site 20 ms of CPU time
  each, and one time in 50 an archive page, which costs 300 ms. After {}
  seconds a crawler arrives: 64 connections from one network, each of which
  requests archive pages as fast as the site sends them.

  First without a gate, then with `tollgate gate` and nothing else configured.
  It takes about {} seconds.
",
        phases.storm_at().as_secs(),
        phases.end_at().as_secs() * 2
    )
}

/// The table that compares both halves, its explanation, and the conclusion.
pub(super) fn side_by_side(without: &HalfResult, with: &HalfResult) -> String {
    let slowest = |p99: Option<Duration>| match p99 {
        Some(p99) if p99 >= PATIENCE => format!("over {}", time(Some(PATIENCE))),
        p99 => time(p99),
    };
    let rows: [(&str, String, String); 6] = [
        ("people served", percent(without.humans_served), percent(with.humans_served)),
        ("office served", percent(without.office_served), percent(with.office_served)),
        ("99 of 100 articles within", slowest(without.p99), slowest(with.p99)),
        ("    before the crawler came", slowest(without.calm_p99), slowest(with.calm_p99)),
        ("crawler's share of CPU time", percent(without.crawler_cpu), percent(with.crawler_cpu)),
        ("CPU time in use", percent(without.core_used), percent(with.core_used)),
    ];
    let mut text =
        format!("\n  {:<30} {:>18} {:>18}\n", "While the crawler was there", "without Tollgate", "with Tollgate");
    for (name, without, with) in rows {
        text += &format!("  {name:<30} {without:>18} {with:>18}\n");
    }
    text + &format!(
        "
  The table is about the {} pages that people and the office opened while the
  crawler was there. A page is served if it and its four files arrive, each
  within {patience} s. The times are those of the {} articles among the pages, from the
  moment a person asked; one that was not served counts as {patience} s.

  Site, visitors and crawler were the same both times.
{}
  In front of a site of yours:  tollgate gate --backend http://127.0.0.1:8080
",
        with.pages,
        with.articles,
        conclusion(without, with),
        patience = PATIENCE.as_secs()
    )
}

/// The conclusion that the values of this run allow.
fn conclusion(without: &HalfResult, with: &HalfResult) -> String {
    let mut text = match (without.is_served(), with.is_served()) {
        (_, true) if with.p99 > without.p99 => "  In this run the gate did not make the pages faster.\n".to_owned(),
        (false, true) => {
            let crawler = percent(with.crawler_cpu);
            format!("  The crawler is not banned: with Tollgate it had {crawler} of the CPU time.\n")
        }
        (true, true) => "  In this run the crawler did not keep people from the site in either half.\n".to_owned(),
        (_, false) => "  In this run the gate did not keep the site usable.\n".to_owned(),
    };
    let core_used = without.core_used.min(with.core_used);
    if core_used < CORE_USED_MIN {
        text += &format!(
            "
  The site could use only {} of its CPU core: other programs on this machine
  used the rest. Close them and run the demo again for results that hold.
",
            percent(core_used)
        );
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_storm::crowd::Origin;

    fn plan() -> Plan {
        let second = Duration::from_secs(1);
        Plan::new(1, Phases { calm: second * 4, storm: second * 12, recovery: second * 2 }, Origin::Address)
    }

    fn views(plan: &Plan) -> Vec<View> {
        let time = Duration::from_millis(30);
        let view = |at, crowd, kind| View { at, crowd, kind, page: Ok(time), whole: Ok(time), ended: at + time };
        plan.visits.iter().map(|visit| view(visit.at, visit.crowd, visit.kind)).collect()
    }

    fn figures(views: &[View]) -> HalfResult {
        let second = Duration::from_secs(1);
        let cpu = [second, second, second * 9];
        HalfResult::of(
            &plan(),
            views,
            &Reading { uptime: second * 12, process_cpu: second * 11, cpu, requests: [0; 3] },
        )
    }

    #[test]
    fn an_article_that_was_not_served_counts_as_the_whole_patience() {
        let (all, nobody) = (figures(&views(&plan())), figures(&[]));
        assert_eq!((all.p99, nobody.p99), (Some(Duration::from_millis(30)), Some(PATIENCE)));
        assert!((all.humans_served - 1.0).abs() < 1e-9 && nobody.humans_served.abs() < 1e-9);
        assert!((all.crawler_cpu - 0.75).abs() < 1e-9);
    }

    #[test]
    fn the_summary_puts_both_halves_next_to_each_other() {
        let text = side_by_side(&figures(&[]), &figures(&views(&plan())));
        let line = |name: &str| text.lines().find(|line| line.contains(name)).unwrap().to_owned();
        assert!(line("people served").ends_with("0 %              100 %"), "{}", line("people served"));
        assert!(line("99 of 100").contains("over 5.0 s") && line("99 of 100").ends_with("30 ms"));
        let stormy = Duration::from_secs(4)..Duration::from_secs(16);
        let due: Vec<Visit> = plan().visits.into_iter().filter(|visit| stormy.contains(&visit.at)).collect();
        let articles = due.iter().filter(|visit| visit.kind == Kind::Article).count();
        assert!(
            articles < due.len() && text.contains(&format!("The table is about the {} pages", due.len())),
            "{text}"
        );
        assert!(text.contains(&format!("those of the {articles} articles")), "{text}");
    }

    #[test]
    fn the_conclusion_claims_only_what_the_run_shows() {
        let (all, nobody) = (figures(&views(&plan())), figures(&[]));
        let slow = HalfResult { p99: Some(Duration::from_secs(1)), ..all };
        let busy = HalfResult { core_used: 0.6, ..all };
        let banned = "not banned: with Tollgate it had 75 % of the CPU time";
        let check = |without: &HalfResult, with: &HalfResult, expect: &[&str]| {
            let text = conclusion(without, with);
            let parts = [
                banned,
                "did not make the pages faster",
                "in either half",
                "did not keep the site usable",
                "use only 60 % of its CPU core",
            ];
            let found: Vec<_> = parts.into_iter().filter(|part| text.contains(part)).collect();
            assert_eq!(found, expect, "{text}");
        };
        check(&nobody, &all, &[banned]);
        check(&nobody, &busy, &[banned, "use only 60 % of its CPU core"]);
        check(&all, &all, &["in either half"]);
        check(&all, &slow, &["did not make the pages faster"]);
        check(&all, &nobody, &["did not keep the site usable"]);
        check(&busy, &nobody, &["did not keep the site usable", "use only 60 % of its CPU core"]);
    }

    #[test]
    fn all_text_fits_into_80_columns() {
        let phases = plan().phases;
        let (nobody, all) = (figures(&[]), figures(&views(&plan())));
        let busy = HalfResult { core_used: 0.6, ..all };
        for with in [all, busy, nobody] {
            let text = introduction(phases) + &side_by_side(&nobody, &with);
            for line in text.lines() {
                assert!(line.chars().count() <= 79, "{line}");
            }
        }
    }
}
