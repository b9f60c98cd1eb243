//! A master for one test.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::{TollgateProcess, binary, free_addresses};

/// A running master with its own directory.
pub struct Master {
    process: TollgateProcess,
    pub accounting: SocketAddr,
    pub control: SocketAddr,
    pub admin: SocketAddr,
    directory: tempfile::TempDir,
}

impl Master {
    /// One per second with a burst of ten, and the state on disk.
    pub fn start(name: &str) -> Self {
        let rule = "[[rule]]\nname = \"each\"\nclass = \"identifier\"\nrate = { rate = \"1/s\", burst = 10 }\n";
        Self::start_with(name, rule)
    }

    /// With these rules, and the state on disk.
    pub fn start_with(name: &str, rules: &str) -> Self {
        Self::start_with_link(name, "", rules)
    }

    /// With these lines in `[master]`, these rules, and the state on disk.
    pub fn start_with_link(name: &str, link: &str, rules: &str) -> Self {
        let directory = tempfile::Builder::new().prefix(&format!("master-{name}-")).tempdir().unwrap();
        let [accounting, control, admin] = free_addresses();
        let settings = format!(
            "[master]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\nstate_dir = \"{}\"\n{link}\
             [admin]\nlisten = \"{admin}\"\n{rules}",
            directory.path().display()
        );
        Self::launch_in(directory, &settings, [accounting, control, admin])
    }

    /// With the settings that `settings` makes of its addresses for accounting, control and administration.
    pub fn start_file(name: &str, settings: impl FnOnce([SocketAddr; 3]) -> String) -> Self {
        let directory = tempfile::Builder::new().prefix(&format!("master-{name}-")).tempdir().unwrap();
        let addresses = free_addresses();
        Self::launch_in(directory, &settings(addresses), addresses)
    }

    fn launch_in(directory: tempfile::TempDir, settings: &str, addresses: [SocketAddr; 3]) -> Self {
        std::fs::write(directory.path().join("tollgate.toml"), settings).unwrap();
        let process = launch(directory.path());
        let [accounting, control, admin] = addresses;
        Self { process, accounting, control, admin, directory }
    }

    /// All lines of its log so far.
    pub fn log(&self) -> Vec<String> {
        self.process.log()
    }

    /// Kills it and starts another in its place.
    pub fn kill_and_restart(&mut self) {
        self.process.kill();
        self.process = launch(self.directory.path());
    }

    /// Kills it.
    pub fn kill(self) {
        self.process.kill();
    }

    /// Sends it a signal by name.
    pub fn signal(&self, name: &str) {
        self.process.signal(name);
    }

    /// Stops it and waits for its end.
    pub fn stop(&mut self) -> Option<i32> {
        self.process.signal("TERM");
        self.process.wait()
    }

    pub fn start_again(&mut self) {
        self.process = launch(self.directory.path());
    }

    /// Makes it reload its settings.
    pub fn hang_up(&self) {
        self.process.signal("HUP");
    }

    pub fn settings_file(&self) -> PathBuf {
        self.directory.path().join("tollgate.toml")
    }

    pub fn state_file(&self) -> PathBuf {
        self.directory.path().join("master.state")
    }

    /// The value of a metric, once it is at least `least`.
    pub fn metric(&self, name: &str, least: u64) -> u64 {
        for _ in 0..100 {
            let mut stream = TcpStream::connect(self.admin).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let value = line.map_or(0, |value| value.trim().parse().unwrap());
            if value >= least {
                return value;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("{name} did not reach {least}");
    }

    /// Resident memory in kilobytes.
    pub fn memory_kib(&self) -> u64 {
        self.process.rss_kb()
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
