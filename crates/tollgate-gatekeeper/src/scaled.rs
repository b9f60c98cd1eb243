//! A limiter with scaled limits that shares the state of another. The HTTP door uses it for callers that send a factor
//! with their requests: 2 halves the limits, 0.5 doubles them.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tollgate_core::limit::{Factor, Limit, LimitError};
use tollgate_core::rule::Rule;

use crate::limiter::{ActiveRule, Limiter};

impl Limiter {
    /// A limiter with the same rules, scaled by `factor`, and the same tables, so that a key has one state for all
    /// factors. Both limiters can be used at the same time, and either can settle the tickets of the other. A ticket
    /// must be refunded by the limiter that created it, because the other would return another amount. Budgets are not
    /// scaled: the caller scales the CPU time of its requests with [`Factor::cost`], which has the same effect for any
    /// factor. A window without a ceiling is not widened, because its log has a fixed size.
    pub fn scaled(&self, factor: Factor) -> Result<Self, LimitError> {
        let scale = |active: &ActiveRule| {
            let limit = scaled_in_place(&active.rule.limit, factor)?;
            let scaled = ActiveRule::new(Rule { limit, ..active.rule.clone() }, Arc::clone(&active.table));
            Ok(ActiveRule { relay: active.relay.clone(), ..scaled })
        };
        let rules = self.rules.iter().map(scale).collect::<Result<_, _>>()?;
        let (rule_names, names) = (self.rule_names.clone(), Arc::clone(&self.names));
        Ok(Self { rules, rule_names, started: self.started, names, rules_skipped: AtomicU64::new(0) })
    }
}

/// The scaled limit, if its records have the size of those of `limit`; otherwise `limit`.
fn scaled_in_place(limit: &Limit, factor: Factor) -> Result<Limit, LimitError> {
    if matches!(limit, Limit::Budget(_)) {
        return Ok(*limit);
    }
    let scaled = limit.scaled(factor)?;
    let fits = scaled.words() == limit.words() && (limit.uses_aux() || !scaled.uses_aux());
    Ok(if fits { scaled } else { *limit })
}

#[cfg(all(test, not(tollgate_model)))]
mod tests {
    use tollgate_core::band::Band;
    use tollgate_core::class::Class;
    use tollgate_core::limit::{Bucket, Window};
    use tollgate_core::time::{Moment, Span};
    use tollgate_core::toll::Toll;

    use super::*;
    use crate::hash::Seed;
    use crate::limiter::Plan;

    fn limiter(limit: Limit) -> Limiter {
        let rule = Rule::new("one", Class::parse("identifier").unwrap(), limit);
        Limiter::new(Plan { rules: vec![(rule, 1 << 16)], started: Moment::ZERO, seed: Seed::fixed(1), names_max: 0 })
            .unwrap()
    }

    fn admitted(limiter: &Limiter, tries: usize) -> usize {
        let now = || Moment::from_millis(1_000);
        let admits = |_: &usize| {
            let (verdict, _ticket) = limiter.decide_key(0, b"u1", Toll::ONE, Band::Normal, now).unwrap();
            !verdict.is_refusal()
        };
        (0..tries).filter(admits).count()
    }

    #[test]
    fn half_the_factor_allows_twice_as_much_in_the_same_bucket() {
        let usual = limiter(Limit::Bucket(Bucket::new(10, 1, Span::from_secs(60)).unwrap()));
        let half = usual.scaled(Factor::new(500).unwrap()).unwrap();
        assert_eq!(admitted(&usual, 20), 10);
        // Ten minutes of debt are the twenty requests of a bucket that leaks every 30 s.
        assert_eq!(admitted(&half, 30), 0);
        let fresh = limiter(Limit::Bucket(Bucket::new(10, 1, Span::from_secs(60)).unwrap()));
        assert_eq!(admitted(&fresh.scaled(Factor::new(500).unwrap()).unwrap(), 30), 20);
        assert_eq!(admitted(&fresh, 1), 0);
    }

    #[test]
    fn a_window_is_tightened_but_not_widened_beyond_its_log() {
        let usual = limiter(Limit::Window(Window::new(5, Span::from_secs(10), Some(20)).unwrap()));
        assert_eq!(admitted(&usual.scaled(Factor::new(100).unwrap()).unwrap(), 30), 20);
        let bare = limiter(Limit::Window(Window::new(5, Span::from_secs(10), None).unwrap()));
        assert_eq!(admitted(&bare.scaled(Factor::new(100).unwrap()).unwrap(), 30), 5);
    }
}
