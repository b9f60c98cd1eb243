//! A gate whose admin address is tested, and an HTTP client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Timeout for anything that should succeed, on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let field = |line: &'_ str| line.split_once(": ").is_some_and(|(known, _)| known.eq_ignore_ascii_case(name));
        self.head.lines().find(|line| field(line)).map(|line| line.split_once(": ").unwrap().1)
    }
}

/// Sends a request on a new connection.
pub(crate) fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    ask_for(PATIENCE, address, method, path, headers, body)
}

/// Sends a request with this timeout.
pub(crate) fn ask_for(
    patience: Duration,
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut text = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text += &format!("Host: {address}\r\n");
    }
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    text += "\r\n";
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    // A server that rejects a request need not read its body.
    let _ = stream.write_all(body.as_bytes());
    let answer = String::from_utf8_lossy(&whole(&mut stream)).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer but {answer:?}"));
    let body =
        if head.to_lowercase().contains("transfer-encoding: chunked") { dechunked(body) } else { body.to_owned() };
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body }
}

/// Reads a response to its end, which need not be the end of the connection.
fn whole(stream: &mut TcpStream) -> Vec<u8> {
    let (mut answer, mut bytes) = (Vec::new(), [0; 16384]);
    loop {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return answer,
            Ok(read) => answer.extend_from_slice(&bytes[..read]),
        }
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if length.is_some_and(|length| answer.len() >= end + 4 + length) {
            return answer;
        }
    }
}

fn dechunked(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        body += &rest[..length];
        chunks = rest[length..].trim_start_matches("\r\n");
    }
    body
}

/// A backend that answers every request with 200.
pub(crate) fn backend() -> SocketAddr {
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

/// A running gate; killed when the test ends.
pub(crate) struct Gate {
    child: Child,
    pub(crate) admin: SocketAddr,
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    pub(crate) folder: tempfile::TempDir,
}

impl Gate {
    /// Starts a gate with these settings.
    pub(crate) fn start(config: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config)
    }

    /// Starts a gate in an existing folder; `FOLDER` in the settings is its path.
    pub(crate) fn start_in(folder: tempfile::TempDir, config: &str) -> Self {
        Self::start_by(&[], folder, config)
    }

    /// Starts a gate through another program.
    pub(crate) fn start_by(wrapper: &[&str], folder: tempfile::TempDir, config: &str) -> Self {
        let file = folder.path().join("tollgate.toml");
        let gate = format!("[gate]\nworkers = 1\nbackend = \"http://{}\"\n", backend());
        let config = config.replace("FOLDER", &folder.path().display().to_string());
        std::fs::write(&file, format!("{gate}{config}")).unwrap();
        let binary = env!("CARGO_BIN_EXE_tollgate");
        let mut words = wrapper.to_vec();
        words.push(binary);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg("gate").arg("--config").arg(&file);
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        // A separate default state directory.
        command.env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY");
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (stderr, written) = (child.stderr.take().unwrap(), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                written.lock().unwrap().push(line);
            }
        });
        let nowhere = ([127, 0, 0, 1], 0).into();
        let mut gate = Self { child, admin: nowhere, address: nowhere, log, folder };
        gate.admin = gate.logged_address("operators may connect");
        gate.address = gate.logged_address("\"listening\"");
        gate
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Waits for a line of the log that contains this text.
    pub(crate) fn logged(&self, text: &str) -> String {
        let mut found = None;
        eventually(&format!("{text} in the log"), || {
            found = self.log.lock().unwrap().iter().find(|line| line.contains(text)).cloned();
            found.is_some()
        });
        found.unwrap()
    }

    /// All lines of the log so far.
    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn logged_address(&self, text: &str) -> SocketAddr {
        let line: Value = serde_json::from_str(&self.logged(text)).unwrap();
        line["address"].as_str().unwrap().parse().unwrap()
    }

    /// Sends a GET to the admin address.
    pub(crate) fn get(&self, path: &str) -> Answer {
        ask(self.admin, "GET", path, &[], "")
    }

    /// Sends a GET to the admin address and parses the JSON response.
    pub(crate) fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.json()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        ask(self.admin, "POST", path, &[("Content-Type", "application/json")], &body.to_string())
    }

    /// Sends a request of a client.
    pub(crate) fn request(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        ask(self.address, "GET", path, headers, "")
    }

    /// Kills the gate and keeps its folder.
    pub(crate) fn kill(mut self) -> tempfile::TempDir {
        let _ = self.child.kill();
        let _ = self.child.wait();
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
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
