//! Error responses of the HTTP door, as problem details (RFC 9457).

use http::header::{ALLOW, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use super::body::Whole;

/// An error response.
#[derive(Debug)]
pub(super) struct DoorProblem {
    status: StatusCode,
    detail: String,
    field: Option<(HeaderName, &'static str)>,
}

impl DoorProblem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), field: None }
    }

    /// An invalid call.
    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// A call that names something that does not exist.
    pub(super) fn unknown(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// A valid call that cannot be carried out.
    pub(super) fn impossible(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    pub(super) fn too_large() -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 128 KiB")
    }

    pub(super) fn slow() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive within 10 s")
    }

    pub(super) fn absent() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "there is nothing at this path: see /v1/check, /v1/report, /v1/load, /v1/auth and /json",
        )
    }

    pub(super) fn method(allowed: &'static str) -> Self {
        let problem = Self::new(StatusCode::METHOD_NOT_ALLOWED, format!("this path needs the method {allowed}"));
        Self { field: Some((ALLOW, allowed)), ..problem }
    }

    pub(super) fn browser() -> Self {
        let detail = "calls from browsers need a token: set `token_file` in [doors]";
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    pub(super) fn unauthorized() -> Self {
        let problem = Self::new(StatusCode::UNAUTHORIZED, "this door requires `Authorization: Bearer TOKEN`");
        Self { field: Some((WWW_AUTHENTICATE, "Bearer")), ..problem }
    }

    /// The message.
    pub(super) fn detail(&self) -> &str {
        &self.detail
    }

    /// Converts the problem to a response.
    pub(super) fn response(self) -> Response<Whole> {
        let title = self.status.canonical_reason().unwrap_or_default();
        let body = serde_json::json!({
            "type": "about:blank", "title": title, "status": self.status.as_u16(), "detail": self.detail,
        });
        let mut response = Response::new(Whole::from(format!("{body}\n").into_bytes()));
        *response.status_mut() = self.status;
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some((name, value)) = self.field {
            fields.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
