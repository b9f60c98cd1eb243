//! Any text is a settings file, or has errors with positions in the text.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The settings are a private module of the binary, which cannot be linked. They read files through another one.
#[allow(dead_code)]
#[path = "../../crates/tollgate/src/bounded_file.rs"]
mod bounded_file;
#[allow(dead_code, unused_imports)]
#[path = "../../crates/tollgate/src/settings/mod.rs"]
mod settings;

fuzz_target!(|text: &str| {
    let Err(faults) = settings::Settings::parse("fuzzed.toml", text) else { return };
    let shown = faults.to_string();
    let places: Vec<(usize, usize)> = shown.lines().filter_map(place).collect();
    assert!(!places.is_empty(), "{shown}");
    for (line, column) in places {
        let line = text.split('\n').nth(line - 1).expect("a fault is on a line of the text");
        assert!(column <= line.chars().count() + 1, "a fault is within its line: {shown}");
    }
    assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown}");
});

/// The line and the column of a fault that is shown on this line.
fn place(shown: &str) -> Option<(usize, usize)> {
    let mut parts = shown.strip_prefix("fuzzed.toml:")?.splitn(3, ':');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
