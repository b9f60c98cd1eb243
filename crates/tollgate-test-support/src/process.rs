//! A process of the binary under test, and its log.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::eventually;

/// A running process. It is killed when this is dropped; if the test has failed, its log is printed.
pub struct TollgateProcess {
    child: Mutex<Child>,
    /// The process id.
    id: u32,
    /// The lines of standard error so far.
    log: Arc<Mutex<Vec<String>>>,
    /// The thread that reads them; it ends with the process.
    reader: Option<JoinHandle<()>>,
}

impl TollgateProcess {
    /// Starts a command. The default state directory is in `home`, so that nothing is written to the user's home.
    pub fn spawn(command: &mut Command, home: &std::path::Path) -> Self {
        command.env("XDG_STATE_HOME", home).env_remove("STATE_DIRECTORY");
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (stderr, written) = (child.stderr.take().unwrap(), log.clone());
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                written.lock().unwrap().push(line);
            }
        });
        Self { id: child.id(), child: Mutex::new(child), log, reader: Some(reader) }
    }

    pub fn id(&self) -> u32 {
        self.id
    }

    /// The first line of the log that contains this text, once there is one.
    pub fn logged(&self, text: &str) -> String {
        let mut found = None;
        eventually(&format!("{text} in the log"), || {
            let has_ended = self.child.lock().unwrap().try_wait().unwrap().is_some();
            found = self.log.lock().unwrap().iter().find(|line| line.contains(text)).cloned();
            assert!(found.is_some() || !has_ended, "the process ended: {:?}", self.log());
            found.is_some()
        });
        found.unwrap()
    }

    /// The address in the first line of the log that contains this text.
    pub fn logged_address(&self, text: &str) -> SocketAddr {
        let line: serde_json::Value = serde_json::from_str(&self.logged(text)).unwrap();
        line["address"].as_str().unwrap().parse().unwrap()
    }

    /// All lines of the log so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Sends a signal by name, such as TERM.
    pub fn signal(&self, name: &str) {
        signal(self.id, name);
    }

    /// Waits for the end of the process; returns its exit code.
    pub fn wait(&self) -> Option<i32> {
        let mut status = None;
        eventually("the process ends", || {
            status = self.child.lock().unwrap().try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Waits until the whole log of a process that has ended is read.
    pub fn read_whole_log(&mut self) -> Vec<String> {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.log()
    }

    /// Kills the process and waits for its end.
    pub fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Resident memory in kilobytes.
    pub fn rss_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id)).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for TollgateProcess {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            eprintln!("the log of the process: {log:#?}");
        }
    }
}

/// Sends a process a signal by name.
pub(crate) fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(process.to_string()).status();
    assert!(sent.unwrap().success());
}
