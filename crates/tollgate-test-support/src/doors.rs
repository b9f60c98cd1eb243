//! A process with doors, the interfaces through which other programs ask Tollgate for decisions, and calls to them.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::gate::metric;
pub use super::simple_http::{HttpAnswer, ask as call};
use super::{TollgateProcess, binary};

/// A running process with doors.
pub struct Doors {
    process: TollgateProcess,
    pub admin: SocketAddr,
    pub folder: tempfile::TempDir,
}

impl Deref for Doors {
    type Target = TollgateProcess;

    fn deref(&self) -> &TollgateProcess {
        &self.process
    }
}

impl Doors {
    /// A process with these settings, to which an admin address is added; `FOLDER` is the path of its folder.
    pub fn start(config: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config)
    }

    /// The same in an existing folder.
    pub fn start_in(folder: tempfile::TempDir, config: &str) -> Self {
        let file = folder.path().join("tollgate.toml");
        std::fs::write(&file, written(config, folder.path())).unwrap();
        let mut command = Command::new(binary());
        command.args(["run", "--config"]).arg(&file);
        let process = TollgateProcess::spawn(&mut command, folder.path());
        let admin = process.logged_address("operators may connect");
        Self { process, admin, folder }
    }

    /// Replaces the settings file.
    pub fn rewrite(&self, config: &str) {
        std::fs::write(self.folder.path().join("tollgate.toml"), written(config, self.folder.path())).unwrap();
    }

    /// The address of a door, such as `http`.
    pub fn door(&mut self, door: &str) -> SocketAddr {
        self.process.logged_address(&format!("\"door\":\"{door}\""))
    }

    /// The address of the gate in the process.
    pub fn gate(&mut self) -> SocketAddr {
        self.process.logged_address("\"listening\"")
    }

    /// Sends a GET to the admin address.
    pub fn admin(&self, path: &str) -> String {
        call(self.admin, "GET", path, &[], "").body
    }

    /// The value of a metric.
    pub fn metric(&self, name: &str) -> u64 {
        metric(&self.admin("/metrics"), name)
    }
}

/// The text of the settings file: with the path of the folder, and with an admin address if there is none.
fn written(config: &str, folder: &Path) -> String {
    let admin = if config.contains("[admin]") { "" } else { "[admin]\nlisten = '127.0.0.1:0'\n" };
    format!("{}\n{admin}", config.replace("FOLDER", &folder.display().to_string()))
}

/// Sends a POST with a JSON body; returns the JSON response.
pub fn post(address: SocketAddr, path: &str, body: &Value) -> Value {
    let answer = call(address, "POST", path, &[("Content-Type", "application/json")], &body.to_string());
    assert_eq!(answer.status, 200, "{body}: {answer:?}");
    answer.json()
}

/// Asks the HTTP door for a decision.
pub fn check(address: SocketAddr, body: &Value) -> Value {
    post(address, "/v1/check", body)
}
