//! `tollgate gate`: arguments and file become one set of settings, and the gate runs on them.
#![expect(clippy::print_stderr, reason = "what is wrong with the arguments is for the person at the terminal")]

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{keys, log, systemd};
use crate::admin::{self, Console};
use crate::cli::WRONG;
use crate::gate::{Orders, Running};
use crate::settings::{BackendUrl, Settings, State};

/// How often certificates are looked at.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(2);

/// The arguments of `tollgate gate`. An argument counts before the file.
#[derive(Debug, clap::Args)]
pub(crate) struct GateOptions {
    /// Where requests are forwarded to, such as http://127.0.0.1:8080; may be given more than once
    #[arg(long, value_name = "URL", value_parser = BackendUrl::parse)]
    backend: Vec<BackendUrl>,
    /// Where clients connect [default: 127.0.0.1:8888]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where operators connect: health, metrics [default: 127.0.0.1:8889]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How many threads serve [default: one per core]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
}

/// What a gate is to do.
struct Plan {
    orders: Orders,
    admin: SocketAddr,
}

impl GateOptions {
    /// Arguments and file, together.
    fn plan(&self) -> Result<Plan, String> {
        let file = match &self.config {
            Some(path) => Settings::load(path).map_err(|faults| faults.to_string())?,
            None => Settings::default(),
        };
        let mut gate = file.gate.unwrap_or_default();
        if let Some(listen) = self.listen {
            gate.listen = vec![listen];
        }
        if !self.backend.is_empty() {
            gate.backends.clone_from(&self.backend);
        }
        if gate.backends.is_empty() {
            return Err("no backend to protect: give --backend URL, or backend in [gate] of the file".to_owned());
        }
        if let Some(workers) = self.workers {
            gate.workers = usize::from(workers);
        }
        let link = file.link.map(keys::link).transpose()?;
        let domain = file.domains.into_iter().next().expect("the default domain is always there");
        if link.is_none() && domain.rules.iter().any(|rule| rule.state == State::Master) {
            return Err("rules with `state = \"master\"` need a master that lets this gate in: write `[[link.master]]` with its `key`".to_owned());
        }
        let admin = self.admin.or(file.admin.map(|admin| admin.listen));
        Ok(Plan {
            orders: Orders { gate, domain, redis: file.redis, link },
            admin: admin.unwrap_or(admin::DEFAULT_LISTEN),
        })
    }
}

/// Runs a gate until it is told to stop.
pub(crate) fn run_gate(options: &GateOptions) -> ExitCode {
    let plan = match options.plan() {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            return ExitCode::from(WRONG);
        }
    };
    log::start();
    match serve(options, plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the gate failed");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &GateOptions, plan: Plan) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::listen()?
    };
    let admin = runtime.block_on(admin::bind(plan.admin))?;
    let gate = Arc::new(Running::start(plan.orders, systemd::handed_over()?)?);
    let mut registry = Registry::default();
    registry.register_collector(gate.metrics());
    let ready = gate.clone();
    let console = Console { registry, is_ready: Box::new(move || ready.is_ready()) };
    runtime.spawn(admin::serve(admin, console));
    runtime.block_on(until_stopped(options, &gate, &mut signals))?;
    drop(runtime);
    Arc::into_inner(gate).map_or(Ok(()), Running::end)
}

/// What the system may say. Listened for before anything else starts: a signal that nobody listens for ends the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }
}

/// Serves, reloads when told to, and drains when told to stop.
async fn until_stopped(options: &GateOptions, gate: &Running, signals: &mut Signals) -> io::Result<()> {
    let Signals { terminate, interrupt, hang_up } = signals;
    let mut certificates = tokio::time::interval(CERTIFICATES_EVERY);
    let mut heartbeat = tokio::time::interval(systemd::watchdog().unwrap_or(Duration::from_secs(3600)));
    systemd::ready();
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => reload(options, gate),
            _ = certificates.tick() => gate.refresh_certificates(),
            _ = heartbeat.tick() => systemd::alive(),
        }
    }
    systemd::stopping();
    tracing::info!("stopping: requests in flight are finished, no more are taken");
    tokio::select! {
        () = gate.drain() => {}
        () = tokio::time::sleep(gate.drain_max()) => tracing::warn!("requests were still in flight when the time for that was over"),
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Reads the file again. A bad file changes nothing.
fn reload(options: &GateOptions, gate: &Running) {
    systemd::reloading();
    let outcome = options.plan().and_then(|plan| gate.reload(plan.orders).map_err(|error| error.to_string()));
    gate.reloads().note(&outcome);
    match outcome {
        Ok(()) => tracing::info!("settings reloaded"),
        Err(faults) => tracing::error!(faults = faults.trim_end(), "settings not reloaded; the old ones stay in force"),
    }
    systemd::ready();
}
