//! Hashes of keys, which determine their rows in a [`crate::table`].
//!
//! Clients choose keys. With a hash that they could compute, or whose collisions do not depend on the seed,
//! they could choose keys that share a row with a victim and evict it. SipHash-1-3 with a random 128-bit seed
//! is a pseudorandom function: without the seed, an attacker can do no better than chance, even with
//! observations. It is the default. The fast hash saves 10 ns, a fifth of a decision, and has no known
//! precomputed collisions, but its authors do not promise that the seed stays secret from an attacker who can
//! observe for long.

use core::fmt;
use core::hash::Hasher;
use core::net::IpAddr;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use siphasher::sip::SipHasher13;
use tollgate_core::class::KeySink;
use tollgate_core::network::Network;

/// The hash function and its seed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seed {
    halves: [u64; 2],
    /// Whether the fast hash is used instead of SipHash.
    quick: bool,
}

impl Seed {
    /// An unpredictable seed that cannot be learned by observing keys.
    pub fn random() -> Self {
        Self { halves: [0, 1].map(|_| getrandom::u64().expect("the system has random numbers")), quick: false }
    }

    /// An unpredictable seed for the fast hash. It is for keys from trusted sources, such as account or
    /// device numbers, not for keys that clients choose. It does not support limiters with a master, which
    /// splits keys in another way.
    pub fn quick() -> Self {
        Self { quick: true, ..Self::random() }
    }

    /// A fixed seed, for reproducible runs in replays and tests.
    pub const fn fixed(seed: u64) -> Self {
        Self { halves: [seed, !seed], quick: false }
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Seed(secret)")
    }
}

/// The hash of a key in one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) u64);

impl KeyHash {
    /// The row of the key, of `rows` rows. The high bits decide, so any number of rows works.
    #[inline]
    pub(crate) const fn row(self, rows: u64) -> usize {
        ((self.0 as u128 * rows as u128) >> 64) as usize
    }

    /// The low bits, which distinguish the key from others in its row. Never zero, which marks an empty slot.
    #[inline]
    pub(crate) const fn fingerprint(self) -> u32 {
        let low = self.0 as u32;
        if low == 0 { 1 } else { low }
    }
}

/// Hashes the keys of one table.
pub(crate) enum KeyHasher {
    Sip(SipHasher13),
    /// The two seeds of the fast hash.
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

    /// The hash of a complete key. The length is often a compile-time constant at the call site, so this is
    /// inlined.
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

    /// A hasher for a key in several pieces. A key in one piece has the same hash as with [`Self::hash`].
    #[inline]
    pub(crate) fn pieces(&self) -> Pieces<'_> {
        let hasher = match self {
            Self::Sip(sip) => Either::Sip(*sip),
            Self::Quick(first, second) => Either::Quick(FoldHasher::with_seed(*first, second)),
        };
        Pieces { hasher, bytes: 0, part_bytes: 0, pending: None }
    }
}

/// The hash state of a key in pieces. Equal keys of one class have equal pieces.
pub(crate) struct Pieces<'s> {
    hasher: Either<'s>,
    /// The number of bytes written.
    pub(crate) bytes: u64,
    /// The number of bytes of the current part.
    part_bytes: u64,
    /// The length of a complete part, which is hashed only if another part follows. The key of a class with
    /// one part is then just its bytes, and keys of several parts are unambiguous.
    pending: Option<u64>,
}

/// The hasher of either function.
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
    /// The hash of all bytes written.
    #[inline]
    pub(crate) fn finish(&self) -> KeyHash {
        KeyHash(match &self.hasher {
            Either::Sip(sip) => sip.finish(),
            Either::Quick(quick) => quick.finish(),
        })
    }

    /// Separates the next part from the one before it, if there is one.
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
    fn a_byte_in_another_part_makes_another_key() {
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

    /// A fixed seed and fixed keys make the result reproducible.
    #[test]
    fn adjacent_keys_are_distributed_evenly() {
        for seed in seeds() {
            let hasher = KeyHasher::new(seed);
            let mut rows = [0_u32; 256];
            let mut fingerprints = [0_u32; 256];
            for number in 0..256_000_u64 {
                let hash = hasher.hash(&number.to_le_bytes());
                rows[hash.row(256)] += 1;
                fingerprints[hash.fingerprint() as usize % 256] += 1;
            }
            // The average is 1000 with a standard deviation of 32; the bounds are six of them.
            assert!(rows.iter().chain(&fingerprints).all(|count| (800..1_200).contains(count)));
        }
    }

    proptest! {
        #[test]
        fn a_key_in_one_piece_has_the_hash_of_the_whole(key in prop::collection::vec(any::<u8>(), 0..100)) {
            for seed in seeds() {
                prop_assert_eq!(hash_of(seed, &[&[&key]]), KeyHasher::new(seed).hash(&key));
            }
        }

        #[test]
        fn every_key_has_a_row_and_a_fingerprint(hash in any::<u64>(), rows in 1..1_u64 << 40) {
            prop_assert!((KeyHash(hash).row(rows) as u64) < rows);
            prop_assert!(KeyHash(hash).fingerprint() != 0);
        }
    }
}
