//! The doors of the built binary, as programs and proxies that are not behind the gate use them.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod alone;
mod auth;
mod base;
mod check;
mod clients;
mod crowd;
mod grpc;
mod hostile;
mod http1;
mod load;
mod log;
mod resp;
mod support;
mod tls;
