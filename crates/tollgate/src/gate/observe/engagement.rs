//! An engagement: that somebody was held or refused, or would have been, and everything a person needs to see why.

use std::net::IpAddr;

use tollgate_core::band::Band;
use tollgate_core::class::KeySink;
use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::limit::Limit;
use tollgate_core::network::Network;
use tollgate_core::request::Request;
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::names::Name;
use tollgate_wire::rate_limit_headers::LimitStatus;

use crate::gate::decide::rules::Rules;

/// One engagement. It allocates nothing: most are only counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engagement<'a> {
    /// What was done, or would have been.
    pub(crate) act: Act,
    /// The rule; none for the fair queue.
    pub(crate) rule: Option<&'a str>,
    /// How callers are told apart.
    pub(crate) class: &'a str,
    /// The caller.
    pub(crate) key: Name,
    /// Why.
    pub(crate) reason: &'static str,
    /// How loaded the backend is.
    pub(crate) band: Band,
    /// What was seen of the caller.
    pub(crate) observed: u64,
    /// What it may have of that.
    pub(crate) allowed: u64,
    /// How long it has to wait.
    pub(crate) backoff: Span,
    /// The level of escalation.
    pub(crate) level: u8,
}

/// What is done to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Act {
    Hold,
    Refuse,
    WouldHold,
    WouldRefuse,
}

impl Act {
    /// Every one.
    pub(crate) const ALL: [Self; 4] = [Self::Hold, Self::Refuse, Self::WouldHold, Self::WouldRefuse];

    /// What was done to a request that was decided about so, if it did not simply pass.
    pub(crate) fn of(decision: &Decision) -> Option<Self> {
        match (decision.verdict, decision.reason) {
            (Verdict::Hold(_), _) => Some(Self::Hold),
            (verdict, _) if verdict.is_refusal() => Some(Self::Refuse),
            (_, Reason::WouldHold) => Some(Self::WouldHold),
            (_, Reason::WouldRefuse) => Some(Self::WouldRefuse),
            _ => None,
        }
    }

    /// The word that programs see.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Refuse => "refuse",
            Self::WouldHold => "would-hold",
            Self::WouldRefuse => "would-refuse",
        }
    }

    /// What was done, for people.
    pub(crate) fn done(self) -> &'static str {
        match self {
            Self::Hold => "held",
            Self::Refuse => "refused",
            Self::WouldHold => "would have held",
            Self::WouldRefuse => "would have refused",
        }
    }
}

impl<'a> Engagement<'a> {
    /// What a rule did; nothing if it let the request pass.
    pub(crate) fn by_rule(
        rules: &'a Rules,
        request: &impl Request,
        decision: &Decision,
        now: Moment,
    ) -> Option<Engagement<'a>> {
        let act = Act::of(decision)?;
        let rule = rules.limiter().rule(decision.rule?)?;
        let (face, standing) = (rules.face(decision)?, rules.figures(decision)?);
        let key = Name::of(|writer| {
            rule.class.write_key(request, writer);
        });
        let backoff = match act {
            Act::Hold => decision.verdict.hold(now),
            Act::Refuse => decision.verdict.retry_after(now),
            Act::WouldHold | Act::WouldRefuse => standing.reset,
        };
        Some(Self {
            act,
            rule: Some(&face.name),
            class: &face.class,
            key,
            reason: decision.reason.as_str(),
            band: decision.band,
            observed: observed(&rule.limit, &standing, act),
            allowed: standing.quota,
            backoff,
            level: decision.level,
        })
    }

    /// What the fair queue did.
    pub(crate) fn by_queue(client: IpAddr, band: Band, done: QueueAct) -> Self {
        let key = Name::of(|writer| writer.network(Network::of(client, if client.is_ipv4() { 32 } else { 64 })));
        let QueueAct { act, reason, observed, allowed, backoff } = done;
        Self { act, rule: None, class: "ip/32", key, reason, band, observed, allowed, backoff, level: 0 }
    }
}

/// What the fair queue did to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueAct {
    pub(crate) act: Act,
    pub(crate) reason: &'static str,
    pub(crate) observed: u64,
    pub(crate) allowed: u64,
    pub(crate) backoff: Span,
}

/// What the caller has used of its limit, with what it asked for now; more than is allowed where there is debt.
fn observed(limit: &Limit, standing: &LimitStatus<'_>, act: Act) -> u64 {
    let used = match (limit, standing.window) {
        // These fill up at a steady pace, so the time until they are full tells what is used, debt included.
        (Limit::Budget(_) | Limit::Rate(_), Some(window)) if !window.is_zero() => {
            let used = u128::from(standing.quota) * u128::from(standing.clear.as_nanos());
            u64::try_from(used.div_ceil(u128::from(window.as_nanos()))).unwrap_or(u64::MAX)
        }
        _ => standing.quota.saturating_sub(standing.remaining),
    };
    // A request that goes on is charged already. What a refused one would have cost is known only where requests are counted.
    let is_charged = matches!(act, Act::Hold) || matches!(limit, Limit::Budget(_));
    used.saturating_add(u64::from(!is_charged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Gate, Settings};
    use tollgate_core::path::NormalPath;
    use tollgate_core::toll::Toll;

    struct From(&'static str);

    impl Request for From {
        fn client(&self) -> Option<IpAddr> {
            self.0.parse().ok()
        }
        fn method(&self) -> &[u8] {
            b"GET"
        }
        fn target(&self) -> &[u8] {
            b"/"
        }
        fn host(&self) -> Option<&[u8]> {
            None
        }
        fn normal_path(&self) -> Option<&NormalPath> {
            None
        }
        fn header(&self, _: &str) -> Option<&[u8]> {
            None
        }
    }

    /// What is told of the third request within a moment.
    fn third(limit: &str) -> Option<(Act, u64, u64, u64)> {
        let text = format!("[[rule]]\nname = 'r'\nclass = 'ip/32'\n{limit}\n");
        let settings = Settings::parse("test.toml", &text).unwrap();
        let rules = Rules::new(
            &settings.domains[0],
            crate::gate::decide::elsewhere::Elsewhere::default(),
            Gate::default().hold,
            Moment::ZERO,
        )
        .unwrap();
        let (request, now) = (From("203.0.113.7"), Moment::from_millis(60_000));
        let mut last = None;
        for _ in 0..3 {
            let (decision, _) = rules.decide(&request, Toll::of_cpu(Span::from_millis(800)), Band::Normal, now);
            last = Engagement::by_rule(&rules, &request, &decision, now);
        }
        let told = last?;
        assert_eq!((told.key.as_bytes(), told.rule, told.class), (&b"203.0.113.7/32"[..], Some("r"), "ip/32"));
        Some((told.act, told.observed, told.allowed, told.backoff.as_millis_ceil()))
    }

    #[test]
    fn what_is_told_is_how_far_over_and_for_how_long() {
        assert_eq!(third("bucket = { size = 2, drip = 1, every = '4s' }"), Some((Act::Refuse, 3, 2, 4_000)));
        assert_eq!(third("rate = { rate = '1/s', burst = 2 }\nhold = '0s'"), Some((Act::Refuse, 3, 2, 1_000)));
        assert_eq!(third("rate = { rate = '1/s', burst = 2 }"), Some((Act::Hold, 3, 2, 1_000)));
        assert_eq!(third("window = { max = 2, per = '9s' }"), Some((Act::Refuse, 3, 2, 9_000)));
        assert_eq!(
            third("bucket = { size = 2, drip = 1, every = '4s' }\nmode = 'observe'"),
            Some((Act::WouldRefuse, 3, 2, 4_000))
        );
        assert_eq!(third("in_flight = { max = 2 }"), Some((Act::Refuse, 3, 2, 1_000)));
        // 1.6 of 1.5 CPU-seconds are used, and a tenth of a second of debt takes one second to repay.
        assert_eq!(
            third("budget = { cores = 0.1, burst = '1.5s' }\nhold = '0s'"),
            Some((Act::Refuse, 1600, 1500, 1_000))
        );
        assert_eq!(third("bucket = { size = 3, drip = 1, every = '4s' }"), None);
    }

    #[test]
    fn the_queue_tells_an_address_or_its_network_in_ipv6() {
        let done = QueueAct { act: Act::Refuse, reason: "x", observed: 1, allowed: 1, backoff: Span::ZERO };
        for (client, key) in [("192.0.2.7", "192.0.2.7/32"), ("2001:db8::7", "2001:db8::/64")] {
            let told = Engagement::by_queue(client.parse().unwrap(), Band::Normal, done);
            assert_eq!(told.key.as_bytes(), key.as_bytes());
        }
    }
}
