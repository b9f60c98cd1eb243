//! Estimates how long a request will wait until it starts, from the CPU time that goes before it and the rate at which
//! the backend serves CPU time. A request with an estimated wait above `hold_max` may be refused. Also predicts what the
//! queue would do with a request, without admitting it.
//!
//! Waiting requests are in lanes by octave: prices are classed by factors of two. A request competes with those of its
//! own octave, of lighter ones, and of the next heavier one. Its standing is whether its client is ahead of its share.

use super::client::{Client, largest};
use super::results::{Fate, Forecast, Refusal, RefusedBy, Standing};
use super::tree::quantum;
use super::{OCTAVE_BASE_NS, OCTAVES, Queue, Request, RouteKey, Slot, State};
use crate::time::{Moment, Span};
use crate::virtual_clock::divide;

/// The service rate is measured over the last 2 to 4 s in which requests waited.
const WINDOW_NS: u64 = 2_000_000_000;
/// The cores count for this much of such time before anything is measured.
const PRIOR_NS: u64 = 500_000_000;
/// How many address blocks (IPv4 /16, IPv6 /48) are counted that go before a client which has nothing waiting.
const BLOCKS_MAX: usize = 256;
/// Bounds of `Retry-After`.
const RETRY_MIN_MS: u64 = 1_000;
const RETRY_MAX_MS: u64 = 60_000;

/// Busy core time per second while requests wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceRate {
    /// The last time it was observed and the clock's work then, in nanoseconds, if requests waited.
    pub(super) since: Option<(Moment, u64)>,
    /// Time in which requests waited, and the work done in it.
    elapsed: u64,
    work: u64,
}

impl ServiceRate {
    pub(super) fn observe(&mut self, work: u64, is_waiting: bool, now: Moment) {
        if let Some((at, work_at)) = self.since {
            self.elapsed += now.since(at).as_nanos();
            self.work += work.wrapping_sub(work_at);
            if self.elapsed > 2 * WINDOW_NS {
                (self.elapsed, self.work) = (self.elapsed / 2, self.work / 2);
            }
        }
        self.since = is_waiting.then_some((now, work));
    }
}

impl Queue {
    /// The estimated time until a request that arrived now would be answered: for the choice among several backends.
    pub fn time_to_answer(&mut self, request: Request, now: Moment) -> Span {
        self.advance(now);
        let slot = self.slot_for(request, now);
        let wait = if self.goes_at_once(&slot, now) { Span::ZERO } else { self.standing(&slot).wait };
        // The request shares the cores with all in flight, and takes longer than its price by that factor.
        let cores = self.cores().as_milli();
        let shared = u64::from(self.in_flight() + 1) * 1000;
        let nanos = u128::from(slot.cost.as_nanos()) * u128::from(shared.max(cores.into()));
        wait + Span::from_nanos(divide(nanos, cores.into()))
    }

    /// Predicts the fate of a request of this client and weight. Without a route it has the mean cost of all requests.
    pub fn forecast(&mut self, client: Client, weight_milli: u32, route: Option<RouteKey>, now: Moment) -> Forecast {
        self.advance(now);
        let any = RouteKey { route: u64::MAX, parent: u64::MAX };
        let request = Request { client, route: route.unwrap_or(any), weight_milli, bytes: 0 };
        let slot = self.slot_for(request, now);
        // A request of no known route is like most others: it does not go first to find out what its route costs.
        let slot = Slot { is_unseen: slot.is_unseen && route.is_some(), ..slot };
        let standing = self.standing(&slot);
        let has_room = self.waiting < self.settings.total && self.waiting_bytes < self.settings.memory;
        let fate = if self.goes_at_once(&slot, now) {
            Fate::Go
        } else if self.waits_too_long(&slot, standing) {
            Fate::Refuse(RefusedBy::WaitTooLong)
        } else if has_room || self.last_ahead_of(&client).is_some() {
            Fate::Wait
        } else {
            Fate::Refuse(RefusedBy::Full)
        };
        Forecast { standing, fate }
    }

    /// Where a request stands, whether it waits already or is about to.
    ///
    /// The wait ends when everything that goes before it has been served: no more than all that competes with it, and
    /// no more than its own client's requests and as much of each other client's, divided by its own weight. Requests
    /// compete with it if their clients' standing is the same or better, and their octave is at most one above its own.
    pub(super) fn standing(&self, slot: &Slot) -> Standing {
        let heaviest = (usize::from(slot.octave) + 1).min(OCTAVES - 1);
        let standings = &self.waiting_costs[..=usize::from(slot.is_ahead)];
        let total: u64 = standings.iter().flat_map(|octaves| &octaves[..=heaviest]).sum();
        let addresses: u32 = self.lanes[..=heaviest].iter().map(|lane| lane.addresses).sum();
        let own = self.backlogs.get(&slot.request.client.address).copied().unwrap_or_default();
        let (is_new, mean) = (!matches!(slot.state, State::Waiting(_)), slot.mean.as_nanos());
        let (cost, count) = (own.cost.saturating_add(if is_new { mean } else { 0 }), own.count + u32::from(is_new));
        let others = u128::from(cost) * u128::from(addresses.saturating_sub(1)) * 1000;
        let others = divide(others, slot.request.weight_milli.max(1).into());
        let mut before = total.min(cost.saturating_add(others).saturating_sub(mean));
        if count == 1 && self.time_for(before) > self.settings.hold_max {
            before = self.before_newcomer(slot).map_or(before, |first| first.min(before));
        }
        let waiting = u32::try_from(self.waiting).unwrap_or(u32::MAX).saturating_add(is_new.into());
        let position = waiting.min(count.saturating_mul(addresses.max(1)));
        Standing { is_ahead: slot.is_ahead, position, wait: self.time_for(before) }
    }

    /// Time to serve `cost` nanoseconds of CPU time.
    fn time_for(&self, cost: u64) -> Span {
        let prior = u128::from(PRIOR_NS) * u128::from(self.settings.cores.as_milli()) / 1000;
        let (elapsed, work) = (u128::from(self.rate.elapsed + PRIOR_NS), u128::from(self.rate.work) + prior);
        Span::from_nanos(divide(u128::from(cost) * elapsed, work))
    }

    /// The price of what goes before a request whose client has nothing else waiting: the next request of every block
    /// that goes before its own. `None` if those are many. Requests that arrived before their client came ahead of its
    /// share do not count here, whereas [`Self::standing`] counts them.
    fn before_newcomer(&self, slot: &Slot) -> Option<u64> {
        let heaviest = (usize::from(slot.octave) + 1).min(OCTAVES - 1);
        let client = &slot.request.client;
        let rank = (quantum(largest(self.tags(client))), u64::MAX);
        let lanes = self.lanes[..=heaviest].iter().enumerate();
        let costs = lanes.map(|(octave, lane)| match lane.blocks_before(client.block, rank, BLOCKS_MAX) {
            BLOCKS_MAX => None,
            blocks => Some(blocks as u64 * (OCTAVE_BASE_NS << octave) * 3 / 2),
        });
        costs.sum()
    }

    /// Time until everything that waits has been served.
    pub(super) fn drain(&self) -> Span {
        self.time_for(self.waiting_costs.iter().flatten().sum())
    }

    /// Waiting requests are refused if they would wait longer: the estimate may have risen since they arrived.
    pub(super) const fn wait_max(&self) -> Span {
        Span::from_nanos(self.settings.hold_max.as_nanos() / 4 * 5)
    }

    /// Makes a refusal. Its `retry_after` is the request's own estimated wait: at most 1.25 times `hold_max` for
    /// [`RefusedBy::WaitTooLong`], at least the drain time for [`RefusedBy::Full`]. It varies by -5 % to +15 %, so that
    /// clients do not come back all at once, and is 1 s to 60 s.
    pub(super) fn refusal(&mut self, reason: RefusedBy, standing: Standing) -> Refusal {
        self.jitter = self.jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let spread = 950 + (self.jitter >> 33) % 200;
        let wait = match reason {
            RefusedBy::Full => standing.wait.max(self.drain()),
            // Of several that are refused together, the first was estimated to wait for the others, which are gone.
            RefusedBy::WaitTooLong => standing.wait.min(self.wait_max()),
        };
        let millis = (wait.as_nanos() / 1_000_000).saturating_mul(spread) / 1000;
        Refusal { reason, standing, retry_after: Span::from_millis(millis.clamp(RETRY_MIN_MS, RETRY_MAX_MS)) }
    }
}
