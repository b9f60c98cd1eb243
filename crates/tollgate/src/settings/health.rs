//! `[gate.health]`: active health checks of the backends.

use std::time::Duration;

use super::error::shown;
use super::table::table;
use super::value::{FinalStatus, text_value};

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
    pub(crate) struct HealthCheck as "health" {
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
