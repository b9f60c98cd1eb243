//! Faults with a number, and the page that lists them with their tests: docs/reliability.md.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod admin;
mod faults;
mod keys;
mod numbers;
mod page;
mod wall_clock;

/// Processes with doors and calls to them.
mod doors {
    pub(crate) use tollgate_test_support::PATIENCE;
    pub(crate) use tollgate_test_support::doors::{Doors, call, check};
}

/// Gates and requests to the admin address.
mod gate {
    pub(crate) use tollgate_test_support::admin_gate::AdminGate as Gate;
    pub(crate) use tollgate_test_support::simple_http::ask;
    pub(crate) use tollgate_test_support::{PATIENCE, eventually};
}
