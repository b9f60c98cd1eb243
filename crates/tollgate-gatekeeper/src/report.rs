//! Reports the limiter's decisions to masters, the processes that share the state of rules between gates, and applies
//! the orders that masters send back.

use core::sync::atomic::Ordering::Relaxed;

use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::fleet::Instruction;
use tollgate_core::limit::Limit;
use tollgate_core::request::Request;
use tollgate_core::time::Moment;
use tollgate_wire::smockron::IDENTIFIER_BYTES_MAX;

use crate::hash::KeyHash;
use crate::identifier::Identifier;
use crate::key_record::KeyRecord;
use crate::limiter::{ActiveRule, Limiter};
use crate::relay::{EventKind, Relay, RelayEvent};
use crate::ticket::{TableCharge, Ticket};

impl Limiter {
    /// From now on, sends reports to `relay` for each rule that the relay has by name: the decisions that are passed to
    /// [`report`](Self::report), and their later settlements and refunds.
    pub fn report_to(&mut self, relay: &Relay) {
        for active in &mut self.rules {
            active.relay = relay.place(&active.rule.name).map(|place| (relay.clone(), place));
        }
    }

    /// Reports the final `decision` on a request. `ticket` is the one that [`decide`](Self::decide) returned for it.
    pub fn report(&self, request: &impl Request, decision: &Decision, ticket: &mut Ticket, now: Moment) {
        if decision.verdict.is_refusal() {
            return self.report_refusal(request, decision);
        }
        let held_until = if let Verdict::Hold(until) = decision.verdict { Some(until) } else { None };
        for charge in &mut ticket.charges {
            let Some(active) = self.active(charge) else { continue };
            let Some((relay, rule)) = &active.relay else { continue };
            let Some(identifier) = Identifier::of(&active.rule.class, request, || relay.spare()) else {
                relay.0.unreported.fetch_add(1, Relaxed);
                continue;
            };
            let clear = match active.rule.limit {
                // The reserved cost of a budget is a prediction. The actual cost is reported when it is
                // known.
                Limit::Budget(_) => Moment::ZERO,
                _ => active.owed(&active.table.record(&active.rule, charge.hash, now)),
            };
            charge.is_reported = true;
            let note = relay.0.log_info.then(|| describe(request));
            let count = ticket.toll.count;
            let kind = EventKind::Usage { hash: charge.hash, identifier, count, held_until, clear, note };
            relay.push(RelayEvent { rule: *rule, kind });
        }
    }

    fn report_refusal(&self, request: &impl Request, decision: &Decision) {
        let Some(active) = decision.rule.and_then(|place| self.rules.get(place)) else { return };
        let Some((relay, rule)) = &active.relay else { return };
        if relay.samples_refusal()
            && let Some(identifier) = Identifier::of(&active.rule.class, request, || relay.spare())
        {
            relay.push(RelayEvent { rule: *rule, kind: EventKind::Refusal { identifier } });
        }
    }

    /// Applies a master's order to the record of `identifier` in the rule with this name. Returns whether
    /// there is such a rule and key.
    pub fn obey(&self, rule: &str, identifier: &[u8], instruction: Instruction, now: Moment) -> bool {
        let Some(place) = self.rule_names.places(rule).next() else { return false };
        let active = &self.rules[place];
        let Some(hash) = active.hash_of_identifier(identifier) else { return false };
        active.with_record(hash, now, |record| instruction.apply(&active.rule.limit, record));
        true
    }
}

/// The maximum length of the method in a report, in bytes. The rest is omitted.
const METHOD_BYTES_MAX: usize = 16;
/// The maximum length of the path in a report, in bytes.
const PATH_BYTES_MAX: usize = 128;
/// The maximum length of the user agent in a report, in bytes.
const AGENT_BYTES_MAX: usize = 128;

/// A description of a request: method, path and user agent, in printable ASCII for logs.
fn describe(request: &impl Request) -> Box<[u8]> {
    let target = request.target();
    let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    let agent = request.header("user-agent").unwrap_or(b"-");
    let parts = [(request.method(), METHOD_BYTES_MAX), (path, PATH_BYTES_MAX), (agent, AGENT_BYTES_MAX)];
    let mut text = Vec::new();
    for (part, bytes_max) in parts {
        if !text.is_empty() {
            text.push(b' ');
        }
        text.extend(part.iter().take(bytes_max).map(|&byte| if (b' '..=b'~').contains(&byte) { byte } else { b'?' }));
    }
    text.into()
}

/// The identifier of a key with fewer bytes is never truncated, even if every byte is escaped and addresses are
/// written as text.
const SHORT_KEY_BYTES: u64 = IDENTIFIER_BYTES_MAX as u64 / 4;

impl ActiveRule {
    /// The hash of the identifier of a request's key, if the identifier is truncated. `bytes` is the length of the
    /// key. A master's order contains only the identifier, from which a truncated key cannot be restored.
    /// Long keys are therefore hashed by their identifier, whose last bytes are a digest of the truncated part.
    #[inline]
    pub(crate) fn hash_of_truncated(&self, request: &impl Request, bytes: u64) -> Option<KeyHash> {
        let (relay, _) = self.relay.as_ref().filter(|_| bytes >= SHORT_KEY_BYTES)?;
        let Identifier::Long(name) = Identifier::of(&self.rule.class, request, || relay.spare())? else { return None };
        let hash = name.is_full().then(|| self.table.hasher.hash(&name));
        relay.put_back_name(name);
        hash
    }

    /// The hash of the key with this identifier. An identifier of the maximum length is a truncated one.
    fn hash_of_identifier(&self, identifier: &[u8]) -> Option<KeyHash> {
        if identifier.len() == IDENTIFIER_BYTES_MAX {
            return Some(self.table.hasher.hash(identifier));
        }
        let mut pieces = self.table.hasher.pieces();
        self.rule.class.write_identified(identifier, &mut pieces).then(|| pieces.finish())
    }

    /// Reports the settlement or refund of a request whose admission was reported.
    pub(crate) fn report_end(
        &self,
        charge: &TableCharge,
        record: &KeyRecord<'_>,
        kind: impl FnOnce(Moment) -> EventKind,
    ) {
        if charge.is_reported
            && let Some((relay, rule)) = &self.relay
        {
            relay.push(RelayEvent { rule: *rule, kind: kind(self.owed(record)) });
        }
    }

    /// The time at which the key's own debt is paid back. A key in an overflow record shares its debt with others, so
    /// none of it is reported.
    fn owed(&self, record: &KeyRecord<'_>) -> Moment {
        if record.has_slot() { self.rule.limit.clear_at(record) } else { Moment::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use tollgate_core::band::Band;
    use tollgate_core::class::Class;
    use tollgate_core::limit::Rate;
    use tollgate_core::rule::Rule;
    use tollgate_core::time::Span;
    use tollgate_core::toll::Toll;

    use super::*;
    use crate::hash::Seed;
    use crate::limiter::Plan;
    use crate::table::table_bytes_min;

    #[derive(Default)]
    struct ReportedRequest {
        agent: Vec<u8>,
    }

    impl Request for ReportedRequest {
        fn client(&self) -> Option<IpAddr> {
            Some([203, 0, 113, 7].into())
        }

        fn method(&self) -> &[u8] {
            b"GET"
        }

        fn target(&self) -> &[u8] {
            b"/"
        }

        fn header(&self, name: &str) -> Option<&[u8]> {
            (name == "user-agent").then_some(&self.agent)
        }
    }

    /// A limiter with one request per second for each key of `class`, and its relay.
    fn reporting(class: &str) -> (Limiter, Relay) {
        let rule =
            Rule::new("rule", Class::parse(class).unwrap(), Limit::Rate(Rate::new(1, Span::from_secs(1), 5).unwrap()));
        let rules = vec![(rule.clone(), table_bytes_min(&rule))];
        let plan = Plan { rules, started: Moment::ZERO, seed: Seed::fixed(1), names_max: 1 };
        let mut limiter = Limiter::new(plan).unwrap();
        let relay = Relay::new(Box::new(["rule".to_string()]), None, false, || {});
        limiter.report_to(&relay);
        (limiter, relay)
    }

    /// Three requests are admitted together at a rate of one per second, and refunded `after` that. The number of
    /// requests that the refund reports to masters.
    fn returned(after: Span) -> Option<u64> {
        let (limiter, relay) = reporting("ip/32");
        let now = Moment::from_millis(1);
        let toll = Toll { count: 3, cpu: Span::ZERO };
        let (decision, mut ticket) = limiter.decide(&ReportedRequest::default(), toll, Band::Normal, now);
        limiter.report(&ReportedRequest::default(), &decision, &mut ticket, now);
        limiter.refund(ticket, now + after);
        assert!(matches!(relay.next()?.kind, EventKind::Usage { .. }));
        match relay.next()?.kind {
            EventKind::Return { count, .. } => Some(count),
            kind => panic!("{kind:?}"),
        }
    }

    #[test]
    fn a_refund_returns_what_is_not_paid_back_yet() {
        assert_eq!(returned(Span::ZERO), Some(3));
        assert_eq!(returned(Span::from_millis(900)), Some(3));
        assert_eq!(returned(Span::from_millis(1_000)), Some(2));
        assert_eq!(returned(Span::from_millis(2_999)), Some(1));
        assert_eq!(returned(Span::from_millis(3_000)), None);
    }

    /// Other gates may know a key that this one does not; an order must find it anyway.
    #[test]
    fn masters_delay_exactly_the_long_key() {
        let now = Moment::from_millis(1);
        for class in ["user-agent", "user-agent+method"] {
            let [one, other] = [b'1', b'2'].map(|last| ReportedRequest { agent: [&[b'x'; 300][..], &[last]].concat() });
            let (limiter, relay) = reporting(class);
            let (decision, mut ticket) = limiter.decide(&one, Toll::ONE, Band::Normal, now);
            limiter.report(&one, &decision, &mut ticket, now);
            let EventKind::Usage { identifier, .. } = relay.next().unwrap().kind else { panic!("it was let in") };
            let mut room = crate::identifier::Name::new();
            let identifier = identifier.write(&mut room);
            let (elsewhere, _relay) = reporting(class);
            let delay = Instruction { forgets: false, next: Some(now + Span::from_secs(60)), clear: None };
            assert!(elsewhere.obey("rule", identifier, delay, now));
            let refused = |request| elsewhere.decide(request, Toll::ONE, Band::Normal, now).0.verdict.is_refusal();
            assert_eq!((refused(&one), refused(&other)), (true, false), "{class}");
        }
    }
}
