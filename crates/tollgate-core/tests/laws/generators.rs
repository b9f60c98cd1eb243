//! Generators of rules and arrivals for the laws.

use proptest::prelude::*;
use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::decide::{Claim, decide};
use tollgate_core::decision::Decision;
use tollgate_core::escalation::{Escalation, Multiplier};
use tollgate_core::limit::{Bucket, Budget, Limit, Rate, Window};
use tollgate_core::record::PlainRecord;
use tollgate_core::rule::{Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

pub(crate) fn rule(limit: Limit) -> Rule {
    Rule::new("rule", Class::parse("ip/32").unwrap(), limit)
}

pub(crate) fn fresh(rule: &Rule) -> PlainRecord {
    PlainRecord::new(rule.words())
}

pub(crate) fn at(now: Moment) -> Situation {
    Situation { now, started: Moment::ZERO, band: Band::Normal }
}

/// One rule, one key.
pub(crate) fn ask(rule: &Rule, record: &mut PlainRecord, toll: Toll, situation: &Situation) -> Decision {
    let mut claims = [Claim::new(0, rule, record.clone())];
    let decision = decide(&mut claims, toll, situation);
    let [claim] = claims;
    *record = claim.record;
    decision
}

pub(crate) fn millis(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

/// From one per day to a billion per second.
pub(crate) fn rates() -> impl Strategy<Value = (u64, Span)> {
    prop_oneof![
        (1..5_u64).prop_map(|count| (count, Span::from_secs(86_400))),
        (1..2_000_u64).prop_map(|count| (count, Span::from_secs(1))),
        (1..1_000_u64).prop_map(|count| (count, Span::from_secs(60))),
        (1..=1_000_000_000_u64).prop_map(|count| (count, Span::from_secs(1))),
        Just((1_000_000_000, Span::from_secs(1))),
        Just((999_999_937, Span::from_secs(1))),
    ]
}

pub(crate) fn rate_limits() -> impl Strategy<Value = Rate> {
    (rates(), 1..50_u64).prop_map(|((count, period), burst)| Rate::new(count, period, burst).unwrap())
}

pub(crate) fn buckets() -> impl Strategy<Value = Bucket> {
    let every = prop_oneof![
        Just(Span::from_nanos(1)),
        (1..5_000_u64).prop_map(Span::from_millis),
        (1..2_000_000_000_u64).prop_map(Span::from_nanos),
        Just(Span::from_secs(86_400)),
    ];
    (1..100_u32, prop_oneof![Just(1_u32), Just(2), Just(5), 1..200_u32], every)
        .prop_map(|(size, drip, every)| Bucket::new(size, drip, every).unwrap())
}

pub(crate) fn budgets() -> impl Strategy<Value = Budget> {
    (1..8_000_000_u32, 1..60_000_u64)
        .prop_map(|(millionths, burst)| Budget::new(millionths, Span::from_millis(burst)).unwrap())
}

pub(crate) fn windows() -> impl Strategy<Value = Window> {
    (1..12_u32, 1..20_000_u64, proptest::option::of(0..10_u32))
        .prop_map(|(max, per, above)| Window::new(max, Span::from_millis(per), above.map(|above| max + above)).unwrap())
}

pub(crate) fn limits() -> impl Strategy<Value = Limit> {
    prop_oneof![
        rate_limits().prop_map(Limit::Rate),
        buckets().prop_map(Limit::Bucket),
        budgets().prop_map(Limit::Budget),
        windows().prop_map(Limit::Window),
    ]
}

pub(crate) fn escalations() -> impl Strategy<Value = Escalation> {
    (1..5_000_u64, 0..60_000_u64, 1..12_u8, 1..60_000_u64).prop_map(|(backoff, more, levels, release)| {
        let backoffs = (Span::from_millis(backoff), Span::from_millis(backoff + more));
        let multipliers = (Multiplier::new(2_000).unwrap(), Multiplier::new(4_000).unwrap());
        Escalation::new(backoffs, levels, Span::from_millis(release), multipliers).unwrap()
    })
}

pub(crate) fn rules() -> impl Strategy<Value = Rule> {
    (limits(), proptest::option::of(escalations()), prop_oneof![Just(0_u64), 0..5_000_u64])
        .prop_map(|(limit, escalation, hold)| Rule { escalation, hold_max: Span::from_millis(hold), ..rule(limit) })
}

/// Gaps between arrivals, from zero to far beyond any limit's memory, and the toll of each.
pub(crate) fn arrivals() -> impl Strategy<Value = Vec<(Span, Toll)>> {
    let gap = prop_oneof![
        4 => Just(0_u64),
        4 => 0..1_000_000_000_u64,
        2 => 0..60_000_000_000_u64,
        1 => 0..400_000_000_000_000_u64,
    ];
    let toll = (prop_oneof![8 => Just(1_u64), 1 => 0..5_u64], 0..3_000_u64)
        .prop_map(|(count, cpu)| Toll { count, cpu: Span::from_millis(cpu) });
    prop::collection::vec((gap.prop_map(Span::from_nanos), toll), 1..80)
}

/// These arrivals, followed by more at once than any burst allows, so that refusals occur.
pub(crate) fn and_a_storm(arrivals: Vec<(Span, Toll)>) -> impl Iterator<Item = (Span, Toll)> {
    let storm = (Span::ZERO, Toll::of_cpu(Span::from_secs(1)));
    arrivals.into_iter().chain(core::iter::repeat_n(storm, 120))
}

pub(crate) fn bands() -> impl Strategy<Value = Band> {
    prop_oneof![Just(Band::Normal), Just(Band::Elevated), Just(Band::Critical)]
}
