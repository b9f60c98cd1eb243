//! Names that are too long to be kept whole.
//!
//! Two names that are only cut become one: two accounts then share a flag, and a client that appends bytes to its name hides behind another. So
//! a digest takes the place of what is cut off. It is the same in every process, since gates and masters must call a key by one name, and a cut
//! name has a length that no other name has, so that nobody can take the cut name of another for its own.

use core::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

/// How many bytes the digest takes: a tilde, and 128 bits in hexadecimal digits.
pub const DIGEST_BYTES: usize = 33;

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// What is cut off a name, as far as it has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tail(SipHasher24);

impl Tail {
    /// Adds what is cut off.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// What takes its place.
    pub(crate) fn digest(&self) -> [u8; DIGEST_BYTES] {
        let digest = self.0.finish128().as_u128();
        core::array::from_fn(|place| match place {
            0 => b'~',
            _ => DIGITS[(digest >> (4 * (DIGEST_BYTES - 1 - place)) & 15) as usize],
        })
    }
}

/// Writes into `name`, which has `length` bytes, what fits of `bytes`. A name that fills `name` is cut: `tail` then has what is cut off. To be
/// ended with [`finish`].
pub(crate) fn push(name: &mut [u8], length: &mut usize, tail: &mut Option<Tail>, bytes: &[u8]) {
    let fits = bytes.len().min(name.len() - *length);
    name[*length..*length + fits].copy_from_slice(&bytes[..fits]);
    *length += fits;
    if *length == name.len() {
        let kept = name.len() - DIGEST_BYTES;
        let tail = tail.get_or_insert_with(|| {
            let mut tail = Tail::default();
            tail.write(&name[kept..]);
            tail
        });
        tail.write(&bytes[fits..]);
    }
}

/// Puts the digest of what was cut off into its place.
pub(crate) fn finish(name: &mut [u8], tail: &Option<Tail>) {
    if let Some(tail) = tail {
        let kept = name.len() - DIGEST_BYTES;
        name[kept..].copy_from_slice(&tail.digest());
    }
}

/// Whether `name`, where names have less than `bytes_max` bytes, is one that was cut.
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
        fn a_name_is_cut_alike_in_whatever_pieces_it_comes(
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
        fn names_that_differ_only_after_the_cut_stay_two(
            begin in prop::collection::vec(any::<u8>(), MAX), one in any::<[u8; 4]>(), other in any::<[u8; 4]>(),
        ) {
            prop_assume!(one != other);
            prop_assert_ne!(cut(&[&begin, &one]), cut(&[&begin, &other]));
            prop_assert_ne!(cut(&[&begin]), cut(&[&begin, &one]));
        }

        #[test]
        fn nobody_has_the_cut_name_of_another(name in prop::collection::vec(any::<u8>(), MAX..200)) {
            let cut_once = cut(&[&name]);
            prop_assert_ne!(cut(&[&cut_once]), cut_once);
        }
    }

    /// Gates and masters of different versions call a key by one name.
    #[test]
    fn a_digest_stays_what_it_is() {
        assert_eq!(
            cut(&[&[b'x'; 100]]),
            format!("{}~{}", "x".repeat(31), "f4f6a9bd64987c58a574bef315f710d6").into_bytes()
        );
    }
}
