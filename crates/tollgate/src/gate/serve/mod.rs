//! A running gate: its start, reload and end, its threads, listeners and connections, and the decisions for doors.

pub(super) mod connection;
pub(super) mod decider;
pub(super) mod listener;
pub(super) mod running;
pub(super) mod worker_thread;
