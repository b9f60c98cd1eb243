//! A running gate: its threads, listeners and connections.

pub(super) mod connection;
pub(super) mod decider;
pub(super) mod listener;
pub(super) mod running;
pub(super) mod worker_thread;
