//! An engagement: a request that a rule or the queue held or refused, or would have in observe mode, with the reason.
//! It is the input of the log ([`super::engagement_log`]) and of the history of refusals ([`super::refusal_history`]).

use std::net::IpAddr;

use tollgate_core::band::Band;
use tollgate_core::class::KeySink;
use tollgate_core::decision::Act;
use tollgate_core::network::Network;
use tollgate_core::queue::Standing;
use tollgate_core::time::Span;
use tollgate_gatekeeper::names::Name;

/// One engagement. It allocates nothing, because most engagements are only counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engagement<'a> {
    pub(crate) act: Act,
    /// The address of the client, if it is known.
    pub(crate) client: Option<IpAddr>,
    /// The name of the rule; none for the fair queue and the limits on uploads.
    pub(crate) rule: Option<&'a str>,
    /// The class of the key.
    pub(crate) class: &'a str,
    /// The key of the request under the rule; for the queue, its address.
    pub(crate) key: Name,
    pub(crate) reason: &'static str,
    pub(crate) band: Band,
    /// The observed amount, in the unit of the limit (see docs/log.md).
    pub(crate) observed: u64,
    /// The allowed amount, in the same unit.
    pub(crate) allowed: u64,
    /// The time until the request goes on, or may be sent again.
    pub(crate) backoff: Span,
    /// The escalation level of the key; 0 without an escalation.
    pub(crate) level: u8,
    /// Where the request stood in the queue; none for rules and the limits on uploads.
    pub(crate) standing: Option<Standing>,
}

impl Engagement<'_> {
    /// An engagement of the fair queue, with its reason and the observed and the allowed amount, or of the limits on
    /// uploads, which have no `standing`.
    pub(crate) fn by_queue(
        client: IpAddr,
        band: Band,
        act: Act,
        (reason, observed, allowed): (&'static str, u64, u64),
        backoff: Span,
        standing: Option<Standing>,
    ) -> Self {
        let key = Name::of(|writer| writer.network(Network::of(client, if client.is_ipv4() { 32 } else { 64 })));
        let (client, rule, class, level) = (Some(client), None, "ip/32", 0);
        Self { act, client, rule, class, key, reason, band, observed, allowed, backoff, level, standing }
    }
}

/// Engagements with the same act, rule and key, added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngagementSum {
    pub(crate) act: Act,
    /// The rule; `None` for the queue and the bound on uploads.
    pub(crate) rule: Option<Box<str>>,
    pub(crate) class: Box<str>,
    /// The key as it was received.
    pub(crate) key: Box<[u8]>,
    /// The reason, the band and the allowed amount of the last engagement.
    pub(crate) reason: &'static str,
    pub(crate) band: Band,
    pub(crate) allowed: u64,
    /// The largest observed amount, the longest backoff, the highest level, and the largest position and the longest
    /// estimated wait in the queue.
    pub(crate) observed: u64,
    pub(crate) backoff: Span,
    pub(crate) level: u8,
    pub(crate) standing: Option<Standing>,
    pub(crate) count: u64,
}

impl EngagementSum {
    /// The sum of one engagement.
    pub(crate) fn of(engagement: &Engagement<'_>) -> Self {
        let Engagement { act, reason, band, allowed, observed, backoff, level, standing, .. } = *engagement;
        let (rule, class) = (engagement.rule.map(Into::into), engagement.class.into());
        let key = engagement.key.as_bytes().into();
        Self { act, rule, class, key, reason, band, allowed, observed, backoff, level, standing, count: 1 }
    }

    pub(crate) fn add(&mut self, engagement: &Engagement<'_>) {
        self.count += 1;
        self.reason = engagement.reason;
        self.band = engagement.band;
        self.allowed = engagement.allowed;
        self.observed = self.observed.max(engagement.observed);
        self.backoff = self.backoff.max(engagement.backoff);
        self.level = self.level.max(engagement.level);
        self.standing = self.standing.into_iter().chain(engagement.standing).reduce(largest);
    }
}

/// The largest position and the longest wait of both.
fn largest(one: Standing, other: Standing) -> Standing {
    let (position, wait) = (one.position.max(other.position), one.wait.max(other.wait));
    Standing { position, wait, ..other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_the_queue_is_an_address_or_its_network_in_ipv6() {
        for (client, key) in [("192.0.2.7", "192.0.2.7/32"), ("2001:db8::7", "2001:db8::/64")] {
            let engagement =
                Engagement::by_queue(client.parse().unwrap(), Band::Normal, Act::Refuse, ("x", 1, 1), Span::ZERO, None);
            assert_eq!(engagement.key.as_bytes(), key.as_bytes());
        }
    }
}
