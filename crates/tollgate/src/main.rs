//! Tollgate keeps a service usable when some of its clients would take all of it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admin;
mod admin_client;
mod check;
mod cli;
mod demo;
mod doctor;
mod flags;
#[allow(dead_code, reason = "some of what it offers has no user yet")]
mod gate;
mod manual;
mod master;
mod replay;
mod service;
#[allow(dead_code, unused_imports, reason = "not every role that reads them is there yet")]
mod settings;
mod watch;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
