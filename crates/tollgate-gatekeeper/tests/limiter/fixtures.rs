//! Rules, callers and limiters for the tests.

use std::net::IpAddr;

use proptest::prelude::*;
use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::decision::Verdict;
use tollgate_core::limit::{Bucket, Budget, InFlight, Limit, Rate, Window};
use tollgate_core::request::Request;
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::{Limiter, Plan};
use tollgate_gatekeeper::table::table_bytes_min;
use tollgate_gatekeeper::ticket::Ticket;

/// A caller with a name and an address.
pub(crate) struct Caller<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: [u8; 4],
}

impl Request for Caller<'_> {
    fn client(&self) -> Option<IpAddr> {
        Some(self.address.into())
    }

    fn method(&self) -> &[u8] {
        b"GET"
    }

    fn target(&self) -> &[u8] {
        b"/"
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        (name == "identifier").then_some(self.name.as_bytes())
    }
}

pub(crate) fn rule(name: &str, class: &str, limit: Limit) -> Rule {
    Rule::new(name, Class::parse(class).unwrap(), limit)
}

pub(crate) fn rate(count: u64, period_s: u64, burst: u64) -> Limit {
    Limit::Rate(Rate::new(count, Span::from_secs(period_s), burst).unwrap())
}

pub(crate) fn bucket(size: u32) -> Limit {
    Limit::Bucket(Bucket::new(size, 1, Span::from_secs(86_400)).unwrap())
}

pub(crate) fn in_flight(max: u32) -> Limit {
    Limit::InFlight(InFlight::new(max).unwrap())
}

pub(crate) fn budget(burst_ms: u64) -> Limit {
    Limit::Budget(Budget::new(100_000, Span::from_millis(burst_ms)).unwrap())
}

/// A limiter whose tables have `lines` rows each.
pub(crate) fn limiter(rules: Vec<Rule>, lines: usize) -> Limiter {
    Limiter::new(plan(rules, lines)).unwrap()
}

pub(crate) fn plan(rules: Vec<Rule>, lines: usize) -> Plan {
    let sized = rules.into_iter().map(|rule| (rule.clone(), lines * table_bytes_min(&rule))).collect();
    Plan { rules: sized, started: Moment::ZERO, seed: Seed::fixed(7), names_max: 64 }
}

/// A limiter with one rule.
pub(crate) fn one(limit: Limit, lines: usize) -> Limiter {
    limiter(vec![rule("one", "identifier", limit)], lines)
}

/// Asks the only rule.
pub(crate) fn ask(limiter: &Limiter, key: impl AsRef<[u8]>, toll: Toll, now: Moment) -> (Verdict, Ticket<1>) {
    limiter.decide_key(0, key.as_ref(), toll, Band::Normal, || now).unwrap()
}

/// Asks the only rule about one request, and drops the ticket.
pub(crate) fn admits(limiter: &Limiter, key: impl AsRef<[u8]>, now: Moment) -> bool {
    !ask(limiter, key, Toll::ONE, now).0.is_refusal()
}

/// Limits with debt, at rates that match those of [`arrivals`].
pub(crate) fn debts() -> impl Strategy<Value = Limit> {
    let millis = |millis: u64| Span::from_millis(millis);
    prop_oneof![
        (1..50_u64, 1..20_u64)
            .prop_map(move |(count, burst)| { Limit::Rate(Rate::new(count, Span::from_secs(1), burst).unwrap()) }),
        (1..20_u32, 1..6_u32, 1..500_u64)
            .prop_map(move |(size, drip, every)| Limit::Bucket(Bucket::new(size, drip, millis(every)).unwrap())),
        (1..2_000_000_u32, 1..200_u64)
            .prop_map(move |(share, burst)| Limit::Budget(Budget::new(share, millis(burst)).unwrap())),
        (1..6_u32, 1..2_000_u64)
            .prop_map(move |(max, per)| Limit::Window(Window::new(max, millis(per), None).unwrap())),
    ]
}

/// Keys with the time since the previous arrival, and the toll.
pub(crate) fn arrivals(keys: u8) -> impl Strategy<Value = Vec<(u8, Span, Toll)>> {
    let gap = prop_oneof![6 => Just(0_u64), 3 => 0..30_u64, 1 => 0..1_000_u64].prop_map(Span::from_millis);
    let cpu = (0..100_u64).prop_map(|cpu| Toll::of_cpu(Span::from_millis(cpu)));
    prop::collection::vec((0..keys, gap, cpu), 1..300)
}
