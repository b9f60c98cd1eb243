//! The route of a request: its method and path, without identifiers such as the number in `/orders/17`.
//!
//! The gate learns for each route how much CPU time its requests cost, the price. The queue and the budgets look up the
//! price by a hash of the route.

use std::hash::Hasher;
use std::sync::OnceLock;

use siphasher::sip::SipHasher13;
use tollgate_core::queue::RouteKey;
use tollgate_core::request::Request;
use tollgate_core::route::write_route;

/// Hashes routes with a secret key, so that clients cannot choose paths that collide.
#[derive(Default)]
pub(crate) struct RouteHasher {
    /// The key of the hash; random unless one was restored before the first request.
    key: OnceLock<[u64; 2]>,
}

impl RouteHasher {
    /// Uses the hash key from before a restart, so that the prices that were learned for routes stay valid. Returns
    /// false if another key is in use already.
    pub(crate) fn restore(&self, key: [u64; 2]) -> bool {
        self.key.set(key).is_ok()
    }

    /// The key of the hash. It is secret: a client that knows it can choose paths that collide.
    pub(crate) fn secret(&self) -> [u64; 2] {
        *self.key.get_or_init(|| [0, 1].map(|_| getrandom::u64().expect("the system has random numbers")))
    }

    /// The hash of the request's route, by which its price is looked up, and that of the parent path: a route that has
    /// no price yet gets the price of its siblings.
    pub(crate) fn key(&self, request: &impl Request) -> RouteKey {
        let path = request.canonical_path();
        let parent = path.iter().rposition(|&byte| byte == b'/').map_or(path, |slash| &path[..slash]);
        RouteKey { route: self.hash(request.method(), b' ', path), parent: self.hash(request.method(), b'<', parent) }
    }

    /// `kind` is a byte that makes the hash of a parent path differ from that of a route with the same path.
    fn hash(&self, method: &[u8], kind: u8, path: &[u8]) -> u64 {
        let [first, second] = self.secret();
        let mut hasher = SipHasher13::new_with_keys(first, second);
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
        let hasher = RouteHasher::default();
        let key = |target: &str| {
            let mut head = RequestHead::default();
            head.parse(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
            hasher.key(&RequestView::new([127, 0, 0, 1].into(), &head))
        };
        for target in ["/a/b?x", "/a/b/", "//a/b", "/%61/b", "/a;x/b;y", "/c/../a/b"] {
            assert_eq!(key(target), key("/a/b"), "{target}");
        }
        assert_ne!(key("/a/c"), key("/a/b"));
        assert_eq!(key("/a/x1%2fy/../b"), key("/a/x2%2fy/../b"), "ambiguous paths share one route");
    }

    #[test]
    fn routes_have_the_same_keys_after_a_restart_and_others_without_the_secret() {
        let hash = |hasher: &RouteHasher| hasher.hash(b"GET", b' ', b"/page/17");
        let (first, restarted, other) = (RouteHasher::default(), RouteHasher::default(), RouteHasher::default());
        let known = hash(&first);
        assert!(restarted.restore(first.secret()));
        assert_eq!(hash(&restarted), known);
        assert_ne!(hash(&other), known);
        assert!(!other.restore(first.secret()), "it has hashed already");
    }
}
