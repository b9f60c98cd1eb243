//! What is known about routes, where it can be read without a lock.
//!
//! A request that passes in calm must know what it counts for, and what it is expected to cost, and the table of routes is behind the lock. So
//! what the table says of a route is written here too, each time it learns something: one word for a route. Routes that fall on the
//! same word push each other out; then a request counts as one that computes, which is what a stranger counts for.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::Load;

/// How many routes there is room for.
const PLACES: usize = 8192;
/// A word is 24 bits of the route's hash, 12 of its load and 28 of its cost in microseconds.
const LOAD_BITS: u32 = 12;
const COST_BITS: u32 = 28;
/// What a route costs of which nothing is known, and the most that is written down of one.
const UNKNOWN: Span = Span::from_millis(5);
const COST_MAX: u64 = (1 << COST_BITS) - 1;
const LOAD_MAX: u64 = (1 << LOAD_BITS) - 1;
/// In calm, one request in so long is enough to learn from.
const PAUSE: Span = Span::from_nanos(20_000);

/// What is known about each route.
pub(super) struct Glance {
    words: Box<[AtomicU64]>,
    learned_at: AtomicU64,
}

impl Glance {
    pub(super) fn new() -> Self {
        Self { words: (0..PLACES).map(|_| AtomicU64::new(0)).collect(), learned_at: AtomicU64::new(0) }
    }

    /// What a request of this route counts for, and what it is expected to cost.
    pub(super) fn at(&self, route: u64) -> (Load, Span) {
        let word = self.words[place(route)].load(Ordering::Relaxed);
        if word == 0 || word >> (LOAD_BITS + COST_BITS) != mark(route) {
            return (Load::ONE, UNKNOWN);
        }
        let load = Load::from_256ths(word >> COST_BITS & LOAD_MAX);
        (load, Span::from_nanos((word & COST_MAX) * 1000))
    }

    /// Writes down what is known about a route.
    pub(super) fn note(&self, route: u64, load: Load, cost: Span) {
        let cost = (cost.as_nanos() / 1000).clamp(1, COST_MAX);
        let word = mark(route) << (LOAD_BITS + COST_BITS) | load.as_256ths().min(LOAD_MAX) << COST_BITS | cost;
        self.words[place(route)].store(word, Ordering::Relaxed);
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

const fn place(route: u64) -> usize {
    (route % PLACES as u64) as usize
}

const fn mark(route: u64) -> u64 {
    route >> (LOAD_BITS + COST_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_of_a_route_is_read_of_that_route_alone() {
        let glance = Glance::new();
        let (route, alike) = (0xABCD_EF01_2345_6789, 0xFBCD_EF01_2345_6789);
        assert_eq!(glance.at(route), (Load::ONE, UNKNOWN));
        glance.note(route, Load::from_256ths(4), Span::from_millis(300));
        assert_eq!(glance.at(route), (Load::from_256ths(4), Span::from_millis(300)));
        assert_eq!(glance.at(alike), (Load::ONE, UNKNOWN));
    }

    #[test]
    fn costs_and_loads_that_do_not_fit_are_the_largest_that_do() {
        let glance = Glance::new();
        glance.note(7, Load::of(1000), Span::from_secs(10_000));
        let (load, cost) = glance.at(7);
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
