//! Alone, the gate is invisible.

use crate::backend::Work;
use crate::world::{Arrivals, MS, Source, World};

fn addresses(count: u32) -> Vec<u32> {
    (0..count).map(|index| (10 + index) << 16 | 0x0101).collect()
}

fn work(cpu_ms: f64, sleep_ms: f64) -> Work {
    Work { cpu_ns: (cpu_ms * MS as f64) as u64, sleep_ns: (sleep_ms * MS as f64) as u64 + MS / 10 }
}

#[test]
fn table() {
    let local = std::env::var("LOCAL").is_ok();
    for (name, cores, workers, cpu, sleep) in [
        ("cpu 20", 1, 1000, 20.0, 0.0),
        ("cpu 20 x4", 4, 1000, 20.0, 0.0),
        ("cpu 2", 1, 1000, 2.0, 0.0),
        ("cpu 0.2", 1, 1000, 0.2, 0.0),
        ("cpu 300", 1, 1000, 300.0, 0.0),
        ("cpu 20/w1", 1, 1, 20.0, 0.0),
        ("sleep 50", 1, 100_000, 0.1, 50.0),
        ("sleep 250", 2, 100_000, 0.1, 250.0),
        ("pool16 s50", 1, 16, 0.1, 50.0),
    ] {
        for at_once in [1, 8, 16, 32, 100, 256] {
            let source = Source::patient(Arrivals::Closed(at_once), addresses(1), work(cpu, sleep));
            let world = |sigma| World::new(cores, workers, vec![Source { sigma, ..source.clone() }], 6);
            let sigma = 0.3;
            let direct = world(sigma).direct().run();
            let mut w = world(sigma);
            w.is_local = local;
            let gate = w.run();
            let ratio = |from, until| {
                let (dp, _) = direct.together(0.99, from, until);
                let (gp, _) = gate.together(0.99, from, until);
                (gate.answered(from, until) as f64 / direct.answered(from, until) as f64, gp / dp)
            };
            let (r1, p1) = ratio(0, 1000);
            let (r4, p4) = ratio(1000, 4000);
            let limits: Vec<_> = gate.limit.iter().map(|l| format!("{l:.1}")).collect();
            println!(
                "{name:10} {at_once:4}  first {r1:.2} {p1:5.2}x   later {r4:.2} {p4:5.2}x  refused {}  K {}",
                gate.refusals(),
                limits.join(" ")
            );
        }
    }
}

#[test]
fn random_alone() {
    use crate::random::Random;
    use tollgate_core::queue::Settings;
    use tollgate_core::virtual_clock::Cores;
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    let local = std::env::var("REMOTE").is_err();
    let mut bad = 0;
    let mut n = 0;
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|s| s.parse().ok());
    for seed in 0..seeds {
        if only.is_some_and(|only| only != seed) {
            continue;
        }
        let mut random = Random::new(seed * 77 + 5);
        let cost = random.log_uniform(0.2, 5000.0);
        let share = [0.0, 0.0, 1.0, random.unit()][random.below(4) as usize];
        let sigma = [0.0, 0.5, 1.0, 1.5][random.below(4) as usize];
        let workers = random.log_uniform(1.0, 256.0) as usize;
        let cores = [1, 1, 2, 4][random.below(4) as usize];
        let said = (f64::from(cores) * [0.25, 0.5, 1.0, 2.0, 4.0][random.below(5) as usize]).max(1.0) as u32;
        let at_once = random.log_uniform(1.0, 256.0) as usize;
        let clients = [1, 1, at_once as u32, 5][random.below(4) as usize];
        let source = Source {
            sigma,
            ..Source::patient(Arrivals::Closed(at_once), addresses(clients), work(cost * (1.0 - share), cost * share))
        };
        let world = || {
            let mut world = World::new(cores, workers, vec![source.clone()], 60);
            world.settings = Some(Settings { cores: Cores::whole(said), ..Settings::default() });
            world.is_local = local;
            world.seed = seed;
            world
        };
        let direct = world().direct().run();
        let (dp, _) = direct.together(0.99, 0, 30_000);
        if dp > 5000.0 || dp == 0.0 || cost > 2000.0 && at_once > 100 {
            continue;
        }
        n += 1;
        let gate = world().run();
        let (gp, _) = gate.together(0.99, 0, 30_000);
        let (gp1, _) = gate.together(0.99, 1000, 30_000);
        let rate = gate.answered(0, 30_000) as f64 / direct.answered(0, 30_000) as f64;
        let rate1 = gate.answered(1000, 30_000) as f64 / direct.answered(1000, 30_000) as f64;
        if rate1 < 0.95 || gp1 > 1.25 * dp || gate.refusals() > 0 {
            bad += 1;
            println!(
                "seed {seed}: cost {cost:.1} sleep {share:.2} sigma {sigma} workers {workers} cores {cores}/{said} at once {at_once} clients {clients}: rate {rate:.2} later {rate1:.2} p99 {:.2}x later {:.2}x ({dp:.0} ms) refused {} {:?} waiting {} busy {:.2} direct {:.2} K {:?}",
                gp / dp,
                gp1 / dp,
                gate.refusals(),
                gate.outcomes[0].iter().find_map(|o| o.refusal.map(|r| (o.at / MS, r.0 / MS, r.1))),
                gate.waiting_max,
                gate.busy(2, 20),
                direct.busy(2, 20),
                &gate.limit[..12]
            );
        }
    }
    println!("bad {bad} of {n}");
}
