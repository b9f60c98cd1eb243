//! Constant load on a gate: some requests with a rule on Redis and, for comparison, some with a rule in the gate's
//! memory.

use std::io::{BufReader, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use crate::support::{Backend, Gate, read_response};

/// The default deadline of a gate.
const DEADLINE: Duration = Duration::from_millis(5);
const CLIENTS: usize = 8;
const PAUSE: Duration = Duration::from_millis(4);
const KEYS: usize = 1000;
const ALLOWED: Duration = Duration::from_millis(1);

static MEASURING: RwLock<()> = RwLock::new(());

/// Lock for tests that measure time: no other test runs meanwhile.
pub(crate) fn alone() -> RwLockWriteGuard<'static, ()> {
    MEASURING.write().unwrap_or_else(PoisonError::into_inner)
}

/// Lock for tests that do not measure time.
pub(crate) fn among_others() -> RwLockReadGuard<'static, ()> {
    MEASURING.read().unwrap_or_else(PoisonError::into_inner)
}

/// A gate with a short deadline and two rules that refuse no request: one on Redis and one in memory.
pub(crate) fn spacious_gate(backend: &Backend, url: &str) -> Gate {
    let rule = |state: &str| {
        format!(
            "[[rule]]\nname = '{state}'\nwhen = {{ path = '/{state}' }}\nclass = 'header:x-key'\nstate = '{state}'\n\
             bucket = {{ size = 1000000, drip = 1000000, every = '1s' }}\n"
        )
    };
    let (redis, local) = (rule("redis"), rule("local"));
    let backend = backend.url();
    Gate::start(&format!(
        "[gate]\nworkers = 1\nbackend = \"{backend}\"\n[redis]\nurl = \"{url}\"\ndeadline = '5ms'\n{redis}{local}"
    ))
}

/// The latencies of requests, and the number of responses other than 200.
#[derive(Debug, Default)]
pub(crate) struct Report {
    redis: Vec<Duration>,
    local: Vec<Duration>,
    failed: usize,
}

impl Report {
    /// Asserts that no request failed and that requests with Redis take little longer than those without. With
    /// `TOLLGATE_TEST_STRICT`, which needs an idle machine, the p99 is at most the deadline plus 1 ms: as many may be
    /// late as without Redis, times two because they are woken once more, and one stall may affect every client.
    pub(crate) fn assert_no_request_failed_or_stalled(&self) {
        assert_eq!(self.failed, 0, "of {} requests", self.redis.len() + self.local.len());
        // A request that waited for Redis to return would take seconds.
        let (longest, most) = (share(&self.redis, 100), Duration::from_secs(1) + 4 * share(&self.local, 100));
        assert!(longest <= most, "somebody waited for {longest:?}, and without Redis {:?}", share(&self.local, 100));
        if std::env::var_os("TOLLGATE_TEST_STRICT").is_none() {
            return;
        }
        let allowed = DEADLINE + ALLOWED + 2 * share(&self.local, 50);
        let late = |times: &[Duration]| times.iter().filter(|time| **time > allowed).count();
        let (redis, local) = (late(&self.redis), late(&self.local));
        let found = format!(
            "{redis} of {} took longer than {allowed:?}, and {local} without Redis; p99 {:?}, and {:?} without Redis",
            self.redis.len(),
            share(&self.redis, 99),
            share(&self.local, 99)
        );
        eprintln!("{found}");
        assert!(redis <= self.redis.len() / 100 + 2 * local + CLIENTS, "{found}");
    }
}

/// The latency at this percentile.
fn share(times: &[Duration], hundredths: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    sorted.get((sorted.len() * hundredths / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// Sends requests while `during` runs.
pub(crate) fn load<T>(gate: &Gate, during: impl FnOnce() -> T) -> (Report, T) {
    let (stop, keys) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| client(gate, &keys, &stop))).collect();
        // Stops the clients also if `during` panics.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        stop.store(true, Ordering::Relaxed);
        let mut report = Report::default();
        for client in clients {
            let part = client.join().unwrap();
            report.redis.extend(part.redis);
            report.local.extend(part.local);
            report.failed += part.failed;
        }
        match outcome {
            Ok(outcome) => (report, outcome),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// One client with one connection, which must not break.
fn client(gate: &Gate, keys: &AtomicUsize, stop: &AtomicBool) -> Report {
    let mut report = Report::default();
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while !stop.load(Ordering::Relaxed) {
        let key = keys.fetch_add(1, Ordering::Relaxed) % KEYS;
        for path in ["redis", "local"] {
            let began = Instant::now();
            let request = format!("GET /{path} HTTP/1.1\r\nHost: site\r\nX-Key: {key}\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let status = read_response(&mut reader).map_or(0, |response| response.status);
            let times = if path == "redis" { &mut report.redis } else { &mut report.local };
            times.push(began.elapsed());
            report.failed += usize::from(status != 200);
            if status == 0 {
                return report;
            }
        }
        std::thread::sleep(PAUSE);
    }
    report
}
