//! A gate for tests of the admin address.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::simple_http::{HttpAnswer, ask};
use super::{TollgateProcess, binary};

/// A backend that answers every request with 200.
pub fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut stream, mut bytes, mut seen) = (stream, Vec::new(), String::new());
                // A request may contain any bytes.
                while reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
                    let line = String::from_utf8_lossy(&bytes).into_owned();
                    bytes.clear();
                    if line.to_ascii_lowercase().starts_with("traceparent: ") {
                        seen = format!("X-Seen-{line}");
                    } else if line == "\r\n" {
                        let answer = format!("HTTP/1.1 200 OK\r\n{seen}Content-Length: 3\r\n\r\nyes");
                        if stream.write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                        seen.clear();
                    }
                }
            });
        }
    });
    address
}

/// A running gate with its own backend.
pub struct AdminGate {
    process: TollgateProcess,
    pub admin: SocketAddr,
    pub address: SocketAddr,
    pub folder: tempfile::TempDir,
}

impl AdminGate {
    /// Starts a gate with these settings.
    pub fn start(config: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config)
    }

    /// Starts a gate in an existing folder; `FOLDER` in the settings is its path.
    pub fn start_in(folder: tempfile::TempDir, config: &str) -> Self {
        Self::start_by(&[], folder, config)
    }

    /// Starts a gate through another program.
    pub fn start_by(wrapper: &[&str], folder: tempfile::TempDir, config: &str) -> Self {
        let file = folder.path().join("tollgate.toml");
        let gate = format!("[gate]\nworkers = 1\nbackend = \"http://{}\"\n", backend());
        let config = config.replace("FOLDER", &folder.path().display().to_string());
        std::fs::write(&file, format!("{gate}{config}")).unwrap();
        let binary = binary();
        let mut command = Command::new(wrapper.first().map_or(binary.as_os_str(), std::ffi::OsStr::new));
        command.args(wrapper.iter().skip(1));
        if !wrapper.is_empty() {
            command.arg(&binary);
        }
        command.arg("gate").arg("--config").arg(&file);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let process = TollgateProcess::spawn(&mut command, folder.path());
        let admin = process.logged_address("operators may connect");
        let address = process.logged_address("\"listening\"");
        Self { process, admin, address, folder }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Waits for a line of the log that contains this text.
    pub fn logged(&self, text: &str) -> String {
        self.process.logged(text)
    }

    /// All lines of the log so far.
    pub fn log(&self) -> Vec<String> {
        self.process.log()
    }

    /// Sends a GET to the admin address.
    pub fn get(&self, path: &str) -> HttpAnswer {
        ask(self.admin, "GET", path, &[], "")
    }

    /// Sends a GET to the admin address and parses the JSON response.
    pub fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    /// Sends a POST with a JSON body to the admin address.
    pub fn post(&self, path: &str, body: &Value) -> HttpAnswer {
        ask(self.admin, "POST", path, &[("Content-Type", "application/json")], &body.to_string())
    }

    /// Sends a request of a client.
    pub fn request(&self, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        ask(self.address, "GET", path, headers, "")
    }

    /// Kills the gate and keeps its folder.
    pub fn kill(self) -> tempfile::TempDir {
        self.process.kill();
        self.folder
    }
}
