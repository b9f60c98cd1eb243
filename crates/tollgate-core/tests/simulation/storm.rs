//! The crawler storm.

use crate::backend::Work;
use crate::world::{Arrivals, MS, Results, SEC, Source, World};
use tollgate_core::queue::Settings;
use tollgate_core::virtual_clock::Cores;

const PAGE: usize = 0;
const ASSET: usize = 1;
const OFFICE_PAGE: usize = 2;
const OFFICE_ASSET: usize = 3;
const CRAWLER: usize = 4;

const ARTICLE: usize = 10;
const ARCHIVE: usize = 11;

#[derive(Clone, Debug)]
struct Storm {
    scenario: u8,
    calm_s: u64,
    cores: u32,
    said: u32,
    workers: usize,
    connections: usize,
    page_ms: f64,
    crawler_ms: f64,
    sigma: f64,
    people_first: u64,
    seed: u64,
    local: bool,
}

impl Storm {
    fn fixed(scenario: u8, calm_s: u64, seed: u64) -> Self {
        Self {
            scenario,
            calm_s,
            cores: 1,
            said: 1,
            workers: 1000,
            connections: 64,
            page_ms: 20.0,
            crawler_ms: 300.0,
            sigma: 0.0,
            people_first: 0,
            seed,
            local: false,
        }
    }

    fn world(&self) -> World {
        let scale = f64::from(self.cores) * 20.0 / self.page_ms;
        let ms = |ms: f64| Work { cpu_ns: (ms * MS as f64) as u64, sleep_ns: MS / 10 };
        let page = |per_second: f64, addresses| Source {
            works: vec![(100, ms(self.page_ms), ARTICLE)],
            sigma: self.sigma,
            from_s: self.people_first,
            ..Source::new(Arrivals::Open(per_second * scale), addresses, Work::cpu(0))
        };
        let asset = |of, addresses| Source {
            timeout_ns: 5 * SEC,
            ..Source::new(Arrivals::After(of, 4), addresses, ms(self.page_ms / 40.0))
        };
        let humans: Vec<u32> = (0..40).map(|human| (10 + human) << 16 | 0x0101).collect();
        let office = vec![90 << 16 | 0x0101];
        let step = match self.scenario {
            1 => 0,
            2 => 1,
            _ => 1 << 16,
        };
        let crawler = (0..64).map(|index| (100 << 16 | 0x0101) + index * step).collect();
        let sources = vec![
            page(5.0, humans.clone()),
            asset(PAGE, humans),
            page(3.75, office.clone()),
            asset(OFFICE_PAGE, office),
            Source {
                from_s: self.calm_s,
                works: vec![(100, ms(self.crawler_ms), ARCHIVE)],
                sigma: self.sigma,
                ..Source::patient(Arrivals::Closed(self.connections), crawler, Work::cpu(0))
            },
        ];
        let start = self.calm_s.max(self.people_first);
        let mut world = World::new(self.cores, self.workers, sources, start + 40);
        world.settings = Some(Settings { cores: Cores::whole(self.said), ..Settings::default() });
        world.seed = self.seed;
        world.is_local = self.local;
        world
    }

    /// The page time that 99 of 100 stay within without the crawler.
    fn calm_p99(&self) -> f64 {
        let mut world = self.world();
        world.sources.truncate(4);
        world.sources.iter_mut().for_each(|source| source.from_s = 0);
        let results = world.direct().run();
        people(&results, 0, 40)
    }
}

fn people(results: &Results, from: u64, until: u64) -> f64 {
    results.quantile_of(&[PAGE, OFFICE_PAGE], 0.99, from, until)
}

#[test]
fn storm_table() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(4);
    let verbose = std::env::var("V").is_ok();
    for scenario in [1, 2, 3] {
        for (calm, people_first, said) in if verbose {
            vec![(0, 0, 1), (0, 0, 4), (10, 0, 2), (0, 3, 1)]
        } else {
            vec![(0, 0, 1), (0, 0, 4), (3, 0, 1), (10, 0, 1), (10, 0, 2), (40, 0, 4), (0, 3, 1), (0, 40, 1)]
        } {
            let mut rows = vec![];
            for seed in 0..seeds {
                let storm = Storm { said, people_first, ..Storm::fixed(scenario, calm, seed) };
                let calm_p99 = storm.calm_p99();
                let t = calm.max(people_first);
                let results = storm.world().run();
                let served = |from: u64, until: u64| {
                    [PAGE, ASSET, OFFICE_PAGE, OFFICE_ASSET]
                        .map(|s| results.success(s, from, until))
                        .into_iter()
                        .fold(1.0, f64::min)
                };
                let early = people(&results, t, t + 5) / calm_p99;
                let late = people(&results, t + 5, t + 35) / calm_p99;
                rows.push((
                    early,
                    late,
                    served(t, t + 35),
                    results.busy(t + 1, t + 39),
                    results.cpu_rate(CRAWLER, t, t + 35),
                    results.limit.clone(),
                ));
                if verbose {
                    println!(
                        "  seed {seed} calm {calm_p99:.0} early {early:.1} late {late:.1} K {:?} C {:?}",
                        &results.limit[t as usize..t as usize + 20],
                        &results.cores[t as usize..t as usize + 20]
                    );
                }
            }
            let worst = |f: fn(&(f64, f64, f64, f64, f64, Vec<f64>)) -> f64| {
                rows.iter().map(f).fold(f64::NEG_INFINITY, f64::max)
            };
            println!(
                "S{scenario} calm {calm:2} people at {people_first:2} said {said}: early {:5.1}x late {:5.1}x served {:.3} busy {:.2} crawler {:.2}",
                worst(|r| r.0),
                worst(|r| r.1),
                -worst(|r| -r.2),
                -worst(|r| -r.3),
                -worst(|r| -r.4)
            );
        }
    }
}
