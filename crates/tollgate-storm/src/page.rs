//! What the site offers, and what each page costs it in CPU.
//!
//! Everybody asks for the same kinds of page. The crawler differs by taking only the dear ones, as crawlers do that walk
//! every diff and every archive page of a site.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Ids from here on are archive pages even where the path calls them articles.
const ARCHIVE_ID_MIN: u64 = 1_000_000;

/// A kind of page, by what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// What people read: 20 ms.
    Article,
    /// What people open one time in fifty, and the crawler always: 300 ms.
    Archive,
    /// What a page pulls in: half a millisecond.
    Asset,
}

impl Kind {
    /// The CPU time that one such page burns.
    pub const fn cost(self) -> Duration {
        match self {
            Self::Article => Duration::from_millis(20),
            Self::Archive => Duration::from_millis(300),
            Self::Asset => Duration::from_micros(500),
        }
    }

    /// The path of page number `id`. With `alike`, archive pages look like articles, so that a cost learned per route cannot
    /// tell them apart.
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
    fn a_path_of_nobody_is_no_page() {
        for path in ["", "/", "/article", "/article/", "/article/x", "/login/1", "archive/1"] {
            assert_eq!(Kind::of_path(path), None, "{path:?}");
        }
    }
}
