//! L8 and L10: spreading work gains nothing, and users of one address take turns.

use crate::sweep::{Sweep, check, seeds};
use crate::world::{Arrivals, Source, World, addresses, work};

/// An attacker beside a client that always has requests waiting. Returns the attacker's part of the core.
fn part(attacker: Source, seed: u64) -> f64 {
    let victim = Source { sigma: 0.3, ..Source::patient(Arrivals::Closed(16), addresses(1), work(20.0, 0.0)) };
    let results = World { seed, ..World::new(1, 1000, vec![victim, Source { sigma: 0.3, ..attacker }], 60) }.run();
    let (victim, attacker) = (results.cpu_rate(0, 20, 50), results.cpu_rate(1, 20, 50));
    attacker / (victim + attacker)
}

fn attacker(connections: usize, addresses: Vec<u32>, routes: &[(f64, usize)]) -> Source {
    let percent = 100 / routes.len() as u64;
    let works = routes.iter().map(|(cpu, route)| (percent, work(*cpu, 0.0), 100 + route)).collect();
    Source { works, ..Source::patient(Arrivals::Closed(connections), addresses, work(0.0, 0.0)) }
}

fn one_address() -> Vec<u32> {
    vec![200 << 16 | 0x0101]
}

/// The attacker's address is due as much as the victim's, however it sends its work. An attacker with many addresses of
/// one network is due the share of a network, which is 2.5 times that of an address.
#[test]
fn spreading_work_over_routes_octaves_connections_or_addresses_gains_nothing() {
    let mut gain = Sweep::at_most("L8 part of the core after splitting over before", 1.1);
    let mut network = Sweep::at_most("L8 part of the core of a network beside an address", 2.5 / 3.5 * 1.1);
    for seed in seeds(2) {
        let whole = part(attacker(16, one_address(), &[(20.0, 0)]), seed);
        let routes: Vec<_> = (0..10).map(|route| (20.0, route)).collect();
        let ladder: Vec<_> = (0..10).map(|step| (1.0 * f64::from(1 << step), step as usize)).collect();
        for (name, split) in [
            ("10 routes", attacker(16, one_address(), &routes)),
            ("10 octaves", attacker(16, one_address(), &ladder)),
            ("10 octaves, 160 connections", attacker(160, one_address(), &ladder)),
            ("128 connections", attacker(128, one_address(), &[(20.0, 0)])),
        ] {
            gain.add(part(split, seed) / whole, || format!("{name}, seed {seed}, {whole:.2} before"));
        }
        let many: Vec<u32> = (0..16).map(|index| (200 << 16 | 0x0101) + index).collect();
        for (name, routes) in [("one route", &[(20.0, 0)][..]), ("10 octaves", &ladder[..])] {
            network.add(part(attacker(64, many.clone(), routes), seed), || format!("{name}, seed {seed}"));
        }
    }
    check([gain.always(), network.always()]);
}

/// A colleague waits for the neighbour's requests in flight and next, not for its backlog of 32.
#[test]
fn a_colleague_behind_the_same_address_does_not_wait_for_a_neighbours_backlog() {
    let mut slow = Sweep::at_most("L10 p99 of a colleague's page of 20 ms, ms", 1200.0);
    let mut served = Sweep::at_least("L10 served", 0.995);
    for cpu in [20.0, 100.0, 300.0] {
        for seed in seeds(3) {
            let neighbour = Source {
                works: vec![(100, work(cpu, 0.0), 10)],
                ..Source::patient(Arrivals::Closed(32), addresses(1), work(0.0, 0.0))
            };
            let colleague = Source {
                works: vec![(100, work(20.0, 0.0), 11)],
                ..Source::new(Arrivals::Open(1.0), addresses(1), work(0.0, 0.0))
            };
            let mut world = World { seed, ..World::new(1, 1000, vec![neighbour, colleague], 65) };
            world.sources[0].tenant = Some(1);
            world.sources[1].tenant = Some(2);
            let results = world.run();
            slow.add(results.quantile(&[1], 0.99, 0, 60_000), || format!("neighbour {cpu} ms, seed {seed}"));
            served.add(results.served(&[1], 0, 60_000), || format!("neighbour {cpu} ms, seed {seed}"));
        }
    }
    check([served, slow].map(Sweep::always));
}
