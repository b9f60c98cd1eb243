//! The built binary on the command line.
#![allow(clippy::unwrap_used)]

mod check;
mod coming_from;
mod examples;
mod import;
mod init;
mod manual;
mod program;
mod publish;
mod replay;
mod replay_logs;
mod sharkey;
