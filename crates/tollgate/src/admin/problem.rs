//! Error responses of the admin API as `application/problem+json`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::wrong_tokens::WrongToken;

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AdminProblem {
    status: StatusCode,
    /// Message for the client.
    detail: String,
    /// Whether the request had a wrong token.
    is_by_wrong_token: bool,
}

impl AdminProblem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), is_by_wrong_token: false }
    }

    /// Marks the response to a wrong token, so that `guard` delays it and closes the connection.
    pub(super) fn by_wrong_token(self) -> Self {
        Self { is_by_wrong_token: true, ..self }
    }

    /// The request is invalid.
    pub(super) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// The resource does not exist.
    pub(super) fn absent(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    /// The sender lacks the permission.
    pub(super) fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, detail)
    }
}

impl IntoResponse for AdminProblem {
    fn into_response(self) -> Response {
        let title = self.status.canonical_reason().unwrap_or("Problem");
        let body =
            json!({"type": "about:blank", "title": title, "status": self.status.as_u16(), "detail": self.detail});
        let mut response = (self.status, body.to_string()).into_response();
        if self.is_by_wrong_token {
            response.extensions_mut().insert(WrongToken);
        }
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"tollgate\""));
        }
        if matches!(self.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
        }
        response
    }
}
