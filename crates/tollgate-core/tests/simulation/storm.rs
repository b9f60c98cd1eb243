//! The crawler storm: forty humans and an office use a quarter of a small site, and a crawler with 64 connections wants all of it.

use crate::backend::Work;
use crate::gate::InFlight;
use crate::world::{Arrivals, MS, Results, Source, World};
use tollgate_core::virtual_clock::Cores;

const PAGE: usize = 0;
const ASSET: usize = 1;
const OFFICE_PAGE: usize = 2;
const OFFICE_ASSET: usize = 3;
const CRAWLER: usize = 4;
const EVERYBODY: [usize; 5] = [PAGE, ASSET, OFFICE_PAGE, OFFICE_ASSET, CRAWLER];

/// The routes of pages: what the crawler wants, people want now and then too.
const ARTICLE: usize = 10;
const ARCHIVE: usize = 11;

/// When the crawler comes and when the simulation ends, in seconds.
const STORM: u64 = 300;
const END: u64 = 600;

/// A page costs 20 ms, one in fifty 300 ms, and four assets of half a millisecond follow it.
fn sources(cores: u32, crawler: Vec<u32>) -> Vec<Source> {
    let page = |per_second: f64, addresses| Source {
        works: vec![(98, Work::cpu(20 * MS), ARTICLE), (2, Work::cpu(300 * MS), ARCHIVE)],
        ..Source::new(Arrivals::Open(per_second * f64::from(cores)), addresses, Work::cpu(0))
    };
    let asset = |of, addresses| Source::new(Arrivals::After(of, 4), addresses, Work::cpu(MS / 2));
    let humans: Vec<u32> = (0..40).map(|human| (10 + human) << 16 | 0x0101).collect();
    let office = vec![90 << 16 | 0x0101];
    vec![
        page(5.0, humans.clone()),
        asset(PAGE, humans),
        page(3.75, office.clone()),
        asset(OFFICE_PAGE, office),
        Source {
            from_s: STORM,
            works: vec![(100, Work::cpu(300 * MS), ARCHIVE)],
            ..Source::patient(Arrivals::Closed(64), crawler, Work::cpu(0))
        },
    ]
}

/// From one address, from 64 of one network, from 64 networks of one block, from 64 blocks.
fn crawlers() -> [(&'static str, Vec<u32>); 4] {
    let spread = |step: u32| (0..64).map(|index| (100 << 16 | 0x0101) + index * step).collect();
    [
        ("address", vec![100 << 16 | 0x0101]),
        ("network", spread(1)),
        ("block", spread(1 << 8)),
        ("everywhere", spread(1 << 16)),
    ]
}

fn storm(cores: u32, in_flight: InFlight, crawler: Vec<u32>) -> Results {
    World::new(cores, 16 * cores as usize, in_flight, sources(cores, crawler), END).run()
}

/// The page time that 99 of 100 are within, in the storm over before it.
fn slowdown(results: &Results, source: usize, cpu_ms: u64, q: f64) -> f64 {
    results.quantile(source, cpu_ms, q, STORM + 2, END - 5) / results.quantile(source, cpu_ms, q, 5, STORM)
}

fn true_ns(results: &Results, sources: &[usize]) -> f64 {
    sources.iter().map(|source| results.cpu_rate(*source, 0, END) * END as f64 * 1e9).sum()
}

fn charged_ns(results: &Results, sources: &[usize]) -> f64 {
    sources.iter().map(|source| results.charged_ns[source] as f64).sum()
}

/// One configuration, and no figure in it that knows the site.
#[test]
fn humans_and_the_office_hardly_notice_the_storm_and_nothing_is_wasted() {
    for (name, crawler) in &crawlers()[..3] {
        let results = storm(1, InFlight::Auto, crawler.clone());
        for source in [PAGE, ASSET, OFFICE_PAGE, OFFICE_ASSET] {
            let success = results.success(source, STORM, END - 5);
            assert!(success >= 0.995, "{name}: {success:.4} of source {source} succeeded");
        }
        let (all, ordinary) = (slowdown(&results, PAGE, 0, 0.99), slowdown(&results, PAGE, 20, 0.99));
        assert!(all < 2.0, "{name}: pages took {all:.2} times as long");
        assert!(ordinary < 2.0, "{name}: ordinary pages took {ordinary:.2} times as long");
        let busy = results.busy(STORM + 1, END);
        assert!(busy > 0.98, "{name}: the core was {busy:.3} busy");
        let crawled = results.cpu_rate(CRAWLER, STORM, END - 20);
        assert!(crawled > 0.6, "{name}: the crawler got {crawled:.3} of the core");
        assert!(results.waiting_max <= 1024);
    }
}

#[test]
fn more_cores_are_all_used_and_humans_are_as_well_off() {
    for cores in [2, 4] {
        let results = storm(cores, InFlight::Auto, crawlers()[0].1.clone());
        let busy = results.busy(STORM + 1, END) / f64::from(cores);
        assert!(busy > 0.95, "{cores} cores were {busy:.3} busy");
        let all = slowdown(&results, PAGE, 0, 0.99);
        assert!(all < 2.0, "{cores} cores: pages took {all:.2} times as long");
        assert!(results.success(PAGE, STORM, END - 5) >= 0.995);
    }
}

/// No rule on addresses tells 64 strangers from 64 visitors, nor an office from any of them. But what people want is light beside what the
/// crawler wants.
#[test]
fn humans_and_the_office_survive_a_crawler_that_comes_from_everywhere() {
    let results = storm(1, InFlight::Auto, crawlers()[3].1.clone());
    for (source, least) in [(PAGE, 0.99), (ASSET, 0.995), (OFFICE_PAGE, 0.965), (OFFICE_ASSET, 0.995)] {
        let success = results.success(source, STORM, STORM + 60);
        assert!(success >= least, "{success:.3} of source {source}");
    }
    // An office is as far ahead as the crawler's addresses together, but that is no reason to make each of them wait.
    let archive = results.quantile(PAGE, 300, 0.9, STORM + 60, END - 5);
    assert!(archive < 1000.0, "pages of people who want what the crawler wants took {archive:.0} ms");
    let crawled = results.cpu_rate(CRAWLER, STORM, END - 20);
    assert!(crawled > 0.6, "the crawler got {crawled:.3} of the core");
}

/// A gate takes its machine's cores for the backend's. Where those are too many, prices would be too high by as much.
#[test]
fn a_number_of_cores_that_is_too_high_is_found_out() {
    for said in [2, 4] {
        let mut world = World::new(1, 16, InFlight::Auto, sources(1, crawlers()[1].1.clone()), END);
        world.settings.cores = Cores::whole(said);
        let results = world.run();
        let all = slowdown(&results, PAGE, 0, 0.99);
        assert!(all < 2.0, "said to have {said}: pages took {all:.2} times as long");
        assert!(results.success(OFFICE_PAGE, STORM, END - 5) >= 0.995);
        let ratio = charged_ns(&results, &EVERYBODY) / true_ns(&results, &EVERYBODY);
        assert!((0.95..1.05).contains(&ratio), "said to have {said}: {ratio:.3} of the CPU time was charged");
    }
}

/// Where dear and cheap pages have paths alike, nothing can be predicted; who goes first is then a matter of shares alone.
#[test]
fn where_costs_cannot_be_predicted_everybody_is_served_all_the_same() {
    let mut sources = sources(1, crawlers()[0].1.clone());
    for (_, _, route) in sources.iter_mut().flat_map(|source| &mut source.works).filter(|work| work.2 == ARCHIVE) {
        *route = ARTICLE;
    }
    let results = World::new(1, 16, InFlight::Auto, sources, END).run();
    for source in [PAGE, ASSET, OFFICE_PAGE, OFFICE_ASSET] {
        let success = results.success(source, STORM, END - 5);
        assert!(success >= 0.99, "{success:.3} of source {source}");
    }
    let ordinary = slowdown(&results, PAGE, 20, 0.95);
    assert!(ordinary < 3.0, "{ordinary:.2}");
}

/// What the fair queue is for: with a queue in the backend instead, nobody is served.
#[test]
fn without_a_gate_the_site_answers_no_human() {
    let results = storm(1, InFlight::Fixed { open: 10_000, limit: 10_000 }, crawlers()[0].1.clone());
    let success = results.success(PAGE, STORM + 20, END - 5);
    assert!(success < 0.1, "{success:.3}");
}

/// Why a client that is ahead of its share gets a place only while a core is idle.
#[test]
fn a_fair_order_alone_leaves_pages_several_times_slower() {
    let results = storm(1, InFlight::Fixed { open: 4, limit: 8 }, crawlers()[0].1.clone());
    let all = slowdown(&results, PAGE, 0, 0.99);
    assert!(all > 3.0, "{all:.2}");
}

#[test]
fn people_notice_neither_its_coming_nor_its_going() {
    let mut world = World::new(1, 16, InFlight::Auto, sources(1, crawlers()[1].1.clone()), STORM + 120);
    world.sources[CRAWLER].until_s = STORM + 60;
    let results = world.run();
    let calm = results.quantile(PAGE, 20, 0.99, 5, STORM);
    for from in [STORM, STORM + 60] {
        let soon = results.quantile(PAGE, 20, 0.95, from, from + 8);
        assert!(soon < 2.0 * calm, "from second {from} on pages took {soon:.0} ms, {calm:.0} in calm");
    }
}

/// Tolls against what the backend really did, by kind of client.
#[test]
fn tolls_are_within_a_fifth_of_the_true_cost_for_everybody() {
    let results = storm(1, InFlight::Auto, crawlers()[0].1.clone());
    for kind in [&[PAGE, ASSET][..], &[OFFICE_PAGE, OFFICE_ASSET], &[CRAWLER]] {
        let ratio = charged_ns(&results, kind) / true_ns(&results, kind);
        assert!((0.8..1.2).contains(&ratio), "{kind:?} was charged {ratio:.2} times what it cost");
    }
    let ratio = charged_ns(&results, &EVERYBODY) / true_ns(&results, &EVERYBODY);
    assert!((0.95..1.05).contains(&ratio), "in all {ratio:.3}");
}
