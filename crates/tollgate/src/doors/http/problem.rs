//! Error responses of the HTTP door, as problem details (RFC 9457).

use tollgate_wire::http1::response::reason;

use super::door_reply::DoorReply;

/// An error response.
#[derive(Debug)]
pub(super) struct DoorProblem {
    pub(super) status: u16,
    pub(super) detail: String,
    /// A header field of the response.
    field: Option<(&'static str, &'static str)>,
}

impl DoorProblem {
    pub(super) fn new(status: u16, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), field: None }
    }

    /// An invalid call.
    pub(super) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(400, detail)
    }

    /// A call that names something that does not exist.
    pub(super) fn unknown(detail: impl Into<String>) -> Self {
        Self::new(404, detail)
    }

    /// A valid call that cannot be carried out.
    pub(super) fn impossible(detail: impl Into<String>) -> Self {
        Self::new(422, detail)
    }

    pub(super) fn too_large() -> Self {
        Self::new(413, "the body is larger than 128 KiB")
    }

    pub(super) fn absent() -> Self {
        Self::new(404, "there is nothing at this path: see /v1/check, /v1/report, /v1/load, /v1/auth and /json")
    }

    pub(super) fn method(allowed: &'static str) -> Self {
        let problem = Self::new(405, format!("this path needs the method {allowed}"));
        Self { field: Some(("allow", allowed)), ..problem }
    }

    pub(super) fn browser() -> Self {
        let detail = "calls from browsers need a token: set `token_file` in [doors]";
        Self::new(403, detail)
    }

    pub(super) fn unauthorized() -> Self {
        let problem = Self::new(401, "this door requires `Authorization: Bearer TOKEN`");
        Self { field: Some(("www-authenticate", "Bearer")), ..problem }
    }

    pub(super) fn is_unauthorized(&self) -> bool {
        self.status == 401
    }

    /// Replaces a response by the problem. A connection without the token closes.
    pub(super) fn write(&self, reply: &mut DoorReply) {
        reply.clear();
        reply.status = self.status;
        reply.closes = self.is_unauthorized();
        reply.field("content-type", b"application/problem+json");
        if let Some((name, value)) = self.field {
            reply.field(name, value.as_bytes());
        }
        let body = serde_json::json!({
            "type": "about:blank", "title": reason(self.status), "status": self.status, "detail": self.detail,
        });
        reply.body.extend_from_slice(format!("{body}\n").as_bytes());
    }
}
