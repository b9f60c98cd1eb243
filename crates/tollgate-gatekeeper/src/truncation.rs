//! Truncation of names that are too long to store: the names of throttled callers, and the identifiers of keys in
//! messages to masters.
//!
//! Plain truncation maps different names to one: two accounts would share a flag, and a client that appends
//! bytes to its name could hide behind another. The truncated part is therefore replaced by a digest. The
//! digest is the same in every process, because gates and masters must use the same name for a key. A
//! truncated name has a length that no other name has, so no client can take another's truncated name.

use core::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// The length of the digest in bytes: a tilde and 128 bits in hexadecimal.
pub const DIGEST_BYTES: usize = 33;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// The truncated part so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail(SipHasher24);

impl Tail {
    /// A truncated part that starts with these bytes.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let mut tail = Self(SipHasher24::default());
        tail.write(bytes);
        tail
    }

    /// Adds bytes to the truncated part.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The digest that replaces it.
    pub(crate) fn digest(&self) -> [u8; DIGEST_BYTES] {
        let digest = self.0.finish128().as_u128();
        core::array::from_fn(|place| match place {
            0 => b'~',
            _ => DIGITS[(digest >> (4 * (DIGEST_BYTES - 1 - place)) & 15) as usize],
        })
    }
}

/// Appends `bytes` to `name`, which has `length` bytes, as far as they fit. A name that fills the buffer is
/// truncated, and `tail` has the truncated part. [`finish`] must be called at the end.
pub(crate) fn push(name: &mut [u8], length: &mut usize, tail: &mut Option<Tail>, bytes: &[u8]) {
    let fits = bytes.len().min(name.len() - *length);
    name[*length..*length + fits].copy_from_slice(&bytes[..fits]);
    *length += fits;
    if *length == name.len() {
        let kept = name.len() - DIGEST_BYTES;
        tail.get_or_insert_with(|| Tail::new(&name[kept..])).write(&bytes[fits..]);
    }
}

/// Writes the digest of the truncated part.
pub(crate) fn finish(name: &mut [u8], tail: &Option<Tail>) {
    if let Some(tail) = tail {
        let kept = name.len() - DIGEST_BYTES;
        name[kept..].copy_from_slice(&tail.digest());
    }
}

/// Whether `name` is a truncated one, if other names have less than `bytes_max` bytes.
pub fn is_cut(name: &[u8], bytes_max: usize) -> bool {
    let digits = |digits: &[u8]| digits.iter().all(|digit| DIGITS.contains(digit));
    name.len() == bytes_max && name[bytes_max - DIGEST_BYTES] == b'~' && digits(&name[bytes_max - DIGEST_BYTES + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: usize = 64;

    fn cut(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut name, mut length, mut tail) = ([0; MAX], 0, None);
        pieces.iter().for_each(|piece| push(&mut name, &mut length, &mut tail, piece));
        finish(&mut name, &tail);
        name[..length].to_vec()
    }

    proptest! {
        #[test]
        fn a_name_is_truncated_the_same_in_any_pieces(
            name in prop::collection::vec(any::<u8>(), 0..200), ends in prop::collection::vec(0..200_usize, 0..6),
        ) {
            let mut ends: Vec<_> = ends.into_iter().map(|end| end.min(name.len())).chain([0, name.len()]).collect();
            ends.sort_unstable();
            let pieces: Vec<_> = ends.windows(2).map(|ends| &name[ends[0]..ends[1]]).collect();
            let whole = cut(&[&name]);
            prop_assert_eq!(cut(&pieces), whole.clone());
            prop_assert_eq!(is_cut(&whole, MAX), name.len() >= MAX);
            prop_assert!(name.len() >= MAX || whole == name);
        }

        #[test]
        fn names_that_differ_only_after_truncation_stay_distinct(
            begin in prop::collection::vec(any::<u8>(), MAX), one in any::<[u8; 4]>(), other in any::<[u8; 4]>(),
        ) {
            prop_assume!(one != other);
            prop_assert_ne!(cut(&[&begin, &one]), cut(&[&begin, &other]));
            prop_assert_ne!(cut(&[&begin]), cut(&[&begin, &one]));
        }

        #[test]
        fn no_other_name_equals_a_truncated_one(name in prop::collection::vec(any::<u8>(), MAX..200)) {
            let cut_once = cut(&[&name]);
            prop_assert_ne!(cut(&[&cut_once]), cut_once);
        }
    }

    /// Gates and masters of different versions must agree on names.
    #[test]
    fn a_digest_never_changes() {
        assert_eq!(
            cut(&[&[b'x'; 100]]),
            format!("{}~{}", "x".repeat(31), "f4f6a9bd64987c58a574bef315f710d6").into_bytes()
        );
    }
}
