//! Charges clients for their use of the backend, in virtual time.
//!
//! Every address, network and block has a tag in virtual time, which advances by the cost of its requests divided by
//! its share of the cores. A client whose largest tag is less than [`BEHIND`] before the present is ahead of its share.

use super::client::{Client, Shares, TAGS, largest};
use super::tree::quantum;
use super::{Queue, Slot, octave};
use crate::time::{Moment, Span};
use crate::virtual_clock::divide;

/// How far back in virtual time a key can be, and so how much credit it can save up.
pub(super) const CREDIT: Span = Span::from_secs(10);
/// A client this far back is behind its share. The rest of the credit is a burst: half a core-second for an address
/// with a tenth of a core.
const BEHIND: Span = Span::from_secs(5);
/// How often requests in flight are compared with their prices.
const OVERRUNS_EVERY: Span = Span::from_millis(5);

impl Queue {
    /// Charges the client of the request in slot `at` the difference between `cost` and the charge so far, which may be
    /// a refund.
    pub(super) fn charge(&mut self, at: u32, cost: Span) {
        let slot = &mut self.slots[at as usize];
        let (client, weight, charged) = (slot.request.client, slot.request.weight_milli, slot.charged);
        slot.charged = cost;
        let by: fn(u64, u64) -> u64 = if cost >= charged { u64::saturating_add } else { u64::saturating_sub };
        let cpu = cost.as_nanos().abs_diff(charged.as_nanos());
        let least = self.least();
        let [mut tags, before] = [self.tags_from(&client, 0); 2];
        let due = u128::from(self.cores().as_milli()) * u128::from(weight.max(1));
        let Shares { block_milli, network_milli, address_milli } = self.settings.shares;
        let shares = [block_milli, network_milli, address_milli];
        for ((tag, share), key) in tags.iter_mut().zip(shares).zip(client.keys()) {
            let advance = divide(u128::from(cpu) * 1_000_000_000, due * u128::from(share.max(1)));
            *tag = by((*tag).max(least), advance).max(least);
            self.ledger.set(key, *tag, least);
        }
        if self.waiting > 0 && before.map(quantum) != tags.map(quantum) {
            self.lanes.iter_mut().for_each(|lane| lane.retag(&client, tags));
        }
    }

    /// Raises the estimate of every request in flight that has cost half more than its price, and with it the price of
    /// its route.
    pub(super) fn check_overruns(&mut self, now: Moment) {
        if now.since(self.overruns_at) < OVERRUNS_EVERY {
            return;
        }
        self.overruns_at = now;
        let mut next = 0;
        while let Some((&start, &at)) = self.in_flight.requests.range(next..).next() {
            // Where requests are served one after another, only the oldest costs something now.
            next = if self.clock.is_serial { u64::MAX } else { start + 1 };
            let slot = self.slots[at as usize];
            let so_far = self.so_far(self.ticket(at), now);
            if so_far.as_nanos() <= slot.cost.as_nanos().saturating_add(slot.cost.as_nanos() / 2) {
                continue;
            }
            let cost = so_far.times(2);
            let is_surprise = self.prices.raise(slot.request.route, cost, !slot.has_overrun);
            let is_settled = slot.is_settled && !is_surprise;
            let raised = Slot { cost, octave: octave(cost), is_settled, has_overrun: true, ..slot };
            self.in_flight.count(&slot, -1);
            self.in_flight.count(&raised, 1);
            self.slots[at as usize] = raised;
            // A probe that exceeds its price has shown that its route is expensive: the next unseen route has its turn.
            self.probe = self.probe.filter(|probe| *probe != at);
            self.charge(at, cost);
        }
    }

    /// Virtual time passes at least as fast as real time: an address that takes less than its share is never ahead.
    pub(super) fn advance(&mut self, now: Moment) {
        self.time = self.time.saturating_add(now.since(self.at).as_nanos());
        self.at = self.at.max(now);
        if self.waiting > 0 || self.rate.since.is_some() {
            let work = self.clock.work_nanos(now);
            self.rate.observe(work, self.waiting > 0, now);
        }
    }

    /// The tag up to which a client is behind its share, and above which it is ahead.
    pub(super) const fn front(&self) -> u64 {
        self.time.saturating_sub(BEHIND.as_nanos())
    }

    /// The smallest tag that a key can have.
    pub(super) const fn least(&self) -> u64 {
        self.time.saturating_sub(CREDIT.as_nanos())
    }

    /// The largest tag of the client of the request in slot `at`.
    pub(super) fn tag_of(&self, at: u32) -> u64 {
        largest(self.tags(&self.slots[at as usize].request.client))
    }

    /// Whether a client is ahead of its share now.
    pub(super) fn is_ahead(&self, client: &Client) -> bool {
        largest(self.tags(client)) > self.front()
    }

    pub(super) fn tags(&self, client: &Client) -> [u64; TAGS] {
        self.tags_from(client, self.least())
    }

    fn tags_from(&self, client: &Client, least: u64) -> [u64; TAGS] {
        let [block, network, address, _] = client.keys();
        [block, network, address].map(|key| self.ledger.tag(key, least))
    }
}
