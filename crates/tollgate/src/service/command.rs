//! `tollgate gate`: arguments and file become one set of settings, and the gate runs on them.
#![expect(clippy::print_stderr, reason = "what is wrong with the arguments is for the person at the terminal")]

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::gate_subject::GateSubject;
use super::master::{Books, Keeping, MasterOptions};
use super::operators::{Operators, config_of, console_of};
use super::planning::Planning;
use super::reload::{Household, Plan, Sender};
use super::{keys, log, systemd};
use crate::admin;
use crate::bounded_file;
use crate::cli::WRONG;
use crate::doors::BoundDoors;
use crate::gate::{CERTIFICATE_BYTES_MAX, Orders, Running};
use crate::settings::{self, BackendUrl, CertificateFiles, Settings, State};
use crate::telemetry::Telemetry;

/// How often certificates are looked at.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(2);

/// The arguments of `tollgate gate`. An argument counts before the file.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GateOptions {
    /// Where requests are forwarded to, such as http://127.0.0.1:8080; may be given more than once
    #[arg(long, value_name = "URL", value_parser = BackendUrl::parse)]
    backend: Vec<BackendUrl>,
    /// Where clients connect [default: 127.0.0.1:8888]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where operators connect: console, metrics, health [default: 127.0.0.1:8889]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How many threads serve [default: one per core]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
}

impl GateOptions {
    /// What this file says, and nothing else.
    pub(super) fn of_file(path: &Path) -> Self {
        Self { backend: Vec::new(), listen: None, admin: None, config: Some(path.to_path_buf()), workers: None }
    }

    /// Arguments and file, together.
    fn plan(&self) -> Result<Plan, String> {
        let file = match &self.config {
            Some(path) => Settings::load(path).map_err(|faults| faults.to_string())?,
            None => Settings::default(),
        };
        let listen = self.admin.or(file.admin.as_ref().map(|admin| admin.listen));
        let operators = Operators::new(listen.unwrap_or(admin::DEFAULT_LISTEN), &file)?;
        let mut gate = file.gate.unwrap_or_default();
        if let Some(listen) = self.listen {
            gate.listen = vec![listen];
        }
        if !self.backend.is_empty() {
            gate.backends.clone_from(&self.backend);
        }
        if gate.backends.is_empty() && file.doors.is_some() {
            // Nothing is forwarded: the gate decides about what comes through doors.
            gate.listen.clear();
        } else if gate.backends.is_empty() {
            return Err("no backend to protect: give --backend URL, or backend in [gate] of the file".to_owned());
        }
        if let Some(workers) = self.workers {
            gate.workers = usize::from(workers);
        }
        let link = file.link.map(keys::link).transpose()?;
        let mut domains = file.domains.into_iter();
        let domain = domains.next().expect("the default domain is always there");
        if link.is_none() && domain.rules.iter().any(|rule| rule.state == State::Master) {
            return Err("rules with `state = \"master\"` need a master that lets this gate in: write `[[link.master]]` with its `key`".to_owned());
        }
        let doors = file.doors;
        let other_domains = domains.filter(|_| doors.is_some()).collect();
        let door_threads = doors.as_ref().map_or(0, |doors| doors.threads.unwrap_or(gate.workers).max(1));
        let orders = Orders { gate, domain, other_domains, door_threads, redis: file.redis, link };
        Ok(Plan { orders, operators, doors, graphite: file.graphite, telemetry: file.telemetry })
    }
}

/// Reads a plan and, once, all files that it names: those are read again where they are used, when they are known to be readable in time.
fn plan_ahead(options: &GateOptions) -> Result<Plan, String> {
    let plan = options.plan()?;
    plan.operators.read_ahead();
    for CertificateFiles { chain, key } in &plan.orders.gate.tls {
        let _ = bounded_file::read(chain, CERTIFICATE_BYTES_MAX);
        let _ = bounded_file::read(key, CERTIFICATE_BYTES_MAX);
    }
    Ok(plan)
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
    outcome(serve(options, plan, None))
}

/// Runs a gate and a master in one process, until both are told to stop. What the master counts is among the gate's metrics.
pub(crate) fn run_gate_beside(gate: &GateOptions, master: &MasterOptions) -> ExitCode {
    let (plan, books) = match (gate.plan(), Books::plan(master)) {
        (Ok(plan), Ok(books)) => (plan, books),
        (plan, books) => {
            for message in [plan.err(), books.err()].into_iter().flatten() {
                eprintln!("{}", message.trim_end());
            }
            return ExitCode::from(WRONG);
        }
    };
    log::start();
    outcome(serve(gate, plan, Some(books)))
}

fn outcome(served: io::Result<()>) -> ExitCode {
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the gate failed");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: &GateOptions, plan: Plan, books: Option<Books>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _inside = runtime.enter();
        Signals::listen()?
    };
    // Only now: the gate hears every signal that does not end the process, and whatever ends the gate ends the master.
    let master = books.map(Books::open).transpose()?;
    let served = serve_requests(options, plan, runtime, signals, master.as_ref());
    let kept = master.map_or(Ok(()), Keeping::end);
    served.and(kept)
}

fn serve_requests(
    options: &GateOptions,
    plan: Plan,
    runtime: Runtime,
    mut signals: Signals,
    master: Option<&Keeping>,
) -> io::Result<()> {
    let operators = plan.operators;
    let admin = runtime.block_on(admin::bind(operators.listen()))?;
    // All that can fail comes before the gate takes a request, which would be cut off.
    let guard = operators.guard()?;
    let doors = plan.doors.map(|doors| BoundDoors::bind(doors, plan.orders.door_threads)).transpose()?;
    let (telemetry, tracer) = plan.telemetry.as_ref().map(Telemetry::open).transpose()?.unzip();
    let sockets = systemd::passed_sockets(&plan.orders.gate.listen, &settings::Gate::default().listen)?;
    let mut gate = Running::new(plan.orders, sockets, tracer.flatten())?;
    // Before the first request: a rule may ask whether its account is flagged.
    let watch = {
        let _inside = runtime.enter();
        operators.watch(gate.feed(), gate.flagged(), gate.clock().clone())?
    };
    let keeper = gate.keep_learned(watch.state_dir());
    gate.open()?;
    let doors = doors.map(|doors| doors.open(|thread| gate.decider(thread))).transpose()?;
    let gate = Arc::new(gate);
    let mut registry = Registry::default();
    registry.register_collector(gate.metrics());
    if let Some(doors) = &doors {
        registry.register_collector(doors.metrics());
    }
    if let Some(master) = master {
        master.figures().register(&mut registry);
    }
    if let Some(telemetry) = &telemetry {
        registry.register_collector(telemetry.metrics());
    }
    let graphite = Sender::default();
    registry.register_collector(graphite.metrics());
    let subject = Arc::new(GateSubject::new(gate.clone(), watch.calendar().clone()));
    let console = console_of(registry, subject, watch.clone(), guard, config_of(options.config.as_deref()));
    runtime.spawn(admin::serve(admin, console.clone()));
    if let Some(telemetry) = telemetry {
        let shown = console.clone();
        runtime.spawn(telemetry.run(move || shown.metrics_text()));
    }
    let (telemetry, watching) = (plan.telemetry, watch.clone());
    let mut household =
        Household { gate: gate.clone(), console, watch: watching, operators, doors, telemetry, graphite, master };
    runtime.block_on(async {
        household.graphite.send_to(plan.graphite, &gate, &watch);
        until_stopped(options, &mut household, &mut signals).await
    })?;
    drop(runtime);
    if let Some(doors) = household.doors.take() {
        doors.end(gate.drain_max());
    }
    drop(household);
    watch.take_feed();
    if let Some(keeper) = keeper {
        keeper.end();
    }
    Arc::into_inner(gate).map_or(Ok(()), Running::end)
}

/// Linux's number, but on MIPS.
const SIGXFSZ: i32 = 25;

/// What the system may say. Listened for before anything else starts: a signal that nobody listens for ends the process.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
    user_1: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        outlive_file_size_limit()?;
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            user_1: signal(SignalKind::user_defined1())?,
        })
    }
}

/// A write beyond the limit on file sizes (`LimitFSIZE` of systemd) fails like one on a full disk. Without a handler, SIGXFSZ would end the process.
pub(super) fn outlive_file_size_limit() -> io::Result<()> {
    // The handler stays although nobody waits for the signal.
    signal(SignalKind::from_raw(SIGXFSZ)).map(drop)
}

/// Serves, reloads when told to, and drains when told to stop.
async fn until_stopped(options: &GateOptions, household: &mut Household<'_>, signals: &mut Signals) -> io::Result<()> {
    let Signals { terminate, interrupt, hang_up, user_1 } = signals;
    let gate = household.gate.clone();
    let mut certificates = tokio::time::interval(CERTIFICATES_EVERY);
    let (mut planning, mut refresher) = (Planning::default(), None::<JoinHandle<()>>);
    let mut heartbeat = tokio::time::interval(systemd::watchdog().unwrap_or(Duration::from_secs(3600)));
    systemd::ready();
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => {
                systemd::reloading();
                let options = options.clone();
                planning.begin(move || plan_ahead(&options));
            }
            planned = planning.finished() => household.reload(planned, options.config.as_deref()),
            _ = user_1.recv() => gate.reopen_access_log(),
            _ = certificates.tick() => {
                // Aside, because the files may be on a disk that hangs.
                if refresher.as_ref().is_none_or(JoinHandle::is_finished) {
                    let gate = gate.clone();
                    refresher = thread::Builder::new().spawn(move || gate.refresh_certificates()).ok();
                }
            }
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
