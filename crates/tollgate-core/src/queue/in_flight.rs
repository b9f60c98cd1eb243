//! The requests in flight, and their number by standing and octave.
//!
//! The standing of a request is whether its client is behind or ahead of its fair share. The octave is the logarithm of
//! its price to base two. A request competes with its peers in flight: those of the same or a better standing whose
//! octave is at most one above its own.

use super::{OCTAVE_BASE_NS, OCTAVES, Slot};
use alloc::collections::BTreeMap;

/// The number of requests in flight: of one standing and octave, or a sum over several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peers {
    /// All of them.
    pub(super) count: u32,
    /// Those whose price is uncertain ([`Price::is_settled`](super::Price::is_settled)).
    pub(super) unsettled: u32,
}

/// The requests in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlightRequests {
    /// The slots of the requests, by the order in which they started.
    pub(super) requests: BTreeMap<u64, u32>,
    /// How many requests have started.
    starts: u64,
    /// By standing and octave. The first row is for clients behind their share, the second for clients ahead of it.
    sums: [[Peers; OCTAVES]; 2],
    /// The number of requests whose clients are ahead: the sum of the second row.
    pub(super) ahead: u32,
    /// The sum of their prices in nanoseconds, each rounded to the middle of its octave.
    pub(super) cost: u64,
    /// The most requests that were here at once of late in ordinary operation, and the largest sum of their prices in
    /// nanoseconds ([`Queue::record_usual`](super::Queue::record_usual)).
    pub(super) usual_count: u32,
    pub(super) usual_cost: u64,
}

impl InFlightRequests {
    /// The peers of a request of this standing and octave. A client behind its share competes only with clients that
    /// are behind too; a client ahead of its share competes with all.
    pub(super) fn peers(&self, is_ahead: bool, octave: u8) -> Peers {
        let heaviest = (usize::from(octave) + 1).min(OCTAVES - 1);
        let peers = self.sums[..=usize::from(is_ahead)].iter().flat_map(|octaves| &octaves[..=heaviest]);
        peers.fold(Peers::default(), |sum, peers| Peers {
            count: sum.count + peers.count,
            unsettled: sum.unsettled + peers.unsettled,
        })
    }

    /// All requests.
    pub(super) fn all(&self) -> Peers {
        self.peers(true, OCTAVES as u8 - 1)
    }

    /// Whether a request in flight does not compete with one of this octave whose client is behind its share: because
    /// its own client is ahead, or because it is heavier by two octaves or more.
    pub(super) fn has_heavier(&self, octave: u8) -> bool {
        let heavier = (usize::from(octave) + 2).min(OCTAVES);
        self.ahead > 0 || self.sums[0][heavier..].iter().any(|peers| peers.count > 0)
    }

    /// Adds the request in slot `at`. Returns its place in the order, for [`remove`](Self::remove).
    pub(super) fn add(&mut self, at: u32, slot: &Slot) -> u64 {
        self.count(slot, 1);
        self.starts += 1;
        self.requests.insert(self.starts, at);
        self.starts
    }

    /// Removes the request that started as number `start`.
    pub(super) fn remove(&mut self, start: u64, slot: &Slot) {
        self.count(slot, -1);
        self.requests.remove(&start);
    }

    /// Adds one request to the sums, or takes one off them.
    pub(super) fn count(&mut self, slot: &Slot, one: i32) {
        let sum = &mut self.sums[usize::from(slot.is_ahead)][usize::from(slot.octave)];
        debug_assert!(one > 0 || sum.count > 0, "a request is removed once");
        sum.count = sum.count.wrapping_add_signed(one);
        sum.unsettled = sum.unsettled.wrapping_add_signed(if slot.is_settled { 0 } else { one });
        self.ahead = self.ahead.wrapping_add_signed(if slot.is_ahead { one } else { 0 });
        self.cost = self.cost.wrapping_add_signed(i64::from(one) * ((OCTAVE_BASE_NS as i64 * 3 / 2) << slot.octave));
    }
}
