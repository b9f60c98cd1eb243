//! Gates and masters as built programs on real sockets, with peers on libzmq.
#![allow(clippy::unwrap_used)]

mod budget;
mod gate;
mod keys;
mod kills;
mod operation;
mod original;
mod proxy;
mod together;
