//! Reloads the settings of a running gate, on SIGHUP: all of them or, if there is an error, none. Changed settings that
//! take effect only after a restart are logged.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::admin_service::{AdminReload, AdminService, config_of};
use super::graphite::{self, GraphiteCounts};
use super::master::RunningMaster;
use super::systemd;
use crate::admin::Console;
use crate::doors::OpenDoors;
use crate::gate::{LISTEN, Orders, Running};
use crate::settings;
use crate::watch::Watch;

/// Settings of a gate and of everything beside it in the process.
pub(super) struct GatePlan {
    /// The settings of the gate itself.
    pub(super) orders: Orders,
    pub(super) admin_service: AdminService,
    pub(super) doors: Option<settings::Doors>,
    pub(super) graphite: Option<settings::Graphite>,
    pub(super) telemetry: Option<settings::TelemetrySettings>,
}

/// A running gate with everything beside it in the process.
pub(super) struct GateProcess<'a> {
    pub(super) gate: Arc<Running>,
    /// The addresses of sockets that the service manager passed.
    pub(super) passed: Vec<SocketAddr>,
    pub(super) console: Arc<Console>,
    pub(super) watch: Arc<Watch>,
    pub(super) admin_service: AdminService,
    pub(super) doors: Option<OpenDoors>,
    /// The settings in force, to notice a change, which needs a restart.
    pub(super) telemetry: Option<settings::TelemetrySettings>,
    pub(super) graphite: GraphiteSender,
    /// The master in the same process, which reloads its settings itself.
    pub(super) master: Option<&'a RunningMaster>,
}

/// The task that sends metrics to Graphite, with its settings.
#[derive(Default)]
pub(super) struct GraphiteSender {
    settings: Option<settings::Graphite>,
    task: Option<JoinHandle<()>>,
    pub(super) counts: GraphiteCounts,
}

impl GraphiteSender {
    /// Applies settings; restarts the task if they changed. Call within the runtime.
    pub(super) fn send_to(&mut self, settings: Option<settings::Graphite>, gate: &Arc<Running>, watch: &Arc<Watch>) {
        if self.settings == settings {
            return;
        }
        if let Some(task) = self.task.take() {
            task.abort();
        }
        let start = |settings| tokio::spawn(graphite::run(settings, gate.clone(), watch.clone(), self.counts.clone()));
        self.task = settings.clone().map(start);
        self.settings = settings;
    }
}

impl GateProcess<'_> {
    /// Applies a plan, and reports the outcome to the log, the console and the service manager. `planned` may be the
    /// errors of the settings; then nothing changes.
    pub(super) fn reload(&mut self, planned: Result<GatePlan, String>, file: Option<&Path>) {
        let outcome = planned.and_then(|plan| self.take_over(plan));
        self.gate.shared.reloads.note(&outcome);
        self.console.reloaded(log_outcome(outcome, file));
        systemd::ready();
    }

    /// Applies a valid plan. Returns the settings that wait for a restart.
    fn take_over(&mut self, plan: GatePlan) -> Result<Vec<&'static str>, String> {
        let reload: AdminReload = self.admin_service.read(plan.admin_service, &self.console)?;
        let listen = plan.orders.gate.listen.clone();
        let mut waiting = self.gate.reload(plan.orders).map_err(|error| error.to_string())?;
        if !self.passed.is_empty() && waiting.contains(&LISTEN) {
            // The service manager passed the sockets, so a restart would not change the addresses either.
            waiting.retain(|key| *key != LISTEN);
            systemd::warn_of_unused(&listen, &self.passed);
        }
        waiting.extend(self.admin_service.take_over(reload, &self.console));
        let doors_wait = match &mut self.doors {
            Some(doors) => doors.reload(plan.doors.as_ref()).map_err(|error| error.to_string())?,
            None => plan.doors.is_some(),
        };
        if doors_wait {
            waiting.push("doors");
        }
        self.graphite.send_to(plan.graphite, &self.gate, &self.watch);
        if self.telemetry != plan.telemetry {
            waiting.push("telemetry");
        }
        waiting.extend(self.master.map(RunningMaster::waiting).unwrap_or_default());
        Ok(waiting)
    }
}

/// Logs the outcome of a reload, and returns it for the admin API: the settings in force and the names of those that
/// wait for a restart, or the errors.
pub(super) fn log_outcome(
    outcome: Result<Vec<&'static str>, String>,
    file: Option<&Path>,
) -> Result<(crate::admin::Config, Vec<&'static str>), String> {
    match outcome {
        Ok(waiting) => {
            if !waiting.is_empty() {
                tracing::warn!(settings = waiting.join(", "), "some settings take effect only after a restart");
            }
            tracing::info!("settings reloaded");
            Ok((config_of(file), waiting))
        }
        Err(faults) => {
            let faults = faults.trim_end().to_owned();
            tracing::error!(faults, "settings not reloaded: the old ones stay in force");
            Err(faults)
        }
    }
}
