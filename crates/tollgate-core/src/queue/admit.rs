//! Whether a request may go to the backend now ([`Queue::may_go`]).
//!
//! A client is behind or ahead of its share of the backend; that is its standing. Prices are classed in octaves
//! (factors of two). The peers of a request are the requests in flight of the same or a better standing that are not
//! heavier by two octaves or more. A price is settled if requests of the route have ended and none in flight costs far
//! more.

use super::client::Client;
use super::limit::UNKNOWN_ALLOWED;
use super::{IN_FLIGHT_MAX, InFlightRequests, Queue, Slot, State};
use crate::time::{Moment, Span};

/// Clients that are ahead yield to others, but one of their requests goes after this time.
const YIELD_MAX: Span = Span::from_secs(1);
/// Requests that cost less than this together, per core, do no harm beyond the limit ([`Queue::is_harmless`]): requests
/// that wait for a database keep permits and leave cores idle, and a backend must not idle while the gate hands over a
/// cheap request. Their number is bounded by twice the largest one seen, or by these two.
const HARMLESS: Span = Span::from_millis(300);
const HARMLESS_MIN: u32 = 16;
const HARMLESS_MAX: u32 = 256;
/// A backend that serves requests one after another has the next ones at hand if they cost less than this together.
const HANDOVER: Span = Span::from_millis(10);
/// Requests of one network that cost less than this together, such as the assets of a page, wait for nobody.
const TRIVIAL: Span = Span::from_millis(2);
/// A client behind its share may have at least this many peers while heavier requests are in flight. If one heavy
/// request computes on the same core, four light ones get four fifths of it, and one gets half.
pub(super) const WITH_HEAVIER: u32 = 4;
/// Requests in flight for longer are no part of a burst: long polls are in flight for 25 s.
const BURST: Span = Span::from_secs(1);

impl Queue {
    /// Whether a request may go to the backend now: whether its peers in flight are below the limit.
    pub(super) fn may_go(&self, slot: &Slot, now: Moment) -> bool {
        if let Some(fixed) = self.settings.in_flight {
            return self.in_flight.requests.len() < fixed as usize;
        }
        if self.in_flight.requests.len() >= IN_FLIGHT_MAX as usize {
            return false;
        }
        // A client that is ahead is not starved, and the first request of a route finds out what the route costs.
        let is_starved = slot.is_ahead && self.in_flight.ahead == 0 && now.since(self.ahead_at) >= YIELD_MAX;
        if is_starved || self.is_probe(slot) {
            return true;
        }
        if self.limit.is_serial {
            let cost = self.in_flight.cost + slot.cost.as_nanos();
            return self.in_flight.requests.len() < self.limit.in_force() as usize || cost <= HANDOVER.as_nanos();
        }
        let peers = self.in_flight.peers(slot.is_ahead, slot.octave);
        let is_heavy = slot.is_ahead || self.contention.is_heavy_octave(slot.octave);
        let contended = self.contention.limit(now).filter(|_| is_heavy);
        let limit = contended.unwrap_or_else(|| self.limit_of(slot));
        // Requests of unknown cost that have harmed nobody so far do not keep others waiting.
        let allowance = self.limit.allowance;
        let (limit, harmless) = if slot.is_settled { (limit, allowance) } else { (limit.max(allowance), 0) };
        let count = peers.count - peers.unsettled.min(harmless);
        // All clients ahead together, heavier requests included, have at most twice the limit.
        let ahead = self.in_flight.ahead.saturating_sub(self.in_flight.all().unsettled.min(harmless));
        let is_below = count < limit && (!slot.is_ahead || ahead < 2 * limit);
        let has_room = is_below || self.is_harmless(slot, peers.count, now);
        // Few requests of unknown cost go at once.
        let is_price_safe = slot.is_settled
            || peers.unsettled < self.limit.exposure(slot, now) && !self.is_exposing(slot, peers.unsettled, now);
        has_room && is_price_safe && !self.is_crowding(slot, now) || self.is_trivial(slot, peers.count)
    }

    /// How many peers it may have in flight, if light and heavy clients do not compete.
    pub(super) fn limit_of(&self, slot: &Slot) -> u32 {
        let is_proven = self.limit.is_proven_for(slot.cost);
        let limit = if is_proven { self.limit.in_force() } else { self.limit.unproven(slot.cost) };
        let has_heavier = !slot.is_ahead && self.in_flight.has_heavier(slot.octave);
        if has_heavier { limit.max(WITH_HEAVIER) } else { limit }
    }

    /// Whether one more request does no harm, although there are enough peers, because all requests in flight cost
    /// little together, or no more than usual ([`Self::record_usual`]). Not while one of them costs far more than its
    /// price, because this price may be as wrong.
    ///
    /// | light clients of other networks | this client | goes if |
    /// |---|---|---|
    /// | none are there | | with all that waits, the cost is small, or at most twice the usual |
    /// | are as fast as in calm | behind its share | the cost is that, and its network has half the usual number |
    /// | are slowed | behind its share | the cost is at most the usual |
    /// | are as fast as in calm | ahead, or contention is on | cost and number are at most the usual |
    fn is_harmless(&self, slot: &Slot, peers: u32, now: Moment) -> bool {
        let Self { in_flight, limit, contention, .. } = self;
        let is_known = slot.is_settled && in_flight.all().unsettled == 0;
        if !is_known || peers >= self.harmless_max() {
            return false;
        }
        let cost = in_flight.cost.saturating_add(slot.cost.as_nanos());
        let harmless = HARMLESS.as_nanos() / 1000 * u64::from(self.cores().as_milli());
        let small = harmless.max(2 * in_flight.usual_cost);
        let (is_usual, is_slowed) = (cost <= in_flight.usual_cost, contention.is_slowed());
        if !contention.has_light(slot.request.client.network, |_, _| true, now) {
            // If only some went, the others would wait for a whole batch of them.
            let waits: u64 = self.waiting_costs.iter().flatten().sum();
            cost.saturating_add(waits) <= small && peers + (self.waiting as u32) < self.harmless_max()
        } else if slot.is_ahead || contention.is_on(now) {
            is_usual && peers < in_flight.usual_count && !is_slowed
        } else if is_slowed {
            is_usual
        } else {
            let most = limit.at_least(UNKNOWN_ALLOWED).max(in_flight.usual_count / 2);
            cost <= small && (self.in_network(slot).count() as u32) < most
        }
    }

    /// Whether this request and those of its network in flight that cost as little cost next to nothing together. An
    /// expensive request of the same visitor does not make the assets of a page wait.
    fn is_trivial(&self, slot: &Slot, peers: u32) -> bool {
        let trivial = self.in_network(slot).map(|other| other.cost).filter(|cost| *cost <= TRIVIAL);
        slot.is_settled
            && slot.cost <= TRIVIAL
            && peers < self.harmless_max()
            && trivial.fold(slot.cost, |sum, cost| sum + cost) <= TRIVIAL
    }

    /// How many peers a harmless request may have.
    fn harmless_max(&self) -> u32 {
        self.limit.shown.saturating_mul(2).clamp(HARMLESS_MIN, HARMLESS_MAX)
    }

    /// The requests in flight of a request's network.
    fn in_network(&self, slot: &Slot) -> impl Iterator<Item = &Slot> {
        let network = slot.request.client.network;
        self.slots_in_flight().filter(move |other| other.request.client.network == network)
    }

    /// A request ends. It shows what is usual if nothing waits, no client is ahead of its share, and several networks
    /// use the backend, whose requests are not slower than in calm. Earlier maxima fade by a 64th.
    pub(super) fn record_usual(&mut self, at: u32, now: Moment) {
        let network = self.slots[at as usize].request.client.network;
        let is_calm = self.waiting == 0 && self.in_flight.ahead == 0 && !self.contention.is_slowed();
        if is_calm && self.contention.has_light(network, |_, _| true, now) {
            let InFlightRequests { requests, cost, usual_count, usual_cost, .. } = &mut self.in_flight;
            *usual_count = (requests.len() as u32).max(*usual_count - usual_count.div_ceil(64));
            *usual_cost = (*cost).max(*usual_cost - *usual_cost / 64);
        }
    }

    /// Whether the client is behind its share, but its network is the heavy one that competes with light clients, and
    /// has as much in flight as heavy clients may ([`Contention`](super::Contention)), whatever their standing.
    fn is_crowding(&self, slot: &Slot, now: Moment) -> bool {
        let is_heavy = !slot.is_ahead && self.contention.network == Some(slot.request.client.network);
        self.contention.limit(now).is_some_and(|limit| is_heavy && self.of_network(slot, |_| true) >= limit)
    }

    /// Whether the network of the client exposes light clients of other networks to a burst of unknown cost: it has as
    /// much of unsettled price in flight as any client may have. That the backend has room for light requests does not
    /// show that it has room for such a burst. `unsettled` is that of all peers, which is cheaper to check first.
    fn is_exposing(&self, slot: &Slot, unsettled: u32, now: Moment) -> bool {
        let is_light = |client: &Client, _| !self.is_ahead(client);
        let is_recent = |state| matches!(state, State::InFlight(_, reading) if now.since(reading.at()) < BURST);
        unsettled >= self.limit.at_least(UNKNOWN_ALLOWED)
            && self.contention.has_light(slot.request.client.network, is_light, now)
            && self.of_network(slot, |other| !other.is_settled && is_recent(other.state))
                >= self.limit.at_least(UNKNOWN_ALLOWED)
    }

    /// How many requests of a request's network are in flight that are not heavier by two octaves or more.
    fn of_network(&self, slot: &Slot, counts: impl Fn(&Slot) -> bool) -> u32 {
        let peers = self.in_network(slot).filter(|other| other.octave <= slot.octave.saturating_add(1));
        peers.filter(|other| counts(other)).count() as u32
    }

    /// The requests in flight, in the order in which they started.
    pub(super) fn slots_in_flight(&self) -> impl Iterator<Item = &Slot> {
        self.in_flight.requests.values().map(|at| &self.slots[*at as usize])
    }

    /// Whether a request goes without waiting, to find out what its unseen route costs. There is one at a time.
    pub(super) fn is_probe(&self, slot: &Slot) -> bool {
        slot.is_unseen && !slot.is_ahead && self.probe.is_none()
    }

    /// Whether a request of the same octave waits that goes before this one: any, if this client is ahead of its share,
    /// otherwise one of a client that is behind, too.
    pub(super) fn has_better(&self, slot: &Slot) -> bool {
        let first = self.lanes[usize::from(slot.octave)].first();
        first.is_some_and(|first| slot.is_ahead || self.tag_of(first.request) <= self.front())
    }
}
