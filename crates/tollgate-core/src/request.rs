//! What rules look at.

use core::net::IpAddr;

use crate::inputs::find_cookie;
use crate::path::{NormalPath, canonical};

/// A request as rules see it. Everything may be absent but what makes it a request, so that a door which knows only a caller's name can
/// ask too.
pub trait Request {
    /// The client's address, once trusted proxies are looked through.
    fn client(&self) -> Option<IpAddr>;
    /// The method, such as `GET`; empty when not known.
    fn method(&self) -> &[u8];
    /// The path and query, such as `/a?b=c`; empty when not known.
    fn target(&self) -> &[u8];
    /// The host that was asked for, as [`host_of`] finds it.
    fn host(&self) -> Option<&[u8]>;
    /// The header of this name, which is in lower case. The values of several lines are one, with a [separator](crate::inputs::separator)
    /// between them.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// The other readings of [`path`](Self::path): [`NormalPath::differing`] of a [`NormalPath`] that has read it.
    fn normal_path(&self) -> Option<&NormalPath>;
    /// What else a caller names: an identifier, an entry of a descriptor.
    fn attribute(&self, _name: &str) -> Option<&[u8]> {
        None
    }

    /// Whether the account that makes it is flagged. Nobody is, where nobody is watched.
    fn is_flagged(&self) -> bool {
        false
    }

    /// The target without its query.
    fn path(&self) -> &[u8] {
        let target = self.target();
        target.iter().position(|&byte| byte == b'?').map_or(target, |end| &target[..end])
    }

    /// The path that names the route, the same for all spellings of a path.
    fn canonical_path(&self) -> &[u8] {
        canonical(self.path(), self.normal_path())
    }

    /// The cookie of this name.
    fn cookie(&self, name: &str) -> Option<&[u8]> {
        find_cookie(self.header("cookie")?, name)
    }
}

/// The host of an authority such as `Host` has: without its port and without dots at the end, which mean the same host. Nothing if that
/// leaves nothing. Hosts are to be compared in any case.
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
