//! The requests in flight, counted by standing and octave.

use super::OCTAVES;
use crate::virtual_clock::Load;
use alloc::vec::Vec;

/// Requests in flight of one standing and octave, or of several.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Peers {
    pub(super) load: Load,
    /// The load of those whose price is not settled.
    pub(super) unsettled: Load,
}

impl Peers {
    const fn plus(self, other: Self) -> Self {
        Self { load: self.load.plus(other.load), unsettled: self.unsettled.plus(other.unsettled) }
    }

    const fn minus(self, other: Self) -> Self {
        Self { load: self.load.minus(other.load), unsettled: self.unsettled.minus(other.unsettled) }
    }

    const fn of(load: Load, is_settled: bool) -> Self {
        Self { load, unsettled: if is_settled { Load::ZERO } else { load } }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct InFlightRequests {
    /// Slots of the requests.
    requests: Vec<u32>,
    /// Behind the share, then ahead of it.
    sums: [[Peers; OCTAVES]; 2],
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

    /// Requests that one of this standing and octave competes with.
    pub(super) fn peers(&self, is_ahead: bool, octave: u8) -> Peers {
        let heaviest = (usize::from(octave) + 1).min(OCTAVES - 1);
        let standings = &self.sums[..=usize::from(is_ahead)];
        standings.iter().flat_map(|octaves| &octaves[..=heaviest]).fold(Peers::default(), |sum, peers| sum.plus(*peers))
    }

    /// Whether a request is in flight that does not compete with one behind its share of this octave.
    pub(super) fn has_heavier(&self, octave: u8) -> bool {
        let heavier = (usize::from(octave) + 2).min(OCTAVES);
        self.ahead > Load::ZERO || self.sums[0][heavier..].iter().any(|peers| peers.load > Load::ZERO)
    }

    /// Adds a request, and returns its index.
    pub(super) fn add(&mut self, request: u32, is_ahead: bool, octave: u8, load: Load, is_settled: bool) -> u32 {
        let sum = &mut self.sums[usize::from(is_ahead)][usize::from(octave)];
        *sum = sum.plus(Peers::of(load, is_settled));
        self.ahead = if is_ahead { self.ahead.plus(load) } else { self.ahead };
        self.requests.push(request);
        self.requests.len() as u32 - 1
    }

    /// Removes the request at `index`. Returns the request that has its index from now on, if any.
    pub(super) fn remove(
        &mut self,
        index: u32,
        is_ahead: bool,
        octave: u8,
        load: Load,
        is_settled: bool,
    ) -> Option<u32> {
        let sum = &mut self.sums[usize::from(is_ahead)][usize::from(octave)];
        *sum = sum.minus(Peers::of(load, is_settled));
        self.ahead = if is_ahead { self.ahead.minus(load) } else { self.ahead };
        self.requests.swap_remove(index as usize);
        self.requests.get(index as usize).copied()
    }

    /// A request has another octave, or another certainty of its price.
    pub(super) fn change(&mut self, is_ahead: bool, load: Load, from: (u8, bool), to: (u8, bool)) {
        let sums = &mut self.sums[usize::from(is_ahead)];
        let before = &mut sums[usize::from(from.0)];
        *before = before.minus(Peers::of(load, from.1));
        let after = &mut sums[usize::from(to.0)];
        *after = after.plus(Peers::of(load, to.1));
    }
}
