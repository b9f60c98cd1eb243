//! L4 and L7: a request that costs more than its price counts at once, and unproven work in flight is bounded.

use crate::results::Results;
use crate::storm::{ARCHIVE, ARTICLE, CRAWLER, OFFICE_PAGE, PAGE, Storm};
use crate::sweep::{Sweep, check, seeds};
use crate::world::{Arrivals, SEC, Source, World, addresses, work};

/// A crawler whose route cost 1 ms for eight requests and costs 300 ms from then on. It gains what may be in flight
/// unproven, once: the limit of 8 requests at the start.
#[test]
fn a_cache_buster_gains_no_more_than_a_few_requests_once() {
    let mut early = Sweep::at_most("L7 page p99 over calm, cache buster, first 5 s", 3.0);
    let mut late = Sweep::at_most("L7 page p99 over calm, cache buster, later", 2.0);
    let mut exposed = Sweep::at_most("L7 CPU time of the cache buster in flight, s", 2.4);
    for scenario in [1, 2] {
        for seed in seeds(2) {
            let storm = Storm::new(scenario, 10, seed);
            let mut world = storm.world();
            world.sources[CRAWLER].first = Some((8, work(1.0, 0.0)));
            let runs = storm.run(&world);
            early.add(runs.slowdown(10, 15), || format!("{storm:?}"));
            late.add(runs.slowdown(15, 40), || format!("{storm:?}"));
            let most = runs.storms.iter().map(|results| results.in_flight_ns_max[CRAWLER]).max().unwrap_or(0);
            exposed.add(most as f64 / SEC as f64, || format!("{storm:?}"));
        }
    }
    check([exposed, early, late]);
}

/// The crawler's expensive requests have the route of people's pages: the price of the route is between the two, and
/// its octave is the same for both. People are behind their share, so they still go first. No law bounds this case: the
/// bounds are what was measured.
#[test]
fn people_are_served_beside_a_crawler_whose_route_is_theirs() {
    let mut early = Sweep::at_most("L5 page p99 over calm, one route, first 5 s", 13.5);
    let mut late = Sweep::at_most("L5 page p99 over calm, one route, later", 2.0);
    let mut served = Sweep::at_least("L5 served, one route", 0.99);
    for scenario in [1, 2] {
        for seed in seeds(2) {
            let storm = Storm::new(scenario, 10, seed);
            let mut world = storm.world();
            world.sources[CRAWLER].works = vec![(100, work(300.0, 0.0), ARTICLE)];
            let runs = storm.run(&world);
            early.add(runs.slowdown(10, 15), || format!("{storm:?}"));
            late.add(runs.slowdown(15, 40), || format!("{storm:?}"));
            let of = |results: &Results| results.served(&[PAGE, OFFICE_PAGE], 10_000, 40_000);
            served.add(runs.mean(of), || format!("{storm:?}"));
        }
    }
    check([served, early.always(), late.always()]);
}

/// A route of 20 ms takes a second from one moment on. Light requests pass the requests in flight.
#[test]
fn light_requests_pass_requests_that_overrun() {
    let mut early = Sweep::at_most("L4 page p99 over calm, overruns, first 5 s", 3.0);
    let mut late = Sweep::at_most("L4 page p99 over calm, overruns, later", 2.0);
    for seed in seeds(2) {
        let storm = Storm { crawler_ms: 1000.0, ..Storm::new(1, 10, seed) };
        let mut world = storm.world();
        let steady = Source { from_ms: 0, works: vec![(100, work(20.0, 0.0), ARCHIVE)], ..world.sources[PAGE].clone() };
        world.sources.push(Source { arrivals: Arrivals::Open(2.0), ..steady });
        let runs = storm.run(&world);
        early.add(runs.slowdown(10, 15), || format!("{storm:?}"));
        late.add(runs.slowdown(15, 40), || format!("{storm:?}"));
    }
    check([early, late]);
}

/// Four workers that wait for a database for 2 s each, on a machine that is idle. A newcomer waits for the requests
/// that the gate has already passed on, so those stay few although nothing computes.
#[test]
fn a_pool_that_waits_is_not_flooded_because_its_machine_is_idle() {
    let mut most = Sweep::at_most("requests in flight at a pool of 4", 64.0);
    for seed in seeds(4) {
        let crawler = Source { sigma: 0.2, ..Source::patient(Arrivals::Closed(400), addresses(1), work(1.0, 2000.0)) };
        let world = World { is_local: true, seed, ..World::new(1, 4, vec![crawler], 30) };
        let results = world.run();
        most.add(results.limit.iter().copied().fold(0.0, f64::max), || format!("seed {seed}, {:?}", results.limit));
    }
    check([most.always()]);
}
