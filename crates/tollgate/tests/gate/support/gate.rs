//! The binary under test.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::{Backend, PATIENCE, Response, eventually, roundtrip};

/// A running gate. Ends with the test.
pub(crate) struct Gate {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<std::thread::JoinHandle<()>>,
    folder: tempfile::TempDir,
}

impl Gate {
    /// A gate with its defaults.
    pub(crate) fn before(backend: &Backend) -> Self {
        Self::with(backend, "")
    }

    /// A gate with more lines in `[gate]`.
    pub(crate) fn with(backend: &Backend, lines: &str) -> Self {
        Self::start(&format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{lines}\n", backend.url()))
    }

    /// A gate with this configuration, on ports of its own.
    pub(crate) fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tollgate.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("gate").arg("--config").arg(&file).args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        Self::spawn(command, folder)
    }

    /// A gate by a command of one's own.
    pub(crate) fn spawn(mut command: Command, folder: tempfile::TempDir) -> Self {
        // What it keeps by default is its own.
        command.env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY");
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let stderr = child.stderr.take().unwrap();
        let written = log.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                written.lock().unwrap().push(line);
            }
        });
        let nowhere = ([127, 0, 0, 1], 0).into();
        let mut gate = Self { child, address: nowhere, admin: nowhere, log, reader: Some(reader), folder };
        gate.admin = gate.logged_address("operators may connect");
        gate.address = gate.logged_address("\"listening\"");
        gate
    }

    /// The first line of the log that contains this, once there is one.
    pub(crate) fn logged(&mut self, text: &str) -> String {
        let mut found = None;
        let (log, child) = (&self.log, &mut self.child);
        eventually(&format!("{text} in the log"), || {
            found = log.lock().unwrap().iter().find(|line| line.contains(text)).cloned();
            let ended = child.try_wait().unwrap().is_some();
            assert!(found.is_some() || !ended, "the gate ended");
            found.is_some()
        });
        found.unwrap()
    }

    /// Ends the gate as an operator would, and gives its whole log.
    pub(crate) fn end(mut self) -> Vec<String> {
        self.signal("TERM");
        assert_eq!(self.wait(), Some(0));
        self.reader.take().unwrap().join().unwrap();
        self.log()
    }

    /// The log so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn logged_address(&mut self, text: &str) -> SocketAddr {
        let line: serde_json::Value = serde_json::from_str(&self.logged(text)).unwrap();
        line["address"].as_str().unwrap().parse().unwrap()
    }

    /// What operators see at this path.
    pub(crate) fn admin(&self, path: &str) -> Response {
        let stream = TcpStream::connect(self.admin).unwrap();
        roundtrip(stream, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
    }

    /// Leaves it this many file descriptors beyond those that it has open.
    pub(crate) fn leave_descriptors(&self, spare: u64) {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let numbers = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap());
        let bound = numbers.max().unwrap() + 1 + spare;
        let limit = Rlimit { current: Some(bound), maximum: Some(bound) };
        prlimit(Some(Pid::from_child(&self.child)), Resource::Nofile, limit).unwrap();
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.admin("/metrics").text();
        let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Replaces the configuration file.
    pub(crate) fn rewrite(&self, config: &str) {
        std::fs::write(self.folder.path().join("tollgate.toml"), config).unwrap();
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// One request on a connection of its own.
    pub(crate) fn get(&self, path: &str) -> Response {
        roundtrip(self.connect(), format!("GET {path} HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n").as_bytes())
    }

    /// Sends a signal, such as TERM.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the gate to end, and gives its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        let child = &mut self.child;
        eventually("the gate ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// Its process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Kilobytes of memory in use.
    pub(crate) fn rss_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            eprintln!("the gate's log: {log:#?}");
        }
    }
}
