//! `tollgate health`: the health of a running process as an exit code, for containers without a shell and for scripts.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the answer is for the person or the script at the terminal"
)]

use std::process::ExitCode;

use crate::admin_client::{AdminClient, AdminOptions, NoAnswer, harmless};
use crate::cli::WRONG;

/// The arguments of `tollgate health`.
#[derive(Debug, clap::Args)]
pub(crate) struct HealthOptions {
    #[command(flatten)]
    admin: AdminOptions,
    /// Fail also if no request can be served, because every backend is down or the process is stopping
    #[arg(long)]
    ready: bool,
}

/// Exits 0 if the process is healthy.
pub(crate) fn run(options: &HealthOptions) -> ExitCode {
    match check(options) {
        Ok(host) => {
            println!("{host} is {}", if options.ready { "ready" } else { "alive" });
            ExitCode::SUCCESS
        }
        Err(no_answer) => {
            eprintln!("{}", harmless(&no_answer.to_string()));
            if no_answer.is_wrong { ExitCode::from(WRONG) } else { ExitCode::FAILURE }
        }
    }
}

fn check(options: &HealthOptions) -> Result<String, NoAnswer> {
    let client = AdminClient::new(&options.admin)?;
    let host = client.host().to_owned();
    let path = if options.ready { "/readyz" } else { "/healthz" };
    client
        .check(path)
        .map_err(|error| if error.is_wrong { error } else { NoAnswer::new(format!("{path}: {error}")) })?;
    Ok(host)
}
