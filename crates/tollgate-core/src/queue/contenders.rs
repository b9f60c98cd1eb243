//! Finds out which clients compete for the backend, for [`Contention`](super::Contention).
//!
//! A light client is behind its share of the backend, and its last request went at once. Heavy clients wait: those
//! ahead of their share, or a network of the one address block that most of the waiting CPU time belongs to. While both
//! are there, heavy ones have an in-flight limit of their own. This file decides whether that is so whenever requests
//! wait, and passes on how busy the backend's machine is, where the gate sees that.

use super::client::Client;
use super::{Queue, Slot, octave};
use crate::time::{Moment, Span};
use crate::virtual_clock::{Cores, Load};

/// If fewer cores than this are busy, nothing on the machine computes all the time. The kernel counts in steps of 10
/// ms: a core that is always busy can look like 0.8 of one in 50 ms.
const IDLE_MAX: Cores = Cores::from_milli(700);
/// A request that costs this many times as much as a light client's is heavy.
const HEAVY: u64 = 4;

/// The clients that compete for the backend.
pub(super) struct Contenders {
    /// The network of the waiting client furthest ahead, if a light client of another network uses the backend, too.
    pub(super) network: Option<u64>,
    /// The octave (class of prices by factors of two) of requests that are heavy, whichever client sends them.
    pub(super) heavy: Option<u8>,
    /// The limit to begin with.
    pub(super) start: Load,
    /// The backend's cores by the settings.
    pub(super) cores: Cores,
}

impl Queue {
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

    /// Finds out whether light clients use the backend while heavy ones wait. `dominant` is the usual cost of the
    /// requests that most of the waiting CPU time belongs to, while those may be heavy by their cost alone.
    pub(super) fn update_contention(&mut self, now: Moment) {
        let last = self.last();
        let is_ahead = last.is_some_and(|(tag, _)| tag > self.front());
        let lane = self.dominant_lane();
        let is_heavy = is_ahead || lane.is_some_and(|lane| self.lanes[lane].blocks() == 1);
        let price =
            lane.and_then(|lane| self.lane_price(lane)).filter(|price| price.is_settled).map(|price| price.usual);
        let dominant = price.filter(|_| self.contention.may_have_heavy(self.cores(), now));
        let is_lighter = |cost: Span| dominant.is_some_and(|dominant| cost.times(HEAVY) <= dominant);
        // A light client that has to wait, too, still counts while contention is on.
        let is_light = |client: &Client, cost| {
            let waits = !self.contention.is_on(now) && self.backlogs.contains_key(&client.address);
            (is_heavy || is_lighter(cost)) && !self.is_ahead(client) && !waits
        };
        let network = last.map(|(_, at)| self.slots[at as usize].request.client.network);
        let network = network.filter(|network| self.contention.has_light(*network, is_light, now));
        let has_lighter = |network| self.contention.has_light(network, |_, cost| is_lighter(cost), now);
        let heavy = dominant.filter(|_| network.is_some_and(has_lighter)).map(octave);
        let start = Load::of_cores(self.cores()).min(self.limit.in_force());
        let contenders = Contenders { network, heavy, start, cores: self.settings.cores };
        let is_lone = self.lanes.iter().all(|lane| lane.blocks() <= 1);
        let limit = &mut self.limit;
        self.contention.update(&contenders, |number| limit.has_room(number), now);
        limit.set_contended(network.is_some(), is_lone);
    }
}
