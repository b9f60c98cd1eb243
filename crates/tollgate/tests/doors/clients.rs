//! The examples of docs/door-http.md, run as they stand.

use std::process::Command;

use crate::support::{Doors, root};

/// The blocks of the page that are fenced as `language`.
pub(crate) fn blocks(page: &str, language: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let fence = format!("\n```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("\n```\n").next().unwrap().to_owned() + "\n").collect()
}

/// A process with the configuration that the page begins with, on a port of its own.
fn documented() -> Doors {
    Doors::start(&blocks("docs/door-http.md", "toml")[0].replace("127.0.0.1:8890", "127.0.0.1:0"))
}

/// Runs the example of the page in this language.
fn run(language: &str, file: &str, command: &[&str]) {
    let mut doors = documented();
    let door = doors.door("http");
    let code = &blocks("docs/door-http.md", language)[0];
    let lines = code.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 20, "an example in {language} has {lines} lines");
    let path = doors.folder.path().join(file);
    std::fs::write(&path, code).unwrap();
    let mut command = {
        let mut words = Command::new(command[0]);
        words.args(&command[1..]).arg(&path).arg("u1");
        words
    };
    command.env("TOLLGATE_DOOR", format!("http://{door}")).env("GOCACHE", doors.folder.path().join("go"));
    let output = command.env("HOME", doors.folder.path()).env("GOFLAGS", "-mod=mod").output();
    let output = output.unwrap_or_else(|error| panic!("{language} is not installed: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text, "created\ncreated\nwait 60 s\n");
    assert_eq!(doors.metric("tollgate_door_settled_total"), 2);
}

#[test]
fn the_javascript_example_runs_as_it_stands() {
    run("javascript", "notes.mjs", &["node"]);
}

#[test]
fn the_python_example_runs_as_it_stands() {
    run("python", "notes.py", &["python3"]);
}

#[test]
fn the_go_example_runs_as_it_stands() {
    run("go", "notes.go", &["go", "run"]);
}

#[test]
fn the_php_example_runs_as_it_stands() {
    run("php", "notes.php", &["php"]);
}
