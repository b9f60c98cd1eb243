//! The thread that does what is due with time while requests wait.
//!
//! It looks every 5 ms for requests that cost more than their price, and whether the machine has CPU time to spare. A
//! backend on this machine that is not busy is certainly not computing with all its cores, so the in-flight limit may
//! grow at once. The test is one-sided: a busy machine proves nothing, because others may keep it busy.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tollgate_wire::kernel::busy_ticks;

use super::Queue;
use crate::settings::Gate as Settings;

/// How often requests in flight are compared with their prices.
const EVERY: Duration = Duration::from_millis(5);
/// How often the thread looks whether its queue is gone.
const IDLE: Duration = Duration::from_secs(1);
/// The machine's CPU time is measured over at least this long; the kernel counts it in steps of 10 ms.
const WINDOW: Duration = Duration::from_millis(40);
/// With less than this many hundredths of one core busy, no thread on the machine computes all the time.
const BUSY_MAX: u128 = 80;
/// The kernel's clock ticks per second, as every Linux shows them.
const TICKS_PER_SEC: u128 = 100;

/// Wakes the thread.
pub(super) struct Pulse {
    thread: OnceLock<Thread>,
    /// Whether all backends are on this machine.
    is_local: AtomicBool,
}

impl Pulse {
    pub(super) fn new(settings: &Settings) -> Self {
        Self { thread: OnceLock::new(), is_local: AtomicBool::new(is_local(settings)) }
    }

    pub(super) fn reload(&self, settings: &Settings) {
        self.is_local.store(is_local(settings), Ordering::Relaxed);
    }

    /// Starts the thread, which ends when the queue is gone. Without it, requests are dispatched all the same when
    /// others end.
    pub(super) fn start(&self, queue: &Arc<Queue>) {
        let queue = Arc::downgrade(queue);
        let run = move || {
            let mut machine = Machine::new();
            let mut pause = IDLE;
            loop {
                thread::park_timeout(pause);
                let Some(queue) = queue.upgrade() else { return };
                let is_waiting = queue.has_waiting.load(Ordering::Relaxed);
                let is_idle = is_waiting && queue.pulse.is_local.load(Ordering::Relaxed) && machine.is_idle();
                pause = if is_waiting && queue.beat(is_idle) { EVERY } else { IDLE };
            }
        };
        match thread::Builder::new().name("tollgate-queue".to_owned()).spawn(run) {
            Ok(handle) => _ = self.thread.set(handle.thread().clone()),
            Err(error) => tracing::warn!(%error, "cannot start the queue's thread: estimates are updated less often"),
        }
    }

    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Whether every backend is on this machine, as far as its address shows.
fn is_local(settings: &Settings) -> bool {
    let is_loopback =
        |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let backends = settings.all_backends();
    !backends.is_empty() && backends.iter().all(|backend| is_loopback(&backend.host))
}

/// How busy this machine is.
struct Machine {
    /// When the kernel's count was last read, and what it was.
    read: Option<(Instant, u64)>,
    is_idle: bool,
    /// Whether this process may use less than the machine has: then an idle machine proves nothing.
    has_quota: bool,
}

impl Machine {
    fn new() -> Self {
        let quota = std::fs::read("/sys/fs/cgroup/cpu.max").unwrap_or_default();
        Self { read: None, is_idle: false, has_quota: !quota.is_empty() && !quota.starts_with(b"max") }
    }

    /// Whether so little of the machine is busy that nothing on it computes all the time.
    fn is_idle(&mut self) -> bool {
        let now = Instant::now();
        let elapsed = self.read.map(|(at, _)| now.duration_since(at));
        if self.has_quota || elapsed.is_some_and(|elapsed| elapsed < WINDOW) {
            return self.is_idle;
        }
        let ticks = read_stat();
        let busy = match (self.read, ticks) {
            (Some((_, before)), Some(ticks)) => ticks.checked_sub(before),
            _ => None,
        };
        // A count that is older than a few windows says nothing about now.
        self.is_idle = match (busy, elapsed) {
            (Some(busy), Some(elapsed)) if elapsed < 10 * WINDOW => {
                u128::from(busy) * 1_000_000 * 100 / TICKS_PER_SEC < BUSY_MAX * elapsed.as_micros()
            }
            _ => false,
        };
        self.read = ticks.map(|ticks| (now, ticks));
        self.is_idle
    }
}

fn read_stat() -> Option<u64> {
    let mut text = [0; 256];
    let read = File::open("/proc/stat").ok()?.read(&mut text).ok()?;
    busy_ticks(&text[..read])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(backend: &str) -> Settings {
        let text = format!("[gate]\nbackend = {backend}\n");
        crate::settings::Settings::parse("test.toml", &text).unwrap().gate.unwrap()
    }

    #[test]
    fn backends_are_local_if_all_of_them_are_on_loopback_addresses() {
        for (backend, is) in [
            ("\"http://127.0.0.1:80\"", true),
            ("[\"http://localhost:80\", \"http://[::1]:81\"]", true),
            ("[\"http://localhost:80\", \"http://192.0.2.1:81\"]", false),
            ("\"http://site.example\"", false),
        ] {
            assert_eq!(is_local(&settings(backend)), is, "{backend}");
        }
    }

    #[test]
    fn a_machine_on_which_this_test_computes_is_not_idle() {
        let mut machine = Machine { has_quota: false, ..Machine::new() };
        assert!(!machine.is_idle(), "nothing is known yet");
        let start = Instant::now();
        while start.elapsed() < 3 * WINDOW {
            std::hint::black_box(start);
        }
        assert!(!machine.is_idle());
    }
}
