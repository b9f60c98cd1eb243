//! What is made from declarations: pages about settings files for editors and people, and about the commands for shells and `man`.
#![expect(clippy::print_stderr, reason = "a page that cannot be written is told to the person at the terminal")]

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

/// Prints a page. Who stops reading it has read enough.
pub(crate) fn print(page: &[u8]) -> ExitCode {
    match std::io::stdout().lock().write_all(page) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// The script that completes `command` in a shell.
pub(crate) fn completions(mut command: Command, shell: Shell) -> Vec<u8> {
    let (name, mut script) = (command.get_name().to_string(), Vec::new());
    clap_complete::generate(shell, &mut command, name, &mut script);
    script
}

/// Writes a page for `command` and one for each of its subcommands into a directory, which is made if it is not there.
pub(crate) fn write_man_pages(command: Command, directory: &Path) -> ExitCode {
    match fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command, directory)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", directory.display());
            ExitCode::FAILURE
        }
    }
}
