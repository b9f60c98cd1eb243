//! Tests of the settings file: conversion, errors and damaged files.

mod errors;
mod mutations;
mod resolution;
mod sites;
mod websocket_recipe;

use super::error::ConfigError;
use super::*;

/// The full example of the repository.
const EVERYTHING: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/everything.toml"));

fn read(text: &str) -> Settings {
    Settings::parse("test.toml", text).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The errors of a text, each as `line:column: message`.
fn errors(text: &str) -> Vec<String> {
    let errors = Settings::parse("test.toml", text).err();
    let line = |error: &ConfigError| format!("{}:{}: {}", error.line, error.column, error.message);
    errors.map(|errors| errors.iter().map(line).collect()).unwrap_or_default()
}
