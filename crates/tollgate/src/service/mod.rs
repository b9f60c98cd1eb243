//! From arguments and a file to roles that run, and what the system says to them: signals, reloads, systemd.

mod command;
mod log;
mod systemd;

pub(crate) use command::{GateOptions, run_gate};
