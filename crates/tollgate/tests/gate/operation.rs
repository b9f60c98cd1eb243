//! Starting, stopping, reloading, and being watched.

use std::io::{BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::backend::respond;
use crate::support::client::is_closed;
use crate::support::{Backend, Gate, eventually, read_response};

#[test]
fn fault_45_a_gate_that_is_told_to_stop_finishes_what_it_has() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(500));
        respond(stream, "done")
    });
    let mut gate = Gate::with(&backend, "in_flight = 64");
    let in_flight: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = gate.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let idle = gate.connect();
    eventually("all are at the backend", || backend.requests().len() == 20);
    gate.signal("TERM");
    for stream in &in_flight {
        let response = read_response(&mut BufReader::new(stream)).unwrap();
        assert_eq!((response.text().as_str(), response.field("connection")), ("done", Some("close")));
    }
    assert!(is_closed(&idle));
    assert_eq!(gate.wait(), Some(0));
    assert!(std::net::TcpStream::connect(gate.address).is_err(), "nobody listens any more");
}

#[test]
fn draining_ends_at_its_bound_whatever_is_left() {
    let backend = Backend::answering(|_, _| {
        std::thread::sleep(Duration::from_secs(30));
        Ok(())
    });
    let mut gate = Gate::with(&backend, "timeouts = { drain = \"500ms\" }");
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("it is at the backend", || backend.requests().len() == 1);
    let started = Instant::now();
    gate.signal("TERM");
    assert_eq!(gate.wait(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn fault_42_a_reload_disconnects_nobody_and_a_bad_file_changes_nothing() {
    let (first, second) = (Backend::saying("first"), Backend::saying("second"));
    let config = |backend: &Backend| format!("[gate]\nworkers = 1\nbackend = \"{}\"\n", backend.url());
    let mut gate = Gate::start(&config(&first));
    let stop = Arc::new(AtomicBool::new(false));
    let (ends, address) = (stop.clone(), gate.address);
    let load = std::thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut texts = Vec::new();
        while !ends.load(Ordering::Relaxed) {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            texts.push(read_response(&mut reader).expect("disconnected").text());
        }
        texts
    });
    gate.rewrite("[gate]\nbackend = 5\n");
    gate.signal("HUP");
    let line = gate.logged("settings not reloaded");
    assert!(line.contains("tollgate.toml:2:"), "{line}");
    assert_eq!(gate.get("/").text(), "first");
    gate.rewrite(&config(&second));
    gate.signal("HUP");
    gate.logged("settings reloaded");
    eventually("the new backend is used", || gate.get("/").text() == "second");
    stop.store(true, Ordering::Relaxed);
    let texts = load.join().unwrap();
    assert!(texts.iter().all(|text| text == "first" || text == "second"), "every request was answered");
    assert_eq!(texts.last().unwrap(), "second");
}

#[test]
fn wrong_arguments_are_told_with_exit_code_2_and_a_taken_address_with_1() {
    let tollgate = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(tollgate(&["gate"]).0, Some(2));
    assert_eq!(tollgate(&["gate", "--backend", "nonsense"]).0, Some(2));
    assert_eq!(tollgate(&["gate", "--backend", "http://127.0.0.1:1", "--config", "/nowhere.toml"]).0, Some(2));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, log) =
        tollgate(&["gate", "--backend", "http://127.0.0.1:1", "--admin", "127.0.0.1:0", "--listen", &address]);
    assert!(code == Some(1) && log.contains(&address), "{code:?} {log}");
}

#[test]
fn metrics_count_what_happens() {
    let backend = Backend::saying("ok");
    let gate = Gate::before(&backend);
    for _ in 0..3 {
        gate.get("/");
    }
    crate::support::roundtrip(gate.connect(), b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(gate.metric("tollgate_requests_total"), 3);
    assert_eq!(gate.metric("tollgate_requests_malformed_total"), 1);
    assert_eq!(gate.metric("tollgate_backend_up"), 1);
    let text = gate.admin("/metrics").text();
    assert!(text.contains("# HELP") && text.ends_with("# EOF\n"), "{text}");
}

#[test]
fn a_socket_that_is_handed_over_is_served() {
    let backend = Backend::saying("ok");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut command = std::process::Command::new("sh");
    // The service manager passes the socket as descriptor 3 and names the process that it is for.
    let gate = format!(
        "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {} gate --workers 2 --admin 127.0.0.1:0 --backend {}",
        env!("CARGO_BIN_EXE_tollgate"),
        backend.url()
    );
    command.arg("-c").arg(gate);
    command.stdin(std::os::fd::OwnedFd::from(listener));
    let gate = Gate::spawn(command, tempfile::tempdir().unwrap());
    assert_eq!(gate.address, address);
    assert_eq!(gate.get("/").text(), "ok");
}
