//! How much of the time this machine stands still, whatever runs on it: a virtual machine's cores are taken away for milliseconds, and so are those that
//! neighbours use. A request needs two of them, and waits for as long as either is not there.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use crate::server;

/// How long is looked.
const LOOK: Duration = Duration::from_secs(2);
/// Each core is busy for so long, then rests for as long: about as a server and a gate are at half load.
const TURN: Duration = Duration::from_micros(200);
/// Shorter delays are usual.
const USUAL: Duration = Duration::from_millis(1);

/// The part of the time in which one of two half-busy cores, with nobody else here at work, was more than a millisecond late.
pub(crate) fn stillness() -> f64 {
    let watchers: Vec<_> = (0..2).map(|core| thread::spawn(move || late_on(core))).collect();
    let late: f64 = watchers.into_iter().map(|watcher| watcher.join().unwrap_or_default()).sum();
    late / LOOK.as_secs_f64()
}

/// How late a core was in all, in seconds.
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
