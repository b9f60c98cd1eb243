//! `tollgate master`: the file becomes what the master keeps the books of.
#![expect(clippy::print_stderr, reason = "what is wrong with the arguments is for the person at the terminal")]

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;

use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tollgate_core::class::Class;
use tollgate_core::fleet::Domain;
use tollgate_core::limit::{Limit, Rate};
use tollgate_core::time::Span;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::shared::FencedPages;
use tollgate_wire::zmtp::Identity;

use super::master_subject::MasterSubject;
use super::operators::{Operators, config_of, console_of};
use super::planning::Planning;
use super::{keys, log, reload, systemd};
use crate::admin::{self, Console};
use crate::cli::WRONG;
use crate::{master, settings};

/// The arguments of `tollgate master`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct MasterOptions {
    /// Where operators connect: health, metrics [default: nowhere]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// What a master is to do.
struct Plan {
    master: master::Settings,
    /// Where its books are on Redis, and what they are called there.
    books: Option<(settings::Redis, String)>,
    operators: Option<Operators>,
    config: Option<PathBuf>,
}

impl MasterOptions {
    /// What this file says, and nothing else.
    pub(super) fn of_file(path: &Path) -> Self {
        Self { admin: None, config: Some(path.to_path_buf()) }
    }
}

/// A master beside another role, which has the address for operators.
pub(super) struct Books {
    options: MasterOptions,
    plan: Plan,
    figures: master::Figures,
}

impl Books {
    /// What the master is to do.
    pub(super) fn plan(options: &MasterOptions) -> Result<Self, String> {
        let plan = Plan { operators: None, ..plan(options)? };
        Ok(Self { options: options.clone(), plan, figures: master::Figures::default() })
    }

    /// Begins to keep the books, on a thread of their own. A master that cannot ends the process: a gate alone is not what was asked for.
    pub(super) fn open(self) -> io::Result<Keeping> {
        let (figures, (stop, stopped)) = (self.figures.clone(), oneshot::channel::<()>());
        let (options, fixed) = (self.options, Fixed::of(&self.plan));
        let anew = options.clone();
        let plan_anew = move || Self::plan(&anew).map(|books| books.plan);
        let keep = move || {
            let stopped = async { drop(stopped.await) };
            if let Err(error) = serve(plan_anew, self.plan, self.figures, stopped, false) {
                tracing::error!(%error, "the master failed");
                std::process::exit(1);
            }
        };
        let thread = std::thread::Builder::new().name("master".to_owned()).spawn(keep)?;
        Ok(Keeping { options, fixed, figures, stop, thread })
    }
}

/// A master at work beside another role.
pub(super) struct Keeping {
    options: MasterOptions,
    fixed: Fixed,
    figures: master::Figures,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Keeping {
    /// What the master counts.
    pub(super) const fn figures(&self) -> &master::Figures {
        &self.figures
    }

    /// What of the file as it is now waits for a new start. The master reads it by itself.
    pub(super) fn waiting(&self) -> Vec<&'static str> {
        plan(&self.options).map_or_else(|_| Vec::new(), |now| self.fixed.waiting(&Fixed::of(&now)))
    }

    /// Stops the master, if it has not been told to stop by then, and waits until its books are closed.
    pub(super) fn end(self) -> io::Result<()> {
        drop(self.stop);
        self.thread.join().map_err(|_| io::Error::other("the master panicked"))
    }
}

/// Runs a master until it is told to stop.
pub(crate) fn run_master(options: &MasterOptions) -> ExitCode {
    let planned = match plan(options) {
        Ok(planned) => planned,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            return ExitCode::from(WRONG);
        }
    };
    log::start();
    let anew = options.clone();
    match serve(move || plan(&anew), planned, master::Figures::default(), pending(), true) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the master failed");
            ExitCode::FAILURE
        }
    }
}

/// Serves until the process is told to stop, or `stopped` is over. The service manager hears of it from a master that is alone; beside
/// another role, that one speaks for both.
fn serve(
    plan_anew: impl Fn() -> Result<Plan, String> + Clone + Send + 'static,
    running: Plan,
    figures: master::Figures,
    stopped: impl Future<Output = ()>,
    is_alone: bool,
) -> io::Result<()> {
    let tell = |state: fn()| {
        if is_alone {
            state();
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let fixed = Fixed::of(&running);
        super::command::outlive_file_size_limit()?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        if is_alone && let Some(every) = systemd::watchdog() {
            // On the master's own thread: a master that hangs sends no heartbeat.
            tokio::task::spawn_local(async move {
                let mut heartbeat = tokio::time::interval(every);
                loop {
                    heartbeat.tick().await;
                    systemd::alive();
                }
            });
        }
        let mut operators = None;
        if let Some(started) = running.operators {
            // First: two that are told to use one address would fight for one journal, and the second has nothing to write there.
            let admin = admin::bind(started.listen()).await?;
            let guard = started.guard()?;
            let mut registry = Registry::default();
            figures.register(&mut registry);
            let watch = started.watch(Arc::default(), Arc::default(), Clock::start())?;
            let config = config_of(running.config.as_deref());
            let subject = Arc::new(MasterSubject(figures.clone()));
            let console = console_of(registry, subject, watch, guard, config);
            tokio::spawn(admin::serve(admin, console.clone()));
            operators = Some((started, console));
        }
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                () = stopped => {}
            }
            tell(systemd::stopping);
        };
        let mut planning = Planning::default();
        let reloads = async || loop {
            hang_up.recv().await;
            tell(systemd::reloading);
            let plan_anew = plan_anew.clone();
            planning.begin(move || plan_anew().inspect(|plan| plan.operators.iter().for_each(Operators::read_ahead)));
            let planned = planning.finished().await.and_then(|plan| Renewed::read(plan, &fixed, operators.as_mut()));
            let (domains, outcome) = match planned {
                Ok(Renewed { domains, waiting }) => (Some(domains), Ok(waiting)),
                Err(faults) => (None, Err(faults)),
            };
            let told = reload::told(outcome, running.config.as_deref());
            if let Some((_, console)) = &operators {
                console.reloaded(told);
            }
            tell(systemd::ready);
            if let Some(domains) = domains {
                break domains;
            }
        };
        master::run(running.master, figures, reloads, || tell(systemd::ready), stop).await
    })
}

/// What comes of a reload.
struct Renewed {
    domains: Vec<Domain>,
    /// What waits for a new start.
    waiting: Vec<String>,
}

impl Renewed {
    /// Takes over what a plan brings to operators, if there are any, and gives the rest.
    fn read(plan: Plan, fixed: &Fixed, operators: Option<&mut (Operators, Arc<Console>)>) -> Result<Self, String> {
        let mut waiting = fixed.waiting(&Fixed::of(&plan));
        match (operators, plan.operators) {
            (Some((operators, console)), Some(new)) => {
                let renewal = operators.read(new, console)?;
                waiting.extend(operators.take_over(renewal, console));
            }
            (None, None) => {}
            (Some(_), None) | (None, Some(_)) => waiting.push("admin"),
        }
        Ok(Self { domains: plan.master.domains, waiting: waiting.into_iter().map(str::to_owned).collect() })
    }
}

/// What of a master's settings takes effect only when it is started.
struct Fixed {
    addresses: [SocketAddr; 2],
    statsd: Option<SocketAddr>,
    state_dir: Option<PathBuf>,
    books: Option<(settings::Redis, String)>,
    identity: Option<Identity>,
}

impl Fixed {
    fn of(plan: &Plan) -> Self {
        let settings = &plan.master;
        Self {
            books: plan.books.clone(),
            addresses: [settings.accounting, settings.control],
            statsd: settings.statsd,
            state_dir: settings.state_dir.clone(),
            identity: settings.identity.clone(),
        }
    }

    /// The keys of what is something else in `now`.
    fn waiting(&self, now: &Self) -> Vec<&'static str> {
        let [accounting, control] = [0, 1].map(|index| self.addresses[index] != now.addresses[index]);
        let (keys, gates) = match (&self.identity, &now.identity) {
            (
                Some(Identity::Server { keys, known }),
                Some(Identity::Server { keys: other_keys, known: other_known }),
            ) => (keys != other_keys, known != other_known),
            (before, now) => (before != now, before != now),
        };
        let name = |books: &Option<(settings::Redis, String)>| books.as_ref().map(|(_, name)| name.clone());
        let renamed = name(&self.books) != name(&now.books);
        let changed = [
            (accounting, "master.accounting"),
            (control, "master.control"),
            (keys, "master.key_file"),
            (gates, "master.gates"),
            (self.statsd != now.statsd, "master.statsd"),
            (self.state_dir != now.state_dir, "master.state_dir"),
            (renamed, "master.books"),
            (!renamed && self.books != now.books, "redis for books"),
        ];
        changed.into_iter().filter_map(|(has_changed, key)| has_changed.then_some(key)).collect()
    }
}

fn plan(options: &MasterOptions) -> Result<Plan, String> {
    let file = match &options.config {
        Some(path) => Some(settings::Settings::load(path).map_err(|faults| faults.to_string())?),
        None => None,
    };
    let master = file.as_ref().and_then(|file| file.master.clone()).unwrap_or_default();
    let identity = match &master.key_file {
        Some(file) => Some(Identity::Server { keys: Arc::new(keys::read(file)?), known: master.gates.into() }),
        None => None,
    };
    let domains = match &file {
        Some(file) => domains(&file.domains)?,
        None => vec![original_domain()],
    };
    let file = file.unwrap_or_default();
    let books = file.redis.clone().zip(master.books);
    let shelf = match &books {
        Some((redis, name)) => {
            Some(FencedPages::new(redis.address().map_err(|error| error.to_string())?, &redis.prefix, name))
        }
        None => None,
    };
    let admin = options.admin.or(file.admin.as_ref().map(|admin| admin.listen));
    let operators = admin.map(|listen| Operators::new(listen, &file)).transpose()?;
    let (accounting, control, state_dir, statsd) = (master.accounting, master.control, master.state_dir, master.statsd);
    Ok(Plan {
        master: master::Settings { accounting, control, domains, state_dir, books: shelf, statsd, identity },
        books,
        operators,
        config: options.config.clone(),
    })
}

/// What Smockron's master does when it is told nothing: one a second, ten at once.
fn original_domain() -> Domain {
    let rate = Rate::new(1, Span::from_secs(1), 10).expect("one a second is a rate");
    Domain { name: (*b"default").into(), limits: vec![Limit::Rate(rate)] }
}

/// A domain's rules about identifiers are one domain on the wire. A rule that gates keep with the help of a master is one of its own: its
/// keys are of another class, and must not be mixed up with others.
fn domains(domains: &[settings::Domain]) -> Result<Vec<Domain>, String> {
    let identifier = Class::parse("identifier").expect("it is a class");
    let mut named: Vec<Domain> = Vec::new();
    let mut wrong = Vec::new();
    for domain in domains {
        for settings in &domain.rules {
            let rule = &settings.rule;
            let name = if rule.class == identifier {
                domain.name.clone()
            } else if settings.state == settings::State::Master {
                settings.domain_at_master(&domain.name)
            } else {
                continue;
            };
            if !matches!(rule.limit, Limit::Rate(_) | Limit::Budget(_)) {
                wrong.push(format!("rule {}: a master keeps rates and budgets only", rule.name));
            }
            match named.iter_mut().find(|known| *known.name == *name.as_bytes()) {
                Some(known) => known.limits.push(rule.limit),
                None => named.push(Domain { name: name.into_bytes().into(), limits: vec![rule.limit] }),
            }
        }
    }
    if wrong.is_empty() { Ok(named) } else { Err(wrong.join("\n")) }
}
