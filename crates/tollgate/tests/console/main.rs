//! The console in a real browser: Debian's chromium, driven through chromedriver.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod axe;
mod browser;
mod everybody;
mod fleet;
mod pages;
mod speed;
mod ways;

/// Gates and requests to the admin address.
mod support {
    pub(crate) use tollgate_test_support::admin_gate::AdminGate as Gate;
    pub(crate) use tollgate_test_support::simple_http::{ask, ask_for};
    pub(crate) use tollgate_test_support::{PATIENCE, eventually};
}
