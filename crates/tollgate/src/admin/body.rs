//! Bodies of requests: read to the end, or not at all.

use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde_json::{Map, Value};

use super::problem::Problem;

/// How long a body may take to arrive.
const ARRIVAL_MAX: Duration = Duration::from_secs(15);
/// A report of very many keys fits; nothing larger does.
pub(super) const REPORT_BYTES_MAX: usize = 16 << 20;
/// Everything else is small.
const BYTES_MAX: usize = 64 << 10;

/// The body of a request, of at most so many bytes.
pub(super) struct Body<const BYTES: usize = BYTES_MAX>(pub(super) Bytes);

impl<S: Send + Sync, const BYTES: usize> FromRequest<S> for Body<BYTES> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        match tokio::time::timeout(ARRIVAL_MAX, to_bytes(request.into_body(), BYTES)).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(_)) => {
                Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("a body has at most {BYTES} bytes here")))
            }
            Err(_) => Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive")),
        }
    }
}

impl<const BYTES: usize> Body<BYTES> {
    /// The body as an object of JSON; no body is an empty one.
    pub(super) fn object(&self) -> Result<Object, Problem> {
        if self.0.is_empty() {
            return Ok(Object(Map::new()));
        }
        match serde_json::from_slice(&self.0) {
            Ok(Value::Object(object)) => Ok(Object(object)),
            Ok(_) => Err(Problem::bad("the body has to be a JSON object")),
            Err(error) => Err(Problem::bad(format!("the body is not JSON: {error}"))),
        }
    }
}

/// An object of JSON, whose fields are what they should be or else the request is wrong.
pub(super) struct Object(pub(super) Map<String, Value>);

impl Object {
    /// Fails on a field that is none of `names`: a misspelt one would silently have no effect.
    pub(super) fn has_only(&self, names: &[&str]) -> Result<(), Problem> {
        match self.0.keys().find(|name| !names.contains(&&***name)) {
            Some(name) => {
                let name: String = name.chars().take(64).collect();
                Err(Problem::bad(format!("unknown field `{name}`: fields are {}", names.join(", "))))
            }
            None => Ok(()),
        }
    }

    /// A text of at most `most` characters; absent or null is none.
    pub(super) fn text(&self, name: &str, most: usize) -> Result<Option<&str>, Problem> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.chars().count() <= most => Ok(Some(text)),
            Some(Value::String(_)) => Err(Problem::bad(format!("`{name}` is longer than {most} characters"))),
            Some(_) => Err(Problem::bad(format!("`{name}` has to be a text"))),
        }
    }

    /// A number that is not negative; absent or null is none.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, Problem> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) if number >= 0.0 && number.is_finite() => Ok(Some(number)),
                _ => Err(Problem::bad(format!("`{name}` has to be a number, zero or more"))),
            },
        }
    }

    /// Texts by name; absent or null is none.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<(String, String)>, Problem> {
        let wrong = || Problem::bad(format!("`{name}` has to be an object of texts"));
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Object(texts)) if texts.len() <= 256 => {
                let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
                texts.iter().map(text).collect::<Option<_>>().ok_or_else(wrong)
            }
            Some(_) => Err(wrong()),
        }
    }
}
