//! Generated pages: those that are committed are up to date, the others can be generated.

use crate::program::{Scratch, root, tollgate};

fn committed(command: &str, page: &str) {
    let run = tollgate([command]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    let committed = std::fs::read_to_string(root().join(page)).unwrap();
    assert!(run.stdout == committed, "{page} is out of date: cargo run -- {command} > {page}");
}

#[test]
fn the_reference_page_is_up_to_date() {
    committed("reference", "docs/reference.md");
}

#[test]
fn the_schema_is_up_to_date() {
    committed("schema", "docs/tollgate.schema.json");
}

#[test]
fn all_references_in_the_schema_resolve() {
    let schema: serde_json::Value = serde_json::from_str(&tollgate(["schema"]).stdout).unwrap();
    fn references(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(object) => {
                found.extend(object.get("$ref").and_then(|target| target.as_str()).map(str::to_string));
                object.values().for_each(|value| references(value, found));
            }
            serde_json::Value::Array(array) => array.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    references(&schema, &mut found);
    assert!(found.len() > 10);
    for target in found {
        assert!(schema.pointer(target.trim_start_matches('#')).is_some(), "{target}");
    }
}

/// Commands in `tollgate --help`.
fn commands() -> Vec<String> {
    let help = tollgate(["--help"]).stdout;
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    listed.lines().map(|line| line.split_whitespace().next().unwrap().to_string()).collect()
}

#[test]
fn bash_completes_every_command() {
    let run = tollgate(["completions", "bash"]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    let scratch = Scratch::new("completions", run.stdout.as_bytes());
    let ask = concat!(
        r#"source "$0"; COMP_WORDS=(tollgate ""); COMP_CWORD=1; "#,
        r#"_tollgate tollgate "" tollgate; echo "${COMPREPLY[@]}""#
    );
    let output = std::process::Command::new("bash").args(["-c", ask]).arg(&scratch.file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let offered = String::from_utf8(output.stdout).unwrap();
    for command in commands() {
        assert!(offered.split_whitespace().any(|word| word == command), "{command} is not in {offered}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let scratch = Scratch::new("man", b"");
    let directory = scratch.file.with_file_name("man1");
    let run = tollgate(["man", directory.to_str().unwrap()]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    for command in commands().iter().filter(|command| *command != "help") {
        let page = std::fs::read_to_string(directory.join(format!("tollgate-{command}.1"))).expect(command);
        assert!(page.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(std::fs::read_to_string(directory.join("tollgate.1")).unwrap().contains("gate"));
}

#[test]
fn a_directory_that_cannot_be_created_is_an_error() {
    let scratch = Scratch::new("no-man", b"");
    let run = tollgate(["man", scratch.file.join("man1").to_str().unwrap()]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("no-man"), "{}", run.stderr);
}
