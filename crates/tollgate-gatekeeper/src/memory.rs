//! The memory of a [`crate::table`]: a fixed number of zeroed words, shared by threads.
//!
//! A zeroed vector would touch all its memory at once, on small pages, of which a large table needs more than
//! the TLB holds. On Linux the words are mapped instead: they use no memory until they are accessed, and huge
//! pages are requested. This is the only module with unsafe code.

#![allow(unsafe_code, reason = "memory mapping and prefetch hints need it")]

#[cfg(all(target_os = "linux", not(tollgate_model)))]
pub(crate) use mapped::MappedMemory as Memory;
#[cfg(not(all(target_os = "linux", not(tollgate_model))))]
pub(crate) use owned::OwnedMemory as Memory;

#[cfg(all(target_os = "linux", not(tollgate_model)))]
mod mapped {
    use core::ops::Deref;
    use core::ptr::{NonNull, null_mut};
    use std::sync::atomic::AtomicU64;

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    /// The size of a huge page in bytes.
    const HUGE_PAGE: usize = 2 << 20;

    /// Zero-initialized words that threads share.
    pub(crate) struct MappedMemory {
        /// The first word, at a boundary of huge pages if there are any.
        words: NonNull<AtomicU64>,
        /// The number of words.
        length: usize,
        /// The start of the mapping, at or before the first word.
        mapping: NonNull<core::ffi::c_void>,
        mapping_bytes: usize,
    }

    // SAFETY: this value owns the mapping, and it is accessed only as atomics.
    unsafe impl Send for MappedMemory {}
    // SAFETY: as above; atomics may be shared.
    unsafe impl Sync for MappedMemory {}

    impl MappedMemory {
        /// Allocates `length` zeroed words, at least one; `None` if the system does not provide them.
        pub(crate) fn zeroed(length: usize) -> Option<Self> {
            let bytes = length.checked_mul(size_of::<AtomicU64>())?;
            let huge = bytes >= HUGE_PAGE;
            let mapping_bytes = bytes.checked_add(if huge { HUGE_PAGE } else { 0 })?;
            // SAFETY: no address is requested, so no existing mapping is replaced.
            let mapping = unsafe {
                mmap_anonymous(null_mut(), mapping_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
            };
            let mapping = mapping.ok().and_then(NonNull::new)?;
            let skip = if huge { mapping.align_offset(HUGE_PAGE) } else { 0 };
            // SAFETY: the mapping is longer than `bytes` by a huge page, which is more than the distance to
            // its next boundary.
            let start = unsafe { mapping.byte_add(skip) };
            if huge {
                // Without huge pages the kernel uses small ones. SAFETY: the range is within the mapping, and
                // this is only advice.
                let _ = unsafe { madvise(start.as_ptr(), bytes, Advice::LinuxHugepage) };
            }
            Some(Self { words: start.cast(), length, mapping, mapping_bytes })
        }

        /// Prefetches the words at `index`.
        #[inline]
        pub(crate) fn prefetch(&self, index: usize) {
            #[cfg(target_arch = "x86_64")]
            if index < self.length {
                use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                // SAFETY: a hint for an address within the mapping.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.words.as_ptr().add(index).cast()) };
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _ = index;
        }
    }

    impl Deref for MappedMemory {
        type Target = [AtomicU64];

        #[inline]
        fn deref(&self) -> &[AtomicU64] {
            // SAFETY: the mapping holds `length` words, aligned to a page and zeroed by the kernel, and lives
            // as long as `self`.
            unsafe { core::slice::from_raw_parts(self.words.as_ptr(), self.length) }
        }
    }

    impl Drop for MappedMemory {
        fn drop(&mut self) {
            // SAFETY: this unmaps the whole mapping, and no reference outlives `self`. A failure leaves it
            // mapped, which is harmless.
            let _ = unsafe { munmap(self.mapping.as_ptr(), self.mapping_bytes) };
        }
    }
}

#[cfg(not(all(target_os = "linux", not(tollgate_model))))]
mod owned {
    use core::ops::Deref;

    use crate::sync::AtomicU64;

    /// Zero-initialized words that threads share.
    pub(crate) struct OwnedMemory(Box<[AtomicU64]>);

    impl OwnedMemory {
        /// Allocates `length` zeroed words; `None` if the system does not provide them.
        pub(crate) fn zeroed(length: usize) -> Option<Self> {
            let mut words = Vec::new();
            words.try_reserve_exact(length).ok()?;
            words.extend((0..length).map(|_| AtomicU64::new(0)));
            Some(Self(words.into_boxed_slice()))
        }

        /// Does nothing.
        pub(crate) fn prefetch(&self, _index: usize) {}
    }

    impl Deref for OwnedMemory {
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
    fn memory_is_zeroed_and_aligned() {
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
    fn too_large_a_size_is_an_error() {
        assert!(Memory::zeroed(usize::MAX / 8).is_none());
        assert!(Memory::zeroed(usize::MAX).is_none());
    }
}
