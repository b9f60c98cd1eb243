//! The content of one line of a recording: a request, or a change of the band. The parsers of all formats fill a
//! `Draft`.

use core::net::IpAddr;

use tollgate_core::band::Band;
use tollgate_core::path::NormalPath;
use tollgate_core::request::host_of;
use tollgate_core::time::{Moment, Span};

use super::client::Client;
use super::text::{List, Scratch, Text};
use super::{Expected, LineError};

/// One line of a recording.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all lines are requests, and a box would allocate for each")]
pub enum Line<'a> {
    /// A request was made.
    Request(Request<'a>),
    /// The load band of the backend from this time on.
    Band {
        /// The time.
        at: Moment,
        /// The band.
        band: Band,
    },
}

/// A request in a trace or an access log.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The time, since the origin of the trace or since 1970.
    pub at: Moment,
    /// The client.
    pub client: Client<'a>,
    /// The client, as logged.
    pub client_text: &'a [u8],
    /// The method; `None` if it is missing or the request was not HTTP.
    pub method: Option<&'a [u8]>,
    /// The target with its query; `None` if it is missing or the request was not HTTP.
    pub target: Option<&'a [u8]>,
    /// The paths that backends may read instead of the one in `target`, which rules check too; `None` if all read the
    /// same.
    pub normal_path: Option<&'a NormalPath>,
    /// The logged headers.
    pub headers: LineFields<'a>,
    /// Values that the caller of a door supplied about the request, or the ticket that it got.
    pub attributes: LineFields<'a>,
    /// The cost of the request, or its duration if the cost is not logged.
    pub cost: Option<Span>,
    /// Whether `cost` is CPU time that a gate measured or that a trace states. Otherwise it is a duration, which
    /// includes the time that the request waited for others. `true` without a cost is a request that did not reach a
    /// backend.
    pub is_measured: bool,
    /// The duration of the request, if it is logged.
    pub duration: Option<Span>,
    /// The size of the response body in bytes.
    pub body_bytes: Option<u64>,
    /// The status of the response.
    pub status: Option<u16>,
}

/// Names and values of one request.
#[derive(Clone, Copy)]
pub struct LineFields<'a> {
    line: &'a [u8],
    decoded: &'a [u8],
    texts: &'a [(Text, Text)],
}

impl tollgate_core::request::Request for Request<'_> {
    fn client(&self) -> Option<IpAddr> {
        match self.client {
            Client::Address(address) => Some(address),
            Client::Name(_) => None,
        }
    }

    fn method(&self) -> &[u8] {
        self.method.unwrap_or_default()
    }

    fn target(&self) -> &[u8] {
        self.target.map(|target| split_authority(target).1).unwrap_or_default()
    }

    fn host(&self) -> Option<&[u8]> {
        host_of(match self.target.map(split_authority) {
            Some((authority @ [_, ..], _)) => authority,
            _ => self.headers.first(b"host")?,
        })
    }

    fn normal_path(&self) -> Option<&NormalPath> {
        self.normal_path
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.first(name.as_bytes())
    }

    /// Rules on identifiers use the client as logged.
    fn attribute(&self, name: &str) -> Option<&[u8]> {
        self.attributes.first(name.as_bytes()).or_else(|| (name == "identifier").then_some(self.client_text))
    }
}

/// Splits `http://host/path`, the target form for forward proxies, into authority and the rest. Other targets
/// have an empty authority.
fn split_authority(target: &[u8]) -> (&[u8], &[u8]) {
    if target.first() == Some(&b'/') {
        return (b"", target);
    }
    let Some(scheme) = target.windows(3).take(10).position(|three| three == b"://") else {
        return (b"", target);
    };
    let rest = &target[scheme + 3..];
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    (&rest[..end], if rest.get(end) == Some(&b'/') { &rest[end..] } else { b"/" })
}

impl<'a> LineFields<'a> {
    /// The first value of this name, ignoring case.
    pub fn first(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.iter().find(|(candidate, _)| candidate.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All values of this name, ignoring case, in the order of the line.
    pub fn all<'n>(&self, name: &'n [u8]) -> impl DoubleEndedIterator<Item = &'a [u8]> + use<'a, 'n> {
        self.iter().filter(move |(candidate, _)| candidate.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Names and values in the order of the line.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let Self { line, decoded, texts } = *self;
        texts.iter().map(move |(name, value)| (name.bytes(line, decoded), value.bytes(line, decoded)))
    }
}

impl core::fmt::Debug for LineFields<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let text = |bytes| String::from_utf8_lossy(bytes);
        f.debug_map().entries(self.iter().map(|(name, value)| (text(name), text(value)))).finish()
    }
}

/// A request while its line is being parsed.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) at: Option<Moment>,
    pub(super) client: Option<Text>,
    pub(super) method: Option<Text>,
    pub(super) target: Option<Text>,
    /// The measured cost, if `is_measured`.
    pub(super) cost: Option<Span>,
    pub(super) is_measured: bool,
    pub(super) duration: Option<Span>,
    pub(super) body_bytes: Option<u64>,
    pub(super) status: Option<u16>,
}

impl Draft {
    /// The complete request, or an error if the time or the client is missing. `time` is the expected kind of
    /// time.
    #[inline]
    pub(super) fn finish<'a>(
        self,
        line: &'a [u8],
        scratch: &'a mut Scratch,
        time: Expected,
    ) -> Result<Request<'a>, LineError> {
        if let Some(target) = self.target {
            scratch.read_path(target, line, |target| split_authority(target).1);
        }
        let scratch = &*scratch;
        let decoded = &scratch.decoded[..];
        let text = |text: Text| text.bytes(line, decoded);
        let at = self.at.ok_or(LineError::at(line.len(), time))?;
        let client =
            self.client.filter(|client| !client.is_empty()).ok_or(LineError::at(line.len(), Expected::Client))?;
        Ok(Request {
            at,
            client: Client::parse(text(client)),
            client_text: text(client),
            method: self.method.map(text),
            target: self.target.map(text),
            normal_path: self.target.and_then(|_| scratch.normal_path()),
            headers: LineFields { line, decoded, texts: scratch.fields(List::Headers) },
            attributes: LineFields { line, decoded, texts: scratch.fields(List::Attributes) },
            cost: if self.is_measured { self.cost } else { self.duration },
            is_measured: self.is_measured,
            duration: self.duration,
            body_bytes: self.body_bytes,
            status: self.status,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Parser};
    use super::*;
    use tollgate_core::request::Request as _;

    #[test]
    fn a_target_has_no_authority_as_at_the_backend() {
        for (target, authority, rest) in [
            ("/", "", "/"),
            ("/a/b?c=/d", "", "/a/b?c=/d"),
            ("http://example.org/a?b", "example.org", "/a?b"),
            ("http://example.org?a=/b", "example.org", "/"),
            ("https://[::1]:8443", "[::1]:8443", "/"),
            ("/redirect?to=http://example.org/x", "", "/redirect?to=http://example.org/x"),
            ("*", "", "*"),
            ("example.org:443", "", "example.org:443"),
            ("", "", ""),
        ] {
            assert_eq!(split_authority(target.as_bytes()), (authority.as_bytes(), rest.as_bytes()), "{target}");
        }
    }

    #[test]
    fn a_host_has_no_port_and_an_absolute_target_outranks_the_header() {
        for (path, host, expect) in [
            ("/", "example.org:80", "example.org"),
            ("/", "[::1]:80", "[::1]"),
            ("/", "[::1]", "[::1]"),
            ("http://example.net:8080/a", "example.org", "example.net"),
        ] {
            let line = format!(r#"{{"at_ms": 1, "client": "x", "path": "{path}", "headers": {{"Host": "{host}"}}}}"#);
            let mut parser = Parser::new();
            let Ok(Line::Request(request)) = parser.parse(Format::Trace, line.as_bytes()) else { panic!("{line}") };
            assert_eq!(request.host(), Some(expect.as_bytes()));
        }
    }

    #[test]
    fn a_caller_that_is_named_is_an_identifier() {
        let line = br#"{"at_ms": 1, "client": "device-7", "attributes": {"user": "u1"}}"#;
        let mut parser = Parser::new();
        let Ok(Line::Request(request)) = parser.parse(Format::Trace, line) else { panic!("not read") };
        assert_eq!(request.client(), None);
        assert_eq!(request.attribute("identifier"), Some(&b"device-7"[..]));
        assert_eq!(request.attribute("user"), Some(&b"u1"[..]));
        assert_eq!(request.attribute("team"), None);
    }
}
