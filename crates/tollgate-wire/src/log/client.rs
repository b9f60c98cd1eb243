//! Parses the client in a line of an access log or trace: an address with or without a port, or a name.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A client as logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client<'a> {
    /// An address. IPv4-mapped IPv6 addresses are converted to IPv4.
    Address(IpAddr),
    /// Anything else: a resolved host name, or any other name.
    Name(&'a [u8]),
}

impl<'a> Client<'a> {
    /// Parses `203.0.113.7`, `203.0.113.7:4711`, `2001:db8::7`, `[2001:db8::7]:4711`, `fe80::7%eth0`, or a
    /// name.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Self {
        match v4_prefix(bytes) {
            Some((address, length)) if length == bytes.len() || is_port(&bytes[length..]) => {
                Self::Address(address.into())
            }
            _ => v6(bytes).map_or(Self::Name(bytes), |address| Self::Address(IpAddr::V6(address).to_canonical())),
        }
    }
}

/// The dotted quad at the start of `bytes`, and its length. Leading zeros are rejected as in the standard
/// library, because some parsers treat them as octal.
#[inline]
fn v4_prefix(bytes: &[u8]) -> Option<(Ipv4Addr, usize)> {
    let mut at = 0;
    let mut octets = [0u8; 4];
    for (index, octet) in octets.iter_mut().enumerate() {
        if index > 0 {
            (bytes.get(at) == Some(&b'.')).then_some(())?;
            at += 1;
        }
        let start = at;
        let mut value = 0u32;
        while let Some(digit) = bytes.get(at).map(|byte| byte.wrapping_sub(b'0')).filter(|digit| *digit < 10) {
            value = value * 10 + u32::from(digit);
            at += 1;
            if at - start > 3 {
                return None;
            }
        }
        if at == start || (at - start > 1 && bytes[start] == b'0') {
            return None;
        }
        *octet = u8::try_from(value).ok()?;
    }
    Some((octets.into(), at))
}

fn is_port(bytes: &[u8]) -> bool {
    matches!(bytes, [b':', port @ ..] if (1..=5).contains(&port.len()) && port.iter().all(u8::is_ascii_digit))
}

fn v6(bytes: &[u8]) -> Option<Ipv6Addr> {
    let inner = match bytes {
        [b'[', rest @ ..] => {
            let end = rest.iter().position(|byte| *byte == b']')?;
            (rest.len() == end + 1 || is_port(&rest[end + 1..])).then(|| &rest[..end])?
        }
        _ => bytes,
    };
    // The longest address has 45 characters; a zone may follow.
    let address = &inner[..inner.iter().take(46).position(|byte| *byte == b'%').unwrap_or(inner.len())];
    if address.len() > 45 {
        return None;
    }
    core::str::from_utf8(address).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expect: &str) {
        assert_eq!(Client::parse(text.as_bytes()), Client::Address(expect.parse().unwrap()), "{text}");
    }

    #[test]
    fn ports_brackets_zones_and_mapping_do_not_change_the_address() {
        check("203.0.113.7", "203.0.113.7");
        check("203.0.113.7:4711", "203.0.113.7");
        check("2001:db8::7", "2001:db8::7");
        check("[2001:db8::7]", "2001:db8::7");
        check("[2001:DB8::7]:4711", "2001:db8::7");
        check("fe80::7%eth0", "fe80::7");
        check("::ffff:203.0.113.7", "203.0.113.7");
        check("[::ffff:203.0.113.7]:80", "203.0.113.7");
    }

    #[test]
    fn any_other_text_is_a_name() {
        let long = "f".repeat(10_000);
        for name in [
            "crawl-66-249-66-1.googlebot.com",
            "010.1.1.1",
            "1.2.3",
            "1.2.3.4.5",
            "256.1.1.1",
            "1.2.3.4:",
            "[::1",
            "[::1]x",
            "::1%",
            "",
            "\u{0}",
            &long,
        ] {
            match Client::parse(name.as_bytes()) {
                Client::Name(bytes) => assert_eq!(bytes, name.as_bytes()),
                Client::Address(address) => assert_eq!((name, address), ("::1%", "::1".parse().unwrap())),
            }
        }
    }

    proptest! {
        #[test]
        fn addresses_agree_with_the_standard_library(text in "[0-9a-f:.]{0,16}|[0-9]{1,3}(\\.[0-9]{1,3}){3}") {
            let expect = text.parse::<IpAddr>().ok().map(|address| address.to_canonical());
            match Client::parse(text.as_bytes()) {
                Client::Address(address) => prop_assert!(expect == Some(address) || text.contains(':')),
                Client::Name(_) => prop_assert_eq!(expect, None),
            }
        }

        #[test]
        fn every_address_comes_back(bits in any::<u128>(), small in any::<u32>()) {
            for address in [IpAddr::V6(bits.into()), IpAddr::V4(small.into())] {
                let text = address.to_string();
                prop_assert_eq!(Client::parse(text.as_bytes()), Client::Address(address.to_canonical()));
            }
        }
    }
}
