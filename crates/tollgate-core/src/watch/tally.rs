//! Rolling counts for a bounded number of names, of which the heavy ones cannot be pushed out.
//!
//! The obvious bound, dropping who was seen least recently, lets an offender erase itself: a few hundred made-up names in the same
//! report, and its history is gone. Dropping the smallest count is no better by itself: fill the table once, and from then on every
//! returning offender is the smallest. So a newcomer begins at the rank of the one it replaces, as in the Space-Saving algorithm, but
//! is only ever *counted* by what it did itself. To push out a name that has counted `w`, the others must count `w` for every other place
//! in the table, all of it after that name came in: hiding `T` refusals costs `(places - 1) * T` of them.

use super::rolling::Rolling;
use crate::time::{Moment, Span};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A tally is swept of what has expired this often per window.
const SWEEPS: u64 = 16;

/// Rolling counts by name.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    places: usize,
    window: Span,
    counts: Vec<Option<Count>>,
    free: Vec<usize>,
    by_name: BTreeMap<Arc<[u8]>, usize>,
    by_rank: BTreeSet<(u64, usize)>,
    /// The highest rank that was ever pushed out.
    floor: u64,
    pushed_out: u64,
    swept_at: Moment,
    /// How many counts all sweeps together have looked at.
    #[cfg(test)]
    pub(super) swept: u64,
}

#[derive(Clone, Debug)]
struct Count {
    name: Arc<[u8]>,
    /// The floor when this name came in.
    base: u64,
    rank: u64,
    rolling: Rolling,
}

impl Tally {
    pub(super) fn new(places: usize, window: Span) -> Self {
        Self {
            places: places.max(1),
            window,
            counts: Vec::new(),
            free: Vec::new(),
            by_name: BTreeMap::new(),
            by_rank: BTreeSet::new(),
            floor: 0,
            pushed_out: 0,
            swept_at: Moment::ZERO,
            #[cfg(test)]
            swept: 0,
        }
    }

    /// Adds `count` to `name`, and returns what `name` has counted within the window.
    pub(super) fn add(&mut self, name: &[u8], count: u64, now: Moment) -> u64 {
        if now.since(self.swept_at) > Span::from_nanos(self.window.as_nanos() / SWEEPS) {
            self.expire(now);
        }
        let index = match self.by_name.get(name) {
            Some(index) => *index,
            None => self.welcome(name),
        };
        let window = self.window;
        let Some(entry) = &mut self.counts[index] else { return 0 };
        entry.rolling.add(count, window, now);
        self.rank(index)
    }

    /// Forgets what `name` has counted so far.
    pub(super) fn forget(&mut self, name: &[u8]) {
        if let Some(index) = self.by_name.get(name) {
            self.remove(*index);
        }
    }

    /// How many names had to be dropped while they still counted.
    pub(super) fn pushed_out(&self) -> u64 {
        self.pushed_out
    }

    /// Drops what has left the window, and the names of which nothing is left.
    pub(super) fn expire(&mut self, now: Moment) {
        self.swept_at = now;
        for index in 0..self.counts.len() {
            #[cfg(test)]
            {
                self.swept += 1;
            }
            let Some(entry) = &mut self.counts[index] else { continue };
            entry.rolling.expire(self.window, now);
            if entry.rolling.stretch().is_none() {
                self.remove(index);
            } else {
                self.rank(index);
            }
        }
    }

    /// Every name with its sum and its first and last moment, as of the last [`Tally::expire`].
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u64, Moment, Moment)> {
        self.counts.iter().flatten().filter_map(|entry| {
            let (first, last) = entry.rolling.stretch()?;
            Some((&*entry.name, entry.rolling.sum(), first, last))
        })
    }

    /// What `name` has counted within the window.
    pub(super) fn counted(&mut self, name: &[u8], now: Moment) -> u64 {
        let Some(&index) = self.by_name.get(name) else { return 0 };
        let Some(entry) = &mut self.counts[index] else { return 0 };
        entry.rolling.expire(self.window, now);
        self.rank(index)
    }

    /// Every name with each of its counts and when it was counted, oldest first. The last of a name counts nothing and is as old as
    /// the name's last count.
    pub(super) fn points(&self) -> impl Iterator<Item = (&[u8], Moment, u64)> {
        self.counts
            .iter()
            .flatten()
            .flat_map(|entry| entry.rolling.points().map(|(at, count)| (&*entry.name, at, count)))
    }

    /// Makes a place for a new name.
    fn welcome(&mut self, name: &[u8]) -> usize {
        if self.by_name.len() >= self.places
            && let Some(&(rank, index)) = self.by_rank.first()
        {
            self.floor = self.floor.max(rank);
            self.pushed_out = self.pushed_out.saturating_add(1);
            self.remove(index);
        }
        let name: Arc<[u8]> = name.into();
        let entry = Count { name: name.clone(), base: self.floor, rank: self.floor, rolling: Rolling::default() };
        let index = self.free.pop().unwrap_or(self.counts.len());
        if index == self.counts.len() {
            self.counts.push(Some(entry));
        } else {
            self.counts[index] = Some(entry);
        }
        self.by_rank.insert((self.floor, index));
        self.by_name.insert(name, index);
        index
    }

    fn remove(&mut self, index: usize) {
        if let Some(entry) = self.counts[index].take() {
            self.by_rank.remove(&(entry.rank, index));
            self.by_name.remove(&entry.name);
            self.free.push(index);
        }
    }

    /// Puts a name at the rank that its count gives it, and returns the count.
    fn rank(&mut self, index: usize) -> u64 {
        let Some(entry) = &mut self.counts[index] else { return 0 };
        let sum = entry.rolling.sum();
        let rank = entry.base.saturating_add(sum);
        if rank != entry.rank {
            self.by_rank.remove(&(entry.rank, index));
            entry.rank = rank;
            self.by_rank.insert((rank, index));
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: Span = Span::from_secs(600);

    proptest! {
        #[test]
        fn hiding_refusals_costs_others_as_many_for_every_other_place(
            places in 2usize..8,
            steps in prop::collection::vec((0u8..40, 1u64..30), 1..400),
        ) {
            let mut tally = Tally::new(places, WINDOW);
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
                prop_assert!(tally.by_name.len() <= places);
                prop_assert_eq!(tally.by_name.len(), tally.by_rank.len());
            }
        }

        #[test]
        fn a_name_is_counted_by_what_it_did_itself(
            places in 1usize..6,
            steps in prop::collection::vec((0u8..12, 1u64..30, 0u64..200), 1..300),
        ) {
            let (mut tally, mut now) = (Tally::new(places, WINDOW), 0);
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
        let mut tally = Tally::new(2, WINDOW);
        tally.add(b"a", 1000, Moment::ZERO);
        tally.add(b"b", 1000, Moment::ZERO);
        let later = Moment::ZERO + WINDOW + Span::from_nanos(1);
        assert_eq!(tally.add(b"c", 1, later), 1);
        assert_eq!(tally.pushed_out(), 0);
        assert_eq!(tally.iter().count(), 1);
    }
}
