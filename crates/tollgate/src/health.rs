//! `tollgate health`: the health of a running process as an exit code, for containers without a shell and for scripts.

use std::process::ExitCode;

use crate::admin_client::{AdminClient, AdminError, AdminOptions};

/// Arguments of `tollgate health`.
#[derive(Debug, clap::Args)]
pub(crate) struct HealthOptions {
    #[command(flatten)]
    admin: AdminOptions,
    /// Also fail if no request can be served, because all backends are down or the process is stopping
    #[arg(long)]
    ready: bool,
}

/// Exits 0 if the process is healthy.
pub(crate) fn run(options: &HealthOptions) -> ExitCode {
    match check(options) {
        Ok(host) => {
            print_line!("{host} is {}", if options.ready { "ready" } else { "alive" });
            ExitCode::SUCCESS
        }
        Err(error) => error.report(),
    }
}

fn check(options: &HealthOptions) -> Result<String, AdminError> {
    let client = AdminClient::new(&options.admin)?;
    let host = client.host().to_owned();
    let path = if options.ready { "/readyz" } else { "/healthz" };
    client
        .check(path)
        .map_err(|error| if error.is_wrong { error } else { AdminError::new(format!("{path}: {error}")) })?;
    Ok(host)
}
