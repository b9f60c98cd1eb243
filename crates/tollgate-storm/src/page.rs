//! The kinds of page on the site, their paths and their cost.
//!
//! All clients request the same kinds of page. The crawler requests only expensive ones, as crawlers do that walk every
//! diff and every archive page of a site.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};

/// A path such as `/article/1000000` with a number from here on is an archive page, as expensive as `/archive/1`.
pub(crate) const ARCHIVE_ID_MIN: u64 = 1_000_000;

/// A kind of page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// The page that people read.
    Article,
    /// The page that people open one time in fifty, and the crawler always.
    Archive,
    /// A file that a page includes.
    Asset,
}

/// The cost of one request: CPU time, and time during which its worker sleeps as if it waited for a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time that the request burns.
    pub cpu: Duration,
    /// Time that the request sleeps before it burns CPU time. It holds its worker meanwhile.
    pub sleep: Duration,
}

impl Cost {
    /// A request that only burns CPU time.
    pub const fn cpu(cpu: Duration) -> Self {
        Self { cpu, sleep: Duration::ZERO }
    }

    /// A request that only sleeps.
    pub const fn sleep(sleep: Duration) -> Self {
        Self { cpu: Duration::ZERO, sleep }
    }

    /// The response time of an idle site.
    pub fn total(self) -> Duration {
        self.cpu + self.sleep
    }
}

/// As in `20000+0`: CPU time and sleep, in microseconds.
impl fmt::Display for Cost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}+{}", self.cpu.as_micros(), self.sleep.as_micros())
    }
}

impl FromStr for Cost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let micros = |text: &str| text.parse().map(Duration::from_micros).ok();
        let parts = text.split_once('+').and_then(|(cpu, sleep)| Some((micros(cpu)?, micros(sleep)?)));
        let (cpu, sleep) = parts.ok_or("write CPU+SLEEP in microseconds, as in 20000+0")?;
        Ok(Self { cpu, sleep })
    }
}

/// One value for each kind of page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerKind<T> {
    /// Of articles.
    pub article: T,
    /// Of archive pages.
    pub archive: T,
    /// Of assets.
    pub asset: T,
}

/// The cost of each kind of page. By default, an article costs 20 ms of CPU time, an archive page 300 ms, and an asset
/// half a millisecond.
pub type Costs = PerKind<Cost>;

impl Default for Costs {
    fn default() -> Self {
        Self {
            article: Cost::cpu(Duration::from_millis(20)),
            archive: Cost::cpu(Duration::from_millis(300)),
            asset: Cost::cpu(Duration::from_micros(500)),
        }
    }
}

impl<T> PerKind<T> {
    /// The value of this kind.
    pub const fn of(&self, kind: Kind) -> &T {
        match kind {
            Kind::Article => &self.article,
            Kind::Archive => &self.archive,
            Kind::Asset => &self.asset,
        }
    }
}

impl Kind {
    /// The path of page number `id`. With `alike`, archive pages have paths of articles, so that a gate cannot learn
    /// the cost of a page from its route.
    pub fn path(self, id: u64, alike: bool) -> String {
        match self {
            Self::Article => format!("/article/{}", id % ARCHIVE_ID_MIN),
            Self::Archive if alike => format!("/article/{}", ARCHIVE_ID_MIN + id % ARCHIVE_ID_MIN),
            Self::Archive => format!("/archive/{id}"),
            Self::Asset => format!("/assets/{id}.css"),
        }
    }

    /// The kind of page at `path`.
    pub fn of_path(path: &str) -> Option<Self> {
        let (section, name) = path.strip_prefix('/')?.split_once('/')?;
        match section {
            "article" if name.parse::<u64>().ok()? >= ARCHIVE_ID_MIN => Some(Self::Archive),
            "article" => Some(Self::Article),
            "archive" => Some(Self::Archive),
            "assets" => Some(Self::Asset),
            _ => None,
        }
    }

    /// How many bytes the answer carries.
    pub const fn body_bytes(self) -> usize {
        match self {
            Self::Article | Self::Archive => 4096,
            Self::Asset => 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_site_recognises_every_path_that_the_crowds_ask_for() {
        for kind in [Kind::Article, Kind::Archive, Kind::Asset] {
            for alike in [false, true] {
                for id in [0, 17, 999_999, 1_000_000, u64::MAX] {
                    assert_eq!(Kind::of_path(&kind.path(id, alike)), Some(kind), "{kind:?} {id} {alike}");
                }
            }
        }
    }

    #[test]
    fn a_cost_survives_the_command_line() {
        let cost = Cost { cpu: Duration::from_micros(500), sleep: Duration::from_millis(250) };
        assert_eq!(cost.to_string(), "500+250000");
        assert_eq!(cost.to_string().parse(), Ok(cost));
        for text in ["", "20", "20+", "20+x", "-1+0"] {
            assert!(text.parse::<Cost>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_unknown_path_is_no_page() {
        for path in ["", "/", "/article", "/article/", "/article/x", "/login/1", "archive/1"] {
            assert_eq!(Kind::of_path(path), None, "{path:?}");
        }
    }
}
