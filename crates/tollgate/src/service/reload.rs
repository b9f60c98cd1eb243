//! Reading the file again while everything runs: all of it is taken over or nothing, and what cannot be taken over is said.

use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::graphite::{self, GraphiteMetrics};
use super::master::Keeping;
use super::operators::{Operators, Renewal, config_of};
use super::systemd;
use crate::admin::Console;
use crate::doors::OpenDoors;
use crate::gate::{Orders, Running};
use crate::settings;
use crate::watch::Watch;

/// What a gate and everything beside it is to do.
pub(super) struct Plan {
    pub(super) orders: Orders,
    pub(super) operators: Operators,
    pub(super) doors: Option<settings::Doors>,
    pub(super) graphite: Option<settings::Graphite>,
    pub(super) telemetry: Option<settings::Telemetry>,
}

/// A gate with all that is beside it in the process, as it is in force.
pub(super) struct Household<'a> {
    pub(super) gate: Arc<Running>,
    pub(super) console: Arc<Console>,
    pub(super) watch: Arc<Watch>,
    pub(super) operators: Operators,
    pub(super) doors: Option<OpenDoors>,
    pub(super) telemetry: Option<settings::Telemetry>,
    pub(super) graphite: Sender,
    pub(super) master: Option<&'a Keeping>,
}

/// Who sends figures to Graphite, and how.
#[derive(Default)]
pub(super) struct Sender {
    settings: Option<settings::Graphite>,
    task: Option<JoinHandle<()>>,
    metrics: GraphiteMetrics,
}

impl Sender {
    /// What came of it.
    pub(super) fn metrics(&self) -> Box<GraphiteMetrics> {
        Box::new(self.metrics.clone())
    }

    /// Sends from now on as `settings` say, unless that is what it does. To be called where tasks can be started.
    pub(super) fn send_to(&mut self, settings: Option<settings::Graphite>, gate: &Arc<Running>, watch: &Arc<Watch>) {
        if self.settings == settings {
            return;
        }
        if let Some(task) = self.task.take() {
            task.abort();
        }
        let start = |settings| tokio::spawn(graphite::run(settings, gate.clone(), watch.clone(), self.metrics.clone()));
        self.task = settings.clone().map(start);
        self.settings = settings;
    }
}

impl Household<'_> {
    /// Takes over what was planned anew. A plan that is wrong changes nothing.
    pub(super) fn reload(&mut self, planned: Result<Plan, String>, file: Option<&Path>) {
        let outcome = planned.and_then(|plan| self.take_over(plan));
        self.gate.reloads().note(&outcome);
        self.console.reloaded(told(outcome, file));
        systemd::ready();
    }

    /// Gives what of the plan waits for a new start.
    fn take_over(&mut self, plan: Plan) -> Result<Vec<String>, String> {
        let renewal: Renewal = self.operators.read(plan.operators, &self.console)?;
        let mut waiting = self.gate.reload(plan.orders).map_err(|error| error.to_string())?;
        waiting.extend(self.operators.take_over(renewal, &self.console));
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
        waiting.extend(self.master.map(Keeping::waiting).unwrap_or_default());
        Ok(waiting.into_iter().map(str::to_owned).collect())
    }
}

/// Says in the log how a reload went, and gives what the console shows of it.
pub(super) fn told(
    outcome: Result<Vec<String>, String>,
    file: Option<&Path>,
) -> Result<(crate::admin::Config, Vec<String>), String> {
    match outcome {
        Ok(waiting) => {
            if !waiting.is_empty() {
                tracing::warn!(settings = waiting.join(", "), "some settings need a new start; they stay as they were");
            }
            tracing::info!("settings reloaded");
            Ok((config_of(file), waiting))
        }
        Err(faults) => {
            let faults = faults.trim_end().to_owned();
            tracing::error!(faults, "settings not reloaded; the old ones stay in force");
            Err(faults)
        }
    }
}
