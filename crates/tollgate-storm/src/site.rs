//! The simulated site: an HTTP/1.1 server on loopback with a few workers, which serve requests in FIFO order. Every
//! page burns exact CPU time, sleeps, or both.
//!
//! It behaves like a typical overloaded site: a request that it has read is processed even if its client leaves
//! while the request waits or runs, because most servers notice that too late. A storm therefore leaves abandoned
//! work behind, which a benchmark can see.
//!
//! Each connection has a thread, which waits for one of the [`WorkerSlots`] and then burns the CPU time of its
//! request itself. This is the simplest server with exact CPU accounting; its few hundred threads sleep most of
//! the time.

use crate::{
    counters::{Counters, Reading},
    cpu,
    crowd::{self, Crowd},
    page::{Costs, Kind},
    worker_slots::WorkerSlots,
};
use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
    time::Duration,
};

const CONNECTIONS_MAX: usize = 4096;
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
const THREAD_STACK_BYTES: usize = 128 * 1024;
/// The time after which an idle connection is closed.
const IDLE_MAX: Duration = Duration::from_secs(75);
/// The path of the site's counters, which no worker serves.
const COUNTERS_PATH: &str = "/-/counters";

/// The settings of the site.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The number of requests that run at once; further ones are queued.
    pub workers: usize,
    /// Cost of each kind of page.
    pub costs: Costs,
    /// Whether responses have their CPU time in `Server-Timing`.
    pub server_timing: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { workers: 16, costs: Costs::default(), server_timing: false }
    }
}

struct Site {
    settings: Settings,
    worker_slots: WorkerSlots,
    counters: Counters,
}

/// Serves until the process ends. All threads run on the cores to which the calling thread is bound.
pub fn serve(listener: &TcpListener, settings: Settings) -> ! {
    let worker_slots = WorkerSlots::new(settings.workers);
    let site = Arc::new(Site { settings, worker_slots, counters: Counters::new() });
    loop {
        let (stream, _) = match listener.accept() {
            Ok(accepted) => accepted,
            // Out of file descriptors, or the client left early: the site continues.
            Err(_) => {
                thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        // Each connection has a reference to the site.
        if Arc::strong_count(&site) > CONNECTIONS_MAX {
            continue;
        }
        let server = Arc::clone(&site);
        // An error ends only this connection.
        let _ = thread::Builder::new().stack_size(THREAD_STACK_BYTES).spawn(move || server.converse(stream));
    }
}

/// Fetches the counters of the site at `address`.
pub fn read_counters(address: SocketAddr) -> io::Result<Reading> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {COUNTERS_PATH} HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(HEAD_BYTES_MAX as u64).read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok(serde_json::from_str(body)?)
}

/// A parsed request.
struct Request {
    path: String,
    crowd: Crowd,
    /// Whether the client asks to close the connection after the response.
    close: bool,
}

impl Site {
    /// Serves one connection.
    fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IDLE_MAX))?;
        let mut buffer = Vec::with_capacity(1024);
        while let Some(request) = read_request(&mut stream, &mut buffer)? {
            let answer = self.answer(&request);
            stream.write_all(answer.as_bytes())?;
            if request.close {
                break;
            }
        }
        Ok(())
    }

    fn answer(&self, request: &Request) -> String {
        if request.path == COUNTERS_PATH {
            return answer(200, &self.counters.read().to_json(), None);
        }
        let Some(kind) = Kind::of_path(&request.path) else {
            return answer(404, "no such page\n", None);
        };
        let start = cpu::thread_time();
        let _slot = self.worker_slots.enter();
        self.counters.begin(request.crowd);
        let cost = *self.settings.costs.of(kind);
        if cost.sleep > Duration::ZERO {
            thread::sleep(cost.sleep);
        }
        self.burn(request.crowd, start + cost.cpu);
        let cpu = self.settings.server_timing.then(|| cpu::thread_time() - start);
        answer(200, &"x".repeat(kind.body_bytes()), cpu)
    }

    /// Burns CPU time until this thread has used `until` in total. The counters grow in small steps, because they
    /// may be read while a page is being served.
    fn burn(&self, crowd: Crowd, until: Duration) {
        let mut used = cpu::thread_time();
        while used < until {
            cpu::work();
            let now = cpu::thread_time();
            self.counters.spend(crowd, now - used);
            used = now;
        }
    }
}

/// A response, with the CPU time in `Server-Timing` if it is given.
fn answer(status: u16, body: &str, cpu: Option<Duration>) -> String {
    let mut answer = format!("HTTP/1.1 {status} -\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n", body.len());
    if let Some(cpu) = cpu {
        let dur_ms = cpu.as_secs_f64() * 1e3;
        write!(answer, "Server-Timing: cpu;dur={dur_ms:.3}\r\n").expect("a string takes all that is written");
    }
    answer.push_str("\r\n");
    answer.push_str(body);
    answer
}

/// The next request of the connection; `None` when the client has closed it.
fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let mut chunk = [0; 2048];
    loop {
        if let Some((request, used)) = parse(buffer)? {
            buffer.drain(..used);
            return Ok(Some(request));
        }
        if buffer.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let count = stream.read(&mut chunk)?;
        if count == 0 {
            return Ok(None);
        }
        buffer.extend_from_slice(&chunk[..count]);
    }
}

/// The request at the start of `bytes` and the length of its head; `None` if it is incomplete. A request without a
/// crowd counts as human.
fn parse(bytes: &[u8]) -> io::Result<Option<(Request, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut headers);
    let status = head.parse(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    let httparse::Status::Complete(used) = status else { return Ok(None) };
    let value = |name: &str| {
        let header = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(header.value).ok()
    };
    let crowd = value(crowd::HEADER).and_then(Crowd::of_name).unwrap_or(Crowd::Human);
    let close = value("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let path = head.path.unwrap_or_default().to_owned();
    Ok(Some((Request { path, crowd, close }, used)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Cost;
    use std::time::Instant;

    fn open(settings: Settings) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || serve(&listener, settings));
        address
    }

    fn ask(stream: &mut TcpStream, path: &str, crowd: Crowd) {
        let name = crowd.name();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: site\r\nX-Crowd: {name}\r\nConnection: close\r\n\r\n").unwrap();
    }

    #[test]
    fn a_page_burns_its_cost_and_reports_it() {
        let address = open(Settings { server_timing: true, ..Settings::default() });
        let mut stream = TcpStream::connect(address).unwrap();
        ask(&mut stream, "/article/1", Crowd::Office);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, rest) = answer.split_once("Server-Timing: cpu;dur=").unwrap();
        let dur_ms: f64 = rest.split_once('\r').unwrap().0.parse().unwrap();
        assert!((20.0..22.0).contains(&dur_ms), "{dur_ms}");
        let reading = read_counters(address).unwrap();
        assert_eq!(reading.requests, [0, 1, 0]);
        let booked = reading.cpu_of(Crowd::Office).as_secs_f64() * 1e3;
        assert!((19.9..22.0).contains(&booked), "{booked}");
        assert!(reading.process_cpu >= reading.cpu_of(Crowd::Office));
    }

    #[test]
    fn abandoned_requests_are_finished() {
        let address = open(Settings { workers: 1, ..Settings::default() });
        for _ in 0..3 {
            let mut stream = TcpStream::connect(address).unwrap();
            ask(&mut stream, "/article/1", Crowd::Crawler);
        }
        let cost = Costs::default().article.cpu * 3;
        for _ in 0..2000 {
            if read_counters(address).unwrap().cpu_of(Crowd::Crawler) + Duration::from_millis(1) >= cost {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        panic!("the site forgot the work of clients that left");
    }

    #[test]
    fn a_page_that_sleeps_holds_its_worker_and_burns_nothing() {
        let sleep = Duration::from_millis(40);
        let costs = Costs { article: Cost::sleep(sleep), ..Costs::default() };
        let address = open(Settings { workers: 1, costs, ..Settings::default() });
        let start = Instant::now();
        let mut streams = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        for stream in &mut streams {
            ask(stream, "/article/1", Crowd::Human);
        }
        for stream in &mut streams {
            stream.read_to_string(&mut String::new()).unwrap();
        }
        assert!(start.elapsed() >= sleep * 2, "{:?}", start.elapsed());
        assert!(read_counters(address).unwrap().cpu_of(Crowd::Human) < sleep / 4);
    }

    #[test]
    fn requests_sent_together_are_answered_in_turn() {
        let address = open(Settings::default());
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /assets/1.css HTTP/1.1\r\n\r\nGET /nowhere HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("HTTP/1.1 404 "), "{answer}");
    }
}
