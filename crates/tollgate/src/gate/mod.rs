//! The gate: a reverse proxy that decides, for each request, whether and when it is forwarded to the backend.
//!
//! The folders are layers. A module imports from its own layer and from lower ones only; the tidy test checks it.
//!
//! | layer | contents |
//! |---|---|
//! | `inspect` | metrics and status of a running gate, for operators |
//! | `serve` | threads, listeners, connections; decisions for doors, through which other programs ask for them |
//! | `http` | requests and responses: reading, forwarding, streaming |
//! | `decide` | rules, delays of requests, the fair queue, and state that is shared with other gates |
//! | `observe` | counters, logs, and the clients that cause the highest cost |
//! | `net` | sockets, TLS, buffers, timers and connection limits |
//!
//! `ARCHITECTURE.md` lists the steps of a request. The rest of the program uses only the items that are exported here.

mod decide;
mod http;
mod inspect;
mod net;
mod observe;
mod serve;

pub(crate) use decide::admission::ObservedCounts;
pub(crate) use decide::key_text::KeyText;
pub(crate) use decide::refusal::{Refusal, jittered_secs, spread_of};
pub(crate) use inspect::view::{BackendInfo, Bucket, Figures, Standing};
pub(crate) use net::tls::{CERTIFICATE_BYTES_MAX, CertificatePlan, Certificates};
pub(crate) use observe::refusal_history::PastRefusal;
pub(crate) use serve::decider::{Decider, DoorTicket, Inquiry, NoRuling, OnHold, Ruling};
pub(crate) use serve::listener::bind_all;
pub(crate) use serve::running::{LISTEN, Orders, Running};
