//! An engagement: a request that was held or refused, or would have been, with the reason.

use std::net::IpAddr;

use tollgate_core::band::Band;
use tollgate_core::class::KeySink;
use tollgate_core::decision::Act;
use tollgate_core::network::Network;
use tollgate_core::time::Span;
use tollgate_gatekeeper::names::Name;

/// One engagement. It allocates nothing, because most engagements are only counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Engagement<'a> {
    pub(crate) act: Act,
    /// The address of the client, if it is known.
    pub(crate) client: Option<IpAddr>,
    /// The rule; none for the fair queue.
    pub(crate) rule: Option<&'a str>,
    /// The class of the rule.
    pub(crate) class: &'a str,
    pub(crate) key: Name,
    pub(crate) reason: &'static str,
    pub(crate) band: Band,
    /// The observed amount, in the unit of the limit.
    pub(crate) observed: u64,
    /// The allowed amount.
    pub(crate) allowed: u64,
    /// The time until the request goes on, or may be sent again.
    pub(crate) backoff: Span,
    pub(crate) level: u8,
}

impl Engagement<'_> {
    /// An engagement of the fair queue, with its reason and the observed and the allowed amount.
    pub(crate) fn by_queue(
        client: IpAddr,
        band: Band,
        act: Act,
        (reason, observed, allowed): (&'static str, u64, u64),
        backoff: Span,
    ) -> Self {
        let key = Name::of(|writer| writer.network(Network::of(client, if client.is_ipv4() { 32 } else { 64 })));
        let (client, rule, class, level) = (Some(client), None, "ip/32", 0);
        Self { act, client, rule, class, key, reason, band, observed, allowed, backoff, level }
    }
}

/// Engagements of one rule with one key, added up.
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
    /// The largest observed amount, see docs/log.md, the longest backoff and the highest level.
    pub(crate) observed: u64,
    pub(crate) backoff: Span,
    pub(crate) level: u8,
    pub(crate) count: u64,
}

impl EngagementSum {
    /// The sum of one engagement.
    pub(crate) fn of(engagement: &Engagement<'_>) -> Self {
        let Engagement { act, reason, band, allowed, observed, backoff, level, .. } = *engagement;
        let (rule, class) = (engagement.rule.map(Into::into), engagement.class.into());
        let key = engagement.key.as_bytes().into();
        Self { act, rule, class, key, reason, band, allowed, observed, backoff, level, count: 1 }
    }

    pub(crate) fn add(&mut self, engagement: &Engagement<'_>) {
        self.count += 1;
        self.reason = engagement.reason;
        self.band = engagement.band;
        self.allowed = engagement.allowed;
        self.observed = self.observed.max(engagement.observed);
        self.backoff = self.backoff.max(engagement.backoff);
        self.level = self.level.max(engagement.level);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_tells_an_address_or_its_network_in_ipv6() {
        for (client, key) in [("192.0.2.7", "192.0.2.7/32"), ("2001:db8::7", "2001:db8::/64")] {
            let told =
                Engagement::by_queue(client.parse().unwrap(), Band::Normal, Act::Refuse, ("x", 1, 1), Span::ZERO);
            assert_eq!(told.key.as_bytes(), key.as_bytes());
        }
    }
}
