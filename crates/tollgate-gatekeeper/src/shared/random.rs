//! Chance, for jitter and for names that must differ between gates: not for secrets.

use core::hash::{BuildHasher, Hasher};
use std::collections::hash_map::RandomState;

/// Bits that nobody chose.
pub(super) fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// From 0 up to, and without, 1.
pub(super) fn fraction() -> f64 {
    (bits() >> 11) as f64 / (1_u64 << 53) as f64
}
