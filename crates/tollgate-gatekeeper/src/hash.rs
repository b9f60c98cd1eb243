//! From a key to where it is kept.
//!
//! Keys are chosen by strangers. With a hash that they could compute, or whose collisions do not depend on the seed, they would choose
//! keys that share a line with a victim and push it out. SipHash-1-3 with a seed of 128 random bits is a pseudorandom function:
//! who does not know the seed can do no better than chance, even by watching. It costs 4 to 7 ns more than the fast hashes, whose
//! authors do not promise that.

use core::fmt;
use core::hash::Hasher;
use core::net::IpAddr;
use std::hash::{BuildHasher, RandomState};

use siphasher::sip::SipHasher13;
use tollgate_core::class::KeySink;
use tollgate_core::network::Network;

/// What makes one table's hashes different from any other's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed([u64; 2]);

impl Seed {
    /// A seed that nobody can guess.
    pub fn random() -> Self {
        // Each `RandomState` is keyed by the system's random numbers, and hashing under an unknown key tells nothing of it.
        Self([0_u64, 1].map(|half| RandomState::new().hash_one(half)))
    }

    /// The same seed every time, where the same run must come out the same: replays and tests.
    pub const fn fixed(seed: u64) -> Self {
        Self([seed, !seed])
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Seed(secret)")
    }
}

/// A key's hash in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// Which of `lines` the key belongs to: the high bits decide, and any number of lines will do.
    #[inline]
    pub(crate) const fn line(self, lines: u64) -> usize {
        ((self.0 as u128 * lines as u128) >> 64) as usize
    }

    /// What tells the key from others in its line: the low bits. Never zero, which marks an empty slot.
    #[inline]
    pub(crate) const fn fingerprint(self) -> u32 {
        let low = self.0 as u32;
        if low == 0 { 1 } else { low }
    }
}

/// Hashes keys, whole or piece by piece.
#[derive(Clone, Copy)]
pub(crate) struct KeyHasher {
    sip: SipHasher13,
    part_bytes: u64,
    /// The length of a part that is complete, hashed only if another part follows: so that the key of a class with one part is
    /// simply its bytes, and no two keys of several parts run into each other.
    pending: Option<u64>,
}

impl KeyHasher {
    pub(crate) fn new(Seed([k0, k1]): Seed) -> Self {
        Self { sip: SipHasher13::new_with_keys(k0, k1), part_bytes: 0, pending: None }
    }

    /// The hash of a key that is at hand as a whole.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(self.sip.hash(key))
    }

    /// The hash of all that was written.
    #[inline]
    pub(crate) fn finish(&self) -> KeyHash {
        KeyHash(self.sip.finish())
    }

    #[inline]
    fn begin(&mut self) {
        if let Some(bytes) = self.pending.take() {
            self.sip.write_u64(bytes);
        }
    }
}

impl KeySink for KeyHasher {
    #[inline]
    fn network(&mut self, network: Network) {
        match network.address() {
            IpAddr::V4(v4) => self.write(&v4.octets()),
            IpAddr::V6(v6) => self.write(&v6.octets()),
        }
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        self.begin();
        self.sip.write(bytes);
        self.part_bytes += bytes.len() as u64;
    }

    #[inline]
    fn end_part(&mut self) {
        self.begin();
        self.pending = Some(self.part_bytes);
        self.part_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hash_of(parts: &[&[&[u8]]]) -> KeyHash {
        let mut hasher = KeyHasher::new(Seed::fixed(7));
        for part in parts {
            part.iter().for_each(|piece| hasher.write(piece));
            hasher.end_part();
        }
        hasher.finish()
    }

    #[test]
    fn bytes_that_move_from_one_part_to_the_next_make_another_key() {
        assert_ne!(hash_of(&[&[b"ab"], &[b"c"]]), hash_of(&[&[b"a"], &[b"bc"]]));
        assert_ne!(hash_of(&[&[b""], &[b"abc"]]), hash_of(&[&[b"abc"], &[b""]]));
        assert_ne!(hash_of(&[&[], &[b"a"]]), hash_of(&[&[b"a"], &[]]));
    }

    #[test]
    fn every_process_hashes_differently() {
        assert!(Seed::random() != Seed::random());
        assert_eq!(format!("{:?}", Seed::random()), "Seed(secret)");
    }

    proptest! {
        #[test]
        fn a_key_hashes_the_same_whole_or_in_pieces(key in prop::collection::vec(any::<u8>(), 0..100), cut in 0..100_usize) {
            let (left, right) = key.split_at(cut.min(key.len()));
            let whole = KeyHasher::new(Seed::fixed(7)).hash(&key);
            prop_assert_eq!(hash_of(&[&[left, right]]), whole);
        }

        #[test]
        fn every_key_has_a_line_and_a_fingerprint(hash in any::<u64>(), lines in 1..1_u64 << 40) {
            prop_assert!((KeyHash(hash).line(lines) as u64) < lines);
            prop_assert!(KeyHash(hash).fingerprint() != 0);
        }
    }
}
