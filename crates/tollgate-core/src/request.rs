//! The properties of a request that rules use.

use core::net::IpAddr;

use crate::cookie::find_cookie;
use crate::key_sink::KeySink;
use crate::path::{NormalPath, canonical};
use crate::query::write_parameter;

/// A request as rules see it. Most properties are optional, because the caller of a door (an
/// interface for programs that are not behind the gate) may send only its identifier.
pub trait Request {
    /// The client's address, after trusted proxies are skipped.
    fn client(&self) -> Option<IpAddr> {
        None
    }

    /// The method, such as `GET`; empty if unknown.
    fn method(&self) -> &[u8] {
        b""
    }

    /// The path and query, such as `/a?b=c`; empty if unknown.
    fn target(&self) -> &[u8] {
        b""
    }

    /// The requested host, as returned by [`host_of`].
    fn host(&self) -> Option<&[u8]> {
        None
    }

    /// The value of the header with this name; `name` is in lower case. Several header lines are joined by the
    /// [separator](crate::inputs::separator).
    fn header(&self, _name: &str) -> Option<&[u8]> {
        None
    }

    /// The other forms in which backends may read [`path`](Self::path): the result of [`NormalPath::differing`].
    fn normal_path(&self) -> Option<&NormalPath> {
        None
    }

    /// An attribute supplied by the caller of the library, such as an identifier or a descriptor entry.
    fn attribute(&self, _name: &str) -> Option<&[u8]> {
        None
    }

    /// The number of attributes. Zero for requests that come through the gate.
    fn attribute_count(&self) -> usize {
        0
    }

    /// The rule that is to decide, by its name: then no other rule applies, and the conditions of this one are not
    /// looked at. Callers of doors may name a rule; requests that come through the gate never do.
    fn rule_name(&self) -> Option<&str> {
        None
    }

    /// Whether the account of the request is flagged. Always `false` without a watch.
    fn is_flagged(&self) -> bool {
        false
    }

    /// Hands the value of a parameter of the query to `sink`; `false` when there is none.
    fn write_query(&self, name: &str, sink: &mut impl KeySink) -> bool {
        write_parameter(self.target(), name, sink)
    }

    /// The value at a JSON pointer in the body. `None` if there is none, or if the body is not known.
    fn json(&self, _pointer: &str) -> Option<&[u8]> {
        None
    }

    /// The target without its query.
    fn path(&self) -> &[u8] {
        path_of(self.target())
    }

    /// The path that names the route. It is the same for all spellings of a path.
    fn canonical_path(&self) -> &[u8] {
        canonical(self.path(), self.normal_path())
    }

    /// The cookie of this name.
    fn cookie(&self, name: &str) -> Option<&[u8]> {
        find_cookie(self.header("cookie")?, name)
    }
}

/// The path of a target. That of a target without a path, such as `?a=b`, is `/`.
pub fn path_of(target: &[u8]) -> &[u8] {
    match target.iter().position(|&byte| byte == b'?') {
        None => target,
        Some(0) => b"/",
        Some(end) => &target[..end],
    }
}

/// The host of an authority such as the `Host` header, without its port and without trailing dots, which do
/// not change the host. `None` if nothing is left. Hosts are compared without regard to case.
pub fn host_of(authority: &[u8]) -> Option<&[u8]> {
    let host = match authority {
        [b'[', ..] => authority.split_inclusive(|&byte| byte == b']').next()?,
        _ => authority.split(|&byte| byte == b':').next()?,
    };
    let end = host.iter().rposition(|&byte| byte != b'.')?;
    Some(&host[..=end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_no_port_and_no_dot_at_the_end() {
        for (authority, host) in [
            ("site", Some("site")),
            ("site:80", Some("site")),
            ("site.example.:8080", Some("site.example")),
            ("[::1]:80", Some("[::1]")),
            ("[::1]", Some("[::1]")),
            ("", None),
            (".", None),
            (":80", None),
        ] {
            assert_eq!(host_of(authority.as_bytes()), host.map(str::as_bytes), "{authority}");
        }
    }
}
