//! The log: text for people at a terminal, JSON for everything else.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Begins to log to standard error. `TOLLGATE_LOG` says how much, as in `debug` or `warn`.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("TOLLGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    if std::io::stderr().is_terminal() { log.init() } else { log.json().flatten_event(true).init() }
}
