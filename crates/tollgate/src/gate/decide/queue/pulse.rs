//! The thread of one backend's queue that updates prices, limits and estimates while requests wait.
//!
//! It looks every 5 ms for requests that cost more than their price, and every 50 ms at how busy this machine is, if
//! the backend is on it. Where the machine is hardly busy, no backend computes.

use std::fs::File;
use std::io::Read;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tollgate_core::virtual_clock::Cores;
use tollgate_wire::kernel::{core_count, idle_ticks};

use super::Queue;
use crate::settings::Gate as Settings;

/// How often requests in flight are compared with their prices.
const EVERY: Duration = Duration::from_millis(5);
/// While nothing waits, the thread checks this often whether its queue was dropped.
const IDLE: Duration = Duration::from_secs(1);
/// The machine's CPU time is measured over at least this long; the kernel counts it in steps of 10 ms.
const WINDOW: Duration = Duration::from_millis(50);
/// The kernel's clock ticks per second, as every Linux shows them.
const TICKS_PER_SEC: u64 = 100;
/// The length of the first line of `/proc/stat`, and of the lines with a core each: more than any machine has.
const LINE_BYTES: u64 = 256;
const STAT_BYTES: u64 = 1 << 16;

/// Starts the thread, which ends when the queue is gone. Without it, requests are dispatched all the same when others
/// end.
pub(super) fn start(queue: &Arc<Queue>) -> Option<Thread> {
    let queue = Arc::downgrade(queue);
    let run = move || {
        let mut machine = Machine::new();
        let mut pause = IDLE;
        loop {
            thread::park_timeout(pause);
            let Some(queue) = queue.upgrade() else { return };
            pause = if beat(&queue, &mut machine) { EVERY } else { IDLE };
        }
    };
    let started = thread::Builder::new().name("tollgate-queue".to_owned()).spawn(run);
    let started = started.inspect_err(|error| {
        tracing::warn!(%error, "cannot start the queue's thread: estimates are updated less often");
    });
    started.ok().map(|handle| handle.thread().clone())
}

/// Updates prices, limits and estimates, and dispatches requests. Returns whether any still wait.
fn beat(queue: &Queue, machine: &mut Machine) -> bool {
    let has_waiting = || queue.with_core(|core, _| core.waiting() > 0);
    if !has_waiting() {
        return false;
    }
    if machine.is_due() && queue.state.lock().is_local {
        let busy = machine.busy();
        queue.with_core(|core, _| core.machine_busy(busy));
    }
    queue.update(|state, now| state.core.tick(now));
    has_waiting()
}

/// Whether every backend is on this machine, as far as its address shows.
pub(super) fn is_local(settings: &Settings) -> bool {
    let is_loopback =
        |host: &str| host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let backends = settings.all_backends();
    !backends.is_empty() && backends.iter().all(|backend| is_loopback(&backend.host))
}

/// How busy this machine is, without this process.
struct Machine {
    /// The machine's cores. `None` if their CPU time shows nothing about the backend: a cgroup quota bounds this
    /// process, or the kernel does not show how many cores there are.
    cores: Option<u32>,
    /// The last counts.
    read: Option<Counts>,
}

/// The kernel's counts at one moment.
#[derive(Clone, Copy)]
struct Counts {
    at: Instant,
    idle_ticks: u64,
    /// CPU time of this process.
    own: Duration,
}

impl Machine {
    fn new() -> Self {
        let quota = std::fs::read("/sys/fs/cgroup/cpu.max").unwrap_or_default();
        let has_quota = !quota.is_empty() && !quota.starts_with(b"max");
        let cores = read_stat(STAT_BYTES).and_then(|text| u32::try_from(core_count(&text)).ok());
        Self { cores: cores.filter(|cores| *cores > 0 && !has_quota), read: None }
    }

    /// Whether it is time to look again.
    fn is_due(&self) -> bool {
        self.cores.is_some() && self.read.is_none_or(|read| read.at.elapsed() >= WINDOW)
    }

    /// How many cores were busy since the last call; none if that is not known.
    fn busy(&mut self) -> Option<Cores> {
        let (cores, before) = (self.cores?, self.read);
        let idle_ticks = read_stat(LINE_BYTES).and_then(|text| idle_ticks(&text));
        let own = Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default();
        self.read = idle_ticks.map(|idle_ticks| Counts { at: Instant::now(), idle_ticks, own });
        before?.busy_until(self.read?, cores)
    }
}

impl Counts {
    /// How many of the cores other processes kept busy until `now`; none if that is too long.
    fn busy_until(self, now: Self, cores: u32) -> Option<Cores> {
        let elapsed = now.at.duration_since(self.at);
        // A count that is older than a few windows says nothing about now.
        if elapsed > 10 * WINDOW {
            return None;
        }
        let idle_ms = now.idle_ticks.checked_sub(self.idle_ticks)? * 1000 / TICKS_PER_SEC;
        let idle = Duration::from_millis(idle_ms) + now.own.saturating_sub(self.own);
        let busy = (elapsed * cores).saturating_sub(idle).as_micros() * 1000 / elapsed.as_micros().max(1);
        Some(Cores::from_milli(u32::try_from(busy).unwrap_or(u32::MAX)))
    }
}

/// The beginning of `/proc/stat`.
fn read_stat(bytes: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    File::open("/proc/stat").ok()?.take(bytes).read_to_end(&mut text).ok()?;
    Some(text)
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
    fn busy_is_what_neither_idle_time_nor_this_process_explains() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let counts = |at, idle_ticks, own| Counts { at: start + ms(at), idle_ticks, own: ms(own) };
        let busy = |now: Counts| counts(0, 100, 5).busy_until(now, 2).map(Cores::as_milli);
        assert_eq!(busy(counts(100, 105, 35)), Some(1200), "200 ms of two cores without 50 idle and 30 of its own");
        assert_eq!(busy(counts(100, 120, 5)), Some(1), "nothing");
        assert_eq!(busy(counts(501, 105, 5)), None, "too long ago");
        assert_eq!(busy(counts(100, 99, 5)), None, "a count that goes backwards");
    }

    #[test]
    fn the_kernel_shows_how_busy_this_machine_is() {
        let mut machine = Machine { cores: Some(core_count(&read_stat(STAT_BYTES).unwrap()) as u32), read: None };
        assert!(machine.is_due() && machine.busy().is_none(), "there is nothing to compare with");
        thread::sleep(Duration::from_millis(20));
        assert!(machine.busy().is_some() && machine.cores > Some(0));
        assert!(!Machine { cores: None, read: None }.is_due(), "with a quota it says nothing about the backend");
    }
}
