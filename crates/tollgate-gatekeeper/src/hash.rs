//! From a key to where it is kept.
//!
//! Keys are chosen by strangers. With a hash that they could compute, or whose collisions do not depend on the seed, they would choose
//! keys that share a line with a victim and push it out. SipHash-1-3 with a seed of 128 random bits is a pseudorandom function:
//! who does not know the seed can do no better than chance, even by watching, so that is what a limiter uses unless it is told
//! otherwise. The fast hashes cost 10 ns less, a fifth of a whole decision, and nobody can prepare collisions for them either; but their
//! authors do not promise that the seed stays unknown to who can try and watch for long.

use core::fmt;
use core::hash::Hasher;
use core::net::IpAddr;
use std::hash::{BuildHasher, RandomState};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use siphasher::sip::SipHasher13;
use tollgate_core::class::KeySink;
use tollgate_core::network::Network;

/// How keys are hashed, and what makes one table's hashes different from any other's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed {
    halves: [u64; 2],
    quick: bool,
}

impl Seed {
    /// A seed that nobody can guess, or learn by trying keys and watching what happens to them.
    pub fn random() -> Self {
        // Each `RandomState` is keyed by the system's random numbers, and hashing under an unknown key tells nothing of it.
        Self { halves: [0_u64, 1].map(|half| RandomState::new().hash_one(half)), quick: false }
    }

    /// A seed that nobody can guess, for the quicker hash: where keys come from one's own books, such as numbers of accounts or of
    /// devices, and not from whoever sends a request. Not for limiters that obey a master, who names keys in other pieces.
    pub fn quick() -> Self {
        Self { quick: true, ..Self::random() }
    }

    /// The same seed every time, where the same run must come out the same: replays and tests.
    pub const fn fixed(seed: u64) -> Self {
        Self { halves: [seed, !seed], quick: false }
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

/// Hashes the keys of one table.
pub(crate) enum KeyHasher {
    Sip(SipHasher13),
    Quick(u64, SharedSeed),
}

impl KeyHasher {
    pub(crate) fn new(Seed { halves: [first, second], quick }: Seed) -> Self {
        if quick {
            Self::Quick(first, SharedSeed::from_u64(second))
        } else {
            Self::Sip(SipHasher13::new_with_keys(first, second))
        }
    }

    /// The hash of a key that is at hand as a whole. Where it is called the length of the key is often known, and then so is the way through.
    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        KeyHash(match self {
            Self::Sip(sip) => sip.hash(key),
            Self::Quick(first, second) => {
                let mut hasher = FoldHasher::with_seed(*first, second);
                hasher.write(key);
                hasher.finish()
            }
        })
    }

    /// For a key that comes piece by piece. A key of one piece hashes as it does as a whole.
    #[inline]
    pub(crate) fn pieces(&self) -> Pieces<'_> {
        let hasher = match self {
            Self::Sip(sip) => Either::Sip(*sip),
            Self::Quick(first, second) => Either::Quick(FoldHasher::with_seed(*first, second)),
        };
        Pieces { hasher, bytes: 0, part_bytes: 0, pending: None }
    }
}

/// A key that comes piece by piece. Equal keys of one class come in equal pieces.
pub(crate) struct Pieces<'s> {
    hasher: Either<'s>,
    bytes: u64,
    part_bytes: u64,
    /// The length of a part that is complete, hashed only if another part follows: so that the key of a class with one part is
    /// simply its bytes, and no two keys of several parts run into each other.
    pending: Option<u64>,
}

enum Either<'s> {
    Sip(SipHasher13),
    Quick(FoldHasher<'s>),
}

impl Either<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        match self {
            Self::Sip(sip) => sip.write(bytes),
            Self::Quick(quick) => quick.write(bytes),
        }
    }
}

impl Pieces<'_> {
    /// The hash of all that was written.
    #[inline]
    pub(crate) fn finish(&self) -> KeyHash {
        KeyHash(match &self.hasher {
            Either::Sip(sip) => sip.finish(),
            Either::Quick(quick) => quick.finish(),
        })
    }

    /// How many bytes were written.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    #[inline]
    fn begin(&mut self) {
        if let Some(bytes) = self.pending.take() {
            self.hasher.write(&bytes.to_le_bytes());
        }
    }
}

impl KeySink for Pieces<'_> {
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
        self.hasher.write(bytes);
        self.part_bytes += bytes.len() as u64;
        self.bytes += bytes.len() as u64;
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

    fn seeds() -> [Seed; 2] {
        [Seed::fixed(7), Seed { quick: true, ..Seed::fixed(7) }]
    }

    fn hash_of(seed: Seed, parts: &[&[&[u8]]]) -> KeyHash {
        let hasher = KeyHasher::new(seed);
        let mut pieces = hasher.pieces();
        for part in parts {
            part.iter().for_each(|piece| pieces.write(piece));
            pieces.end_part();
        }
        pieces.finish()
    }

    #[test]
    fn bytes_that_move_from_one_part_to_the_next_make_another_key() {
        for seed in seeds() {
            assert_ne!(hash_of(seed, &[&[b"ab"], &[b"c"]]), hash_of(seed, &[&[b"a"], &[b"bc"]]));
            assert_ne!(hash_of(seed, &[&[b""], &[b"abc"]]), hash_of(seed, &[&[b"abc"], &[b""]]));
            assert_ne!(hash_of(seed, &[&[], &[b"a"]]), hash_of(seed, &[&[b"a"], &[]]));
        }
    }

    #[test]
    fn every_process_hashes_differently() {
        for (one, other) in [(Seed::random(), Seed::random()), (Seed::quick(), Seed::quick())] {
            assert!(KeyHasher::new(one).hash(b"key") != KeyHasher::new(other).hash(b"key"));
            assert_eq!(format!("{one:?}"), "Seed(secret)");
        }
    }

    /// Counted in fixed keys of a fixed seed, so that it comes out the same every time.
    #[test]
    fn neighbouring_keys_fill_lines_and_fingerprints_evenly() {
        for seed in seeds() {
            let hasher = KeyHasher::new(seed);
            let mut lines = [0_u32; 256];
            let mut fingerprints = [0_u32; 256];
            for number in 0..256_000_u64 {
                let hash = hasher.hash(&number.to_le_bytes());
                lines[hash.line(256)] += 1;
                fingerprints[hash.fingerprint() as usize % 256] += 1;
            }
            // A thousand each on average, with a deviation of 32: six of them on either side.
            assert!(lines.iter().chain(&fingerprints).all(|count| (800..1_200).contains(count)));
        }
    }

    proptest! {
        #[test]
        fn a_key_of_one_piece_hashes_as_it_does_as_a_whole(key in prop::collection::vec(any::<u8>(), 0..100)) {
            for seed in seeds() {
                prop_assert_eq!(hash_of(seed, &[&[&key]]), KeyHasher::new(seed).hash(&key));
            }
        }

        #[test]
        fn every_key_has_a_line_and_a_fingerprint(hash in any::<u64>(), lines in 1..1_u64 << 40) {
            prop_assert!((KeyHash(hash).line(lines) as u64) < lines);
            prop_assert!(KeyHash(hash).fingerprint() != 0);
        }
    }
}
