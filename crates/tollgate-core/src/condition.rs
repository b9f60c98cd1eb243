//! The conditions of rules. A rule applies to a request if its condition `when` holds, and none of its conditions
//! `unless`. Servers interpret some requests in several ways, called *readings* here: `when` holds if one reading
//! matches, and `unless` only if all do, so that no spelling of a request bypasses a rule.

use alloc::string::String;
use alloc::vec::Vec;

use crate::cookie::other_reading;
use crate::form::AMBIGUOUS;
use crate::key_sink::KeySink;
use crate::network::Network;
use crate::path::PathPattern;
pub use crate::pattern::Pattern;
use crate::request::Request;
use crate::site::SiteHosts;

/// Requirements on a request. All nonempty fields must match; one alternative of a field is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// The site that the request belongs to; `None`: any.
    pub site: Option<SiteHosts>,
    /// Methods, in upper case.
    pub methods: Vec<String>,
    /// Paths, without the query.
    pub paths: Vec<PathPattern>,
    /// Hosts without a port, compared without regard to case.
    pub hosts: Vec<Pattern>,
    /// Headers, each with the patterns of which it must match one; the name is in lower case. The header `host` is
    /// compared like `hosts`.
    pub headers: Vec<(String, Vec<Pattern>)>,
    /// Cookies, each with the patterns of which it must match one.
    pub cookies: Vec<(String, Vec<Pattern>)>,
    /// Query parameters, each with the patterns of which it must match one. A value that the backend may interpret in
    /// two ways matches every pattern of `when` and none of `unless`.
    pub queries: Vec<(String, Vec<Pattern>)>,
    /// Protocols of the header `Upgrade`, such as `websocket`.
    pub upgrades: Vec<Pattern>,
    /// Networks; the client must be in one of them.
    pub clients: Vec<Network>,
    /// Whether the account of the request must be flagged by the watch, or must not; `None`: either.
    pub flagged: Option<bool>,
    /// Descriptors of Envoy: each is a list of keys with the pattern of the value. A request matches one if it has
    /// these attributes and no others.
    pub descriptors: Vec<Vec<(String, Pattern)>>,
}

impl Condition {
    /// Whether the condition is empty, so that it holds for every request.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether at least one reading of `request` matches. `when` uses this: a spelling that the backend may
    /// interpret as the rule's path or method does not bypass the rule.
    #[inline]
    pub fn may_hold(&self, request: &impl Request) -> bool {
        self.holds::<true>(request)
    }

    /// Whether all readings of `request` match. `unless` uses this: a request is exempt only if the backend
    /// cannot interpret it in another way.
    #[inline]
    pub fn must_hold(&self, request: &impl Request) -> bool {
        self.holds::<false>(request)
    }

    /// [`may_hold`](Self::may_hold) if `MAY`, otherwise [`must_hold`](Self::must_hold).
    #[inline]
    fn holds<const MAY: bool>(&self, request: &impl Request) -> bool {
        // A header is looked up only if a pattern needs it, because a lookup compares all headers.
        let among = |patterns: &[Pattern], text: &[u8]| patterns.iter().any(|pattern| pattern.matches(text));
        self.site.as_ref().is_none_or(|site| site.contains(request.host().unwrap_or_default()))
            && (self.methods.is_empty() || self.is_method::<MAY>(request.method()))
            && (self.paths.is_empty() || self.is_path::<MAY>(request))
            && (self.hosts.is_empty() || among(&self.hosts, request.host().unwrap_or_default()))
            && (self.upgrades.is_empty() || self.is_upgrade::<MAY>(request.header("upgrade").unwrap_or_default()))
            && self.headers.iter().all(|(name, patterns)| header(request, name).is_some_and(|v| among(patterns, v)))
            && self.cookies.iter().all(|(name, patterns)| {
                request.cookie(name).is_some_and(|value| is_cookie::<MAY>(value, |value| among(patterns, value)))
            })
            && self.queries.iter().all(|(name, patterns)| is_parameter::<MAY>(request, name, patterns))
            && (self.clients.is_empty()
                || request.client().is_some_and(|client| self.clients.iter().any(|network| network.contains(client))))
            && self.flagged.is_none_or(|flagged| flagged == request.is_flagged())
            && (self.descriptors.is_empty() || self.is_descriptor(request))
    }

    fn is_descriptor(&self, request: &impl Request) -> bool {
        let is_entry = |(key, pattern): &(String, Pattern)| request.attribute(key).is_some_and(|v| pattern.matches(v));
        let is_it = |entries: &Vec<(String, Pattern)>| {
            request.attribute_count() == entries.len() && entries.iter().all(is_entry)
        };
        self.descriptors.iter().any(is_it)
    }

    /// Methods are case-sensitive, but some servers treat `post` as `POST`.
    fn is_method<const MAY: bool>(&self, method: &[u8]) -> bool {
        let same = |known: &[u8]| if MAY { known.eq_ignore_ascii_case(method) } else { known == method };
        self.methods.iter().any(|known| same(known.as_bytes()))
    }

    /// `Upgrade` is a list from which the backend chooses.
    fn is_upgrade<const MAY: bool>(&self, list: &[u8]) -> bool {
        let is_one = |protocol: &[u8]| self.upgrades.iter().any(|pattern| pattern.matches(protocol));
        let mut protocols = list.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        if MAY { protocols.any(is_one) } else { protocols.all(is_one) }
    }

    fn is_path<const MAY: bool>(&self, request: &impl Request) -> bool {
        let (path, normal) = (request.path(), request.normal_path());
        self.paths.iter().any(|pattern| pattern.matches::<MAY>(path, normal))
    }
}

/// The longest value that a condition compares, in bytes: long enough for identifiers, short enough for the stack.
const COMPARED_BYTES_MAX: usize = 256;

/// The value of a query parameter in a condition.
struct ComparedValue {
    bytes: [u8; COMPARED_BYTES_MAX],
    /// The length of the whole value, which may exceed that of `bytes`.
    length: usize,
}

impl KeySink for ComparedValue {
    fn write(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        if let Some(room) = self.bytes.get_mut(self.length..end) {
            room.copy_from_slice(bytes);
        }
        self.length = end;
    }
}

/// Whether a parameter of the query matches a pattern. A parameter with two different values, or a value of more than
/// [`COMPARED_BYTES_MAX`] bytes, may match any pattern.
fn is_parameter<const MAY: bool>(request: &impl Request, name: &str, patterns: &[Pattern]) -> bool {
    let mut value = ComparedValue { bytes: [0; COMPARED_BYTES_MAX], length: 0 };
    if !request.write_query(name, &mut value) {
        return false;
    }
    match value.bytes.get(..value.length) {
        None | Some(AMBIGUOUS) => MAY,
        Some(known) => patterns.iter().any(|pattern| pattern.matches(known)),
    }
}

/// Whether the value of a cookie matches, as it is written and as servers that decode it read it. A value that servers
/// decode in different ways may match any pattern.
fn is_cookie<const MAY: bool>(value: &[u8], matches: impl Fn(&[u8]) -> bool) -> bool {
    let other = other_reading(value);
    let other = other.as_deref().unwrap_or(value);
    if MAY { other == AMBIGUOUS || matches(value) || matches(other) } else { matches(value) && matches(other) }
}

fn header<'a>(request: &'a impl Request, name: &str) -> Option<&'a [u8]> {
    if name == "host" { request.host() } else { request.header(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with two cookies.
    struct Visit {
        target: &'static str,
        is_flagged: bool,
    }

    const VISIT: Visit = Visit { target: "/", is_flagged: false };

    impl Request for Visit {
        fn method(&self) -> &[u8] {
            b"GET"
        }
        fn target(&self) -> &[u8] {
            self.target.as_bytes()
        }
        fn header(&self, name: &str) -> Option<&[u8]> {
            (name == "cookie").then_some(b"theme=dark; session=abc")
        }
        fn is_flagged(&self) -> bool {
            self.is_flagged
        }
    }

    #[test]
    fn a_condition_can_require_query_parameters() {
        let long = alloc::format!("/?device={}", "x".repeat(300)).leak();
        for (target, pattern, may, must) in [
            ("/ws?device=tv%2D1", "tv-*", true, true),
            ("/ws?device=tv-1", "tv-2", false, false),
            ("/ws?device", "*", true, true),
            ("/ws?devices=1", "*", false, false),
            ("/ws", "*", false, false),
            // A backend may use either value, or only a part of a long one.
            ("/ws?device=1&device=2", "3", true, false),
            (long, "x*", true, false),
        ] {
            let queries = Vec::from([("device".into(), Vec::from([Pattern::new(pattern)]))]);
            let condition = Condition { queries, ..Condition::default() };
            let visit = Visit { target, ..VISIT };
            let held = (condition.may_hold(&visit), condition.must_hold(&visit));
            assert_eq!(held, (may, must), "{target}");
        }
    }

    #[test]
    fn a_condition_uses_a_flag_only_if_configured() {
        let holds = |flagged, is_flagged| {
            Condition { flagged, ..Condition::default() }.may_hold(&Visit { is_flagged, ..VISIT })
        };
        assert!(holds(None, true) && holds(None, false));
        assert!(holds(Some(true), true) && !holds(Some(true), false));
        assert!(holds(Some(false), false) && !holds(Some(false), true));
    }

    #[test]
    fn a_condition_can_require_cookies() {
        let holds = |cookies: &[(&str, &[&str])]| {
            let patterns = |texts: &[&str]| texts.iter().map(|text| Pattern::new(*text)).collect();
            let cookies = cookies.iter().map(|(name, texts)| (String::from(*name), patterns(texts))).collect();
            Condition { cookies, ..Condition::default() }.may_hold(&VISIT)
        };
        assert!(holds(&[("session", &["*"])]) && holds(&[("session", &["a*"]), ("theme", &["dark"])]));
        assert!(!holds(&[("sess", &["*"])]) && !holds(&[("Session", &["*"])]) && !holds(&[("session", &["b*"])]));
        assert!(holds(&[("theme", &["light", "dark"])]) && !holds(&[("theme", &["light", "high contrast"])]));
    }

    #[test]
    fn a_cookie_matches_in_one_reading_and_exempts_only_in_all() {
        let check = |value: &[u8], may: bool, must: bool| {
            let is_free = |value: &[u8]| value == b"free";
            assert_eq!((is_cookie::<true>(value, is_free), is_cookie::<false>(value, is_free)), (may, must));
        };
        check(b"free", true, true);
        check(b"%66ree", true, false);
        check(b"\"free\"", true, false);
        check(b"paid", false, false);
        // Servers decode it in different ways, or one of two cookies of this name counts.
        check(b"\"\\146ree\"", true, false);
        check(AMBIGUOUS, true, false);
        assert!(is_cookie::<false>(b"\"a\\\"b\"", |_| true), "the pattern * matches every reading");
    }

    #[test]
    fn of_several_patterns_for_a_header_one_must_match() {
        let holds = |texts: &[&str]| {
            let patterns = texts.iter().map(|text| Pattern::ignoring_case(*text)).collect();
            Condition { headers: Vec::from([("cookie".into(), patterns)]), ..Condition::default() }.must_hold(&VISIT)
        };
        assert!(holds(&["*SESSION*"]) && holds(&["*spider*", "*session*"]) && !holds(&["*spider*", "*bot*"]));
    }
}
