//! The circuit breakers for the nodes of a Redis Cluster, or the single one for a server.
//!
//! A failed node must not affect the others, so one breaker for a whole Cluster is not enough. One for every
//! range of slots is too many: each would detect and probe a failed node by itself, and requests would wait each
//! time. The ranges of one node therefore share a breaker. The owners of slots are queried every few seconds.
//! Until the next query, a slot that has moved uses the breaker of its former node. While that is open, the store
//! is only probed for the slot, although its new node may work.

use core::sync::atomic::{AtomicUsize, Ordering};

use redis::Value;

use super::breaker::Breaker;
use super::slot::SLOTS;

/// The number of parts of a Cluster, each a range of 256 slots. A part with slots of two nodes cannot share a breaker;
/// in parts of this size there are few such slots.
pub(super) const PARTS: usize = 64;
const SLOTS_PER_PART: usize = SLOTS as usize / PARTS;

/// The breakers of a store. A part is a range of hash slots; parts of the same node use the same breaker.
#[derive(Debug)]
pub(super) struct ClusterParts {
    breakers: Vec<Breaker>,
    /// The index of each part's breaker.
    breaker_of: Vec<AtomicUsize>,
}

impl ClusterParts {
    /// The parts of one server, or of a Cluster with unknown owners.
    pub(super) fn new(is_cluster: bool) -> Self {
        let parts = if is_cluster { PARTS } else { 1 };
        Self {
            breakers: (0..parts).map(|_| Breaker::default()).collect(),
            breaker_of: (0..parts).map(AtomicUsize::new).collect(),
        }
    }

    /// The part of a hash slot of a Cluster. A single server has only part 0.
    pub(super) const fn part_of(slot: u16) -> usize {
        slot as usize / SLOTS_PER_PART
    }

    /// The breaker of a part.
    pub(super) fn breaker(&self, part: usize) -> &Breaker {
        &self.breakers[self.breaker_of[part].load(Ordering::Relaxed)]
    }

    /// The fraction of the store whose breakers are open, from 0.0 to 1.0.
    pub(super) fn gone(&self) -> f64 {
        let parts = self.breaker_of.len();
        (0..parts).filter(|part| self.breaker(*part).is_open()).count() as f64 / parts as f64
    }

    /// Lets all parts whose slots belong to the same node share a breaker, by the answer to `CLUSTER SLOTS`. Every
    /// other part uses its own. Breakers keep their state: one that was open for another node closes with the first
    /// successful probe.
    pub(super) fn learn(&self, slots: &Value) {
        let owners = owners(slots);
        // The nodes so far, each with its first part, whose breaker all its parts use.
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

/// The name of the node that owns each hash slot, as far as known.
fn owners(slots: &Value) -> Vec<Option<&[u8]>> {
    let mut owners = vec![None; usize::from(SLOTS)];
    let Value::Array(ranges) = slots else { return owners };
    for range in ranges {
        let Value::Array(range) = range else { continue };
        let [Value::Int(first), Value::Int(last), Value::Array(master), ..] = &range[..] else { continue };
        // A node has an address, a port and a name; old servers have no name.
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

    /// The answer of a Cluster whose nodes have these slots.
    fn slots(ranges: &[(i64, i64, &str)]) -> Value {
        let range = |(first, last, name): &(i64, i64, &str)| {
            let text = |text: &str| Value::BulkString(text.into());
            let master = Value::Array(vec![text("127.0.0.1"), Value::Int(1), text(name), Value::Array(Vec::new())]);
            let replica = Value::Array(vec![text("127.0.0.1"), Value::Int(2), text("replica")]);
            Value::Array(vec![Value::Int(*first), Value::Int(*last), master, replica])
        };
        Value::Array(ranges.iter().map(range).collect())
    }

    /// The parts that count as down together with the part of a slot.
    fn gone_with(parts: &ClusterParts, slot: u16) -> Vec<usize> {
        let breaker = parts.breaker(ClusterParts::part_of(slot));
        for miss in 0..10 {
            breaker.missed(Moment::ZERO, Moment::from_millis(10 * miss), 0);
        }
        let gone = (0..PARTS).filter(|part| parts.breaker(*part).is_open()).collect();
        breaker.answered();
        gone
    }

    #[test]
    fn parts_of_one_node_share_a_breaker() {
        let parts = ClusterParts::new(true);
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
    fn slots_without_an_owner_have_separate_breakers() {
        let parts = ClusterParts::new(true);
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
    fn a_single_server_has_one_breaker() {
        let parts = ClusterParts::new(false);
        assert_eq!(parts.gone(), 0.0);
        for miss in 0..10 {
            parts.breaker(0).missed(Moment::ZERO, Moment::from_millis(10 * miss), 0);
        }
        assert_eq!(parts.gone(), 1.0);
    }
}
