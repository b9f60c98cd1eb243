//! Parsers and writers for all data that the other crates exchange over the network or read from logs and kernel
//! files: HTTP, ZeroMQ, RESP, OTLP, access logs and others. They work on bytes in memory, without I/O, so that they can
//! be fuzzed.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod decimal;
pub mod forwarded;
pub mod grpc;
pub mod http1;
pub mod json_body;
pub mod kernel;
pub mod log;
pub mod openmetrics;
pub mod otlp;
pub mod proxy_protocol;
pub mod rate_limit_headers;
pub mod ratelimit_config;
pub mod resp;
pub mod server_timing;
pub mod smockron;
pub mod trace_context;
pub mod zmtp;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
