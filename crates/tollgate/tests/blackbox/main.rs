//! The built binary, as people and programs meet it.
#![allow(clippy::unwrap_used)]

mod check;
mod examples;
mod manual;
mod program;
mod replay;
