//! The built gate, its admin requests, and the CPU time of each of its threads.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Accounts are keys of two headers. Those of the first may send one request per hour, so all others are
/// refused. Those of the second are not limited, but counted, too.
const RULES: &str = "[watch]\naccount_class = \"header:x-api-key\"\nflag_threshold = 1000000000\nstate_dir = \"FOLDER/state\"\n\
    [[rule]]\nname = \"api\"\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n\
    [[rule]]\nname = \"members\"\nclass = \"header:x-member\"\nbucket = { size = 1000000, drip = 1000, every = \"1s\" }\n";

/// A running gate, which is stopped when it is dropped.
pub(crate) struct Gate {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    _folder: tempfile::TempDir,
}

/// CPU time in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    /// Of the threads that serve requests.
    pub(crate) serving_ns: u64,
    /// Of all others: the watch, the console, and their disk writes.
    pub(crate) others_ns: u64,
}

impl Gate {
    /// Starts a gate with one worker.
    pub(crate) fn start(binary: &Path) -> io::Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("tollgate.toml");
        let rules = RULES.replace("FOLDER", &folder.path().display().to_string());
        std::fs::write(&file, format!("[gate]\nworkers = 1\nbackend = \"http://{}\"\n{rules}", backend()?))?;
        let mut child = Command::new(binary)
            .args(["gate", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--config"])
            .arg(&file)
            .env("XDG_STATE_HOME", folder.path())
            .env_remove("STATE_DIRECTORY")
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| io::Error::other(format!("{}: {error}: build it first", binary.display())))?;
        let mut lines = BufReader::new(child.stderr.take().expect("it was asked for")).lines();
        let (mut address, mut admin) = (None, None);
        while address.is_none() || admin.is_none() {
            let line = lines.next().ok_or_else(|| io::Error::other("the gate has ended"))??;
            if line.contains("operators may connect") {
                admin = address_in(&line);
            } else if line.contains("\"listening\"") {
                address = address_in(&line);
            }
        }
        // An unread log would block the gate.
        std::thread::spawn(move || lines.for_each(drop));
        let nowhere = || io::Error::other("no address in the log");
        Ok(Self { child, address: address.ok_or_else(nowhere)?, admin: admin.ok_or_else(nowhere)?, _folder: folder })
    }

    /// The CPU time so far.
    pub(crate) fn used(&self) -> io::Result<Used> {
        let mut used = Used::default();
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let task = task?.path();
            // A thread may end while it is measured.
            let (Ok(name), Ok(times)) =
                (std::fs::read_to_string(task.join("comm")), std::fs::read_to_string(task.join("schedstat")))
            else {
                continue;
            };
            let ns: u64 = times.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
            if name.starts_with("gate-") { used.serving_ns += ns } else { used.others_ns += ns }
        }
        Ok(used)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn address_in(line: &str) -> Option<SocketAddr> {
    line.split("\"address\":\"").nth(1)?.split('"').next()?.parse().ok()
}

/// A backend that answers every request. Each connection has a thread, so none waits for another.
fn backend() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    Ok(address)
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut bytes, mut filled) = ([0; 1 << 14], 0);
    loop {
        let read = stream.read(&mut bytes[filled..])?;
        if read == 0 {
            return Ok(());
        }
        filled += read;
        // Requests have no bodies.
        if bytes[..filled].ends_with(b"\r\n\r\n") {
            filled = 0;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes")?;
        }
    }
}

/// Sends a request to the admin address and returns the status.
pub(crate) fn ask(admin: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_nodelay(true)?;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.ok_or_else(|| io::Error::other("no answer"))?, answer))
}
