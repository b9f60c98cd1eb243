//! Detects a proxy or CDN in front of the gate that `trusted_proxies` does not name.
//!
//! Behind such a proxy all clients have one address. Fairness and rules by address then treat all of them as one
//! client, and nothing fails visibly. Two signs reveal it: forwarding headers from an untrusted address, and many user
//! agents from one address.
//!
//! Workers sample requests of untrusted peers: the first [`SAMPLED_FIRST`] of each worker, then one of
//! [`SAMPLED_ONE_OF`]. A sample is skipped if another worker holds the lock. Memory is fixed: [`PEERS_MAX`] addresses,
//! and bitmaps instead of values. Once there is a notice, nothing is sampled until a reload changes `trusted_proxies`.

use std::cell::Cell;
use std::fmt;
use std::hash::BuildHasher as _;
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use foldhash::quality::RandomState;
use parking_lot::Mutex;
use tollgate_wire::http1::{Name, RequestHead};

use crate::settings::{ForwardedHeader, Gate as Settings};

/// Requests of each worker that are all sampled, so that a site with few visitors gets the notice too.
const SAMPLED_FIRST: u32 = 256;
/// Later, one of this many requests is sampled.
const SAMPLED_ONE_OF: u32 = 16;
/// The size of a window in samples.
const WINDOW: u32 = 1024;
/// Addresses that are counted separately in a window.
const PEERS_MAX: usize = 32;
/// The number of samples that a notice needs.
const SAMPLES_MIN: u32 = 32;
/// The number of different values of the forwarding header that a notice about public addresses needs: few clients send
/// the header themselves, and then always with the same value.
const CLIENTS_MIN: u32 = 4;
/// The number of different user agents that a notice about an address without forwarding headers needs. An office
/// behind one address has fewer.
const AGENTS_MIN: u32 = 24;
/// Addresses that a notice names. A CDN has more, and publishes them.
const NAMED_MAX: usize = 3;

/// Selects the requests of one worker that are sampled. Contains the number of requests so far.
#[derive(Debug, Default)]
pub(crate) struct Sampler(Cell<u32>);

impl Sampler {
    fn is_due(&self) -> bool {
        let count = self.0.get();
        self.0.set(count.wrapping_add(1));
        count < SAMPLED_FIRST || count.is_multiple_of(SAMPLED_ONE_OF)
    }
}

/// The samples of all workers, and the notice.
#[derive(Debug, Default)]
pub(crate) struct ProxyDetector {
    samples: Mutex<Samples>,
    notice: ArcSwapOption<ProxyNotice>,
    hasher: RandomState,
}

/// The notice for operators that most requests come through proxies that are not trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProxyNotice {
    /// The addresses, those with most requests first; at most [`NAMED_MAX`].
    addresses: Vec<IpAddr>,
    /// Whether there are more.
    has_more: bool,
    /// The header in which they name clients; none if they name none.
    header: Option<ForwardedHeader>,
}

/// The samples of the current window.
#[derive(Debug, Default)]
struct Samples {
    total: u32,
    with_x_forwarded_for: u32,
    with_forwarded: u32,
    /// A bitmap of the hashes of all values of these headers. The number of set bits estimates the number of values.
    values: u64,
    /// The first [`PEERS_MAX`] addresses of the window.
    peers: Vec<PeerSamples>,
    has_more_peers: bool,
}

/// The samples of one address.
#[derive(Clone, Copy, Debug)]
struct PeerSamples {
    address: IpAddr,
    total: u32,
    /// The number of samples with one of the headers.
    forwarded: u32,
    /// A bitmap of the hashes of all user agents.
    agents: u64,
}

impl ProxyDetector {
    /// Samples a request from an untrusted address, if it is due. Checks again that the address is untrusted, because a
    /// worker may have older settings than `settings` for some milliseconds after a reload.
    #[inline]
    pub(crate) fn look(&self, sampler: &Sampler, address: IpAddr, request: &RequestHead, settings: &ArcSwap<Settings>) {
        if sampler.is_due() {
            self.sample(address, request, settings);
        }
    }

    #[cold]
    fn sample(&self, address: IpAddr, request: &RequestHead, settings: &ArcSwap<Settings>) {
        if self.notice.load().is_some() || settings.load().trusted_proxies.contains(address) {
            return;
        }
        let Some(mut samples) = self.samples.try_lock() else { return };
        let bit = |value: &[u8]| 1u64 << (self.hasher.hash_one(value) % 64);
        let (x_forwarded_for, forwarded) =
            (request.fields.first(Name::XForwardedFor), request.fields.first(Name::Forwarded));
        let agent = request.fields.find(b"user-agent").map_or(0, bit);
        samples.add(address, x_forwarded_for.map(bit), forwarded.map(bit), agent);
        if let Some(notice) = samples.notice() {
            drop(samples);
            tracing::warn!(setting = notice.setting(), "{notice}");
            self.notice.store(Some(Arc::new(notice)));
        }
    }

    /// The notice, if there is one.
    pub(crate) fn notice(&self) -> Option<Arc<ProxyNotice>> {
        self.notice.load_full()
    }

    /// Starts again, after `trusted_proxies` has changed.
    pub(crate) fn reset(&self) {
        *self.samples.lock() = Samples::default();
        self.notice.store(None);
    }
}

impl Samples {
    /// Adds a request. The values of its headers and its user agent are given as bits of a bitmap.
    fn add(&mut self, address: IpAddr, x_forwarded_for: Option<u64>, forwarded: Option<u64>, agent: u64) {
        if self.total >= WINDOW {
            *self = Self::default();
        }
        self.total += 1;
        self.with_x_forwarded_for += u32::from(x_forwarded_for.is_some());
        self.with_forwarded += u32::from(forwarded.is_some());
        let value = x_forwarded_for.or(forwarded);
        self.values |= value.unwrap_or(0);
        let forwarded = u32::from(value.is_some());
        if let Some(peer) = self.peers.iter_mut().find(|peer| peer.address == address) {
            peer.total += 1;
            peer.forwarded += forwarded;
            peer.agents |= agent;
        } else if self.peers.len() < PEERS_MAX {
            self.peers.push(PeerSamples { address, total: 1, forwarded, agents: agent });
        } else {
            self.has_more_peers = true;
        }
    }

    fn notice(&self) -> Option<ProxyNotice> {
        if self.total < SAMPLES_MIN {
            return None;
        }
        self.by_headers().or_else(|| self.by_agents())
    }

    /// The notice if at least half of the requests come with a forwarding header.
    fn by_headers(&self) -> Option<ProxyNotice> {
        let mut proxies: Vec<_> = self.peers.iter().filter(|peer| peer.forwarded * 2 >= peer.total).copied().collect();
        proxies.sort_by_key(|peer| std::cmp::Reverse(peer.forwarded));
        let with_header = self.with_x_forwarded_for.max(self.with_forwarded);
        // A peer in a private network that sends such a header is a proxy, even if it has had one client so far.
        let is_near = proxies.first().is_some_and(|peer| is_private(peer.address));
        if with_header * 2 < self.total || !(is_near || self.values.count_ones() >= CLIENTS_MIN) {
            return None;
        }
        let header = match self.with_forwarded > self.with_x_forwarded_for {
            true => ForwardedHeader::Forwarded,
            false => ForwardedHeader::XForwardedFor,
        };
        let has_more = proxies.len() > NAMED_MAX || self.has_more_peers;
        let addresses = proxies.into_iter().take(NAMED_MAX).map(|peer| peer.address).collect();
        Some(ProxyNotice { addresses, has_more, header: Some(header) })
    }

    /// The notice if one address has at least four fifths of the requests, with many user agents.
    fn by_agents(&self) -> Option<ProxyNotice> {
        let most = self.peers.iter().max_by_key(|peer| peer.total)?;
        let stands_out = most.total * 5 >= self.total * 4 && most.agents.count_ones() >= AGENTS_MIN;
        stands_out.then(|| ProxyNotice { addresses: vec![most.address], has_more: false, header: None })
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private() || v4.is_loopback(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_loopback() || v6.is_unicast_link_local(),
    }
}

impl ProxyNotice {
    /// The lines to write under `[gate]`.
    pub(crate) fn setting(&self) -> String {
        let list = if self.has_more {
            "\"file:/etc/tollgate/proxies.txt\"".to_owned()
        } else if self.addresses.iter().all(IpAddr::is_loopback) {
            "\"loopback\"".to_owned()
        } else {
            self.addresses.iter().map(|address| format!("\"{address}\"")).collect::<Vec<_>>().join(", ")
        };
        let header = match self.header {
            Some(ForwardedHeader::Forwarded) => "\nforwarded_header = \"forwarded\"",
            _ => "",
        };
        format!("trusted_proxies = [{list}]{header}")
    }
}

impl fmt::Display for ProxyNotice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.addresses.iter().map(IpAddr::to_string).collect();
        let addresses = format!("{}{}", addresses.join(", "), if self.has_more { " and others" } else { "" });
        let header = match self.header {
            Some(ForwardedHeader::XForwardedFor) => "X-Forwarded-For",
            Some(ForwardedHeader::Forwarded) => "Forwarded",
            None => {
                return write!(
                    formatter,
                    "nearly all requests come from {addresses}, with many user agents: if it is a proxy, all clients behind it count as one. \
                     Let it send X-Forwarded-For or the PROXY protocol, and name it in `trusted_proxies` under `[gate]`"
                );
            }
        };
        let list = if self.has_more { ", in a file with the networks that your CDN publishes" } else { "" };
        write!(
            formatter,
            "most requests come from {addresses} with {header}, which is ignored because the sender is not trusted: all clients behind it count as one. \
             If it is your own proxy or CDN, name it in `trusted_proxies` under `[gate]`{list}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u8) -> IpAddr {
        [203, 0, 113, number].into()
    }

    /// The notice after requests of (address, forwarded value, user agent).
    fn after(requests: impl IntoIterator<Item = (IpAddr, Option<u32>, u32)>) -> Option<ProxyNotice> {
        let mut samples = Samples::default();
        let bit = |value: u32| 1u64 << (value % 64);
        let mut requests = requests.into_iter();
        requests.find_map(|(address, value, agent)| {
            samples.add(address, value.map(bit), None, bit(agent));
            samples.notice()
        })
    }

    #[test]
    fn a_proxy_that_names_its_clients_is_noticed_with_the_setting_to_write() {
        let notice = after((0..64).map(|number| (address(1), Some(number), 0))).unwrap();
        assert_eq!(notice.setting(), "trusted_proxies = [\"203.0.113.1\"]");
        assert!(notice.to_string().contains("from 203.0.113.1 with X-Forwarded-For"), "{notice}");
        let local: IpAddr = [127, 0, 0, 1].into();
        let notice = after((0..64).map(|_| (local, Some(1), 0))).unwrap();
        assert_eq!(notice.setting(), "trusted_proxies = [\"loopback\"]");
        let notice = ProxyNotice { header: Some(ForwardedHeader::Forwarded), ..notice };
        assert_eq!(notice.setting(), "trusted_proxies = [\"loopback\"]\nforwarded_header = \"forwarded\"");
    }

    #[test]
    fn a_cdn_with_many_addresses_is_noticed_as_a_whole() {
        let notice = after((0..256).map(|number| (address(number as u8), Some(number), number))).unwrap();
        assert_eq!(notice.setting(), "trusted_proxies = [\"file:/etc/tollgate/proxies.txt\"]");
        assert!(notice.to_string().contains("and others with X-Forwarded-For"), "{notice}");
    }

    #[test]
    fn a_proxy_without_forwarding_headers_is_detected_by_its_user_agents() {
        let notice = after((0..200).map(|number| (address((number % 6 == 0).into()), None, number))).unwrap();
        assert!(
            notice.to_string().contains("nearly all requests come from 203.0.113.0, with many user agents"),
            "{notice}"
        );
        assert_eq!(notice.setting(), "trusted_proxies = [\"203.0.113.0\"]");
    }

    #[test]
    fn direct_clients_an_office_a_crawler_and_a_forger_are_no_proxies() {
        let nobody = |requests: Vec<(IpAddr, Option<u32>, u32)>| assert_eq!(after(requests), None);
        nobody((0..5000).map(|number| (address((number % 200) as u8), None, number % 60)).collect());
        // Most requests come from an office with twenty browsers.
        nobody((0..5000).map(|number| (address(1), None, number % 20)).collect());
        // One client of many forges the header, with another value in each request.
        nobody((0..5000).map(|number| (address((number % 3) as u8), (number % 3 == 0).then_some(number), 0)).collect());
        // One client alone sends the same header all the time.
        nobody((0..5000).map(|_| (address(1), Some(7), 0)).collect());
    }

    #[test]
    fn samples_are_bounded() {
        let mut samples = Samples::default();
        for number in 0..100_000u32 {
            samples.add(std::net::Ipv4Addr::from_bits(number).into(), None, None, 0);
            assert!(samples.peers.len() <= PEERS_MAX && samples.total <= WINDOW);
        }
        let sampler = Sampler::default();
        let sampled = (0..16_256).filter(|_| sampler.is_due()).count();
        assert_eq!(sampled, 256 + 1000);
    }
}
