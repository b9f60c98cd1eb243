//! The head of a request, and the rules that make it unambiguous: every request that is accepted here has one host, one
//! target and one body length for any server that reads it.

use core::mem::MaybeUninit;

use tollgate_core::inputs::separator;
use tollgate_core::path::NormalPath;

use super::fields::{Fields, Name, tokens};
use super::hop_by_hop::NOMINATED_MAX;
use super::{Fault, Length, Version, content_length};

/// The maximum number of fields in the head of a request.
pub const FIELDS_MAX: usize = 128;

/// A request head as the gate forwards it: one method, one target, one authority.
///
/// The memory is reused for the next request on the same connection.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    /// The method, unchanged, because methods are case-sensitive.
    pub method: Vec<u8>,
    /// Path and query, starting with `/`; or `*`. Only [`set_target`](Self::set_target) writes it.
    target: Vec<u8>,
    /// The paths that backends may read instead of the one in `target`, which rules check too.
    normal_path: NormalPath,
    /// Host and optional port, the single source for the addressed host. Empty only for HTTP/1.0.
    pub authority: Vec<u8>,
    /// The client's HTTP version.
    pub version: Version,
    /// The length of the body.
    pub length: Length,
    /// The fields in order, except `Host`, which is in `authority`, and `Content-Length` and `Transfer-Encoding`, which
    /// are in `length`. There is at most one `Cookie`.
    pub fields: Fields,
}

impl RequestHead {
    /// Parses one complete head, as found by [`super::scan::Scan`].
    pub fn parse(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let mut slots = [const { MaybeUninit::uninit() }; FIELDS_MAX];
        let mut parsed = httparse::Request::new(&mut []);
        match parsed.parse_with_uninit_headers(bytes, &mut slots) {
            Ok(httparse::Status::Complete(end)) if end == bytes.len() => {}
            Ok(_) => return Err(Fault::Malformed("the head is cut short")),
            Err(httparse::Error::TooManyHeaders) => return Err(Fault::HeadTooLarge),
            Err(httparse::Error::Version) => return Err(Fault::VersionNotSupported),
            Err(_) => return Err(Fault::Malformed("the head is not HTTP/1.1")),
        }
        let (Some(method), Some(target), Some(minor)) = (parsed.method, parsed.path, parsed.version) else {
            return Err(Fault::Malformed("the request line is incomplete"));
        };
        self.clear();
        self.method.extend_from_slice(method.as_bytes());
        self.version = if minor == 0 { Version::Http10 } else { Version::Http11 };
        let mut framing = Framing::default();
        let mut host = None;
        for header in parsed.headers.iter() {
            match Name::of_any_case(header.name) {
                Name::Host if host.replace(header.value).is_some() => {
                    return Err(Fault::Malformed("more than one Host"));
                }
                Name::Host => {}
                Name::ContentLength => framing.content_length(header.value, bytes)?,
                Name::TransferEncoding => framing.transfer_encoding(header.value)?,
                // An empty cookie has no meaning, and joined to others it would leave a separator at the end.
                _ if header.value.is_empty() && header.name.eq_ignore_ascii_case("cookie") => {}
                _ => self.fields.push(header.name.as_bytes(), header.value),
            }
        }
        // Backends treat several `Cookie` lines differently. RFC 9113, 8.2.3, specifies how to join them.
        self.fields.join(b"cookie", separator(b"cookie"));
        self.length = framing.length(self.version)?;
        self.address(target.as_bytes(), host)?;
        let nominated = self.fields.all(Name::Connection).flat_map(tokens).count();
        if nominated > NOMINATED_MAX {
            return Err(Fault::Malformed("Connection names too many fields"));
        }
        Ok(())
    }

    /// Removes the request and keeps the memory.
    pub fn clear(&mut self) {
        self.method.clear();
        self.set_target(b"");
        self.authority.clear();
        self.fields.clear();
        self.version = Version::Http11;
        self.length = Length::Empty;
    }

    /// Path and query, starting with `/`; or `*`.
    pub fn target(&self) -> &[u8] {
        &self.target
    }

    /// Replaces the target and normalizes its path.
    pub fn set_target(&mut self, target: &[u8]) {
        self.target.clear();
        self.target.extend_from_slice(target);
        self.read_path();
    }

    fn read_path(&mut self) {
        let end = memchr::memchr(b'?', &self.target).unwrap_or(self.target.len());
        self.normal_path.read(&self.target[..end]);
    }

    /// The paths that backends may read instead of [`path`](Self::path); `None` if all read the same.
    pub fn normal_path(&self) -> Option<&NormalPath> {
        self.normal_path.differing()
    }

    /// The path without the query.
    pub fn path(&self) -> &[u8] {
        let end = memchr::memchr(b'?', &self.target).unwrap_or(self.target.len());
        &self.target[..end]
    }

    /// Whether this is a HEAD request, whose response has no body, regardless of its fields.
    pub fn is_head(&self) -> bool {
        self.method == b"HEAD"
    }

    /// Whether the method is idempotent (RFC 9110, 9.2.2).
    pub fn is_idempotent(&self) -> bool {
        matches!(&self.method[..], b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE")
    }

    /// Whether the client waits for `100 Continue` before it sends the body.
    pub fn expects_continue(&self) -> bool {
        self.version == Version::Http11
            && self.length != Length::Empty
            && self.fields.has_token(Name::Expect, b"100-continue")
    }

    /// The value of `Upgrade`, if the client asks for an upgrade that a gate may tunnel.
    ///
    /// An upgrade to HTTP (`h2c`, `HTTP/3.0`) or TLS is `None`, because requests in that tunnel would bypass the gate.
    pub fn upgrade(&self) -> Option<&[u8]> {
        if self.version != Version::Http11 || !self.fields.has_token(Name::Connection, b"upgrade") {
            return None;
        }
        let protocol = self.fields.first(Name::Upgrade)?;
        let hidden_http = self.fields.all(Name::Upgrade).flat_map(tokens).any(|token| {
            token.eq_ignore_ascii_case(b"h2c")
                || token.eq_ignore_ascii_case(b"h2")
                || token.get(..4).is_some_and(|name| name.eq_ignore_ascii_case(b"http"))
                || token.get(..3).is_some_and(|name| name.eq_ignore_ascii_case(b"tls"))
        });
        (!hidden_http).then_some(protocol)
    }

    /// Whether the client keeps the connection open for another request after this one.
    pub fn keeps_alive(&self) -> bool {
        self.fields.keeps_alive(self.version)
    }

    /// Checks the target of the request line and the value of `Host`, and sets `target` and `authority`.
    fn address(&mut self, target: &[u8], host: Option<&[u8]>) -> Result<(), Fault> {
        if self.method == b"CONNECT" {
            return Err(Fault::NotImplemented("a gate is not a forward proxy"));
        }
        if memchr::memchr(b'#', target).is_some() {
            return Err(Fault::Malformed("the request target has a fragment"));
        }
        match host {
            Some(host) if is_authority(host) => self.authority.extend_from_slice(host),
            Some(_) => return Err(Fault::Malformed("Host is not a host")),
            None if self.version == Version::Http10 => {}
            None => return Err(Fault::Malformed("Host is missing")),
        }
        if target.first() == Some(&b'/') || (target == b"*" && self.method == b"OPTIONS") {
            self.set_target(target);
            return Ok(());
        }
        self.absolute(target, host.is_some())
    }

    /// Sets `target` and `authority` from a target that is a URL. The authority of the URL must equal `Host`.
    fn absolute(&mut self, target: &[u8], has_host: bool) -> Result<(), Fault> {
        let rest = strip_prefix_any_case(target, b"http://")
            .or_else(|| strip_prefix_any_case(target, b"https://"))
            .ok_or(Fault::Malformed("the request target is neither a path nor a URL"))?;
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if !is_authority(authority) {
            return Err(Fault::Malformed("the request target has no valid host"));
        }
        if has_host && !authority.eq_ignore_ascii_case(&self.authority) {
            return Err(Fault::Malformed("the request target and Host disagree"));
        }
        self.authority.clear();
        self.authority.extend_from_slice(authority);
        if path.first() != Some(&b'/') {
            self.target.push(b'/');
        }
        self.target.extend_from_slice(path);
        self.read_path();
        Ok(())
    }
}

impl Name {
    /// The name if it is one for framing or addressing; [`Fields::push`] recognizes the others.
    fn of_any_case(name: &str) -> Self {
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => Self::Host,
            14 if name.eq_ignore_ascii_case("content-length") => Self::ContentLength,
            17 if name.eq_ignore_ascii_case("transfer-encoding") => Self::TransferEncoding,
            _ => Self::Other,
        }
    }
}

/// The framing fields, collected until all have been read.
#[derive(Default)]
struct Framing {
    content_length: Option<u64>,
    chunked: bool,
}

impl Framing {
    fn content_length(&mut self, value: &[u8], head: &[u8]) -> Result<(), Fault> {
        const FAULT: Fault = Fault::Malformed("Content-Length is not one plain number");
        // More white space than one space after the colon is legal, but some servers read it differently.
        let before = value.as_ptr() as usize - head.as_ptr() as usize;
        let plain_before = head[before - 1] == b':' || (head[before - 1] == b' ' && head[before - 2] == b':');
        let plain_after = head.get(before + value.len()) == Some(&b'\r');
        let length = content_length(value).filter(|_| plain_before && plain_after).ok_or(FAULT)?;
        match self.content_length.replace(length) {
            Some(other) if other != length => Err(FAULT),
            _ => Ok(()),
        }
    }

    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Fault> {
        if !value.eq_ignore_ascii_case(b"chunked") {
            return Err(Fault::NotImplemented("the only transfer coding is chunked"));
        }
        if core::mem::replace(&mut self.chunked, true) {
            return Err(Fault::Malformed("more than one Transfer-Encoding"));
        }
        Ok(())
    }

    fn length(&self, version: Version) -> Result<Length, Fault> {
        match (self.chunked, self.content_length) {
            (true, Some(_)) => Err(Fault::Malformed("both Content-Length and Transfer-Encoding")),
            (true, None) if version == Version::Http10 => Err(Fault::Malformed("Transfer-Encoding on HTTP/1.0")),
            (true, None) => Ok(Length::Chunked),
            // A length of 0 is forwarded as `Content-Length: 0`, which some servers require of a POST.
            (false, Some(length)) => Ok(Length::Fixed(length)),
            (false, None) => Ok(Length::Empty),
        }
    }
}

/// Whether these bytes are a host with an optional port, without a user or path.
pub fn is_authority(bytes: &[u8]) -> bool {
    let host_byte = |byte: &u8| {
        byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'='
            )
    };
    let (host, rest) = match bytes {
        [b'[', tail @ ..] => {
            let Some(end) = memchr::memchr(b']', tail) else { return false };
            let literal = &tail[..end];
            if literal.is_empty() || !literal.iter().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))
            {
                return false;
            }
            (literal, &tail[end + 1..])
        }
        _ => {
            let (host, rest) = bytes.split_at(memchr::memchr(b':', bytes).unwrap_or(bytes.len()));
            if !host.iter().all(host_byte) {
                return false;
            }
            (host, rest)
        }
    };
    let port_is_plain = match rest {
        [] => true,
        [b':', port @ ..] => port.len() <= 5 && port.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    !host.is_empty() && port_is_plain
}

fn strip_prefix_any_case<'a>(bytes: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RequestHead, Fault> {
        let mut head = RequestHead::default();
        head.parse(text.as_bytes()).map(|()| head)
    }

    fn with_fields(fields: &str) -> Result<RequestHead, Fault> {
        parse(&format!("POST /a?b HTTP/1.1\r\nHost: site\r\n{fields}\r\n"))
    }

    fn refused(text: &str) -> u16 {
        match with_fields(text) {
            Ok(head) => panic!("taken: {text:?} as {head:?}"),
            Err(fault) => fault.status(),
        }
    }

    #[test]
    fn lines_of_cookies_are_joined_without_empty_ones() {
        let cookies = |lines: &str| with_fields(lines).unwrap().fields.find(b"cookie").map(<[u8]>::to_vec);
        assert_eq!(cookies("Cookie:\r\nCookie: a=1\r\ncookie: b=2\r\nCookie: \r\n").unwrap(), b"a=1; b=2");
        assert_eq!(cookies("Cookie:\r\nCookie: \r\n"), None);
    }

    #[test]
    fn a_plain_request_is_read() {
        let head = parse("GET /a?b=1 HTTP/1.1\r\nhOsT: Site:80\r\nX-A: 1\r\n\r\n").unwrap();
        assert_eq!(
            (&head.method[..], &head.target[..], &head.authority[..]),
            (&b"GET"[..], &b"/a?b=1"[..], &b"Site:80"[..])
        );
        assert_eq!(head.path(), b"/a");
        assert_eq!(head.length, Length::Empty);
        assert_eq!(head.fields.len(), 1);
        assert!(head.keeps_alive());
    }

    #[test]
    fn content_length_must_be_one_plain_number() {
        for value in [
            "+5",
            "5,5",
            "5, 5",
            "0x5",
            " 5",
            "\t5",
            "5 ",
            "-1",
            "",
            "5a",
            "18446744073709551616",
            "99999999999999999999999",
        ] {
            assert_eq!(refused(&format!("Content-Length: {value}\r\n")), 400, "{value:?}");
        }
        assert_eq!(refused("Content-Length: 5\r\nContent-Length: 6\r\n"), 400);
        assert_eq!(with_fields("Content-Length: 5\r\nContent-Length: 5\r\n").unwrap().length, Length::Fixed(5));
        assert_eq!(with_fields("Content-Length:5\r\n").unwrap().length, Length::Fixed(5));
    }

    #[test]
    fn transfer_encoding_must_be_chunked_once_and_alone() {
        assert_eq!(with_fields("Transfer-Encoding: Chunked\r\n").unwrap().length, Length::Chunked);
        assert_eq!(refused("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"), 400);
        assert_eq!(refused("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"), 400);
        assert_eq!(refused("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400);
        for value in [
            "chunked, identity",
            "xchunked",
            "identity",
            "gzip, chunked",
            "chunked, chunked",
            "\u{b}chunked",
            "chunked;q=1",
            "",
        ] {
            assert!(matches!(refused(&format!("Transfer-Encoding: {value}\r\n")), 400 | 501), "{value:?}");
        }
        assert!(parse("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").is_err());
    }

    #[test]
    fn white_space_and_controls_where_they_do_not_belong_are_refused() {
        for line in
            ["Host : b", " folded", "X-A\t: 1", "X-A: a\0b", "X-A: a\rb", "X A: 1", "Content-Length\0: 5", ": 1", "X-A"]
        {
            assert_eq!(refused(&format!("{line}\r\n")), 400, "{line:?}");
        }
        for line in [
            "GET  / HTTP/1.1",
            "GET / HTTP/1.1 ",
            " GET / HTTP/1.1",
            "GET / http/1.1",
            "GET /",
            "G\u{1}T / HTTP/1.1",
            "GET /a b HTTP/1.1",
        ] {
            assert!(parse(&format!("{line}\r\nHost: a\r\n\r\n")).is_err(), "{line:?}");
        }
        assert_eq!(parse("GET / HTTP/2.0\r\nHost: a\r\n\r\n").unwrap_err(), Fault::VersionNotSupported);
    }

    #[test]
    fn there_is_exactly_one_host() {
        let host = |fields: &str| parse(&format!("GET / HTTP/1.1\r\n{fields}\r\n")).map_err(Fault::status);
        assert_eq!(host("").unwrap_err(), 400);
        assert_eq!(host("Host: a\r\nHost: a\r\n").unwrap_err(), 400);
        for bad in ["", "a b", "a/b", "u@a", "a:b", "a:123456", "[::1", "[]", "a,b", "a:80:80", "http://a"] {
            assert_eq!(host(&format!("Host: {bad}\r\n")).unwrap_err(), 400, "{bad:?}");
        }
        for good in ["a", "a.b:8080", "[::1]", "[2001:db8::1]:443", "a_b-c.d", "1.2.3.4"] {
            assert_eq!(host(&format!("Host: {good}\r\n")).unwrap().authority, good.as_bytes());
        }
        assert!(parse("GET / HTTP/1.0\r\n\r\n").unwrap().authority.is_empty());
    }

    #[test]
    fn an_absolute_target_must_agree_with_host() {
        let head = parse("GET http://SITE/x?y HTTP/1.1\r\nHost: site\r\n\r\n").unwrap();
        assert_eq!((&head.target[..], &head.authority[..]), (&b"/x?y"[..], &b"SITE"[..]));
        assert_eq!(parse("GET http://site HTTP/1.1\r\nHost: site\r\n\r\n").unwrap().target, b"/");
        assert_eq!(parse("GET http://site?q HTTP/1.1\r\nHost: site\r\n\r\n").unwrap().target, b"/?q");
        for target in ["http://other/", "http://u@site/", "http:///x", "ftp://site/", "site:80", "*", "/a#b", "x"] {
            assert!(parse(&format!("GET {target} HTTP/1.1\r\nHost: site\r\n\r\n")).is_err(), "{target}");
        }
        assert_eq!(parse("OPTIONS * HTTP/1.1\r\nHost: site\r\n\r\n").unwrap().target, b"*");
        assert_eq!(parse("CONNECT site:443 HTTP/1.1\r\nHost: site:443\r\n\r\n").unwrap_err().status(), 501);
    }

    #[test]
    fn an_upgrade_needs_both_fields_and_is_never_to_http() {
        let upgrade = |fields: &str| with_fields(fields).unwrap().upgrade().map(<[u8]>::to_vec);
        assert_eq!(upgrade("Connection: Upgrade\r\nUpgrade: websocket\r\n").as_deref(), Some(&b"websocket"[..]));
        assert_eq!(upgrade("Upgrade: websocket\r\n"), None);
        assert_eq!(upgrade("Connection: upgrade\r\n"), None);
        for hidden in ["h2c", "websocket, H2C", "HTTP/2.0", "TLS/1.2"] {
            assert_eq!(upgrade(&format!("Connection: upgrade\r\nUpgrade: {hidden}\r\n")), None, "{hidden}");
        }
    }

    #[test]
    fn too_many_fields_are_refused() {
        assert_eq!(refused(&"A: 1\r\n".repeat(FIELDS_MAX)), 431);
        assert_eq!(refused(&format!("Connection: {}\r\n", "a,".repeat(NOMINATED_MAX + 1))), 400);
    }
}
