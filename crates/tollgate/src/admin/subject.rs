//! What the address for operators shows, and what it can change: the role that runs beside it, seen through a narrow window.

use std::borrow::Cow;
use std::future::ready;
use std::net::IpAddr;
use std::pin::Pin;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tollgate_core::class::{Class, KeySink};
use tollgate_core::inputs::separator;
use tollgate_core::network::Network;
use tollgate_core::path::NormalPath;
use tollgate_core::request::{Request, host_of};
use tollgate_core::time::Span;

use crate::mask;
use crate::watch::{legible, name_of};

/// An answer for which others may have to be asked.
pub(crate) type Soon<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A role that operators look at.
pub(crate) trait Subject: Send + Sync {
    /// Which role it is.
    fn role(&self) -> &'static str;
    /// Whether it can serve.
    fn is_ready(&self) -> bool;
    /// Called once a second.
    fn tick(&self) {}
    /// How things stand, as fields of the status.
    fn status(&self) -> Value;
    /// What has been counted so far, if the role serves requests.
    fn totals(&self) -> Option<Totals> {
        None
    }
    /// The classes whose callers can be shown.
    fn classes(&self) -> Vec<String> {
        Vec::new()
    }
    /// The callers of a class who spend most, or were throttled most. None when there is no such class.
    fn buckets(&self, _class: &str, _top: usize, _search: &str) -> Option<Vec<Value>> {
        None
    }
    /// The key of a class that is shown in this masked form, if it is one and its caller is known.
    fn unmask(&self, _class: &str, _shown: &[u8]) -> Option<Vec<u8>> {
        None
    }
    /// The class of addresses and networks in which the load is most concentrated.
    fn concentrated_class(&self) -> String {
        "ip/32".to_owned()
    }
    /// Whether a request would pass, and why.
    fn explain<'a>(&'a self, _question: &'a Question) -> Soon<'a, Option<Value>> {
        Box::pin(ready(None))
    }
    /// What every rule that touches a caller has to say about it.
    fn key<'a>(&'a self, _who: &'a Who) -> Soon<'a, Option<Value>> {
        Box::pin(ready(None))
    }
    /// Makes every rule of its class forget a caller. Says how many have, or why others still may know it.
    fn forget<'a>(&'a self, _who: &'a Who) -> Soon<'a, Result<usize, &'static str>> {
        Box::pin(ready(Ok(0)))
    }
    /// Lets a caller pass the rules of its class for a while, or no longer. Says why not.
    fn exempt(&self, _who: &Who, _span: Option<Span>) -> Result<(), &'static str> {
        Err("this process decides about no requests")
    }
}

/// A caller that somebody asks about, by the name under which it is shown.
#[derive(Clone, Debug)]
pub(crate) struct Who {
    /// How it is told apart, as rules write it. Others may report classes that no rule has.
    pub(crate) class: String,
    /// Its key as it came with requests.
    pub(crate) key: Vec<u8>,
    /// A request of it, if the class is one that requests have and its parts can be told from the name.
    pub(crate) question: Option<Question>,
}

impl Who {
    /// The caller of this class that is shown under this name.
    pub(crate) fn new(class: &str, name: &str) -> Self {
        let key = name_of(&with_prefix(class, name.into())).into_owned();
        match Class::parse(class) {
            Ok(class) => Self::of_key(class.to_string(), key),
            Err(_) => Self { class: class.to_owned(), key, question: None },
        }
    }

    fn of_key(class: String, key: Vec<u8>) -> Self {
        Self { question: Question::of_key(&class, &key), class, key }
    }

    /// The caller that is meant if its name is a masked form.
    pub(super) fn unmasked(self, subject: &dyn Subject) -> Self {
        match subject.unmask(&self.class, &self.key) {
            Some(key) => Self::of_key(self.class, key),
            None => self,
        }
    }
}

/// The name of a caller with the prefix of its class, if the class is one of addresses: `203.0.113.7` of `ip/24` is `203.0.113.0/24`. Any
/// other name is unchanged.
pub(super) fn with_prefix<'a>(class: &str, name: Cow<'a, str>) -> Cow<'a, str> {
    struct NetworkSink(Option<Network>);
    impl KeySink for NetworkSink {
        fn network(&mut self, network: Network) {
            self.0 = Some(network);
        }
        fn write(&mut self, _: &[u8]) {}
        fn end_part(&mut self) {}
    }
    let mut sink = NetworkSink(None);
    match Class::parse(class) {
        Ok(parsed) if !class.contains('+') && parsed.write_identified(name.trim().as_bytes(), &mut sink) => {
            sink.0.map_or(name, |network| network.to_string().into())
        }
        _ => name,
    }
}

/// What a role has counted since its start, and how it is now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) requests: u64,
    pub(crate) refused: u64,
    pub(crate) held: u64,
    pub(crate) toll_seconds: f64,
    pub(crate) waiting: u64,
    pub(crate) in_flight: u64,
    pub(crate) in_flight_max: u64,
    pub(crate) connections: u64,
    pub(crate) band: &'static str,
    pub(crate) sustained_ms: u64,
    /// How long answers took in the last seconds; none when there were none.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
}

/// One second, as charts have it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// Milliseconds since 1970.
    pub(crate) at_ms: u64,
    pub(crate) admitted: f64,
    pub(crate) held: f64,
    pub(crate) refused: f64,
    pub(crate) cpu: f64,
    pub(crate) waiting: u64,
    pub(crate) in_flight: u64,
    pub(crate) in_flight_max: u64,
    pub(crate) connections: u64,
    pub(crate) band: &'static str,
    pub(crate) sustained_ms: u64,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
}

/// A request that somebody asks about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Question {
    pub(crate) client: Option<IpAddr>,
    pub(crate) method: Vec<u8>,
    pub(crate) path: AskedPath,
    /// Names are in lower case.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) attributes: Vec<(String, Vec<u8>)>,
    /// What it is expected to cost.
    pub(crate) toll: Option<Span>,
    /// Whether its account is flagged.
    pub(crate) is_flagged: bool,
}

/// The path of a question, which may have a query, and its readings.
#[derive(Clone, Debug, Default)]
pub(crate) struct AskedPath {
    target: Vec<u8>,
    normal: NormalPath,
}

impl AskedPath {
    pub(crate) fn new(target: Vec<u8>) -> Self {
        let normal = NormalPath::of(target.split(|byte| *byte == b'?').next().unwrap_or_default());
        Self { target, normal }
    }
}

impl Question {
    /// A request of the caller with this key, as far as the class tells callers apart. None when the key is none of that class, or when nobody
    /// can say where one part of it ends and the next begins.
    pub(crate) fn of_key(class: &str, key: &[u8]) -> Option<Self> {
        let path = AskedPath::new(b"/".to_vec());
        let mut question = Self { method: b"GET".to_vec(), path, ..Self::default() };
        let parts: Vec<&str> = class.split('+').map(str::trim).collect();
        let keys = split(&parts, key)?;
        parts.into_iter().zip(keys).try_for_each(|(part, key)| question.take(part, key))?;
        Some(question)
    }

    /// The request as `POST /api/v1/explain` takes it.
    pub(super) fn shown(&self) -> Value {
        let texts = |pairs: &[(String, Vec<u8>)]| -> Map<String, Value> {
            pairs.iter().map(|(name, value)| (name.clone(), json!(legible(value)))).collect()
        };
        let headers = self.headers.iter().map(|(name, value)| (name.clone(), mask::header(name, value).into_owned()));
        json!({
            "client": self.client,
            "method": legible(&self.method),
            "path": legible(&self.path.target),
            "headers": texts(&headers.collect::<Vec<_>>()),
            "attributes": texts(&self.attributes),
        })
    }

    /// Replaces masked forms in headers by the values of callers that are known.
    pub(super) fn unmask(&mut self, subject: &dyn Subject) {
        for (name, value) in &mut self.headers {
            let unmasked =
                |class: String, value: &[u8]| subject.unmask(&class, value).unwrap_or_else(|| value.to_vec());
            *value = match name.as_str() {
                "cookie" => mask::each_cookie(value, |name, value| unmasked(format!("cookie:{name}"), value)),
                name => unmasked(format!("header:{name}"), value),
            };
        }
    }

    /// Adds a line of a header, as one value with those before.
    pub(crate) fn add_header(&mut self, name: &str, value: Vec<u8>) {
        let name = name.to_ascii_lowercase();
        match self.headers.iter_mut().find(|(known, _)| *known == name) {
            Some((name, joined)) => *joined = [joined, separator(name.as_bytes()), &value].concat(),
            None => self.headers.push((name, value)),
        }
    }

    fn take(&mut self, part: &str, key: &[u8]) -> Option<()> {
        let (kind, name) = part.split_once(':').unwrap_or((part, ""));
        match kind {
            "user-agent" | "host" => self.add_header(kind, key.to_vec()),
            "header" => self.add_header(name, key.to_vec()),
            "cookie" => self.add_header("cookie", [name.as_bytes(), b"=", key].concat()),
            "query" => {
                let escape = |bytes: &[u8]| bytes.iter().map(|byte| format!("%{byte:02x}")).collect::<String>();
                let target = format!("/?{}={}", escape(name.as_bytes()), escape(key));
                self.path = AskedPath::new(target.into_bytes());
            }
            "path" => self.path = AskedPath::new(key.to_vec()),
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

/// The parts of a key, between which there are spaces. One of them may have spaces of its own; of two that may, nobody can say which has.
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

impl Request for Question {
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
    fn a_key_becomes_a_request_of_its_class() {
        let of = |class: &str, key: &str| Question::of_key(class, key.as_bytes());
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
    fn a_part_that_has_spaces_is_told_from_others_that_have_none() {
        let of = |class: &str, key: &str| Question::of_key(class, key.as_bytes());
        for (class, key) in [
            ("user-agent+ip/32", "Mozilla/5.0 (X11; Linux) 203.0.113.7/32"),
            ("ip/32+user-agent", "203.0.113.7/32 Mozilla/5.0 (X11; Linux)"),
            ("method+user-agent+ip/24", "GET Mozilla/5.0 (X11; Linux) 203.0.113.7/24"),
        ] {
            let question = of(class, key).unwrap();
            assert_eq!(question.header("user-agent"), Some(&b"Mozilla/5.0 (X11; Linux)"[..]), "{class}");
            assert!(question.client.is_some(), "{class}");
        }
        let two = of("header:a+header:b", "x y").unwrap();
        assert_eq!((two.header("a"), two.header("b")), (Some(&b"x"[..]), Some(&b"y"[..])));
        assert!(of("header:a+header:b", "x y z").is_none(), "nobody can say whose the y is");
        assert_eq!(of("user-agent", "a b  c").unwrap().header("user-agent"), Some(&b"a b  c"[..]));
        assert_eq!(of("user-agent+method", " GET").unwrap().header("user-agent"), Some(&b""[..]));
    }

    #[test]
    fn who_is_asked_about_is_meant_as_rules_write_it() {
        let who = Who::new("header:X-Key", "a\\xffb");
        assert_eq!((&*who.class, &*who.key), ("header:x-key", &b"a\xffb"[..]));
        assert_eq!(who.question.unwrap().header("x-key"), Some(&b"a\xffb"[..]));
        for (class, name, key) in [
            ("ip/32", "203.0.113.7", "203.0.113.7/32"),
            ("ip/32", "203.0.113.7/32", "203.0.113.7/32"),
            ("ip/24", "203.0.113.7", "203.0.113.0/24"),
            ("ip/32", "nonsense", "nonsense"),
            ("header:x-key", "203.0.113.7", "203.0.113.7"),
        ] {
            assert_eq!(Who::new(class, name).key, key.as_bytes(), "{class} {name}");
        }
        let reported = Who::new("user", "u1");
        assert!(reported.class == "user" && reported.question.is_none());
    }
}
