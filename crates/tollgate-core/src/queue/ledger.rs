//! The tag of each key (address, network or block) of the fair queue: how far its requests have advanced it in virtual
//! time. The number of keys is bounded.
//!
//! A key that has had less than its due is the same as a key that was never seen, so only the few that are ahead need a
//! place. They live in lines of eight. When a line is full the one least ahead makes room, and the line remembers how
//! far that one was: a key that is not found starts from there. So nobody can come by credit through being pushed out,
//! and a stranger loses at most what the least ahead of eight has had.

use alloc::vec;
use alloc::vec::Vec;

/// Keys in a line.
pub(super) const LINE: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct Ledger {
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// Each key, and where its next request would start; 0 in a place that is free.
    places: [(u64, u64); LINE],
    /// The furthest that any key which had to make room had come. Zero while a place is free.
    floor: u64,
}

impl Ledger {
    /// A ledger with places for at least this many keys.
    pub(super) fn new(keys: usize) -> Self {
        Self { lines: vec![Line::default(); keys.div_ceil(LINE).max(1)] }
    }

    /// Where the next request of `key` would start, not before `least`.
    pub(super) fn tag(&self, key: u64, least: u64) -> u64 {
        let Line { places, floor } = &self.lines[line_of(key, self.lines.len())];
        places.iter().find(|(owner, _)| *owner == key).map_or(*floor, |(_, tag)| *tag).max(least)
    }

    /// Puts `key` at `tag`. A key that is not beyond `least` needs no place.
    pub(super) fn set(&mut self, key: u64, tag: u64, least: u64) {
        let index = line_of(key, self.lines.len());
        let Line { places, floor } = &mut self.lines[index];
        if let Some((_, own)) = places.iter_mut().find(|(owner, _)| *owner == key) {
            *own = tag;
        } else if tag > least.max(*floor)
            && let Some(place) = places.iter_mut().min_by_key(|(_, tag)| *tag)
        {
            *floor = (*floor).max(place.1);
            *place = (key, tag);
        }
    }
}

/// The index of the line that a key belongs to. Spreads keys whatever their bits, and needs no power of two.
pub(super) fn line_of(key: u64, lines: usize) -> usize {
    let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((u128::from(mixed) * lines as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_key_gains_by_being_pushed_out(steps in prop::collection::vec((0u64..40, 1u64..100, 0u64..20), 1..500)) {
            let mut ledger = Ledger::new(LINE);
            let (mut unbounded, mut least) = (BTreeMap::new(), 0);
            for (key, charge, passed) in steps {
                least += passed;
                let tag = ledger.tag(key, least);
                let exact = unbounded.entry(key).or_insert(0u64);
                prop_assert!(tag >= (*exact).max(least));
                *exact = (*exact).max(least) + charge;
                ledger.set(key, tag + charge, least);
                prop_assert!(ledger.tag(key, least) >= tag + charge);
            }
        }

        #[test]
        fn with_room_for_all_every_key_is_where_it_should_be(steps in prop::collection::vec((0u64..8, 1u64..100, 0u64..60), 1..300)) {
            let mut ledger = Ledger::new(LINE);
            let (mut unbounded, mut least) = (BTreeMap::new(), 0);
            for (key, charge, passed) in steps {
                least += passed;
                let exact = unbounded.entry(key).or_insert(0u64);
                prop_assert_eq!(ledger.tag(key, least), (*exact).max(least));
                *exact = (*exact).max(least) + charge;
                ledger.set(key, *exact, least);
            }
        }
    }

    #[test]
    fn a_stranger_loses_at_most_what_the_least_of_a_line_has_had() {
        let mut ledger = Ledger::new(LINE);
        for key in 1..=LINE as u64 {
            ledger.set(key, 1000 * key, 10);
        }
        ledger.set(99, 5000, 10);
        assert_eq!(ledger.tag(77, 10), 1000);
        assert_eq!(ledger.tag(77, 1001), 1001, "and not for long");
    }
}
