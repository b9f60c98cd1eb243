//! `tollgate master`: the file becomes what the master keeps the books of.
#![expect(clippy::print_stderr, reason = "what is wrong with the arguments is for the person at the terminal")]

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;
use tollgate_core::class::Class;
use tollgate_core::fleet::Domain;
use tollgate_core::limit::{Limit, Rate};
use tollgate_core::time::Span;
use tollgate_wire::zmtp::Identity;

use super::{keys, log, systemd};
use crate::admin::{self, Console};
use crate::cli::WRONG;
use crate::{master, settings};

/// The arguments of `tollgate master`.
#[derive(Debug, clap::Args)]
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
    admin: Option<SocketAddr>,
}

/// Runs a master until it is told to stop.
pub(crate) fn run_master(options: &MasterOptions) -> ExitCode {
    let plan = match plan(options) {
        Ok(plan) => plan,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            return ExitCode::from(WRONG);
        }
    };
    log::start();
    match serve(plan) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the master failed");
            ExitCode::FAILURE
        }
    }
}

fn serve(plan: Plan) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let figures = master::Figures::default();
        if let Some(address) = plan.admin {
            let mut registry = Registry::default();
            figures.register(&mut registry);
            let console = Console { registry, is_ready: Box::new(|| true) };
            tokio::spawn(admin::serve(admin::bind(address).await?, console));
        }
        systemd::ready();
        let stop = async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            systemd::stopping();
        };
        master::run(plan.master, figures, stop).await
    })
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
    let admin = options.admin.or(file.and_then(|file| file.admin).map(|admin| admin.listen));
    let (accounting, control, state_dir) = (master.accounting, master.control, master.state_dir);
    Ok(Plan { master: master::Settings { accounting, control, domains, state_dir, identity }, admin })
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
