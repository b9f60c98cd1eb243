//! When a rule applies.

use alloc::string::String;
use alloc::vec::Vec;

use crate::network::Network;
use crate::path::PathPattern;
use crate::request::Request;

/// What a request must be like. Every field that says something must hold; of a field's alternatives one is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Methods, in upper case.
    pub methods: Vec<String>,
    /// Paths, without the query.
    pub paths: Vec<PathPattern>,
    /// Hosts, in lower case, without a port.
    pub hosts: Vec<Pattern>,
    /// Headers and what they must be; the name is in lower case. A header that names the host is compared as `hosts` are.
    pub headers: Vec<(String, Pattern)>,
    /// Cookies and what they must be.
    pub cookies: Vec<(String, Pattern)>,
    /// The protocol that the client asks to change to.
    pub upgrades: Vec<Pattern>,
    /// Networks, one of which the client is in.
    pub clients: Vec<Network>,
    /// Whether the account is flagged.
    pub flagged: Option<bool>,
}

impl Condition {
    /// Whether the condition says nothing, and so holds for every request.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether `request` is like this in at least one of its readings. This is the test of `when`: a spelling that the backend may read as
    /// the path or method of the rule does not bypass the rule.
    #[inline]
    pub fn may_hold(&self, request: &impl Request) -> bool {
        self.holds::<true>(request)
    }

    /// Whether `request` is like this in all of its readings. This is the test of `unless`: a request is exempt only if the backend cannot
    /// read it as anything else.
    #[inline]
    pub fn must_hold(&self, request: &impl Request) -> bool {
        self.holds::<false>(request)
    }

    #[inline]
    fn holds<const MAY: bool>(&self, request: &impl Request) -> bool {
        // What no pattern asks for is not looked up: to find a header, all of them have to be compared.
        let among = |patterns: &[Pattern], text: &[u8]| patterns.iter().any(|pattern| pattern.matches(text));
        (self.methods.is_empty() || self.is_method::<MAY>(request.method()))
            && (self.paths.is_empty() || self.is_path::<MAY>(request))
            && (self.hosts.is_empty() || among(&self.hosts, request.host().unwrap_or_default()))
            && (self.upgrades.is_empty() || self.is_upgrade::<MAY>(request.header("upgrade").unwrap_or_default()))
            && self.headers.iter().all(|(name, pattern)| header(request, name).is_some_and(|v| pattern.matches(v)))
            && self.cookies.iter().all(|(name, pattern)| request.cookie(name).is_some_and(|v| pattern.matches(v)))
            && (self.clients.is_empty()
                || request.client().is_some_and(|client| self.clients.iter().any(|network| network.contains(client))))
            && self.flagged.is_none_or(|flagged| flagged == request.is_flagged())
    }

    /// Methods are case-sensitive, but some servers read `post` as `POST`.
    fn is_method<const MAY: bool>(&self, method: &[u8]) -> bool {
        let same = |known: &[u8]| if MAY { known.eq_ignore_ascii_case(method) } else { known == method };
        self.methods.iter().any(|known| same(known.as_bytes()))
    }

    /// `Upgrade` is a list, of which the backend chooses.
    fn is_upgrade<const MAY: bool>(&self, list: &[u8]) -> bool {
        let is_one = |protocol: &[u8]| self.upgrades.iter().any(|pattern| pattern.matches(protocol));
        let mut protocols = list.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        if MAY { protocols.any(is_one) } else { protocols.all(is_one) }
    }

    fn is_path<const MAY: bool>(&self, request: &impl Request) -> bool {
        let (path, normal) = (request.path(), request.normal_path());
        let matches = |pattern: &PathPattern| {
            if MAY { pattern.may_match(path, normal) } else { pattern.must_match(path, normal) }
        };
        self.paths.iter().any(matches)
    }
}

fn header<'a>(request: &'a impl Request, name: &str) -> Option<&'a [u8]> {
    if name == "host" { request.host() } else { request.header(name) }
}

/// A text in which `*` stands for anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    ignore_case: bool,
}

impl Pattern {
    /// A pattern that tells upper case from lower case, as paths do.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ignore_case: false }
    }

    /// A pattern that does not, as hosts, protocols and headers.
    pub fn ignoring_case(text: impl Into<String>) -> Self {
        Self { text: text.into(), ignore_case: true }
    }

    /// Whether all of `text` is like this, in time linear in both but for repeated stars, where it is their product.
    pub fn matches(&self, text: &[u8]) -> bool {
        let pattern = self.text.as_bytes();
        let same = |a: u8, b: u8| if self.ignore_case { a.eq_ignore_ascii_case(&b) } else { a == b };
        let (mut p, mut t) = (0, 0);
        let mut retry: Option<(usize, usize)> = None;
        while t < text.len() {
            if pattern.get(p) == Some(&b'*') {
                retry = Some((p + 1, t));
                p += 1;
            } else if pattern.get(p).is_some_and(|&byte| same(byte, text[t])) {
                p += 1;
                t += 1;
            } else if let Some((after_star, taken)) = retry {
                retry = Some((after_star, taken + 1));
                (p, t) = (after_star, taken + 1);
            } else {
                return false;
            }
        }
        pattern[p..].iter().all(|&byte| byte == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::NormalPath;
    use core::net::IpAddr;

    /// A request of an account that is flagged or not.
    struct Of(bool);

    impl Request for Of {
        fn client(&self) -> Option<IpAddr> {
            None
        }
        fn method(&self) -> &[u8] {
            b"GET"
        }
        fn target(&self) -> &[u8] {
            b"/"
        }
        fn host(&self) -> Option<&[u8]> {
            None
        }
        fn header(&self, name: &str) -> Option<&[u8]> {
            (name == "cookie").then_some(b"theme=dark; session=abc")
        }
        fn normal_path(&self) -> Option<&NormalPath> {
            None
        }
        fn is_flagged(&self) -> bool {
            self.0
        }
    }

    #[test]
    fn a_condition_looks_at_a_flag_only_if_it_says_so() {
        let holds = |flagged, is_flagged| Condition { flagged, ..Condition::default() }.may_hold(&Of(is_flagged));
        assert!(holds(None, true) && holds(None, false));
        assert!(holds(Some(true), true) && !holds(Some(true), false));
        assert!(holds(Some(false), false) && !holds(Some(false), true));
    }

    #[test]
    fn a_condition_may_ask_for_cookies() {
        let holds = |cookies: &[(&str, &str)]| {
            let cookies = cookies.iter().map(|(name, pattern)| (String::from(*name), Pattern::new(*pattern))).collect();
            Condition { cookies, ..Condition::default() }.may_hold(&Of(false))
        };
        assert!(holds(&[("session", "*")]) && holds(&[("session", "a*"), ("theme", "dark")]));
        assert!(!holds(&[("sess", "*")]) && !holds(&[("Session", "*")]) && !holds(&[("session", "b*")]));
    }

    #[test]
    fn a_star_stands_for_anything_and_the_rest_for_itself() {
        let check = |pattern: &str, text: &str| Pattern::new(pattern).matches(text.as_bytes());
        assert!(check("/login", "/login"));
        assert!(!check("/login", "/login/"));
        assert!(!check("/login", "/Login"));
        assert!(check("/api/*", "/api/a/b"));
        assert!(check("*.php", "/x.php.php"));
        assert!(check("/a*b*c", "/aXbYbZc"));
        assert!(!check("/a*b*c", "/aXbYbZ"));
        assert!(check("*", ""));
        assert!(!check("", "x"));
        assert!(Pattern::ignoring_case("WebSocket").matches(b"websocket"));
    }
}
