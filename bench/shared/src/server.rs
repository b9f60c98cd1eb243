//! A Redis server on a free port, and the result of `redis-benchmark` on it.

use core::time::Duration;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tollgate_gatekeeper::shared::Address;

use crate::{CONCURRENT, Failure};

pub(crate) struct Server {
    process: Child,
    port: u16,
}

impl Server {
    pub(crate) fn start() -> Result<Self, Failure> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start redis-server (Debian package redis-server): {error}"))?;
        let server = Self { process, port };
        pin(server.process.id(), 1);
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if Instant::now() > deadline {
                return Err("redis-server does not listen".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn socket(&self) -> (Ipv4Addr, u16) {
        (Ipv4Addr::LOCALHOST, self.port)
    }

    pub(crate) fn address(&self) -> Address {
        Address::parse(&self.url(), None).expect("it is an address")
    }

    /// The server's CPU time so far, in seconds.
    pub(crate) fn cpu(&self) -> f64 {
        cpu_of(&self.process.id().to_string())
    }

    /// Calls per second of a one-line script, by `redis-benchmark` with as many clients as concurrent
    /// requests.
    pub(crate) fn one_line_rate(&self) -> Result<f64, Failure> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        let digest: String =
            redis::cmd("SCRIPT").arg("LOAD").arg("return redis.call('INCR', KEYS[1])").query(&mut connection)?;
        let output = Command::new("redis-benchmark")
            .args(["-p", &self.port.to_string(), "-c", &CONCURRENT.to_string(), "-n", "200000", "--csv", "-r", "10000"])
            .args(["evalsha", &digest, "1", "key:__rand_int__"])
            .output()
            .map_err(|error| format!("cannot run redis-benchmark (Debian package redis-tools): {error}"))?;
        let text = String::from_utf8(output.stdout)?;
        let rate =
            text.lines().last().and_then(|line| line.split("\",\"").nth(1)).map(|rate| rate.trim_matches('"').parse());
        Ok(rate.ok_or_else(|| format!("redis-benchmark says {text:?}"))??)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// CPU time of a process in seconds; the kernel counts in hundredths.
pub(crate) fn cpu_of(process: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Pins a process and its threads to a separate core, so that server and gate do not compete. Without such a
/// core nothing changes.
pub(crate) fn pin(process: u32, core: u32) {
    let pinned = Command::new("taskset").args(["-a", "-cp", &core.to_string(), &process.to_string()]).output();
    drop(pinned);
}

/// The same for one thread.
pub(crate) fn pin_thread(thread: u32, core: u32) {
    drop(Command::new("taskset").args(["-cp", &core.to_string(), &thread.to_string()]).output());
}
