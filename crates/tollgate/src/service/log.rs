//! The log: text on a terminal, JSON otherwise.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

/// Starts logging to standard error. `TOLLGATE_LOG` sets the level, such as `debug` or `warn`.
pub(crate) fn start() {
    let filter = EnvFilter::try_from_env("TOLLGATE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // The subscriber would report its errors with `eprintln!`, which panics if standard error fails.
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LossyStderr)
        .log_internal_errors(false)
        .with_target(false);
    if io::stderr().is_terminal() { log.init() } else { log.json().flatten_event(true).init() }
}

/// Standard error. Lines that cannot be written are dropped, because the gate keeps serving if the reader of its log
/// has ended or the disk is full.
struct LossyStderr;

impl Write for LossyStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
