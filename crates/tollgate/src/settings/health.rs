//! `[gate.health]`: active health checks of the backends.

use std::time::Duration;

use super::error::shown;
use super::table::table;
use super::value::{FinalStatus, text_value};

/// The health check of backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthCheck {
    /// The path of the request.
    pub(crate) path: String,
    /// The time between two checks of one backend.
    pub(crate) interval: Duration,
    /// The timeout of one check, connecting included.
    pub(crate) timeout: Duration,
    /// The status of a healthy backend.
    pub(crate) status: u16,
}

/// The path of a request, with or without a query.
pub(crate) enum UrlPath {}

text_value!(UrlPath => String, "a path of a URL", "/healthz", |text| {
    let is_path = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    let message =
        || format!("{} is not a path of a URL: write one that begins with a slash, such as \"/healthz\"", shown(text));
    is_path.then(|| text.to_owned()).ok_or_else(message)
});

table! {
    /// Active health checks. Without `path` there are none, and the health of a backend is judged by the requests that
    /// it serves.
    struct HealthTable {
        /// The path that is requested with GET from each backend, such as `/healthz`. A backend that fails two checks
        /// in a row gets no requests until a check succeeds, unless no other backend is up.
        path: UrlPath,
        /// The time between two checks of one backend.
        interval: Duration = "\"5s\"",
        /// The timeout of one check, connecting included.
        timeout: Duration = "\"2s\"",
        /// The status in the response of a healthy backend.
        status: FinalStatus = "200",
    }
}

impl HealthTable {
    pub(super) fn resolve(self) -> Option<HealthCheck> {
        Some(HealthCheck {
            path: self.path?.value,
            interval: self.interval.value,
            timeout: self.timeout.value,
            status: self.status.value,
        })
    }
}
