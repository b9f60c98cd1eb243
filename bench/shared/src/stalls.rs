//! The share of time in which this machine stalls: the hypervisor takes cores of a virtual machine away for
//! milliseconds, and other processes use them. A request needs two cores, and waits while either is
//! unavailable.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use crate::server;

/// The duration of the measurement.
const LOOK: Duration = Duration::from_secs(2);
/// Each core is busy for this long, then idle for as long, like a server and a gate at half load.
const TURN: Duration = Duration::from_micros(200);
/// Shorter delays are normal.
const USUAL: Duration = Duration::from_millis(1);

/// The share of time in which one of two half-busy cores on an otherwise idle machine was more than a
/// millisecond late.
pub(crate) fn stalls() -> f64 {
    let watchers: Vec<_> = (0..2).map(|core| thread::spawn(move || late_on(core))).collect();
    let late: f64 = watchers.into_iter().map(|watcher| watcher.join().unwrap_or_default()).sum();
    late / LOOK.as_secs_f64()
}

/// The total delay of a core in seconds.
fn late_on(core: u32) -> f64 {
    let own = std::fs::read_link("/proc/thread-self").ok();
    if let Some(thread) = own.as_deref().and_then(|path| path.file_name()?.to_str()?.parse().ok()) {
        server::pin_thread(thread, core);
    }
    let (start, mut late) = (Instant::now(), Duration::ZERO);
    let mut before = start;
    let mut note = |now: Instant, expected: Duration| {
        let delay = (now - before).saturating_sub(expected);
        late += if delay > USUAL { delay } else { Duration::ZERO };
        before = now;
    };
    while start.elapsed() < LOOK {
        let turn = Instant::now();
        note(turn, TURN);
        while turn.elapsed() < TURN {
            note(Instant::now(), Duration::ZERO);
        }
        thread::sleep(TURN);
    }
    late.as_secs_f64()
}
