//! A master in its own process: the program that shares the state of rules between gates.

use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::simple_http::ask;
use super::{TollgateProcess, binary, free_addresses};

/// A running master with its own directory.
pub struct Master {
    process: TollgateProcess,
    /// The address that receives reports of gates.
    pub accounting: SocketAddr,
    /// The address that sends orders to gates.
    pub control: SocketAddr,
    pub admin: SocketAddr,
    directory: tempfile::TempDir,
}

impl Deref for Master {
    type Target = TollgateProcess;

    fn deref(&self) -> &TollgateProcess {
        &self.process
    }
}

impl Master {
    /// A master with one rule: one request per second for each identifier, with a burst of ten. Its state is on disk.
    pub fn start(name: &str) -> Self {
        let rule = "[[rule]]\nname = \"each\"\nclass = \"identifier\"\nrate = { rate = \"1/s\", burst = 10 }\n";
        Self::start_with(name, rule)
    }

    /// A master with these rules, and its state on disk.
    pub fn start_with(name: &str, rules: &str) -> Self {
        Self::start_with_link(name, "", rules)
    }

    /// A master with these lines in `[master]`, these rules, and its state on disk.
    pub fn start_with_link(name: &str, link: &str, rules: &str) -> Self {
        Self::start_file(name, |[accounting, control, admin]| {
            format!(
                "[master]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\nstate_dir = \"FOLDER\"\n{link}\
                 [admin]\nlisten = \"{admin}\"\n{rules}"
            )
        })
    }

    /// A master with the settings that `settings` makes of its addresses for accounting, control and administration. In
    /// them, `FOLDER` is the path of its directory, which has `name` in its name.
    pub fn start_file(name: &str, settings: impl FnOnce([SocketAddr; 3]) -> String) -> Self {
        let directory = tempfile::Builder::new().prefix(&format!("master-{name}-")).tempdir().unwrap();
        let addresses @ [accounting, control, admin] = free_addresses();
        let settings = settings(addresses).replace("FOLDER", &directory.path().display().to_string());
        std::fs::write(directory.path().join("tollgate.toml"), settings).unwrap();
        let process = launch(directory.path());
        Self { process, accounting, control, admin, directory }
    }

    /// Kills it and starts another in its place.
    pub fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = launch(self.directory.path());
    }

    /// Stops it with SIGTERM, waits for its end and returns its exit code.
    pub fn stop(&mut self) -> Option<i32> {
        self.process.signal("TERM");
        self.process.wait()
    }

    pub fn start_again(&mut self) {
        self.process = launch(self.directory.path());
    }

    pub fn settings_file(&self) -> PathBuf {
        self.directory.path().join("tollgate.toml")
    }

    pub fn state_file(&self) -> PathBuf {
        self.directory.path().join("master.state")
    }

    /// The value of a metric without labels, once it is at least `least`. Waits for at most five seconds.
    pub fn metric(&self, name: &str, least: u64) -> u64 {
        for _ in 0..100 {
            let metrics = ask(self.admin, "GET", "/metrics", &[], "").body;
            let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let value = line.map_or(0, |value| value.trim().parse().unwrap());
            if value >= least {
                return value;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{name} did not reach {least}");
    }
}

/// Starts it and waits until it is ready.
fn launch(directory: &Path) -> TollgateProcess {
    let mut command = Command::new(binary());
    command.arg("master").arg("--config").arg(directory.join("tollgate.toml")).env_remove("NOTIFY_SOCKET");
    let process = TollgateProcess::spawn(&mut command, directory);
    process.logged("the master is ready");
    process
}
