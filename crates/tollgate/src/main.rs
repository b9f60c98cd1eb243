//! Tollgate keeps a service usable when some of its clients would take all of it.
//!
//! This is the binary. `cli` parses the arguments and runs a command; the commands and the roles, such as the gate and
//! the master, are modules of this crate. ARCHITECTURE.md lists them.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[macro_use]
mod delegate;
#[macro_use]
mod output;

mod admin;
mod admin_client;
mod bounded_file;
mod check;
mod cli;
mod client_tls;
mod colours;
mod demo;
mod doctor;
mod doors;
mod durable;
mod flags;
mod gate;
mod hardening;
mod health;
mod hex;
mod http_client;
mod http_date;
mod import;
mod init;
mod key_counts;
mod line_queue;
mod manual;
mod mask;
mod master;
mod metric;
mod observe_summary;
mod per_thread;
mod post;
mod replay;
mod service;
mod session_cookie;
mod settings;
mod telemetry;
mod terminal_text;
mod token;
mod wall_clock;
mod watch;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
