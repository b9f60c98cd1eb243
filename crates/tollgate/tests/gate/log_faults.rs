//! A gate whose log cannot be written.

use std::fs::OpenOptions;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::support::{Backend, PATIENCE, Response, eventually, free_addresses, roundtrip};

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
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
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
