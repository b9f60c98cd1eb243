//! Clients that keep a gate busy: each connection sends its next request when the last one is answered.

use std::io::{BufReader, Write};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

use super::client::connect_from;
use super::{Backend, Gate, PATIENCE, read_response};

/// Service time of [`slow_backend`] per request.
pub const SERVICE: Duration = Duration::from_millis(40);

/// A backend that takes [`SERVICE`] for each request and reports it as CPU time.
pub fn slow_backend() -> Backend {
    Backend::answering(|_, stream| {
        std::thread::sleep(SERVICE);
        let cpu = SERVICE.as_millis();
        let head = format!("HTTP/1.1 200 OK\r\nServer-Timing: cpu;dur={cpu}\r\nContent-Length: 2\r\n\r\nok");
        stream.write_all(head.as_bytes())
    })
}

/// Connections that repeat a request.
#[derive(Default)]
pub struct Crowd {
    served: AtomicUsize,
    is_over: AtomicBool,
}

impl Crowd {
    /// Adds a connection from this address that repeats `request` (request line and header fields, separated by `\n`)
    /// until [`Self::end`]. Every response must be a 200.
    pub fn join<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        gate: &'scope Gate,
        from: impl Into<IpAddr>,
        request: &str,
    ) {
        let request = format!("{}\r\nHost: site\r\n\r\n", request.replace('\n', "\r\n"));
        let mut stream = connect_from(from.into(), gate.address);
        scope.spawn(move || {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            // The time is bounded, because a test that fails does not end its crowd.
            let began = Instant::now();
            while !self.is_over.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
                stream.write_all(request.as_bytes()).unwrap();
                let response = read_response(&mut reader).expect("a response");
                assert_eq!(response.status, 200, "{}", response.text());
                self.served.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Number of requests answered.
    pub fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }

    /// Stops all connections after their current request.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}
