//! Something that every thread has one of, and that somebody else looks at once in a while.
//!
//! Threads that write to one place wait for each other, or at least for its memory to travel between their cores. So each has its own, behind a
//! lock that nobody else wants but whoever collects, once a second and for a moment.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// For how many threads there is one each. When there are more, some share theirs.
const THREADS: usize = 16;

/// One for every thread.
#[derive(Default)]
pub(crate) struct PerThread<T> {
    all: [Own<T>; THREADS],
}

/// Apart from others in memory, so that what one thread writes does not slow another down.
#[derive(Default)]
#[repr(align(128))]
struct Own<T>(Mutex<T>);

impl<T> PerThread<T> {
    /// The one of this thread.
    pub(crate) fn own(&self) -> MutexGuard<'_, T> {
        lock(&self.all[place()])
    }

    /// All of them, one after the other.
    pub(crate) fn all(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.all.iter().map(lock)
    }
}

fn lock<T>(own: &Own<T>) -> MutexGuard<'_, T> {
    own.0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which one is this thread's.
fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static PLACE: Cell<Option<usize>> = const { Cell::new(None) });
    PLACE.with(|place| {
        place.get().unwrap_or_else(|| {
            let next = NEXT.fetch_add(1, Ordering::Relaxed) % THREADS;
            place.set(Some(next));
            next
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_leave_is_all_there_and_in_no_others_place() {
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
