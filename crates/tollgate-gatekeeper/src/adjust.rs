//! Changes to the state of a key without a decision. The gRPC door uses them if Envoy returns hits, or reports a cost
//! after the request that exceeds the limit.

use tollgate_core::limit::{Charge, Limit};
use tollgate_core::request::Request;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::key_record::KeyRecord;
use crate::limiter::{Keys, Limiter};

impl Limiter {
    /// Returns `count` requests to the key of each rule that applies. Budgets and requests in flight are not changed,
    /// because they do not count requests.
    pub fn give_back(&self, request: &impl Request, count: u64, now: Moment) {
        self.adjust(request, now, |limit, record| give_back(limit, record, count, now));
    }

    /// Charges as many of `count` requests as fit to the key of each rule that applies.
    pub fn charge_rest(&self, request: &impl Request, count: u64, now: Moment) {
        self.adjust(request, now, |limit, record| charge_rest(limit, record, count, now));
    }

    /// Calls `change` with the limit and the record of each rule that applies.
    fn adjust(&self, request: &impl Request, now: Moment, change: impl Fn(&Limit, &mut KeyRecord<'_>)) {
        let mut keys = Keys::new();
        self.find_keys(|_| true, request, &mut keys);
        for &(place, hash) in &keys {
            let active = &self.rules[place];
            active.with_record(hash, now, |record| change(&active.rule.limit, record));
        }
    }
}

/// Returns `count` requests to a key, if its limit counts requests.
pub(crate) fn give_back(limit: &Limit, record: &mut KeyRecord<'_>, count: u64, now: Moment) {
    let refund = |record: &mut KeyRecord<'_>, count| {
        let charged = Charge { at: now, mark: limit.mark(record) };
        limit.refund(record, Toll { count, cpu: Span::ZERO }, charged, now);
    };
    match limit {
        // The overflow record is shared with other keys.
        _ if !record.has_slot() => {}
        Limit::Rate(_) | Limit::Bucket(_) => refund(record, count),
        // The log has one entry per request; a refund removes the newest.
        Limit::Window(_) => (0..count.min(limit.words() as u64)).for_each(|_| refund(record, 1)),
        Limit::Budget(_) | Limit::InFlight(_) => {}
    }
}

/// Charges as many of `count` requests as fit, if the limit counts requests.
pub(crate) fn charge_rest(limit: &Limit, record: &mut KeyRecord<'_>, count: u64, now: Moment) {
    let count = limit.info(record, now).remaining.min(count);
    if count > 0 && matches!(limit, Limit::Rate(_) | Limit::Bucket(_) | Limit::Window(_)) {
        limit.charge(record, Toll { count, cpu: Span::ZERO }, now);
    }
}

#[cfg(all(test, not(tollgate_model)))]
mod tests {
    use tollgate_core::band::Band;
    use tollgate_core::class::Class;
    use tollgate_core::limit::{Bucket, Rate, Window};
    use tollgate_core::rule::Rule;

    use super::*;
    use crate::builder::Identified;
    use crate::hash::Seed;
    use crate::limiter::Plan;

    const CALLER: Identified<'static> = Identified(b"caller");
    const NOW: Moment = Moment::from_millis(1_000_000);

    /// How many requests of the caller fit, at most 20.
    fn room(limiter: &Limiter) -> u64 {
        (1..=20)
            .take_while(|&count| {
                let toll = Toll { count, cpu: Span::ZERO };
                let decisions = limiter.explain(&CALLER, toll, Band::Normal, NOW);
                decisions.iter().all(|decision| !decision.verdict.is_refusal())
            })
            .count() as u64
    }

    #[test]
    fn the_rest_is_charged_and_requests_are_returned_up_to_the_limit() {
        let minute = Span::from_secs(60);
        for limit in [
            Limit::Bucket(Bucket::new(10, 10, minute).unwrap()),
            Limit::Bucket(Bucket::new(10, 1, minute).unwrap()),
            Limit::Rate(Rate::new(1, minute, 10).unwrap()),
            Limit::Window(Window::new(10, minute, None).unwrap()),
        ] {
            let rule = Rule::new("rule", Class::parse("identifier").unwrap(), limit);
            let plan = Plan { rules: vec![(rule, 1 << 16)], started: Moment::ZERO, seed: Seed::fixed(7), names_max: 1 };
            let limiter = Limiter::new(plan).unwrap();
            limiter.charge_rest(&CALLER, 6, NOW);
            assert_eq!(room(&limiter), 4, "{limit:?}");
            limiter.charge_rest(&CALLER, 6, NOW);
            assert_eq!(room(&limiter), 0, "{limit:?}");
            limiter.give_back(&CALLER, 3, NOW);
            assert_eq!(room(&limiter), 3, "{limit:?}");
            limiter.give_back(&CALLER, 1_000, NOW);
            assert_eq!(room(&limiter), 10, "{limit:?}");
        }
    }
}
