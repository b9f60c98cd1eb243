//! Processes with doors and calls to them, from the crate for test support.
#![allow(unused_imports, reason = "each test uses a part of it")]

pub(crate) use tollgate_test_support::client::socket_from;
pub(crate) use tollgate_test_support::doors::{Doors, HttpAnswer as Answer, call, check, post};
pub(crate) use tollgate_test_support::{PATIENCE, eventually, root};
