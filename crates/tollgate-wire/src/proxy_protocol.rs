//! The PROXY protocol, versions 1 and 2: the header in which a load balancer sends the client's address.
//!
//! A sender of this header can claim any address. A gate therefore parses it only if it is configured to. It then
//! closes connections that do not come from a trusted proxy or do not begin with the header.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The maximum length of a version 1 header with its line end, in bytes, by the specification.
const V1_BYTES_MAX: usize = 107;
/// The maximum length of a header, in bytes: one of version 2, with its first 16 bytes. The length field of version 2
/// allows 65535 more, but real headers have addresses and a few hundred bytes of extensions.
pub const HEADER_BYTES_MAX: usize = 16 + 4096;
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The origin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A client at this address.
    Client(SocketAddr),
    /// A client whose address the proxy does not know. It is not the proxy itself, so its forwarding headers
    /// are not trusted.
    Unknown,
    /// The proxy itself, such as for a health check.
    Direct,
}

/// The bytes are not a PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHeader;

/// Parses the header at the start of a connection. Returns its length in bytes, after which the client's data follows,
/// and the origin of the connection; `None` if the header is incomplete.
pub fn parse(bytes: &[u8]) -> Result<Option<(usize, Source)>, InvalidHeader> {
    let signature_seen = bytes.len().min(V2_SIGNATURE.len());
    if bytes[..signature_seen] == V2_SIGNATURE[..signature_seen] {
        return parse_v2(bytes);
    }
    let name_seen = bytes.len().min(6);
    if bytes[..name_seen] == b"PROXY "[..name_seen] { parse_v1(bytes) } else { Err(InvalidHeader) }
}

fn parse_v1(bytes: &[u8]) -> Result<Option<(usize, Source)>, InvalidHeader> {
    let seen = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(newline) = memchr::memchr(b'\n', seen) else {
        return if seen.len() == V1_BYTES_MAX { Err(InvalidHeader) } else { Ok(None) };
    };
    let line = seen[..newline].strip_suffix(b"\r").ok_or(InvalidHeader)?;
    let line = core::str::from_utf8(line).map_err(|_| InvalidHeader)?;
    let mut words = line.split(' ').skip(1);
    let source = match words.next() {
        // Not `Direct`: version 1 has no marker for a proxy's own connections, such as health checks.
        Some("UNKNOWN") => Source::Unknown,
        Some("TCP4") => Source::Client(v1_source::<Ipv4Addr>(words)?),
        Some("TCP6") => Source::Client(v1_source::<Ipv6Addr>(words)?),
        _ => return Err(InvalidHeader),
    };
    Ok(Some((newline + 1, source)))
}

/// The client's address and port, from the words after `TCP4` or `TCP6`.
fn v1_source<'a, A: core::str::FromStr + Into<IpAddr>>(
    mut words: impl Iterator<Item = &'a str>,
) -> Result<SocketAddr, InvalidHeader> {
    let mut word = || words.next().ok_or(InvalidHeader);
    let (source, _destination) = (address::<A>(word()?)?, address::<A>(word()?)?);
    let (port, _destination_port) = (port(word()?)?, port(word()?)?);
    if words.next().is_some() {
        return Err(InvalidHeader);
    }
    Ok(SocketAddr::new(source, port))
}

fn address<A: core::str::FromStr + Into<IpAddr>>(word: &str) -> Result<IpAddr, InvalidHeader> {
    word.parse::<A>().map(Into::into).map_err(|_| InvalidHeader)
}

fn port(word: &str) -> Result<u16, InvalidHeader> {
    let plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    if plain { word.parse().map_err(|_| InvalidHeader) } else { Err(InvalidHeader) }
}

fn parse_v2(bytes: &[u8]) -> Result<Option<(usize, Source)>, InvalidHeader> {
    let Some(fixed) = bytes.first_chunk::<16>() else { return Ok(None) };
    let (command, family) = (fixed[12], fixed[13]);
    let after = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if 16 + after > HEADER_BYTES_MAX || command >> 4 != 2 {
        return Err(InvalidHeader);
    }
    let Some(body) = bytes.get(16..16 + after) else { return Ok(None) };
    let source = match (command & 0xf, family >> 4) {
        // The proxy itself: a health check.
        (0, _) => Source::Direct,
        (1, 1) => {
            let addresses = body.first_chunk::<12>().ok_or(InvalidHeader)?;
            let [a, b, c, d, _, _, _, _, high, low, ..] = *addresses;
            Source::Client(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes([high, low])))
        }
        (1, 2) => {
            let addresses = body.first_chunk::<36>().ok_or(InvalidHeader)?;
            let source = addresses.first_chunk::<16>().ok_or(InvalidHeader)?;
            let port = u16::from_be_bytes([addresses[32], addresses[33]]);
            Source::Client(SocketAddr::new(Ipv6Addr::from(*source).into(), port))
        }
        // Unspecified, or a Unix socket: a real client without an address.
        (1, 0 | 3) => Source::Unknown,
        _ => return Err(InvalidHeader),
    };
    Ok(Some((16 + after, source)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source(bytes: &[u8]) -> Result<Source, InvalidHeader> {
        for cut in 0..bytes.len() {
            if let Ok(Some((length, _))) = parse(&bytes[..cut]) {
                assert!(length <= cut);
            }
        }
        match parse(bytes)? {
            Some((_, source)) => Ok(source),
            None => panic!("not whole: {bytes:?}"),
        }
    }

    fn client(address: &str) -> Result<Source, InvalidHeader> {
        Ok(Source::Client(address.parse().unwrap()))
    }

    fn v2(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = V2_SIGNATURE.to_vec();
        bytes.extend([command, family]);
        bytes.extend((body.len() as u16).to_be_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn version_1_is_read() {
        assert_eq!(source(b"PROXY TCP4 192.0.2.1 10.0.0.1 56324 443\r\nGET /"), client("192.0.2.1:56324"));
        assert_eq!(source(b"PROXY TCP6 2001:db8::1 ::1 1 2\r\n"), client("[2001:db8::1]:1"));
        assert_eq!(source(b"PROXY UNKNOWN\r\n"), Ok(Source::Unknown));
        assert_eq!(source(b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n"), Ok(Source::Unknown));
    }

    #[test]
    fn version_2_is_read() {
        let v4 = [192, 0, 2, 1, 10, 0, 0, 1, 0xdc, 0x04, 1, 187];
        assert_eq!(source(&v2(0x21, 0x11, &v4)), client("192.0.2.1:56324"));
        let mut with_extension = v4.to_vec();
        with_extension.extend([4, 0, 1, 0]);
        assert_eq!(source(&v2(0x21, 0x11, &with_extension)), client("192.0.2.1:56324"));
        let mut v6 = vec![0x20, 1, 0xd, 0xb8];
        v6.extend([0; 11]);
        v6.push(1);
        v6.extend([0; 16]);
        v6.extend([0, 80, 0, 81]);
        assert_eq!(source(&v2(0x21, 0x21, &v6)), client("[2001:db8::1]:80"));
        assert_eq!(source(&v2(0x20, 0, &[])), Ok(Source::Direct), "a health check");
        assert_eq!(source(&v2(0x21, 0, &[])), Ok(Source::Unknown), "unspecified");
        assert_eq!(source(&v2(0x21, 0x31, &[0; 216])), Ok(Source::Unknown), "a local socket");
    }

    #[test]
    fn an_invalid_header_is_rejected_immediately() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01", b"PROXX", b"\r\n\r\n\0\r\nQUIX"] {
            assert_eq!(parse(bytes), Err(InvalidHeader), "{bytes:?}");
        }
        for line in [
            "PROXY TCP4 192.0.2.1 10.0.0.1 56324\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 56324 443 1\r\n",
            "PROXY TCP4 2001:db8::1 10.0.0.1 1 2\r\n",
            "PROXY TCP4 192.0.2.256 10.0.0.1 1 2\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 +1 2\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 1 65536\r\n",
            "PROXY TCP4  192.0.2.1 10.0.0.1 1 2\r\n",
            "PROXY TCP4 192.0.2.1 10.0.0.1 1 2\n",
            "PROXY UDP4 192.0.2.1 10.0.0.1 1 2\r\n",
        ] {
            assert_eq!(parse(line.as_bytes()), Err(InvalidHeader), "{line}");
        }
        assert_eq!(parse(&[b"PROXY UNKNOWN ".to_vec(), vec![b'a'; 100]].concat()), Err(InvalidHeader), "too long");
        for bytes in [
            v2(0x31, 0x11, &[0; 12]),
            v2(0x22, 0x11, &[0; 12]),
            v2(0x21, 0x11, &[0; 11]),
            v2(0x21, 0x41, &[0; 12]),
            v2(0x21, 0x11, &[0; 5000]),
        ] {
            assert_eq!(parse(&bytes), Err(InvalidHeader), "{:?}", &bytes[12..16]);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(start in 0usize..3, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let start: &[u8] = [&b""[..], b"PROXY TCP4 ", V2_SIGNATURE][start];
            if let Ok(Some((length, _))) = parse(&[start, &bytes].concat()) {
                prop_assert!(length <= start.len() + bytes.len());
            }
        }
    }
}
