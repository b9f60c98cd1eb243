//! Refunds, however late, never allow more than the limit.
//!
//! The law applies to forwarded requests: of those that were not refunded, a rate forwards at most `burst +
//! rate * T` in any time T. A held request is forwarded at the end of its hold.

use proptest::prelude::*;
use tollgate_core::decision::Verdict;
use tollgate_core::limit::{Bucket, Budget, Limit, Rate, Window};
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::limiter::Limiter;
use tollgate_gatekeeper::ticket::Ticket;

use crate::fixtures::*;

const START: Moment = Moment::from_millis(1_000_000);

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(Toll),
    /// A pending request, by its index modulo their number, is not forwarded.
    Refund(usize),
    /// A pending request has ended at this percentage of its reserved cost.
    Settle(usize, u64),
}

/// An admitted request.
struct Admitted {
    forwarded_at: Moment,
    toll: Toll,
    is_refunded: bool,
}

fn steps() -> impl Strategy<Value = Vec<(Span, Step)>> {
    let gap = prop_oneof![
        4 => Just(0_u64),
        4 => 0..500_000_000_u64,
        2 => (0..30_u64).prop_map(|tenths| tenths * 100_000_000),
        1 => 0..20_000_000_000_u64,
    ];
    let toll = (prop_oneof![8 => Just(1_u64), 1 => 1..4_u64], prop_oneof![Just(500_u64), 1..2_000_u64])
        .prop_map(|(count, cpu)| Toll { count, cpu: Span::from_millis(cpu) });
    let step = prop_oneof![
        6 => toll.prop_map(Step::Ask),
        4 => (0..64_usize).prop_map(Step::Refund),
        1 => (0..64_usize, 0..100_u64).prop_map(|(which, hundredths)| Step::Settle(which, hundredths)),
    ];
    prop::collection::vec((gap.prop_map(Span::from_nanos), step), 1..120)
}

/// The requests that a rule admits if they are forwarded, refunded and settled according to `steps`.
fn admitted(rule: Rule, steps: Vec<(Span, Step)>) -> Vec<Admitted> {
    let limiter = limiter(vec![rule], 1);
    let (mut admitted, mut pending): (Vec<Admitted>, Vec<(usize, Ticket<1>)>) = Default::default();
    let mut now = START;
    for (gap, step) in steps {
        now = now + gap;
        match step {
            Step::Ask(toll) => {
                let (verdict, ticket) = ask(&limiter, "key", toll, now);
                let forwarded_at = match verdict {
                    Verdict::Admit => now,
                    Verdict::Hold(until) => until,
                    _ => continue,
                };
                pending.push((admitted.len(), ticket));
                admitted.push(Admitted { forwarded_at, toll, is_refunded: false });
            }
            Step::Refund(which) if !pending.is_empty() => {
                let (request, ticket) = pending.swap_remove(which % pending.len());
                admitted[request].is_refunded = true;
                limiter.refund(ticket, now);
            }
            Step::Settle(which, hundredths) if !pending.is_empty() => {
                let which = which % pending.len();
                if admitted[pending[which].0].forwarded_at > now {
                    // It is still held, so it cannot have ended.
                    continue;
                }
                let (request, ticket) = pending.swap_remove(which);
                let toll = &mut admitted[request].toll;
                toll.cpu = Span::from_nanos(toll.cpu.as_nanos() / 100 * hundredths);
                limiter.settle(ticket, *toll, now);
            }
            Step::Refund(_) | Step::Settle(..) => {}
        }
    }
    admitted.retain(|request| !request.is_refunded);
    admitted.sort_by_key(|request| request.forwarded_at);
    admitted
}

/// Checks that no stretch of time between two forwarded requests contains more than `most` of its length.
fn assert_bounded(forwarded: &[Admitted], measure: impl Fn(&Admitted) -> u64, most: impl Fn(Span) -> u128) {
    for (first, from) in forwarded.iter().enumerate() {
        let mut sum = 0_u128;
        for to in &forwarded[first..] {
            sum += u128::from(measure(to));
            let span = to.forwarded_at.since(from.forwarded_at);
            assert!(sum <= most(span), "{sum} in {span:?}, of {}", most(span));
        }
    }
}

fn holds() -> impl Strategy<Value = Span> {
    prop_oneof![Just(Span::ZERO), (0..10_000_u64).prop_map(Span::from_millis)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_rate_forwards_at_most_burst_and_rate(count in 1..20_u64, burst in 1..8_u64, hold_max in holds(), steps in steps()) {
        let limit = Limit::Rate(Rate::new(count, Span::from_secs(3), burst).unwrap());
        let forwarded = admitted(Rule { hold_max, ..rule("rate", "identifier", limit) }, steps);
        assert_bounded(&forwarded, |request| request.toll.count, |span| {
            // Times are whole nanoseconds: a held request may be forwarded late by less than one, never
            // early.
            u128::from(burst) + u128::from(span.as_nanos() + 1) * u128::from(count) / 3_000_000_000
        });
    }

    #[test]
    fn a_bucket_forwards_at_most_its_size_and_the_drips(
        size in 1..8_u32, drip in 1..5_u32, every in 1..3_000_u64, hold_max in holds(), steps in steps(),
    ) {
        let every = Span::from_millis(every);
        let limit = Limit::Bucket(Bucket::new(size, drip, every).unwrap());
        let forwarded = admitted(Rule { hold_max, ..rule("bucket", "identifier", limit) }, steps);
        assert_bounded(&forwarded, |request| request.toll.count, |span| {
            let drips = span.as_nanos() / every.as_nanos() + u64::from(drip > 1);
            u128::from(size) + u128::from(drip) * u128::from(drips)
        });
    }

    #[test]
    fn a_window_forwards_at_most_its_most(max in 1..6_u32, per in 1..5_000_u64, hold_max in holds(), steps in steps()) {
        let per = Span::from_millis(per);
        let limit = Limit::Window(Window::new(max, per, None).unwrap());
        let forwarded = admitted(Rule { hold_max, ..rule("window", "identifier", limit) }, steps);
        assert_bounded(&forwarded, |request| request.toll.count, |span| {
            if span < per { u128::from(max) } else { u128::MAX }
        });
    }

    /// The cost of a request is known when it ends, so the last one may exceed the budget by any amount.
    /// While requests are held, the unused cost of others forwards the next ones earlier, by up to the
    /// longest hold.
    #[test]
    fn a_budget_spends_at_most_burst_and_share(share in 1..2_000_000_u32, burst in 1..4_000_u64, hold_max in holds(), steps in steps()) {
        let burst = Span::from_millis(burst);
        let limit = Limit::Budget(Budget::new(share, burst).unwrap());
        let forwarded = admitted(Rule { hold_max, ..rule("budget", "identifier", limit) }, steps);
        for (first, from) in forwarded.iter().enumerate() {
            let mut sum = 0;
            for to in &forwarded[first..] {
                let earned = to.forwarded_at.since(from.forwarded_at) + hold_max;
                let earned = u128::from(earned.as_nanos()) * u128::from(share) / 1_000_000;
                prop_assert!(sum <= u128::from(burst.as_nanos()) + earned + 1);
                sum += u128::from(to.toll.cpu.as_nanos());
            }
        }
    }
}

/// Sends this many requests at once and returns the admitted ones.
fn let_in(limiter: &Limiter, tries: usize, now: Moment) -> Vec<Ticket<1>> {
    let answers = (0..tries).map(|_| ask(limiter, "key", Toll::of_cpu(Span::from_secs(1)), now));
    answers.filter(|(verdict, _)| *verdict == Verdict::Admit).map(|(_, ticket)| ticket).collect()
}

/// One request per second is parked for 12 seconds; then all of them are cancelled.
#[test]
fn cancelled_requests_make_no_room_for_a_burst() {
    let second = Span::from_secs(1);
    let limits = [
        rate(1, 1, 2),
        Limit::Bucket(Bucket::new(2, 1, second).unwrap()),
        Limit::Bucket(Bucket::new(4, 2, Span::from_secs(2)).unwrap()),
        Limit::Budget(Budget::new(1_000_000, Span::from_secs(2)).unwrap()),
        Limit::Window(Window::new(2, Span::from_secs(2), None).unwrap()),
    ];
    for limit in limits {
        let limiter = one(limit, 1);
        let mut parked: Vec<_> = (0..12).flat_map(|after| let_in(&limiter, 4, START + second.times(after))).collect();
        assert!(parked.len() >= 12, "{limit:?}");
        let now = START + second.times(12);
        let mut admitted = Vec::new();
        for ticket in parked.drain(..parked.len() - 4) {
            limiter.refund(ticket, now);
            admitted.extend(let_in(&limiter, 1, now));
        }
        assert!(admitted.len() <= 4, "{} at once by {limit:?}", admitted.len());
    }
}

#[test]
fn a_window_refunds_the_requests_own_entry() {
    let limiter = one(Limit::Window(Window::new(2, Span::from_secs(10), None).unwrap()), 1);
    let at = |secs| START + Span::from_secs(secs);
    let first = let_in(&limiter, 1, at(0)).remove(0);
    let _second = let_in(&limiter, 1, at(5));
    limiter.refund(first, at(6));
    assert_eq!(let_in(&limiter, 5, at(6)).len(), 1);
    // Those of 5 s and 6 s are in the window until 15 s and 16 s.
    assert_eq!(let_in(&limiter, 5, at(14)).len(), 0);
    assert_eq!(let_in(&limiter, 5, at(15)).len(), 1);
}

/// Two rules: the first has a long memory, the second refuses immediately.
#[test]
fn an_immediate_refund_returns_the_full_charge() {
    for limit in
        [rate(1, 60, 2), bucket(2), budget(1_000), Limit::Window(Window::new(2, Span::from_secs(60), None).unwrap())]
    {
        let limiter = one(limit, 1);
        for _ in 0..20 {
            let ticket = let_in(&limiter, 1, START).pop().unwrap();
            limiter.refund(ticket, START);
        }
        assert_eq!(let_in(&limiter, 1, START).len(), 1, "{limit:?}");
    }
}
