//! `tollgate run` with `[admin]`, but without `[gate]`, `[doors]` and `[master]`: a watch that accepts reports of
//! refusals from other programs, and serves the console.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;

use super::admin_service::AdminService;
use super::command::Signals;
use super::run::run_role;
use super::{reload, systemd};
use crate::admin::{self, Console, MonitoredRole};
use crate::settings::Settings;

/// A watch without a gate, for the admin address.
struct MonitoredWatch;

impl MonitoredRole for MonitoredWatch {
    fn role(&self) -> &'static str {
        "watch"
    }
}

fn plan(path: &Path) -> Result<AdminService, String> {
    let file = Settings::load(path).map_err(|faults| faults.to_string())?;
    let listen = file.admin.as_ref().map_or(admin::DEFAULT_LISTEN, |admin| admin.listen);
    AdminService::new(listen, &file)
}

/// Serves the watch of this file until the process is stopped.
pub(super) fn run_watch(path: &Path) -> ExitCode {
    run_role("watch", plan(path), |admin_service| serve(path, admin_service))
}

fn serve(path: &Path, mut admin_service: AdminService) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let console = admin_service.serve(Registry::default(), Arc::new(MonitoredWatch), Some(path)).await?;
        let mut heartbeat = tokio::time::interval(systemd::watchdog().unwrap_or(Duration::from_secs(3600)));
        systemd::ready();
        loop {
            tokio::select! {
                _ = signals.terminate.recv() => break,
                _ = signals.interrupt.recv() => break,
                _ = signals.hang_up.recv() => {
                    systemd::reloading();
                    console.reloaded(reload::log_outcome(take_over(path, &mut admin_service, &console), Some(path)));
                    systemd::ready();
                }
                _ = heartbeat.tick() => systemd::alive(),
            }
        }
        systemd::stopping();
        Ok(())
    })
}

/// Reloads the file. Returns the settings that wait for a restart.
fn take_over(
    path: &Path,
    admin_service: &mut AdminService,
    console: &Arc<Console>,
) -> Result<Vec<&'static str>, String> {
    let reload = admin_service.read(plan(path)?, console)?;
    Ok(admin_service.take_over(reload, console))
}
