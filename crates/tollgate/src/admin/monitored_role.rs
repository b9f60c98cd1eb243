//! The interface between the admin address and the role of this process: a gate, a master, or the watch alone. The
//! roles implement [`MonitoredRole`] in `service`; the handlers of the API call it.
//!
//! A class is the property of a request from which a rule computes its key, such as `ip/24` or `header:x-api-key`; a
//! key is its value for one request. A compound class, such as `method+path`, has keys with a space between the parts.

use std::borrow::Cow;
use std::future::ready;
use std::net::IpAddr;
use std::pin::Pin;

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tollgate_core::class::{Class, KeySink};
use tollgate_core::inputs::separator;
use tollgate_core::network::Network;
use tollgate_core::path::NormalPath;
use tollgate_core::request::{Request, host_of};
use tollgate_core::time::Span;

use crate::mask;
use crate::watch::{escape_key, unescape_key};

/// A boxed future, for answers that may need a round trip to Redis.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A role as the admin address uses it. The defaults are for roles that do not decide about requests.
pub(crate) trait MonitoredRole: Send + Sync {
    /// Name of the role in the API.
    fn role(&self) -> &'static str;
    /// Whether the role is ready to serve.
    fn is_ready(&self) -> bool {
        true
    }
    /// Called once per second.
    fn tick(&self) {}
    /// Fields of the role for the status.
    fn status(&self) -> Value {
        json!({})
    }
    /// Counters since the start, if the role serves requests.
    fn totals(&self) -> Option<Totals> {
        None
    }
    /// Classes whose keys can be listed.
    fn classes(&self) -> Vec<String> {
        Vec::new()
    }
    /// At most `top` keys of a class, those with the highest cost or the most refusals, as JSON objects. Only keys that
    /// contain `search`, in lower case. `None` if there is no such class.
    fn buckets(&self, _class: &str, _top: usize, _search: &str) -> Option<Vec<Value>> {
        None
    }
    /// The key of a class whose masked form is `shown`, if the key is known.
    fn unmask(&self, _class: &str, _shown: &[u8]) -> Option<Vec<u8>> {
        None
    }
    /// The class of addresses and networks in which the load is most concentrated.
    fn concentrated_class(&self) -> String {
        "ip/32".to_owned()
    }
    /// Whether a request would be admitted, and why.
    fn explain<'a>(&'a self, _request: &'a ExplainRequest) -> BoxFuture<'a, Option<Value>> {
        Box::pin(ready(None))
    }
    /// State of all rules that apply to a key.
    fn key<'a>(&'a self, _key: &'a KeyRef) -> BoxFuture<'a, Option<Value>> {
        Box::pin(ready(None))
    }
    /// Resets the state of a key in all rules of its class. Returns how many rules had any, or why it may still exist
    /// on Redis.
    fn forget<'a>(&'a self, _key: &'a KeyRef) -> BoxFuture<'a, Result<usize, &'static str>> {
        Box::pin(ready(Ok(0)))
    }
    /// Exempts a key from the rules of its class for this time; `None` ends the exemption. Returns an error message on
    /// failure.
    fn exempt(&self, _key: &KeyRef, _span: Option<Span>) -> Result<(), &'static str> {
        Err("this process does not decide about requests")
    }
}

/// A class and a key of it, named in a request of an operator.
#[derive(Clone, Debug)]
pub(crate) struct KeyRef {
    /// Class as written in rules. Reports of other programs may contain classes that no rule has.
    pub(crate) class: String,
    /// The key as requests contain it.
    pub(crate) key: Vec<u8>,
    /// A request with this key, if the class is one of requests and the key can be split into its parts.
    pub(crate) request: Option<ExplainRequest>,
}

impl KeyRef {
    /// The key of this class with this text, which is escaped or masked as in responses of the API.
    pub(crate) fn new(class: &str, name: &str) -> Self {
        let key = unescape_key(&with_prefix(class, name.into())).into_owned();
        match Class::parse(class) {
            Ok(class) => Self::of_key(class.to_string(), key),
            Err(_) => Self { class: class.to_owned(), key, request: None },
        }
    }

    fn of_key(class: String, key: Vec<u8>) -> Self {
        Self { request: ExplainRequest::of_key(&class, &key), class, key }
    }

    /// Replaces a masked key by the key itself, if the role has state for it.
    pub(super) fn unmasked(self, monitored: &dyn MonitoredRole) -> Self {
        match monitored.unmask(&self.class, &self.key) {
            Some(key) => Self::of_key(self.class, key),
            None => self,
        }
    }
}

/// Converts an address to the key of an `ip` class: `203.0.113.7` of `ip/24` becomes `203.0.113.0/24`. Other texts are
/// unchanged.
pub(super) fn with_prefix<'a>(class: &str, name: Cow<'a, str>) -> Cow<'a, str> {
    struct NetworkSink(Option<Network>);
    impl KeySink for NetworkSink {
        fn network(&mut self, network: Network) {
            self.0 = Some(network);
        }
        fn write(&mut self, _: &[u8]) {}
    }
    let mut sink = NetworkSink(None);
    match Class::parse(class) {
        Ok(parsed) if !class.contains('+') && parsed.write_identified(name.trim().as_bytes(), &mut sink) => {
            sink.0.map_or(name, |network| network.to_string().into())
        }
        _ => name,
    }
}

/// Counters of a role since its start, and current values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) refused: u64,
    /// Requests that a rule has held (delayed) or that have waited in the queue.
    pub(crate) held: u64,
    /// CPU time that the requests have cost at the backend.
    pub(crate) toll_seconds: f64,
    pub(crate) current: CurrentValues,
}

/// Current values of a role.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct CurrentValues {
    /// Requests that are held or wait in the queue.
    pub(crate) waiting: u64,
    /// Requests in flight at the backends.
    pub(crate) in_flight: u64,
    /// The limit of `in_flight`.
    pub(crate) in_flight_max: u64,
    /// Connections of clients.
    pub(crate) connections: u64,
    /// Load level of the backend: normal, elevated or critical.
    pub(crate) band: &'static str,
    /// The sustained delay that determines the band: the median of the last 15 seconds.
    pub(crate) sustained_ms: u64,
    /// Median latency of the last seconds; `None` without responses.
    pub(crate) p50_ms: Option<f64>,
    /// 99th percentile of the same latencies.
    pub(crate) p99_ms: Option<f64>,
}

/// One second of the charts. The first numbers are rates per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// End of the second, in milliseconds since the Unix epoch.
    pub(crate) at_ms: u64,
    pub(crate) admitted: f64,
    pub(crate) held: f64,
    pub(crate) refused: f64,
    /// CPU time of the backend in seconds per second, that is, in cores.
    pub(crate) cpu: f64,
    #[serde(flatten)]
    pub(crate) current: CurrentValues,
}

/// An imagined request, for which an operator asks whether and why it would be admitted.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExplainRequest {
    /// Address of the client; `None` if there is none, as for a key without an address.
    pub(crate) client: Option<IpAddr>,
    pub(crate) method: Vec<u8>,
    pub(crate) path: ExplainPath,
    /// Names are in lower case.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    /// Values of the classes `identifier` and `descriptor:...`, which requests have only at doors.
    pub(crate) attributes: Vec<(String, Vec<u8>)>,
    /// Expected cost, as CPU time.
    pub(crate) toll: Option<Span>,
    /// Whether the account is flagged.
    pub(crate) is_flagged: bool,
}

/// Path of an [`ExplainRequest`].
#[derive(Clone, Debug, Default)]
pub(crate) struct ExplainPath {
    /// The path with its query, if any.
    target: Vec<u8>,
    /// The normalised path, which rules compare.
    normal: NormalPath,
}

impl ExplainPath {
    pub(crate) fn new(target: Vec<u8>) -> Self {
        let normal = NormalPath::of(target.split(|byte| *byte == b'?').next().unwrap_or_default());
        Self { target, normal }
    }
}

impl ExplainRequest {
    /// A request with this key, as far as the class determines one. `None` if the key does not fit the class, or cannot
    /// be split into parts without ambiguity.
    pub(crate) fn of_key(class: &str, key: &[u8]) -> Option<Self> {
        let path = ExplainPath::new(b"/".to_vec());
        let mut request = Self { method: b"GET".to_vec(), path, ..Self::default() };
        let parts: Vec<&str> = class.split('+').map(str::trim).collect();
        let keys = split(&parts, key)?;
        parts.into_iter().zip(keys).try_for_each(|(part, key)| request.set_part(part, key))?;
        Some(request)
    }

    /// The request in the format of `POST /api/v1/explain`.
    pub(super) fn shown(&self) -> Value {
        let texts = |pairs: &[(String, Vec<u8>)]| -> Map<String, Value> {
            pairs.iter().map(|(name, value)| (name.clone(), json!(escape_key(value)))).collect()
        };
        let headers = self.headers.iter().map(|(name, value)| (name.clone(), mask::header(name, value).into_owned()));
        json!({
            "client": self.client,
            "method": escape_key(&self.method),
            "path": escape_key(&self.path.target),
            "headers": texts(&headers.collect::<Vec<_>>()),
            "attributes": texts(&self.attributes),
        })
    }

    /// Replaces masked values in headers by the known keys that they stand for.
    pub(super) fn unmask(&mut self, monitored: &dyn MonitoredRole) {
        for (name, value) in &mut self.headers {
            let unmasked =
                |class: String, value: &[u8]| monitored.unmask(&class, value).unwrap_or_else(|| value.to_vec());
            *value = match name.as_str() {
                "cookie" => mask::each_cookie(value, |name, value| unmasked(format!("cookie:{name}"), value)),
                name => unmasked(format!("header:{name}"), value),
            };
        }
    }

    /// Adds a header line. Several lines of one name are joined to one value.
    pub(crate) fn add_header(&mut self, name: &str, value: Vec<u8>) {
        let name = name.to_ascii_lowercase();
        match self.headers.iter_mut().find(|(known, _)| *known == name) {
            Some((name, joined)) => *joined = [joined, separator(name.as_bytes()), &value].concat(),
            None => self.headers.push((name, value)),
        }
    }

    /// Sets the property of the request to which a part of a class refers. `None` if it is unknown or the key is
    /// invalid.
    fn set_part(&mut self, part: &str, key: &[u8]) -> Option<()> {
        let (kind, name) = part.split_once(':').unwrap_or((part, ""));
        match kind {
            "user-agent" | "host" => self.add_header(kind, key.to_vec()),
            "header" => self.add_header(name, key.to_vec()),
            "cookie" => self.add_header("cookie", [name.as_bytes(), b"=", key].concat()),
            "query" => {
                let escape = |bytes| percent_encode(bytes, NON_ALPHANUMERIC);
                let target = format!("/?{}={}", escape(name.as_bytes()), escape(key));
                self.path = ExplainPath::new(target.into_bytes());
            }
            "path" => self.path = ExplainPath::new(key.to_vec()),
            "method" => key.clone_into(&mut self.method),
            "identifier" => self.attributes.push(("identifier".to_owned(), key.to_vec())),
            "descriptor" => self.attributes.push((name.to_owned(), key.to_vec())),
            _ if part.starts_with("ip/") => {
                self.client = Some(Network::parse(std::str::from_utf8(key).ok()?)?.address());
            }
            _ => return None,
        }
        Some(())
    }
}

/// Splits a key of a compound class at the spaces between its parts. A key with more spaces than that can only be split
/// if exactly one part may contain spaces itself.
fn split<'a>(parts: &[&str], key: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let mut words: Vec<&[u8]> = key.split(|byte| *byte == b' ').collect();
    let more = if parts.len() == 1 { words.len() - 1 } else { words.len().checked_sub(parts.len())? };
    if more > 0 {
        let may_have_spaces = |part: &&&str| !part.starts_with("ip/") && !matches!(**part, "path" | "host" | "method");
        if parts.len() > 1 && parts.iter().filter(may_have_spaces).count() != 1 {
            return None;
        }
        let at = parts.iter().position(|part| may_have_spaces(&part)).unwrap_or(0);
        let before: usize = words[..at].iter().map(|word| word.len() + 1).sum();
        let length = words[at..=at + more].iter().map(|word| word.len() + 1).sum::<usize>() - 1;
        words.splice(at..=at + more, [&key[before..before + length]]);
    }
    Some(words)
}

impl Request for ExplainRequest {
    fn client(&self) -> Option<IpAddr> {
        self.client
    }

    fn method(&self) -> &[u8] {
        &self.method
    }

    fn target(&self) -> &[u8] {
        &self.path.target
    }

    fn host(&self) -> Option<&[u8]> {
        host_of(self.header("host")?)
    }

    fn normal_path(&self) -> Option<&NormalPath> {
        self.path.normal.differing()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    fn is_flagged(&self) -> bool {
        self.is_flagged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_converted_to_a_request() {
        let of = |class: &str, key: &str| ExplainRequest::of_key(class, key.as_bytes());
        assert_eq!(of("ip/24", "203.0.113.0/24").unwrap().client, Some("203.0.113.0".parse().unwrap()));
        assert_eq!(of("header:X-Key", "k").unwrap().header("x-key"), Some(&b"k"[..]));
        assert_eq!(of("cookie:sid", "k").unwrap().cookie("sid"), Some(&b"k"[..]));
        let cookies = of("cookie:a+cookie:b", "1 2").unwrap();
        assert_eq!((cookies.cookie("a"), cookies.cookie("b")), (Some(&b"1"[..]), Some(&b"2"[..])));
        assert_eq!(of("descriptor:user", "u1").unwrap().attribute("user"), Some(&b"u1"[..]));
        let both = of("method+path", "POST /login").unwrap();
        assert_eq!((both.method(), both.path()), (&b"POST"[..], &b"/login"[..]));
        for (class, key) in [("ip/24", "x"), ("nonsense", "x"), ("method+path", "POST"), ("", "")] {
            assert!(of(class, key).is_none(), "{class} {key}");
        }
    }

    #[test]
    fn one_part_of_a_key_may_contain_spaces() {
        let of = |class: &str, key: &str| ExplainRequest::of_key(class, key.as_bytes());
        for (class, key) in [
            ("user-agent+ip/32", "Mozilla/5.0 (X11; Linux) 203.0.113.7/32"),
            ("ip/32+user-agent", "203.0.113.7/32 Mozilla/5.0 (X11; Linux)"),
            ("method+user-agent+ip/24", "GET Mozilla/5.0 (X11; Linux) 203.0.113.7/24"),
        ] {
            let request = of(class, key).unwrap();
            assert_eq!(request.header("user-agent"), Some(&b"Mozilla/5.0 (X11; Linux)"[..]), "{class}");
            assert!(request.client.is_some(), "{class}");
        }
        let two = of("header:a+header:b", "x y").unwrap();
        assert_eq!((two.header("a"), two.header("b")), (Some(&b"x"[..]), Some(&b"y"[..])));
        assert!(of("header:a+header:b", "x y z").is_none(), "the split is ambiguous");
        assert_eq!(of("user-agent", "a b  c").unwrap().header("user-agent"), Some(&b"a b  c"[..]));
        assert_eq!(of("user-agent+method", " GET").unwrap().header("user-agent"), Some(&b""[..]));
    }

    #[test]
    fn classes_and_keys_are_normalised_as_in_rules() {
        let key_ref = KeyRef::new("header:X-Key", "a\\xffb");
        assert_eq!((&*key_ref.class, &*key_ref.key), ("header:x-key", &b"a\xffb"[..]));
        assert_eq!(key_ref.request.unwrap().header("x-key"), Some(&b"a\xffb"[..]));
        for (class, name, key) in [
            ("ip/32", "203.0.113.7", "203.0.113.7/32"),
            ("ip/32", "203.0.113.7/32", "203.0.113.7/32"),
            ("ip/24", "203.0.113.7", "203.0.113.0/24"),
            ("ip/32", "nonsense", "nonsense"),
            ("header:x-key", "203.0.113.7", "203.0.113.7"),
        ] {
            assert_eq!(KeyRef::new(class, name).key, key.as_bytes(), "{class} {name}");
        }
        let reported = KeyRef::new("user", "u1");
        assert!(reported.class == "user" && reported.request.is_none());
    }
}
