//! Which accounts are flagged, for rules that look at it: asked at every request, changed a few times a day.
//!
//! A lock around a set of names would be taken by every request. So this is a table of atomic words, one for each flag, that is read without
//! a lock and written by the watch alone, which has one. A word is the hash of a name under a secret that changes with every start, so a stranger
//! can find no second name for it. While a flag is taken off, others move up to close the gap, and one of them may for a moment not be found: a
//! flag is a mark for people and for rules that go easy on it, and nobody is let in or kept out for good by one request.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::feed::NAME_BYTES_MAX;
use super::legible::write_legible;

/// How many words there are: more than twice as many as there can be flags.
const PLACES: usize = 1 << 18;
const EMPTY: u64 = 0;

/// The accounts that are flagged.
#[derive(Default)]
pub(crate) struct Flagged {
    hasher: RandomState,
    /// Made with the first flag.
    places: OnceLock<Box<[AtomicU64]>>,
    count: AtomicUsize,
}

impl Flagged {
    /// Whether nobody is.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Whether the account of this name is, as its name comes with requests.
    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        let Some(places) = self.places.get() else { return false };
        find(places, self.word_of_name(name)).is_ok()
    }

    /// Marks an account. Only one thread may change this at a time.
    pub(super) fn insert(&self, account: &str) {
        let places = self.places.get_or_init(|| (0..PLACES).map(|_| AtomicU64::new(EMPTY)).collect());
        let word = self.word(account);
        if let Err(free) = find(places, word)
            && self.count.load(Ordering::Relaxed) < places.len() / 2
        {
            places[free].store(word, Ordering::Relaxed);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the mark off. Only one thread may change this at a time.
    pub(super) fn remove(&self, account: &str) {
        let Some(places) = self.places.get() else { return };
        let Ok(mut gap) = find(places, self.word(account)) else { return };
        self.count.fetch_sub(1, Ordering::Relaxed);
        // Whoever had to go past the gap to find a place moves into it, so that it is found from where its search begins.
        let mut place = gap;
        loop {
            place = (place + 1) % places.len();
            let word = places[place].load(Ordering::Relaxed);
            if word == EMPTY {
                break;
            }
            let way = |from: usize, to: usize| (to + places.len() - from) % places.len();
            if way(home(places, word), place) >= way(gap, place) {
                places[gap].store(word, Ordering::Relaxed);
                gap = place;
            }
        }
        places[gap].store(EMPTY, Ordering::Relaxed);
    }

    /// What stands for an account, as the watch knows it.
    fn word(&self, account: &str) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(account.as_bytes());
        hasher.finish().max(1)
    }

    /// The same for a name as it comes. The watch knows names as text, cut and with what is no text written out: so it is hashed.
    fn word_of_name(&self, name: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        write_legible(&name[..name.len().min(NAME_BYTES_MAX)], |piece| hasher.write(piece));
        hasher.finish().max(1)
    }
}

/// Where the search for a word begins.
fn home(places: &[AtomicU64], word: u64) -> usize {
    (word >> 32) as usize % places.len()
}

/// Where a word is, or else where it would be put.
fn find(places: &[AtomicU64], word: u64) -> Result<usize, usize> {
    let mut place = home(places, word);
    // Half of the places are empty, so this ends; a table that is changed meanwhile is gone round once at most.
    for _ in 0..places.len() {
        match places[place].load(Ordering::Relaxed) {
            EMPTY => break,
            found if found == word => return Ok(place),
            _ => place = (place + 1) % places.len(),
        }
    }
    Err(place)
}

#[cfg(test)]
mod tests {
    use super::super::legible;
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    proptest! {
        #[test]
        fn a_name_is_found_as_it_comes_with_requests(name in prop::collection::vec(any::<u8>(), 0..300)) {
            let flagged = Flagged::default();
            prop_assert!(flagged.is_empty() && !flagged.contains(&name));
            let account = legible(&name[..name.len().min(NAME_BYTES_MAX)]);
            flagged.insert(&account);
            prop_assert!(flagged.contains(&name) && !flagged.is_empty());
            flagged.remove(&account);
            prop_assert!(flagged.is_empty() && !flagged.contains(&name));
        }
    }

    /// So few places that searches go round the end, and many begin at the same place.
    #[test]
    fn it_is_a_set_whatever_is_put_in_and_taken_out() {
        let few: Box<[AtomicU64]> = (0..64).map(|_| AtomicU64::new(EMPTY)).collect();
        let flagged = Flagged { places: OnceLock::from(few), ..Flagged::default() };
        let (mut model, mut random) = (HashSet::new(), 7_u64);
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let account = ((random >> 33) % 40).to_string();
            if model.contains(&account) || step % 2 == 0 {
                flagged.remove(&account);
                model.remove(&account);
            } else if model.len() < 32 {
                flagged.insert(&account);
                model.insert(account);
            }
            assert_eq!(flagged.count.load(Ordering::Relaxed), model.len());
            for account in (0..40).map(|number: u32| number.to_string()) {
                assert_eq!(flagged.contains(account.as_bytes()), model.contains(&account), "{account} at {step}");
            }
        }
        model.drain().for_each(|account| flagged.remove(&account));
        assert!(flagged.places.get().unwrap().iter().all(|place| place.load(Ordering::Relaxed) == EMPTY));
    }

    #[test]
    fn it_is_bounded() {
        let few: Box<[AtomicU64]> = (0..64).map(|_| AtomicU64::new(EMPTY)).collect();
        let flagged = Flagged { places: OnceLock::from(few), ..Flagged::default() };
        (0..100).for_each(|number| flagged.insert(&number.to_string()));
        assert_eq!((0..100).filter(|number: &u32| flagged.contains(number.to_string().as_bytes())).count(), 32);
    }
}
