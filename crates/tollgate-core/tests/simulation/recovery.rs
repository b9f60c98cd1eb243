//! L9 and L11: every page is served at last, and the queue recovers with the backend.

use crate::storm::Storm;
use crate::sweep::{Sweep, check, seeds};
use crate::world::{Arrivals, Retry, SEC, Source, World, addresses, work};

/// A report costs more than `hold.max`, and its client retries as told.
#[test]
fn a_report_of_fifteen_seconds_is_served_while_a_crawler_is_there() {
    let mut tries = Sweep::at_most("L9 tries until a report of 15 s is served", 3.0);
    let mut took = Sweep::at_most("L9 seconds until a report of 15 s is served", 120.0);
    for scenario in [1, 2, 3] {
        for seed in seeds(2) {
            let mut world = Storm::new(scenario, 0, seed).world();
            world.seconds = 200;
            let report = Source::patient(Arrivals::Closed(1), vec![70 << 16 | 0x0101], work(15_000.0, 0.0));
            world.sources.push(Source { from_ms: 20_000, retry: Retry::AsTold, ..report });
            let results = world.run();
            let reports = &results.outcomes[5];
            let first = reports.iter().position(|outcome| outcome.latency_ms.is_some());
            let run = || format!("S{scenario}, seed {seed}");
            let Some(first) = first else { panic!("never served: {} tries, {}", reports.len(), run()) };
            tries.add(first as f64 + 1.0, run);
            let end = reports[first].at as f64 / SEC as f64 + reports[first].latency_ms.unwrap_or(0.0) / 1000.0;
            took.add(end - 20.0, run);
        }
    }
    check([tries, took].map(Sweep::always));
}

/// A process with one event loop is replaced by four of them. One request goes at a time until another number is tried.
#[test]
fn a_backend_that_gets_more_workers_is_used_within_a_minute() {
    let mut rate = Sweep::at_least("L11 throughput a minute after the backend got four workers", 0.95);
    for (cpu, sleep) in [(20.0, 0.0), (5.0, 0.0), (1.0, 50.0)] {
        for (cores, sigma) in [(4, 0.3), (4, 0.05), (2, 0.6)] {
            let source = Source { sigma, ..Source::patient(Arrivals::Closed(16), addresses(4), work(cpu, sleep)) };
            let world = World { workers: Some((20, 4)), ..World::new(cores, 1, vec![source], 100) };
            let (direct, gate) = (world.direct().run(), world.run());
            let run = || format!("{cpu} and {sleep} ms, {cores} cores, sigma {sigma}, K {:?}", &gate.limit[15..90]);
            let answered = gate.answered(&[0], 80_000, 95_000) as f64;
            rate.add(answered / direct.answered(&[0], 80_000, 95_000) as f64, run);
        }
    }
    check([rate.always()]);
}

/// A backend that takes ten times as long for ten seconds, and one that stands still for two seconds and has a cold
/// cache for three.
#[test]
fn throughput_is_back_within_five_seconds_of_the_backends_recovery() {
    let mut rate = Sweep::at_least("L11 throughput from 5 s after the recovery", 0.95);
    let mut refused = Sweep::at_most("L11 requests refused from 5 s after the recovery", 0.5);
    let slowdowns = [("slow", vec![(10, 10.0), (20, 1.0)]), ("restart", vec![(15, 30.0), (17, 5.0), (20, 1.0)])];
    for (name, slowness) in slowdowns {
        for (kind, workers, cpu, sleep) in [
            ("computes", 1000, 20.0, 0.0),
            ("computes 2 ms", 1000, 2.0, 0.0),
            ("sleeps", 1000, 0.2, 50.0),
            ("pool", 16, 1.0, 50.0),
        ] {
            for at_once in [8, 32] {
                for seed in seeds(1) {
                    let source = Source {
                        sigma: 0.3,
                        ..Source::patient(Arrivals::Closed(at_once), addresses(4), work(cpu, sleep))
                    };
                    let world = World { slowness: slowness.clone(), seed, ..World::new(1, workers, vec![source], 36) };
                    let (direct, gate) = (world.direct().run(), world.run());
                    let run = || format!("{name}, {kind}, {at_once} at once, seed {seed}, K {:?}", &gate.limit[8..32]);
                    let answered = gate.answered(&[0], 25_000, 35_000) as f64;
                    rate.add(answered / direct.answered(&[0], 25_000, 35_000) as f64, run);
                    let late = gate.during(&[0], 25_000, 35_000).filter(|outcome| outcome.refusal.is_some()).count();
                    refused.add(late as f64, run);
                }
            }
        }
    }
    check([refused, rate].map(Sweep::always));
}
