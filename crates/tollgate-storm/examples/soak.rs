//! Runs one gate for long with its cores 80 % busy, with keys that never repeat, and checks that memory and latency
//! stay constant: `soak BINARY SECONDS KEYS`. `./test soak` builds and calls it.
//!
//! Each request has four keys that no request had before: an API key, a user agent, a session cookie and an IPv6 /64.
//! Requests are sent on a fixed schedule, and latency counts from the scheduled time, so that a stall is not hidden.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const KEYS_PER_REQUEST: u64 = 4;
const CONNECTIONS: u32 = 32;
const LOAD: f64 = 0.8;
const MEASURE_CAPACITY: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(30);
/// The start of the run, in which tables fill and buffers grow, and which is not judged.
const WARM_UP: f64 = 0.2;
/// The growth of memory that is tolerated, in KiB: pages that the allocator has not reused yet.
const GROWTH_KIB_MAX: u64 = 8 << 10;
const RULES: &str = "
[[rule]]
name = 'keys'
class = 'header:x-api-key'
bucket = { size = 100, drip = 1, every = '1s' }
[[rule]]
name = 'agents'
class = 'user-agent'
rate = { rate = '10/s', burst = 100 }
[[rule]]
name = 'sessions'
class = 'cookie:session'
window = { max = 20, per = '10s' }
[[rule]]
name = 'networks'
class = 'ip/32'
rate = { rate = '10/s', burst = 100 }
";

/// Answers every request with 200.
fn backend() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = stream.set_nodelay(true);
                let mut reader = BufReader::new(stream);
                let mut line = Vec::new();
                while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    if line == b"\r\n"
                        && reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err()
                    {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

/// The gate, which ends with this value.
struct Gate {
    child: Child,
    address: SocketAddr,
    home: PathBuf,
}

impl Gate {
    fn start(binary: &str) -> Self {
        let home = std::env::temp_dir().join(format!("tollgate-soak-{}", std::process::id()));
        std::fs::create_dir_all(&home).unwrap();
        let config = home.join("tollgate.toml");
        let gate = format!(
            "[gate]\nlisten = '127.0.0.1:0'\nbackend = 'http://{}'\ntrusted_proxies = ['127.0.0.1']\n",
            backend()
        );
        std::fs::write(&config, format!("{gate}{RULES}")).unwrap();
        let mut command = Command::new(binary);
        command.args(["gate", "--admin", "127.0.0.1:0", "--config"]).arg(&config);
        command.env("XDG_STATE_HOME", &home).env_remove("STATE_DIRECTORY");
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let listening = lines.find(|line| line.contains("\"listening\"")).expect("the gate starts");
        let address = listening.split("\"address\":\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        // The pipe must not fill.
        thread::spawn(move || lines.for_each(drop));
        Self { child, address, home }
    }

    fn rss_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.home);
    }
}

/// One persistent connection.
struct Client {
    reader: BufReader<TcpStream>,
    request: String,
    line: String,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { reader: BufReader::new(stream), request: String::new(), line: String::new() }
    }

    /// Sends the request with this number, and returns whether it was served.
    fn get(&mut self, number: u64) -> bool {
        self.request.clear();
        let (high, low) = ((number >> 16) & 0xffff, number & 0xffff);
        write!(
            self.request,
            "GET / HTTP/1.1\r\nHost: site\r\nX-Api-Key: key-{number}\r\nUser-Agent: agent-{number}\r\n\
             Cookie: session={number}\r\nX-Forwarded-For: 2001:db8:{high:x}:{low:x}::1\r\n\r\n"
        )
        .unwrap();
        self.reader.get_mut().write_all(self.request.as_bytes()).is_ok() && self.is_ok() == Some(true)
    }

    /// Reads one response.
    fn is_ok(&mut self) -> Option<bool> {
        let (mut is_ok, mut length) = (false, 0);
        loop {
            self.line.clear();
            if self.reader.read_line(&mut self.line).ok()? == 0 {
                return None;
            }
            if self.line.starts_with("HTTP/1.1 ") {
                is_ok = self.line.starts_with("HTTP/1.1 200");
            } else if self.line.get(..15).is_some_and(|name| name.eq_ignore_ascii_case("content-length:")) {
                length = self.line[15..].trim().parse().ok()?;
            } else if self.line == "\r\n" {
                std::io::copy(&mut self.reader.by_ref().take(length), &mut std::io::sink()).ok()?;
                return Some(is_ok);
            }
        }
    }
}

/// The requests of one interval.
#[derive(Default)]
struct Interval {
    latencies_us: Vec<u32>,
    failed: u64,
}

impl Interval {
    fn quantile_ms(&mut self, quantile: f64) -> f64 {
        self.latencies_us.sort_unstable();
        let index = (self.latencies_us.len() as f64 * quantile) as usize;
        self.latencies_us.get(index).map_or(0.0, |micros| f64::from(*micros) / 1000.0)
    }
}

/// The part of the time in which the cores that this process may use have been busy since the last call.
struct Busy {
    cores: Vec<String>,
    /// Idle and total clock ticks.
    ticks: (u64, u64),
}

impl Busy {
    fn new() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        let cores = list.trim().split(',').flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            (first.parse::<u32>().unwrap()..=last.parse().unwrap()).map(|core| format!("cpu{core}"))
        });
        let mut busy = Self { cores: cores.collect(), ticks: (0, 0) };
        busy.take();
        busy
    }

    fn take(&mut self) -> f64 {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let mut ticks = (0, 0);
        for line in stat.lines() {
            let mut fields = line.split_whitespace();
            if fields.next().is_some_and(|name| self.cores.iter().any(|core| core == name)) {
                let values: Vec<u64> = fields.map(|field| field.parse().unwrap()).collect();
                ticks = (ticks.0 + values[3] + values[4], ticks.1 + values[..8].iter().sum::<u64>());
            }
        }
        let (idle, total) = (ticks.0 - self.ticks.0, ticks.1 - self.ticks.1);
        self.ticks = ticks;
        1.0 - idle as f64 / total.max(1) as f64
    }
}

/// The rate at which the cores are as busy as [`LOAD`] says. A request on a schedule costs more CPU time than one
/// without a pause before it, so the cost is measured on a schedule, at half of the capacity.
fn rate_of_load(address: SocketAddr, capacity: f64, numbers: &AtomicU64) -> f64 {
    let (rate, mut busy, discarded) = (capacity / 2.0, Busy::new(), Mutex::new(Interval::default()));
    let end = Instant::now() + MEASURE_CAPACITY;
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| send(address, rate / f64::from(CONNECTIONS), end, numbers, &discarded));
        }
    });
    (rate * LOAD / busy.take()).min(capacity * LOAD)
}

/// Requests per second without pauses.
fn capacity(address: SocketAddr, numbers: &AtomicU64) -> f64 {
    let begin = Instant::now();
    let served: u64 = thread::scope(|scope| {
        let work = || {
            let mut client = Client::connect(address);
            let mut served = 0;
            while begin.elapsed() < MEASURE_CAPACITY {
                assert!(client.get(numbers.fetch_add(1, Ordering::Relaxed)), "a request failed");
                served += 1;
            }
            served
        };
        let threads: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    served as f64 / begin.elapsed().as_secs_f64()
}

/// Sends requests at this rate on one connection until `end`, and puts their latencies into `interval`.
fn send(address: SocketAddr, rate: f64, end: Instant, numbers: &AtomicU64, interval: &Mutex<Interval>) {
    let (mut client, begin) = (Client::connect(address), Instant::now());
    for turn in 0_u64.. {
        let scheduled = begin + Duration::from_secs_f64(turn as f64 / rate);
        if scheduled >= end {
            return;
        }
        thread::sleep(scheduled.saturating_duration_since(Instant::now()));
        let is_served = client.get(numbers.fetch_add(1, Ordering::Relaxed));
        let latency_us = u32::try_from(scheduled.elapsed().as_micros()).unwrap_or(u32::MAX);
        let mut interval = interval.lock().unwrap();
        interval.latencies_us.push(latency_us);
        if !is_served {
            interval.failed += 1;
            client = Client::connect(address);
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().collect();
    let [_, binary, seconds, keys] = &arguments[..] else {
        println!("usage: soak BINARY SECONDS KEYS");
        return ExitCode::from(2);
    };
    let (seconds, keys): (u64, u64) = (seconds.parse().unwrap(), keys.parse().unwrap());
    let (gate, numbers) = (Gate::start(binary), AtomicU64::new(0));
    let capacity = capacity(gate.address, &numbers);
    let rate = rate_of_load(gate.address, capacity, &numbers);
    println!("{capacity:.0} requests/s without pauses; sending {rate:.0} for {seconds} s");
    let (interval, mut busy, begin) = (Mutex::new(Interval::default()), Busy::new(), Instant::now());
    let end = begin + Duration::from_secs(seconds);
    let every = Duration::from_secs_f64((seconds as f64 / 60.0).clamp(1.0, 30.0));
    let (mut memory, mut p99s, mut failed) = (Vec::new(), Vec::new(), 0);
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| send(gate.address, rate / f64::from(CONNECTIONS), end, &numbers, &interval));
        }
        while Instant::now() + every < end {
            thread::sleep(every);
            let mut done = std::mem::take(&mut *interval.lock().unwrap());
            let (p50, p99, rss) = (done.quantile_ms(0.5), done.quantile_ms(0.99), gate.rss_kib());
            let elapsed = begin.elapsed().as_secs();
            println!("{elapsed:5} s  p50 {p50:.2} ms  p99 {p99:.2} ms  {} MiB  {} failed", rss >> 10, done.failed);
            failed += done.failed;
            memory.push(rss);
            p99s.push(p99);
        }
    });
    let busy_percent = busy.take() * 100.0;
    let distinct = numbers.load(Ordering::Relaxed) * KEYS_PER_REQUEST;
    let judged = (memory.len() as f64 * WARM_UP) as usize;
    let third = (memory.len() - judged) / 3;
    let (rss_then, rss_now) = (memory[judged], memory.iter().rev().take(third.max(1)).max().copied().unwrap());
    let (then, now) =
        (median(&mut p99s[judged..judged + third].to_vec()), median(&mut p99s[memory.len() - third..].to_vec()));
    let checks = [
        (
            distinct >= keys,
            format!("{:.1} million distinct keys, at least {:.1} million", distinct as f64 / 1e6, keys as f64 / 1e6),
        ),
        (failed == 0, format!("{failed} of {} requests failed", distinct / KEYS_PER_REQUEST)),
        (
            rss_now <= rss_then + GROWTH_KIB_MAX,
            format!("memory {} MiB after the warm-up, at most {} MiB later", rss_then >> 10, rss_now >> 10),
        ),
        (now <= then * 1.5 + 2.0, format!("p99 {then:.2} ms in the first third, {now:.2} ms in the last")),
    ];
    for (is_right, fact) in &checks {
        println!("{}  {fact}", if *is_right { "ok    " } else { "FAILED" });
    }
    if let Ok(file) = std::env::var("TOLLGATE_RESULT") {
        let facts: Vec<_> = checks.iter().map(|(_, fact)| format!("- {fact}\n")).collect();
        let verdict = if checks.iter().all(|check| check.0) { "passed" } else { "failed" };
        let head = format!(
            "Last recorded run: {seconds} s at {rate:.0} requests/s ({capacity:.0} without pauses), cores {busy_percent:.0} % busy, {verdict}.\n\n"
        );
        std::fs::write(file, head + &facts.concat()).unwrap();
    }
    if checks.iter().all(|check| check.0) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
