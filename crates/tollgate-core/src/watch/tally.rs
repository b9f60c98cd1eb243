//! Rolling counts for a bounded number of names, of which the heavy ones cannot be pushed out.
//!
//! The obvious bound, dropping who was seen least recently, lets an offender erase itself: a few hundred made-up names in the same
//! report, and its history is gone. Dropping the smallest count is no better by itself: fill the table once, and from then on every
//! returning offender is the smallest. So a newcomer begins at the rank of the one it replaces, as in the Space-Saving algorithm, but
//! is only ever *counted* by what it did itself. To push out a name that has counted `w`, the others must count `w` for every other place
//! in the table, all of it after that name came in: hiding `T` refusals costs `(places - 1) * T` of them.

use super::names::Names;
use super::ranks::Ranks;
use super::rolling::Rolling;
use crate::time::{Moment, Span};
use alloc::vec::Vec;
use core::hash::BuildHasher;

/// A tally is swept of what has expired this often per window.
const SWEEPS: u64 = 16;
/// More names than this have no place in the index.
const PLACES_MAX: usize = 1 << 30;

/// Rolling counts by name.
#[derive(Clone, Debug)]
pub(super) struct Tally<S> {
    hasher: S,
    places: usize,
    window: Span,
    counts: Vec<Count>,
    /// Places whose names are gone.
    free: Vec<usize>,
    names: Names,
    ranks: Ranks,
    /// The highest rank that was ever pushed out.
    floor: u64,
    pushed_out: u64,
    swept_at: Moment,
    /// How many counts all sweeps together have looked at.
    #[cfg(test)]
    pub(super) swept: u64,
}

/// One place. Whoever comes after its name uses the same memory.
#[derive(Clone, Debug, Default)]
struct Count {
    name: Vec<u8>,
    hash: u64,
    /// The floor when this name came in.
    base: u64,
    /// Empty in a place that is free, and in no other.
    rolling: Rolling,
}

impl<S: BuildHasher> Tally<S> {
    pub(super) fn new(places: usize, window: Span, hasher: S) -> Self {
        let places = places.clamp(1, PLACES_MAX);
        Self {
            hasher,
            places,
            window,
            counts: Vec::new(),
            free: Vec::new(),
            names: Names::new(places),
            ranks: Ranks::default(),
            floor: 0,
            pushed_out: 0,
            swept_at: Moment::ZERO,
            #[cfg(test)]
            swept: 0,
        }
    }

    /// One like this for another window, with nothing in it yet.
    pub(super) fn emptied(&self, window: Span) -> Self
    where
        S: Clone,
    {
        Self { pushed_out: self.pushed_out, ..Self::new(self.places, window, self.hasher.clone()) }
    }

    /// Adds `count` to `name`, and returns what `name` has counted within the window.
    pub(super) fn add(&mut self, name: &[u8], count: u64, now: Moment) -> u64 {
        if now.since(self.swept_at) > Span::from_nanos(self.window.as_nanos() / SWEEPS) {
            self.expire(now);
        }
        let hash = self.hasher.hash_one(name);
        let place = self.find(hash, name).unwrap_or_else(|| self.welcome(hash, name));
        self.counts[place].rolling.add(count, self.window, now);
        self.rank(place)
    }

    /// Forgets what `name` has counted so far.
    pub(super) fn forget(&mut self, name: &[u8]) {
        if let Some(place) = self.find(self.hasher.hash_one(name), name) {
            self.remove(place);
        }
    }

    /// How many names had to be dropped while they still counted.
    pub(super) fn pushed_out(&self) -> u64 {
        self.pushed_out
    }

    /// Drops what has left the window, and the names of which nothing is left.
    pub(super) fn expire(&mut self, now: Moment) {
        self.swept_at = now;
        for place in 0..self.counts.len() {
            #[cfg(test)]
            {
                self.swept += 1;
            }
            if self.counts[place].rolling.stretch().is_some() {
                self.expire_at(place, now);
            }
        }
    }

    /// Every name with its sum and its first and last moment, as of the last [`Tally::expire`].
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u64, Moment, Moment)> {
        self.counts.iter().filter_map(|entry| {
            let (first, last) = entry.rolling.stretch()?;
            Some((&*entry.name, entry.rolling.sum(), first, last))
        })
    }

    /// What `name` has counted within the window.
    pub(super) fn counted(&mut self, name: &[u8], now: Moment) -> u64 {
        let Some(place) = self.find(self.hasher.hash_one(name), name) else { return 0 };
        self.expire_at(place, now)
    }

    /// Every name with each of its counts and when it was counted, oldest first. The last of a name counts nothing and is as old as
    /// the name's last count.
    pub(super) fn points(&self) -> impl Iterator<Item = (&[u8], Moment, u64)> {
        self.counts.iter().flat_map(|entry| entry.rolling.points().map(|(at, count)| (&*entry.name, at, count)))
    }

    /// Drops what has left the window of a name, and the name if nothing is left. Returns what is.
    fn expire_at(&mut self, place: usize, now: Moment) -> u64 {
        let rolling = &mut self.counts[place].rolling;
        rolling.expire(self.window, now);
        if rolling.stretch().is_none() {
            self.remove(place);
            return 0;
        }
        self.rank(place)
    }

    fn find(&self, hash: u64, name: &[u8]) -> Option<usize> {
        self.names.find(hash, |place| self.counts[place].name == name)
    }

    /// Makes a place for a new name.
    fn welcome(&mut self, hash: u64, name: &[u8]) -> usize {
        let place = match self.ranks.first() {
            Some((rank, lowest)) if self.ranks.len() >= self.places => {
                self.floor = self.floor.max(rank);
                self.pushed_out = self.pushed_out.saturating_add(1);
                self.names.remove(self.counts[lowest].hash, lowest);
                lowest
            }
            _ => self.free.pop().unwrap_or_else(|| {
                self.counts.push(Count::default());
                self.counts.len() - 1
            }),
        };
        let entry = &mut self.counts[place];
        entry.name.clear();
        entry.name.extend_from_slice(name);
        (entry.hash, entry.base) = (hash, self.floor);
        entry.rolling.clear();
        self.names.insert(hash, place);
        place
    }

    fn remove(&mut self, place: usize) {
        self.names.remove(self.counts[place].hash, place);
        self.counts[place] = Count::default();
        self.ranks.remove(place);
        self.free.push(place);
    }

    /// Puts a name at the rank that its count gives it, and returns the count.
    fn rank(&mut self, place: usize) -> u64 {
        let entry = &self.counts[place];
        let sum = entry.rolling.sum();
        self.ranks.set(place, entry.base.saturating_add(sum));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::hash::RandomState;

    extern crate std;

    const WINDOW: Span = Span::from_secs(600);

    fn tally(places: usize) -> Tally<RandomState> {
        Tally::new(places, WINDOW, RandomState::new())
    }

    #[derive(Default)]
    struct Alike;

    impl core::hash::Hasher for Alike {
        fn write(&mut self, _: &[u8]) {}

        fn finish(&self) -> u64 {
            0
        }
    }

    #[test]
    fn names_whose_hashes_are_alike_are_two() {
        let mut tally = Tally::new(4, WINDOW, core::hash::BuildHasherDefault::<Alike>::default());
        assert_eq!((tally.add(b"a", 1, Moment::ZERO), tally.add(b"b", 2, Moment::ZERO)), (1, 2));
        tally.forget(b"a");
        assert_eq!((tally.counted(b"a", Moment::ZERO), tally.counted(b"b", Moment::ZERO)), (0, 2));
    }

    proptest! {
        #[test]
        fn hiding_refusals_costs_others_as_many_for_every_other_place(
            places in 2usize..8,
            steps in prop::collection::vec((0u8..40, 1u64..30), 1..400),
        ) {
            let mut tally = tally(places);
            let (mut own, mut others) = (0, 0);
            for (name, count) in steps {
                if name < 8 {
                    own += count;
                    let counted = tally.add(b"offender", count, Moment::ZERO);
                    prop_assert!(counted <= own);
                    prop_assert!(counted + others / (places as u64 - 1) >= own);
                } else {
                    others += count;
                    tally.add(&[name], count, Moment::ZERO);
                }
                prop_assert!(tally.counts.len() <= places && tally.ranks.len() == tally.iter().count());
            }
        }

        #[test]
        fn a_name_is_counted_by_what_it_did_itself(
            places in 1usize..6,
            steps in prop::collection::vec((0u8..12, 1u64..30, 0u64..200), 1..300),
        ) {
            let (mut tally, mut now) = (tally(places), 0);
            let mut all = Vec::new();
            for (name, count, elapsed) in steps {
                now += elapsed * 1_000_000_000;
                all.push((name, now, count));
                let counted = tally.add(&[name], count, Moment::from_nanos(now));
                let within = |(who, at, _): &&(u8, u64, u64)| *who == name && now - at <= WINDOW.as_nanos();
                prop_assert!(counted <= all.iter().filter(within).map(|(_, _, count)| count).sum::<u64>());
            }
        }
    }

    #[test]
    fn what_has_expired_makes_room_without_pushing_anybody_out() {
        let mut tally = tally(2);
        tally.add(b"a", 1000, Moment::ZERO);
        tally.add(b"b", 1000, Moment::ZERO);
        let later = Moment::ZERO + WINDOW + Span::from_nanos(1);
        assert_eq!(tally.add(b"c", 1, later), 1);
        assert_eq!(tally.pushed_out(), 0);
        assert_eq!(tally.iter().count(), 1);
    }

    #[test]
    fn a_name_that_has_expired_gives_its_place_back_whoever_notices() {
        let mut tally = tally(2);
        let later = Moment::ZERO + WINDOW + Span::from_nanos(1);
        tally.add(b"a", 5, Moment::ZERO);
        tally.add(b"b", 0, Moment::ZERO);
        assert_eq!((tally.ranks.len(), tally.counted(b"a", later), tally.ranks.len()), (2, 0, 1));
        tally.expire(later);
        assert_eq!((tally.ranks.len(), tally.iter().count(), tally.free.len()), (0, 0, 2));
        tally.add(b"c", 1, later);
        tally.add(b"d", 1, later);
        assert_eq!((tally.pushed_out(), tally.counts.len()), (0, 2));
    }
}
