//! A gate with its own backend, for tests of the admin address.

use std::io::{BufReader, Write};
use std::net::SocketAddr;
use std::ops::Deref;

use serde_json::Value;

use super::backend::read_request;
use super::simple_http::{HttpAnswer, ask};
use super::{Backend, Gate};

/// A backend that answers every request with 200, and returns the request's `traceparent` in `X-Seen-Traceparent`.
pub fn backend() -> SocketAddr {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = read_request(&mut reader) {
            let seen = request.field("traceparent").map(|parent| format!("X-Seen-Traceparent: {parent}\r\n"));
            let answer = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 3\r\n\r\nyes", seen.unwrap_or_default());
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    });
    backend.address
}

/// A running gate with its own backend.
pub struct AdminGate(Gate);

impl Deref for AdminGate {
    type Target = Gate;

    fn deref(&self) -> &Gate {
        &self.0
    }
}

impl AdminGate {
    /// Starts a gate with these settings, which begin in the table `[gate]`, after the backend.
    pub fn start(config: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config)
    }

    /// Starts a gate in an existing folder; `FOLDER` in the settings is its path.
    pub fn start_in(folder: tempfile::TempDir, config: &str) -> Self {
        Self::start_by(&[], folder, config)
    }

    /// As [`start_in`](Self::start_in), through the command `wrapper`, which gets the gate's command as arguments.
    pub fn start_by(wrapper: &[&str], folder: tempfile::TempDir, config: &str) -> Self {
        let config = config.replace("FOLDER", &folder.path().display().to_string());
        let gate = format!("[gate]\nworkers = 1\nbackend = \"http://{}\"\n", backend());
        Self(Gate::start_by(wrapper, folder, &format!("{gate}{config}")))
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

    /// Sends a GET to the gate, as a client.
    pub fn request(&self, path: &str, headers: &[(&str, &str)]) -> HttpAnswer {
        ask(self.address, "GET", path, headers, "")
    }

    /// Kills the gate and keeps its folder.
    pub fn kill(self) -> tempfile::TempDir {
        self.0.kill();
        self.0.folder
    }
}
