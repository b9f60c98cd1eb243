//! What a request will cost, judging by what its route has cost.
//!
//! A toll is known when the backend is done, but a hundred requests can be sent before that. So something is reserved at the start: what
//! requests of the route usually cost and what they usually differ by, more than most will need. A route that was never
//! seen is taken to be like the dear ones of its parent path, or of all, and not to be cheap: a stranger who makes up paths finds none
//! that is free.
//!
//! Routes are made up faster than they are visited, so the table is bounded. A newcomer to a full line wears down those that are
//! there, and gets a place when one of them is worn out: what is asked for all the time stays, a thousand paths that are asked for once
//! do not push it out.

use crate::concurrency::Times;
use crate::time::Span;
use crate::virtual_clock::Load;
use alloc::boxed::Box;
use alloc::vec;

/// Routes in a line.
const LINE: usize = 8;
/// A route that was asked for so often in a row is not worn out sooner than after as many newcomers.
const WORTH_MAX: u8 = 64;
/// How many requests of a route are remembered.
const MEMORY: u64 = 8;
/// What is reserved before anything is known at all. Little, so that the first burst of an innocent client at a gate that has just started is
/// not taken for a crawler's; a crawler's first answers correct it.
const UNKNOWN: Span = Span::from_millis(5);

/// Which route a request is for: keyed hashes, from the route itself to its parent path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteKey {
    /// Of method and route.
    pub route: u64,
    /// Of method and parent path.
    pub parent: u64,
}

/// What a request is expected to cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// What most requests like it do not exceed: this is reserved for it.
    pub reserve: Span,
    /// What most requests like it cost at least: nothing, where costs vary so much that they tell nothing.
    pub least: Span,
}

impl From<Span> for Expected {
    /// All requests like it cost the same.
    fn from(cost: Span) -> Self {
        Self { reserve: cost, least: cost }
    }
}

/// The mean of some costs and their mean deviation from it.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    mean: u64,
    deviation: u64,
    seen: u64,
}

impl Cost {
    fn record(&mut self, toll: Span) {
        let toll = toll.as_nanos();
        self.seen = (self.seen + 1).min(MEMORY);
        if self.seen > 1 {
            self.deviation = toward(self.deviation, self.mean.abs_diff(toll), self.seen);
        }
        self.mean = toward(self.mean, toll, self.seen);
    }

    fn with_margin(&self, deviations: u64) -> Span {
        Span::from_nanos(self.mean.saturating_add(self.deviation.saturating_mul(deviations)))
    }
}

fn toward(from: u64, to: u64, parts: u64) -> u64 {
    if to >= from { from + (to - from) / parts } else { from - (from - to) / parts }
}

/// What is known about one route.
#[derive(Clone, Copy, Debug, Default)]
struct Route {
    key: u64,
    /// How many newcomers it takes until this place is free; free at zero.
    worth: u8,
    cost: Cost,
    times: Times,
}

/// What is known about all routes.
#[derive(Clone, Debug)]
pub struct Routes {
    lines: Box<[[Route; LINE]]>,
    all: Cost,
}

impl Routes {
    /// A table with places for at least this many routes.
    pub fn new(routes: usize) -> Self {
        let lines = routes.div_ceil(LINE).max(1);
        Self { lines: vec![[Route::default(); LINE]; lines].into_boxed_slice(), all: Cost::default() }
    }

    /// What a request will cost.
    pub fn expected(&self, key: RouteKey) -> Expected {
        match self.find(key.route) {
            Some(Route { cost, .. }) => {
                let least = Span::from_nanos(cost.mean.saturating_sub(cost.deviation));
                Expected { reserve: cost.with_margin(1), least }
            }
            None => Expected { reserve: self.strangers(Some(key.parent)), least: Span::ZERO },
        }
    }

    /// What to reserve for a request of a route that was never seen, below this path or below one that was never seen either.
    pub fn strangers(&self, parent: Option<u64>) -> Span {
        let alike = parent.and_then(|parent| self.find(parent)).map_or(&self.all, |parent| &parent.cost);
        alike.with_margin(2).max(UNKNOWN)
    }

    /// What to reserve for a request.
    pub fn reserve(&self, key: RouteKey) -> Span {
        self.expected(key).reserve
    }

    /// What a request counts for among those at the backend.
    pub fn load(&self, key: RouteKey) -> Load {
        self.find(key.route).map_or(Load::ONE, |route| route.times.load())
    }

    /// A request has cost `toll`. Returns the times of its route, if it has a place.
    pub fn record(&mut self, key: RouteKey, toll: Span) -> Option<&mut Times> {
        self.all.record(toll);
        if let Some(parent) = self.place(key.parent) {
            parent.cost.record(toll);
        }
        let route = self.place(key.route)?;
        route.cost.record(toll);
        Some(&mut route.times)
    }

    fn find(&self, key: u64) -> Option<&Route> {
        self.lines[self.index(key)].iter().find(|route| route.worth > 0 && route.key == key)
    }

    /// The place of a route that is asked for, found or made.
    fn place(&mut self, key: u64) -> Option<&mut Route> {
        let index = self.index(key);
        let line = &mut self.lines[index];
        let at = line.iter().position(|route| route.worth > 0 && route.key == key);
        match at.or_else(|| line.iter().position(|route| route.worth == 0)) {
            Some(at) => {
                let route = &mut line[at];
                if route.worth == 0 {
                    *route = Route { key, ..Route::default() };
                }
                route.worth = (route.worth + 1).min(WORTH_MAX);
                Some(route)
            }
            None => {
                line.iter_mut().for_each(|route| route.worth -= 1);
                None
            }
        }
    }

    fn index(&self, key: u64) -> usize {
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(mixed) * self.lines.len() as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(route: u64) -> RouteKey {
        RouteKey { route, parent: 1_000_000 }
    }

    fn ms(millis: u64) -> Span {
        Span::from_millis(millis)
    }

    #[test]
    fn a_steady_route_reserves_what_it_costs() {
        let mut routes = Routes::new(64);
        (0..50).for_each(|_| {
            routes.record(key(1), ms(20));
        });
        assert_eq!(routes.reserve(key(1)), ms(20));
    }

    #[test]
    fn a_route_of_two_minds_reserves_more_than_its_mean() {
        let mut routes = Routes::new(64);
        for hit in 0..400 {
            routes.record(key(1), if hit % 4 == 0 { ms(400) } else { ms(2) });
        }
        assert!(routes.reserve(key(1)) > ms(120), "{:?}", routes.reserve(key(1)));
        assert_eq!(routes.expected(key(1)).least, Span::ZERO, "it may as well cost nothing");
    }

    #[test]
    fn only_what_is_known_costs_something_at_least() {
        let mut routes = Routes::new(64);
        (0..50).for_each(|_| _ = routes.record(key(1), ms(20)));
        assert_eq!(routes.expected(key(1)), ms(20).into());
        assert_eq!(routes.expected(key(2)).least, Span::ZERO);
    }

    #[test]
    fn a_deployment_that_changes_the_cost_is_noticed_within_a_few_requests() {
        let mut routes = Routes::new(64);
        (0..500).for_each(|_| _ = routes.record(key(1), ms(20)));
        (0..16).for_each(|_| _ = routes.record(key(1), ms(200)));
        assert!(routes.reserve(key(1)) > ms(150));
    }

    #[test]
    fn an_unseen_route_is_like_its_parent_or_like_all_and_never_cheap() {
        let mut routes = Routes::new(64);
        assert_eq!(routes.reserve(key(1)), UNKNOWN);
        (0..50).for_each(|_| _ = routes.record(RouteKey { route: 1, parent: 500 }, ms(80)));
        assert_eq!(routes.reserve(RouteKey { route: 3, parent: 500 }), ms(80));
        assert_eq!(routes.reserve(RouteKey { route: 3, parent: 700 }), ms(80));
        (0..50).for_each(|_| _ = routes.record(RouteKey { route: 2, parent: 600 }, ms(1)));
        assert_eq!(routes.reserve(RouteKey { route: 4, parent: 600 }), UNKNOWN);
    }

    #[test]
    fn made_up_paths_do_not_push_out_what_is_asked_for_all_the_time() {
        let mut routes = Routes::new(64);
        for path in 0..100_000u64 {
            routes.record(key(2_000_000 + path), ms(1));
            // Eighty made-up paths at a time are ten for each line.
            if path % 80 == 0 {
                (0..160).for_each(|ask| _ = routes.record(key(ask % 8), ms(100)));
            }
        }
        for hot in 0..8 {
            assert_eq!(routes.reserve(key(hot)), ms(100), "{hot}");
        }
    }

    #[test]
    fn a_route_nobody_asks_for_any_more_makes_room() {
        let mut routes = Routes::new(LINE);
        (0..100).for_each(|_| (0..8).for_each(|old| _ = routes.record(RouteKey { route: old, parent: old }, ms(5))));
        let new = RouteKey { route: 77, parent: 77 };
        (0..100).for_each(|_| _ = routes.record(new, ms(50)));
        assert_eq!(routes.reserve(new), ms(50));
    }

    proptest! {
        #[test]
        fn what_is_reserved_is_never_nothing_for_work_that_costs(tolls in prop::collection::vec(1u64..u64::MAX, 1..100)) {
            let mut routes = Routes::new(8);
            for toll in &tolls {
                routes.record(key(1), Span::from_nanos(*toll));
            }
            prop_assert!(!routes.reserve(key(1)).is_zero());
            prop_assert!(routes.reserve(key(2)) >= UNKNOWN);
        }
    }
}
