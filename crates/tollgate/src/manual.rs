//! `tollgate schema` and `tollgate reference`: what a settings file may contain, for editors and for people.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Prints a page. Who stops reading it has read enough.
pub(crate) fn run(page: &str) -> ExitCode {
    match std::io::stdout().lock().write_all(page.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
