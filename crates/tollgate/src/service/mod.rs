//! From arguments and a file to roles that run, and what the system says to them: signals, reloads, systemd.

mod command;
mod gate_subject;
mod graphite;
mod keys;
mod log;
mod master;
mod master_subject;
mod operators;
mod pardon;
mod planning;
mod reload;
mod run;
mod state_home;
mod systemd;
mod watch_alone;

pub(crate) use command::{GateOptions, run_gate};
pub(crate) use keys::{KeysOptions, run_keys};
pub(crate) use master::{MasterOptions, run_master};
pub(crate) use pardon::{PardonOptions, run_pardon};
pub(crate) use run::{RunOptions, run_roles};
