//! The gate: a reverse proxy that asks, before each request reaches the backend, whether it may.
//!
//! A request's way is one line: [`listener`] accepts, [`connection`] finds out what is spoken, [`h1`] reads a request,
//! [`exchange`] identifies the client ([`identify`]), asks ([`admission`]), forwards ([`forward`], [`backend`]) and carries
//! the bodies ([`body`]). Each [`worker`] is a thread with everything it needs of its own.

mod access_log;
mod admission;
mod backend;
mod body;
mod buffer;
mod caps;
mod claims;
mod connection;
mod conversation;
mod download;
mod elsewhere;
mod engagement;
mod engagement_log;
mod exchange;
mod exemptions;
mod failure_log;
mod flow;
mod forward;
mod h1;
mod h1_body;
mod h1_spill;
mod h2;
mod h2_body;
mod h2_budget;
mod h2_connect;
mod h2_head;
mod h2_io;
mod h2_unsent;
mod histogram;
mod holds;
mod identify;
mod keeper;
mod kernel;
mod key_text;
mod learned_file;
mod listener;
mod load;
mod master_metrics;
mod masters;
mod metrics;
mod others;
mod pages;
mod proxy_detector;
mod queue;
mod rates;
mod redis;
mod refusal;
mod reloads;
mod report;
mod routes;
mod rules;
mod running;
mod sight;
mod socket;
mod spenders;
mod spool;
mod tally;
mod timer;
mod tls;
mod trace;
mod tunnel;
mod uploads;
mod view;
mod worker;

pub(crate) use admission::ObservedCounts;
pub(crate) use histogram::Counted;
pub(crate) use key_text::KeyText;
pub(crate) use others::Other;
pub(crate) use queue::QueueForecast;
pub(crate) use running::{Orders, Running};
pub(crate) use view::{Bucket, Standing};
