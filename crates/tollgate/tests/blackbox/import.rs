//! Configurations of other limiters, translated by the command.

use std::path::Path;

use crate::program::{Scratch, root, tollgate};

/// The first block of a page that is fenced as `language`.
fn block(page: &str, language: &str) -> String {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let (_, rest) = text.split_once(&format!("\n```{language}\n")).unwrap();
    rest.split_once("\n```\n").unwrap().0.to_owned() + "\n"
}

/// The translation on a page is that of the configuration above it, and is valid.
fn check_page(name: &str, language: &str, notes: &[&str]) {
    let page = format!("docs/coming-from/{name}.md");
    let scratch = Scratch::new(&format!("import-{name}"), block(&page, language).as_bytes());
    let run = tollgate([Path::new("import"), Path::new(name), &scratch.file]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    assert_eq!(run.stdout, block(&page, "toml"));
    for note in notes {
        assert!(run.stderr.contains(note), "{note} in {}", run.stderr);
    }
    std::fs::write(&scratch.file, &run.stdout).unwrap();
    let check = tollgate([Path::new("check"), &scratch.file]);
    assert_eq!(check.code, Some(0), "{}", check.stderr);
}

#[test]
fn the_documented_translation_of_tempomat_is_that_of_the_command() {
    check_page("tempomat", "json", &["note: `debug`", "note: `hashMaxLen`", "note: all users of one browser version"]);
}

#[test]
fn the_documented_translation_of_smockron_is_that_of_the_command() {
    check_page("smockron", "yaml", &["note: `datastore`", "note: `gates_without_keys`"]);
}

#[test]
fn a_wrong_file_is_reported_and_nothing_is_printed() {
    for (name, content, reason) in [
        ("tempomat", "{ \"trustedProxies\": \"home\" }", "home"),
        ("tempomat", "{ \"backend\": \"localhost:80\" }", ": has a value that is not valid here"),
        ("tempomat", "not JSON", "is not JSON"),
        ("smockron", "domains: {a: {rate: 1/s}}", "has no `burst`"),
        ("smockron", "- 1", "line 1"),
    ] {
        let scratch = Scratch::new("import-wrong", content.as_bytes());
        let run = tollgate([Path::new("import"), Path::new(name), &scratch.file]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{content}");
        assert!(run.stderr.contains(reason), "{}", run.stderr);
    }
    let run = tollgate(["import", "tempomat", "/nonexistent/tempomat.json"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("cannot be read"), "{}", run.stderr);
}
