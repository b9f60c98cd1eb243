//! A request as described by the caller of a door, in the form that rules use. The caller sends attributes, or the name
//! of a rule and a key for it; `/v1/auth` has its own form, the header fields of a proxy.

use std::borrow::Cow;
use std::net::IpAddr;

use tollgate_core::class::KeySink;
use tollgate_core::network::Network;
use tollgate_core::path::NormalPath;
use tollgate_core::query::write_parameter;
use tollgate_core::request::{Request, host_of, path_of};

/// A request that another process serves, with the attributes that the caller sends.
pub(super) struct DescribedRequest<'a> {
    /// The name of the only rule that decides; without it, all rules of the domain that apply.
    rule: Option<&'a str>,
    /// The key of that rule, whose class has one part. It is the value of every property without an attribute, so that
    /// it is found whatever the class is.
    key: Option<&'a str>,
    /// Names and values.
    attributes: &'a [(Cow<'a, str>, Cow<'a, str>)],
    client: Option<IpAddr>,
    /// The path with its query.
    target: &'a [u8],
    normal_path: NormalPath,
}

impl<'a> DescribedRequest<'a> {
    /// The request with these attributes. `client` or `ip` is an address. Classes and conditions use `method`, `path`,
    /// `host`, `user_agent`, `header:NAME`, `cookie:NAME`, `query:NAME` and `json:/POINTER`. Every other name is an
    /// entry for the class `descriptor:NAME`. An error if `client` is no address.
    pub(super) fn new(
        rule: Option<&'a str>,
        key: Option<&'a str>,
        attributes: &'a [(Cow<'a, str>, Cow<'a, str>)],
    ) -> Result<Self, &'static str> {
        let find = |name: &str| attributes.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
        let client = match find("client").or(find("ip")) {
            Some(text) => Some(address(text).ok_or("`client` is not an IP address")?),
            None => key.and_then(address),
        };
        let path = find("path").map(|path| path_and_query(path.as_bytes()));
        let target = path.or(key.map(str::as_bytes)).unwrap_or_default();
        let normal_path = NormalPath::of(path_of(target));
        Ok(Self { rule, key, attributes, client, target, normal_path })
    }

    /// The request with the entries of one of Envoy's descriptors as its attributes. Entries may have any value, so a
    /// `client` that is no address is ignored.
    pub(super) fn of_descriptor(attributes: &'a [(Cow<'a, str>, Cow<'a, str>)]) -> Self {
        let find = |name: &str| attributes.iter().find(|(known, _)| known == name).map(|(_, value)| &**value);
        let client = find("client").or(find("ip")).or(find("remote_address")).and_then(address);
        let target = find("path").map(|path| path_and_query(path.as_bytes())).unwrap_or_default();
        let normal_path = NormalPath::of(path_of(target));
        Self { rule: None, key: None, attributes, client, target, normal_path }
    }

    fn find(&self, name: &str) -> Option<&[u8]> {
        self.find_by(|known| known == name)
    }

    /// Finds an attribute such as `query:NAME`, by its kind and its name.
    fn find_in(&self, kind: &str, name: &str) -> Option<&[u8]> {
        self.find_by(|known| known.strip_prefix(kind).and_then(|known| known.strip_prefix(':')) == Some(name))
    }

    fn find_by(&self, matches: impl Fn(&str) -> bool) -> Option<&[u8]> {
        self.attributes.iter().find(|(known, _)| matches(known)).map(|(_, value)| value.as_bytes())
    }

    fn key(&self) -> Option<&[u8]> {
        self.key.map(str::as_bytes)
    }
}

/// The path and query of a target. A client may send the target in absolute form, and with a raw `#`: nginx and other
/// servers ignore the rest of such a target.
pub(super) fn path_and_query(target: &[u8]) -> &[u8] {
    let target = target.split(|byte| *byte == b'#').next().unwrap_or_default();
    let Some(scheme) = target.windows(3).position(|three| three == b"://") else { return target };
    if !target[..scheme].iter().all(u8::is_ascii_alphanumeric) {
        return target;
    }
    let rest = &target[scheme + 3..];
    rest.iter().position(|byte| matches!(byte, b'/' | b'?')).map_or(b"/", |at| &rest[at..])
}

/// An address, or the first address of a network.
fn address(text: &str) -> Option<IpAddr> {
    text.parse().ok().or_else(|| Network::parse(text).map(|network| network.address()))
}

impl Request for DescribedRequest<'_> {
    fn client(&self) -> Option<IpAddr> {
        self.client
    }

    fn method(&self) -> &[u8] {
        self.find("method").or(self.key()).unwrap_or_default()
    }

    fn target(&self) -> &[u8] {
        self.target
    }

    fn host(&self) -> Option<&[u8]> {
        host_of(self.find("host").or_else(|| self.header("host")).or(self.key())?)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.find_by(|known| match known.split_once(':') {
            Some(("header", header)) => header.eq_ignore_ascii_case(name),
            _ => name == "user-agent" && matches!(known, "user_agent" | "user-agent"),
        });
        // The methods `cookie` and `host` use the key themselves.
        found.or_else(|| self.key().filter(|_| name != "cookie" && name != "host"))
    }

    fn cookie(&self, name: &str) -> Option<&[u8]> {
        let in_header = || tollgate_core::inputs::find_cookie(self.header("cookie")?, name);
        self.find_in("cookie", name).or_else(in_header).or(self.key())
    }

    fn write_query(&self, name: &str, sink: &mut impl KeySink) -> bool {
        let own = self.find_in("query", name);
        if own.is_none() && write_parameter(self.target, name, sink) {
            return true;
        }
        own.or(self.key()).map(|value| sink.write(value)).is_some()
    }

    fn json(&self, pointer: &str) -> Option<&[u8]> {
        self.find_in("json", pointer).or(self.key())
    }

    fn normal_path(&self) -> Option<&NormalPath> {
        self.normal_path.differing()
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        self.find(name).or(self.key())
    }

    fn attribute_count(&self) -> usize {
        self.attributes.len()
    }

    fn rule_name(&self) -> Option<&str> {
        self.rule
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(pairs: &'static [(&'static str, &'static str)]) -> Vec<(Cow<'static, str>, Cow<'static, str>)> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    #[test]
    fn classes_find_the_attributes_of_the_call() {
        let given = attributes(&[
            ("client", "203.0.113.7"),
            ("method", "POST"),
            ("path", "/a/../b?c=d"),
            ("host", "Site.example:80"),
            ("user_agent", "curl"),
            ("header:X-Api-Key", "k1"),
            ("cookie:sid", "s1"),
            ("user", "u1"),
        ]);
        let request = DescribedRequest::new(None, None, &given).unwrap();
        assert_eq!(request.client(), Some([203, 0, 113, 7].into()));
        assert_eq!((request.method(), request.path()), (&b"POST"[..], &b"/a/../b"[..]));
        assert_eq!(request.canonical_path(), b"/b");
        assert_eq!(request.host(), Some(&b"Site.example"[..]));
        assert_eq!(request.header("user-agent"), Some(&b"curl"[..]));
        assert_eq!(request.header("x-api-key"), Some(&b"k1"[..]));
        assert_eq!((request.cookie("sid"), request.cookie("other")), (Some(&b"s1"[..]), None));
        assert_eq!((request.attribute("user"), request.attribute("device")), (Some(&b"u1"[..]), None));
    }

    #[test]
    fn a_target_has_no_scheme_no_host_and_no_fragment() {
        for (target, expected) in [
            ("/login?a=b", "/login?a=b"),
            ("/login#x", "/login"),
            ("/login?a=b#/c", "/login?a=b"),
            ("http://site.example/login?a=b", "/login?a=b"),
            ("HTTPS://[::1]:8443/login#x", "/login"),
            ("http://site.example", "/"),
            ("http://site.example?a=/b", "?a=/b"),
            ("/to?url=http://site.example/login", "/to?url=http://site.example/login"),
            ("", ""),
        ] {
            assert_eq!(path_and_query(target.as_bytes()), expected.as_bytes(), "{target}");
        }
    }

    #[test]
    fn a_path_ends_at_a_raw_number_sign_and_begins_after_the_host() {
        for path in ["/login#x?a=b", "http://site.example/login", "https://site.example:8443/login#x"] {
            let given: [(Cow<'_, str>, Cow<'_, str>); 1] = [("path".into(), path.into())];
            let requests =
                [DescribedRequest::new(None, None, &given).unwrap(), DescribedRequest::of_descriptor(&given)];
            for request in requests {
                assert_eq!((request.target(), request.canonical_path()), (&b"/login"[..], &b"/login"[..]), "{path}");
            }
        }
        for path in ["http://site.example?a=/b", "?a=/b"] {
            let given: [(Cow<'_, str>, Cow<'_, str>); 1] = [("path".into(), path.into())];
            let request = DescribedRequest::new(None, None, &given).unwrap();
            assert_eq!((request.path(), request.canonical_path()), (&b"/"[..], &b"/"[..]), "{path}");
            assert!(request.write_query("a", &mut crate::gate::KeyText::default()), "{path}");
        }
        let request = DescribedRequest::new(None, Some("user#1"), &[]).unwrap();
        assert_eq!(request.target(), b"user#1", "a key is not a path");
    }

    #[test]
    fn the_key_is_the_value_of_every_property_that_a_class_can_use() {
        let request = DescribedRequest::new(Some("api"), Some("203.0.113.7"), &[]).unwrap();
        assert_eq!(request.client(), Some([203, 0, 113, 7].into()));
        let key = Some(&b"203.0.113.7"[..]);
        assert_eq!([request.header("x-api-key"), request.cookie("sid"), request.attribute("user")], [key; 3]);
        assert!(DescribedRequest::new(None, None, &attributes(&[("client", "nobody")])).is_err());
    }
}
