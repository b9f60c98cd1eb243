//! The promises of the core as laws: each is a property over limits, arrivals and tolls, in virtual time.
#![allow(clippy::unwrap_used)]

mod absorbing;
mod beat;
mod bounds;
mod escalation;
mod honesty;
mod several;
mod warmup;
mod world;
