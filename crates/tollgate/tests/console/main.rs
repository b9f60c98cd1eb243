//! The console in a real browser: Debian's chromium, driven through chromedriver.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod axe;
mod browser;
mod everybody;
mod fleet;
mod pages;
#[allow(dead_code, reason = "another test uses all of it")]
#[path = "../master/program.rs"]
mod program;
#[path = "../../../tollgate-gatekeeper/tests/support/redis_server.rs"]
mod redis_server;
mod speed;
#[allow(dead_code, reason = "the tests of the address for operators use the rest")]
#[path = "../admin/support.rs"]
mod support;
mod ways;
