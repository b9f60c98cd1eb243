//! The gate: a reverse proxy that asks, before each request reaches the backend, whether it may.
//!
//! A request's way is one line: [`listener`] accepts, [`connection`] finds out what is spoken, [`h1`] reads a request,
//! [`exchange`] identifies the client ([`identify`]), asks ([`admission`]), forwards ([`forward`], [`backend`]) and carries
//! the bodies ([`body`]). Each [`worker`] is a thread with everything it needs of its own.

mod admission;
mod backend;
mod body;
mod buffer;
mod caps;
pub(crate) mod command;
mod connection;
mod exchange;
mod forward;
mod h1;
mod h1_body;
mod identify;
mod listener;
mod refusal;
mod run;
mod socket;
mod tally;
mod timer;
mod tunnel;
mod worker;

pub(crate) use run::run;
