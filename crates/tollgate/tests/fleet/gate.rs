//! A gate for one test, with a backend that responds at once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use tollgate_test_support::{TollgateProcess, binary, free_addresses};

/// The timeout for expected events.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A running gate on fixed addresses.
pub(crate) struct Gate {
    _process: TollgateProcess,
    pub(crate) listen: SocketAddr,
    admin: SocketAddr,
    _folder: tempfile::TempDir,
}

/// Ten per second with a burst of ten for each `x-key`, refused beyond that. The address of the master follows.
pub(crate) const RULE: &str = "[[rule]]\nname = \"each\"\nclass = \"header:x-key\"\nrate = { rate = \"10/s\", burst = 10 }\n\
                               state = \"master\"\nhold = \"0s\"\n";

impl Gate {
    /// Starts a gate with these settings.
    pub(crate) fn start(settings: &str) -> Self {
        Self::start_with("", settings)
    }

    /// A gate with further lines in `[gate]`.
    pub(crate) fn start_with(lines: &str, settings: &str) -> Self {
        let [listen, admin] = free_addresses();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tollgate.toml");
        let text = format!(
            "[gate]\nlisten = \"{listen}\"\nbackend = \"http://{}\"\nworkers = 1\n{lines}[admin]\nlisten = \"{admin}\"\n{settings}",
            backend()
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(binary());
        command.arg("gate").arg("--config").arg(&file).env_remove("NOTIFY_SOCKET");
        let process = TollgateProcess::spawn(&mut command, folder.path());
        process.logged("\"listening\"");
        Self { _process: process, listen, admin, _folder: folder }
    }

    /// The value of a metric, once `is_right` returns true.
    pub(crate) fn metric(&self, name: &str, is_right: impl Fn(u64) -> bool) -> u64 {
        let until = Instant::now() + PATIENCE;
        loop {
            let answer = ask(self.admin, "/metrics", "");
            let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            let value = line.map_or(0, |value| value.trim().parse().unwrap());
            if is_right(value) {
                return value;
            }
            assert!(Instant::now() < until, "{name} is {value}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until this gate and the master at this address receive each other's messages.
    pub(crate) fn until_linked(&self, accounting: SocketAddr) {
        for what in ["accounting", "control"] {
            self.metric(&format!("tollgate_master_link_up{{master=\"{accounting}\",what=\"{what}\"}}"), |up| up == 1);
        }
        // The master's subscription may still be in transit.
        std::thread::sleep(Duration::from_millis(100));
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.listen)
    }
}

/// A client with one persistent connection.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    /// The status of the response to a request with this key, and its `Retry-After`.
    pub(crate) fn get(&mut self, key: &str) -> (u16, Option<f64>) {
        self.ask("/", ("x-key", key))
    }

    /// The status of the response to a request that a proxy forwards for this client.
    pub(crate) fn get_for(&mut self, client: &str) -> u16 {
        self.ask("/", ("x-forwarded-for", client)).0
    }

    /// The status of the response to a request that costs 20 ms of the backend's CPU time.
    pub(crate) fn get_dear(&mut self, key: &str) -> u16 {
        self.ask(DEAR, ("x-key", key)).0
    }

    fn ask(&mut self, path: &str, (name, value): (&str, &str)) -> (u16, Option<f64>) {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nhost: x\r\n{name}: {value}\r\n\r\n").unwrap();
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap().parse().unwrap();
        let (mut length, mut retry_after) = (0, None);
        loop {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            match line.trim_end().split_once(": ") {
                None => break,
                Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse().unwrap(),
                Some((name, value)) if name.eq_ignore_ascii_case("retry-after") => {
                    retry_after = Some(value.parse().unwrap());
                }
                Some(_) => {}
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (status, retry_after)
    }
}

fn ask(address: SocketAddr, path: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{more}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A backend that responds to every request, for the whole test.
fn backend() -> SocketAddr {
    use std::sync::OnceLock;
    static BACKEND: OnceLock<SocketAddr> = OnceLock::new();
    *BACKEND.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || answer(stream));
            }
        });
        address
    })
}

/// This path takes some time, which the backend reports as CPU time. Others are answered at once.
const DEAR: &str = "/dear";
const DEAR_COST: Duration = Duration::from_millis(20);

fn answer(stream: TcpStream) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let mut is_dear = false;
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        is_dear |= line.starts_with("GET /dear ");
        if line == "\r\n" {
            let timing = if core::mem::take(&mut is_dear) {
                std::thread::sleep(DEAR_COST);
                format!("server-timing: cpu;dur={}\r\n", DEAR_COST.as_millis())
            } else {
                String::new()
            };
            // In one write: the second of two would wait for the acknowledgement of the first.
            let answer = format!("HTTP/1.1 200 OK\r\n{timing}content-length: 2\r\n\r\nok");
            reader.get_mut().write_all(answer.as_bytes()).ok()?;
        }
    }
}
