//! Common to all doors: addresses, tokens, reload and shutdown.

use serde_json::json;

use crate::support::{Doors, call, check, eventually};

const RULE: &str = "[[rule]]\nname = 'api'\nclass = 'descriptor:user'\nbucket = { size = 2, drip = 1, every = '1h' }\n";

fn verdict(config: &str) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, config).unwrap();
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("check").arg(&file).output().unwrap();
    let text = [run.stdout, run.stderr].concat();
    (run.status.code(), String::from_utf8(text).unwrap().replace(&file.display().to_string(), "FILE"))
}

#[test]
fn check_names_each_door_that_will_be_open() {
    let (code, text) = verdict("[doors]\nhttp = 8890\n");
    assert_eq!(code, Some(0), "{text}");
    let expect = "door: http will be open on 127.0.0.1:8890, and asks for no token, because it is a loopback address\n";
    assert!(text.contains(expect), "{text}");
    let (code, text) = verdict("[doors]\nhttp = '0.0.0.0:8890'\ntoken_file = '/etc/token'\n");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("door: http will be open on 0.0.0.0:8890, and asks for the token in /etc/token\n"), "{text}");
}

#[test]
fn an_unprotected_or_invalid_door_is_refused() {
    for (lines, place, words) in [
        (
            "grpc = '0.0.0.0:8081'",
            "2:8",
            "beyond loopback and needs a token or client certificates: write `token_file`",
        ),
        ("resp = 6380\nratelimit = 'a.yaml'", "3:13", "nobody can ask for these limits"),
        ("grpc = 8081\nratelimit_state = 'redis'", "3:19", "needs a `[redis]` table"),
        ("grpc = 8081\nratelimit_state = 'master'", "3:19", "a master keeps no such limits"),
        (
            "http = '0.0.0.0:8890'",
            "2:8",
            "beyond loopback and needs a token or client certificates: write `token_file`",
        ),
        ("http = 0", "2:8", "0 is not a port"),
        ("http = 65536", "2:8", "65536 is not a port"),
        ("tickets = 10", "1:1", "no door has an address"),
        ("http = 8890\nticket_deadline = '2h'", "3:19", "at most one hour"),
        ("htpp = 8890", "2:1", "did you mean `http`?"),
    ] {
        let (code, text) = verdict(&format!("[doors]\n{lines}\n"));
        assert_eq!(code, Some(2), "{lines}: {text}");
        assert!(text.contains(&format!("FILE:{place}: ")) && text.contains(words), "{lines}: {text}");
    }
}

#[test]
fn a_door_with_a_token_accepts_only_clients_with_it_also_after_a_change() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "a-token-for-the-doors\n").unwrap();
    let config = format!("[doors]\nhttp = '127.0.0.1:0'\ntoken_file = 'FOLDER/token'\n{RULE}");
    let mut doors = Doors::start_in(folder, &config);
    let door = doors.door("http");
    let ask = |headers: &[(&str, &str)]| {
        let answer = call(door, "POST", "/v1/check", headers, r#"{"rule": "api", "key": "u1", "toll": 0}"#);
        (answer.status, answer.header("www-authenticate").map(str::to_owned))
    };
    assert_eq!(ask(&[]), (401, Some("Bearer".to_owned())));
    assert_eq!(ask(&[("Authorization", "Bearer a-token-for-the-door")]).0, 401);
    assert_eq!(ask(&[("Authorization", "Basic a-token-for-the-doors")]).0, 401);
    assert_eq!(ask(&[("Authorization", "Bearer a-token-for-the-doors")]).0, 200);
    assert_eq!(doors.metric("tollgate_door_unauthorized_total"), 3);
    std::fs::write(&token, "another-token-for-the-doors\n").unwrap();
    doors.signal("HUP");
    doors.logged("settings reloaded");
    assert_eq!(ask(&[("Authorization", "Bearer a-token-for-the-doors")]).0, 401);
    assert_eq!(ask(&[("Authorization", "bearer another-token-for-the-doors")]).0, 200);
}

#[test]
fn a_page_in_a_browser_cannot_call_a_door_without_a_token() {
    let mut doors = Doors::start(&format!("[doors]\nhttp = '127.0.0.1:0'\n{RULE}"));
    let door = doors.door("http");
    let answer = call(door, "POST", "/v1/check", &[("Origin", "https://evil.example")], "{}");
    assert_eq!(answer.status, 403, "{answer:?}");
}

#[test]
fn doors_without_a_gate_start_reload_and_stop() {
    let config = |size: u32| {
        format!("[doors]\nhttp = '127.0.0.1:0'\n{RULE}[[domain]]\nname = 'uploads'\n[[domain.rule]]\nname = 'size'\n")
            + &format!("class = 'identifier'\nbucket = {{ size = {size}, drip = 1, every = '1h' }}\n")
    };
    let mut doors = Doors::start(&config(1));
    let door = doors.door("http");
    assert_eq!(doors.admin("/readyz"), "ready\n");
    let upload = json!({"domain": "uploads", "attributes": {"identifier": "u1"}});
    let first = check(door, &upload);
    assert_eq!((first["decision"].as_str(), first["rule"].as_str()), (Some("admit"), Some("size")));
    assert_eq!(check(door, &upload)["decision"], "refuse");
    // An unchanged rule keeps its state; a changed one starts empty.
    assert_eq!(check(door, &json!({"rule": "api", "key": "u1"}))["remaining"], 1);
    doors.rewrite(&config(3));
    doors.signal("HUP");
    doors.logged("settings reloaded");
    assert_eq!(check(door, &upload)["remaining"], 2);
    assert_eq!(check(door, &json!({"rule": "api", "key": "u1"}))["remaining"], 0);
    doors.signal("TERM");
    assert_eq!(doors.wait(), Some(0));
    eventually("the door is closed", || std::net::TcpStream::connect(door).is_err());
}
