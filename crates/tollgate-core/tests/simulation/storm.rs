//! L5: people keep their pages while a crawler is there.
//!
//! Scenario S1 has the crawler behind one address, S2 in one /24, S3 in 64 blocks. People visit from 40 addresses and
//! from one office; a page has four assets. Times are relative to the p99 of the same pages at the same times, without
//! a crawler and without a gate: other pages would differ by chance.

use crate::backend::Backend;
use crate::random::Random;
use crate::results::{Results, quantile};
use crate::sweep::{Sweep, check, seeds};
use crate::world::{Arrivals, MS, Source, World, addresses, work};

pub(crate) const PAGE: usize = 0;
const ASSET: usize = 1;
pub(crate) const OFFICE_PAGE: usize = 2;
const OFFICE_ASSET: usize = 3;
pub(crate) const CRAWLER: usize = 4;
const PEOPLE: [usize; 4] = [PAGE, ASSET, OFFICE_PAGE, OFFICE_ASSET];

pub(crate) const ARTICLE: usize = 10;
pub(crate) const ARCHIVE: usize = 11;

#[derive(Clone, Debug)]
pub(crate) struct Storm {
    pub(crate) scenario: u8,
    pub(crate) calm_s: u64,
    pub(crate) cores: u32,
    pub(crate) said: u32,
    pub(crate) connections: usize,
    pub(crate) page_ms: f64,
    pub(crate) crawler_ms: f64,
    pub(crate) sigma: f64,
    /// When people come.
    pub(crate) people_s: u64,
    pub(crate) restart_s: Option<u64>,
    pub(crate) is_local: bool,
    /// CPU time at the beginning of a request that the backend's scheduler prefers.
    pub(crate) slice_ms: u64,
    /// Percent of people's pages that are the crawler's.
    pub(crate) archives: u64,
    pub(crate) seed: u64,
    /// How often the storm runs, with pages at other times. The p99 is that of all runs together: the first five
    /// seconds of one run have some fifty pages, so chance would decide about it.
    pub(crate) runs: u64,
}

impl Storm {
    pub(crate) fn new(scenario: u8, calm_s: u64, seed: u64) -> Self {
        Self {
            scenario,
            calm_s,
            cores: 1,
            said: 1,
            connections: 64,
            page_ms: 20.0,
            crawler_ms: 300.0,
            sigma: 0.0,
            people_s: 0,
            restart_s: None,
            is_local: false,
            slice_ms: 0,
            archives: 0,
            seed,
            runs: 8,
        }
    }

    /// When both people and crawler are there and the gate has last started, in seconds.
    pub(crate) fn start_s(&self) -> u64 {
        self.restart_s.unwrap_or(0).max(self.calm_s).max(self.people_s)
    }

    pub(crate) fn world(&self) -> World {
        let scale = f64::from(self.cores) * 20.0 / self.page_ms;
        let page = |per_second: f64, addresses| Source {
            works: vec![
                (self.archives, work(self.crawler_ms, 0.0), ARCHIVE),
                (100 - self.archives, work(self.page_ms, 0.0), ARTICLE),
            ],
            sigma: self.sigma,
            from_ms: self.people_s * 1000,
            ..Source::new(Arrivals::Open(per_second * scale), addresses, work(0.0, 0.0))
        };
        let asset = |of, addresses| Source::new(Arrivals::After(of, 4), addresses, work(self.page_ms / 40.0, 0.0));
        let (people, office) = (addresses(40), vec![90 << 16 | 0x0101]);
        let step = match self.scenario {
            1 => 0,
            2 => 1,
            _ => 1 << 16,
        };
        let crawler = (0..64).map(|index| (100 << 16 | 0x0101) + index * step).collect();
        let crawler = Source {
            from_ms: self.calm_s * 1000,
            works: vec![(100, work(self.crawler_ms, 0.0), ARCHIVE)],
            sigma: self.sigma,
            ..Source::patient(Arrivals::Closed(self.connections), crawler, work(0.0, 0.0))
        };
        let sources = vec![
            page(5.0, people.clone()),
            asset(PAGE, people),
            page(3.75, office.clone()),
            asset(OFFICE_PAGE, office),
            crawler,
        ];
        let mut world = World::new(self.cores, 1000, sources, self.start_s() + 36).said(self.said);
        world.backends[0].slice_ns = self.slice_ms * MS;
        World { seed: self.seed, is_local: self.is_local, restart_s: self.restart_s, ..world }
    }

    /// Runs the storm in this world, and its calm: the same pages at the same times, without a crawler and a gate.
    pub(crate) fn run(&self, world: &World) -> Runs {
        let seeds = (0..self.runs).map(|run| world.seed ^ run << 20);
        let worlds: Vec<World> = seeds.map(|seed| World { seed, ..world.clone() }).collect();
        let calm = |world: &World| {
            let mut calm = World { restart_s: None, ..world.direct() };
            calm.sources.truncate(CRAWLER);
            calm.run()
        };
        Runs { calms: worlds.iter().map(calm).collect(), storms: worlds.into_iter().map(World::run).collect() }
    }
}

/// The results of a storm, and of the same without a crawler and without a gate.
pub(crate) struct Runs {
    pub(crate) storms: Vec<Results>,
    pub(crate) calms: Vec<Results>,
}

impl Runs {
    /// How much longer people's pages take than in calm. A page that is itself expensive does not count: the p99 in
    /// calm is that of the same pages, or of all pages if that is larger.
    pub(crate) fn slowdown(&self, from_s: u64, until_s: u64) -> f64 {
        let p99 = |results: &[Results], from_s: u64, until_s: u64| {
            quantile(results, &[PAGE, OFFICE_PAGE], 0.99, from_s * 1000, until_s * 1000)
        };
        p99(&self.storms, from_s, until_s) / p99(&self.calms, from_s, until_s).max(p99(&self.calms, 0, FOREVER_S))
    }

    /// The mean over all runs of the storm.
    pub(crate) fn mean(&self, of: impl Fn(&Results) -> f64) -> f64 {
        self.storms.iter().map(of).sum::<f64>() / self.storms.len() as f64
    }
}

/// The end of every run, in seconds.
const FOREVER_S: u64 = 1_000_000;

/// No law bounds the first five seconds of S3.
const EARLY_S3: f64 = 1000.0;

/// The measurements of storms.
pub(crate) struct Laws {
    pub(crate) early: Sweep,
    pub(crate) late: Sweep,
    pub(crate) served: Sweep,
    pub(crate) busy: Sweep,
    pub(crate) crawler: Sweep,
}

impl Laws {
    pub(crate) fn new(early: f64, late: f64, served: f64) -> Self {
        Self {
            early: Sweep::at_most("L5 page p99 over calm, first 5 s", early),
            late: Sweep::at_most("L5 page p99 over calm, later", late),
            served: Sweep::at_least("L5 served, worst of people and office", served),
            busy: Sweep::at_least("L5 core use", 0.95),
            crawler: Sweep::at_least("L5 the crawler's part of the core", 0.6),
        }
    }

    pub(crate) fn add(&mut self, storm: &Storm) {
        self.add_world(storm, storm.world());
    }

    pub(crate) fn add_world(&mut self, storm: &Storm, world: World) {
        self.add_relative(storm, world, |_| 1.0);
    }

    /// Adds a storm in which pages may take longer, by a factor that depends on the p99 in calm, in milliseconds.
    fn add_relative(&mut self, storm: &Storm, world: World, factor: impl Fn(f64) -> f64) {
        let cores: f64 = world.backends.iter().map(Backend::cores).sum();
        let (runs, start) = (storm.run(&world), storm.start_s());
        let run = || format!("{storm:?}");
        let factor = factor(quantile(&runs.calms, &[PAGE, OFFICE_PAGE], 0.99, 0, FOREVER_S));
        self.early.add(runs.slowdown(start, start + 5) / factor, run);
        self.late.add(runs.slowdown(start + 5, start + 30) / factor, run);
        let served = |source| runs.mean(|results| results.served(&[source], start * 1000, (start + 30) * 1000));
        self.served.add(PEOPLE.into_iter().map(served).fold(1.0, f64::min), run);
        self.busy.add(runs.mean(|results| results.busy(start + 1, start + 35)) / cores, run);
        let crawler = runs.mean(|results| results.cpu_rate(CRAWLER, start, start + 30)) / cores;
        self.crawler.add(crawler.min(1.0), run);
    }

    pub(crate) fn check(self) {
        check([self.served, self.busy, self.crawler, self.early, self.late]);
    }
}

fn calms(scenarios: &[u8], calms: &[u64], mut laws: Laws) {
    for scenario in scenarios {
        for calm_s in calms {
            for said in [1, 2, 4] {
                for seed in seeds(1) {
                    let slice_ms = (calm_s + u64::from(said) / 2 + seed) % 2 * 4;
                    laws.add(&Storm { said, slice_ms, ..Storm::new(*scenario, *calm_s, seed) });
                }
            }
        }
    }
    laws.check();
}

#[test]
fn a_crawler_of_one_address_or_network_does_not_slow_people_down() {
    calms(&[1, 2], &[3, 10, 40], Laws::new(3.0, 2.0, 0.995));
}

#[test]
fn a_crawler_that_is_there_when_the_gate_starts_does_not_slow_people_down() {
    calms(&[1, 2], &[0], Laws::new(3.0, 2.0, 0.995));
}

#[test]
fn a_crawler_of_many_networks_does_not_starve_people() {
    calms(&[3], &[0, 3, 10, 40], Laws::new(EARLY_S3, 4.0, 0.99));
}

/// The law bounds what is served. The bounds of the times are what was measured: the requests that the old gate sent
/// are still in flight.
#[test]
fn a_restart_in_the_middle_of_a_storm_is_no_harm() {
    let mut laws = Laws::new(3.8, 4.4, 0.98);
    for scenario in [1, 2, 3] {
        for seed in seeds(1) {
            laws.add(&Storm { restart_s: Some(15), ..Storm::new(scenario, 10, seed) });
        }
    }
    laws.check();
}

/// Not quite met 40 s after the crawler: nobody knows what the first pages cost.
#[test]
fn people_who_come_after_the_crawler_are_served() {
    let (mut soon, mut later) = (Laws::new(4.0, 4.0, 0.99), Laws::new(2.0, 2.0, 0.99));
    for scenario in [1, 2, 3] {
        for seed in seeds(2) {
            soon.add(&Storm { people_s: 3, ..Storm::new(scenario, 0, seed) });
            later.add(&Storm { people_s: 40, ..Storm::new(scenario, 0, seed) });
        }
    }
    later.early = later.early.not_met(2.2, 0.65);
    soon.check();
    later.check();
}

/// A crawler whose requests cost as much as people's pages, or less.
#[test]
fn people_who_come_after_a_crawler_of_cheap_pages_are_served() {
    let mut soon = Laws::new(4.0, 4.0, 0.99);
    for scenario in [1, 2] {
        for crawler_ms in [2.0, 10.0, 20.0, 40.0] {
            soon.add(&Storm { people_s: 3, crawler_ms, ..Storm::new(scenario, 0, 1) });
        }
    }
    soon.check();
}

fn random_storm(seed: u64) -> Storm {
    let mut random = Random::new(seed * 31 + 9);
    let cores = [1, 1, 2, 4][random.below(4) as usize];
    let said = (f64::from(cores) * [0.5, 1.0, 1.0, 2.0, 4.0][random.below(5) as usize]).max(1.0) as u32;
    let page_ms = random.log_uniform(5.0, 40.0);
    Storm {
        cores,
        said,
        connections: random.log_uniform(16.0, 256.0) as usize * cores as usize,
        page_ms,
        crawler_ms: page_ms * random.log_uniform(1.0, 40.0),
        sigma: [0.0, 0.3, 0.6, 1.0][random.below(4) as usize],
        is_local: random.below(2) == 0,
        slice_ms: [0, 4][random.below(2) as usize],
        runs: 4,
        ..Storm::new(1 + (seed % 2) as u8, [0, 3, 10, 20][random.below(4) as usize], seed)
    }
}

/// Not met yet where nobody knows what is normal because the crawler is there at the start, and where times vary a lot
/// and the cores in the settings are wrong. The worst is a crawler of requests of 0.8 s that is there at the start, with
/// four times the true cores named: while none of them ends, more of them go. With the true cores as the limit of the
/// crawler, 8 runs of each storm miss the first bound in 4 of 40 cases, the second one in 2, and that of the core use
/// in none.
#[test]
fn random_crawlers_do_not_slow_people_down() {
    let mut laws = Laws::new(3.0, 2.0, 0.995);
    laws.early = laws.early.not_met(12.0, 0.95);
    laws.late = laws.late.not_met(10.5, 0.89);
    laws.busy = laws.busy.not_met(0.82, 0.77);
    for seed in seeds(40) {
        laws.add(&random_storm(seed));
    }
    laws.check();
}

/// Small pools of workers, which serve in FIFO order, and requests that sleep for a part of their time. In such a pool
/// a page waits for whole requests of the crawler, not for a part of the core.
#[test]
fn random_crawlers_do_not_fill_small_pools() {
    let early = Sweep::at_most("L5 page p99 over calm, pools, first 5 s", 3.0).not_met(7.7, 0.97);
    let late = Sweep::at_most("L5 page p99 over calm, pools, later", 2.0).not_met(7.5, 0.97);
    pools(early, late, |random| {
        let sleep = if random.below(2) == 0 { 0.0 } else { 0.8 * random.unit() };
        (sleep, (random.log_uniform(2.0, 64.0) as usize).max((4.0 / (1.0 - sleep)) as usize))
    });
}

/// Pools of workers that wait for a database nearly all the time. All pages are served, but not met yet in the first
/// seconds of two pools of four and six workers, which the crawler's first requests fill before anybody knows their
/// cost.
#[test]
fn random_crawlers_do_not_starve_people_in_pools_that_wait() {
    let early = Sweep::at_most("L5 page p99 over calm, waiting pools, first 5 s", 3.0).not_met(18.5, 0.97);
    let late = Sweep::at_most("L5 page p99 over calm, waiting pools, later", 2.0).not_met(23.0, 0.92);
    pools(early, late, |random| {
        let sleep = if random.below(2) == 0 { 0.93 } else { 0.9 + 0.1 * random.unit() };
        (sleep, random.log_uniform(4.0, 64.0) as usize)
    });
}

/// Adds random storms before pools with this part of sleep and number of workers.
fn pools(mut early: Sweep, mut late: Sweep, draw: impl Fn(&mut Random) -> (f64, usize)) {
    let mut served = Sweep::at_least("L5 served, pools", 0.995);
    for seed in seeds(60).filter(|seed| seed % 3 < 2) {
        let mut random = Random::new(seed * 131 + 17);
        let (crawler_ms, page_ms) = (random.log_uniform(50.0, 1000.0), random.log_uniform(5.0, 50.0));
        let (sleep, workers) = draw(&mut random);
        let storm = Storm {
            said: 2,
            connections: random.log_uniform(16.0, 128.0) as usize,
            page_ms,
            crawler_ms,
            sigma: [0.0, 0.3][random.below(2) as usize],
            is_local: random.below(2) == 0,
            slice_ms: 4,
            runs: 4,
            ..Storm::new(1 + (seed % 3) as u8, [0, 3, 10, 20][random.below(4) as usize], seed)
        };
        let mut world = storm.world();
        world.backends = vec![Backend::new(1, workers)];
        world.backends[0].slice_ns = storm.slice_ms * MS;
        for (_, work, _) in world.sources.iter_mut().flat_map(|source| &mut source.works) {
            let all = work.cpu_ns as f64;
            (work.cpu_ns, work.sleep_ns) = ((all * (1.0 - sleep)) as u64, work.sleep_ns + (all * sleep) as u64);
        }
        let (runs, start) = (storm.run(&world), storm.start_s());
        let run = || format!("{storm:?}, {workers} workers, sleep {sleep:.2}");
        early.add(runs.slowdown(start, start + 5), run);
        late.add(runs.slowdown(start + 5, start + 30), run);
        served.add(runs.mean(|results| results.served(&PEOPLE, start * 1000, (start + 30) * 1000)), run);
    }
    check([served, early, late]);
}

/// A crawler of 64 networks whose requests cost about as much as people's pages looks like people: an office then gets
/// the share of one network among 64 equals. So the crawler's requests cost eight times a page here, or more.
#[test]
fn random_crawlers_of_many_networks_do_not_starve_people() {
    let mut laws = Laws::new(EARLY_S3, 4.0, 0.99);
    laws.late = laws.late.not_met(22.5, 0.6);
    laws.busy = laws.busy.not_met(0.91, 0.94);
    for seed in seeds(20) {
        let storm = random_storm(seed);
        laws.add(&Storm { scenario: 3, crawler_ms: storm.crawler_ms.max(8.0 * storm.page_ms), ..storm });
    }
    laws.check();
}

/// People's own expensive pages cost what the crawler's cost. No law bounds their times: the bounds are what was
/// measured.
#[test]
fn peoples_expensive_pages_are_served() {
    for (scenario, served, slow) in [(1, 0.99, 2.5), (2, 0.99, 2.5), (3, 0.95, 12.0)] {
        let mut all = Sweep::at_least("L5 served, with expensive pages", served);
        let mut times = Sweep::at_most("L5 expensive page p90 over calm", slow);
        for (calm_s, said) in [(0, 1), (3, 2), (10, 1), (20, 2), (20, 4)] {
            for seed in seeds(1) {
                let storm = Storm { archives: 2, said, ..Storm::new(scenario, calm_s, seed) };
                let (runs, from, until) = (storm.run(&storm.world()), calm_s, calm_s + 30);
                let run = || format!("{storm:?}");
                for source in PEOPLE {
                    all.add(runs.mean(|results| results.served(&[source], from * 1000, until * 1000)), run);
                }
                times.add(expensive(&runs.storms, from, until) / expensive(&runs.calms, 0, 30), run);
            }
        }
        check([all, times].map(Sweep::always));
    }
}

/// The p90 of people's pages that cost 100 ms or more.
fn expensive(results: &[Results], from_s: u64, until_s: u64) -> f64 {
    let pages = results.iter().flat_map(|one| one.during(&[PAGE, OFFICE_PAGE], from_s * 1000, until_s * 1000));
    let mut times: Vec<_> = pages
        .filter(|page| page.latency_ms.is_none() || page.cpu_ns > 100 * MS)
        .map(|page| page.latency_ms.unwrap_or(5000.0))
        .collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() * 9 / 10).copied().unwrap_or(1.0)
}

/// A single worker that serves requests one after another, as a process with an event loop does. A page waits for the
/// crawler's request in progress, so times are relative to the p99 in calm and that request.
fn one_worker(arrivals: &[(u64, u64)], mut laws: Laws) {
    for scenario in [1, 2, 3] {
        for &(calm_s, people_s) in arrivals {
            for (crawler_ms, said, is_local, sigma) in
                [(200.0, 1, true, 0.0), (300.0, 1, false, 0.0), (300.0, 2, true, 0.3)]
            {
                let runs = 4;
                let storm =
                    Storm { crawler_ms, said, is_local, people_s, sigma, runs, ..Storm::new(scenario, calm_s, 1) };
                let mut world = storm.world();
                world.backends = vec![Backend::new(1, 1)];
                laws.add_relative(&storm, world, |calm_ms| 1.0 + crawler_ms / calm_ms);
            }
        }
    }
    laws.check();
}

/// Without the knowledge that requests are served one after another, people pay for their waits, and in the worst case
/// none of their pages is served. Not met yet later by 2 of 18: at times, pages wait for several requests.
#[test]
fn a_crawler_of_a_backend_with_one_worker_delays_people_by_one_request() {
    let mut laws = Laws::new(3.0, 2.0, 0.995);
    laws.late = laws.late.not_met(3.1, 0.88);
    one_worker(&[(3, 0), (10, 0)], laws);
}

/// Not met yet: before the first dozen requests have ended, nobody knows that there is one worker, and the crawler's
/// requests fill its queue.
#[test]
fn a_crawler_that_is_first_at_a_backend_with_one_worker_delays_people_for_some_seconds() {
    let mut laws = Laws::new(3.0, 2.0, 0.995);
    laws.early = laws.early.not_met(13.0, 0.3);
    laws.late = laws.late.not_met(3.5, 0.88);
    laws.served = laws.served.not_met(0.97, 0.94);
    one_worker(&[(0, 0), (0, 5)], laws);
}
