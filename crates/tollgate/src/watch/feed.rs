//! Refusals on their way from the workers of a gate to the watch.
//!
//! Whoever refuses a request must not wait for whoever writes about it. So a worker counts refusals in a book of its own, which is exchanged for an
//! empty one once a second. That exchange is all that the book's lock is ever waited for. A request that is let in does not come here at all.
//!
//! What is made of a book afterwards costs by the caller, not by the refusal: each is looked up, counted and written to disk. When thousands are refused they are
//! mostly the same thousands in the next second. So their refusals are gathered for a few seconds then ([`Feed::is_due`]), unless a book fills up.
//!
//! A book is read as a whole and then empty as a whole, so it needs neither a place in memory for each name nor a way to take one out: it is a table of
//! 16 bytes a caller, and all names in one string. Callers are told apart by a hash of 64 bits under a secret of this process: comparing names,
//! which lie somewhere else in memory, took as long as everything else together. Books are bounded; what has no place is counted.

use std::hash::BuildHasher;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;

use super::legible::legible;
use super::record::Entry;
use crate::per_thread::PerThread;

/// How many callers a book tells apart.
const CALLERS_MAX: usize = 32_768;
/// How many bytes the names in a book may have.
const BOOK_BYTES_MAX: usize = 2 << 20;
/// So many callers are many: their refusals are gathered for longer.
const MANY: usize = 2048;
/// How often the refusals of many are left where they are before they are taken: seconds, as this is asked once in each.
const TURNS_MAX: u32 = 4;
/// How many refusals are written down together.
const TOGETHER: usize = 16;
/// How many places a book has as soon as it has any. A power of two, as all its lengths are.
const PLACES_MIN: usize = 256;
/// Longer classes are cut. Keys come as names, of which none is longer.
pub(crate) use tollgate_gatekeeper::names::NAME_BYTES_MAX;

/// Where gates leave refusals.
#[derive(Default)]
pub(crate) struct Feed {
    hasher: RandomState,
    books: PerThread<Book>,
    /// Books that were read, to be written to next.
    read: Mutex<Vec<Book>>,
    dropped: AtomicU64,
    /// How many callers there were when refusals were last taken, and how often it was asked since then whether they are to be.
    callers_last: AtomicUsize,
    turns: AtomicU32,
}

/// Refusals that were left with one worker.
#[derive(Default)]
struct Book {
    /// By hash; who finds its place taken has the next free one. At most three quarters are taken.
    places: Vec<Place>,
    callers: usize,
    /// For each caller the length of its class, that of its key, the class, the key.
    names: Vec<u8>,
    /// Refusals that are not counted yet, and the names of their callers in the same form.
    slips: Vec<Slip>,
    slip_names: Vec<u8>,
}

/// A refusal that is not counted yet.
#[derive(Clone, Copy)]
struct Slip {
    hash: u64,
    /// Where its caller's name begins, which is only read if that is new.
    name: u32,
}

/// What was left of one caller. Nobody, while nothing is counted.
#[derive(Clone, Copy, Default)]
struct Place {
    hash: u64,
    count: u32,
    /// Where its name begins.
    name: u32,
}

/// Everything that was left until now. Gone when this is dropped.
pub(crate) struct Taken<'a>(MutexGuard<'a, Vec<Book>>);

impl Feed {
    /// A request of this caller was refused.
    pub(crate) fn refused(&self, class: &str, key: &[u8]) {
        let class = &class.as_bytes()[..class.len().min(NAME_BYTES_MAX)];
        let key = &key[..key.len().min(NAME_BYTES_MAX)];
        let hash = self.hasher.hash_one((class, key));
        let dropped = self.books.own().note(hash, class, key);
        self.drop(dropped);
    }

    fn drop(&self, refusals: u64) {
        if refusals > 0 {
            self.dropped.fetch_add(refusals, Ordering::Relaxed);
        }
    }

    /// Whether there is reason to take refusals out now. To be asked once a second.
    pub(crate) fn is_due(&self) -> bool {
        let turns = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        turns >= TURNS_MAX
            || self.callers_last.load(Ordering::Relaxed) < MANY
            || self.books.all().any(|book| book.is_filling_up())
    }

    /// Takes everything out.
    pub(crate) fn take(&self) -> Taken<'_> {
        let mut taken = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        for (place, mut book) in self.books.all().enumerate() {
            if taken.len() <= place {
                taken.push(Book::default());
            }
            if !book.is_empty() {
                std::mem::swap(&mut *book, &mut taken[place]);
            }
            drop(book);
            self.drop(taken[place].settle());
        }
        self.callers_last.store(taken.iter().map(|book| book.callers).sum(), Ordering::Relaxed);
        self.turns.store(0, Ordering::Relaxed);
        Taken(taken)
    }

    /// How many refusals had no place.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Taken<'_> {
    /// The same as others report it. Whoever was refused by several workers comes several times.
    pub(super) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.0.iter().flat_map(Book::entries)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.iter_mut().filter(|book| !book.is_empty()).for_each(Book::clear);
    }
}

impl Book {
    fn is_empty(&self) -> bool {
        self.callers == 0 && self.slips.is_empty()
    }

    /// Whether there might not be room for all who come within a second.
    fn is_filling_up(&self) -> bool {
        self.callers > CALLERS_MAX / 2 || self.names.len() > BOOK_BYTES_MAX / 2
    }

    /// Takes a refusal in, and says how many had no place.
    #[inline]
    fn note(&mut self, hash: u64, class: &[u8], key: &[u8]) -> u64 {
        self.slips.push(Slip { hash, name: self.slip_names.len() as u32 });
        write_name(&mut self.slip_names, class, key);
        if self.slips.len() < TOGETHER { 0 } else { self.settle() }
    }

    /// Counts what was noted, and says how many had no place.
    ///
    /// With many callers the place of each is in memory that the processor does not have at hand, and to wait for it takes longer than everything else
    /// here. So all are asked for first, and then waited for together.
    fn settle(&mut self) -> u64 {
        let mask = self.places.len().wrapping_sub(1);
        let asked_for = self.slips.iter().filter_map(|slip| self.places.get(slip.hash as usize & mask));
        black_box(asked_for.fold(0, |all, place| all ^ place.count));
        let (slips, names) = (std::mem::take(&mut self.slips), std::mem::take(&mut self.slip_names));
        let mut dropped = 0;
        for &Slip { hash, name } in &slips {
            if !self.count(hash) {
                let (class, key) = read_name(&names[name as usize..]);
                dropped += u64::from(!self.insert(hash, class, key));
            }
        }
        (self.slips, self.slip_names) = (slips, names);
        self.slips.clear();
        self.slip_names.clear();
        dropped
    }

    /// Counts a refusal of a caller who is known; false when it is not.
    #[inline]
    fn count(&mut self, hash: u64) -> bool {
        let Some(place) = self.find(hash).map(|at| &mut self.places[at]).filter(|place| place.count > 0) else {
            return false;
        };
        place.count = place.count.saturating_add(1);
        true
    }

    /// Where the caller is, or would be.
    #[inline]
    fn find(&self, hash: u64) -> Option<usize> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        while self.places[at].count > 0 && self.places[at].hash != hash {
            at = (at + 1) & mask;
        }
        Some(at)
    }

    /// Takes a caller in who is new; false when there is no place.
    #[cold]
    fn insert(&mut self, hash: u64, class: &[u8], key: &[u8]) -> bool {
        if self.callers == CALLERS_MAX || self.names.len() + 2 + class.len() + key.len() > BOOK_BYTES_MAX {
            return false;
        }
        if self.callers * 4 >= self.places.len() * 3 {
            self.grow();
        }
        let Some(at) = self.find(hash) else { return false };
        self.places[at] = Place { hash, count: 1, name: self.names.len() as u32 };
        write_name(&mut self.names, class, key);
        self.callers += 1;
        true
    }

    fn grow(&mut self) {
        let length = (self.places.len() * 2).max(PLACES_MIN);
        let before = std::mem::replace(&mut self.places, vec![Place::default(); length]);
        for place in before.into_iter().filter(|place| place.count > 0) {
            let Some(at) = self.find(place.hash) else { continue };
            self.places[at] = place;
        }
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.places.iter().filter(|place| place.count > 0).map(|place| {
            let (class, key) = read_name(&self.names[place.name as usize..]);
            Entry { class: legible(class), key: legible(key), count: place.count.into() }
        })
    }

    /// Forgets everybody, and keeps the memory: whoever was refused is likely to be refused again.
    fn clear(&mut self) {
        self.places.fill(Place::default());
        self.names.clear();
        self.callers = 0;
    }
}

fn write_name(names: &mut Vec<u8>, class: &[u8], key: &[u8]) {
    names.extend_from_slice(&[class.len() as u8, key.len() as u8]);
    names.extend_from_slice(class);
    names.extend_from_slice(key);
}

/// A class and a key as they were written.
fn read_name(names: &[u8]) -> (&[u8], &[u8]) {
    let (class, rest) = names[2..].split_at(usize::from(names[0]));
    (class, &rest[..usize::from(names[1])])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(feed: &Feed) -> Vec<(String, String, u64)> {
        let taken = feed.take();
        let left = taken.entries().map(|entry| (entry.class.into_owned(), entry.key.into_owned(), entry.count));
        let mut left: Vec<_> = left.collect();
        left.sort();
        left
    }

    #[test]
    fn refusals_come_out_counted_and_once() {
        let feed = Feed::default();
        for round in 1..=3 {
            for _ in 0..3 {
                feed.refused("ip/32", b"203.0.113.7");
            }
            feed.refused("user", b"203.0.113.7");
            feed.refused("user", b"a\xffb");
            let expect = [("ip/32", "203.0.113.7", 3), ("user", "203.0.113.7", 1), ("user", "a\\xffb", 1)];
            let expect = expect.map(|(class, key, count)| (class.to_owned(), key.to_owned(), count));
            assert_eq!(left(&feed), expect, "{round}");
            assert_eq!(left(&feed), [], "{round}");
        }
    }

    #[test]
    fn every_refusal_comes_out_of_a_book_that_grows() {
        let feed = Feed::default();
        for callers in [10, 1_000, 20_000, 3] {
            for round in 0..2 {
                for caller in 0..callers {
                    (0..=caller % 3).for_each(|_| feed.refused("user", format!("caller {caller}").as_bytes()));
                }
                let left = left(&feed);
                assert_eq!(left.len(), callers, "{round}");
                for (_, key, count) in left {
                    let caller: usize = key["caller ".len()..].parse().unwrap();
                    assert_eq!(count, 1 + caller as u64 % 3, "{key}");
                }
            }
        }
        assert_eq!(feed.dropped(), 0);
    }

    #[test]
    fn what_several_threads_leave_while_somebody_takes_is_all_taken_once() {
        const EACH: u64 = 50_000;
        let feed = Feed::default();
        let mut counted = 0;
        std::thread::scope(|scope| {
            let working: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..EACH).for_each(|at| feed.refused("user", &(at % 100).to_be_bytes()))))
                .collect();
            while !working.iter().all(std::thread::ScopedJoinHandle::is_finished) {
                counted += feed.take().entries().map(|entry| entry.count).sum::<u64>();
            }
        });
        counted += feed.take().entries().map(|entry| entry.count).sum::<u64>();
        assert_eq!(counted, 4 * EACH);
    }

    #[test]
    fn invented_callers_are_bounded_and_what_has_no_place_is_counted() {
        for long in [8, NAME_BYTES_MAX] {
            let feed = Feed::default();
            for number in 0..100_000_u64 {
                let mut key = vec![b'k'; long];
                key[..8].copy_from_slice(&number.to_be_bytes());
                feed.refused("user", &key);
            }
            let taken = feed.take();
            let kept = taken.entries().count();
            assert!(kept <= CALLERS_MAX);
            assert!(taken.0.iter().all(|book| book.names.len() <= BOOK_BYTES_MAX));
            assert_eq!(kept as u64 + feed.dropped(), 100_000);
        }
    }

    fn refuse(feed: &Feed, callers: std::ops::Range<usize>) {
        callers.for_each(|caller| feed.refused("user", &caller.to_be_bytes()));
    }

    #[test]
    fn few_are_taken_every_time_and_many_are_gathered_for_a_while() {
        let feed = Feed::default();
        for _ in 0..2 {
            for callers in [0, 1, MANY - 1] {
                refuse(&feed, 0..callers);
                assert!(feed.is_due(), "{callers}");
                assert_eq!(feed.take().entries().count(), callers);
            }
            refuse(&feed, 0..MANY);
            assert!(feed.is_due(), "nobody knew that there would be many");
            drop(feed.take());
            for gathered in 1..=3 {
                for turn in 1..TURNS_MAX {
                    refuse(&feed, 0..MANY);
                    assert!(!feed.is_due(), "{gathered}: {turn}");
                }
                refuse(&feed, 0..MANY);
                assert!(feed.is_due(), "{gathered}");
                let taken = feed.take();
                assert_eq!(taken.entries().count(), MANY);
                assert!(taken.entries().all(|entry| entry.count == u64::from(TURNS_MAX)));
            }
            assert!((1..TURNS_MAX).all(|_| !feed.is_due()) && feed.is_due());
            assert_eq!(feed.take().entries().count(), 0, "the storm is over");
        }
    }

    #[test]
    fn a_book_that_fills_up_is_taken_before_anything_has_no_place() {
        let feed = Feed::default();
        refuse(&feed, 0..MANY);
        drop(feed.take());
        refuse(&feed, 0..CALLERS_MAX / 2);
        assert!(!feed.is_due());
        refuse(&feed, 0..CALLERS_MAX / 2 + TOGETHER);
        assert!(feed.is_due());
        assert_eq!(feed.take().entries().count(), CALLERS_MAX / 2 + TOGETHER);
        let long = |caller: usize| feed.refused("user", format!("{caller:0>200}").as_bytes());
        (0..BOOK_BYTES_MAX / 500).for_each(long);
        assert!(!feed.is_due());
        (0..BOOK_BYTES_MAX / 220).for_each(long);
        assert!(feed.is_due() && feed.dropped() == 0);
    }

    #[test]
    fn a_name_of_any_length_is_taken() {
        let feed = Feed::default();
        feed.refused(&"c".repeat(999), &[b'k'; 9999]);
        feed.refused("", b"");
        let long = ("c".repeat(NAME_BYTES_MAX), "k".repeat(NAME_BYTES_MAX), 1);
        assert_eq!(left(&feed), [(String::new(), String::new(), 1), long]);
    }
}
