//! Keys that an operator has exempted from rules for some time, through the admin API.
//!
//! An exemption applies to one key and all rules of its class. Exemptions are looked up only when a rule is about to
//! hold or refuse a request. They are kept in memory only, so a restart removes them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::request::Request;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::limiter::Limiter;

use super::key_text::KeyText;
use super::remote_state::Charge;

/// The largest number of exemptions.
const EXEMPTIONS_MAX: usize = 1000;

/// All exemptions.
#[derive(Default)]
pub(crate) struct Exemptions {
    /// The size of `by_key`, so that a gate without exemptions takes no lock.
    count: AtomicUsize,
    /// The end of each exemption, by class and key. Expired ones stay until the next call of [`Self::grant`].
    by_key: Mutex<HashMap<(String, Vec<u8>), Moment>>,
}

impl Exemptions {
    /// Exempts a key until a moment. Returns false if there are too many exemptions.
    pub(crate) fn grant(&self, class: &str, key: &[u8], until: Moment, now: Moment) -> bool {
        let mut by_key = self.by_key.lock();
        by_key.retain(|_, until| *until > now);
        let exempted = (class.to_owned(), key.to_vec());
        let fits = by_key.len() < EXEMPTIONS_MAX || by_key.contains_key(&exempted);
        if fits {
            by_key.insert(exempted, until);
        }
        self.count.store(by_key.len(), Ordering::Relaxed);
        fits
    }

    /// Ends an exemption.
    pub(crate) fn end(&self, class: &str, key: &[u8]) {
        let mut by_key = self.by_key.lock();
        by_key.remove(&(class.to_owned(), key.to_vec()));
        self.count.store(by_key.len(), Ordering::Relaxed);
    }

    /// The end of the exemption of a key, if it has one that has not expired.
    pub(crate) fn until(&self, class: &str, key: &[u8], now: Moment) -> Option<Moment> {
        self.by_key.lock().get(&(class.to_owned(), key.to_vec())).copied().filter(|until| *until > now)
    }

    /// The exempt keys of a class, expired ones included.
    pub(crate) fn keys(&self, class: &str) -> Vec<Vec<u8>> {
        self.by_key.lock().keys().filter(|(of, _)| of == class).map(|(_, key)| key.clone()).collect()
    }

    /// The number of exemptions, expired ones included.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The decision of `limiter` about `request`, and its charge, after exemptions. If the key is exempt from the rule
    /// that decided, the rules from which it is not exempt decide again and charge the request, all from local state.
    pub(crate) fn spare(
        &self,
        limiter: &Limiter,
        request: &impl Request,
        toll: Toll,
        (decision, charge): (Decision, Charge),
        now: Moment,
    ) -> (Decision, Charge) {
        let is_spared = |rule| self.covers(limiter, request, rule, now);
        if decision.verdict == Verdict::Admit || !decision.rule.is_some_and(is_spared) {
            return (decision, charge);
        }
        charge.refund(limiter, now);
        let (others, ticket) = limiter.decide_among(|rule| !is_spared(rule), request, toll, decision.band, now);
        // If no other rule applies, clients still see the rule and its state.
        let decision = if others.rule.is_some() { others } else { Decision { verdict: Verdict::Admit, ..decision } };
        (decision, ticket.into())
    }

    /// Whether the key of `request` is exempt from the rule with this index.
    pub(crate) fn covers(&self, limiter: &Limiter, request: &impl Request, rule: usize, now: Moment) -> bool {
        let Some(rule) = limiter.rule(rule).filter(|rule| self.count() > 0 && rule.applies(request)) else {
            return false;
        };
        let mut key = KeyText::default();
        rule.class.write_key(request, &mut key) && self.until(&rule.class.to_string(), key.as_bytes(), now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::band::Band;
    use tollgate_core::time::Span;
    use tollgate_wire::http1::RequestHead;

    use super::super::identify::RequestView;
    use super::super::remote_state::RemoteState;
    use super::super::rules::Rules;
    use crate::settings::{Gate, Settings};

    /// The decisions and charges for four requests of an address that is exempt from a rule that holds or refuses its
    /// second request, beside the rules in `others`. The first three are settled before a fifth is admitted.
    fn decisions(hold: &str, others: &str) -> Vec<Decision> {
        let text = format!(
            "[[rule]]\nname = 'spared'\nclass = 'ip/32'\nrate = {{ rate = '1/s', burst = 1 }}\nhold = '{hold}'\n{others}"
        );
        let settings = Settings::parse("test.toml", &text).unwrap();
        let hold = Gate::default().hold;
        let rules = Rules::new(&settings.domains[0], RemoteState::default(), hold, None, Moment::ZERO).unwrap();
        let mut head = RequestHead::default();
        head.parse(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let view = RequestView::new("203.0.113.7".parse().unwrap(), &head);
        let (exemptions, now) = (Exemptions::default(), Moment::from_millis(5000));
        assert!(exemptions.grant("ip/32", b"203.0.113.7/32", now + Span::from_secs(60), now));
        let ask = || {
            let decided = rules.decide(&view, Toll::ONE, Band::Normal, now);
            exemptions.spare(&rules.limiter, &view, Toll::ONE, decided, now)
        };
        let in_flight = [ask(), ask(), ask()];
        let mut decisions: Vec<_> = in_flight.iter().map(|(decision, _)| *decision).collect();
        decisions.push(ask().0);
        in_flight.into_iter().for_each(|(_, charge)| charge.settle(&rules.limiter, Toll::ONE, now));
        assert_eq!(ask().0.verdict, Verdict::Admit);
        decisions
    }

    #[test]
    fn an_exemption_from_one_rule_leaves_the_others_in_force() {
        for hold in ["0s", "10s"] {
            let decisions = decisions(hold, "[[rule]]\nname = 'slots'\nclass = 'ip/24'\nin_flight = 3\n");
            assert!(decisions[..3].iter().all(|decision| decision.verdict == Verdict::Admit), "{hold}");
            assert_eq!((decisions[3].verdict.is_refusal(), decisions[3].rule), (true, Some(1)), "{hold}");
        }
    }

    #[test]
    fn an_exempt_key_still_sees_its_only_rule() {
        for decision in decisions("0s", "") {
            assert_eq!((decision.verdict, decision.rule), (Verdict::Admit, Some(0)));
        }
    }

    #[test]
    fn exemptions_end_and_are_bounded() {
        let (exemptions, now) = (Exemptions::default(), Moment::from_millis(5000));
        let later = now + Span::from_secs(60);
        assert!(exemptions.grant("ip/32", b"a", later, now));
        assert_eq!(exemptions.until("ip/32", b"a", now), Some(later));
        assert_eq!(exemptions.until("ip/24", b"a", now), None);
        assert_eq!(exemptions.until("ip/32", b"a", later), None);
        for number in 0..EXEMPTIONS_MAX {
            exemptions.grant("ip/32", number.to_string().as_bytes(), later, now);
        }
        assert!(!exemptions.grant("ip/32", b"one more", later, now));
        assert!(exemptions.grant("ip/32", b"a", later, now), "one that is there can be prolonged");
        assert!(exemptions.grant("ip/32", b"one more", later + Span::from_secs(1), later), "the others are over");
        exemptions.end("ip/32", b"one more");
        assert_eq!(exemptions.count(), 0);
    }
}
