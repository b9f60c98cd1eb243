//! What is known about routes, where it can be read without a lock.
//!
//! A request that passes in calm must know what it counts for, and what it is expected to cost, and the table of routes is behind the lock. So
//! what the table says of a route, and of strangers below the same path, is written here too, each time it learns something: one word
//! for each. Routes that fall on the same word push each other out; then a request is taken for a stranger, who computes.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::prediction::{RouteKey, Routes};
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::Load;

/// How many routes there is room for.
const PLACES: usize = 8192;
/// A word is 24 bits of the route's hash, 12 of its load and 28 of its cost in microseconds.
const LOAD_BITS: u32 = 12;
const COST_BITS: u32 = 28;
/// What a request costs before anything is known, and the most that is written down of one.
const UNKNOWN: Span = Span::from_millis(5);
const COST_MAX: u64 = (1 << COST_BITS) - 1;
const LOAD_MAX: u64 = (1 << LOAD_BITS) - 1;
/// In calm, one request in so long is enough to learn from.
const PAUSE: Span = Span::from_nanos(20_000);

/// What is known about each route.
pub(super) struct Glance {
    words: Box<[AtomicU64]>,
    /// What a stranger costs, in microseconds, of whose path nothing is known either.
    stranger_us: AtomicU64,
    learned_at: AtomicU64,
}

impl Glance {
    pub(super) fn new() -> Self {
        Self {
            words: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            stranger_us: AtomicU64::new(UNKNOWN.as_nanos() / 1000),
            learned_at: AtomicU64::new(0),
        }
    }

    /// What a request of this route counts for, and what it is expected to cost.
    pub(super) fn at(&self, key: RouteKey) -> (Load, Span) {
        if let Some(known) = self.find(key.route) {
            return known;
        }
        let of_all = || Span::from_nanos(self.stranger_us.load(Ordering::Relaxed) * 1000);
        (Load::ONE, self.find(key.parent).map_or_else(of_all, |(_, cost)| cost))
    }

    /// Writes down what is known about a route.
    pub(super) fn note(&self, key: RouteKey, routes: &Routes) {
        self.write(key.route, routes.load(key), routes.reserve(key));
        self.write(key.parent, Load::ONE, routes.strangers(Some(key.parent)));
        self.stranger_us.store(routes.strangers(None).as_nanos() / 1000, Ordering::Relaxed);
    }

    fn find(&self, hash: u64) -> Option<(Load, Span)> {
        let word = self.words[place(hash)].load(Ordering::Relaxed);
        if word == 0 || word >> (LOAD_BITS + COST_BITS) != mark(hash) {
            return None;
        }
        let load = Load::from_256ths(word >> COST_BITS & LOAD_MAX);
        Some((load, Span::from_nanos((word & COST_MAX) * 1000)))
    }

    fn write(&self, hash: u64, load: Load, cost: Span) {
        let cost = (cost.as_nanos() / 1000).clamp(1, COST_MAX);
        let word = mark(hash) << (LOAD_BITS + COST_BITS) | load.as_256ths().min(LOAD_MAX) << COST_BITS | cost;
        self.words[place(hash)].store(word, Ordering::Relaxed);
    }

    /// Whether it is time to learn from another request.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        let before = self.learned_at.load(Ordering::Relaxed);
        let due = now.as_nanos().saturating_sub(before) >= PAUSE.as_nanos() || before == 0;
        if due {
            self.learned_at.store(now.as_nanos(), Ordering::Relaxed);
        }
        due
    }
}

const fn place(hash: u64) -> usize {
    (hash % PLACES as u64) as usize
}

const fn mark(hash: u64) -> u64 {
    hash >> (LOAD_BITS + COST_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: RouteKey = RouteKey { route: 0xABCD_EF01_2345_6789, parent: 0x1234_5678_9ABC_DEF0 };

    #[test]
    fn what_is_noted_of_a_route_is_read_of_that_route_alone() {
        let glance = Glance::new();
        let alike = 0xFBCD_EF01_2345_6789;
        assert_eq!(glance.find(KEY.route), None);
        glance.write(KEY.route, Load::from_256ths(4), Span::from_millis(300));
        assert_eq!(glance.find(KEY.route), Some((Load::from_256ths(4), Span::from_millis(300))));
        assert_eq!(glance.find(alike), None);
    }

    #[test]
    fn whatever_the_table_says_is_read_here() {
        let (glance, mut routes) = (Glance::new(), Routes::new(64));
        let stranger = RouteKey { route: 7, ..KEY };
        let nobody = RouteKey { route: 8, parent: 9 };
        for millis in [40, 200, 90] {
            for key in [KEY, stranger, nobody] {
                assert_eq!(glance.at(key), (Load::ONE, routes.reserve(key)), "{key:?}");
            }
            routes.record(KEY, Span::from_millis(millis));
            glance.note(KEY, &routes);
        }
    }

    #[test]
    fn costs_and_loads_that_do_not_fit_are_the_largest_that_do() {
        let glance = Glance::new();
        glance.write(7, Load::of(1000), Span::from_secs(10_000));
        let (load, cost) = glance.find(7).unwrap();
        assert!(load >= Load::of(15) && cost >= Span::from_secs(200));
    }

    #[test]
    fn not_every_request_of_a_rush_is_learned_from() {
        let glance = Glance::new();
        assert!(glance.is_due(Moment::from_nanos(1_000)));
        assert!(!glance.is_due(Moment::from_nanos(20_999)));
        assert!(glance.is_due(Moment::from_nanos(21_000)));
    }
}
