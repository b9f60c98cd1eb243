//! The server under test: its address, its pages, and how it identifies clients.

use crate::{
    crowd::Crowd,
    page::{Kind, PerKind},
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs},
    path::Path,
};

pub use crate::tls::TargetTls;

/// How the server tells clients apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Identity {
    // A client may bind any address of 127.0.0.0/8.
    /// By source addresses in 127.0.0.0/8, on loopback only
    Source,
    // As behind a load balancer. The server must trust this machine.
    /// By X-Forwarded-For
    XForwardedFor,
}

/// The paths of the pages, each with `{id}` for the number of the page.
pub type Paths = PerKind<String>;

/// A server under test.
#[derive(Clone, Debug)]
pub struct Target {
    /// The address to connect to.
    pub address: SocketAddr,
    /// The TLS configuration of the clients; `None` for `http`.
    pub tls: Option<TargetTls>,
    /// The `Host` header.
    pub host: String,
    /// How the server tells clients apart.
    pub identity: Identity,
    /// The paths of its pages; `None` for those of this crate's site.
    pub paths: Option<Paths>,
    /// The number of files that a page includes.
    pub assets: u8,
}

/// The assets of a page on the site of this crate: one on the page's connection and three on new ones, as in browsers.
const ASSETS: u8 = 4;

impl Target {
    /// The site of this crate, or a proxy in front of it, on loopback.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, tls: None, host: address.to_string(), identity: Identity::Source, paths: None, assets: ASSETS }
    }

    /// The server at `http://HOST[:PORT]` or `https://HOST[:PORT]`. Its certificate must be issued by one of those in
    /// the PEM file `certificates`, or by one that this system trusts if no file is given.
    pub fn of_url(url: &str, certificates: Option<&Path>) -> Result<Self, String> {
        let wrong = || "write the target as http://HOST:PORT or https://HOST:PORT, without a path".to_owned();
        let unresolved = |error: io::Error| format!("cannot resolve the host of the target: {error}");
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let default_port = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return Err(wrong()),
        };
        let host = rest.trim_end_matches('/');
        let is_plain = |symbol: char| symbol.is_ascii_alphanumeric() || ".-_:[]".contains(symbol);
        if host.is_empty() || !host.chars().all(is_plain) {
            return Err(wrong());
        }
        let with_port = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if with_port.is_some() { host.to_string() } else { format!("{host}:{default_port}") };
        let tls = match (scheme, certificates) {
            ("https", certificates) => {
                let name = with_port.map_or(host, |(name, _)| name).trim_matches(['[', ']']);
                let tls =
                    certificates.map_or_else(|| TargetTls::of_system(name), |file| TargetTls::of_file(name, file));
                Some(tls.map_err(|error| format!("cannot verify the target: {error}"))?)
            }
            _ => None,
        };
        let mut addresses = authority.to_socket_addrs().map_err(unresolved)?;
        let address = addresses.next().ok_or_else(|| unresolved(io::ErrorKind::NotFound.into()))?;
        Ok(Self { tls, host: host.to_string(), ..Self::new(address) })
    }

    /// The path of page number `id`. `alike` is as in [`Kind::path`], and has no effect on paths of another site.
    pub(crate) fn path(&self, kind: Kind, id: u64, alike: bool) -> String {
        match &self.paths {
            None => kind.path(id, alike),
            Some(paths) => paths.of(kind).replace("{id}", &id.to_string()),
        }
    }

    /// The head of a request for `path`.
    pub(crate) fn request(&self, path: &str, crowd: Crowd, source: Ipv4Addr) -> String {
        let agent = if crowd == Crowd::Crawler { "crawler/1.0" } else { "Mozilla/5.0 (X11; Linux x86_64)" };
        let forwarded = match self.identity {
            Identity::Source => String::new(),
            Identity::XForwardedFor => format!("X-Forwarded-For: {}\r\n", forwarded_address(source)),
        };
        format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {agent}\r\nAccept: */*\r\n{forwarded}{}: {}\r\n\r\n",
            self.host,
            crate::crowd::HEADER,
            crowd.name()
        )
    }
}

/// The address of a client in `X-Forwarded-For`: in 100.64.0.0/10, which is neither loopback nor private, so that no
/// proxy skips it. Clients keep their networks.
fn forwarded_address(source: Ipv4Addr) -> Ipv4Addr {
    let [_, block, network, host] = source.octets();
    match block {
        90 => Ipv4Addr::new(100, 127, network, host), // the office
        0..=99 => Ipv4Addr::new(100, 64 + block % 40, network, host),
        block => {
            let index = u32::from(block - 100) * 256 + u32::from(network);
            Ipv4Addr::new(100, 104 + (index / 256 % 23) as u8, (index % 256) as u8, host)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::{self, Origin};
    use std::collections::HashSet;

    #[test]
    fn a_url_is_a_host_and_a_port() {
        let target = Target::of_url("http://127.0.0.1:8888/", None).unwrap();
        assert_eq!((target.address, target.host.as_str()), ("127.0.0.1:8888".parse().unwrap(), "127.0.0.1:8888"));
        assert_eq!(Target::of_url("http://127.0.0.1", None).unwrap().address.port(), 80);
        assert_eq!(Target::of_url("http://[::1]:81", None).unwrap().address, "[::1]:81".parse().unwrap());
        for url in ["", "127.0.0.1:80", "http://", "http://a b", "http://a\r\nX: y", "http://127.0.0.1:80/path?x"] {
            assert!(Target::of_url(url, None).unwrap_err().starts_with("write the target as"), "{url:?}");
        }
        let missing = Some(Path::new("/nonexistent/ca.pem"));
        assert!(Target::of_url("https://127.0.0.1", missing).unwrap_err().starts_with("cannot verify the target"));
        assert!(Target::of_url("http://127.0.0.1", missing).unwrap().tls.is_none());
    }

    #[test]
    fn forwarded_clients_keep_their_networks_and_stay_apart() {
        let people = (0..crowd::HUMANS).map(crowd::human).chain([crowd::OFFICE]);
        let crawlers = (0..2000).map(|index| Origin::Networks(2000).address(index));
        let addresses: Vec<_> = people.chain(crawlers).map(forwarded_address).collect();
        let networks: HashSet<_> = addresses.iter().map(|address| address.octets()[..3].to_vec()).collect();
        assert_eq!(networks.len(), addresses.len());
        let blocks: HashSet<_> = addresses[..41].iter().map(|address| address.octets()[1]).collect();
        assert_eq!(blocks.len(), 41, "people and office do not share a /16");
        assert!(addresses[41..].iter().all(|address| !blocks.contains(&address.octets()[1])));
        assert!(addresses.iter().all(|address| address.octets()[0] == 100 && address.octets()[1] & 0xc0 == 64));
    }

    #[test]
    fn a_request_names_its_client_where_the_server_looks() {
        let target = Target { identity: Identity::XForwardedFor, ..Target::new("127.0.0.1:1".parse().unwrap()) };
        let request = target.request("/x", Crowd::Crawler, Origin::Networks(9).address(3));
        assert!(request.contains("\r\nX-Forwarded-For: 100.104.3.1\r\n"), "{request}");
        let paths = Paths { article: "/a?p={id}".into(), archive: "/b".into(), asset: "/c/{id}".into() };
        let target = Target { paths: Some(paths), ..target };
        assert_eq!(target.path(Kind::Article, 7, false), "/a?p=7");
        assert_eq!(target.path(Kind::Archive, 7, false), "/b");
    }
}
