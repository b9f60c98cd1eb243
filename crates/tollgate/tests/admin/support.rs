//! Gates and requests to the admin address, from the crate for test support.
#![allow(unused_imports, reason = "each test uses a part of it")]

pub(crate) use tollgate_test_support::admin_gate::{AdminGate as Gate, backend};
pub(crate) use tollgate_test_support::simple_http::{HttpAnswer as Answer, ask, ask_for};
pub(crate) use tollgate_test_support::{PATIENCE, eventually};
