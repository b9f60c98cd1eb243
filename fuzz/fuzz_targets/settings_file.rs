//! Any text is a settings file, or has errors with positions in the text.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The settings are a private module of the binary, which cannot be linked.
#[allow(dead_code, unused_imports)]
#[path = "../../crates/tollgate/src/settings/mod.rs"]
mod settings;

fuzz_target!(|text: &str| {
    let Err(faults) = settings::Settings::parse("fuzzed.toml", text) else { return };
    assert!(faults.iter().next().is_some());
    for fault in faults.iter() {
        let line = text.split('\n').nth(fault.line - 1).expect("a fault is on a line of the text");
        assert!(fault.column <= line.chars().count() + 1, "a fault is within its line: {fault:?}");
    }
    assert!(!faults.to_string().chars().any(|c| c.is_control() && c != '\n'), "{faults}");
});
