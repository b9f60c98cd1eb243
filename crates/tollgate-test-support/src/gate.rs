//! A gate in its own process, with a client and access to its admin address.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use super::{Backend, PATIENCE, Response, TollgateProcess, binary, roundtrip};

/// A running gate.
pub struct Gate {
    process: TollgateProcess,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    pub folder: tempfile::TempDir,
}

impl Deref for Gate {
    type Target = TollgateProcess;

    fn deref(&self) -> &TollgateProcess {
        &self.process
    }
}

impl Gate {
    /// A gate with one worker and otherwise default settings.
    pub fn before(backend: &Backend) -> Self {
        Self::with(backend, "")
    }

    /// A gate with further lines in `[gate]`.
    pub fn with(backend: &Backend, lines: &str) -> Self {
        Self::start(&format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{lines}\n", backend.url()))
    }

    /// A gate with these settings, on free ports.
    pub fn start(config: &str) -> Self {
        Self::start_by(&[], tempfile::tempdir().unwrap(), config)
    }

    /// A gate with these settings, on free ports, with its files in `folder`. `wrapper` is empty, or a command that
    /// gets the gate's command as arguments.
    pub fn start_by(wrapper: &[&str], folder: tempfile::TempDir, config: &str) -> Self {
        let file = folder.path().join("tollgate.toml");
        std::fs::write(&file, config).unwrap();
        let binary = binary();
        let mut words = wrapper.iter().map(OsStr::new).chain([binary.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).arg("gate").arg("--config").arg(&file);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        Self::spawn(command, folder)
    }

    /// A gate started by this command.
    pub fn spawn(mut command: Command, folder: tempfile::TempDir) -> Self {
        let process = TollgateProcess::spawn(&mut command, folder.path());
        let admin = process.logged_address("operators may connect");
        let address = process.logged_address("\"listening\"");
        Self { process, address, admin, folder }
    }

    /// Stops the gate with SIGTERM; returns its whole log.
    pub fn end(mut self) -> Vec<String> {
        self.signal("TERM");
        assert_eq!(self.wait(), Some(0));
        self.process.read_whole_log()
    }

    /// Sends a GET to the admin address.
    pub fn admin(&self, path: &str) -> Response {
        let stream = TcpStream::connect(self.admin).unwrap();
        roundtrip(stream, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
    }

    /// Limits the file descriptors to those that are open and this many more.
    pub fn leave_descriptors(&self, spare: u64) {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap();
        let numbers = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse::<u64>().unwrap());
        let bound = numbers.max().unwrap() + 1 + spare;
        let limit = Rlimit { current: Some(bound), maximum: Some(bound) };
        prlimit(Pid::from_raw(self.id().cast_signed()), Resource::Nofile, limit).unwrap();
    }

    /// The value of a metric, without regard to labels; see [`metric`].
    pub fn metric(&self, name: &str) -> u64 {
        metric(&self.admin("/metrics").text(), name)
    }

    /// The directory of its configuration file.
    pub fn path(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Replaces the settings file.
    pub fn rewrite(&self, config: &str) {
        std::fs::write(self.folder.path().join("tollgate.toml"), config).unwrap();
    }

    /// Connects as a client.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// Sends a GET of a client on a new connection.
    pub fn get(&self, path: &str) -> Response {
        roundtrip(self.connect(), format!("GET {path} HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n").as_bytes())
    }
}

/// The value of a metric in the text of `/metrics`: that of the first line with this name, whatever its labels.
pub fn metric(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
}
