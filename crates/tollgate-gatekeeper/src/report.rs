//! What masters hear of decisions, and what they have to say about the next ones.

use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::fleet::Instruction;
use tollgate_core::limit::Limit;
use tollgate_core::request::Request;
use tollgate_core::time::Moment;
use tollgate_wire::smockron::IDENTIFIER_BYTES_MAX;

use crate::hash::KeyHash;
use crate::identifier::Identifier;
use crate::limiter::{Limiter, Post};
use crate::relay::{Act, Relay, Word};
use crate::seat::Seat;
use crate::ticket::{Stub, Ticket};

impl Limiter {
    /// From now on masters hear, through `relay`, of the rules that it has the names of: what is told with [`report`](Self::report), and
    /// what becomes of it.
    pub fn report_to(&mut self, relay: &Relay) {
        for post in &mut self.posts {
            post.relay = relay.place(&post.rule.name).map(|place| (relay.clone(), place));
        }
    }

    /// Tells masters what was decided about a request, once everybody who decides has decided: `ticket` is what this limiter gave
    /// for it, and `decision` is final.
    pub fn report(&self, request: &impl Request, decision: &Decision, ticket: &mut Ticket, now: Moment) {
        if decision.verdict.is_refusal() {
            return self.report_refusal(request, decision);
        }
        let held_until = if let Verdict::Hold(until) = decision.verdict { Some(until) } else { None };
        for stub in &mut ticket.stubs {
            let Some(post) = self.posts.iter().find(|post| post.table.id() == stub.table) else { continue };
            let Some((relay, rule)) = &post.relay else { continue };
            let Some(identifier) = Identifier::of(&post.rule.class, request, || relay.spare()) else {
                relay.leave_untold();
                continue;
            };
            let clear = match post.rule.limit {
                // What a budget has reserved is a guess. What it came to is told when it is known.
                Limit::Budget(_) => Moment::ZERO,
                _ => post.owed(&post.table.seat(&post.rule, stub.hash, now)),
            };
            stub.told = true;
            let note = relay.tells_about().then(|| about(request));
            let count = ticket.toll.count;
            let act = Act::Usage { hash: stub.hash, identifier, count, held_until, clear, note };
            relay.tell(Word { rule: *rule, act });
        }
    }

    fn report_refusal(&self, request: &impl Request, decision: &Decision) {
        let Some(post) = decision.rule.and_then(|place| self.posts.get(place)) else { return };
        let Some((relay, rule)) = &post.relay else { return };
        if relay.samples_refusal()
            && let Some(identifier) = Identifier::of(&post.rule.class, request, || relay.spare())
        {
            relay.tell(Word { rule: *rule, act: Act::Refusal { identifier } });
        }
    }

    /// Does as a master says with the record of `identifier` under the rule of this name. Says whether there is such a rule and such a key.
    pub fn obey(&self, rule: &str, identifier: &[u8], instruction: Instruction, now: Moment) -> bool {
        let Some(post) = self.posts.iter().find(|post| post.rule.name == rule) else { return false };
        let Some(hash) = post.hash_of_identifier(identifier) else { return false };
        let mut seat = post.table.seat(&post.rule, hash, now);
        let _held = seat.lock();
        seat.refresh();
        instruction.apply(&post.rule.limit, &mut seat);
        true
    }
}

/// How much of a path and of an agent is told.
const PATH_BYTES_MAX: usize = 128;
const AGENT_BYTES_MAX: usize = 128;

/// What a request is about: method, path and agent. Only what can be printed, so that it can be written into a log.
fn about(request: &impl Request) -> Box<[u8]> {
    let target = request.target();
    let path = target.split(|&byte| byte == b'?').next().unwrap_or_default();
    let agent = request.header("user-agent").unwrap_or(b"-");
    let parts = [(request.method(), 16), (path, PATH_BYTES_MAX), (agent, AGENT_BYTES_MAX)];
    let mut about = Vec::new();
    for (part, most) in parts {
        if !about.is_empty() {
            about.push(b' ');
        }
        about.extend(part.iter().take(most).map(|&byte| if (b' '..=b'~').contains(&byte) { byte } else { b'?' }));
    }
    about.into()
}

/// A key of fewer bytes is never too long for the wire, even if each of them is escaped and addresses are written out.
const SHORT_KEY_BYTES: u64 = IDENTIFIER_BYTES_MAX as u64 / 4;

impl Post {
    /// Where a request's key of so many bytes is by its name on the wire, if that name is cut: peers know the key by that name only.
    #[inline]
    pub(crate) fn hash_of_cut(&self, request: &impl Request, bytes: u64) -> Option<KeyHash> {
        let (relay, _) = self.relay.as_ref().filter(|_| bytes >= SHORT_KEY_BYTES)?;
        let Identifier::Long(name) = Identifier::of(&self.rule.class, request, || relay.spare())? else { return None };
        let hash = name.is_full().then(|| self.table.hasher().hash(&name));
        relay.put_back_name(name);
        hash
    }

    /// Where the key is that a peer calls by this name.
    fn hash_of_identifier(&self, identifier: &[u8]) -> Option<KeyHash> {
        if identifier.len() == IDENTIFIER_BYTES_MAX {
            return Some(self.table.hasher().hash(identifier));
        }
        let mut pieces = self.table.hasher().pieces();
        self.rule.class.write_identified(identifier, &mut pieces).then(|| pieces.finish())
    }

    /// Tells masters what became of a request that they were told of.
    pub(crate) fn tell_fate(&self, stub: &Stub, seat: &Seat<'_>, act: impl FnOnce(Moment) -> Act) {
        if stub.told
            && let Some((relay, rule)) = &self.relay
        {
            relay.tell(Word { rule: *rule, act: act(self.owed(seat)) });
        }
    }

    /// When all is paid back, as far as it is this key's own debt and not what it shares with others for want of places.
    fn owed(&self, seat: &Seat<'_>) -> Moment {
        if seat.has_slot() { self.rule.limit.clear_at(seat) } else { Moment::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use tollgate_core::band::Band;
    use tollgate_core::class::Class;
    use tollgate_core::condition::Condition;
    use tollgate_core::limit::Rate;
    use tollgate_core::path::NormalPath;
    use tollgate_core::rule::{Mode, Rule};
    use tollgate_core::time::Span;
    use tollgate_core::toll::Toll;

    use super::*;
    use crate::hash::Seed;
    use crate::limiter::Plan;
    use crate::table::table_bytes_min;

    #[derive(Default)]
    struct Anybody {
        agent: Vec<u8>,
    }

    impl Request for Anybody {
        fn client(&self) -> Option<IpAddr> {
            Some([203, 0, 113, 7].into())
        }

        fn method(&self) -> &[u8] {
            b"GET"
        }

        fn target(&self) -> &[u8] {
            b"/"
        }

        fn normal_path(&self) -> Option<&NormalPath> {
            None
        }

        fn host(&self) -> Option<&[u8]> {
            None
        }

        fn header(&self, name: &str) -> Option<&[u8]> {
            (name == "user-agent").then_some(&self.agent)
        }
    }

    /// A limiter with one request per second for each of `class`, and what it reports to.
    fn reporting(class: &str) -> (Limiter, Relay) {
        let rule = Rule {
            name: "rule".into(),
            when: Condition::default(),
            unless: None,
            class: Class::parse(class).unwrap(),
            limit: Limit::Rate(Rate::new(1, Span::from_secs(1), 5).unwrap()),
            escalation: None,
            warmup: None,
            hold_max: Span::ZERO,
            mode: Mode::Enforce,
        };
        let rules = vec![(rule.clone(), table_bytes_min(&rule))];
        let plan = Plan { rules, started: Moment::ZERO, seed: Seed::fixed(1), names_max: 1 };
        let mut limiter = Limiter::new(plan).unwrap();
        let relay = Relay::new(Box::new(["rule".to_string()]), None, false, || {});
        limiter.report_to(&relay);
        (limiter, relay)
    }

    /// What masters are told that comes back of three requests, refunded `after` they were let in, at one request per second.
    fn returned(after: Span) -> Option<u64> {
        let (limiter, relay) = reporting("ip/32");
        let now = Moment::from_millis(1);
        let toll = Toll { count: 3, cpu: Span::ZERO };
        let (decision, mut ticket) = limiter.decide(&Anybody::default(), toll, Band::Normal, now);
        limiter.report(&Anybody::default(), &decision, &mut ticket, now);
        limiter.refund(ticket, now + after);
        assert!(matches!(relay.next()?.act, Act::Usage { .. }));
        match relay.next()?.act {
            Act::Return { count, .. } => Some(count),
            act => panic!("{act:?}"),
        }
    }

    #[test]
    fn masters_get_back_what_time_has_not_paid_back() {
        assert_eq!(returned(Span::ZERO), Some(3));
        assert_eq!(returned(Span::from_millis(900)), Some(3));
        assert_eq!(returned(Span::from_millis(1_000)), Some(2));
        assert_eq!(returned(Span::from_millis(2_999)), Some(1));
        assert_eq!(returned(Span::from_millis(3_000)), None);
    }

    /// Other gates may have seen a key that this one has not: an order must find it all the same.
    #[test]
    fn masters_know_long_keys_and_delay_no_others() {
        let now = Moment::from_millis(1);
        for class in ["user-agent", "user-agent+method"] {
            let [one, other] = [b'1', b'2'].map(|last| Anybody { agent: [&[b'x'; 300][..], &[last]].concat() });
            let (limiter, relay) = reporting(class);
            let (decision, mut ticket) = limiter.decide(&one, Toll::ONE, Band::Normal, now);
            limiter.report(&one, &decision, &mut ticket, now);
            let Act::Usage { identifier, .. } = relay.next().unwrap().act else { panic!("it was let in") };
            let mut room = crate::identifier::Name::new();
            let identifier = identifier.write(&mut room);
            let (elsewhere, _relay) = reporting(class);
            let delay = Instruction::Raise { next: now + Span::from_secs(60), clear: None };
            assert!(elsewhere.obey("rule", identifier, delay, now));
            let refused = |request| elsewhere.decide(request, Toll::ONE, Band::Normal, now).0.verdict.is_refusal();
            assert_eq!((refused(&one), refused(&other)), (true, false), "{class}");
        }
    }
}
