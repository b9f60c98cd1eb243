//! The help screen of the doctor: meanings of columns and keys.

use super::columns;
use crate::terminal_text::wrapped;

const KEYS: [(&str, &str); 6] = [
    ("tab", "next class; shift-tab: previous class"),
    ("c w r x l", "sort by CPU, wait, requests, refused, last seen"),
    ("up down", "select a row"),
    ("enter", "rules of the key and their state"),
    ("/", "search"),
    ("q", "quit"),
];

/// Introduction, above the columns.
const ABOUT: &str = "Clients that use the most CPU time of the backend come first. The doctor opens on the class where the \
    load is concentrated: a crawler with many addresses of one network is many small rows under ip/32, and one large row \
    under ip/24.";

/// Lines of the screen for this width.
pub(super) fn lines(width: usize) -> Vec<String> {
    let mut lines = wrapped(ABOUT, width);
    lines.push(String::new());
    for (name, meaning) in columns::meanings() {
        lines.extend(entry(name, meaning, width));
    }
    lines.push(String::new());
    for (name, meaning) in KEYS {
        lines.extend(entry(name, meaning, width));
    }
    lines
}

/// A name with its meaning beside it, wrapped.
fn entry(name: &str, meaning: &str, width: usize) -> Vec<String> {
    const INDENT: usize = 11;
    let meaning = wrapped(meaning, width.saturating_sub(INDENT).max(10));
    let first = |index: usize| if index == 0 { name } else { "" };
    meaning.iter().enumerate().map(|(index, line)| format!("{:<INDENT$}{line}", first(index))).collect()
}

/// The meanings of the columns, for `tollgate doctor --help`.
pub(super) fn columns_text() -> String {
    let columns = columns::meanings().map(|(name, meaning)| format!("  {name:<9} {meaning}\n"));
    let once = "With --once, Share[%] is `share`, and Title is the client.";
    format!("Columns:\n{}\n{once}", columns.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_of_80_columns_and_24_lines_shows_all_of_it() {
        // A header and a footer are around it.
        assert!(lines(80).len() <= 22, "{}", lines(80).join("\n"));
    }

    #[test]
    fn every_column_and_key_is_explained_within_the_width() {
        for width in [40, 80, 140] {
            let text = lines(width).join("\n");
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            for (name, _) in columns::meanings().chain(KEYS) {
                assert!(text.lines().any(|line| line.starts_with(name)), "{name} in\n{text}");
            }
        }
    }
}
