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

use super::key_text::KeyText;
use super::rules::Rules;

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

    /// The decision about `request` after exemptions. If the key is exempt from the rule that decided, the strictest
    /// other rule from which it is not exempt decides instead.
    pub(crate) fn spare(&self, rules: &Rules, request: &impl Request, decision: Decision, now: Moment) -> Decision {
        if decision.verdict == Verdict::Admit || self.count() == 0 || !self.covers(rules, request, &decision, now) {
            return decision;
        }
        let mut spared = Decision { verdict: Verdict::Admit, ..decision };
        for other in rules.limiter.explain(request, Toll::ONE, decision.band, now) {
            if other.verdict != Verdict::Admit && !self.covers(rules, request, &other, now) {
                spared.tighten(other);
            }
        }
        spared
    }

    /// Whether the key is exempt from the rule that decided.
    fn covers(&self, rules: &Rules, request: &impl Request, decision: &Decision, now: Moment) -> bool {
        let Some(rule) = decision.rule.and_then(|index| rules.limiter.rule(index)) else { return false };
        let mut key = KeyText::default();
        rule.class.write_key(request, &mut key) && self.until(&rule.class.to_string(), key.as_bytes(), now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::time::Span;

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
