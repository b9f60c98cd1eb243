//! L1: alone, the gate is invisible. Every run is compared with the same clients and the same requests without a gate.

use crate::random::Random;
use crate::results::Results;
use crate::sweep::{Sweep, check, seeds};
use crate::world::{Arrivals, Source, World, addresses, work};

const AT_ONCE: [usize; 6] = [1, 8, 16, 32, 100, 256];

/// Throughput and p99 of a gate relative to direct, and the requests refused.
struct Compared {
    rate: f64,
    p99: f64,
    refused: usize,
    /// Whether the law applies: the backend alone answers within half of `hold.max`.
    is_inside: bool,
}

/// Compares each stretch of milliseconds. The last quarter of the run is for requests to end.
fn compare(world: &World, stretches: &[(u64, u64)]) -> Vec<Compared> {
    let (direct, gate) = (world.direct().run(), world.clone().run());
    let all: Vec<usize> = (0..world.sources.len()).collect();
    stretches.iter().map(|stretch| compare_sources(&direct, &gate, &all, *stretch)).collect()
}

fn compare_sources(direct: &Results, gate: &Results, sources: &[usize], (from, until): (u64, u64)) -> Compared {
    let p99 = direct.quantile(sources, 0.99, from, until);
    Compared {
        rate: gate.answered(sources, from, until) as f64 / direct.answered(sources, from, until).max(1) as f64,
        p99: gate.quantile(sources, 0.99, from, until) / p99,
        is_inside: p99 <= 5000.0,
        refused: sources.iter().map(|source| gate.refused(*source)).sum(),
    }
}

struct Laws {
    rate: Sweep,
    p99: Sweep,
    refused: Sweep,
}

impl Laws {
    fn new() -> Self {
        Self {
            rate: Sweep::at_least("L1 throughput", 0.95),
            p99: Sweep::at_most("L1 p99", 1.25),
            refused: Sweep::at_most("L1 refused", 0.5),
        }
    }

    fn first_second_of_sleepers() -> Self {
        Self {
            rate: Sweep::at_least("L1 throughput, first second", 0.75),
            p99: Sweep::at_most("L1 p99, first second", 5.0),
            refused: Sweep::at_most("L1 refused, first second", 0.5),
        }
    }

    /// The same bounds for a part of the requests, which is stricter than the law.
    fn stricter(part: &str) -> Self {
        Self {
            rate: Sweep::at_least(format!("L1 throughput of {part} alone, stricter than the law"), 0.95),
            p99: Sweep::at_most(format!("L1 p99 of {part} alone, stricter than the law"), 1.25),
            refused: Sweep::at_most(format!("L1 refused of {part} alone"), 0.5),
        }
    }

    fn add(&mut self, compared: &Compared, run: impl Fn() -> String) {
        self.rate.add(compared.rate, &run);
        self.p99.add(compared.p99, &run);
        self.refused.add(compared.refused as f64, &run);
    }

    fn check(self) {
        check([self.refused, self.rate, self.p99]);
    }

    fn check_all(self) {
        check([self.refused, self.rate, self.p99].map(Sweep::always));
    }
}

fn lone(cores: u32, workers: usize, works: &[(u64, f64, f64)], at_once: usize) -> World {
    let works =
        works.iter().enumerate().map(|(route, (percent, cpu, sleep))| (*percent, work(*cpu, *sleep), 10 + route));
    let source = Source::patient(Arrivals::Closed(at_once), addresses(1), work(0.0, 0.0));
    World::new(cores, workers, vec![Source { works: works.collect(), sigma: 0.3, ..source }], 10)
}

#[test]
fn a_lone_client_of_a_backend_that_computes_does_not_notice_the_gate() {
    let mut laws = Laws::new();
    for (name, cores, workers, cpu) in [
        ("one worker, 20 ms", 1, 1, 20.0),
        ("one worker, 2 ms", 1, 1, 2.0),
        ("16 workers, 20 ms", 1, 16, 20.0),
        ("20 ms", 1, 1000, 20.0),
        ("20 ms, 4 cores", 4, 1000, 20.0),
        ("2 ms", 1, 1000, 2.0),
        ("0.2 ms", 1, 1000, 0.2),
    ] {
        for at_once in AT_ONCE {
            let world = lone(cores, workers, &[(100, cpu, 0.0)], at_once);
            for compared in compare(&world, &[(0, 1000), (0, 6000)]) {
                laws.add(&compared, || format!("{name}, {at_once} at once"));
            }
        }
    }
    laws.check_all();
}

/// The settings may name other cores than the backend has, and costs may hardly vary, so that requests start and end
/// together. Not met yet in 13 of 672 measurements, most of them in the first seconds with too many cores named.
#[test]
fn a_lone_client_of_a_backend_that_computes_does_not_notice_that_other_cores_are_named() {
    let mut laws = Laws::new();
    for (cores, workers, cpu) in [(1, 16, 20.0), (1, 1000, 20.0), (4, 1000, 20.0), (1, 1000, 2.0), (1, 1000, 0.2)] {
        for at_once in [8, 16, 32, 64, 100, 256] {
            for (is_local, said, sigma) in [(true, 2, 0.02), (false, 2, 0.3), (true, 4, 0.3), (false, 4, 0.02)] {
                let lone = lone(cores, workers, &[(100, cpu, 0.0)], at_once);
                let mut world = World { is_local, ..lone }.said(said * cores);
                world.sources[0].sigma = sigma;
                let compared = compare(&world, &[(0, 1000), (0, 6000), (4000, 7000)]);
                for compared in compared.into_iter().filter(|compared| compared.is_inside) {
                    laws.add(&compared, || {
                        format!("{cpu} ms, {workers} workers, {cores} cores said {said} times as many, {at_once} at once, sigma {sigma}, local {is_local}")
                    });
                }
            }
        }
    }
    laws.rate = laws.rate.not_met(0.9, 0.98);
    laws.p99 = laws.p99.not_met(1.75, 0.97);
    laws.check();
}

/// The gate cannot tell a remote backend that sleeps from one that computes before the first requests have ended. Where
/// it sees that the backend's machine is idle, it can. The limit grows with every wave of requests, so a remote backend
/// that sleeps for 250 ms takes up to 3 s (in its first second it has 0.04 of the direct throughput with 256 requests
/// at once).
#[test]
fn a_lone_client_of_a_backend_that_sleeps_does_not_notice_the_gate_after_a_second() {
    let (mut later, mut first) = (Laws::new(), Laws::first_second_of_sleepers());
    for is_local in [false, true] {
        for (name, workers, cpu, sleep) in [
            ("sleep 50 ms", 100_000, 0.1, 50.0),
            ("sleep 250 ms", 100_000, 0.1, 250.0),
            ("pool of 16, sleep 50 ms", 16, 0.1, 50.0),
        ] {
            for at_once in AT_ONCE {
                let world = World { is_local, ..lone(1, workers, &[(100, cpu, sleep)], at_once) };
                let run = || format!("{name}, {at_once} at once, local {is_local}");
                let is_slow = sleep > 100.0 && !is_local;
                let from = if is_slow { 3000 } else { 1000 };
                let [second, rest] = &compare(&world, &[(0, 1000), (from, 7000)])[..] else { unreachable!() };
                if !is_slow {
                    first.add(second, run);
                }
                later.add(rest, run);
            }
        }
    }
    first.check_all();
    later.check();
}

/// A backend in a test often sleeps for exactly the same time. Requests of a closed loop then start and end together.
#[test]
fn a_lone_client_of_a_backend_that_always_sleeps_as_long_is_not_refused() {
    let (mut later, mut long) = (Laws::new(), Sweep::at_most("L1 refused, long sleep", 0.5));
    for (is_local, said, sleep) in [(true, 1, 250.0), (true, 2, 100.0), (false, 1, 250.0), (false, 4, 50.0)] {
        for at_once in [16, 64, 100, 200, 256] {
            for sigma in [0.0, 0.02] {
                let mut world = World { is_local, ..lone(1, 100_000, &[(100, 0.01, sleep)], at_once) }.said(said);
                world.sources[0].sigma = sigma;
                let run =
                    || format!("sleep {sleep} ms, sigma {sigma}, {at_once} at once, local {is_local}, said {said}");
                later.add(&compare(&world, &[(3000, 7000)])[0], run);
                world.sources[0].works[0].1 = work(0.01, 1000.0);
                long.add(compare(&world, &[(3000, 7000)])[0].refused as f64, run);
            }
        }
    }
    later.check();
    check([long.always()]);
}

/// A backend on another machine whose answers take long and vary, as if it called other services: the gate cannot see
/// that its machine is idle, and a few requests in flight look as if they computed. Not met yet in one case.
#[test]
fn a_lone_client_of_a_remote_backend_that_sleeps_long_is_not_held_back_for_good() {
    let mut rate = Sweep::at_least("L1 throughput, long and varied sleep, from 30 s on", 0.95);
    for sleep in [300.0, 900.0] {
        for sigma in [0.3, 0.5, 1.0] {
            for at_once in [16, 50, 150] {
                let mut world = lone(1, 1000, &[(100, 0.2, sleep)], at_once);
                world.sources[0].sigma = sigma;
                world.seconds = 65;
                let run = || format!("sleep {sleep} ms, sigma {sigma}, {at_once} at once");
                rate.add(compare(&world, &[(30_000, 60_000)])[0].rate, run);
            }
        }
    }
    check([rate.not_met(0.9, 0.9)]);
}

/// Most sites: a request waits for a database, and computes in between. Not met yet where it waits for half a second.
#[test]
fn a_lone_client_of_a_backend_that_waits_and_computes_hardly_notices_the_gate() {
    let mut laws = Laws::new();
    for (cores, said) in [(1, 1), (1, 2), (2, 2), (4, 2), (2, 8)] {
        for (cpu, sleep) in [(1.0, 20.0), (5.0, 100.0), (20.0, 500.0)] {
            for (at_once, sigma) in [(16, 0.1), (64, 0.1), (64, 0.3), (200, 0.1), (200, 0.3)] {
                let mut world = World { is_local: true, ..lone(cores, 1000, &[(100, cpu, sleep)], at_once) }.said(said);
                world.sources[0].sigma = sigma;
                let run =
                    || format!("{cpu} ms and {sleep} ms, sigma {sigma}, {at_once} at once, {cores} cores said {said}");
                laws.add(&compare(&world, &[(3000, 7000)])[0], run);
            }
        }
    }
    laws.rate = laws.rate.not_met(0.45, 0.96);
    laws.check();
}

/// Some routes compute and some wait. The number in flight that keeps the cores busy depends on how many of them wait.
fn mixtures(at_once: &[usize], clients: impl Fn(usize) -> u32) -> (Laws, Laws) {
    let (mut later, mut first) = (Laws::new(), Laws::first_second_of_sleepers());
    for (is_local, said) in [(false, 1), (true, 1), (true, 2), (false, 2), (true, 4)] {
        for (light, heavy, sleep) in [(70, 20, 80.0), (60, 30, 250.0), (50, 20, 100.0)] {
            for sigma in [0.0, 0.3] {
                for &at_once in at_once {
                    let works = [(light, 2.0, 0.0), (heavy, 20.0, 0.0), (100 - light - heavy, 0.2, sleep)];
                    let mut world = World { is_local, ..lone(1, 1000, &works, at_once) }.said(said);
                    world.sources[0].sigma = sigma;
                    world.sources[0].addresses = addresses(clients(at_once));
                    let run = || {
                        format!(
                            "{light} {heavy} sleep {sleep} ms, sigma {sigma}, {at_once} at once, local {is_local}, said {said}"
                        )
                    };
                    let [second, rest] = &compare(&world, &[(0, 1000), (1000, 7000)])[..] else { unreachable!() };
                    if rest.is_inside {
                        first.add(second, run);
                        later.add(rest, run);
                    }
                }
            }
        }
    }
    (first, later)
}

/// Not met yet by the p99, nearly always where costs do not vary: light requests of a client pass its heavy ones.
#[test]
fn a_lone_client_with_a_mixture_of_requests_does_not_notice_the_gate_after_a_second() {
    let (mut first, mut later) = mixtures(&AT_ONCE, |_| 1);
    later.rate = later.rate.not_met(0.88, 0.97);
    later.p99 = later.p99.not_met(1.5, 0.88);
    later.check();
    first.rate = first.rate.not_met(0.7, 0.98);
    first.check();
}

#[test]
fn clients_with_a_mixture_of_requests_do_not_notice_the_gate_after_a_second() {
    let (first, mut later) = mixtures(&[8, 16, 32, 100], |at_once| at_once as u32);
    later.rate = later.rate.not_met(0.95, 0.99);
    later.p99 = later.p99.not_met(1.6, 0.92);
    later.check();
    first.check_all();
}

/// A site with random visitors, whose pages compute, wait for a database or both, and have assets. It has cores and
/// workers to spare, but a few visitors of a busy site are ahead of their share at times.
fn random_site(seed: u64) -> (World, String) {
    let mut random = Random::new(seed * 91 + 3);
    let cores = [1, 1, 2, 4][random.below(4) as usize];
    let said = (f64::from(cores) * [0.5, 1.0, 1.0, 2.0, 4.0][random.below(5) as usize]).max(1.0) as u32;
    let (page_ms, sleep_ms) = (random.log_uniform(2.0, 50.0), random.log_uniform(1.0, 300.0));
    let (use_of_cores, apis) = ([0.2, 0.4, 0.6, 0.75][random.below(4) as usize], random.below(50));
    let (assets, visitors) = (1 + random.below(12) as usize, random.log_uniform(3.0, 300.0) as u32);
    let page_cpu = page_ms * (1.0 - apis as f64 / 100.0) + 1.0 * apis as f64 / 100.0 + 0.5 * assets as f64;
    let per_second = 1000.0 * f64::from(cores) * use_of_cores / page_cpu;
    // The backend has twice the workers that wait or compute on average, and some more.
    let wait = 250.0 * apis as f64 / 100.0 + sleep_ms * (1.0 - apis as f64 / 100.0);
    let busy = per_second * wait / 1000.0 + f64::from(cores) * use_of_cores / (1.0 - use_of_cores);
    let workers = (2.0 * busy) as usize + [16, 64, 1000][random.below(3) as usize];
    let page = Source {
        works: vec![(apis, work(1.0, 250.0), 11), (100 - apis, work(page_ms, sleep_ms), 10)],
        sigma: [0.0, 0.3, 0.6, 1.0][random.below(4) as usize],
        ..Source::patient(Arrivals::Open(per_second), addresses(visitors), work(0.0, 0.0))
    };
    let asset = Source::patient(Arrivals::After(0, assets), addresses(visitors), work(0.5, 0.0));
    let run = format!(
        "seed {seed}: {use_of_cores} of {cores} cores said {said}, page {page_ms:.1} and {sleep_ms:.1} ms, {apis} % APIs, {assets} assets, sigma {}, {visitors} visitors, {workers} workers, local {}",
        page.sigma,
        seed.is_multiple_of(2)
    );
    let world = World::new(cores, workers, vec![page, asset], 40).said(said);
    (World { seed, is_local: seed.is_multiple_of(2), ..world }, run)
}

/// The law is about all requests of the visitors together. Pages and assets are measured one by one as well, which is
/// stricter: an asset of half a millisecond that waits for 5 ms is 10 times slower, and nobody sees it. Not met yet,
/// nearly always before a remote backend that sleeps, in the first seconds of a gate that knows nothing about it.
#[test]
fn visitors_of_a_site_that_copes_do_not_notice_the_gate() {
    let (mut later, mut first) = (Laws::new(), Laws::first_second_of_sleepers());
    let mut kinds = ["pages", "assets"].map(Laws::stricter);
    for seed in seeds(100) {
        let (world, run) = random_site(seed);
        let (direct, gate) = (world.direct().run(), world.run());
        let limits = format!("K {:?}", &gate.limit[..8]);
        first.add(&compare_sources(&direct, &gate, &[0, 1], (0, 1000)), || format!("{run}, {limits}"));
        for stretch in [(1000, 5000), (5000, 35_000)] {
            let run = || format!("{run}, from {} ms, {limits}", stretch.0);
            later.add(&compare_sources(&direct, &gate, &[0, 1], stretch), run);
            for (source, laws) in kinds.iter_mut().enumerate() {
                laws.add(&compare_sources(&direct, &gate, &[source], stretch), run);
            }
        }
    }
    first.rate = first.rate.not_met(0.53, 0.98);
    later.rate = later.rate.not_met(0.35, 0.98);
    later.p99 = later.p99.not_met(7.2, 0.91);
    let [pages, assets] = kinds;
    let pages = Laws { rate: pages.rate.not_met(0.41, 0.98), p99: pages.p99.not_met(9.6, 0.89), ..pages };
    let assets = Laws { rate: assets.rate.not_met(0.34, 0.98), p99: assets.p99.not_met(88.0, 0.89), ..assets };
    check([first, later, pages, assets].into_iter().flat_map(|laws| [laws.refused, laws.rate, laws.p99]));
}

#[test]
fn a_page_with_a_hundred_assets_is_served_as_fast_as_without_a_gate() {
    let mut laws = Laws::new();
    for cpu in [0.2, 2.0, 20.0] {
        let source = Source::patient(Arrivals::Bursts(100, &[0, 3000, 6000]), addresses(1), work(cpu, 0.0));
        let world = World::new(1, 1000, vec![source], 12);
        for compared in compare(&world, &[(0, 1), (3000, 3001), (6000, 6001)]) {
            laws.p99.add(compared.p99, || format!("{cpu} ms"));
            laws.refused.add(compared.refused as f64, || format!("{cpu} ms"));
        }
    }
    check([laws.p99, laws.refused].map(Sweep::always));
}

/// The second page of a gate on the backend's machine may take twice as long, if the first one has not shown whether
/// more than 64 go at once.
#[test]
fn a_page_of_assets_that_sleep_is_served_as_fast_as_without_a_gate_at_the_third_time() {
    let mut laws = Laws::new();
    for is_local in [false, true] {
        for sleep in [50.0, 250.0] {
            let source = Source::patient(Arrivals::Bursts(100, &[0, 3000, 6000]), addresses(1), work(0.1, sleep));
            let world = World { is_local, ..World::new(1, 1000, vec![source], 12) };
            let [all, third] = &compare(&world, &[(0, 10_000), (6000, 6001)])[..] else { unreachable!() };
            laws.p99.add(third.p99, || format!("{sleep} ms, local {is_local}"));
            laws.refused.add(all.refused as f64, || format!("{sleep} ms, local {is_local}"));
        }
    }
    check([laws.p99, laws.refused].map(Sweep::always));
}

#[test]
fn clients_with_one_connection_each_do_not_notice_the_gate() {
    let mut laws = Laws::new();
    for clients in AT_ONCE {
        for cpu in [2.0, 20.0] {
            let mut world = lone(1, 1000, &[(100, cpu, 0.0)], clients);
            world.sources[0].addresses = addresses(clients as u32);
            laws.add(&compare(&world, &[(0, 7000)])[0], || format!("{clients} clients, {cpu} ms"));
        }
    }
    laws.check_all();
}

/// The gate cannot see that a remote backend is idle, and nobody knows what a request costs that has not ended.
#[test]
fn slow_requests_to_a_remote_backend_are_not_refused() {
    let (mut refused, mut rate) =
        (Sweep::at_most("L1 refused, slow", 0.5), Sweep::at_least("L1 throughput, slow, from 20 s on", 0.95));
    for said in [1, 2, 4] {
        for sigma in [0.02, 0.5] {
            for (at_once, sleep) in [(32, 4500.0), (100, 3000.0), (100, 1000.0), (8, 25_000.0), (256, 25_000.0)] {
                let mut world = World { seconds: 80, ..lone(1, 1000, &[(100, 0.2, sleep)], at_once) }.said(said);
                world.sources[0].sigma = sigma;
                let compared = &compare(&world, &[(20_000, 70_000)])[0];
                let run = || format!("{at_once} x {sleep} ms, sigma {sigma}, said {said}");
                refused.add(compared.refused as f64, run);
                rate.add(compared.rate, run);
            }
        }
    }
    check([refused, rate].map(Sweep::always));
}

/// Where the gate does not see that the backend's machine is idle, polls wait until nothing has spoken against more of
/// them for 1.5 s, twice as many each time.
#[test]
fn long_polls_among_pages_do_not_slow_the_pages_down() {
    let mut pages = Sweep::at_most("L1 page p99 among long polls", 1.25);
    for (is_local, said, most) in [(true, 1, 1.25), (false, 1, 1.5), (false, 2, 1.5), (false, 4, 1.5)] {
        let mut polls = Sweep::at_most("L1 long polls", most);
        for pollers in [10, 100, 200] {
            let poll = Source::patient(Arrivals::Closed(pollers), addresses(20), work(0.2, 25_000.0));
            let page = Source::new(Arrivals::Open(20.0), addresses(40), work(20.0, 0.0));
            let world = World { is_local, ..World::new(1, 1000, vec![poll, page], 120) }.said(said);
            let (direct, gate) = (world.direct().run(), world.run());
            let run = || format!("{pollers} pollers, local {is_local}, said {said}");
            for (from, until) in [(0, 10_000), (0, 110_000)] {
                pages.add(compare_sources(&direct, &gate, &[1], (from, until)).p99, run);
            }
            let slowest = gate.outcomes[0].iter().filter_map(|poll| poll.latency_ms).fold(0.0, f64::max);
            polls.add(slowest / 25_000.0, run);
            assert_eq!(gate.refused(0) + gate.refused(1), 0, "{}", run());
        }
        check([polls.always()]);
    }
    check([pages.always()]);
}

/// A client with many requests at once beside clients with few, at a backend that mostly waits and has room for all.
/// The client is ahead of its share as the gate prices it, but nobody gains if it is held back. Not met yet in 2 of 16.
#[test]
fn a_heavy_client_beside_light_ones_is_not_held_back_where_there_is_room() {
    let mut rate = Sweep::at_least("L1 throughput of a heavy client beside light ones, from 10 s on", 0.95);
    for is_local in [false, true] {
        for sleep in [50.0, 250.0] {
            for at_once in [16, 64] {
                for sigma in [0.1, 0.5] {
                    let heavy = Source::patient(Arrivals::Closed(at_once), addresses(1), work(0.2, sleep));
                    let light = Source::new(Arrivals::Open(10.0), addresses(20).split_off(10), work(0.2, sleep));
                    let sources = [heavy, light].map(|source| Source { sigma, ..source }).to_vec();
                    let world = World { is_local, ..World::new(2, 1000, sources, 45) };
                    let (direct, gate) = (world.direct().run(), world.run());
                    let answered = |results: &Results| results.answered(&[0], 10_000, 40_000) as f64;
                    let run = || format!("sleep {sleep} ms, {at_once} at once, sigma {sigma}, local {is_local}");
                    rate.add(answered(&gate) / answered(&direct), run);
                }
            }
        }
    }
    check([rate.not_met(0.87, 0.87)]);
}

/// A set of clients with random parameters that the backend alone serves within half of `hold.max`.
fn random_world(seed: u64) -> (World, String, u64) {
    let mut random = Random::new(seed * 77 + 5);
    let cost = random.log_uniform(0.2, 5000.0);
    let share = [0.0, 0.0, 1.0, random.unit()][random.below(4) as usize];
    // Without any spread, the requests of a closed loop compute and sleep in step, as those of no real backend do.
    let sigma = [0.05, 0.5, 1.0, 1.5][random.below(4) as usize];
    let workers = random.log_uniform(1.0, 256.0) as usize;
    let cores = [1, 1, 2, 4][random.below(4) as usize];
    let said = (f64::from(cores) * [0.25, 0.5, 1.0, 2.0, 4.0][random.below(5) as usize]).max(1.0) as u32;
    let at_once = random.log_uniform(1.0, 256.0) as usize;
    let clients = [1, 1, at_once as u32, 5][random.below(4) as usize];
    let (cpu, sleep) = (cost * (1.0 - share), cost * share);
    // A p99 takes some 2,000 requests.
    let per_ms = (f64::from(cores) / cpu.max(0.01)).min(workers.min(at_once) as f64 / cost);
    let seconds = ((2000.0 / per_ms / 1000.0) as u64).clamp(6, 200);
    let source = Source { sigma, ..Source::patient(Arrivals::Closed(at_once), addresses(clients), work(cpu, sleep)) };
    let world =
        World { is_local: seed.is_multiple_of(2), seed, ..World::new(cores, workers, vec![source], seconds + 5) }
            .said(said);
    let run = format!(
        "seed {seed}: cost {cost:.1} ms, sleep {share:.2}, sigma {sigma}, workers {workers}, cores {cores} said {said}, at once {at_once}, clients {clients}, local {}",
        world.is_local
    );
    (world, run, seconds * 1000)
}

/// Nearly met: two of 119 sets miss the bound of the throughput, one that of the p99. The worst are remote backends
/// that sleep for long with times that vary: it takes the gate some 20 s to find that they sleep.
#[test]
fn random_sets_of_clients_do_not_notice_the_gate() {
    let mut laws = Laws::new();
    laws.rate = laws.rate.not_met(0.9, 0.97);
    laws.p99 = laws.p99.not_met(1.7, 0.98);
    for seed in seeds(150) {
        let (world, run, until) = random_world(seed);
        let direct = world.direct().run();
        let sleeps = world.sources[0].works[0].1.sleep_ns > world.sources[0].works[0].1.cpu_ns / 20;
        let from = if sleeps { 1000 } else { 0 };
        let p99 = direct.quantile(&[0], 0.99, from, until);
        if p99 > 5000.0 || direct.during(&[0], from, until).count() < 200 {
            continue;
        }
        let gate = world.run();
        let compared = Compared {
            rate: gate.answered(&[0], from, until) as f64 / direct.answered(&[0], from, until) as f64,
            p99: gate.quantile(&[0], 0.99, from, until) / p99,
            refused: gate.refused(0),
            is_inside: true,
        };
        laws.add(&compared, || {
            format!("{run}, direct p99 {p99:.0} ms, K {:?}", &gate.limit[..gate.limit.len().min(12)])
        });
    }
    laws.check();
}
