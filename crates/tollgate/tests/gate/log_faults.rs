//! A gate whose log cannot be written.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use tollgate_test_support::binary;

use crate::support::{Backend, Gate, PATIENCE, Response, eventually, free_addresses, roundtrip};

const RULE: &str = "[[rule]]\nname = 'few'\nclass = 'ip/32'\nwindow = { max = 2, per = '1h' }\n";

/// A gate. It is killed when this is dropped.
struct UnloggedGate {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

impl UnloggedGate {
    /// A gate with this standard error. Its addresses are chosen here, because they cannot be read from the log.
    fn start(backend: &Backend, stderr: Stdio) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tollgate.toml");
        std::fs::write(&file, format!("[gate]\nworkers = 2\nbackend = '{}'\n{RULE}", backend.url())).unwrap();
        let [address, admin] = free_addresses();
        let mut command = Command::new(binary());
        command.arg("gate").arg("--config").arg(&file);
        command.args(["--listen", &address.to_string(), "--admin", &admin.to_string()]);
        command.env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY").env("TOLLGATE_LOG", "debug");
        let child = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        Self { child, address, admin, _folder: folder }
    }

    fn get(address: SocketAddr, path: &str) -> Response {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        roundtrip(stream, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
    }

    fn serves_and_stops(mut self) {
        eventually("the gate listens", || {
            assert_eq!(self.child.try_wait().unwrap(), None, "the gate ended");
            TcpStream::connect(self.address).is_ok() && TcpStream::connect(self.admin).is_ok()
        });
        // Each refusal is logged. Several are sent, so that every worker would have met the error.
        let statuses: Vec<_> = (0..12).map(|_| Self::get(self.address, "/").status).collect();
        assert_eq!(statuses, [&[200; 2][..], &[429; 10]].concat());
        assert_eq!(Self::get(self.admin, "/api/v1/status").status, 200);
        for name in ["HUP", "TERM"] {
            let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
            assert!(sent.unwrap().success());
            if name == "HUP" {
                assert_eq!(Self::get(self.address, "/").status, 429);
            }
        }
        let mut ended = None;
        eventually("the gate ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.unwrap().code(), Some(0));
    }
}

impl Drop for UnloggedGate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_gate_serves_and_stops_after_the_reader_of_its_log_has_ended() {
    let backend = Backend::saying("ok");
    let mut gate = UnloggedGate::start(&backend, Stdio::piped());
    drop(gate.child.stderr.take());
    gate.serves_and_stops();
}

#[test]
fn a_gate_serves_and_stops_while_the_disk_of_its_log_is_full() {
    let backend = Backend::saying("ok");
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    UnloggedGate::start(&backend, full.into()).serves_and_stops();
}

/// Each write to the pipe would block the thread that logs.
#[test]
fn a_gate_serves_and_stops_while_the_pipe_of_its_log_is_full() {
    let backend = Backend::saying("ok");
    let (reader, mut writer) = std::io::pipe().unwrap();
    // The default capacity of a pipe.
    writer.write_all(&[b'\n'; 64 << 10]).unwrap();
    UnloggedGate::start(&backend, writer.into()).serves_and_stops();
    drop(reader);
}

#[test]
fn the_last_line_before_the_end_is_in_the_log() {
    let backend = Backend::saying("ok");
    let log = Gate::before(&backend).end();
    assert!(log.last().unwrap().contains("stopping"), "{log:?}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(binary());
    command.args(["gate", "--backend", &backend.url(), "--listen", &address, "--admin", "127.0.0.1:0"]);
    let failed = command.env("XDG_STATE_HOME", "/nonexistent").output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("the gate failed"));
}

#[test]
fn an_error_in_the_settings_exits_with_2_although_it_cannot_be_printed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, "[gate]\nbakend = 'http://127.0.0.1:1'\n").unwrap();
    let file = file.to_str().unwrap();
    for arguments in [&["gate", "--config", file][..], &["run", "--config", file], &["check", file]] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let status = Command::new(binary()).args(arguments).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(2), "{arguments:?}");
    }
}
