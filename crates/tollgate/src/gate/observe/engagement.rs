//! An engagement: a request that was held or refused, or would have been, with the reason.

use std::net::IpAddr;

use tollgate_core::band::Band;
use tollgate_core::class::KeySink;
use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::network::Network;
use tollgate_core::time::Span;
use tollgate_gatekeeper::names::Name;

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

impl Engagement<'_> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_tells_an_address_or_its_network_in_ipv6() {
        let done = QueueAct { act: Act::Refuse, reason: "x", observed: 1, allowed: 1, backoff: Span::ZERO };
        for (client, key) in [("192.0.2.7", "192.0.2.7/32"), ("2001:db8::7", "2001:db8::/64")] {
            let told = Engagement::by_queue(client.parse().unwrap(), Band::Normal, done);
            assert_eq!(told.key.as_bytes(), key.as_bytes());
        }
    }
}
