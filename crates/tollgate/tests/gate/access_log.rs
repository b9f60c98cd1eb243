//! The access log of a running gate, and `tollgate replay` on it.

use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::support::client::socket_from;
use crate::support::http2::{connect, request, run, send};
use crate::support::{Backend, Gate, PATIENCE, eventually, roundtrip};

/// A backend that reports a cost of 5 ms and takes longer than that.
fn costly() -> Backend {
    Backend::answering(|request, stream| {
        std::thread::sleep(Duration::from_millis(20));
        let body = if request.line.starts_with("HEAD") { "" } else { "hello" };
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nServer-Timing: cpu;dur=5\r\n\r\n";
        stream.write_all(format!("{head}{body}").as_bytes())
    })
}

fn config(backend: &Backend, log: &str) -> String {
    format!(
        "[gate]\nworkers = 1\ncores = 1\nh2c = true\nbackend = \"{}\"\n[gate.access_log]\n{log}\n\
         [[rule]]\nname = \"login\"\nclass = \"ip/32\"\nwhen = {{ path = \"/login\" }}\n\
         window = {{ max = 1, per = \"60s\" }}\n",
        backend.url()
    )
}

/// Waits until the file has `count` lines, and returns them.
fn lines(path: &Path, count: usize) -> Vec<String> {
    let mut lines = Vec::new();
    eventually(&format!("{count} lines in {}", path.display()), || {
        let text = std::fs::read(path).unwrap_or_default();
        lines = String::from_utf8(text).unwrap().lines().map(str::to_owned).collect();
        lines.len() >= count
    });
    assert_eq!(lines.len(), count, "{lines:#?}");
    lines
}

fn json_lines(path: &Path, count: usize) -> Vec<serde_json::Value> {
    lines(path, count).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

struct Logged {
    folder: tempfile::TempDir,
}

impl Logged {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("access.log")
    }

    fn settings(&self, format: &str) -> String {
        format!("output = \"{}\"\nformat = \"{format}\"", self.path().display())
    }
}

fn replayed(path: &Path) -> serde_json::Value {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["replay", "--json"]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_request_has_a_json_line_with_its_cost_decision_and_rule() {
    let (backend, log) = (costly(), Logged::new());
    let gate = Gate::start(&config(&backend, &log.settings("json")));
    let ask = |text: &str| roundtrip(gate.connect(), text.as_bytes()).status;
    assert_eq!(
        ask("GET /a?b HTTP/1.1\r\nHost: shop:80\r\nUser-Agent: Fox\r\nReferer: http://r/\r\nConnection: close\r\n\r\n"),
        200
    );
    assert_eq!((gate.get("/login").status, gate.get("/login").status), (200, 429));
    assert_eq!(ask("GET / HTTP/1.1\r\n\r\n"), 400);
    run(async {
        let mut sender = connect(gate.address).await;
        send(&mut sender, request("POST", "/h2").body(()).unwrap(), b"hello").await.unwrap();
    });
    // The client disconnects while the backend works.
    let mut gone = gate.connect();
    gone.write_all(b"GET /gone HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("the backend has it", || backend.requests().iter().any(|request| request.path() == "/gone"));
    drop(gone);
    let lines = json_lines(&log.path(), 6);
    let fields = |line: usize, names: &[&str]| -> Vec<serde_json::Value> {
        names.iter().map(|name| lines[line][name].clone()).collect()
    };
    let json = |value: serde_json::Value| value.as_array().unwrap().clone();
    let what = ["client_ip", "method", "host", "uri", "protocol", "status", "body_bytes", "referer", "user_agent"];
    let expect = serde_json::json!(["127.0.0.1", "GET", "shop:80", "/a?b", "HTTP/1.1", 200, 5, "http://r/", "Fox"]);
    assert_eq!(fields(0, &what), json(expect));
    let outcome = ["status", "decision", "reason", "rule", "cost_ms"];
    assert_eq!(fields(0, &outcome), json(serde_json::json!([200, "admit", "no-rule", null, 5.0])));
    assert_eq!(fields(1, &outcome), json(serde_json::json!([200, "admit", "within-limit", "login", 5.0])));
    assert_eq!(fields(2, &outcome), json(serde_json::json!([429, "refuse", "over-limit", "login", null])));
    assert_eq!(fields(3, &outcome), json(serde_json::json!([400, "none", "malformed", null, null])));
    assert_eq!(fields(4, &["protocol", "method", "uri"]), json(serde_json::json!(["HTTP/2.0", "POST", "/h2"])));
    assert_eq!(fields(5, &["uri", "status", "cost_ms"]), json(serde_json::json!(["/gone", 499, 5.0])));
    let (duration, wait) = (lines[0]["duration_ms"].as_f64().unwrap(), lines[0]["wait_ms"].as_f64().unwrap());
    assert!((20.0..5_000.0).contains(&duration) && wait < duration, "{duration} ms, of which {wait} ms waiting");
    assert_eq!(gate.metric("tollgate_access_log_lines_total"), 6);
    assert_eq!(gate.metric("tollgate_access_log_dropped_total"), 0);
}

#[test]
fn the_first_request_after_a_reload_is_in_the_new_log() {
    let (backend, folder) = (costly(), tempfile::tempdir().unwrap());
    let path = |number: u64| folder.path().join(format!("{number}.log"));
    let settings = |number| config(&backend, &format!("output = \"{}\"", path(number).display()));
    let gate = Gate::start(&settings(0));
    for number in 1..=5 {
        gate.rewrite(&settings(number));
        gate.signal("HUP");
        eventually("the settings are reloaded", || gate.metric("tollgate_reloads_total") == number);
        assert_eq!(gate.get("/").status, 200);
        lines(&path(number), 1);
    }
}

#[test]
fn a_request_whose_body_fails_has_the_reason_and_is_not_a_client_that_left() {
    let (backend, log) = (costly(), Logged::new());
    let gate =
        Gate::start(&config(&backend, &log.settings("json")).replace("h2c", "timeouts.body_idle = '100ms'\nh2c"));
    let post = |rest: &str| {
        let mut stream = gate.connect();
        stream.write_all(format!("POST / HTTP/1.1\r\nHost: a\r\n{rest}").as_bytes()).unwrap();
        crate::support::read_response(&mut std::io::BufReader::new(stream)).unwrap().status
    };
    assert_eq!(post("Content-Length: 10\r\n\r\nabc"), 408);
    assert_eq!(post("Transfer-Encoding: chunked\r\n\r\nxyz\r\n"), 400);
    // This client does leave.
    let mut gone = gate.connect();
    gone.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc").unwrap();
    drop(gone);
    let lines = json_lines(&log.path(), 3);
    let outcomes: Vec<_> =
        lines.iter().map(|line| (line["status"].as_u64().unwrap(), line["reason"].as_str().unwrap())).collect();
    assert_eq!(outcomes, [(408, "slow-body"), (400, "malformed"), (499, "client-left")]);
    assert!(lines.iter().all(|line| line["decision"] == "none"));
}

#[test]
fn a_client_that_reads_no_responses_has_that_reason() {
    const UNREAD_MAX: usize = 64;
    let backend = Backend::answering(|request, stream| {
        let bytes = if request.path() == "/large" { 16 << 20 } else { 0 };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n");
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b'x'; bytes]))
    });
    let log = Logged::new();
    let small = "buffer = { memory = '64KiB', spool = '0B' }\nin_flight = 200\nh2c";
    let gate = Gate::start(&config(&backend, &log.settings("json")).replace("h2c", small));
    let unread: Vec<_> = (0..UNREAD_MAX)
        .map(|_| {
            let mut stream =
                socket_from([127, 0, 0, 1].into(), gate.address, |socket| socket.set_recv_buffer_size(4096));
            stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            stream
        })
        .collect();
    let mut served = 0;
    eventually("the client gets no more", || {
        let status = gate.get("/").status;
        served += 1;
        status == 503
    });
    let lines = json_lines(&log.path(), served);
    let (decision, reason) = (&lines[served - 1]["decision"], &lines[served - 1]["reason"]);
    assert_eq!((decision.as_str(), reason.as_str()), (Some("none"), Some("unread-responses")));
    drop(unread);
}

#[test]
fn replay_reads_both_formats_back_with_costs_and_not_durations() {
    for format in ["combined", "json"] {
        let (backend, log) = (costly(), Logged::new());
        let gate = Gate::start(&config(&backend, &log.settings(format)));
        for _ in 0..4 {
            assert_eq!(gate.get("/page").status, 200);
        }
        assert_eq!((gate.get("/login").status, gate.get("/login").status), (200, 429));
        gate.end();
        let summary = replayed(&log.path());
        assert_eq!((&summary["requests"], &summary["cost_ms"]), (&6.into(), &25.into()), "{format}: {summary:#}");
        assert_eq!(summary["oddities"]["without_cost"], 1, "{format}: {summary:#}");
    }
}

#[test]
fn a_combined_line_is_that_of_apache_and_nginx_and_clients_cannot_forge_one() {
    let (backend, log) = (costly(), Logged::new());
    let gate = Gate::start(&config(&backend, &log.settings("combined")));
    let forged = b"GET /\"%0a HTTP/1.1\r\nHost: a\r\nUser-Agent: x\" rt=9 \\ \xc3\xa9\r\nConnection: close\r\n\r\n";
    assert_eq!(roundtrip(gate.connect(), forged).status, 200);
    let line = lines(&log.path(), 1).remove(0);
    let (head, rest) = line.split_once(" - - [").unwrap();
    let (date, rest) = rest.split_once("] ").unwrap();
    assert_eq!((head, date.len(), &date[20..]), ("127.0.0.1", 26, " +0000"), "{line}");
    let (rest, times) = rest.split_once(" rt=0.").unwrap();
    assert_eq!(rest, r#""GET /\"%0a HTTP/1.1" 200 5 "-" "x\" rt=9 \\ \xc3\xa9""#);
    assert!(times.ends_with(" cost=0.005000"), "{line}");
}

#[test]
fn a_rotated_log_is_reopened_on_sigusr1_and_on_sighup() {
    let (backend, log) = (costly(), Logged::new());
    let gate = Gate::start(&config(&backend, &log.settings("combined")));
    for (round, signal) in ["USR1", "HUP"].into_iter().enumerate() {
        gate.get("/before");
        lines(&log.path(), 1);
        let old = log.folder.path().join(format!("access.{round}"));
        std::fs::rename(log.path(), &old).unwrap();
        // Before the signal, lines are written to the renamed file.
        gate.get("/between");
        lines(&old, 2);
        gate.signal(signal);
        eventually("the file is there again", || log.path().exists());
        gate.get("/after");
        assert!(lines(&log.path(), 1)[0].contains("/after"));
        assert_eq!(lines(&old, 2).len(), 2);
        std::fs::remove_file(log.path()).unwrap();
        gate.signal("USR1");
        eventually("the file is there again", || log.path().exists());
    }
    gate.logged("the access log was reopened");
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(std::fs::metadata(log.path()).unwrap().permissions().mode() & 0o007, 0, "readable by others");
}

#[test]
fn a_reload_turns_the_log_on_and_off_and_a_path_that_cannot_be_opened_changes_nothing() {
    let (backend, log) = (costly(), Logged::new());
    let gate = Gate::before(&backend);
    gate.get("/unlogged");
    gate.rewrite(&config(&backend, "output = \"/nowhere/at/all.log\""));
    gate.signal("HUP");
    assert!(gate.logged("settings not reloaded").contains("/nowhere/at/all.log"));
    gate.rewrite(&config(&backend, &log.settings("json")));
    gate.signal("HUP");
    gate.logged("\"settings reloaded\"");
    eventually("a line", || {
        gate.get("/logged");
        std::fs::metadata(log.path()).is_ok_and(|file| file.len() > 0)
    });
    gate.rewrite(&format!("[gate]\nbackend = \"{}\"\n", backend.url()));
    gate.signal("HUP");
    let before = gate.metric("tollgate_reloads_total");
    eventually("it is off", || gate.metric("tollgate_reloads_total") >= before.max(2));
    std::thread::sleep(Duration::from_millis(300));
    let length = std::fs::metadata(log.path()).unwrap().len();
    gate.get("/unlogged");
    gate.end();
    assert_eq!(std::fs::metadata(log.path()).unwrap().len(), length);
}

/// The pipe is not read, so the writer blocks. Requests must not block.
#[test]
fn a_log_that_blocks_delays_no_request_and_dropped_lines_are_counted_and_reported() {
    let (backend, log) = (Backend::saying("hello"), Logged::new());
    assert!(Command::new("mkfifo").arg(log.path()).status().unwrap().success());
    let mut pipe = std::fs::OpenOptions::new().read(true).write(true).open(log.path()).unwrap();
    let gate = Gate::start(&config(&backend, &format!("{}\nbuffer = \"256KiB\"", log.settings("json"))));
    // A line has 8 KiB, so the pipe and the buffer are full after 40 lines.
    let agent = "x".repeat(4096);
    let ask =
        format!("GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: {agent}\r\nReferer: {agent}\r\nConnection: close\r\n\r\n");
    eventually("lines are dropped", || {
        (0..20).for_each(|_| assert_eq!(roundtrip(gate.connect(), ask.as_bytes()).status, 200));
        gate.metric("tollgate_access_log_dropped_total") > 0
    });
    // The writer reports the dropped lines when it can write again.
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while !matches!(pipe.read(&mut bytes), Ok(0) | Err(_)) {}
    });
    assert!(gate.logged("access log lines were dropped").contains("\"level\":\"WARN\""));
    gate.end();
    drop(reader);
}

#[test]
fn lines_go_to_syslog_over_a_local_socket_or_udp_and_to_standard_output() {
    let (backend, log) = (costly(), Logged::new());
    let socket = log.folder.path().join("log");
    let local = UnixDatagram::bind(&socket).unwrap();
    local.set_read_timeout(Some(PATIENCE)).unwrap();
    let gate = Gate::start(&config(&backend, &format!("output = \"syslog:{}\"", socket.display())));
    gate.get("/local");
    let mut bytes = [0; 4096];
    let length = local.recv(&mut bytes).unwrap();
    let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
    assert!(message.starts_with("<190>") && message.contains(" tollgate: 127.0.0.1 - - ["), "{message}");

    let remote = UdpSocket::bind("127.0.0.1:0").unwrap();
    remote.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = remote.local_addr().unwrap();
    gate.rewrite(&config(&backend, &format!("output = \"syslog:{address}\"\nformat = \"json\"")));
    gate.signal("HUP");
    eventually("a reload", || gate.metric("tollgate_reloads_total") == 1);
    std::thread::sleep(Duration::from_millis(300));
    gate.get("/remote");
    let length = remote.recv(&mut bytes).unwrap();
    let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
    assert!(message.contains(" tollgate: {\"time\":") && message.contains("\"/remote\""), "{message}");
    drop(gate);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, config(&backend, "output = \"stdout\"")).unwrap();
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_tollgate");
    let run = format!(
        "exec {program} gate --config {} --listen 127.0.0.1:0 --admin 127.0.0.1:0 >{}",
        file.display(),
        log.path().display()
    );
    command.args(["-c", &run]);
    let gate = Gate::spawn(command, folder);
    gate.get("/stdout");
    assert!(lines(&log.path(), 1)[0].contains("\"GET /stdout HTTP/1.1\" 200 5"));
}
