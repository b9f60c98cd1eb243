//! `tollgate master`: reads the settings and runs the master until it is stopped. With `tollgate run`, a gate in the
//! same process can start it on a thread of its own ([`PlannedMaster`]).

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;

use prometheus_client::registry::Registry;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tollgate_core::class::Class;
use tollgate_core::fleet::Domain;
use tollgate_core::limit::{Limit, Rate};
use tollgate_core::time::Span;
use tollgate_gatekeeper::shared::FencedPages;
use tollgate_wire::zmtp::Identity;

use super::admin_service::AdminService;
use super::command::Signals;
use super::monitored_master::MonitoredMaster;
use super::planning::Planning;
use super::run::run_role;
use super::{keys, log, reload, systemd};
use crate::admin::Console;
use crate::{master, settings};

/// Arguments of `tollgate master`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MasterOptions {
    /// Address to listen on for metrics and health checks [default: none]
    #[arg(long, value_name = "ADDRESS", value_parser = settings::ListenAddress::parse)]
    admin: Option<SocketAddr>,
    /// Settings file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Settings of a master, and the files that they name, read.
struct MasterPlan {
    startup: StartupSettings,
    /// The limits that the master keeps, by domain. Only these and the admin address change with a reload.
    domains: Vec<Domain>,
    /// The master's state on Redis, if the settings name it (`books`).
    redis_pages: Option<FencedPages>,
    admin_service: Option<AdminService>,
    /// Path of the settings file.
    config: Option<PathBuf>,
}

impl MasterOptions {
    /// Options of a master that only the settings file configures.
    pub(super) fn of_file(path: &Path) -> Self {
        Self { admin: None, config: Some(path.to_path_buf()) }
    }
}

/// A master that is to run beside another role, which provides the admin address.
pub(super) struct PlannedMaster {
    options: MasterOptions,
    plan: MasterPlan,
}

impl PlannedMaster {
    /// Reads the settings of the master.
    pub(super) fn plan(options: &MasterOptions) -> Result<Self, String> {
        let plan = MasterPlan { admin_service: None, ..plan(options)? };
        Ok(Self { options: options.clone(), plan })
    }

    /// Starts the master on a separate thread. If it fails, the process ends, because the settings require both roles.
    pub(super) fn open(self) -> io::Result<RunningMaster> {
        let (metrics, (stop, stopped)) = (master::MasterMetrics::default(), oneshot::channel::<()>());
        let (options, startup) = (self.options, self.plan.startup.clone());
        let options_for_reload = options.clone();
        let plan_again = move || Self::plan(&options_for_reload).map(|planned| planned.plan);
        let own_metrics = metrics.clone();
        let run = move || {
            let stopped = async { drop(stopped.await) };
            if let Err(error) = serve(plan_again, self.plan, own_metrics, stopped, false) {
                tracing::error!(%error, "the master failed");
                log::finish();
                std::process::exit(1);
            }
        };
        let thread = std::thread::Builder::new().name("master".to_owned()).spawn(run)?;
        Ok(RunningMaster { options, startup, metrics, stop, thread })
    }
}

/// A running master beside another role.
pub(super) struct RunningMaster {
    options: MasterOptions,
    startup: StartupSettings,
    /// Metrics of the master.
    pub(crate) metrics: master::MasterMetrics,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl RunningMaster {
    /// Names of the settings of the master that the file has changed and that wait for a restart. The master itself
    /// reloads the others.
    pub(super) fn waiting(&self) -> Vec<&'static str> {
        plan(&self.options).map_or_else(|_| Vec::new(), |now| self.startup.waiting(&now.startup))
    }

    /// Stops the master, if it still runs, and waits until its state is written.
    pub(super) fn end(self) -> io::Result<()> {
        drop(self.stop);
        self.thread.join().map_err(|_| io::Error::other("the master panicked"))
    }
}

/// Runs a master until it is stopped.
pub(crate) fn run_master(options: &MasterOptions) -> ExitCode {
    let options_for_reload = options.clone();
    let plan_again = move || plan(&options_for_reload);
    run_role("master", plan(options), |planned| {
        serve(plan_again, planned, master::MasterMetrics::default(), pending(), true)
    })
}

/// Runs the master until a signal stops the process, or `stopped` resolves. `plan_again` reads the settings for a
/// reload. If `is_alone`, the master notifies the service manager; otherwise the role beside it does.
fn serve(
    plan_again: impl Fn() -> Result<MasterPlan, String> + Clone + Send + 'static,
    running: MasterPlan,
    metrics: master::MasterMetrics,
    stopped: impl Future<Output = ()>,
    is_alone: bool,
) -> io::Result<()> {
    let notify = |notification: fn()| {
        if is_alone {
            notification();
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let startup = running.startup.clone();
        let Signals { mut terminate, mut interrupt, mut hang_up, .. } = Signals::listen()?;
        if is_alone && let Some(every) = systemd::watchdog() {
            // On the master's own thread, so that a master that hangs sends no heartbeat.
            tokio::task::spawn_local(async move {
                let mut heartbeat = tokio::time::interval(every);
                loop {
                    heartbeat.tick().await;
                    systemd::alive();
                }
            });
        }
        let mut admin_service = None;
        if let Some(started) = running.admin_service {
            let mut registry = Registry::default();
            metrics.register(&mut registry);
            let monitored = Arc::new(MonitoredMaster(metrics.clone()));
            let console = started.serve(registry, monitored, running.config.as_deref()).await?;
            admin_service = Some((started, console));
        }
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = stopped => {}
            }
            notify(systemd::stopping);
        };
        let mut planning = Planning::default();
        // The domains of the next successful reload.
        let reloads = async || loop {
            hang_up.recv().await;
            notify(systemd::reloading);
            let plan_again = plan_again.clone();
            planning.begin(move || {
                plan_again().inspect(|plan| plan.admin_service.iter().for_each(AdminService::read_ahead))
            });
            let planned = planning.finished().await.and_then(|plan| take_over(plan, &startup, admin_service.as_mut()));
            let (domains, outcome) = match planned {
                Ok((domains, waiting)) => (Some(domains), Ok(waiting)),
                Err(faults) => (None, Err(faults)),
            };
            let outcome = reload::log_outcome(outcome, running.config.as_deref());
            if let Some((_, console)) = &admin_service {
                console.reloaded(outcome);
            }
            notify(systemd::ready);
            if let Some(domains) = domains {
                break domains;
            }
        };
        let MasterPlan { startup: StartupSettings { master, .. }, domains, redis_pages, .. } = running;
        master::run(master, domains, redis_pages, metrics, reloads, || notify(systemd::ready), stop).await
    })
}

/// Applies the admin part of a plan, if there is an admin address. Returns the new domains, and the settings that wait
/// for a restart.
fn take_over(
    plan: MasterPlan,
    startup: &StartupSettings,
    admin_service: Option<&mut (AdminService, Arc<Console>)>,
) -> Result<(Vec<Domain>, Vec<&'static str>), String> {
    let mut waiting = startup.waiting(&plan.startup);
    match (admin_service, plan.admin_service) {
        (Some((admin_service, console)), Some(new)) => {
            let reload = admin_service.read(new, console)?;
            waiting.extend(admin_service.take_over(reload, console));
        }
        (None, None) => {}
        (Some(_), None) | (None, Some(_)) => waiting.push("admin"),
    }
    Ok((plan.domains, waiting))
}

/// Settings of a master that take effect only at startup.
#[derive(Clone)]
struct StartupSettings {
    master: master::MasterSettings,
    /// Redis server of the copy of the master's state, and the name of the copy there (`books`).
    redis_copy: Option<(settings::Redis, String)>,
}

impl StartupSettings {
    /// Names of the settings that differ in `now`, and therefore wait for a restart.
    fn waiting(&self, now: &Self) -> Vec<&'static str> {
        let (before, after) = (&self.master, &now.master);
        let (keys, gates) = match (&before.access.identity, &after.access.identity) {
            (
                Some(Identity::Server { keys, known }),
                Some(Identity::Server { keys: other_keys, known: other_known }),
            ) => (keys != other_keys, known != other_known),
            (before, after) => (before != after, before != after),
        };
        let name = |redis_copy: &Option<(settings::Redis, String)>| redis_copy.as_ref().map(|(_, name)| name.clone());
        let renamed = name(&self.redis_copy) != name(&now.redis_copy);
        let changed = [
            (before.accounting != after.accounting, "master.accounting"),
            (before.control != after.control, "master.control"),
            (keys, "master.key_file"),
            (gates, "master.gates"),
            (before.access.without_keys != after.access.without_keys, "master.gates_without_keys"),
            (before.statsd != after.statsd, "master.statsd"),
            (before.state_dir != after.state_dir, "master.state_dir"),
            (renamed, "master.books"),
            (!renamed && self.redis_copy != now.redis_copy, "redis for books"),
        ];
        changed.into_iter().filter_map(|(has_changed, key)| has_changed.then_some(key)).collect()
    }
}

/// Reads the settings of a master, and the files that they name. The error is a message for the operator.
fn plan(options: &MasterOptions) -> Result<MasterPlan, String> {
    let file =
        options.config.as_deref().map(settings::Settings::load).transpose().map_err(|faults| faults.to_string())?;
    let master = file.as_ref().and_then(|file| file.master.clone()).unwrap_or_default();
    let known = master.gates.unwrap_or_default().into();
    let keys = master.key_file.as_deref().map(keys::read).transpose()?;
    let identity = keys.map(|keys| Identity::Server { keys: Arc::new(keys), known });
    let access = master::GateAccess { identity, without_keys: master.gates_without_keys };
    let domains = match &file {
        Some(file) => domains(&file.domains)?,
        None => vec![original_domain()],
    };
    let file = file.unwrap_or_default();
    let redis_copy = file.redis.clone().zip(master.books);
    let pages = |(redis, name): &(settings::Redis, String)| -> io::Result<_> {
        Ok(FencedPages::new(redis.address()?, &redis.prefix, name))
    };
    let redis_pages = redis_copy.as_ref().map(pages).transpose().map_err(|error| error.to_string())?;
    let admin = options.admin.or(file.admin.as_ref().map(|admin| admin.listen));
    let admin_service = admin.map(|listen| AdminService::new(listen, &file)).transpose()?;
    let settings::Master { accounting, control, state_dir, statsd, .. } = master;
    let master = master::MasterSettings { accounting, control, state_dir, statsd, access };
    let config = options.config.clone();
    Ok(MasterPlan { startup: StartupSettings { master, redis_copy }, domains, redis_pages, admin_service, config })
}

/// The domain of a master without a settings file, as in Smockron: one request per second, bursts of ten.
fn original_domain() -> Domain {
    let rate = Rate::new(1, Span::from_secs(1), 10).expect("one per second is a valid rate");
    Domain { name: (*b"default").into(), limits: vec![Limit::Rate(rate)] }
}

/// The domains of the protocol that the master keeps, from the domains of the settings. All rules of a domain with the
/// class `identifier` share one, with the name of the domain, unless they set another as `wire_domain`. Any other rule
/// with `state = "master"` has a domain of its own, because its keys are of another class and must not collide.
fn domains(domains: &[settings::Domain]) -> Result<Vec<Domain>, String> {
    let identifier = Class::parse("identifier").expect("a valid class");
    let mut named: Vec<Domain> = Vec::new();
    let mut wrong = Vec::new();
    for domain in domains {
        for settings in &domain.rules {
            let rule = &settings.rule;
            if rule.class != identifier && settings.state != settings::StateLocation::Master {
                continue;
            }
            let name = settings.domain_at_master(&domain.name);
            if !matches!(rule.limit, Limit::Rate(_) | Limit::Budget(_)) {
                wrong.push(format!("rule {}: a master supports only `rate` and `budget`", rule.name));
            }
            match named.iter_mut().find(|known| *known.name == *name.as_bytes()) {
                Some(known) => known.limits.push(rule.limit),
                None => named.push(Domain { name: name.into_bytes().into(), limits: vec![rule.limit] }),
            }
        }
    }
    if wrong.is_empty() { Ok(named) } else { Err(wrong.join("\n")) }
}
