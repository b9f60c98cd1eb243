//! A fixed number of words, all zero, shared by threads, and never more.
//!
//! A vector of zeroes would be touched from end to end when it is made, on small pages, of which a large table needs more than the
//! processor can remember addresses for. So on Linux the words are mapped: they cost nothing until they are used, and huge pages are
//! asked for. This is the only module with unsafe code.

#![allow(unsafe_code, reason = "mapping memory and hinting the processor cannot be said otherwise")]

#[cfg(all(target_os = "linux", not(tollgate_model)))]
pub(crate) use mapped::Memory;
#[cfg(not(all(target_os = "linux", not(tollgate_model))))]
pub(crate) use owned::Memory;

use core::fmt;

/// The machine did not give as much memory as a table was to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory {
    /// How much was asked for.
    pub bytes: usize,
}

impl fmt::Display for NoMemory {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "this machine does not give {} bytes for a table", self.bytes)
    }
}

impl core::error::Error for NoMemory {}

#[cfg(all(target_os = "linux", not(tollgate_model)))]
mod mapped {
    use core::ops::Deref;
    use core::ptr::{NonNull, null_mut};
    use std::sync::atomic::AtomicU64;

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    use super::NoMemory;

    const HUGE_PAGE: usize = 2 << 20;

    /// Words that threads share, all zero at first.
    pub(crate) struct Memory {
        words: NonNull<AtomicU64>,
        length: usize,
        mapping: NonNull<core::ffi::c_void>,
        mapping_bytes: usize,
    }

    // SAFETY: the mapping is this value's alone, lives as long as it, and is only ever seen as atomics.
    unsafe impl Send for Memory {}
    // SAFETY: as above; atomics may be shared.
    unsafe impl Sync for Memory {}

    impl Memory {
        /// `length` zeroes.
        pub(crate) fn zeroed(length: usize) -> Result<Self, NoMemory> {
            let bytes = length.checked_mul(size_of::<AtomicU64>()).filter(|&bytes| bytes > 0);
            let Some(bytes) = bytes else { return Err(NoMemory { bytes: usize::MAX }) };
            let huge = bytes >= HUGE_PAGE;
            let Some(mapping_bytes) = bytes.checked_add(if huge { HUGE_PAGE } else { 0 }) else {
                return Err(NoMemory { bytes });
            };
            // SAFETY: no address is asked for, so no mapping that exists is replaced.
            let mapping = unsafe {
                mmap_anonymous(null_mut(), mapping_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
            };
            let mapping = mapping.ok().and_then(NonNull::new).ok_or(NoMemory { bytes })?;
            let skip = if huge { mapping.align_offset(HUGE_PAGE) } else { 0 };
            // SAFETY: the mapping is longer than `bytes` by a huge page, and so by more than the way to the next boundary of one.
            let start = unsafe { mapping.byte_add(skip) };
            if huge {
                // A machine without huge pages serves small ones. SAFETY: the range is within the mapping, and is only advised on.
                let _ = unsafe { madvise(start.as_ptr(), bytes, Advice::LinuxHugepage) };
            }
            Ok(Self { words: start.cast(), length, mapping, mapping_bytes })
        }

        /// Says that the words at `index` and after will be wanted soon.
        #[inline]
        pub(crate) fn prefetch(&self, index: usize) {
            #[cfg(target_arch = "x86_64")]
            if index < self.length {
                use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: a hint, and its address is within the mapping.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.words.as_ptr().add(index).cast()) };
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = index;
        }
    }

    impl Deref for Memory {
        type Target = [AtomicU64];

        #[inline]
        fn deref(&self) -> &[AtomicU64] {
            // SAFETY: the mapping holds `length` words, aligned to a page, zeroed by the system, and lives as long as `self`.
            unsafe { core::slice::from_raw_parts(self.words.as_ptr(), self.length) }
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: what is unmapped is what was mapped, and no reference outlives `self`. Failing, it stays mapped: harmless.
            let _ = unsafe { munmap(self.mapping.as_ptr(), self.mapping_bytes) };
        }
    }
}

#[cfg(not(all(target_os = "linux", not(tollgate_model))))]
mod owned {
    use core::ops::Deref;

    use super::NoMemory;
    use crate::sync::AtomicU64;

    /// Words that threads share, all zero at first.
    pub(crate) struct Memory(Box<[AtomicU64]>);

    impl Memory {
        /// `length` zeroes.
        pub(crate) fn zeroed(length: usize) -> Result<Self, NoMemory> {
            let mut words = Vec::new();
            words
                .try_reserve_exact(length)
                .map_err(|_| NoMemory { bytes: length.saturating_mul(size_of::<AtomicU64>()) })?;
            words.extend((0..length).map(|_| AtomicU64::new(0)));
            Ok(Self(words.into_boxed_slice()))
        }

        /// Says that the words at `index` and after will be wanted soon.
        pub(crate) fn prefetch(&self, _index: usize) {}
    }

    impl Deref for Memory {
        type Target = [AtomicU64];

        fn deref(&self) -> &[AtomicU64] {
            &self.0
        }
    }
}

#[cfg(all(test, not(tollgate_model)))]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_a_line_is_never_split_over_pages() {
        for length in [1, 16, 4096, 600_000] {
            let memory = Memory::zeroed(length).unwrap();
            assert_eq!(memory.len(), length);
            assert!(memory.iter().all(|word| word.load(crate::sync::Ordering::Relaxed) == 0));
            assert_eq!(memory.as_ptr().addr() % 128, 0);
            memory.prefetch(0);
            memory.prefetch(length);
        }
    }

    #[test]
    fn more_than_there_is_is_an_answer_and_not_a_crash() {
        assert!(Memory::zeroed(usize::MAX / 8).is_err());
        assert!(Memory::zeroed(usize::MAX).is_err());
    }
}
