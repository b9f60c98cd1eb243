//! Gates and masters as built programs on real sockets, with peers on libzmq.
#![allow(clippy::unwrap_used)]

mod budget;
mod gate;
mod keys;
mod kills;
mod operation;
mod original;
#[path = "../master/program.rs"]
#[allow(dead_code, reason = "another test uses all of it")]
mod program;
mod proxy;
#[path = "../master/python.rs"]
mod python;
#[path = "../master/tap.rs"]
mod tap;
mod together;
