//! The log on a terminal: lines with colours, and no control sequences that clients chose.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::json;

use crate::support::{ask, backend, eventually};
use crate::terminal::{Terminal, plain};

#[test]
fn no_key_can_control_the_terminal_of_a_gate() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    let rule =
        "[[rule]]\nname = \"api\"\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";
    std::fs::write(&file, format!("[gate]\nworkers = 1\nbackend = \"http://{}\"\n{rule}", backend())).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["gate", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"]).arg(&file);
    command.env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY");
    let terminal = Terminal::start(&mut command, 200, 50);
    // Complete lines only. None may contain control sequences but colours.
    let lines = || {
        let text = String::from_utf8(terminal.written()).unwrap_or_default();
        let whole = text.rsplit_once("\r\n").map_or("", |(whole, _)| whole).to_owned();
        whole.split("\r\n").map(plain).collect::<Vec<_>>()
    };
    let address = |text: &str| {
        let mut found: Option<SocketAddr> = None;
        eventually(text, || {
            let line = lines().into_iter().find(|line| line.contains(text));
            found = line.and_then(|line| line.split("address=").nth(1)?.split(' ').next()?.parse().ok());
            found.is_some()
        });
        found.unwrap()
    };
    let (admin, gate) = (address("operators may connect"), address("listening"));

    let name = "\u{1b}[31mred\u{1b}]0;title\u{7}\r\n2026 INFO fake\u{9b}2J\u{0}";
    let report = json!({ "id": name, "entries": [{ "class": "user", "key": name, "rejected": 1000 }] });
    assert_eq!(ask(admin, "POST", "/api/v1/rejections", &[], &report.to_string()).status, 202);
    let path = format!("/api/v1/flags/{}", name.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>());
    let note = json!({ "name": name, "note": name }).to_string();
    assert_eq!(ask(admin, "DELETE", &path, &[], &note).status, 200);
    // Control characters that a client can send in a header.
    for _ in 0..3 {
        ask(gate, "GET", "/", &[("X-Api-Key", "\u{9b}31mred")], "");
    }
    for text in ["account flagged", "flag cleared", "changed by an operator", "refused header:x-api-key"] {
        eventually(text, || lines().iter().any(|line| line.contains(text)));
    }
    assert!(!lines().iter().any(|line| line.starts_with("2026 INFO fake")), "{:#?}", lines());
}
