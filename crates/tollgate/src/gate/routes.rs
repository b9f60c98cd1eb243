//! Which route a request is for: its method and path, with what is only an identifier left out.

use std::hash::{BuildHasher, Hasher, RandomState};

use tollgate_core::queue::RouteKey;
use tollgate_core::request::Request;
use tollgate_core::route::write_route;

/// Finds the route of a request. Keyed, so that nobody can choose paths that collide.
pub(crate) struct RouteHasher(RandomState);

impl RouteHasher {
    pub(crate) fn new() -> Self {
        Self(RandomState::new())
    }

    pub(crate) fn key(&self, request: &impl Request) -> RouteKey {
        let path = request.canonical_path();
        let parent = path.iter().rposition(|&byte| byte == b'/').map_or(path, |slash| &path[..slash]);
        RouteKey { route: self.hash(request.method(), b' ', path), parent: self.hash(request.method(), b'<', parent) }
    }

    fn hash(&self, method: &[u8], kind: u8, path: &[u8]) -> u64 {
        let mut hasher = self.0.build_hasher();
        hasher.write(method);
        hasher.write_u8(kind);
        write_route(path, |piece| hasher.write(piece));
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_wire::http1::RequestHead;

    use super::super::identify::RequestView;
    use super::*;

    #[test]
    fn a_path_has_one_route_however_it_is_written() {
        let hasher = RouteHasher::new();
        let key = |target: &str| {
            let mut head = RequestHead::default();
            head.parse(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
            hasher.key(&RequestView { client: [127, 0, 0, 1].into(), head: &head, is_flagged: false })
        };
        for target in ["/a/b?x", "/a/b/", "//a/b", "/%61/b", "/a;x/b;y", "/c/../a/b"] {
            assert_eq!(key(target), key("/a/b"), "{target}");
        }
        assert_ne!(key("/a/c"), key("/a/b"));
        assert_eq!(key("/a/x1%2fy/../b"), key("/a/x2%2fy/../b"), "ambiguous paths share one route");
    }
}
