//! Any text is a file of envoyproxy/ratelimit, or has errors with positions in the text. Any descriptor can be looked
//! up in it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::ratelimit_config::{LimitTree, parse};

fuzz_target!(|text: &str| {
    // saphyr-parser counts a line for each of these.
    let lines = text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count();
    match parse(text) {
        Ok(file) => {
            assert!(!file.domain.is_empty());
            let tree = LimitTree::new(&file.descriptors);
            let mut scratch = String::new();
            for (place, leaf) in tree.leaves().iter().enumerate() {
                // A value of the file itself finds a limit, unless its text is a more specific descriptor without one.
                let entries = leaf.entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_deref().unwrap_or("?")));
                let found = tree.find(entries, &mut scratch);
                assert!(found.is_none_or(|found| found < tree.leaves().len()), "{place}");
            }
            let mut paths: Vec<&str> = tree.leaves().iter().map(|leaf| leaf.path.as_str()).collect();
            paths.sort_unstable();
            assert!(paths.windows(2).all(|pair| pair[0] != pair[1]), "{paths:?}");
        }
        Err(errors) => {
            assert!(!errors.is_empty());
            for error in errors {
                assert!((1..=lines + 1).contains(&error.line) && error.column > 0, "{error:?}");
                assert!(!error.message.chars().any(char::is_control), "{error:?}");
            }
        }
    }
});
