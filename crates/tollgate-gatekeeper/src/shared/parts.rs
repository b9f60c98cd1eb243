//! The parts of a store that are asked or not asked as one: the slots of a Cluster's node.
//!
//! A node that is gone must not take the others with it, so one breaker for a whole Cluster is too few. One for every few slots is too many: each finds out
//! about a dead node, and tries it again, by itself, and each time somebody waits for nothing. So those of one node share a breaker. Who
//! has which slots is asked now and then. Where that is not true any more nothing goes wrong: slots that have moved are spared or tried together with those that they
//! were with.

use core::sync::atomic::{AtomicUsize, Ordering};

use redis::Value;

use super::breaker::Breaker;
use super::slot::SLOTS;

/// So many parts a Cluster has: as fine as its nodes are told apart.
const PARTS: usize = 64;
const SLOTS_PER_PART: usize = SLOTS as usize / PARTS;

/// The parts of a store, and whether they are worth asking.
#[derive(Debug)]
pub(super) struct Parts {
    breakers: Vec<Breaker>,
    /// Which breaker counts for each part.
    breaker_of: Vec<AtomicUsize>,
}

impl Parts {
    /// Those of one server, or of a Cluster of which nothing is known yet.
    pub(super) fn new(is_cluster: bool) -> Self {
        let parts = if is_cluster { PARTS } else { 1 };
        Self {
            breakers: (0..parts).map(|_| Breaker::default()).collect(),
            breaker_of: (0..parts).map(AtomicUsize::new).collect(),
        }
    }

    /// The part that a Cluster's slot is in.
    pub(super) const fn part_of(slot: u16) -> usize {
        slot as usize / SLOTS_PER_PART
    }

    /// Whether a part is worth asking.
    pub(super) fn breaker(&self, part: usize) -> &Breaker {
        &self.breakers[self.breaker_of[part].load(Ordering::Relaxed)]
    }

    /// Which part of the store counts as gone, from none (0.0) to all (1.0).
    pub(super) fn gone(&self) -> f64 {
        let parts = self.breaker_of.len();
        (0..parts).filter(|part| self.breaker(*part).is_open()).count() as f64 / parts as f64
    }

    /// Has those parts share a breaker that one node has as a whole, by what it answers to `CLUSTER SLOTS`.
    pub(super) fn learn(&self, slots: &Value) {
        let owners = owners(slots);
        let mut firsts: Vec<(&[u8], usize)> = Vec::new();
        for (part, (slots, breaker)) in owners.chunks(SLOTS_PER_PART).zip(&self.breaker_of).enumerate() {
            let owner = slots[0].filter(|_| slots.iter().all(|owner| *owner == slots[0]));
            let first = owner.map_or(part, |owner| {
                let known = firsts.iter().find(|(node, _)| *node == owner).map(|(_, first)| *first);
                known.unwrap_or_else(|| {
                    firsts.push((owner, part));
                    part
                })
            });
            breaker.store(first, Ordering::Relaxed);
        }
    }
}

/// Which node has each slot, as far as that is said.
fn owners(slots: &Value) -> Vec<Option<&[u8]>> {
    let mut owners = vec![None; usize::from(SLOTS)];
    let Value::Array(ranges) = slots else { return owners };
    for range in ranges {
        let Value::Array(range) = range else { continue };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else { continue };
        // A node is its address and its port; its name comes third, and servers of old have none.
        let [_, _, Value::BulkString(name), ..] = &master[..] else { continue };
        let (Ok(first), Ok(last)) = (usize::try_from(*first), usize::try_from(*last)) else { continue };
        if let Some(owned) = owners.get_mut(first..last.saturating_add(1)) {
            owned.fill(Some(name));
        }
    }
    owners
}

#[cfg(test)]
mod tests {
    use tollgate_core::time::Moment;

    use super::*;

    /// What a Cluster says of nodes with these slots.
    fn slots(ranges: &[(i64, i64, &str)]) -> Value {
        let range = |(first, last, name): &(i64, i64, &str)| {
            let text = |text: &str| Value::BulkString(text.into());
            let master = Value::Array(vec![text("127.0.0.1"), Value::Int(1), text(name), Value::Array(Vec::new())]);
            let replica = Value::Array(vec![text("127.0.0.1"), Value::Int(2), text("replica")]);
            Value::Array(vec![Value::Int(*first), Value::Int(*last), master, replica])
        };
        Value::Array(ranges.iter().map(range).collect())
    }

    /// The parts that count as gone when the part of a slot does.
    fn gone_with(parts: &Parts, slot: u16) -> Vec<usize> {
        let breaker = parts.breaker(Parts::part_of(slot));
        for miss in 0..10 {
            breaker.missed(Moment::ZERO, Moment::from_millis(10 * miss), 0);
        }
        let gone = (0..PARTS).filter(|part| parts.breaker(*part).is_open()).collect();
        breaker.answered();
        gone
    }

    #[test]
    fn what_a_node_has_as_a_whole_is_gone_as_a_whole() {
        let parts = Parts::new(true);
        assert_eq!(gone_with(&parts, 300), [1], "nothing is known yet");
        parts.learn(&slots(&[(0, 1_000, "a"), (1_001, 2_047, "b"), (2_048, 16_383, "a")]));
        let of_a: Vec<_> = (0..3).chain(8..64).collect();
        assert_eq!(gone_with(&parts, 300), of_a);
        assert_eq!(gone_with(&parts, 16_383), of_a);
        assert_eq!(gone_with(&parts, 1_000), [3], "two nodes have a part of it");
        assert_eq!(gone_with(&parts, 2_000), [4, 5, 6, 7]);
        // Another node takes over, and slots move.
        parts.learn(&slots(&[(0, 8_191, "c"), (8_192, 16_383, "b")]));
        assert_eq!(gone_with(&parts, 0), (0..32).collect::<Vec<_>>());
        assert_eq!(gone_with(&parts, 8_192), (32..64).collect::<Vec<_>>());
    }

    #[test]
    fn slots_that_nobody_has_are_each_by_themselves() {
        let parts = Parts::new(true);
        parts.learn(&slots(&[(0, 8_191, "a")]));
        assert_eq!(gone_with(&parts, 16_000), [62]);
        for nonsense in
            [Value::Nil, Value::Array(vec![Value::Nil]), slots(&[(-1, 5, "a"), (0, i64::MAX, "b"), (7, 6, "c")])]
        {
            parts.learn(&nonsense);
            assert_eq!(gone_with(&parts, 0), [0]);
        }
    }

    #[test]
    fn a_single_server_is_gone_or_not() {
        let parts = Parts::new(false);
        assert_eq!(parts.gone(), 0.0);
        for miss in 0..10 {
            parts.breaker(0).missed(Moment::ZERO, Moment::from_millis(10 * miss), 0);
        }
        assert_eq!(parts.gone(), 1.0);
    }
}
