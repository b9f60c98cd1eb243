//! Any text is a duration, a rate, a size or a number, or is rejected; a parsed value is printed as it was
//! written.
#![no_main]

use libfuzzer_sys::fuzz_target;

// The settings are a private module of the binary, which cannot be linked.
#[allow(dead_code)]
#[path = "../../crates/tollgate/src/bounded_file.rs"]
mod bounded_file;
#[allow(dead_code, unused_imports)]
#[path = "../../crates/tollgate/src/settings/mod.rs"]
mod settings;

fuzz_target!(|text: &str| {
    if text.contains(['"', '\\']) || text.chars().any(char::is_control) {
        return;
    }
    let rule = "[[rule]]\nname = \"r\"\nclass = \"path\"\n";
    for line in [
        format!("rate = {{ rate = \"{text}\", burst = 1 }}"),
        format!("bucket = {{ size = 1, every = \"{text}\" }}"),
        format!("in_flight = 1\nmemory = \"{text}\""),
    ] {
        let text = format!("{rule}{line}\n");
        if let Err(faults) = settings::Settings::parse("fuzzed.toml", &text) {
            let faults = faults.to_string();
            let places = faults.lines().filter_map(|line| line.strip_prefix("fuzzed.toml:"));
            let mut lines = places.filter_map(|place| place.split(':').next()?.parse::<usize>().ok());
            assert!(lines.all(|line| line > 3), "{faults}");
        }
    }
});
