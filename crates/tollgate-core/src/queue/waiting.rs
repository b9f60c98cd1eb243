//! Requests that wait: their order, and the room for them.
//!
//! They are in lanes by octave (class of prices by factors of two), so that a heavy request at the front does not block
//! light ones. Each lane is a tree in fair order.

use super::admit::WITH_HEAVIER;
use super::client::{Client, largest};
use super::tree::{End, Rank, Tree};
use super::{Event, OCTAVES, Price, Queue, RefusedBy, Request, Slot, State, octave};
use crate::time::{Moment, Span};
use alloc::vec::Vec;

/// The number of clients whose waiting requests are compared when the room is full.
const GREEDY_MAX: usize = 256;

impl Queue {
    /// The first request in order that may go. Prices change while requests wait: one that has become heavier moves to
    /// its lane, so that it does not block lighter ones.
    pub(super) fn first_that_may_go(&mut self, now: Moment) -> Option<u32> {
        let mut best: Option<((bool, Rank, u64), u32)> = None;
        for lane in 0..OCTAVES {
            while let Some(End { rank, request }) = self.lanes[lane].first() {
                self.reprice(request);
                let slot = self.slots[request as usize];
                if usize::from(slot.octave) > lane {
                    self.unwait(request);
                    self.wait(request);
                    continue;
                }
                let is_ahead = self.is_ahead(&slot.request.client);
                let order = (is_ahead, rank, slot.turn);
                let lighter = best.map(|(_, best)| usize::from(self.slots[best as usize].octave) + 2);
                if lighter.is_some_and(|heavy| heavy <= lane) && self.yields(lane, slot.cost, now) {
                    break;
                }
                if best.is_none_or(|(other, _)| order < other) && self.may_go(&Slot { is_ahead, ..slot }, now) {
                    best = Some((order, request));
                }
                break;
            }
        }
        best.map(|(_, request)| request)
    }

    /// Whether a heavy request lets lighter ones go first. Where requests are served one after another, a page that goes
    /// after it waits for all of it. Like on a shared core, lighter requests get most of the time, but not all.
    fn yields(&self, lane: usize, cost: Span, now: Moment) -> bool {
        let last = self.went_at[lane..].iter().max();
        self.limit.is_serial && last.is_some_and(|last| now.since(*last) < cost.times(WITH_HEAVIER.into()))
    }

    /// Gives a waiting request the price of now.
    fn reprice(&mut self, at: u32) -> Price {
        let slot = &mut self.slots[at as usize];
        let price = self.prices.price(slot.request.route);
        (slot.cost, slot.octave) = (price.estimate, octave(price.estimate));
        (slot.is_settled, slot.is_unseen) = (price.is_settled, price.is_unseen);
        price
    }

    /// Adds a request to the lane of its octave.
    pub(super) fn wait(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        (slot.state, slot.lane) = (State::Waiting(slot.state.reading()), slot.octave);
        let (client, cost, lane, turn) = (slot.request.client, slot.mean.as_nanos(), usize::from(slot.lane), slot.turn);
        self.waiting += 1;
        self.waiting_bytes += u64::from(slot.request.bytes);
        self.waiting_costs[usize::from(slot.is_ahead)][lane] += cost;
        let own = self.backlogs.entry(client.address).or_default();
        (own.cost, own.count) = (own.cost + cost, own.count + 1);
        self.lanes[lane].push(&client, self.tags(&client), at, turn);
    }

    /// Removes a request from its lane.
    pub(super) fn unwait(&mut self, at: u32) {
        let slot = &self.slots[at as usize];
        let (client, cost, lane, turn) = (slot.request.client, slot.mean.as_nanos(), usize::from(slot.lane), slot.turn);
        self.waiting -= 1;
        self.waiting_bytes -= u64::from(slot.request.bytes);
        self.waiting_costs[usize::from(slot.is_ahead)][lane] -= cost;
        let own = self.backlogs.entry(client.address).or_default();
        (own.cost, own.count) = (own.cost - cost, own.count - 1);
        if own.count == 0 {
            self.backlogs.remove(&client.address);
        }
        self.lanes[lane].remove(&client, at, turn);
        self.limit.waiting_since = self.limit.waiting_since.filter(|_| self.waiting > 0);
    }

    /// Whether there is room for one more waiting request, if need be after displacing the newest of the client
    /// furthest ahead.
    pub(super) fn make_room(&mut self, request: &Request) -> bool {
        let Request { client, bytes, .. } = request;
        while self.waiting >= self.settings.total || self.waiting_bytes + u64::from(*bytes) > self.settings.memory {
            let last = self.last_ahead_of(client).or_else(|| self.newest_of_the_greediest(client.address));
            let Some(last) = last else { return false };
            self.refuse(last, RefusedBy::Full);
        }
        true
    }

    /// The newest waiting request of the client furthest ahead, if that is ahead of its share and of this client.
    pub(super) fn last_ahead_of(&self, client: &Client) -> Option<u32> {
        let tag = largest(self.tags(client)).max(self.front());
        self.last().filter(|(last, _)| *last > tag).map(|(_, request)| request)
    }

    /// The newest waiting request of the client furthest ahead, after that client's tag.
    pub(super) fn last(&self) -> Option<(u64, u32)> {
        self.lanes.iter().filter_map(Tree::last).map(|end| (self.tag_of(end.request), end.request)).max()
    }

    /// While few clients hold the whole room and none is ahead of its share yet: the newest request of the one that has
    /// most waiting, if that is more than `address` has.
    fn newest_of_the_greediest(&self, address: u64) -> Option<u32> {
        if self.backlogs.len() > GREEDY_MAX {
            return None;
        }
        let (greediest, most) = self.backlogs.iter().max_by_key(|(_, own)| own.count)?;
        let own = self.backlogs.get(&address).map_or(0, |own| own.count);
        (most.count > own + 1).then(|| self.newest_of(*greediest)).flatten()
    }

    /// Refuses the newest requests of clients whose wait is estimated above a quarter more than `hold_max`.
    pub(super) fn trim(&mut self) {
        self.update_prices();
        let allowed = self.wait_max();
        if self.drain() <= allowed || !self.limit.is_clear && self.settings.in_flight.is_none() {
            return;
        }
        for address in self.backlogs.keys().copied().collect::<Vec<_>>() {
            // Its client may have come ahead of its share since it arrived.
            while let Some(newest) = self.newest_of(address)
                && let slot = &self.slots[newest as usize]
                && let is_ahead = self.is_ahead(&slot.request.client)
                && self.standing(&Slot { is_ahead, ..*slot }).wait > allowed
            {
                self.refuse(newest, RefusedBy::WaitTooLong);
            }
        }
    }

    /// Prices of routes have changed since their requests arrived.
    pub(super) fn update_prices(&mut self) {
        let waiting = self.slots.iter().enumerate().filter(|(_, slot)| matches!(slot.state, State::Waiting(_)));
        let changed = waiting.filter(|(_, slot)| {
            let price = self.prices.price(slot.request.route);
            slot.mean != price.usual || slot.lane != octave(price.estimate)
        });
        let mut changed: Vec<(u64, u32)> = changed.map(|(at, slot)| (slot.turn, at as u32)).collect();
        changed.sort_unstable();
        for (_, at) in changed {
            self.unwait(at);
            self.slots[at as usize].mean = self.reprice(at).usual;
            self.wait(at);
        }
    }

    /// The lane with the largest sum of prices: most of the CPU time that waits belongs to its requests.
    pub(super) fn dominant_lane(&self) -> Option<usize> {
        let waits = |lane: &usize| self.waiting_costs.iter().map(|octaves| octaves[*lane]).sum::<u64>();
        (0..OCTAVES).filter(|lane| self.waiting > 0 && self.lanes[*lane].blocks() > 0).max_by_key(waits)
    }

    /// The price of the requests that most of the waiting CPU time belongs to, if one of their route has ended. The
    /// in-flight limit is found for requests of this cost.
    pub(super) fn dominant(&self) -> Option<Price> {
        let first = &self.slots[self.lanes[self.dominant_lane()?].first()?.request as usize];
        Some(self.prices.price(first.request.route)).filter(|price| price.is_seen)
    }

    pub(super) fn newest_of(&self, address: u64) -> Option<u32> {
        let newest = self.lanes.iter().filter_map(|lane| lane.newest_of(address));
        newest.max_by_key(|at| self.slots[*at as usize].arrived)
    }

    pub(super) fn refuse(&mut self, at: u32, reason: RefusedBy) {
        let refusal = self.refusal(reason, self.standing(&self.slots[at as usize]));
        self.unwait(at);
        self.refusals.push(Event::Refuse(self.ticket(at), refusal));
        match self.slots[at as usize].state.reading() {
            Some(reading) => self.slots[at as usize].state = State::Uncounted(reading),
            None => self.remove(at),
        }
    }
}
