//! A process with doors to test, and clients that call them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything that works takes, on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until something is true.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The root of the project.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A running process with doors. Ends with the test.
pub(crate) struct Doors {
    child: Child,
    pub(crate) admin: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    pub(crate) folder: tempfile::TempDir,
}

impl Doors {
    /// A process with this configuration, to which an admin address is added; `FOLDER` in it is a folder of its own.
    pub(crate) fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::start_in(folder, config)
    }

    /// The same, in a folder that has files already.
    pub(crate) fn start_in(folder: tempfile::TempDir, config: &str) -> Self {
        let file = folder.path().join("tollgate.toml");
        std::fs::write(&file, written(config, folder.path())).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["run", "--config"]).arg(&file);
        // State that it keeps by default is its own.
        command.env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY");
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (stderr, written) = (child.stderr.take().unwrap(), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                written.lock().unwrap().push(line);
            }
        });
        let mut doors = Self { child, admin: ([127, 0, 0, 1], 0).into(), log, folder };
        doors.admin = doors.logged_address("operators may connect");
        doors
    }

    /// Replaces the configuration file.
    pub(crate) fn rewrite(&self, config: &str) {
        std::fs::write(self.folder.path().join("tollgate.toml"), written(config, self.folder.path())).unwrap();
    }

    /// The address of a door.
    pub(crate) fn door(&mut self, door: &str) -> SocketAddr {
        self.logged_address(&format!("\"door\":\"{door}\""))
    }

    /// Where the gate of the process listens.
    pub(crate) fn gate(&mut self) -> SocketAddr {
        self.logged_address("\"listening\"")
    }

    fn logged_address(&mut self, text: &str) -> SocketAddr {
        let line: Value = serde_json::from_str(&self.logged(text)).unwrap();
        line["address"].as_str().unwrap().parse().unwrap()
    }

    /// The first line of the log that contains this, once there is one.
    pub(crate) fn logged(&mut self, text: &str) -> String {
        let mut found = None;
        let (log, child) = (&self.log, &mut self.child);
        eventually(&format!("{text} in the log"), || {
            found = log.lock().unwrap().iter().find(|line| line.contains(text)).cloned();
            let has_ended = child.try_wait().unwrap().is_some();
            assert!(found.is_some() || !has_ended, "the process ended: {:?}", log.lock().unwrap());
            found.is_some()
        });
        found.unwrap()
    }

    /// Sends a signal, such as HUP.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the end of the process, and returns its exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        let child = &mut self.child;
        eventually("the process ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }

    /// What operators see at this path.
    pub(crate) fn admin(&self, path: &str) -> String {
        call(self.admin, "GET", path, &[], "").body
    }

    /// The value of a metric.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let text = self.admin("/metrics");
        let line = text.lines().find(|line| line.split([' ', '{']).next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Kilobytes of memory in use.
    pub(crate) fn rss_kb(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

fn written(config: &str, folder: &Path) -> String {
    let admin = if config.contains("[admin]") { "" } else { "[admin]\nlisten = '127.0.0.1:0'\n" };
    format!("{}\n{admin}", config.replace("FOLDER", &folder.display().to_string()))
}

impl Drop for Doors {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            eprintln!("the log: {log:#?}");
        }
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let of = |line: &'_ str| line.split_once(": ").is_some_and(|(known, _)| known.eq_ignore_ascii_case(name));
        self.head.lines().find(|line| of(line)).map(|line| line.split_once(": ").unwrap().1)
    }
}

/// One call on a connection of its own.
pub(crate) fn call(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut text = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    text += &format!("Content-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{text}\r\n").as_bytes()).unwrap();
    // A server that refuses a request need not read its body.
    let _ = stream.write_all(body.as_bytes());
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let answer = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer but {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// A call with a JSON body, whose answer is JSON.
pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Value {
    let answer = call(address, "POST", path, &[("Content-Type", "application/json")], &body.to_string());
    assert_eq!(answer.status, 200, "{body}: {answer:?}");
    answer.json()
}

/// A check.
pub(crate) fn check(address: SocketAddr, body: &Value) -> Value {
    post(address, "/v1/check", body)
}
