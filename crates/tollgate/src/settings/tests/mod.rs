//! What a file means, and what is said about one that means nothing.

mod faults;
mod meaning;
mod mutations;
mod websocket_recipe;

use super::fault::Fault;
use super::*;

/// The full example of the repository.
const EVERYTHING: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/everything.toml"));

fn read(text: &str) -> Settings {
    Settings::parse("test.toml", text).unwrap_or_else(|faults| panic!("{faults}"))
}

/// The faults of a text, each as `line:column: message`.
fn faults(text: &str) -> Vec<String> {
    let faults = Settings::parse("test.toml", text).err();
    let line = |fault: &Fault| format!("{}:{}: {}", fault.line, fault.column, fault.message);
    faults.map(|faults| faults.iter().map(line).collect()).unwrap_or_default()
}
