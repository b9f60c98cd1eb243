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
        let path = request.path();
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
