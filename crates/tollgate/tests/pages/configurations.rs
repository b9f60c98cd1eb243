//! Every configuration of every page starts, serves its admin address and stops.
//!
//! With these changes: files are in a folder of the test, all addresses are free ones, and a block that has no role
//! gets a gate, because most blocks show a part of a settings file.

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use tollgate_test_support::doors::Doors;
use tollgate_test_support::{binary, free_addresses};

use crate::{numbered_blocks, page, pages};

/// Addresses of the pages on which the program listens.
const LISTENING: [&str; 11] = [
    "0.0.0.0:8888",
    "127.0.0.1:8888",
    "0.0.0.0:8889",
    "127.0.0.1:8889",
    "0.0.0.0:8890",
    "127.0.0.1:8890",
    "127.0.0.1:8081",
    "127.0.0.1:6380",
    "127.0.0.1:5514",
    "0.0.0.0:80",
    "0.0.0.0:443",
];

fn has_table(block: &str, name: &str) -> bool {
    block.lines().any(|line| line.split(']').next() == Some(&format!("[{name}")))
}

/// The block as a file that can be started beside others.
fn startable(block: &str, folder: &Path) -> String {
    let mut text = block.to_owned();
    for address in LISTENING {
        text = text.replace(&format!("\"{address}\""), "\"127.0.0.1:0\"");
    }
    if has_table(&text, "master") {
        let [accounting, control] = free_addresses();
        let has_addresses = text.contains("accounting =");
        text =
            text.replace("0.0.0.0:10004", &accounting.to_string()).replace("127.0.0.1:10004", &accounting.to_string());
        text = text.replace("0.0.0.0:10005", &control.to_string()).replace("127.0.0.1:10005", &control.to_string());
        if !has_addresses {
            text = text
                .replace("[master]\n", &format!("[master]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\n"));
        }
    }
    for (shown, here) in [
        ("/etc/tollgate/", ""),
        ("/var/lib/tollgate", "state"),
        ("/var/log/tollgate/", ""),
        ("/var/log/nginx/", ""),
        ("\"master.key\"", "\"master.key\""),
        ("\"gate-1.key\"", "\"gate-1.key\""),
    ] {
        let here = match here.strip_prefix('"') {
            Some(name) => format!("\"{}", folder.join(name).display()),
            None => folder.join(here).display().to_string(),
        };
        text = text.replace(shown, &here);
    }
    if has_table(&text, "gate") && !text.contains("\nlisten ") {
        text = text.replacen("[gate]", "[gate]\nlisten = \"127.0.0.1:0\" #", 1);
    }
    if !["gate", "master", "doors", "admin"].iter().any(|role| has_table(&text, role)) {
        text = format!("[gate]\nlisten = \"127.0.0.1:0\"\nbackend = \"http://127.0.0.1:8080\"\n{text}");
    }
    text
}

/// The files that configurations name.
fn write_files(folder: &Path) {
    for token in ["token", "viewer-token", "reporter-token"] {
        let path = folder.join(token);
        std::fs::write(&path, format!("{:064x}\n", token.len())).unwrap();
        Command::new("chmod").arg("600").arg(&path).status().unwrap();
    }
    std::fs::create_dir(folder.join("tls")).unwrap();
    for (certificate, key) in [
        ("tls/fullchain.pem", "tls/privkey.pem"),
        ("tls/shop.pem", "tls/shop.key"),
        ("tls/blog.pem", "tls/blog.key"),
        ("door.pem", "door.key"),
        ("clients.pem", "ca.key"),
    ] {
        let made = rcgen::generate_simple_self_signed(["site.example".to_owned()]).unwrap();
        std::fs::write(folder.join(certificate), made.cert.pem()).unwrap();
        std::fs::write(folder.join(key), made.signing_key.serialize_pem()).unwrap();
    }
    std::fs::write(folder.join("limits.yaml"), "domain: api\n").unwrap();
    for key in ["master.key", "gate-1.key"] {
        let made = Command::new(binary()).arg("keys").arg(folder.join(key)).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    }
}

/// Starts a block; panics with its place on the page if it does not start.
fn start(place: &str, block: &str) {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path());
    let text = startable(block, folder.path());
    let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let doors = Doors::start_in(folder, &text);
        // Tokens protect everything but this.
        assert!(doors.admin("/healthz").starts_with("ok"), "{}", doors.admin("/healthz"));
        doors.signal("TERM");
        assert_eq!(doors.wait(), Some(0));
    }));
    assert!(started.is_ok(), "{place} does not start:\n{text}");
}

#[test]
fn every_configuration_of_every_page_starts() {
    let all: Vec<(String, String)> = pages()
        .into_iter()
        .flat_map(|name| {
            let found = numbered_blocks(&page(&name), "toml").into_iter();
            found.map(move |(line, block)| (format!("docs/{name}, line {line},"), block))
        })
        .collect();
    assert!(all.len() > 50, "{}", all.len());
    let next = Mutex::new(all.iter());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let Some((place, block)) = next.lock().unwrap().next() else { return };
                    start(place, block);
                }
            });
        }
    });
}
