//! `tollgate gate`: arguments and file become one set of settings, and the gate runs on them.
#![expect(clippy::print_stderr, reason = "what is wrong with the arguments is for the person at the terminal")]

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::cli::WRONG;
use crate::settings::{BackendUrl, Gate, Settings};

/// The arguments of `tollgate gate`. An argument counts before the file.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where requests are forwarded to, such as http://127.0.0.1:8080; may be given more than once
    #[arg(long, value_name = "URL", value_parser = BackendUrl::parse)]
    backend: Vec<BackendUrl>,
    /// Where clients connect [default: 127.0.0.1:8888]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How many threads serve [default: one per core]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
}

/// Runs a gate until it is told to stop.
pub(crate) fn run(options: &Options) -> ExitCode {
    let settings = match settings(options) {
        Ok(settings) => settings,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            return ExitCode::from(WRONG);
        }
    };
    start_log();
    match super::run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the gate failed");
            ExitCode::FAILURE
        }
    }
}

fn settings(options: &Options) -> Result<Gate, String> {
    let file = match &options.config {
        Some(path) => Settings::load(path).map_err(|faults| faults.to_string())?,
        None => Settings::default(),
    };
    let mut gate = file.gate.unwrap_or_default();
    if let Some(listen) = options.listen {
        gate.listen = vec![listen];
    }
    if !options.backend.is_empty() {
        gate.backends.clone_from(&options.backend);
    }
    if gate.backends.is_empty() {
        return Err("no backend to protect: give --backend URL, or backend in [gate] of the file".to_owned());
    }
    if let Some(workers) = options.workers {
        gate.workers = usize::from(workers);
    }
    Ok(gate)
}

/// Text for people, JSON for machines.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("TOLLGATE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    if std::io::stderr().is_terminal() { log.init() } else { log.json().flatten_event(true).init() }
}
