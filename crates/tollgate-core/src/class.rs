//! Classes: the properties of a request from which a rule computes a key. Each key has its own record of the rule's
//! limit. The settings write a class as text, such as `ip/24` or `method+path`.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::cookie::write_value;
pub use crate::key_sink::KeySink;
use crate::network::Network;
use crate::request::Request;
use crate::route::write_route;

/// The properties from which a key is computed: one part, or several combined.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Class {
    pub(crate) parts: Vec<Part>,
}

/// One property of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    /// The client's network, with its prefix length in bits for IPv4 and for IPv6.
    Ip {
        v4: u8,
        v6: u8,
    },
    UserAgent,
    Header(String),
    Cookie(String),
    /// A parameter of the query.
    Query(String),
    /// A value in a JSON body, by JSON pointer.
    Json(String),
    /// The route: the path with `:id` for segments that are identifiers, such as numbers.
    Path,
    Host,
    Method,
    /// The attribute `identifier`, which the application of a gatekeeper, the caller of a door or the caller of the
    /// library supplies.
    Identifier,
    /// An entry of an Envoy descriptor, or another attribute that the caller of a door sends.
    Descriptor(String),
}

/// The reason why a text is not a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClassError {
    /// No class has this name.
    Unknown(String),
    /// An address prefix that is not a number, is too long, or has no IPv6 half.
    Prefix(String),
    /// A header, cookie, query or descriptor without a name, or `json:` without a JSON pointer, which begins with a
    /// slash.
    Nameless(String),
}

impl fmt::Display for ClassError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(text) => {
                write!(formatter, "no class is called {text:?}: write a class such as ip/32 or header:NAME")
            }
            Self::Prefix(text) => write!(formatter, "{text:?} has an invalid prefix length"),
            Self::Nameless(text) if text.starts_with("json:") => {
                write!(formatter, "{text:?} needs a JSON pointer after the colon, such as json:/user/id")
            }
            Self::Nameless(text) => write!(formatter, "{text:?} needs a name after the colon"),
        }
    }
}

impl core::error::Error for ClassError {}

/// The classes without a name of their own, and the usual prefixes of `ip`, for suggestions in error messages.
pub const PLAIN_CLASSES: [&str; 8] = ["ip/32", "ip/24", "ip/16", "user-agent", "path", "host", "method", "identifier"];

impl Class {
    /// Parses `ip/24`, `header:x-api-key`, or several classes joined by `+` such as `method+path`. Names have no `+`.
    pub fn parse(text: &str) -> Result<Self, ClassError> {
        let parts = text.split('+').map(|part| Part::parse(part.trim())).collect::<Result<_, _>>()?;
        Ok(Self { parts })
    }

    /// Writes the key of `request` to `sink`. Returns `false` if the request has no such key; the rule then
    /// does not apply, and the content of `sink` is meaningless.
    #[inline]
    pub fn write_key(&self, request: &impl Request, sink: &mut impl KeySink) -> bool {
        self.parts.iter().all(|part| {
            let present = part.write_key(request, sink);
            sink.end_part();
            present
        })
    }

    /// Writes the key that `identifier` names to `sink`, as [`write_key`](Self::write_key) does for a request.
    /// Returns `false` if it names no key of this class; the content of `sink` is then meaningless. Messages between
    /// gates and masters name a key by its identifier, which is not the class `identifier`: an address or network as
    /// text, any other part verbatim. Several parts are joined by `|`; each `|` and `\` within a part is escaped with
    /// `\`.
    pub fn write_identified(&self, identifier: &[u8], sink: &mut impl KeySink) -> bool {
        if let [part] = self.parts.as_slice() {
            let present = part.write_identified(identifier, false, sink);
            sink.end_part();
            return present;
        }
        let mut rest = Some(identifier);
        let present = self.parts.iter().all(|part| {
            let Some(bytes) = rest else { return false };
            let (text, after) = split_part(bytes);
            rest = after;
            let present = part.write_identified(text, true, sink);
            sink.end_part();
            present
        });
        present && rest.is_none()
    }

    /// Whether a key of `other` determines the key of this class: each part is a part of `other`, or a
    /// network around one.
    pub fn is_determined_by(&self, other: &Self) -> bool {
        let covers = |part: &Part, known: &Part| match (part, known) {
            (Part::Ip { v4, v6 }, Part::Ip { v4: known_v4, v6: known_v6 }) => v4 <= known_v4 && v6 <= known_v6,
            _ => part == known,
        };
        self.parts.iter().all(|part| other.parts.iter().any(|known| covers(part, known)))
    }

    /// Whether keys have several parts, so that their identifiers are escaped.
    pub fn is_joined(&self) -> bool {
        self.parts.len() > 1
    }
}

/// Separates the parts of an identifier.
pub const PART_SEPARATOR: u8 = b'|';
/// Escapes a separator or itself within a part.
pub const PART_ESCAPE: u8 = b'\\';

/// The first part of an identifier, still escaped, and the rest after the separator.
fn split_part(identifier: &[u8]) -> (&[u8], Option<&[u8]>) {
    let mut is_escaped = false;
    let separator = identifier.iter().position(|&byte| {
        let is_separator = byte == PART_SEPARATOR && !is_escaped;
        is_escaped = byte == PART_ESCAPE && !is_escaped;
        is_separator
    });
    separator.map_or((identifier, None), |at| (&identifier[..at], Some(&identifier[at + 1..])))
}

impl fmt::Display for Class {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            if index > 0 {
                formatter.write_str("+")?;
            }
            part.fmt(formatter)?;
        }
        Ok(())
    }
}

impl Part {
    fn parse(text: &str) -> Result<Self, ClassError> {
        let named = |name: &str| match name {
            "" => Err(ClassError::Nameless(text.to_string())),
            name => Ok(name.to_string()),
        };
        match text.split_once(':') {
            // `header:host` is the class `host`, which ignores case, port and trailing dots.
            Some(("header", name)) if name.eq_ignore_ascii_case("host") => return Ok(Self::Host),
            Some(("header", name)) => return named(name).map(|name| Self::Header(name.to_ascii_lowercase())),
            Some(("cookie", name)) => return named(name).map(Self::Cookie),
            Some(("query", name)) => return named(name).map(Self::Query),
            Some(("json", pointer)) if pointer.starts_with('/') => return Ok(Self::Json(pointer.to_string())),
            Some(("json", _)) => return Err(ClassError::Nameless(text.to_string())),
            Some(("descriptor", name)) => return named(name).map(Self::Descriptor),
            _ => {}
        }
        if let Some(prefixes) = text.strip_prefix("ip/") {
            return Self::parse_ip(prefixes).ok_or_else(|| ClassError::Prefix(text.to_string()));
        }
        Ok(match text {
            "user-agent" => Self::UserAgent,
            "path" => Self::Path,
            "host" => Self::Host,
            "method" => Self::Method,
            "identifier" => Self::Identifier,
            _ => return Err(ClassError::Unknown(text.to_string())),
        })
    }

    /// `32`, `24` and `16` bits of IPv4 imply 64, 56 and 48 bits of IPv6, which are usual sizes of
    /// assignments. Other pairs are written in full, such as `ip/20,52`.
    fn parse_ip(prefixes: &str) -> Option<Self> {
        let (v4, v6) = match prefixes {
            "32" => (32, 64),
            "24" => (24, 56),
            "16" => (16, 48),
            pair => {
                let (v4, v6) = pair.split_once(',')?;
                (v4.parse().ok()?, v6.parse().ok()?)
            }
        };
        (v4 <= 32 && v6 <= 128).then_some(Self::Ip { v4, v6 })
    }

    #[inline]
    fn write_key(&self, request: &impl Request, sink: &mut impl KeySink) -> bool {
        let bytes = match self {
            Self::Ip { v4, v6 } => {
                let Some(client) = request.client() else { return false };
                let client = crate::network::unmapped(client);
                sink.network(Network::of(client, if client.is_ipv4() { *v4 } else { *v6 }));
                return true;
            }
            // Clients without the header share one key, so that omitting it does not bypass the rule. With the class
            // `header:user-agent`, they have no key.
            Self::UserAgent => Some(request.header("user-agent").unwrap_or_default()),
            Self::Header(name) => request.header(name),
            Self::Cookie(name) => {
                let Some(value) = request.cookie(name) else { return false };
                write_value(value, sink);
                return true;
            }
            Self::Query(name) => return request.write_query(name, sink),
            Self::Json(pointer) => request.json(pointer),
            Self::Path => {
                write_route(request.canonical_path(), |piece| sink.write(piece));
                return true;
            }
            Self::Host => {
                let Some(host) = request.host() else { return false };
                write_lower_case(host, sink);
                return true;
            }
            Self::Method => Some(request.method()),
            Self::Identifier => request.attribute("identifier"),
            Self::Descriptor(name) => request.attribute(name),
        };
        bytes.map(|bytes| sink.write(bytes)).is_some()
    }

    /// Writes this part of a key, given its text in an identifier. With `escaped`, each `\` in `text` is an escape.
    fn write_identified(&self, text: &[u8], escaped: bool, sink: &mut impl KeySink) -> bool {
        if let Self::Ip { v4, v6 } = self {
            let network = core::str::from_utf8(text).ok().and_then(Network::parse);
            let Some(network) = network else { return false };
            let address = network.address();
            let prefix = if address.is_ipv4() { *v4 } else { *v6 };
            sink.network(Network::of(address, prefix));
            // A network wider than the class's prefix contains several keys.
            return network.prefix() >= prefix;
        }
        if !escaped {
            sink.write(text);
            return true;
        }
        let mut is_escaped = false;
        let pieces = text.split(|&byte| {
            is_escaped = byte == PART_ESCAPE && !is_escaped;
            is_escaped
        });
        pieces.for_each(|piece| sink.write(piece));
        true
    }
}

fn write_lower_case(text: &[u8], sink: &mut impl KeySink) {
    let mut lower = [0; 64];
    for piece in text.chunks(lower.len()) {
        let lower = &mut lower[..piece.len()];
        lower.copy_from_slice(piece);
        lower.make_ascii_lowercase();
        sink.write(lower);
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip { v4: 32, v6: 64 } => formatter.write_str("ip/32"),
            Self::Ip { v4: 24, v6: 56 } => formatter.write_str("ip/24"),
            Self::Ip { v4: 16, v6: 48 } => formatter.write_str("ip/16"),
            Self::Ip { v4, v6 } => write!(formatter, "ip/{v4},{v6}"),
            Self::UserAgent => formatter.write_str("user-agent"),
            Self::Header(name) => write!(formatter, "header:{name}"),
            Self::Cookie(name) => write!(formatter, "cookie:{name}"),
            Self::Query(name) => write!(formatter, "query:{name}"),
            Self::Json(pointer) => write!(formatter, "json:{pointer}"),
            Self::Path => formatter.write_str("path"),
            Self::Host => formatter.write_str("host"),
            Self::Method => formatter.write_str("method"),
            Self::Identifier => formatter.write_str("identifier"),
            Self::Descriptor(name) => write!(formatter, "descriptor:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_reads_back_as_it_was_written() {
        for text in [
            "ip/32",
            "ip/24",
            "ip/16",
            "ip/20,52",
            "user-agent",
            "header:x-api-key",
            "cookie:sid",
            "query:device",
            "json:/user/id",
            "method+path",
        ] {
            assert_eq!(Class::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Class::parse("header:X-Api-Key").unwrap().to_string(), "header:x-api-key");
    }

    #[test]
    fn a_key_determines_the_keys_of_wider_networks_and_of_its_parts() {
        let parse = |text: &str| Class::parse(text).unwrap();
        let is_determined = |class: &str, by: &str| parse(class).is_determined_by(&parse(by));
        for (class, by) in [
            ("ip/32", "ip/32"),
            ("ip/24", "ip/32"),
            ("ip/16", "ip/24"),
            ("path", "method+path"),
            ("ip/16", "path+ip/32"),
        ] {
            assert!(is_determined(class, by), "{class} by {by}");
        }
        for (class, by) in [
            ("ip/32", "ip/24"),
            ("user-agent", "ip/32"),
            ("method+path", "path"),
            ("header:a", "header:b"),
            ("ip/20,64", "ip/24"),
        ] {
            assert!(!is_determined(class, by), "{class} by {by}");
        }
    }

    #[test]
    fn an_invalid_class_is_rejected_with_the_reason() {
        assert_eq!(Class::parse("ip/33"), Err(ClassError::Prefix("ip/33".to_string())));
        assert_eq!(Class::parse("ip/24,129"), Err(ClassError::Prefix("ip/24,129".to_string())));
        assert_eq!(Class::parse("header:"), Err(ClassError::Nameless("header:".to_string())));
        assert!(Class::parse("json:user").unwrap_err().to_string().contains("a JSON pointer after the colon"));
        assert_eq!(Class::parse("user_agent"), Err(ClassError::Unknown("user_agent".to_string())));
        assert_eq!(Class::parse(""), Err(ClassError::Unknown(String::new())));
    }
}
