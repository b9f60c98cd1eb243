//! The price of a request: its expected cost in CPU time, predicted from its route.
//!
//! The cost is known when the backend has finished, but a hundred requests can be sent before that. So the queue
//! charges the price when it dispatches a request, and corrects it afterwards. An unseen route is priced like the
//! expensive requests of its parent path, or of all routes: a client that invents paths finds none that is free.
//!
//! Clients invent paths faster than they visit them, so the table is bounded. A newcomer to a full line wears down the
//! routes in it and takes over a slot that is worn out. Routes in constant use stay, and a thousand paths requested
//! once do not evict them.

use super::knee::Usual;
use super::learned::LearnedPrice;
use super::ledger::{LINE, line_of};
use crate::time::Span;
use alloc::vec;
use alloc::vec::Vec;

/// Newcomers that it takes to evict a route in constant use.
const WORTH_MAX: u8 = 64;
/// Requests of a route that its mean remembers.
const MEMORY: u64 = 8;
/// Requests of a route that its usual cost remembers.
const USUAL_MEMORY: u64 = 64;
/// The price before anything is known. Low, so that the first burst of a new gate is not taken for a crawler's.
const UNKNOWN: Span = Span::from_millis(5);

/// A request that costs this many times the mean of its route shows that the price is not settled.
const SURPRISE: u64 = 4;
/// A surprise is forgotten when more than this many requests of its route have ended at a usual cost, for each one in
/// flight that exceeds the price.
const USUAL_PER_OVERRUN: u32 = 2;
/// A restored price was wrong if the first cost differs from it by more than this factor, and all are dropped if so
/// many more were wrong than right.
const WRONG: u64 = 8;
const WRONG_MAX: i32 = 4;

/// Requests that it takes to know how long a route takes in calm, and requests that are remembered. While heavy clients
/// wait for that, few are better than an exact time.
const CALM_SAMPLES_MIN: i32 = 3;
const CALM_MEMORY: i32 = 64;

/// Identifies a request's route: keyed hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteKey {
    /// Of method and route.
    pub route: u64,
    /// Of method and parent path.
    pub parent: u64,
}

/// The expected cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    /// The mean cost of the last few requests like it.
    pub mean: Span,
    /// The mean cost of many requests like it: what a number of them will cost together.
    pub usual: Span,
    /// The mean, or more while a request of its route in flight exceeds it.
    pub estimate: Span,
    /// Whether a request of its route has ended.
    pub is_seen: bool,
    /// Whether a request of its route has ended, and none in flight exceeds the price by far.
    pub is_settled: bool,
    /// Whether nothing is known about its route: no request has ended, and none in flight exceeds the price.
    pub is_unseen: bool,
}

/// The mean of some costs and their mean deviation from it.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    mean: Span,
    usual: Span,
    deviation: Span,
    /// The largest of late: it decays by a 64th with every request.
    most: Span,
    seen: u64,
}

impl Cost {
    fn record(&mut self, toll: Span) {
        self.seen = (self.seen + 1).min(USUAL_MEMORY);
        let recent = self.seen.min(MEMORY);
        let deviation = Span::from_nanos(self.mean.as_nanos().abs_diff(toll.as_nanos()));
        self.deviation = if self.seen > 1 { toward(self.deviation, deviation, recent) } else { Span::ZERO };
        self.mean = toward(self.mean, toll, recent);
        self.usual = toward(self.usual, toll, self.seen);
        self.most = toll.max(toward(self.most, Span::ZERO, USUAL_MEMORY));
    }

    /// From this cost on, a request is a surprise: it shows that the price is not settled. Where costs vary, a request
    /// that costs many times the mean is none, unless it costs twice the largest of late.
    fn surprise(&self) -> Span {
        self.mean.times(SURPRISE).max(self.most.times(2))
    }

    /// Whether anything is known: measured, or restored. The first measurement replaces a restored mean.
    const fn is_known(&self) -> bool {
        self.seen > 0 || !self.mean.is_zero()
    }

    const fn is_restored(&self) -> bool {
        self.seen == 0 && !self.mean.is_zero()
    }
}

fn toward(from: Span, to: Span, parts: u64) -> Span {
    let (from, to) = (from.as_nanos(), to.as_nanos());
    Span::from_nanos(if to >= from { from + (to - from) / parts } else { from - (from - to) / parts })
}

/// The mean time of the last few requests, with one more.
pub(super) fn recent_mean(mean: Option<Span>, wall: Span) -> Span {
    mean.map_or(wall, |mean| toward(mean, wall, MEMORY))
}

/// How long a route's requests take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// How long they take alone, by each candidate of the regression.
    pub(super) usual: Usual,
    /// The mean time of requests while nothing waits, as a logarithm, and how many it is the mean of.
    calm: i32,
    calm_samples: i32,
}

impl Times {
    /// A request of a client behind its share took `took` while nothing waits, as a logarithm.
    pub(super) fn record_calm(&mut self, took: i32) {
        self.calm_samples = (self.calm_samples + 1).min(CALM_MEMORY);
        self.calm += (took - self.calm) / self.calm_samples;
    }

    /// How much longer than in calm a request takes, as a logarithm, if that is known.
    pub(super) fn longer_than_calm(&self, took: i32) -> Option<i32> {
        (self.calm_samples >= CALM_SAMPLES_MIN).then_some(took - self.calm)
    }
}

/// One route.
#[derive(Clone, Copy, Debug, Default)]
struct Route {
    key: u64,
    /// Newcomers that it takes until this slot is free; free at zero.
    worth: u8,
    cost: Cost,
    /// The largest estimate of requests in flight that exceed the price, and how many those are. A surprising estimate
    /// counts until most requests end at a usual cost ([`USUAL_PER_OVERRUN`]).
    raised: Span,
    overruns: u32,
    /// How many requests have ended at a usual cost since a surprising estimate was recorded.
    usual_ends: u32,
    times: Times,
}

/// Prices of all routes.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    lines: Vec<[Route; LINE]>,
    all: Cost,
    /// How many more restored prices were wrong than right.
    wrong: i32,
}

impl Prices {
    /// A table with slots for at least this many routes.
    pub(super) fn new(routes: usize) -> Self {
        let lines = vec![[Route::default(); LINE]; routes.div_ceil(LINE).max(1)];
        Self { lines, all: Cost::default(), wrong: 0 }
    }

    /// The price of a request.
    pub(super) fn price(&self, key: RouteKey) -> Price {
        let route = self.find(key.route);
        let cost = route.map(|route| route.cost).unwrap_or_default();
        let raised = route.filter(|route| route.overruns > 0).map_or(Span::ZERO, |route| route.raised);
        let is_seen = cost.seen > 0;
        let mean = if cost.is_known() { cost.mean } else { self.unseen(key.parent) };
        Price {
            mean,
            usual: if is_seen { cost.usual } else { mean },
            estimate: mean.max(raised),
            is_seen,
            is_unseen: !is_seen && raised.is_zero(),
            is_settled: is_seen && (raised.is_zero() || raised < cost.surprise()),
        }
    }

    /// The price of an unseen route: the mean plus deviation of its parent path, or of all requests.
    fn unseen(&self, parent: u64) -> Span {
        let alike = self.find(parent).map(|parent| parent.cost).filter(Cost::is_known).unwrap_or(self.all);
        if alike.is_known() { alike.mean + alike.deviation } else { UNKNOWN }
    }

    /// A request in flight exceeds the price, for the first time if `is_new`, and will cost `estimate` or more. Returns
    /// whether that shows that the price is not settled.
    pub(super) fn raise(&mut self, key: RouteKey, estimate: Span, is_new: bool) -> bool {
        let Some(route) = self.slot(key.route) else { return true };
        route.overruns += u32::from(is_new);
        route.raised = route.raised.max(estimate);
        estimate >= route.cost.surprise()
    }

    /// A request that exceeded the price is not in flight any more.
    pub(super) fn lower(&mut self, key: RouteKey) {
        if let Some(route) = self.slot(key.route) {
            route.overruns = route.overruns.saturating_sub(1);
            if route.overruns == 0 {
                (route.raised, route.usual_ends) = (Span::ZERO, 0);
            }
        }
    }

    /// A request has cost `toll`. Returns the times of its route, if it has a slot.
    pub(super) fn record(&mut self, key: RouteKey, toll: Span) -> Option<&mut Times> {
        self.all.record(toll);
        self.judge_restored(key.route, toll);
        if let Some(parent) = self.slot(key.parent) {
            parent.cost.record(toll);
        }
        let route = self.slot(key.route)?;
        // One long request shows nothing about the others. But the first of many to end are the cheap ones.
        let surprise = route.cost.surprise();
        if toll < surprise && route.raised >= surprise {
            route.usual_ends += 1;
            if route.usual_ends > route.overruns * USUAL_PER_OVERRUN {
                (route.raised, route.usual_ends) = (Span::ZERO, 0);
            }
        }
        route.cost.record(toll);
        Some(&mut route.times)
    }

    /// Counts whether the restored price of a route was right, and drops the others if too many were not.
    fn judge_restored(&mut self, key: u64, toll: Span) {
        let Some(Cost { mean, .. }) = self.find(key).map(|route| route.cost).filter(Cost::is_restored) else { return };
        let is_wrong = mean.min(toll).times(WRONG) < mean.max(toll);
        self.wrong = (self.wrong + if is_wrong { 1 } else { -1 }).max(-WRONG_MAX);
        if self.wrong >= WRONG_MAX {
            let restored = self.lines.iter_mut().flatten().filter(|route| route.cost.is_restored());
            restored.for_each(|route| *route = Route::default());
        }
    }

    /// Prices each route by the turns of its requests, because they turned out to be served one after another. The
    /// tolls so far include time in which others were served.
    pub(super) fn follow_turns(&mut self) {
        self.all = Cost::default();
        for route in self.lines.iter_mut().flatten() {
            let turn = route.times.usual.turn();
            let cost = |mean| Cost { mean, usual: mean, most: mean, deviation: Span::ZERO, seen: 1 };
            route.cost = turn.map(cost).unwrap_or_default();
        }
    }

    /// The prices of routes and parent paths.
    pub(super) fn learned(&self) -> Vec<LearnedPrice> {
        let known = self.lines.iter().flatten().filter(|route| route.worth > 0 && route.cost.is_known());
        let price = |&Route { key, cost: Cost { mean, deviation, .. }, .. }| LearnedPrice { key, mean, deviation };
        known.map(price).collect()
    }

    /// Keeps a price until the first request of its route ends. Any new route takes its slot.
    pub(super) fn restore(&mut self, LearnedPrice { key, mean, deviation }: LearnedPrice) {
        let index = line_of(key, self.lines.len());
        let is_new = self.find(key).is_none();
        if let Some(free) = self.lines[index].iter_mut().find(|route| route.worth == 0).filter(|_| is_new) {
            *free = Route { key, worth: 1, cost: Cost { mean, deviation, ..Cost::default() }, ..Route::default() };
        }
    }

    fn find(&self, key: u64) -> Option<&Route> {
        let line = &self.lines[line_of(key, self.lines.len())];
        line.iter().find(|route| route.worth > 0 && route.key == key)
    }

    /// The slot of a route, found or taken over.
    fn slot(&mut self, key: u64) -> Option<&mut Route> {
        let index = line_of(key, self.lines.len());
        let line = &mut self.lines[index];
        let own = line.iter().position(|route| route.worth > 0 && route.key == key);
        let Some(at) = own.or_else(|| line.iter().position(|route| route.worth == 0)) else {
            line.iter_mut().for_each(|route| route.worth -= 1);
            return None;
        };
        let route = &mut line[at];
        if route.worth == 0 {
            *route = Route { key, ..Route::default() };
        }
        route.worth = (route.worth + 1).min(WORTH_MAX);
        Some(route)
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

    fn record(prices: &mut Prices, key: RouteKey, millis: u64, times: usize) {
        (0..times).for_each(|_| _ = prices.record(key, ms(millis)));
    }

    #[test]
    fn a_steady_route_has_the_price_that_it_costs_and_is_settled_after_one() {
        let mut prices = Prices::new(64);
        assert!(!prices.price(key(1)).is_settled);
        record(&mut prices, key(1), 20, 1);
        let price = prices.price(key(1));
        assert_eq!((price.mean, price.estimate, price.is_settled, price.is_unseen), (ms(20), ms(20), true, false));
    }

    #[test]
    fn a_deployment_that_changes_the_cost_is_noticed_within_a_few_requests() {
        let mut prices = Prices::new(64);
        record(&mut prices, key(1), 20, 500);
        record(&mut prices, key(1), 200, 16);
        assert!(prices.price(key(1)).mean > ms(150));
    }

    #[test]
    fn an_unseen_route_is_priced_like_its_parent_or_like_all() {
        let mut prices = Prices::new(64);
        assert_eq!(prices.price(key(1)).mean, UNKNOWN);
        record(&mut prices, RouteKey { route: 1, parent: 500 }, 80, 50);
        for parent in [500, 700] {
            let price = prices.price(RouteKey { route: 3, parent });
            assert_eq!((price.mean, price.is_unseen, price.is_settled), (ms(80), true, false));
        }
        record(&mut prices, RouteKey { route: 2, parent: 600 }, 1, 50);
        assert_eq!(prices.price(RouteKey { route: 4, parent: 600 }).mean, ms(1));
    }

    #[test]
    fn an_overrun_raises_the_estimate_until_enough_requests_end_at_the_usual_cost() {
        let mut prices = Prices::new(64);
        record(&mut prices, key(1), 20, 8);
        prices.raise(key(1), ms(60), true);
        let price = prices.price(key(1));
        assert_eq!((price.mean, price.estimate, price.is_settled), (ms(20), ms(60), true));
        record(&mut prices, key(1), 20, 1);
        assert_eq!(prices.price(key(1)).estimate, ms(60), "no surprise, and still in flight");
        prices.raise(key(1), ms(200), true);
        assert!(!prices.price(key(1)).is_settled, "ten times the price");
        prices.lower(key(1));
        record(&mut prices, key(1), 200, 1);
        let price = prices.price(key(1));
        assert!(price.estimate == ms(200) && price.is_settled, "it has cost that, and the other is still in flight");
        prices.raise(key(1), ms(2000), false);
        record(&mut prices, key(1), 20, 2);
        assert!(!prices.price(key(1)).is_settled, "two may be the cheap ones of many");
        record(&mut prices, key(1), 20, 1);
        let price = prices.price(key(1));
        assert!(price.is_settled && price.estimate == price.mean, "the route costs what it did");
        prices.lower(key(1));
        assert_eq!(prices.price(key(1)).estimate, prices.price(key(1)).mean);
    }

    #[test]
    fn a_cost_that_the_route_had_of_late_is_no_surprise() {
        let mut prices = Prices::new(64);
        record(&mut prices, key(1), 10, 63);
        record(&mut prices, key(1), 200, 1);
        record(&mut prices, key(1), 10, 16);
        prices.raise(key(1), ms(150), true);
        assert!(prices.price(key(1)).is_settled, "more than four times the mean, but less than the largest");
        prices.raise(key(1), ms(500), true);
        let price = prices.price(key(1));
        assert!(price.is_seen && !price.is_settled, "more than twice the largest");
    }

    #[test]
    fn made_up_paths_do_not_evict_routes_in_constant_use() {
        let mut prices = Prices::new(64);
        for path in 0..100_000u64 {
            record(&mut prices, key(2_000_000 + path), 1, 1);
            // Eighty made-up paths are ten for each line.
            if path % 80 == 0 {
                (0..160).for_each(|ask| record(&mut prices, key(ask % 8), 100, 1));
            }
        }
        for hot in 0..8 {
            assert_eq!(prices.price(key(hot)).mean, ms(100), "{hot}");
        }
    }

    #[test]
    fn a_route_that_is_not_used_any_more_makes_room() {
        let mut prices = Prices::new(LINE);
        (0..100).for_each(|_| (0..8).for_each(|old| record(&mut prices, RouteKey { route: old, parent: old }, 5, 1)));
        let new = RouteKey { route: 77, parent: 77 };
        record(&mut prices, new, 50, 100);
        assert_eq!(prices.price(new).mean, ms(50));
    }

    proptest! {
        #[test]
        fn work_that_costs_something_has_a_price(tolls in prop::collection::vec(1u64..u64::MAX, 1..100)) {
            let mut prices = Prices::new(8);
            for toll in &tolls {
                prices.record(key(1), Span::from_nanos(*toll));
            }
            prop_assert!(!prices.price(key(1)).mean.is_zero());
        }
    }
}
