//! Whether a request may go to the backend now.

use super::client::TAGS;
use super::{IN_FLIGHT_MAX, OCTAVES, Queue, Request, Slot, Ticket};
use crate::time::{Moment, Span};
use crate::virtual_clock::Load;

/// Clients that are ahead yield to others, but one of their requests goes after this time.
const YIELD_MAX: Span = Span::from_secs(1);
/// Settled requests that cost less than this together always go: a backend must not idle while the gate hands over the
/// next one.
const HANDOVER: Span = Span::from_millis(10);
const HANDOVER_MAX: Load = Load::of(8);
/// How many requests of unsettled price may be in flight, if the cores are fewer.
const EXPOSED: Load = Load::of(4);
/// This many requests of clients behind their share may share the backend with heavier ones: four of them get four
/// fifths of a core, one gets half of it.
const BESIDE_HEAVIER: Load = Load::of(4);

impl Queue {
    /// A request arrives that neither waits nor counts against the limit, such as a health check. Its client is not
    /// charged.
    pub fn pass(&mut self, request: Request, now: Moment) -> Ticket {
        self.advance(now);
        let slot = self.slot_for(request, [0; TAGS], now);
        let ticket = self.insert(Slot { is_exempt: true, ..slot });
        self.run_beside(ticket.slot, now);
        ticket
    }

    /// The estimated cost of a request of the lane in which most CPU time waits, if that cost is known.
    pub(super) fn dominant(&self) -> Option<Span> {
        if self.waiting == 0 {
            return None;
        }
        let waits = |lane: &usize| self.waiting_costs.iter().map(|octaves| octaves[*lane]).sum::<u64>();
        let lane = (0..OCTAVES).filter(|lane| !self.lanes[*lane].is_empty()).max_by_key(waits)?;
        let first = &self.slots[self.lanes[lane].first()?.request as usize];
        Some(self.prices.price(first.request.route)).filter(|price| price.is_settled).map(|price| price.usual)
    }

    /// Whether a request may go to the backend now. It waits for its peers: requests of the same or a better standing
    /// that are not heavier by two octaves or more.
    pub(super) fn may_go(&self, slot: &Slot, now: Moment) -> bool {
        if let Some(fixed) = self.settings.in_flight {
            return self.in_flight.count() < fixed as usize;
        }
        if self.in_flight.count() >= IN_FLIGHT_MAX as usize {
            return false;
        }
        // A client that is ahead is not starved, and the first request of a route finds out what the route costs.
        let is_starved = slot.is_ahead && self.in_flight.ahead() == Load::ZERO && now.since(self.ahead_at) >= YIELD_MAX;
        if is_starved || self.is_probe(slot) {
            return true;
        }
        let peers = self.in_flight.peers(slot.is_ahead, slot.octave);
        let limit = self.limit_of(slot);
        let has_proof = slot.is_settled || peers.unsettled < self.limit.exposure(slot.cost, self.exposed());
        let is_level = !slot.is_ahead || self.in_flight.ahead() < twice(limit);
        peers.load < limit && has_proof && is_level
    }

    /// How much of its standing and octave may be in flight.
    pub(super) fn limit_of(&self, slot: &Slot) -> Load {
        let at_most =
            |cpu: Span| Load::from_256ths(cpu.as_nanos() / slot.cost.as_nanos().max(1) * Load::ONE.as_256ths());
        let mut limit = self.limit.in_force();
        if !self.limit.is_proven_for(slot.cost) {
            limit = self.limit.unproven(slot.cost);
        }
        // Not beside requests that cost far more than their price: theirs may be no better.
        if slot.is_settled && self.in_flight.peers(true, OCTAVES as u8 - 1).unsettled == Load::ZERO {
            limit = limit.max(at_most(HANDOVER).min(HANDOVER_MAX));
        }
        if !slot.is_ahead && self.in_flight.has_heavier(slot.octave) {
            limit = limit.max(BESIDE_HEAVIER);
        }
        limit
    }

    /// How many requests of unsettled price may be in flight: as many as keep the cores busy.
    pub(super) fn exposed(&self) -> Load {
        EXPOSED.max(Load::of_cores(self.settings.cores))
    }

    pub(super) fn is_probe(&self, slot: &Slot) -> bool {
        slot.is_unseen && !slot.is_ahead && self.probe.is_none()
    }

    /// Whether a request waits that goes before this one and is bound by the same peers.
    pub(super) fn has_better(&self, slot: &Slot) -> bool {
        let first = self.lanes[usize::from(slot.octave)].first();
        first.is_some_and(|first| slot.is_ahead || self.tag_of(first.request) <= self.front())
    }
}

const fn twice(load: Load) -> Load {
    Load::from_256ths(load.as_256ths() * 2)
}
