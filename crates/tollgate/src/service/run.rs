//! `tollgate run`: runs all roles of a settings file in one process. [`run_role`] is common to all commands that run a
//! role.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use super::command::{GateOptions, run_gate, run_gate_beside};
use super::log;
use super::master::{MasterOptions, run_master};
use super::watch_alone::run_watch;
use crate::cli::WRONG;
use crate::settings::Settings;

/// Arguments of `tollgate run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunOptions {
    /// Settings file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs the roles that the file configures.
pub(crate) fn run_roles(options: &RunOptions) -> ExitCode {
    let path = &options.config;
    let file = match Settings::load(path) {
        Ok(file) => file,
        Err(faults) => return wrong(&faults.to_string()),
    };
    let (gate, master) = (GateOptions::of_file(path), MasterOptions::of_file(path));
    match (file.gate.is_some() || file.doors.is_some(), file.master.is_some()) {
        (true, true) => run_gate_beside(&gate, &master),
        (true, false) => run_gate(&gate),
        (false, true) => run_master(&master),
        (false, false) if file.admin.is_some() => run_watch(path),
        (false, false) => wrong(&format!(
            "{}: no role is configured: add [gate], [doors] or [master], or [admin] for a watch without a gate",
            path.display()
        )),
    }
}

/// Starts the log and runs `serve` until the role ends. `planned` is the plan, or the errors of the settings, which are
/// printed. `role` is the name of the role in the log.
pub(super) fn run_role<P>(role: &str, planned: Result<P, String>, serve: impl FnOnce(P) -> io::Result<()>) -> ExitCode {
    let plan = match planned {
        Ok(plan) => plan,
        Err(message) => return wrong(&message),
    };
    let _last_lines = log::start();
    match serve(plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the {role} failed");
            ExitCode::FAILURE
        }
    }
}

/// Prints the errors of settings or arguments. Returns the exit code for them.
pub(super) fn wrong(message: &str) -> ExitCode {
    print_error!("{}", message.trim_end());
    ExitCode::from(WRONG)
}
