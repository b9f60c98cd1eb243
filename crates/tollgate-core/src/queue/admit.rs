//! Whether a request may go to the backend now.

use super::client::{Client, TAGS};
use super::contention::Contenders;
use super::tree::Tree;
use super::{IN_FLIGHT_MAX, OCTAVES, Price, Queue, Request, Slot, State, Ticket, largest, octave};
use crate::time::{Moment, Span};
use crate::virtual_clock::{Cores, Load};

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
/// If fewer cores are busy, nothing on the machine computes all the time. The kernel counts in steps of 10 ms: a core
/// that is always busy can look like 0.8 of one in 50 ms.
const IDLE_MAX: Cores = Cores::from_milli(700);
/// A request that costs this many times as much as a light client's is heavy.
const HEAVY: u64 = 4;
/// Requests in flight for longer are no part of a burst: long polls are in flight for 25 s.
const BURST: Span = Span::from_secs(1);

impl Slot {
    fn is_recent(&self, now: Moment) -> bool {
        matches!(self.state, State::InFlight(_, reading) if now.since(reading.at()) < BURST)
    }
}

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

    /// The lane in which most CPU time waits.
    fn dominant_lane(&self) -> Option<usize> {
        if self.waiting == 0 {
            return None;
        }
        let waits = |lane: &usize| self.waiting_costs.iter().map(|octaves| octaves[*lane]).sum::<u64>();
        (0..OCTAVES).filter(|lane| !self.lanes[*lane].is_empty()).max_by_key(waits)
    }

    /// The price of the requests that most of the waiting CPU time belongs to, if one of them has ended.
    pub(super) fn dominant(&self) -> Option<Price> {
        self.lane_price(self.dominant_lane()?)
    }

    fn lane_price(&self, lane: usize) -> Option<Price> {
        let first = &self.slots[self.lanes[lane].first()?.request as usize];
        Some(self.prices.price(first.request.route)).filter(|price| price.is_seen)
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
        let contended =
            if slot.is_ahead { self.contention.limit(now) } else { self.contention.limit_of_octave(slot.octave, now) };
        let limit = contended.unwrap_or_else(|| self.limit_of(slot));
        if self.is_crowding(slot, peers.load, now) {
            return false;
        }
        let exposure = self.limit.exposure(slot.cost, self.exposed());
        let has_proof = slot.is_settled || peers.unsettled < exposure && !self.is_exposing(slot, peers.unsettled, now);
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

    /// Whether the network of a client behind its share has as much in flight as it may beside light clients.
    fn is_crowding(&self, slot: &Slot, peers: Load, now: Moment) -> bool {
        let limit = self.contention.limit_of(slot.request.client.network, now);
        limit.is_some_and(|limit| !slot.is_ahead && peers >= limit && self.of_network(slot, |_| true) >= limit)
    }

    /// Whether the network of a client has as much of unsettled price in flight as it may beside light clients of other
    /// networks. A backend that serves their requests at once may not serve a burst of unknown cost.
    fn is_exposing(&self, slot: &Slot, unsettled: Load, now: Moment) -> bool {
        let is_light = |client: &Client, _| largest(self.tags(client)) <= self.front();
        unsettled >= self.exposed()
            && self.contention.has_light(slot.request.client.network, is_light, now)
            && self.of_network(slot, |other| !other.is_settled && other.is_recent(now)) >= self.exposed()
    }

    /// The load in flight of a request's network, of requests that are not heavier by two octaves or more.
    fn of_network(&self, slot: &Slot, counts: impl Fn(&Slot) -> bool) -> Load {
        self.load_of(|other| {
            other.request.client.network == slot.request.client.network
                && other.octave <= slot.octave.saturating_add(1)
                && counts(other)
        })
    }

    /// The load in flight of some requests.
    fn load_of(&self, counts: impl Fn(&Slot) -> bool) -> Load {
        let in_flight = (0..self.in_flight.count()).map(|index| &self.slots[self.in_flight.get(index) as usize]);
        in_flight.filter(|slot| counts(slot)).fold(Load::ZERO, |sum, slot| sum.plus(slot.load))
    }

    /// The number of cores of the backend's machine that processes other than the gate kept busy since the last call;
    /// `None` if the last call was long ago. Call it every 50 ms while requests wait.
    pub fn machine_busy(&mut self, busy: Option<Cores>, now: Moment) {
        self.is_idle = busy.is_some_and(|busy| busy < IDLE_MAX);
        let Some(busy) = busy else { return };
        let is_heavy = |slot: &Slot| self.contention.is_heavy(slot.request.client.network, slot.octave, now);
        let heavy = self.load_of(|slot| slot.is_ahead || is_heavy(slot));
        self.contention.record_busy(busy, heavy, now);
    }

    /// The gate cannot see how busy the backend's machine is any more.
    pub fn machine_unseen(&mut self, now: Moment) {
        self.is_idle = false;
        self.contention.forget_machine(now);
    }

    /// Finds out whether light clients use the backend beside heavy ones that wait.
    pub(super) fn update_contention(&mut self, now: Moment) {
        let last = self.lanes.iter().filter_map(Tree::last).map(|end| (self.tag_of(end.request), end.request)).max();
        let is_ahead = last.is_some_and(|(tag, _)| tag > self.front());
        let lane = self.dominant_lane();
        let is_heavy = is_ahead || lane.is_some_and(|lane| self.lanes[lane].blocks() == 1);
        let price =
            lane.and_then(|lane| self.lane_price(lane)).filter(|price| price.is_settled).map(|price| price.usual);
        let dominant = price.filter(|_| self.contention.may_have_heavy(self.cores(), now));
        let is_lighter = |cost: Span| dominant.is_some_and(|dominant| cost.times(HEAVY) <= dominant);
        // A light client that has to wait, too, still counts while contention is on.
        let is_light = |client: &Client, cost| {
            let waits = !self.contention.is_on(now) && self.owns.contains_key(&client.address);
            (is_heavy || is_lighter(cost)) && largest(self.tags(client)) <= self.front() && !waits
        };
        let network = last.map(|(_, at)| self.slots[at as usize].request.client.network);
        let network = network.filter(|network| self.contention.has_light(*network, is_light, now));
        let has_lighter = |network| self.contention.has_light(network, |_, cost| is_lighter(cost), now);
        let heavy = dominant.filter(|_| network.is_some_and(has_lighter)).map(octave);
        let is_found = self.limit.is_found() && price.is_some_and(|price| self.limit.is_proven_for(price));
        let cores = Load::of_cores(self.cores());
        let start = if is_found { self.limit.in_force() } else { cores.min(self.limit.in_force()) };
        let contenders = Contenders { network, heavy, start, cores: self.settings.cores };
        let limit = &mut self.limit;
        self.contention.update(&contenders, |number| limit.has_room(number), now);
        limit.set_contended(network.is_some());
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
