//! The promises of the core as laws: each is a property over limits, arrivals and tolls, in virtual time.
#![allow(clippy::unwrap_used)]

mod absorbing;

mod bounds;
mod escalation;
mod fast_rate;
mod generators;
mod honesty;
mod nanoseconds;
mod parallel;
mod several;
mod warmup;
