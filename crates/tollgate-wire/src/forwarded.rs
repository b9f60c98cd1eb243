//! `X-Forwarded-For` and `Forwarded`: finds the client's address in requests from trusted proxies, and writes it into
//! requests to the backend. The gate, the forward-auth door and `tollgate replay` use it.
//!
//! Clients can send these fields themselves. Only the entries that trusted proxies appended are reliable, so
//! the list is walked from the right: each trusted address vouches for the one to its left, and the first
//! untrusted one is the client. An invalid entry ends the walk at the last valid hop.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

use tollgate_core::network::unmapped;

/// The maximum number of hops that are walked. No real deployment has a longer chain of trusted proxies.
const HOPS_MAX: usize = 64;

/// The client behind `peer`, by `X-Forwarded-For` values in the order received. `peer` itself must be
/// trusted.
pub fn client_by_x_forwarded_for<'a>(
    peer: IpAddr,
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
    trusted: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let hops = values.rev().flat_map(|value| value.rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii));
    walk(peer, hops.map(address), trusted)
}

/// The client behind `peer`, by `Forwarded` values (RFC 7239) in the order received. `peer` itself must be
/// trusted.
pub fn client_by_forwarded<'a>(
    peer: IpAddr,
    values: impl DoubleEndedIterator<Item = &'a [u8]>,
    trusted: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let hops = values.rev().flat_map(|value| ElementsFromRight { rest: Some(value) }.map(forwarded_for));
    walk(peer, hops, trusted)
}

/// The first untrusted address of `hops`, which are in order from the right; `None` is an invalid entry.
fn walk(peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>, trusted: impl Fn(IpAddr) -> bool) -> IpAddr {
    let mut client = unmapped(peer);
    for hop in hops.take(HOPS_MAX) {
        let Some(hop) = hop else { break };
        client = hop;
        if !trusted(hop) {
            break;
        }
    }
    client
}

/// Parses an address as proxies write it: alone, with a port, or in brackets.
pub fn address(text: &[u8]) -> Option<IpAddr> {
    let text = core::str::from_utf8(text).ok()?;
    let bracketed = || {
        let (inside, after) = text.strip_prefix('[')?.split_once(']')?;
        let port_is_plain = after.is_empty() || after.strip_prefix(':').is_some_and(is_port);
        if port_is_plain { inside.parse::<Ipv6Addr>().ok().map(IpAddr::V6) } else { None }
    };
    let address = text
        .parse::<IpAddr>()
        .ok()
        .or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()))
        .or_else(bracketed)?;
    Some(unmapped(address))
}

fn is_port(text: &str) -> bool {
    // RFC 7239 allows an obfuscated port such as `_a1`.
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// The elements of a `Forwarded` list from the right; commas within quotes do not separate. It starts from
/// the right because the left part comes from the client and may have unbalanced quotes.
struct ElementsFromRight<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for ElementsFromRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let mut quoted = false;
        for (at, byte) in rest.iter().enumerate().rev() {
            match byte {
                b'"' if !is_quoted_pair(rest, at) => quoted = !quoted,
                b',' if !quoted => {
                    self.rest = Some(&rest[..at]);
                    return Some(rest[at + 1..].trim_ascii());
                }
                _ => {}
            }
        }
        self.rest = None;
        Some(rest.trim_ascii())
    }
}

/// Whether the byte at this index is escaped by a backslash.
fn is_quoted_pair(text: &[u8], at: usize) -> bool {
    text[..at].iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The address of the element's `for` parameter. `None` if there is none, if there are several, or if the
/// element is malformed.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = element;
    loop {
        let equals = rest.iter().position(|byte| *byte == b'=')?;
        let name = rest[..equals].trim_ascii();
        let (value, after) = value(rest[equals + 1..].trim_ascii_start())?;
        if name.eq_ignore_ascii_case(b"for") && found.replace(address(value)?).is_some() {
            return None;
        }
        match after.trim_ascii_start() {
            [] | [b';'] => return found,
            [b';', next @ ..] => rest = next,
            _ => return None,
        }
    }
}

/// The token or quoted string at the start of `text`, without quotes, and the rest.
fn value(text: &[u8]) -> Option<(&[u8], &[u8])> {
    if let [b'"', quoted @ ..] = text {
        let end = (0..quoted.len()).find(|&at| quoted[at] == b'"' && !is_quoted_pair(quoted, at))?;
        return Some((&quoted[..end], &quoted[end + 1..]));
    }
    let end = text.iter().position(|byte| matches!(byte, b';' | b'"')).unwrap_or(text.len());
    (end > 0).then(|| (text[..end].trim_ascii_end(), &text[end..]))
}

/// Writes one element of `Forwarded`: `for=203.0.113.7;host="site:80";proto=https`. `client_text` is `client` as text,
/// without brackets. An empty `host` is left out. `secure` is whether the client's connection has TLS.
pub fn write_forwarded(out: &mut Vec<u8>, client: IpAddr, client_text: &str, host: &[u8], secure: bool) {
    let (before, after): (&[u8], &[u8]) = if client.is_ipv4() { (b"for=", b"") } else { (b"for=\"[", b"]\"") };
    [before, client_text.as_bytes(), after].iter().for_each(|part| out.extend_from_slice(part));
    // A host that is not a token must be quoted. It has no quotes or backslashes, because such requests are
    // rejected.
    if !host.is_empty() {
        let plain = host.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
        let quote: &[u8] = if plain { b"" } else { b"\"" };
        [b";host=", quote, host, quote].iter().for_each(|part| out.extend_from_slice(part));
    }
    out.extend_from_slice(if secure { b";proto=https" } else { b";proto=http" });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn trusted(address: IpAddr) -> bool {
        address.is_loopback() || address == ip("10.0.0.1") || address == ip("10.0.0.2")
    }

    fn by_xff(lines: &[&str]) -> String {
        client_by_x_forwarded_for(ip("127.0.0.1"), lines.iter().map(|line| line.as_bytes()), trusted).to_string()
    }

    fn by_forwarded(lines: &[&str]) -> String {
        client_by_forwarded(ip("127.0.0.1"), lines.iter().map(|line| line.as_bytes()), trusted).to_string()
    }

    #[test]
    fn the_client_is_the_first_untrusted_address_from_the_right() {
        assert_eq!(by_xff(&["1.2.3.4"]), "1.2.3.4");
        assert_eq!(by_xff(&["6.6.6.6, 1.2.3.4"]), "1.2.3.4");
        assert_eq!(by_xff(&["6.6.6.6, 1.2.3.4, 10.0.0.1"]), "1.2.3.4");
        assert_eq!(by_xff(&["6.6.6.6", "1.2.3.4", "10.0.0.1 ,10.0.0.2"]), "1.2.3.4");
        assert_eq!(by_xff(&["10.0.0.2, 10.0.0.1"]), "10.0.0.2", "all trusted: the leftmost");
        assert_eq!(by_xff(&[]), "127.0.0.1");
    }

    #[test]
    fn an_invalid_entry_ends_the_walk_at_the_last_valid_hop() {
        assert_eq!(by_xff(&["1.2.3.4, unknown"]), "127.0.0.1");
        assert_eq!(by_xff(&["1.2.3.4, unknown, 10.0.0.1"]), "10.0.0.1");
        for garbage in ["", ",", "1.2.3", "1.2.3.4.5", "::1::", "1.2.3.4:99999", "[::1", "localhost", "\u{e9}"] {
            assert_eq!(by_xff(&[garbage]), "127.0.0.1", "{garbage}");
        }
    }

    #[test]
    fn all_address_forms_of_proxies_are_parsed() {
        for (text, address) in [
            ("1.2.3.4:5678", "1.2.3.4"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:5678", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            ("[::ffff:1.2.3.4]:80", "1.2.3.4"),
        ] {
            assert_eq!(by_xff(&[text]), address, "{text}");
        }
    }

    #[test]
    fn ten_thousand_elements_are_not_walked() {
        let line = "10.0.0.1,".repeat(10_000) + "10.0.0.1";
        assert_eq!(by_xff(&[&line]), "10.0.0.1");
        assert_eq!(by_forwarded(&[&"for=10.0.0.1,".repeat(10_000)]), "127.0.0.1");
    }

    #[test]
    fn forwarded_is_walked_the_same_way() {
        assert_eq!(by_forwarded(&["for=1.2.3.4"]), "1.2.3.4");
        assert_eq!(by_forwarded(&["for=6.6.6.6, For=\"1.2.3.4:80\";proto=http, for=10.0.0.1;by=x"]), "1.2.3.4");
        assert_eq!(by_forwarded(&["for=\"[2001:db8::1]:4711\";host=\"a,b\""]), "2001:db8::1");
        assert_eq!(by_forwarded(&["for=1.2.3.4, for=_hidden"]), "127.0.0.1");
        assert_eq!(by_forwarded(&["for=1.2.3.4, proto=http"]), "127.0.0.1");
        assert_eq!(by_forwarded(&["for=\"1.2.3.4"]), "127.0.0.1");
    }

    #[test]
    fn quoted_text_of_a_client_is_no_element_and_no_parameter() {
        for host in ["a;for=9.9.9.1;b", "a, for=9.9.9.1", r#"a\", for=9.9.9.1, b=\""#, r#"a\\;for=9.9.9.1"#, r#"\""#] {
            assert_eq!(by_forwarded(&[&format!("host=\"{host}\";for=1.2.3.4")]), "1.2.3.4", "{host}");
            assert_eq!(by_forwarded(&[&format!("for=1.2.3.4;host=\"{host}\"")]), "1.2.3.4", "{host}");
        }
        for garbage in
            ["for=9.9.9.1;for=9.9.9.2", "for=9.9.9.1 x=y", "for=\"9.9.9.1\"x", "for", "for=", "host=a\"b;for=9.9.9.1"]
        {
            assert_eq!(by_forwarded(&[garbage]), "127.0.0.1", "{garbage}");
        }
        assert_eq!(by_forwarded(&["for = 1.2.3.4 ; proto = http;"]), "1.2.3.4");
    }

    #[test]
    fn a_written_element_is_quoted_where_necessary() {
        let written = |address: &str, host: &str, secure| {
            let mut out = Vec::new();
            write_forwarded(&mut out, ip(address), address, host.as_bytes(), secure);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(written("1.2.3.4", "site", false), "for=1.2.3.4;host=site;proto=http");
        assert_eq!(written("2001:db8::1", "site:8080", true), "for=\"[2001:db8::1]\";host=\"site:8080\";proto=https");
    }

    proptest! {
        #[test]
        fn any_text_gives_the_peer_or_an_address_in_it(text in "[ -~]{0,80}") {
            let client = by_xff(&[&text]);
            prop_assert!(client == "127.0.0.1" || address(client.as_bytes()).is_some());
            by_forwarded(&[&text]);
        }

        #[test]
        fn client_input_does_not_change_the_entries_of_a_trusted_proxy(text in "[ -~]{0,80}", host in "[ -~]{0,20}") {
            let host = host.replace('\\', "\\\\").replace('"', "\\\"");
            let appended = format!("host=\"{host}\";for=1.2.3.4");
            prop_assert_eq!(by_forwarded(&[&format!("{text}, {appended}")]), "1.2.3.4");
            prop_assert_eq!(by_forwarded(&[&text, &appended]), "1.2.3.4");
        }
    }
}
