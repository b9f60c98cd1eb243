//! From arguments and a file to roles that run, and what the system says to them: signals, reloads, systemd.

mod command;
mod keys;
mod log;
mod master;
mod systemd;

pub(crate) use command::{GateOptions, run_gate};
pub(crate) use keys::{KeysOptions, run_keys};
pub(crate) use master::{MasterOptions, run_master};
