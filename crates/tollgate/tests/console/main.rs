//! The console in a real browser: Debian's chromium, driven through chromedriver.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod axe;
mod browser;
mod pages;
mod speed;
#[allow(dead_code, reason = "the tests of the address for operators use the rest")]
#[path = "../admin/support.rs"]
mod support;
