//! CPU time: pinning to a core, measuring, and burning.
//!
//! A page that sleeps costs nothing, and a page that spins for a fixed wall time costs less on a busy core.
//! Only the thread's CPU clock gives the exact cost, so pages burn until that clock has advanced.

use rustix::{
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
    time::{ClockId, clock_gettime},
};
use std::{hint::black_box, io, time::Duration};

/// Pins this thread, and the threads and processes that it starts, to one core.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no core {core}")));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).map_err(io::Error::from)
}

/// The cores that this thread may run on.
pub fn cores() -> io::Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect())
}

/// The CPU time of this thread.
pub fn thread_time() -> Duration {
    read(ClockId::ThreadCPUTime)
}

/// The CPU time of all threads of this process.
pub fn process_time() -> Duration {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> Duration {
    Duration::try_from(clock_gettime(clock)).expect("a CPU clock starts at zero and only grows")
}

/// A few microseconds of work that the compiler cannot remove.
pub(crate) fn work() {
    let mut state = black_box(1u64);
    for _ in 0..4_000 {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_clock_moves_with_work_and_stands_still_in_sleep() {
        let start = thread_time();
        std::thread::sleep(Duration::from_millis(30));
        assert!(thread_time() - start < Duration::from_millis(10));
        let (start, process_start) = (thread_time(), process_time());
        while thread_time() - start < Duration::from_millis(5) {
            work();
        }
        assert!(process_time() - process_start >= Duration::from_millis(5));
    }

    #[test]
    fn a_pinned_thread_may_run_on_one_core() {
        let last = *cores().unwrap().last().unwrap();
        let pinned = std::thread::spawn(move || {
            pin(last).unwrap();
            cores().unwrap()
        });
        assert_eq!(pinned.join().unwrap(), [last]);
    }

    #[test]
    fn a_core_that_cannot_exist_is_refused() {
        assert_eq!(pin(1 << 20).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
