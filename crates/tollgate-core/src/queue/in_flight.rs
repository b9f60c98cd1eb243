//! The requests in flight, and their load by standing and octave.
//!
//! The standing of a request is whether its client is behind or ahead of its fair share. The octave is the logarithm of
//! its price to base two. A request competes with its peers in flight: those of the same or a better standing whose
//! octave is at most one above its own.

use super::{OCTAVES, Slot};
use crate::virtual_clock::Load;
use alloc::vec::Vec;

/// The load of requests in flight: of one standing and octave, or a sum over several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peers {
    /// The load of all of them.
    pub(super) load: Load,
    /// The load of those whose price is uncertain ([`Price::is_settled`](super::Price::is_settled)).
    pub(super) unsettled: Load,
}

impl Peers {
    const fn plus(self, other: Self) -> Self {
        Self { load: self.load.plus(other.load), unsettled: self.unsettled.plus(other.unsettled) }
    }

    const fn minus(self, other: Self) -> Self {
        Self { load: self.load.minus(other.load), unsettled: self.unsettled.minus(other.unsettled) }
    }

    const fn of(slot: &Slot) -> Self {
        Self { load: slot.load, unsettled: if slot.is_settled { Load::ZERO } else { slot.load } }
    }
}

/// The requests in flight.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlightRequests {
    /// The indices of the requests in the queue's slots, in no order.
    requests: Vec<u32>,
    /// By standing and octave. The first row is for clients behind their share, the second for clients ahead of it.
    sums: [[Peers; OCTAVES]; 2],
    /// The sum of the second row.
    ahead: Load,
}

impl InFlightRequests {
    pub(super) fn count(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn get(&self, index: usize) -> u32 {
        self.requests[index]
    }

    /// The load of requests whose clients were ahead.
    pub(super) const fn ahead(&self) -> Load {
        self.ahead
    }

    /// The peers of a request of this standing and octave. A client behind its share competes only with clients that
    /// are behind too; a client ahead of its share competes with all.
    pub(super) fn peers(&self, is_ahead: bool, octave: u8) -> Peers {
        let heaviest = (usize::from(octave) + 1).min(OCTAVES - 1);
        let standings = &self.sums[..=usize::from(is_ahead)];
        standings.iter().flat_map(|octaves| &octaves[..=heaviest]).fold(Peers::default(), |sum, peers| sum.plus(*peers))
    }

    /// Whether a request in flight does not compete with one of this octave whose client is behind its share: because
    /// its own client is ahead, or because it is heavier by two octaves or more.
    pub(super) fn has_heavier(&self, octave: u8) -> bool {
        let heavier = (usize::from(octave) + 2).min(OCTAVES);
        self.ahead > Load::ZERO || self.sums[0][heavier..].iter().any(|peers| peers.load > Load::ZERO)
    }

    /// Adds the request in slot `at`. Returns its index here, for [`remove`](Self::remove).
    pub(super) fn add(&mut self, at: u32, slot: &Slot) -> u32 {
        let sum = self.sum_of(slot);
        *sum = sum.plus(Peers::of(slot));
        self.ahead = if slot.is_ahead { self.ahead.plus(slot.load) } else { self.ahead };
        self.requests.push(at);
        self.requests.len() as u32 - 1
    }

    /// Removes the request at `index`. Another request may move to this index; if so, returns its slot.
    pub(super) fn remove(&mut self, index: u32, slot: &Slot) -> Option<u32> {
        let sum = self.sum_of(slot);
        *sum = sum.minus(Peers::of(slot));
        self.ahead = if slot.is_ahead { self.ahead.minus(slot.load) } else { self.ahead };
        self.requests.swap_remove(index as usize);
        self.requests.get(index as usize).copied()
    }

    /// The octave of a request has changed, or whether its price is settled.
    pub(super) fn change(&mut self, before: &Slot, after: &Slot) {
        let sum = self.sum_of(before);
        *sum = sum.minus(Peers::of(before));
        let sum = self.sum_of(after);
        *sum = sum.plus(Peers::of(after));
    }

    fn sum_of(&mut self, slot: &Slot) -> &mut Peers {
        &mut self.sums[usize::from(slot.is_ahead)][usize::from(slot.octave)]
    }
}
