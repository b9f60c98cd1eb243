//! Trusted proxies: named lists, files of networks, and the notice about an untrusted proxy.

use std::process::Command;

use serde_json::Value;

use crate::support::{Backend, Gate, eventually, roundtrip};

/// Sends requests of this many clients, as a proxy would.
fn visit(gate: &Gate, clients: usize) {
    for number in 0..clients {
        let text = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.{number}\r\nUser-Agent: u\r\nConnection: close\r\n\
             \r\n"
        );
        assert_eq!(roundtrip(gate.connect(), text.as_bytes()).status, 200);
    }
}

fn notices(gate: &Gate) -> Vec<Value> {
    let status: Value = serde_json::from_str(&gate.admin("/api/v1/status").text()).unwrap();
    status["notices"].as_array().unwrap().clone()
}

fn config(backend: &Backend, lines: &str) -> String {
    format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{lines}\n", backend.url())
}

#[test]
fn an_untrusted_proxy_is_noticed_once_and_the_suggested_setting_resolves_it() {
    let backend = Backend::saying("hello");
    let gate = Gate::start(&config(&backend, ""));
    visit(&gate, 31);
    assert_eq!(notices(&gate), [] as [Value; 0]);
    visit(&gate, 60);
    let setting = "trusted_proxies = [\"loopback\"]";
    let told = notices(&gate);
    assert_eq!((told.len(), told[0]["setting"].as_str()), (1, Some(setting)));
    let line: Value = serde_json::from_str(&gate.logged("name it in `trusted_proxies`")).unwrap();
    assert_eq!((line["level"].as_str(), line["setting"].as_str()), (Some("WARN"), Some(setting)));
    let doctor = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["doctor", "--once", "--admin", &format!("http://{}", gate.admin)])
        .output()
        .unwrap();
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(
        text.starts_with("Notice: most requests come from 127.0.0.1") && text.contains(&format!("    {setting}\n")),
        "{text}"
    );
    // Another reload does not repeat the notice.
    gate.signal("HUP");
    eventually("a reload", || gate.metric("tollgate_reloads_total") == 1);
    visit(&gate, 60);
    gate.rewrite(&config(&backend, setting));
    gate.signal("HUP");
    eventually("a reload", || gate.metric("tollgate_reloads_total") == 2);
    eventually("clients are seen", || {
        visit(&gate, 40);
        gate.admin("/api/v1/buckets?class=ip/32").text().contains("203.0.113.9/32")
    });
    visit(&gate, 60);
    assert_eq!(notices(&gate), [] as [Value; 0]);
    let log = gate.end();
    assert_eq!(log.iter().filter(|line| line.contains("name it in `trusted_proxies`")).count(), 1, "{log:#?}");
}

#[test]
fn a_reload_reads_the_file_of_networks_again_and_an_invalid_line_changes_nothing() {
    let (backend, folder) = (Backend::saying("hello"), tempfile::tempdir().unwrap());
    let file = folder.path().join("proxies.txt");
    std::fs::write(&file, "192.0.2.0/24\n").unwrap();
    let gate = Gate::start(&config(&backend, &format!("trusted_proxies = [\"file:{}\"]", file.display())));
    let forwarded = |gate: &Gate| {
        visit(gate, 1);
        backend.requests().last().unwrap().field("x-forwarded-for").unwrap().to_owned()
    };
    assert_eq!(forwarded(&gate), "127.0.0.1", "it is not trusted");
    std::fs::write(&file, "192.0.2.0/24\n127.0.0.0/33\n").unwrap();
    gate.signal("HUP");
    let error = "proxies.txt:2: `127.0.0.0/33` is not an address or network";
    assert!(gate.logged("settings not reloaded").contains(error));
    std::fs::write(&file, "192.0.2.0/24\n127.0.0.0/8 # this machine\n").unwrap();
    gate.signal("HUP");
    eventually("it is trusted", || forwarded(&gate).starts_with("203.0.113.0, "));
}
