//! `tollgate run` with `[admin]` and `[watch]` alone: reports of refusals in, episodes, flags and the console out, and no gate.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tollgate_gatekeeper::clock::Clock;

use super::operators::{Operators, config_of, console_of};
use super::{log, reload, systemd};
use crate::admin::{self, Console, Subject};
use crate::cli::WRONG;
use crate::settings::Settings;

/// A watch without a gate, for the admin address.
struct WatchSubject;

impl Subject for WatchSubject {
    fn role(&self) -> &'static str {
        "watch"
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn status(&self) -> Value {
        json!({})
    }
}

fn plan(path: &Path) -> Result<Operators, String> {
    let file = Settings::load(path).map_err(|faults| faults.to_string())?;
    let listen = file.admin.as_ref().map_or(admin::DEFAULT_LISTEN, |admin| admin.listen);
    Operators::new(listen, &file)
}

/// Serves the watch of this file until it is told to stop.
#[expect(clippy::print_stderr, reason = "faults of the file are for the person at the terminal")]
pub(super) fn run_watch(path: &Path) -> ExitCode {
    let operators = match plan(path) {
        Ok(operators) => operators,
        Err(message) => {
            eprintln!("{}", message.trim_end());
            return ExitCode::from(WRONG);
        }
    };
    log::start();
    match serve(path, operators) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the watch failed");
            ExitCode::FAILURE
        }
    }
}

fn serve(path: &Path, mut operators: Operators) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        let listener = admin::bind(operators.listen()).await?;
        let guard = operators.guard()?;
        let watch = operators.watch(Arc::default(), Arc::default(), Clock::start())?;
        let console = console_of(Registry::default(), Arc::new(WatchSubject), watch, guard, config_of(Some(path)));
        tokio::spawn(admin::serve(listener, console.clone()));
        let mut heartbeat = tokio::time::interval(systemd::watchdog().unwrap_or(Duration::from_secs(3600)));
        systemd::ready();
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hang_up.recv() => {
                    systemd::reloading();
                    console.reloaded(reload::told(take_over(path, &mut operators, &console), Some(path)));
                    systemd::ready();
                }
                _ = heartbeat.tick() => systemd::alive(),
            }
        }
        systemd::stopping();
        Ok(())
    })
}

/// Reads the file again. Returns the settings that wait for a restart.
fn take_over(path: &Path, operators: &mut Operators, console: &Arc<Console>) -> Result<Vec<String>, String> {
    let renewal = operators.read(plan(path)?, console)?;
    Ok(operators.take_over(renewal, console).into_iter().map(str::to_owned).collect())
}
