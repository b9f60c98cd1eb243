//! The first settings file, by options and by questions.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use crate::program::tollgate;

fn init(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = command.arg("init").args(arguments).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn checked(file: &Path) -> String {
    let run = tollgate([Path::new("check"), file]);
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    run.stdout
}

#[test]
fn every_purpose_gives_a_file_that_is_right() {
    for (purpose, has) in [
        ("app", "name   = \"crawlers\""),
        ("proxy", "trusted_proxies = [\"loopback\"]"),
        ("api", "class  = \"header:x-api-key\""),
        ("devices", "class      = \"header:x-device-id\""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(init(folder.path(), &["--for", purpose]), (Some(0), String::new()));
        let file = folder.path().join("tollgate.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.contains(has) && text.contains("backend = \"http://127.0.0.1:8080\""), "{text}");
        checked(&file);
    }
}

#[test]
fn options_are_written_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let options = [
        "--for",
        "api",
        "--backend",
        "http://10.0.0.1:3000",
        "--listen",
        "0.0.0.0:80",
        "--header",
        "X-Key",
        "api.toml",
    ];
    assert_eq!(init(folder.path(), &options), (Some(0), String::new()));
    let file = folder.path().join("api.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    for part in ["\"http://10.0.0.1:3000\"", "\"0.0.0.0:80\"", "\"header:x-key\"", "{ \"x-key\" = \"*\" }"] {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(checked(&file).contains("2 rules"));
    let options = ["--for", "proxy", "--proxies", "10.0.0.1,192.168.0.0/16", "proxy.toml"];
    assert_eq!(init(folder.path(), &options), (Some(0), String::new()));
    let text = std::fs::read_to_string(folder.path().join("proxy.toml")).unwrap();
    assert!(text.contains("trusted_proxies = [\"10.0.0.1\", \"192.168.0.0/16\"]"), "{text}");
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, "# mine\n").unwrap();
    let (code, said) = init(folder.path(), &["--for", "app"]);
    assert_eq!(code, Some(2));
    assert!(said.contains("not overwritten"), "{said}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "# mine\n");
}

#[test]
fn a_wrong_answer_is_reported_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, said) in [
        (&["--for", "app", "--backend", "ftp://x"][..], "tollgate.toml:"),
        (&["--for", "proxy", "--proxies", "home"], "home"),
        (&["--for", "api", "--header", "two words"], "two words"),
        (&[], "--for app, proxy, api or devices"),
        (&["--for", "house"], "possible values"),
    ] {
        let (code, stderr) = init(folder.path(), arguments);
        assert_eq!(code, Some(2), "{arguments:?}");
        assert!(stderr.contains(said), "{stderr}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn on_a_terminal_it_asks_three_questions() {
    let folder = tempfile::tempdir().unwrap();
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let person = openpt(flags).unwrap();
    grantpt(&person).unwrap();
    unlockpt(&person).unwrap();
    let line = ioctl_tiocgptpeer(&person, flags).unwrap();
    let mut person = File::from(person);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("init").current_dir(folder.path());
    let mut child = command.stdin(line.try_clone().unwrap()).stdout(line).stderr(Stdio::null()).spawn().unwrap();
    // The command keeps the other side of the terminal open until it ends.
    drop(command);
    // A number that is no purpose, an API, its backend, and the default header.
    person.write_all(b"9\n3\nhttp://127.0.0.1:9000\n\n").unwrap();
    assert!(child.wait().unwrap().success());
    let mut shown = Vec::new();
    let _ = person.read_to_end(&mut shown);
    let shown = String::from_utf8_lossy(&shown);
    for question in ["What is the gate for?", "Where is the application?", "Which header has the API key? [X-Api-Key]"]
    {
        assert_eq!(shown.matches(question).count(), 1, "{question} in {shown}");
    }
    let file = folder.path().join("tollgate.toml");
    assert!(std::fs::read_to_string(&file).unwrap().contains("http://127.0.0.1:9000"));
    checked(&file);
}
