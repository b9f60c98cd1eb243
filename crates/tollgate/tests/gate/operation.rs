//! Start, shutdown, reload, health and service managers.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::backend::respond;
use crate::support::client::is_closed;
use crate::support::{Backend, Gate, closed, eventually, read_response, roundtrip};

#[test]
fn fault_45_a_gate_that_stops_finishes_the_requests_in_flight() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(500));
        respond(stream, "done")
    });
    let gate = Gate::with(&backend, "in_flight = 64");
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
    assert!(TcpStream::connect(gate.address).is_err(), "the listener is closed");
}

/// Starts a gate in a terminal, lets it reload, closes the terminal, and prints the exit code of the gate.
const TERMINAL: &str = "
import os, pty, select, signal, sys, time
gate, terminal = pty.fork()
if gate == 0:
    os.execv(sys.argv[1], sys.argv[1:])
def logged(text):
    seen = b''
    while text not in seen:
        assert select.select([terminal], [], [], 30)[0], seen
        seen += os.read(terminal, 4096)
logged(b'listening')
os.kill(gate, signal.SIGHUP)
logged(b'settings reloaded')
os.close(terminal)
for _ in range(300):
    ended, status = os.waitpid(gate, os.WNOHANG)
    if ended:
        sys.exit(print(os.waitstatus_to_exitcode(status)))
    time.sleep(0.1)
os.kill(gate, signal.SIGKILL)
print('still running')
";

/// Its port would stay in use, and the next gate could not start.
#[test]
fn a_gate_in_a_terminal_ends_with_the_terminal() {
    let backend = Backend::saying("ok");
    let home = tempfile::tempdir().unwrap();
    let mut python = std::process::Command::new("python3");
    python.args(["-c", TERMINAL, env!("CARGO_BIN_EXE_tollgate"), "gate", "--backend", &backend.url()]);
    python.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).env("XDG_STATE_HOME", home.path());
    let output = python.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(printed.trim(), "0", "{}", String::from_utf8_lossy(&output.stderr));
}

/// The states are sent in order; watchdog messages may come in between.
#[test]
fn the_service_manager_is_notified_of_start_reload_and_stop() {
    let backend = Backend::saying("ok");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, format!("[gate]\nworkers = 1\nbackend = \"{}\"\n", backend.url())).unwrap();
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    let hear = |expect: &str| {
        let mut bytes = [0; 4096];
        for _ in 0..1000 {
            let length = manager.recv(&mut bytes).unwrap_or_else(|error| panic!("{expect} is never said: {error}"));
            let said = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if said.lines().any(|line| line == expect) {
                return said;
            }
            assert_eq!(said.trim_end(), "WATCHDOG=1", "before {expect}");
        }
        panic!("{expect} is never said")
    };
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("gate").arg("--config").arg(&file).args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "200000").env_remove("WATCHDOG_PID");
    let gate = Gate::spawn(command, folder);
    hear("READY=1");
    assert_eq!(gate.get("/").status, 200, "ready is ready");
    hear("WATCHDOG=1");
    for config in ["nonsense = 1\n".to_owned(), format!("[gate]\nbackend = \"{}\"\n", backend.url())] {
        gate.rewrite(&config);
        gate.signal("HUP");
        let said = hear("RELOADING=1");
        assert!(said.lines().any(|line| line.starts_with("MONOTONIC_USEC=")), "{said}");
        hear("READY=1");
    }
    gate.signal("TERM");
    hear("STOPPING=1");
    assert_eq!(gate.wait(), Some(0));
}

/// Each state is sent once for two roles in one process, by the role that serves clients.
#[test]
fn the_gate_notifies_the_service_manager_for_the_master_in_the_same_process() {
    let backend = Backend::saying("ok");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    let any = "\"127.0.0.1:0\"";
    let gate = format!("[gate]\nworkers = 1\nlisten = {any}\nbackend = \"{}\"\n", backend.url());
    let master = format!("[master]\naccounting = {any}\ncontrol = {any}\n[admin]\nlisten = {any}\n");
    std::fs::write(&file, format!("{gate}{master}")).unwrap();
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    // Skips watchdog messages.
    let hear = || loop {
        let mut bytes = [0; 4096];
        let length = manager.recv(&mut bytes).ok()?;
        let said = String::from_utf8_lossy(&bytes[..length]).lines().next().unwrap_or_default().to_owned();
        if said != "WATCHDOG=1" {
            return Some(said);
        }
    };
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("run").arg("--config").arg(&file).env("NOTIFY_SOCKET", &path).env_remove("WATCHDOG_USEC");
    let gate = Gate::spawn(command, folder);
    assert_eq!(hear().as_deref(), Some("READY=1"));
    assert_eq!(gate.get("/").status, 200, "ready is ready");
    gate.logged("the master is ready");
    gate.signal("HUP");
    assert_eq!([hear().as_deref(), hear().as_deref()], [Some("RELOADING=1"), Some("READY=1")]);
    gate.signal("TERM");
    assert_eq!(hear().as_deref(), Some("STOPPING=1"));
    assert_eq!(gate.wait(), Some(0));
    manager.set_nonblocking(true).unwrap();
    assert_eq!(hear(), None, "another role has sent a message too");
}

#[test]
fn fault_45_a_gate_that_stops_under_load_fails_no_accepted_request() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(3));
        respond(stream, "done")
    });
    let gate = Gate::with(&backend, "");
    let load: Vec<_> = (0..16)
        .map(|_| {
            let mut stream = gate.connect();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                for answered in 0.. {
                    if stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_err() {
                        return answered;
                    }
                    // An idle connection may be closed just before its next use. Every response that begins must be
                    // complete.
                    let Some(response) = read_response(&mut reader) else { return answered };
                    assert_eq!(response.text(), "done");
                    if response.field("connection") == Some("close") {
                        return answered + 1;
                    }
                }
                unreachable!("it ends")
            })
        })
        .collect();
    eventually("there is load", || backend.requests().len() > 200);
    gate.signal("TERM");
    let answered: usize = load.into_iter().map(|client| client.join().unwrap()).sum();
    assert_eq!(gate.wait(), Some(0));
    assert_eq!(answered, backend.requests().len(), "every forwarded request got its response");
}

#[test]
fn fault_45_a_fleet_that_reconnects_after_a_restart_is_not_throttled_and_retries_are_spread() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'reconnect'\nwhen = { upgrade = 'websocket' }\nclass = 'header:x-device-id'\n\
                window = { max = 1, per = '60s', ceiling = 4 }\nwarmup = '60s'\n\
                escalation = { backoff = '20s', backoff_max = '60s', levels = 3, release = '30s' }\n\
                [[rule]]\nname = 'crowd'\nwhen = { path = '/crowd' }\nclass = 'header:x-fleet'\n\
                window = { max = 1, per = '40s' }\n";
    let gate = Gate::with(&backend, rule);
    let reconnect = |device: usize| {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\nX-Device-Id: {device}\r\n\r\n"
        );
        roundtrip(gate.connect(), request.as_bytes()).status
    };
    for round in 0..3 {
        for device in 0..50 {
            assert_eq!(reconnect(device), 200, "device {device} in round {round}");
        }
    }
    // A device that keeps reconnecting reaches the ceiling, which also applies during warm-up.
    assert_eq!([reconnect(0), reconnect(0)], [200, 429]);
    // `Retry-After` of concurrent refusals is spread, and never too short.
    let told: std::collections::BTreeSet<u64> = (0..200)
        .filter_map(|device| {
            let mut stream = crate::support::client::connect_from([127, 45, 1, device].into(), gate.address);
            stream.write_all(b"GET /crowd HTTP/1.1\r\nHost: a\r\nX-Fleet: f\r\nConnection: close\r\n\r\n").unwrap();
            let response = read_response(&mut BufReader::new(stream)).unwrap();
            (response.status == 429).then(|| response.field("retry-after").unwrap().parse().unwrap())
        })
        .collect();
    assert!(told.len() >= 8 && told.first() >= Some(&35) && told.last() <= Some(&55), "{told:?}");
}

/// Idle connections are closed without waiting for busy ones.
#[test]
fn an_idle_connection_is_closed_at_once_when_the_gate_stops() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let backend = Backend::answering(move |request, stream| {
        if request.path() == "/long" {
            let _ = released.lock().unwrap().recv();
        }
        respond(stream, "done")
    });
    let gate = Gate::with(&backend, "timeouts = { drain = \"10min\", keep_alive = \"10min\", head = \"10min\" }");
    let mut at_work = gate.connect();
    at_work.write_all(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let (mut kept, never_used) = (gate.connect(), gate.connect());
    kept.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut reader = BufReader::new(kept.try_clone().unwrap());
    assert_eq!(read_response(&mut reader).unwrap().field("connection"), None, "it is kept open");
    eventually("the long one is at the backend", || backend.count() == 2);
    gate.signal("TERM");
    // The timeouts of both are ten minutes.
    assert!(is_closed(&kept) && is_closed(&never_used));
    release.send(()).unwrap();
    assert_eq!(read_response(&mut BufReader::new(at_work)).unwrap().text(), "done");
    assert_eq!(gate.wait(), Some(0));
}

/// Keep-alive clients whose next request arrives while the gate begins to stop.
#[test]
fn requests_at_the_beginning_of_draining_are_answered() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "");
    let mut clients: Vec<_> = (0..8).map(|_| gate.connect()).collect();
    let ask = |client: &mut TcpStream| {
        client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        read_response(&mut BufReader::new(client.try_clone().unwrap()))
    };
    clients.iter_mut().for_each(|client| assert_eq!(ask(client).unwrap().field("connection"), None));
    gate.signal("TERM");
    let mut asked =
        |client: usize| ask(&mut clients[client]).expect("a response").field("connection").map(str::to_owned);
    eventually("the gate is stopping", || asked(0).as_deref() == Some("close"));
    for client in 1..8 {
        assert_eq!(asked(client).as_deref(), Some("close"));
    }
    assert_eq!(gate.wait(), Some(0));
}

#[test]
fn draining_ends_at_its_timeout() {
    let backend = Backend::answering(|_, _| {
        std::thread::sleep(Duration::from_secs(30));
        Ok(())
    });
    let gate = Gate::with(&backend, "timeouts = { drain = \"500ms\" }");
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("it is at the backend", || backend.requests().len() == 1);
    let started = Instant::now();
    gate.signal("TERM");
    assert_eq!(gate.wait(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn fault_42_a_reload_closes_no_connection_and_an_invalid_file_changes_nothing() {
    let (first, second) = (Backend::saying("first"), Backend::saying("second"));
    let config = |backend: &Backend| format!("[gate]\nworkers = 1\nbackend = \"{}\"\n", backend.url());
    let gate = Gate::start(&config(&first));
    let stop = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (ends, mut stream) = (stop.clone(), gate.connect());
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut texts = Vec::new();
                while !ends.load(Ordering::Relaxed) {
                    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                    texts.push(read_response(&mut reader).expect("disconnected").text());
                }
                texts
            })
        })
        .collect();
    gate.rewrite("[gate]\nbackend = 5\n");
    gate.signal("HUP");
    let line = gate.logged("settings not reloaded");
    assert!(line.contains("tollgate.toml:2:"), "{line}");
    assert_eq!(gate.get("/").text(), "first");
    let seen = |gate: &Gate| {
        ["reloads_failed_total", "reloads_total", "settings_stale"].map(|name| gate.metric(&format!("tollgate_{name}")))
    };
    assert_eq!(seen(&gate), [1, 0, 1]);
    gate.rewrite(&config(&second));
    gate.signal("HUP");
    gate.logged("settings reloaded");
    eventually("the new backend is used", || gate.get("/").text() == "second");
    assert_eq!(seen(&gate), [1, 1, 0]);
    for round in 0..20 {
        gate.rewrite(&config(if round % 2 == 0 { &first } else { &second }));
        gate.signal("HUP");
        eventually("it is reloaded", || gate.metric("tollgate_reloads_total") == round + 2);
    }
    assert_eq!(gate.get("/").text(), "second");
    stop.store(true, Ordering::Relaxed);
    for texts in load {
        let texts = texts.join().unwrap();
        assert!(texts.iter().all(|text| text == "first" || text == "second"), "every request got a response");
        assert!(texts.iter().any(|text| text == "second"));
    }
}

/// A connection may be older than the settings; each of its requests uses the current ones.
#[test]
fn reloaded_timeouts_apply_to_the_next_request() {
    let backend = Backend::answering(|request, stream| match request.path() {
        "/silent" => {
            // Until the gate closes the connection.
            let _ = std::io::Read::read(stream, &mut [0]);
            Err(std::io::ErrorKind::ConnectionAborted.into())
        }
        _ => respond(stream, "ok"),
    });
    let config = |patience: &str| {
        format!(
            "[gate]\nworkers = 1\nbackend = \"{}\"\ntimeouts = {{ response_head = \"{patience}\" }}\n",
            backend.url()
        )
    };
    let gate = Gate::start(&config("10min"));
    let mut before = gate.connect();
    let mut reader = BufReader::new(before.try_clone().unwrap());
    before.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(read_response(&mut reader).unwrap().text(), "ok");
    gate.rewrite(&config("200ms"));
    gate.signal("HUP");
    gate.logged("settings reloaded");
    eventually("a new connection has the new patience", || {
        let mut stream = gate.connect();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        stream.write_all(b"GET /silent HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        // With the old timeout there would be no response for ten minutes.
        let mut status = [0; 12];
        std::io::Read::read_exact(&mut stream, &mut status).is_ok_and(|()| status.ends_with(b" 504"))
    });
    before.write_all(b"GET /silent HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(read_response(&mut reader).expect("the old connection too").status, 504);
}

#[test]
fn wrong_arguments_exit_with_2_and_an_address_in_use_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let tollgate = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(arguments).env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY");
        let output = command.output().unwrap();
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
fn metrics_count_requests_and_connections() {
    let backend = Backend::saying("ok");
    let gate = Gate::before(&backend);
    for _ in 0..3 {
        gate.get("/");
    }
    roundtrip(gate.connect(), b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(gate.metric("tollgate_requests_total"), 3);
    assert_eq!(gate.metric("tollgate_requests_malformed_total"), 1);
    assert_eq!(gate.metric("tollgate_backend_up"), 1);
    let text = gate.admin("/metrics").text();
    assert!(text.contains("# HELP") && text.ends_with("# EOF\n"), "{text}");
}

/// A gate that inherits this socket as descriptor 3, as from a service manager.
fn with_passed_socket(listener: std::net::TcpListener, arguments: &str) -> Gate {
    let mut command = std::process::Command::new("sh");
    let gate = format!(
        "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec {} gate --workers 2 --admin 127.0.0.1:0 {arguments}",
        env!("CARGO_BIN_EXE_tollgate"),
    );
    command.arg("-c").arg(gate);
    command.stdin(std::os::fd::OwnedFd::from(listener));
    Gate::spawn(command, tempfile::tempdir().unwrap())
}

#[test]
fn a_passed_socket_is_served_and_an_unused_address_is_logged() {
    let backend = Backend::saying("ok");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let gate = with_passed_socket(listener, &format!("--backend {} --listen 127.0.0.1:1", backend.url()));
    assert_eq!(gate.address, address);
    assert_eq!(gate.get("/").text(), "ok");
    gate.logged("gate.listen is not used");
}

/// The service manager keeps the socket open, so connections wait in its backlog until the next process accepts them.
#[test]
fn a_restart_with_a_passed_socket_fails_no_request() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(3));
        respond(stream, "ok")
    });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let start = || with_passed_socket(listener.try_clone().unwrap(), &format!("--backend {}", backend.url()));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut gate = start();
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let is_over = is_over.clone();
            std::thread::spawn(move || {
                let mut answered = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let stream = TcpStream::connect(address).expect("somebody listens");
                    stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
                    let response = roundtrip(stream, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    for restart in 1..=3 {
        let before = backend.requests().len();
        eventually("there is load", || backend.requests().len() > before + 50);
        gate.signal("TERM");
        assert_eq!(gate.wait(), Some(0), "restart {restart}");
        gate = start();
    }
    is_over.store(true, Ordering::Relaxed);
    let answered: usize = clients.into_iter().map(|client| client.join().expect("no request fails")).sum();
    assert!(answered > 150, "{answered}");
}

#[test]
fn a_second_gate_on_the_same_port_does_not_start() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "");
    for address in [gate.address, ([0, 0, 0, 0], gate.address.port()).into()] {
        let mut command = std::process::Command::new("timeout");
        command.args(["20", env!("CARGO_BIN_EXE_tollgate"), "gate", "--listen", &address.to_string()]);
        command.args(["--admin", "127.0.0.1:0", "--backend", "http://127.0.0.1:1"]);
        command.env("XDG_STATE_HOME", "/nonexistent").env_remove("STATE_DIRECTORY");
        let output = command.output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{log}");
        assert!(log.contains(&format!("cannot listen on {address}: Address already in use")), "{log}");
    }
    assert_eq!(gate.get("/").status, 200);
}

/// In a new network namespace, because the one of a container may allow all ports to all users.
#[test]
fn the_error_for_a_privileged_port_names_the_remedies() {
    let mut command = std::process::Command::new("unshare");
    command.args(["--net", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]);
    // Other users may have no access to the path of the binary, so it is passed as an open file.
    let binary = std::fs::File::open(env!("CARGO_BIN_EXE_tollgate")).unwrap();
    command.args(["sh", "-c", "ip link set lo up 2>/dev/null; exec /proc/self/fd/0 \"$@\"", "sh", "gate"]);
    command.args(["--listen", "0.0.0.0:80", "--admin", "127.0.0.1:0", "--backend", "http://127.0.0.1:1"]);
    command.stdin(binary).env("XDG_STATE_HOME", "/nonexistent").env_remove("STATE_DIRECTORY");
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("cannot listen on 0.0.0.0:80: Permission denied"), "{log}");
    assert!(log.contains("setcap cap_net_bind_service=+ep") && log.contains("CAP_NET_BIND_SERVICE"), "{log}");
}

#[test]
fn the_health_command_returns_an_exit_code() {
    let health = |admin: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = command.args(["health", "--admin", admin]).args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let (_taken, nobody) = closed();
    let gate = Gate::start(&format!("[gate]\nbackend = \"http://{nobody}\"\n"));
    let admin = gate.admin.to_string();
    assert_eq!(health(&admin, &[]), (Some(0), format!("{admin} is alive\n")));
    assert_eq!(health(&admin, &["--ready"]), (Some(0), format!("{admin} is ready\n")));
    assert_eq!(health("ftp://x", &[]).0, Some(2));
    for _ in 0..3 {
        gate.get("/");
    }
    assert_eq!(health(&admin, &[]).0, Some(0), "alive without a backend");
    let (code, text) = health(&admin, &["--ready"]);
    assert_eq!((code, text.as_str()), (Some(1), "/readyz: status 503\n"));
    gate.signal("TERM");
    gate.wait();
    let (code, text) = health(&admin, &[]);
    assert!(code == Some(1) && text.contains("is a gate running there?"), "{text}");
}

#[test]
fn cpu_pressure_of_the_backend_raises_the_band_without_requests() {
    let backend = Backend::saying("ok");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cpu.pressure");
    let wants = |percent: &str| {
        let text = format!("some avg10={percent} avg60=0.00 avg300=0.00 total=0\n");
        std::fs::write(&file, text).unwrap();
    };
    wants("1.00");
    let gate = Gate::with(&backend, &format!("bands = {{ pressure = \"{}\" }}", file.display()));
    assert_eq!(gate.metric("tollgate_band"), 0);
    wants("75.00");
    // The median of fifteen windows of a second changes after eight.
    let started = Instant::now();
    while gate.metric("tollgate_band") != 2 {
        assert!(started.elapsed() < Duration::from_secs(90), "never critical");
        std::thread::sleep(Duration::from_millis(100));
    }
    gate.logged("the band has changed");
    assert_eq!(gate.get("/").status, 200, "the band alone refuses no request");
}
