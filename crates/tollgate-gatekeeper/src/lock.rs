//! The lock of one row of a [`crate::table`]: a sequence lock in the low half of a word, whose high half is other data
//! of the row.
//!
//! The version is odd while a thread changes the row, and increases with every change. Readers compare it
//! before and after and write nothing, so any number of cores can refuse the same offender without contention
//! for the cache line. Every word of a row is atomic, so a read during a change gives a wrong value, never
//! undefined behaviour, and is discarded.

use crate::sync::{AtomicU64, Ordering, fence, wait_while};

/// The bit that makes a version odd.
const LOCKED: u64 = 1;
/// The increase of the version with every change, which leaves the lowest bit alone.
const VERSION_STEP: u32 = 2;

/// The lock of one row, in the low half of a word.
#[derive(Clone, Copy)]
pub(crate) struct Lock<'t>(pub(crate) &'t AtomicU64);

/// The value of the lock's word at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// A guard that permits changes to a row until it is dropped.
pub(crate) struct Locked<'t> {
    head: &'t AtomicU64,
}

impl<'t> Lock<'t> {
    /// The current version, for a later comparison.
    #[inline(always)]
    pub(crate) fn version(self) -> Version {
        Version(self.0.load(Ordering::Acquire))
    }

    /// Whether all reads since `version` are consistent.
    #[inline]
    pub(crate) fn is_still(self, version: Version) -> bool {
        // Earlier loads must not be reordered after the following one.
        fence(Ordering::Acquire);
        version.0 & LOCKED == 0 && self.0.load(Ordering::Relaxed) == version.0
    }

    /// Locks the row if it is free and unchanged since `version`.
    #[inline(always)]
    pub(crate) fn take_still(self, version: Version) -> Option<Locked<'t>> {
        let (free, taken) = (version.0 & !LOCKED, version.0 | LOCKED);
        self.0.compare_exchange(free, taken, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Locked::new(self.0))
    }

    /// Waits until the row is free and locks it. A holder keeps it for some nanoseconds, and waits only for
    /// further rows, which all threads lock in one order.
    pub(crate) fn take(self) -> Locked<'t> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            match self.0.compare_exchange(seen & !LOCKED, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => seen = other,
            }
            if seen & LOCKED != 0 {
                wait_while(|| self.is_taken());
            }
        }
        Locked::new(self.0)
    }

    /// Whether the row was unchanged between `version` and the lock that the caller holds.
    #[inline]
    pub(crate) fn was_still(self, version: Version) -> bool {
        debug_assert!(self.is_taken());
        version.0 & LOCKED == 0 && self.0.load(Ordering::Relaxed) == version.0 | LOCKED
    }

    /// Whether a thread holds the lock.
    pub(crate) fn is_taken(self) -> bool {
        self.0.load(Ordering::Relaxed) & LOCKED != 0
    }
}

impl<'t> Locked<'t> {
    #[inline]
    fn new(head: &'t AtomicU64) -> Self {
        // No change may be visible before the lock is.
        fence(Ordering::Release);
        Self { head }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let head = self.head.load(Ordering::Relaxed);
        let version = (head as u32 & !(LOCKED as u32)).wrapping_add(VERSION_STEP);
        self.head.store(head & !u64::from(u32::MAX) | u64::from(version), Ordering::Release);
    }
}
