//! L12: L1 and L5 with their bounds doubled, for two gates in front of one backend and for two backends of different
//! speed behind one gate.

use crate::backend::Backend;
use crate::storm::{Laws, Storm};
use crate::sweep::{Sweep, check, seeds};
use crate::world::{Arrivals, Source, World, addresses, work};

/// Two gates in front of one backend, and a gate in front of a backend of one core and one of three.
fn doubled(world: World) -> [(&'static str, World); 2] {
    let two = World { queues: 2, ..world.clone() };
    let unequal = World { queues: 2, backends: vec![Backend::new(1, 1000), Backend::new(3, 1000)], ..world };
    [("two gates", two), ("two backends", unequal)]
}

#[test]
fn clients_alone_hardly_notice_two_gates_or_two_backends() {
    let mut rate = Sweep::at_least("L12 throughput alone", 0.9);
    let mut p99 = Sweep::at_most("L12 p99 alone", 2.5);
    for (kind, cpu, sleep) in [("computes", 20.0, 0.0), ("computes 2 ms", 2.0, 0.0), ("sleeps", 0.2, 50.0)] {
        for at_once in [1, 16, 100] {
            let source =
                Source { sigma: 0.3, ..Source::patient(Arrivals::Closed(at_once), addresses(1), work(cpu, sleep)) };
            for (name, world) in doubled(World::new(1, 1000, vec![source], 10)) {
                let (direct, gate) = (world.direct().run(), world.run());
                let run = || format!("{name}, {kind}, {at_once} at once");
                assert_eq!(gate.refused(0), 0, "{}", run());
                let from = if sleep > 0.0 { 1000 } else { 0 };
                rate.add(gate.answered(&[0], from, 8000) as f64 / direct.answered(&[0], from, 8000) as f64, run);
                p99.add(gate.quantile(&[0], 0.99, from, 8000) / direct.quantile(&[0], 0.99, from, 8000), run);
            }
        }
    }
    check([rate, p99].map(Sweep::always));
}

#[test]
fn people_are_served_by_two_gates_and_by_two_backends() {
    let mut laws = Laws::new(6.0, 4.0, 0.99);
    for scenario in [1, 2] {
        for seed in seeds(1) {
            let storm = Storm::new(scenario, 10, seed);
            let [(_, two), _] = doubled(storm.world());
            laws.add_world(&storm, two);
            // Twice the people: each backend has the load of one core at least.
            let storm = Storm { cores: 2, said: 2, connections: 128, ..storm };
            let [_, (_, unequal)] = doubled(storm.world());
            laws.add_world(&storm, unequal);
        }
    }
    laws.check();
}
