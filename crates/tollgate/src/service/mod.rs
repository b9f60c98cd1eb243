//! The commands that run a role until it is stopped (`tollgate gate`, `master` and `run`): they read the arguments and
//! the settings file, start the role, reload its settings on SIGHUP, and stop it on SIGTERM. Two commands for operators
//! of masters, `tollgate keys` and `tollgate pardon`, are here too.

mod admin_service;
mod command;
mod graphite;
mod keys;
mod log;
mod master;
mod monitored_gate;
mod monitored_master;
mod observe_log;
mod pardon;
mod planning;
mod reload;
mod run;
mod state_home;
mod systemd;
mod terminal;
mod watch_alone;

pub(crate) use command::{GateOptions, run_gate};
pub(crate) use keys::{KeysOptions, run_keys};
pub(crate) use master::{MasterOptions, run_master};
pub(crate) use pardon::{PardonOptions, run_pardon};
pub(crate) use run::{RunOptions, run_roles};
