//! What the address for operators shows, and what it can change: the role that runs beside it, seen through a narrow window.

use std::future::ready;
use std::net::IpAddr;
use std::pin::Pin;

use serde::Serialize;
use serde_json::Value;
use tollgate_core::network::Network;
use tollgate_core::request::Request;
use tollgate_core::time::Span;

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
    /// Whether a request would pass, and why.
    fn explain<'a>(&'a self, _question: &'a Question) -> Soon<'a, Option<Value>> {
        Box::pin(ready(None))
    }
    /// What every rule of a class has to say about one key of it.
    fn key<'a>(&'a self, _class: &'a str, _question: &'a Question, _key: &'a str) -> Soon<'a, Option<Value>> {
        Box::pin(ready(None))
    }
    /// Makes every rule of a class forget a key. Says how many have, or why others still may know it.
    fn forget<'a>(&'a self, _class: &'a str, _question: &'a Question) -> Soon<'a, Result<usize, &'static str>> {
        Box::pin(ready(Ok(0)))
    }
    /// Lets a key pass its rules for a while, or no longer. False when there is no place for it.
    fn exempt(&self, _class: &str, _key: &str, _span: Option<Span>) -> bool {
        false
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
    pub(crate) method: String,
    pub(crate) path: String,
    /// Names are in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) attributes: Vec<(String, String)>,
    /// What it is expected to cost.
    pub(crate) toll: Option<Span>,
    /// Whether its account is flagged.
    pub(crate) is_flagged: bool,
}

impl Question {
    /// A request of the caller with this key, as far as the class tells callers apart. None when the key is none of that class.
    pub(crate) fn of_key(class: &str, key: &str) -> Option<Self> {
        let mut question = Self { method: "GET".to_owned(), path: "/".to_owned(), ..Self::default() };
        let parts: Vec<&str> = class.split('+').map(str::trim).collect();
        let keys: Vec<&str> = if parts.len() == 1 { vec![key] } else { key.split(' ').collect() };
        if parts.len() != keys.len() {
            return None;
        }
        parts.into_iter().zip(keys).try_for_each(|(part, key)| question.take(part, key))?;
        Some(question)
    }

    fn take(&mut self, part: &str, key: &str) -> Option<()> {
        let (kind, name) = part.split_once(':').unwrap_or((part, ""));
        match kind {
            "user-agent" => self.headers.push(("user-agent".to_owned(), key.to_owned())),
            "header" => self.headers.push((name.to_ascii_lowercase(), key.to_owned())),
            "cookie" => self.headers.push(("cookie".to_owned(), format!("{name}={key}"))),
            "path" => key.clone_into(&mut self.path),
            "host" => self.headers.push(("host".to_owned(), key.to_owned())),
            "method" => key.clone_into(&mut self.method),
            "identifier" => self.attributes.push(("identifier".to_owned(), key.to_owned())),
            "descriptor" => self.attributes.push((name.to_owned(), key.to_owned())),
            _ if part.starts_with("ip/") => self.client = Some(Network::parse(key)?.address()),
            _ => return None,
        }
        Some(())
    }
}

impl Request for Question {
    fn client(&self) -> Option<IpAddr> {
        self.client
    }

    fn method(&self) -> &[u8] {
        self.method.as_bytes()
    }

    fn target(&self) -> &[u8] {
        self.path.as_bytes()
    }

    fn host(&self) -> Option<&[u8]> {
        let host = self.header("host")?;
        host.split(|byte| *byte == b':').next()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_bytes())
    }

    fn attribute(&self, name: &str) -> Option<&[u8]> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_bytes())
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
        let of = |class: &str, key: &str| Question::of_key(class, key);
        assert_eq!(of("ip/24", "203.0.113.0/24").unwrap().client, Some("203.0.113.0".parse().unwrap()));
        assert_eq!(of("header:X-Key", "k").unwrap().header("x-key"), Some(&b"k"[..]));
        assert_eq!(of("cookie:sid", "k").unwrap().cookie("sid"), Some(&b"k"[..]));
        assert_eq!(of("descriptor:user", "u1").unwrap().attribute("user"), Some(&b"u1"[..]));
        let both = of("method+path", "POST /login").unwrap();
        assert_eq!((both.method(), both.path()), (&b"POST"[..], &b"/login"[..]));
        for (class, key) in [("ip/24", "x"), ("nonsense", "x"), ("method+path", "POST"), ("", "")] {
            assert!(of(class, key).is_none(), "{class} {key}");
        }
    }
}
