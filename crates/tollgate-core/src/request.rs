//! What rules look at.

use core::net::IpAddr;

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
    /// The host that was asked for, without a port.
    fn host(&self) -> Option<&[u8]>;
    /// The first header of this name; names are given in lower case.
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
        let cookies = self.header("cookie")?;
        cookies.split(|&byte| byte == b';').find_map(|cookie| {
            let cookie = cookie.trim_ascii();
            let equals = cookie.iter().position(|&byte| byte == b'=')?;
            (&cookie[..equals] == name.as_bytes()).then(|| cookie[equals + 1..].trim_ascii())
        })
    }
}
