//! The backends of the benchmark: simulated sites that differ in the cost of a request and in the number of workers.

use std::time::Duration;
use tollgate_storm::{
    dice::Dice,
    page::{Cost, Costs, Kind},
    site::Settings,
};

/// More workers than any load of this benchmark has connections: requests never wait for a worker.
const UNLIMITED: usize = 4096;

/// A backend by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backend {
    /// The name on the command line and in the table.
    pub(crate) name: &'static str,
    workers: usize,
    costs: Costs,
    /// Kinds of page with their share of the requests, in percent.
    mix: &'static [(Kind, u64)],
    /// Whether requests do nothing but sleep. The law is then more lenient in the first second of a gate that has
    /// never seen the backend. A mixture does not count, because its bottleneck is CPU time.
    pub(crate) sleeps: bool,
}

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn uniform(name: &'static str, workers: usize, cost: Cost) -> Backend {
    let costs = Costs { article: cost, archive: cost, asset: cost };
    Backend { name, workers, costs, mix: &[(Kind::Article, 100)], sleeps: cost.cpu.is_zero() }
}

/// Every backend, in the order of the table. All are pinned to one core.
pub(crate) const ALL: [Backend; 7] = [
    uniform("20ms-cpu", 1, Cost::cpu(ms(20))),
    uniform("2ms-cpu", 1, Cost::cpu(ms(2))),
    uniform("20ms-cpu-16-workers", 16, Cost::cpu(ms(20))),
    uniform("50ms-sleep", UNLIMITED, Cost::sleep(ms(50))),
    uniform("250ms-sleep", UNLIMITED, Cost::sleep(ms(250))),
    uniform("50ms-sleep-16-workers", 16, Cost::sleep(ms(50))),
    Backend {
        name: "mixture",
        workers: UNLIMITED,
        costs: Costs { asset: Cost::cpu(ms(2)), article: Cost::cpu(ms(20)), archive: Cost::sleep(ms(250)) },
        mix: &[(Kind::Asset, 60), (Kind::Article, 30), (Kind::Archive, 10)],
        sleeps: false,
    },
];

impl Backend {
    /// The backend of that name.
    pub(crate) fn of_name(name: &str) -> Result<Self, String> {
        ALL.into_iter().find(|backend| backend.name == name).ok_or_else(|| {
            let names = ALL.map(|backend| backend.name);
            format!("no such backend; there are {}", names.join(", "))
        })
    }

    /// The site that is this backend.
    pub(crate) const fn settings(self) -> Settings {
        Settings { workers: self.workers, costs: self.costs, server_timing: false }
    }

    /// The path of the next request.
    pub(crate) fn path(self, dice: &mut Dice) -> String {
        let mut percent = dice.below(100);
        let id = dice.below(1_000_000);
        for &(kind, share) in self.mix {
            if percent < share {
                return kind.path(id, false);
            }
            percent -= share;
        }
        Kind::Article.path(id, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_every_mixture_add_up() {
        for backend in ALL {
            assert_eq!(backend.mix.iter().map(|(_, share)| share).sum::<u64>(), 100, "{}", backend.name);
            assert_eq!(Backend::of_name(backend.name), Ok(backend));
        }
        assert!(Backend::of_name("20ms").unwrap_err().contains("20ms-cpu"));
    }

    #[test]
    fn a_mixture_has_the_shares_that_it_names() {
        let backend = Backend::of_name("mixture").unwrap();
        let mut dice = Dice::new(1);
        let paths: Vec<String> = (0..10_000).map(|_| backend.path(&mut dice)).collect();
        let of = |kind| paths.iter().filter(|path| Kind::of_path(path) == Some(kind)).count();
        assert!((5_800..6_200).contains(&of(Kind::Asset)), "{}", of(Kind::Asset));
        assert!((900..1_100).contains(&of(Kind::Archive)), "{}", of(Kind::Archive));
    }
}
