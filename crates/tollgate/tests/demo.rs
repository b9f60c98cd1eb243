//! The demo, as somebody sees it who has just installed the program.
#![allow(clippy::unwrap_used)]

use std::process::Command;

#[test]
fn the_demo_plays_both_halves_and_ends_with_a_comparison() {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["demo", "--seconds", "4"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let (halves, comparison) = text.split_once("While the crawler was there").unwrap();
    for title in ["Without Tollgate, 3 s", "With Tollgate, 3 s"] {
        assert!(halves.contains(title), "{title} is not in {halves}");
    }
    for row in ["people served", "office served", "crawler's share of CPU time", "CPU time in use"] {
        let line = comparison.lines().find(|line| line.trim().starts_with(row)).unwrap();
        assert_eq!(line.matches('%').count(), 2, "{line}");
    }
    assert!(comparison.contains("The table is about the "), "{comparison}");
    assert!(!text.contains('\x1b'), "control sequences are for terminals");
}

#[test]
fn a_demo_that_is_too_short_to_show_anything_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["demo", "--seconds", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
