//! A value per thread that another thread reads from time to time. Workers of a gate record costs and refusals with it.
//!
//! Threads that write to the same memory wait for each other, or at least for the cache line to move between cores.
//! Here each of up to 16 threads has its own value, whose lock is only contended by the reader, for a moment about once
//! per second.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// Number of values. With more threads than this, several share a value.
const THREADS: usize = 16;

/// One value per thread.
#[derive(Default)]
pub(crate) struct PerThread<T> {
    all: [ThreadSlot<T>; THREADS],
}

/// Aligned to separate cache lines, so that writes of one thread do not slow down another.
#[derive(Default)]
#[repr(align(128))]
struct ThreadSlot<T>(Mutex<T>);

impl<T> PerThread<T> {
    /// Locks the value of this thread.
    pub(crate) fn own(&self) -> MutexGuard<'_, T> {
        self.all[slot_index()].0.lock()
    }

    /// Locks all values, one after the other.
    pub(crate) fn all(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.all.iter().map(|slot| slot.0.lock())
    }
}

/// Index of this thread's value, the same in every [`PerThread`]. Threads get the indices in the order of their first
/// use.
fn slot_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static INDEX: usize = NEXT.fetch_add(1, Ordering::Relaxed) % THREADS);
    INDEX.with(|index| *index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_value_and_all_values_are_read() {
        let left = PerThread::<Vec<usize>>::default();
        std::thread::scope(|scope| {
            for thread in 0..THREADS * 2 {
                let left = &left;
                scope.spawn(move || (0..100).for_each(|_| left.own().push(thread)));
            }
        });
        let mut all: Vec<usize> = left.all().flat_map(|own| own.clone()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..THREADS * 2).flat_map(|thread| [thread; 100]).collect::<Vec<_>>());
        for thread in 0..THREADS * 2 {
            assert_eq!(left.all().filter(|own| own.contains(&thread)).count(), 1, "{thread}");
        }
    }
}
