//! The lock of one line: a sequence lock in the low half of a word.
//!
//! It is odd while somebody changes the line, and larger afterwards. Who only looks compares it before and after and writes nothing, so any
//! number of cores can refuse the same offender without taking the line from each other. Every word of a line is an atomic, so what
//! a reader sees in the middle of a change is wrong, never undefined, and is thrown away.

use crate::sync::{AtomicU64, Ordering, fence, wait_while};

const LOCKED: u64 = 1;
const VERSION_STEP: u32 = 2;

/// The lock of one line.
#[derive(Clone, Copy)]
pub(crate) struct Lock<'t> {
    head: &'t AtomicU64,
}

/// The lock's word as it was once seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// The right to change a line, until it is dropped.
pub(crate) struct Locked<'t> {
    head: &'t AtomicU64,
}

impl<'t> Lock<'t> {
    /// The lock in the low half of `head`.
    #[inline(always)]
    pub(crate) fn new(head: &'t AtomicU64) -> Self {
        Self { head }
    }

    /// What the lock says, to be compared later.
    #[inline(always)]
    pub(crate) fn version(self) -> Version {
        Version(self.head.load(Ordering::Acquire))
    }

    /// Whether all that was read since `version` was taken is what the line held at that time.
    #[inline]
    pub(crate) fn is_still(self, version: Version) -> bool {
        // The loads before this must not sink below the one after it.
        fence(Ordering::Acquire);
        version.0 & LOCKED == 0 && self.head.load(Ordering::Relaxed) == version.0
    }

    /// Takes the line if it is free and nobody has changed it since `version`.
    #[inline(always)]
    pub(crate) fn take_still(self, version: Version) -> Option<Locked<'t>> {
        let (free, taken) = (version.0 & !LOCKED, version.0 | LOCKED);
        self.head.compare_exchange(free, taken, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Locked::new(self.head))
    }

    /// Waits for the line to be free and takes it. Whoever holds it does so for some nanoseconds and never waits for anything but
    /// further lines, in one order for all.
    pub(crate) fn take(self) -> Locked<'t> {
        let mut seen = self.head.load(Ordering::Relaxed);
        loop {
            match self.head.compare_exchange(seen & !LOCKED, seen | LOCKED, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => seen = other,
            }
            if seen & LOCKED != 0 {
                wait_while(|| self.is_taken());
            }
        }
        Locked::new(self.head)
    }

    /// Whether nobody has changed the line between `version` and the lock that the caller holds now.
    #[inline]
    pub(crate) fn was_still(self, version: Version) -> bool {
        debug_assert!(self.is_taken());
        version.0 & LOCKED == 0 && self.head.load(Ordering::Relaxed) == version.0 | LOCKED
    }

    /// Whether somebody is changing the line.
    pub(crate) fn is_taken(self) -> bool {
        self.head.load(Ordering::Relaxed) & LOCKED != 0
    }
}

impl<'t> Locked<'t> {
    #[inline]
    fn new(head: &'t AtomicU64) -> Self {
        // No change may be seen before the lock is.
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
