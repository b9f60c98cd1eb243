//! Request bodies of the admin API, with bounds on size and time.

use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use serde_json::{Map, Value};

use super::problem::AdminProblem;

/// Longest time for a body to arrive.
const ARRIVAL_MAX: Duration = Duration::from_secs(15);
/// Largest report of refusals (`POST /api/v1/rejections`), in bytes.
pub(super) const REPORT_BYTES_MAX: usize = 16 << 20;
/// Largest other body, in bytes.
const BYTES_MAX: usize = 64 << 10;

/// A request body of at most `BYTES` bytes.
pub(super) struct Body<const BYTES: usize = BYTES_MAX>(pub(super) Bytes);

impl<S: Send + Sync, const BYTES: usize> FromRequest<S> for Body<BYTES> {
    type Rejection = AdminProblem;

    async fn from_request(request: Request, _: &S) -> Result<Self, AdminProblem> {
        match tokio::time::timeout(ARRIVAL_MAX, to_bytes(request.into_body(), BYTES)).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(_)) => Err(AdminProblem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body must not be larger than {BYTES} bytes"),
            )),
            Err(_) => Err(AdminProblem::new(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive")),
        }
    }
}

impl<const BYTES: usize> Body<BYTES> {
    /// Parses the body as a JSON object. An empty body is an empty object.
    pub(super) fn object(&self) -> Result<Object, AdminProblem> {
        if self.0.is_empty() {
            return Ok(Object(Map::new()));
        }
        match serde_json::from_slice(&self.0) {
            Ok(Value::Object(object)) => Ok(Object(object)),
            Ok(_) => Err(AdminProblem::bad("the body must be a JSON object")),
            Err(error) => Err(AdminProblem::bad(format!("the body is not JSON: {error}"))),
        }
    }
}

/// The JSON object in a body. The accessors reject fields of the wrong type.
pub(super) struct Object(pub(super) Map<String, Value>);

impl Object {
    /// Rejects fields other than `names`, because a misspelt field would silently have no effect.
    pub(super) fn has_only(&self, names: &[&str]) -> Result<(), AdminProblem> {
        match self.0.keys().find(|name| !names.contains(&&***name)) {
            Some(name) => {
                let name: String = name.chars().take(64).collect();
                Err(AdminProblem::bad(format!("unknown field `{name}`: the fields are {}", names.join(", "))))
            }
            None => Ok(()),
        }
    }

    /// String of at most `chars_max` characters; `None` if absent or null.
    pub(super) fn text(&self, name: &str, chars_max: usize) -> Result<Option<&str>, AdminProblem> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.chars().count() <= chars_max => Ok(Some(text)),
            Some(Value::String(_)) => Err(AdminProblem::bad(format!("`{name}` is longer than {chars_max} characters"))),
            Some(_) => Err(AdminProblem::bad(format!("`{name}` must be a string"))),
        }
    }

    /// Number that is not negative; `None` if absent or null.
    pub(super) fn number(&self, name: &str) -> Result<Option<f64>, AdminProblem> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) if number >= 0.0 && number.is_finite() => Ok(Some(number)),
                _ => Err(AdminProblem::bad(format!("`{name}` must be a number that is not negative"))),
            },
        }
    }

    /// An object of at most 256 strings, as pairs of name and string; empty if absent or null.
    pub(super) fn texts(&self, name: &str) -> Result<Vec<(String, String)>, AdminProblem> {
        let wrong = || AdminProblem::bad(format!("`{name}` must be an object with string values"));
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
