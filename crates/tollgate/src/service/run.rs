//! `tollgate run`: every role that a file names, in one process.
#![expect(clippy::print_stderr, reason = "what is wrong with the arguments is for the person at the terminal")]

use std::path::PathBuf;
use std::process::ExitCode;

use super::command::{GateOptions, run_gate, run_gate_beside};
use super::master::{MasterOptions, run_master};
use super::watch_alone::run_watch;
use crate::cli::WRONG;
use crate::settings::Settings;

/// The arguments of `tollgate run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunOptions {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the roles that the file names.
pub(crate) fn run_roles(options: &RunOptions) -> ExitCode {
    let path = &options.config;
    let file = match Settings::load(path) {
        Ok(file) => file,
        Err(faults) => {
            eprint!("{faults}");
            return ExitCode::from(WRONG);
        }
    };
    let (gate, master) = (GateOptions::of_file(path), MasterOptions::of_file(path));
    match (file.gate.is_some() || file.doors.is_some(), file.master.is_some()) {
        (true, true) => run_gate_beside(&gate, &master),
        (true, false) => run_gate(&gate),
        (false, true) => run_master(&master),
        (false, false) if file.admin.is_some() => run_watch(path),
        (false, false) => {
            eprintln!(
                "{}: names no role: write [gate], [doors], [master], or [admin] for a watch alone",
                path.display()
            );
            ExitCode::from(WRONG)
        }
    }
}
