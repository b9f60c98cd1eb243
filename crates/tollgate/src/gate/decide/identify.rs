//! Determines the client of a request: the peer of the connection, or the client that a trusted proxy names. Also
//! presents the request to the rules ([`RequestView`]).

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::settings::{ForwardedHeader, Gate as Settings};
use tollgate_core::network::unmapped;
use tollgate_core::path::NormalPath;
use tollgate_core::request::{Request, host_of};
use tollgate_wire::forwarded;
use tollgate_wire::http1::{Name, RequestHead};

/// The other end of a connection, according to TCP or the PROXY protocol.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPeer {
    /// Its address, IPv4 if it is an IPv4-mapped one.
    pub(crate) address: IpAddr,
    /// The address as text, written once per connection.
    pub(crate) text: String,
    /// The proxy that sent a PROXY header on this connection, whether or not the header named the peer.
    proxy: Option<IpAddr>,
    /// Whether `address` is the peer's own. It is not if the PROXY header named no client: then it is the proxy's.
    is_known: bool,
    /// The header in which it names clients, if it is a trusted proxy under the settings of the current request.
    trust: Cell<Option<ForwardedHeader>>,
    /// Whether it uses TLS.
    pub(crate) secure: bool,
    /// A unique number of the connection.
    pub(crate) connection: u64,
}

impl ConnectionPeer {
    /// A number for the user of a request, so that the queue can share the capacity of one address among its users: the
    /// number of the connection, or a hash of the user agent if a proxy forwards the request, because requests of many
    /// users then share a connection.
    pub(crate) fn tenant(&self, request: &RequestView<'_>, client: IpAddr) -> u64 {
        if client == self.address {
            return self.connection;
        }
        hash_of(user_agent(request.head))
    }

    pub(crate) fn new(address: IpAddr, secure: bool, settings: &Settings) -> Self {
        let peer = Self::at(address, secure);
        peer.judge(settings);
        peer
    }

    fn at(address: IpAddr, secure: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (address, connection) = (unmapped(address), NEXT.fetch_add(1, Ordering::Relaxed));
        let text = address.to_string();
        Self { address, text, proxy: None, is_known: true, trust: Cell::new(None), secure, connection }
    }

    /// The same peer, if it was named in a PROXY header by the proxy at this address.
    pub(crate) fn named_by(self, proxy: IpAddr) -> Self {
        Self { proxy: Some(proxy), ..self }
    }

    /// Updates `trust`, before each request because the settings may have changed since the peer connected. Returns
    /// false if the proxy that sent the PROXY header is no longer trusted.
    pub(crate) fn judge(&self, settings: &Settings) -> bool {
        let is_trusted = self.is_known && trusts(settings, self.address);
        self.trust.set(is_trusted.then_some(settings.forwarded_header));
        self.proxy.is_none_or(|proxy| trusts(settings, proxy))
    }

    /// Whether the peer is neither a trusted proxy nor behind one that uses the PROXY protocol. It is then a client, or
    /// a proxy that the settings do not name.
    pub(crate) fn is_untrusted(&self) -> bool {
        self.trust().is_none() && self.proxy.is_none()
    }

    /// The header in which it names clients, if it is a trusted proxy.
    pub(crate) fn trust(&self) -> Option<ForwardedHeader> {
        self.trust.get()
    }

    /// A client behind a proxy whose PROXY header names no client. It gets the address of the proxy, but not its trust.
    pub(crate) fn unknown_behind(proxy: IpAddr, secure: bool) -> Self {
        Self { proxy: Some(proxy), is_known: false, ..Self::at(proxy, secure) }
    }

    /// The client of this request.
    pub(crate) fn client(&self, head: &RequestHead, settings: &Settings) -> IpAddr {
        let trusted = |address| trusts(settings, address);
        match self.trust() {
            None => self.address,
            Some(ForwardedHeader::XForwardedFor) => {
                forwarded::client_by_x_forwarded_for(self.address, head.fields.all(Name::XForwardedFor), trusted)
            }
            Some(ForwardedHeader::Forwarded) => {
                forwarded::client_by_forwarded(self.address, head.fields.all(Name::Forwarded), trusted)
            }
        }
    }
}

/// The user agent of a request.
pub(crate) fn user_agent(head: &RequestHead) -> &[u8] {
    head.fields.find(b"user-agent").unwrap_or_default()
}

/// The FNV-1a hash of a user agent. Clients can make it collide, and gain nothing by it: they can send the same user
/// agent as well.
pub(crate) fn hash_of(agent: &[u8]) -> u64 {
    agent.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// Whether this address is a trusted proxy.
pub(crate) fn trusts(settings: &Settings, address: IpAddr) -> bool {
    settings.trusted_proxies.contains(address)
}

/// A request as rules see it.
#[derive(Clone, Copy)]
pub(crate) struct RequestView<'a> {
    /// The client; not the proxy, if a trusted one has named the client.
    pub(crate) client: IpAddr,
    /// The head, without hop-by-hop fields.
    pub(crate) head: &'a RequestHead,
    /// Whether the watch has flagged its account; false if no rule and no priority uses flags.
    pub(crate) is_flagged: bool,
    /// The values of its JSON body that rules use, by pointer.
    pub(crate) json: &'a [(String, Vec<u8>)],
}

impl<'a> RequestView<'a> {
    /// A request whose flag is not looked up yet.
    pub(crate) fn new(client: IpAddr, head: &'a RequestHead) -> Self {
        Self { client, head, is_flagged: false, json: &[] }
    }
}

impl Request for RequestView<'_> {
    fn client(&self) -> Option<IpAddr> {
        Some(self.client)
    }

    fn method(&self) -> &[u8] {
        &self.head.method
    }

    fn target(&self) -> &[u8] {
        self.head.target()
    }

    fn normal_path(&self) -> Option<&NormalPath> {
        self.head.normal_path()
    }

    fn host(&self) -> Option<&[u8]> {
        host_of(&self.head.authority)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        match name {
            "host" => Some(&self.head.authority),
            _ => self.head.fields.find(name.as_bytes()),
        }
    }

    fn is_flagged(&self) -> bool {
        self.is_flagged
    }

    fn json(&self, pointer: &str) -> Option<&[u8]> {
        self.json.iter().find(|(known, _)| known == pointer).map(|(_, value)| value.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::network::Network;
    use tollgate_core::request::Request;

    use super::*;

    fn head(text: &str) -> RequestHead {
        let mut head = RequestHead::default();
        head.parse(format!("GET /a?b HTTP/1.1\r\n{text}\r\n").as_bytes()).unwrap();
        head
    }

    fn trusting() -> Settings {
        Settings { trusted_proxies: Network::parse("10.0.0.0/8").into_iter().collect(), ..Settings::default() }
    }

    fn client(peer: &str, fields: &str) -> String {
        let settings = trusting();
        let peer = ConnectionPeer::new(peer.parse().unwrap(), false, &settings);
        peer.client(&head(&format!("Host: a\r\n{fields}")), &settings).to_string()
    }

    #[test]
    fn only_a_trusted_proxy_is_believed() {
        assert_eq!(client("192.0.2.1", "X-Forwarded-For: 1.2.3.4\r\n"), "192.0.2.1");
        assert_eq!(client("10.0.0.1", "X-Forwarded-For: 1.2.3.4\r\n"), "1.2.3.4");
        assert_eq!(client("::ffff:10.0.0.1", "X-Forwarded-For: 1.2.3.4\r\n"), "1.2.3.4");
        assert_eq!(client("10.0.0.1", "Forwarded: for=1.2.3.4\r\n"), "10.0.0.1");
        assert_eq!(client("10.0.0.1", ""), "10.0.0.1");
    }

    #[test]
    fn a_client_that_a_proxy_does_not_name_is_not_believed() {
        let peer = ConnectionPeer::unknown_behind("::ffff:10.0.0.1".parse().unwrap(), false);
        let head = head("Host: a\r\nX-Forwarded-For: 1.2.3.4\r\n");
        assert_eq!((peer.client(&head, &trusting()).to_string().as_str(), &*peer.text), ("10.0.0.1", "10.0.0.1"));
    }

    #[test]
    fn a_host_is_seen_without_its_port() {
        for (authority, host) in [("site:80", "site"), ("site", "site"), ("[::1]:80", "[::1]"), ("site.:80", "site")] {
            let head = head(&format!("Host: {authority}\r\n"));
            let view = RequestView::new("192.0.2.1".parse().unwrap(), &head);
            assert_eq!(view.host(), Some(host.as_bytes()));
        }
    }
}
