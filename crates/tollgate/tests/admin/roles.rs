//! `tollgate run`: the roles of a settings file.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, ask, backend};

fn run(config: &str) -> (tempfile::TempDir, Command) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("run").arg("--config").arg(&file).stderr(Stdio::piped());
    command.env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY");
    (folder, command)
}

#[test]
fn a_gate_and_a_master_run_in_one_process() {
    let config = format!(
        "[gate]\nlisten = \"127.0.0.1:0\"\nworkers = 1\nbackend = \"http://{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
        [master]\naccounting = \"127.0.0.1:0\"\ncontrol = \"127.0.0.1:0\"\n",
        backend()
    );
    let (_folder, mut command) = run(&config);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let line = lines.find(|line| line.contains("operators may connect")).unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let admin = line["address"].as_str().unwrap().parse().unwrap();
    assert_eq!(line["console"], format!("http://{admin}/"), "a browser can open it");
    std::thread::spawn(move || lines.for_each(drop));
    let metrics = ask(admin, "GET", "/metrics", &[], "").body;
    assert!(metrics.contains("tollgate_master_subscribers") && metrics.contains("tollgate_band"), "{metrics}");
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_master_reports_ready_when_gates_can_connect() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let [fails, works] = [taken.local_addr().unwrap().to_string(), "127.0.0.1:0".to_owned()].map(|control| {
        let (folder, mut command) = run(&format!("[master]\naccounting = \"127.0.0.1:0\"\ncontrol = \"{control}\"\n"));
        let path = folder.path().join("notify");
        let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        command.env("NOTIFY_SOCKET", &path);
        (folder, command, manager)
    });
    let (_folder, mut command, manager) = fails;
    assert_eq!(command.output().unwrap().status.code(), Some(1));
    manager.set_nonblocking(true).unwrap();
    assert!(manager.recv(&mut [0; 64]).is_err(), "it was ready for nobody");
    let (_folder, mut command, manager) = works;
    let mut child = command.spawn().unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    for expect in ["READY=1", "STOPPING=1"] {
        let mut bytes = [0; 64];
        let length = manager.recv(&mut bytes).unwrap_or_else(|error| panic!("{expect} is never said: {error}"));
        assert_eq!(String::from_utf8_lossy(&bytes[..length]).trim_end(), expect);
        assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_master_without_a_gate_sends_heartbeats_to_its_service_manager() {
    let (folder, mut command) = run("[master]\naccounting = \"127.0.0.1:0\"\ncontrol = \"127.0.0.1:0\"\n");
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut child = command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000").spawn().unwrap();
    let mut beats = 0;
    while beats < 3 {
        let mut bytes = [0; 64];
        let length = manager.recv(&mut bytes).expect("a heartbeat is sent");
        beats += usize::from(bytes[..length].starts_with(b"WATCHDOG=1"));
    }
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Settings of a gate that listens there, and a master.
fn both(listen: &str) -> String {
    format!(
        "[gate]\nlisten = \"{listen}\"\nworkers = 1\nbackend = \"http://127.0.0.1:1\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
        [master]\naccounting = \"127.0.0.1:0\"\ncontrol = \"127.0.0.1:0\"\n"
    )
}

/// Exit code and output of a process.
fn end_of(mut child: Child) -> (Option<i32>, String) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("it does not end: {}", String::from_utf8_lossy(&child.wait_with_output().unwrap().stderr));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = child.wait_with_output().unwrap();
    (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
}

#[test]
fn a_gate_that_fails_to_start_stops_its_master() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let (_folder, mut command) = run(&both(&other.local_addr().unwrap().to_string()));
    let (code, said) = end_of(command.spawn().unwrap());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the gate failed"), "{said}");
}

#[test]
fn both_roles_stop_on_a_signal_at_any_time() {
    for delay_ms in (0..60).step_by(3) {
        let (_folder, mut command) = run(&both("127.0.0.1:0"));
        let child = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        // Killed by the signal, if its handler is not installed yet.
        let (code, said) = end_of(child);
        assert!(matches!(code, None | Some(0)), "after {delay_ms} ms: {code:?}, {said}");
    }
}

#[test]
fn a_file_without_a_role_is_an_error() {
    for config in ["", "[watch]\nflag_threshold = 5\n", "nonsense = 1\n"] {
        let (_folder, mut command) = run(config);
        assert_eq!(command.output().unwrap().status.code(), Some(2), "{config}");
    }
}
