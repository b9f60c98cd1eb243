//! One measurement: a gate before and after a number of connections.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tollgate_test_support::gate::metric;
use tollgate_test_support::{TollgateProcess, binary, eventually, roundtrip};

/// Longer than any successful step takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Memory is read when it has not changed for this long. Connections free memory shortly after their last request.
const SETTLED_AFTER: Duration = Duration::from_millis(600);
/// Connections from one address.
const PER_ADDRESS: usize = 50;

/// A row of the table.
pub(crate) struct Measured {
    pub(crate) phase: &'static str,
    pub(crate) connections: u64,
    /// Bytes that a client has sent on each connection.
    pub(crate) sent: u64,
    /// Bytes by which the gate's memory has grown for each connection.
    pub(crate) held: u64,
    /// Bytes that each connection of this phase may take, whatever was sent.
    pub(crate) constant: u64,
}

/// A running gate. Ends with the measurement.
pub(crate) struct Gate {
    process: TollgateProcess,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    folder: tempfile::TempDir,
}

impl Gate {
    /// A gate with one worker in front of this backend, and further lines in `[gate]`.
    pub(crate) fn start(backend: SocketAddr, lines: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let certificate = rcgen::generate_simple_self_signed(vec!["site".to_owned()]).unwrap();
        std::fs::write(folder.path().join("site.pem"), certificate.cert.pem()).unwrap();
        std::fs::write(folder.path().join("site.key"), certificate.signing_key.serialize_pem()).unwrap();
        let lines = lines.replace("FOLDER", &folder.path().display().to_string());
        let config = format!("[gate]\nworkers = 1\nbackend = \"http://{backend}\"\n{lines}\n");
        let file = folder.path().join("tollgate.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(binary());
        command.arg("gate").arg("--config").arg(&file).args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let process = TollgateProcess::spawn(&mut command, folder.path());
        let admin = process.logged_address("operators may connect");
        let address = process.logged_address("\"listening\"");
        Self { process, address, admin, folder }
    }

    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Resident memory in bytes, once it no longer changes.
    pub(crate) fn settled_rss(&self) -> u64 {
        let (mut last, mut since, began) = (self.rss(), Instant::now(), Instant::now());
        while since.elapsed() < SETTLED_AFTER && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(50));
            let now = self.rss();
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        last
    }

    fn rss(&self) -> u64 {
        self.process.rss_kb() * 1024
    }

    /// Connects from one of many addresses, so that no address has too many connections.
    pub(crate) fn connect(&self, number: usize) -> TcpStream {
        connect(self.address, number)
    }

    /// Connects with little room in the kernel for what the gate sends.
    pub(crate) fn connect_with_small_buffer(&self, number: usize) -> TcpStream {
        connect_prepared(self.address, number, |socket| socket.set_recv_buffer_size(4096).unwrap())
    }

    /// Waits until this many requests have come in all, and none waits in the queue.
    pub(crate) fn forwards_all(&self, requests: u64) {
        let is_done = || {
            let get = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let metrics = roundtrip(TcpStream::connect(self.admin).unwrap(), get).text();
            metric(&metrics, "tollgate_requests_total") >= requests
                && metric(&metrics, "tollgate_requests_waiting") == 0
        };
        eventually("all requests are forwarded", is_done);
    }

    /// Measures the memory of the gate for `connections`. `open` returns a connection and the bytes sent on it.
    pub(crate) fn measure<C>(
        &self,
        phase: &'static str,
        constant: u64,
        connections: usize,
        mut open: impl FnMut(usize) -> (C, usize),
    ) -> Measured {
        let warm: Vec<_> = (0..3).map(&mut open).collect();
        let before = self.settled_rss();
        let opened: Vec<_> = (3..connections + 3).map(open).collect();
        let sent = opened.iter().map(|(_, sent)| *sent as u64).max().unwrap();
        let held = self.settled_rss().saturating_sub(before) / connections as u64;
        drop((warm, opened));
        Measured { phase, connections: connections as u64, sent, held, constant }
    }
}

/// Connects from one of many addresses.
pub(crate) fn connect(address: SocketAddr, number: usize) -> TcpStream {
    connect_prepared(address, number, |_| {})
}

fn connect_prepared(address: SocketAddr, number: usize, prepare: impl FnOnce(&Socket)) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    prepare(&socket);
    let from = Ipv4Addr::new(127, 1, (number / PER_ADDRESS) as u8, 1);
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect_timeout(&address.into(), PATIENCE).unwrap();
    socket.set_tcp_nodelay(true).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.into()
}

/// A backend that answers every request with these bytes; with none, it never answers.
pub(crate) fn backend(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream, answer));
        }
    });
    address
}

fn serve(mut stream: TcpStream, answer: &[u8]) {
    let (mut seen, mut bytes) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = stream.read(&mut bytes) {
        seen.extend_from_slice(&bytes[..length]);
        while let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") {
            seen.drain(..end + 4);
            if !answer.is_empty() && stream.write_all(answer).is_err() {
                return;
            }
        }
    }
}
