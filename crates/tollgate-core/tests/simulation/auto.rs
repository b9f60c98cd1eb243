//! How many at once, found without being told, for backends of every kind.

use crate::backend::Work;
use crate::gate::InFlight;
use crate::world::{Arrivals, MS, Results, Source, World};

const END: u64 = 120;

fn addresses(count: u32) -> Vec<u32> {
    (0..count).map(|index| (10 + index) << 16 | 0x0101).collect()
}

fn sleep(cpu_ms: f64, sleep_ms: u64) -> Work {
    Work { cpu_ns: (cpu_ms * MS as f64) as u64, sleep_ns: sleep_ms * MS }
}

/// Whether many clients ask or one, as many connections are always busy.
fn crowd(cores: u32, workers: usize, connections: usize, clients: u32, work: Work) -> World {
    let source = Source { varied: true, ..Source::patient(Arrivals::Closed(connections), addresses(clients), work) };
    let mut world = World::new(cores, workers, InFlight::Auto, vec![source], END);
    world.settings.per_key = connections;
    world
}

/// What was in force most of the time in the second half.
fn open(results: &Results) -> f64 {
    let mut late: Vec<_> = results.open[END as usize / 2..].to_vec();
    late.sort_by(f64::total_cmp);
    late[late.len() / 2]
}

#[test]
fn as_many_as_a_backend_that_computes_has_cores() {
    for cores in [1, 2, 4] {
        for clients in [1, 50] {
            let results = crowd(cores, 1000, 64, clients, Work::cpu(100 * MS)).run();
            let (busy, open) = (results.busy(30, END) / f64::from(cores), open(&results));
            assert!(busy > 0.95, "{cores} cores were {busy:.3} busy");
            assert!(open <= 1.5 * f64::from(cores), "{cores} cores, {clients} clients: {open}");
        }
    }
}

#[test]
fn hundreds_where_requests_sleep() {
    for clients in [1, 100] {
        let results = crowd(2, 100_000, 400, clients, sleep(0.1, 250)).run();
        let rate = results.rate(0, 10, END - 5);
        assert!(rate > 0.95 * 400.0 / 0.25, "{clients} clients had {rate:.0} answers a second");
    }
}

#[test]
fn a_rush_of_visitors_to_a_backend_that_sleeps_is_let_in_within_seconds() {
    let source = Source::new(Arrivals::Open(600.0), addresses(1000), sleep(0.5, 250));
    let results = World::new(2, 100_000, InFlight::Auto, vec![source], 60).run();
    let p99 = results.quantile(0, 0, 0.99, 10, 55);
    assert!(p99 < 300.0, "{p99:.0} ms");
    assert!(results.success(0, 0, 55) > 0.99);
}

#[test]
fn sixteen_where_the_backend_has_sixteen_workers_of_its_own() {
    let computes = crowd(1, 16, 100, 100, Work::cpu(20 * MS)).run();
    assert!(computes.busy(30, END) > 0.98);
    assert!(open(&computes) <= 2.0, "{}", open(&computes));
    let sleeps = crowd(1, 16, 100, 100, sleep(1.0, 100)).run();
    let rate = sleeps.rate(0, 10, END - 5);
    assert!(rate > 0.95 * 16.0 / 0.101, "{rate:.0} answers a second");
}

/// Pages that compute, calls that sleep, and a crawler on pages. One number of requests cannot suit both.
#[test]
fn a_mix_keeps_its_cores_busy_its_pages_fast_and_its_calls_unhindered() {
    for (cores, calls) in [(1, 40.0), (1, 100.0), (2, 100.0), (4, 200.0)] {
        let visitors = addresses(40);
        let source = |source| Source { varied: true, ..source };
        let sources = vec![
            source(Source::new(Arrivals::Open(5.0 * f64::from(cores)), visitors.clone(), Work::cpu(20 * MS))),
            source(Source::new(Arrivals::Open(calls), visitors, sleep(2.0, 250))),
            Source {
                from_s: 60,
                ..source(Source::patient(Arrivals::Closed(64), vec![200 << 16], Work::cpu(300 * MS)))
            },
        ];
        let results = World::new(cores, 10_000, InFlight::Auto, sources, 240).run();
        let busy = results.busy(70, 239) / f64::from(cores);
        assert!(busy > 0.95, "{cores} cores and {calls} calls: {busy:.3} busy");
        let (calm, page) = (results.quantile(0, 0, 0.5, 5, 60), results.quantile(0, 0, 0.5, 65, 235));
        assert!(page < 3.0 * calm, "{cores} cores and {calls} calls: pages took {page:.0} ms, {calm:.0} in calm");
        let call = results.quantile(1, 0, 0.99, 65, 235);
        assert!(call < 300.0, "{cores} cores and {calls} calls: a call took {call:.0} ms");
    }
}

#[test]
fn a_backend_that_becomes_slow_is_still_used_fully() {
    for (work, rate) in [(Work::cpu(20 * MS), 2.0 / 0.020), (sleep(1.0, 250), 100.0 / 0.251)] {
        for clients in [1, 100] {
            let mut world = crowd(2, 1000, 100, clients, work);
            world.slow_from = Some((60, 3.0));
            let results = world.run();
            let (before, after) = (results.rate(0, 20, 58), results.rate(0, 75, END - 5));
            assert!(before > 0.93 * rate, "{work:?}: {before:.0} of {rate:.0} answers a second");
            assert!(after > 0.9 * rate / 3.0, "{work:?}: {after:.0} of {:.0} answers a second", rate / 3.0);
        }
    }
}
