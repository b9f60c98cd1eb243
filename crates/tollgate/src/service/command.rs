//! `tollgate gate`: merges arguments and settings file into a [`GatePlan`], and runs the gate with everything beside it
//! in the process (doors, admin address, watch, metrics, and with `tollgate run` a master) until it is stopped.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::admin_service::{AdminService, config_of, console_of};
use super::graphite::graphite_metrics;
use super::master::{MasterOptions, PlannedMaster, RunningMaster};
use super::monitored_gate::MonitoredGate;
use super::planning::Planning;
use super::reload::{GatePlan, GateProcess, GraphiteSender};
use super::run::run_role;
use super::terminal::AttachedTerminal;
use super::{keys, systemd};
use crate::admin;
use crate::bounded_file;
use crate::doors::BoundDoors;
use crate::gate::{CERTIFICATE_BYTES_MAX, Decider, Orders, Running};
use crate::settings::{BackendUrl, CertificateFiles, DoorTls, ListenAddress, Settings, StateLocation};
use crate::telemetry::TelemetryExporter;

/// How often the certificate files are checked for changes.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(2);

/// Arguments of `tollgate gate`. They take precedence over the settings file.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct GateOptions {
    /// URL of the backend, such as http://127.0.0.1:8080; may be given more than once
    #[arg(long, value_name = "URL", value_parser = BackendUrl::parse)]
    backend: Vec<BackendUrl>,
    /// Address to listen on for clients [default: 127.0.0.1:8888]
    #[arg(long, value_name = "ADDRESS", value_parser = ListenAddress::parse)]
    listen: Option<SocketAddr>,
    /// Address to listen on for the console, metrics and health checks [default: 127.0.0.1:8889]
    #[arg(long, value_name = "ADDRESS", value_parser = ListenAddress::parse)]
    admin: Option<SocketAddr>,
    /// Settings file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Number of worker threads [default: one per core]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
}

impl GateOptions {
    /// Options of a gate that only the settings file configures.
    pub(super) fn of_file(path: &Path) -> Self {
        Self { backend: Vec::new(), listen: None, admin: None, config: Some(path.to_path_buf()), workers: None }
    }

    /// Reads the file and merges the arguments into it. The error is a message for the operator.
    fn plan(&self) -> Result<GatePlan, String> {
        let file = match &self.config {
            Some(path) => Settings::load(path).map_err(|faults| faults.to_string())?,
            None => Settings::default(),
        };
        let listen = self.admin.or(file.admin.as_ref().map(|admin| admin.listen));
        let admin_service = AdminService::new(listen.unwrap_or(admin::DEFAULT_LISTEN), &file)?;
        let mut gate = file.gate.unwrap_or_default();
        if let Some(listen) = self.listen {
            gate.listen = vec![listen];
        }
        if !self.backend.is_empty() {
            gate.backends.clone_from(&self.backend);
        }
        let has_backend = !gate.all_backends().is_empty();
        if !has_backend && file.doors.is_some() {
            // Nothing is forwarded: the gate only decides for doors.
            gate.listen.clear();
        } else if !has_backend {
            return Err("no backend: use --backend URL, or set `backend` in [gate] of the settings file".to_owned());
        }
        if let Some(workers) = self.workers {
            gate.workers = usize::from(workers);
        }
        let link = file.link.map(keys::link).transpose()?;
        let mut domains = file.domains.into_iter();
        let domain = domains.next().expect("the default domain always exists");
        if link.is_none() && domain.rules.iter().any(|rule| rule.state == StateLocation::Master) {
            return Err(
                "rules with `state = \"master\"` need a master: add `[[link.master]]` with its `key`".to_owned()
            );
        }
        let doors = file.doors;
        let other_domains = domains.filter(|_| doors.is_some()).collect();
        let door_threads = doors.as_ref().map_or(0, |doors| doors.threads.unwrap_or(gate.workers).max(1));
        let orders = Orders { gate, domain, other_domains, door_threads, redis: file.redis, link };
        Ok(GatePlan { orders, admin_service, doors, graphite: file.graphite, telemetry: file.telemetry })
    }
}

/// Reads the settings of a reload, and once all files that they name, on the thread of [`Planning`]. The main thread
/// reads these files again where it uses them. If their disk hangs, this thread blocks and not the main thread.
fn plan_ahead(options: &GateOptions) -> Result<GatePlan, String> {
    let plan = options.plan()?;
    plan.admin_service.read_ahead();
    let doors = plan.doors.iter().flat_map(|doors| doors.open());
    let of_doors = doors.filter_map(|(_, door)| door.tls.as_ref());
    let of_doors = of_doors.flat_map(|DoorTls { chain, key, client_ca }| [Some(chain), Some(key), client_ca.as_ref()]);
    let of_gate = plan.orders.gate.all_tls().flat_map(|CertificateFiles { chain, key }| [chain, key]);
    for file in of_gate.chain(of_doors.flatten()) {
        let _ = bounded_file::read(file, CERTIFICATE_BYTES_MAX);
    }
    Ok(plan)
}

/// `tollgate gate`.
pub(crate) fn run_gate(options: &GateOptions) -> ExitCode {
    run_role("gate", options.plan(), |plan| serve(options, plan, None))
}

/// Runs a gate and a master in one process, for `tollgate run`.
pub(crate) fn run_gate_beside(gate: &GateOptions, master: &MasterOptions) -> ExitCode {
    let planned = match (gate.plan(), PlannedMaster::plan(master)) {
        (Ok(plan), Ok(planned_master)) => Ok((plan, planned_master)),
        (plan, planned_master) => {
            let messages = [plan.err(), planned_master.err()].into_iter().flatten();
            Err(messages.map(|message| message.trim_end().to_owned()).collect::<Vec<_>>().join("\n"))
        }
    };
    run_role("gate", planned, |(plan, planned_master)| serve(gate, plan, Some(planned_master)))
}

/// Runs a gate, and a master beside it if there is one, until it is stopped.
fn serve(options: &GateOptions, plan: GatePlan, planned_master: Option<PlannedMaster>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _inside = runtime.enter();
        Signals::listen()?
    };
    // After the signal handlers are installed. The master handles the same signals on its own thread; if the gate ends
    // without a signal, `end` stops it.
    let master = planned_master.map(PlannedMaster::open).transpose()?;
    let served = serve_requests(options, plan, runtime, signals, master.as_ref());
    let kept = master.map_or(Ok(()), RunningMaster::end);
    served.and(kept)
}

/// Starts the gate and everything beside it, waits until it is stopped, and stops it all in order.
fn serve_requests(
    options: &GateOptions,
    plan: GatePlan,
    runtime: Runtime,
    mut signals: Signals,
    master: Option<&RunningMaster>,
) -> io::Result<()> {
    let admin_service = plan.admin_service;
    let admin = runtime.block_on(admin::bind(admin_service.listen))?;
    // Everything that can fail happens before the gate accepts a request, which would otherwise be cut off.
    let guard = admin_service.guard()?;
    let doors = plan.doors.map(|doors| BoundDoors::bind(doors, plan.orders.door_threads)).transpose()?;
    let (telemetry, tracer) = plan.telemetry.as_ref().map(TelemetryExporter::open).transpose()?.unzip();
    let sockets = systemd::passed_sockets()?;
    let passed = sockets.iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
    systemd::warn_of_unused(&plan.orders.gate.listen, &passed);
    let mut gate = Running::new(plan.orders, sockets, tracer.flatten())?;
    // Before the first request, because a rule may depend on the flag of an account.
    let watch = {
        let _inside = runtime.enter();
        admin_service.watch(
            gate.shared.stats.feed.clone(),
            gate.shared.admission.flagged.clone(),
            gate.clock().clone(),
        )?
    };
    let keeper = gate.keep_learned(watch.state_dir.as_deref());
    gate.open()?;
    let doors = doors.map(|doors| doors.open(|thread| Decider::new(gate.shared.clone(), thread))).transpose()?;
    let gate = Arc::new(gate);
    let mut registry = Registry::default();
    registry.register_collector(gate.metrics());
    if let Some(doors) = &doors {
        registry.register_collector(doors.metrics());
    }
    if let Some(master) = master {
        master.metrics.register(&mut registry);
    }
    if let Some(telemetry) = &telemetry {
        registry.register_collector(telemetry.metrics());
    }
    let graphite = GraphiteSender::default();
    registry.register_collector(graphite_metrics(graphite.counts.clone()));
    let monitored = Arc::new(MonitoredGate::new(gate.clone(), watch.calendar.clone()));
    let console = console_of(registry, monitored, watch.clone(), guard, config_of(options.config.as_deref()));
    runtime.spawn(admin::serve(admin, console.clone()));
    if let Some(telemetry) = telemetry {
        let shown = console.clone();
        runtime.spawn(telemetry.run(move || shown.metrics_text()));
    }
    let (telemetry, watching) = (plan.telemetry, watch.clone());
    let mut process = GateProcess {
        gate: gate.clone(),
        passed,
        console,
        watch: watching,
        admin_service,
        doors,
        telemetry,
        graphite,
        master,
    };
    runtime.block_on(async {
        process.graphite.send_to(plan.graphite, &gate, &watch);
        until_stopped(options, &mut process, &mut signals).await
    })?;
    drop(runtime);
    if let Some(doors) = process.doors.take() {
        doors.end(gate.drain_max());
    }
    drop(process);
    watch.take_feed();
    if let Some(keeper) = keeper {
        keeper.end();
    }
    Arc::into_inner(gate).map_or(Ok(()), Running::end)
}

/// Number of SIGXFSZ on Linux, except on MIPS.
const SIGXFSZ: i32 = 25;

/// Signal handlers. They are installed before anything else starts, because an unhandled signal ends the process.
pub(super) struct Signals {
    pub(super) terminate: Signal,
    pub(super) interrupt: Signal,
    pub(super) hang_up: Signal,
    user_1: Signal,
}

impl Signals {
    /// Handles the signals, and ignores SIGXFSZ, so that a write beyond the limit on file sizes (`LimitFSIZE` of
    /// systemd) fails like one on a full disk instead of ending the process.
    pub(super) fn listen() -> io::Result<Self> {
        // The handler of tokio stays installed although nothing waits for the signal.
        signal(SignalKind::from_raw(SIGXFSZ)).map(drop)?;
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            user_1: signal(SignalKind::user_defined1())?,
        })
    }
}

/// Serves until SIGTERM, SIGINT or the end of its terminal, reloads on SIGHUP, and drains at the end.
async fn until_stopped(options: &GateOptions, process: &mut GateProcess<'_>, signals: &mut Signals) -> io::Result<()> {
    let Signals { terminate, interrupt, hang_up, user_1 } = signals;
    let gate = process.gate.clone();
    let door_certificates = process.doors.as_ref().map(|doors| doors.certificates.clone()).unwrap_or_default();
    let mut certificates = tokio::time::interval(CERTIFICATES_EVERY);
    let (mut planning, mut refresher) = (Planning::default(), None::<JoinHandle<()>>);
    let mut heartbeat = tokio::time::interval(systemd::watchdog().unwrap_or(Duration::from_secs(3600)));
    let mut terminal = AttachedTerminal::new();
    systemd::ready();
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hang_up.recv() => {
                if terminal.was_closed() {
                    break;
                }
                systemd::reloading();
                let options = options.clone();
                planning.begin(move || plan_ahead(&options));
            }
            planned = planning.finished() => process.reload(planned, options.config.as_deref()),
            _ = user_1.recv() => gate.reopen_access_log(),
            _ = certificates.tick() => {
                terminal.look();
                // On a blocking thread, because the files may be on a disk that hangs.
                if refresher.as_ref().is_none_or(JoinHandle::is_finished) {
                    let (gate, doors) = (gate.clone(), door_certificates.clone());
                    let refresh = move || {
                        gate.refresh_certificates();
                        doors.refresh();
                    };
                    refresher = thread::Builder::new().spawn(refresh).ok();
                }
            }
            _ = heartbeat.tick() => systemd::alive(),
        }
    }
    systemd::stopping();
    tracing::info!("stopping: requests in flight are completed, no new ones are accepted");
    tokio::select! {
        () = gate.drain() => {}
        () = tokio::time::sleep(gate.drain_max()) => tracing::warn!("drain timeout: requests in flight were cut off"),
        _ = interrupt.recv() => {}
    }
    Ok(())
}
