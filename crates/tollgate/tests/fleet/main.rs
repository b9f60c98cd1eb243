//! Gates and masters as they are run: built programs, real sockets, peers on libzmq.
#![allow(clippy::unwrap_used)]

mod gate;
mod keys;
mod operation;
mod original;
#[path = "../master/program.rs"]
#[allow(dead_code, reason = "another test uses all of it")]
mod program;
#[path = "../master/python.rs"]
mod python;
mod together;
