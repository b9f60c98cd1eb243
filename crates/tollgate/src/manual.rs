//! Output generated from declarations: the schema and reference of settings, shell completions and manual pages.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::output::CommandError;

/// Prints a page. A reader that closes the pipe early is not an error.
pub(crate) fn print(page: &[u8]) -> ExitCode {
    match std::io::stdout().lock().write_all(page) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Completion script of `command` for a shell.
pub(crate) fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let (name, mut script) = (command.get_name().to_string(), Vec::new());
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// Writes a manual page for `command` and each of its subcommands into a directory, which is created if necessary.
pub(crate) fn write_man_pages(command: Command, directory: &Path) -> Result<(), CommandError> {
    let written = fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command, directory));
    written.map_err(|error| CommandError::failed(format!("{}: {error}", directory.display())))
}
