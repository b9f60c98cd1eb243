//! The gate as its clients and backends see it: the built binary, spoken to over sockets.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

mod backends;
mod buffering;
mod crowds;
mod engagements;
mod forwarding;
mod framing;
mod health;
mod http2;
mod http2_backends;
mod http2_memory;
mod identity;
mod learned;
mod many;
mod observe;
mod operation;
mod proxies;
mod readme;
mod recipes;
mod refunds;
mod responses;
mod rules;
mod safe_recipes;
mod sharing;
mod silence;
mod slow;
mod spellings;
mod spool_faults;
mod streaming;
mod tls;
mod tolls;
mod uploads;
mod websocket;
