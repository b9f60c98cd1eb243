//! What the requests of each route have cost and taken so far.
//!
//! A toll is reserved before a request is sent, otherwise a hundred requests sent in one instant would all be free. What to reserve is
//! learned per route. Strangers choose paths, so the table has a fixed size, and a route that is in use is not driven out by routes that
//! are seen once: each of those only wears its place down a little.

use std::hash::{BuildHasher, RandomState};

use tollgate_core::concurrency::Times;
use tollgate_core::request::Request;
use tollgate_core::route::write_route;
use tollgate_core::time::Span;

/// How many routes are remembered.
const ROUTES_MAX: usize = 4096;
/// How firmly a route can hold its place.
const FIRM_MAX: u8 = 64;
/// What is reserved for a request before anything is known.
const GUESS: Span = Span::from_millis(50);
/// One request changes the mean by this part of the difference.
const STEP: i64 = 8;

/// A route by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouteId(u64);

/// The routes of all requests.
pub(crate) struct Routes {
    routes: Box<[Route]>,
    /// Over all routes: what is reserved for a request of a route that has not been seen.
    any: Cost,
}

#[derive(Clone, Copy, Default)]
struct Route {
    id: u64,
    firm: u8,
    cost: Cost,
    times: Times,
}

/// A mean and how far from it requests are.
#[derive(Clone, Copy, Default)]
struct Cost {
    seen: bool,
    mean_ns: i64,
    deviation_ns: i64,
}

impl Cost {
    fn learn(&mut self, toll: Span) {
        let toll_ns = i64::try_from(toll.as_nanos()).unwrap_or(i64::MAX);
        if !self.seen {
            *self = Self { seen: true, mean_ns: toll_ns, deviation_ns: 0 };
            return;
        }
        self.deviation_ns += ((toll_ns - self.mean_ns).abs() - self.deviation_ns) / STEP;
        self.mean_ns += (toll_ns - self.mean_ns) / STEP;
    }

    fn expected(&self) -> Option<Span> {
        let nanos = u64::try_from(self.mean_ns.saturating_add(self.deviation_ns)).unwrap_or(0);
        self.seen.then_some(Span::from_nanos(nanos))
    }
}

impl Routes {
    pub(crate) fn new() -> Self {
        Self { routes: vec![Route::default(); ROUTES_MAX].into_boxed_slice(), any: Cost::default() }
    }

    fn place(id: RouteId) -> usize {
        id.0 as usize % ROUTES_MAX
    }

    fn find(&self, id: RouteId) -> Option<&Route> {
        Some(&self.routes[Self::place(id)]).filter(|route| route.id == id.0 && route.firm > 0)
    }

    /// What a request of this route is expected to cost.
    pub(crate) fn expected(&self, id: RouteId) -> Span {
        self.find(id).and_then(|route| route.cost.expected()).or(self.any.expected()).unwrap_or(GUESS)
    }

    /// How the requests of this route get on with the crowd.
    pub(crate) fn times(&self, id: RouteId) -> Times {
        self.find(id).map_or_else(Times::default, |route| route.times)
    }

    /// A request of this route has cost `toll`; `learn` is shown how the route got on so far.
    pub(crate) fn learn(&mut self, id: RouteId, toll: Span, learn: impl FnOnce(&mut Times)) {
        self.any.learn(toll);
        let route = &mut self.routes[Self::place(id)];
        if route.id != id.0 && route.firm > 0 {
            route.firm -= 1;
            return learn(&mut Times::default());
        }
        if route.id != id.0 {
            *route = Route { id: id.0, ..Route::default() };
        }
        route.firm = (route.firm + 1).min(FIRM_MAX);
        route.cost.learn(toll);
        learn(&mut route.times);
    }
}

/// Finds the route of a request.
pub(crate) struct RouteHasher(RandomState);

impl RouteHasher {
    pub(crate) fn new() -> Self {
        Self(RandomState::new())
    }

    pub(crate) fn route(&self, request: &impl Request) -> RouteId {
        use std::hash::Hasher;
        let mut hasher = self.0.build_hasher();
        hasher.write(request.method());
        hasher.write_u8(b' ');
        write_route(request.path(), |piece| hasher.write(piece));
        RouteId(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(routes: &mut Routes, id: u64, ms: u64) {
        routes.learn(RouteId(id), Span::from_millis(ms), |_| {});
    }

    #[test]
    fn a_route_is_expected_to_cost_what_it_cost_and_an_unknown_one_what_all_did() {
        let mut routes = Routes::new();
        assert_eq!(routes.expected(RouteId(1)), GUESS);
        for _ in 0..100 {
            learn(&mut routes, 1, 20);
            learn(&mut routes, 2, 300);
        }
        let millis = |id| routes.expected(RouteId(id)).as_nanos() / 1_000_000;
        assert_eq!((millis(1), millis(2)), (20, 300));
        assert!((20..=400).contains(&millis(3)), "{}", millis(3));
    }

    #[test]
    fn routes_that_are_seen_once_do_not_drive_out_one_that_is_in_use() {
        let mut routes = Routes::new();
        let stride = ROUTES_MAX as u64;
        for stranger in 1..10_000 {
            learn(&mut routes, 7, 20);
            learn(&mut routes, 7 + stranger * stride, 300);
        }
        assert!(routes.expected(RouteId(7)) < Span::from_millis(30));
    }
}
