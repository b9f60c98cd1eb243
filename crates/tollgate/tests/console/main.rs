//! The console in a real browser: Debian's chromium, driven through chromedriver.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod axe;
mod browser;
mod everybody;
mod fleet;
mod pages;
mod speed;
#[path = "../admin/support.rs"]
mod support;
mod ways;
