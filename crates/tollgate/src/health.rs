//! `tollgate health`: the health of a running process as an exit code, for containers without a shell and for scripts.

use crate::admin_client::{AdminClient, AdminOptions};
use crate::output::CommandError;

/// Arguments of `tollgate health`.
#[derive(Debug, clap::Args)]
pub(crate) struct HealthOptions {
    #[command(flatten)]
    admin: AdminOptions,
    /// Also fail if no request can be served, because all backends are down or the process is stopping
    #[arg(long)]
    ready: bool,
}

/// Succeeds if the process is healthy.
pub(crate) fn run(options: &HealthOptions) -> Result<(), CommandError> {
    let client = AdminClient::new(&options.admin)?;
    let (path, state) = if options.ready { ("/readyz", "ready") } else { ("/healthz", "alive") };
    client
        .check(path)
        .map_err(|error| if error.is_wrong { error } else { CommandError::failed(format!("{path}: {error}")) })?;
    print_line!("{} is {state}", client.host());
    Ok(())
}
