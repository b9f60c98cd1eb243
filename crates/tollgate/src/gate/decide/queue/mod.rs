//! The fair queue in front of one backend, for all workers. [`Queues`] has one for each backend.
//!
//! The queue is at the gate, not in the backend: only here can the order be chosen. The core decides
//! ([`tollgate_core::queue`]); this module waits and wakes. One mutex guards the state. It is held for the arithmetic
//! of one event, about a microsecond, and never while anybody waits.
//!
//! A thread of its own ([`pulse`]) updates prices, limits and estimates while requests wait.

mod bound;
mod permit;
mod pulse;
mod queues;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate_core::network::Network;
use tollgate_core::queue::{
    self as core, Arrival, Client, Event, Forecast, Judgement, Refusal, RefusedBy, Request, RouteKey, Standing, Ticket,
};
use tollgate_core::rule::Mode;
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::Cores;
use tollgate_gatekeeper::clock::Clock;

use super::claims::Claim;
use crate::settings::Gate as Settings;
pub(crate) use bound::{QueueBound, QueueForecast};
use permit::Waiting;
pub(crate) use permit::{Outcome, Permit};
use pulse::Pulse;
pub(crate) use queues::Queues;

pub(crate) use core::IN_FLIGHT_MAX;

/// Prefix lengths of an address, its network and its block, in IPv4 and in IPv6.
pub(crate) const LEVELS: [(u8, u8); 3] = [(32, 64), (24, 56), (16, 48)];

/// The queue in front of one backend.
pub(crate) struct Queue {
    clock: Clock,
    hasher: RandomState,
    state: Mutex<State>,
    pulse: Pulse,
    /// Whether requests wait, for the thread of `pulse`, which reads it without the lock.
    has_waiting: AtomicBool,
    /// The shortest time that it took to connect to the backend, in nanoseconds: one round trip.
    round_trip_ns: AtomicU64,
}

struct State {
    core: core::Queue,
    /// Waiting requests, by the slot of their ticket.
    waiters: Vec<Option<Waiter>>,
    /// The counters; [`Queue::status`] adds the present values.
    counts: QueueStatus,
    waits: Waits,
    /// Whether every request goes at once, and the queue only computes what it would have done.
    is_observing: bool,
}

struct Waiter {
    /// None for a request that only would wait: it is at the backend.
    wake: Option<oneshot::Sender<Result<Ticket, Refusal>>>,
    since: Moment,
}

/// The decision about a request that cannot start at once. Observe mode only records it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Notice {
    /// It waits.
    Held(Standing),
    /// It goes, and would have waited.
    WouldHold(Standing),
    /// It goes, and would have been refused.
    WouldRefuse(Refusal),
}

/// How long the requests waited that were dispatched since [`Queue::take_waits`].
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    sum_ns: u64,
    longest: Span,
    dispatched: u64,
}

/// The state of the queue for metrics and the console.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueStatus {
    /// CPU time charged, in nanoseconds.
    pub(crate) toll_ns: u64,
    /// Requests that have waited.
    pub(crate) waited: u64,
    /// Requests that the queue has refused.
    pub(crate) refused: u64,
    /// Requests that the queue only observed, and of those the ones that would have waited and would have been refused.
    pub(crate) observed: u64,
    pub(crate) would_wait: u64,
    pub(crate) would_refuse: u64,
    /// Whether the queue only observes.
    pub(crate) is_observing: bool,
    /// Requests that wait now, or would.
    pub(crate) waiting: u64,
    /// The in-flight limit, in whole requests.
    pub(crate) in_flight_max: u64,
    /// The load in flight, in whole requests.
    pub(crate) in_flight: u64,
    /// The backend's cores as far as is known, in thousandths.
    pub(crate) cores_milli: u64,
}

/// Why a request does not get a permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    /// When to try again.
    pub(crate) retry_after: Span,
    /// Whether the client's own requests are the reason (for the queue: it is ahead of its share), not everybody's.
    pub(crate) own: bool,
    /// Which bound of the queue refused it, and where it stood. `None` if the limit on uploads did, or if its permit
    /// came in the same instant in which it gave up.
    pub(crate) by_queue: Option<(RefusedBy, Standing)>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let Refusal { reason, standing, retry_after } = refusal;
        Self { retry_after, own: standing.is_ahead, by_queue: Some((reason, standing)) }
    }
}

/// A request that asks for a permit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entering {
    pub(crate) address: IpAddr,
    pub(crate) claim: Claim,
    pub(crate) route: RouteKey,
    /// Memory that the request holds while it waits.
    pub(crate) bytes: u32,
}

impl fmt::Debug for Queue {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Queue {
    /// An empty queue. `hasher` makes the keys of clients.
    fn new(settings: &Settings, hasher: RandomState, clock: Clock) -> Arc<Self> {
        let core = core::Queue::new(queue_settings(settings), clock.now());
        let queue = Arc::new(Self {
            clock,
            hasher,
            state: Mutex::new(State {
                core,
                waiters: Vec::new(),
                counts: QueueStatus::default(),
                waits: Waits::default(),
                is_observing: settings.mode == Mode::Observe,
            }),
            pulse: Pulse::new(settings),
            has_waiting: AtomicBool::new(false),
            round_trip_ns: AtomicU64::new(u64::MAX),
        });
        queue.pulse.start(&queue);
        queue
    }

    /// Predicts the outcome for a request of this address that arrived now; without a route, for an average one.
    pub(crate) fn forecast(&self, address: IpAddr, claim: Claim, route: Option<RouteKey>) -> Forecast {
        let client = self.client(address, claim);
        self.state().core.forecast(client, claim.weight_milli, route, self.clock.now())
    }

    /// The mean cost of requests of this route, and whether nothing is known about it.
    pub(crate) fn expected(&self, route: RouteKey) -> (Span, bool) {
        let price = self.state().core.price(route);
        (price.mean, price.is_unseen)
    }

    /// A permit for the backend, now or when it is this request's turn. `notice` is called if the request has to wait,
    /// or would.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        entering: Entering,
        notice: impl FnOnce(Notice),
    ) -> Result<Permit, Refused> {
        let (request, route) = (self.request(entering), entering.route);
        let (ticket, woken, hold_max) = {
            let mut state = self.state();
            let now = self.clock.now();
            if state.is_observing {
                let (ticket, judgement) = state.core.observe(request, now);
                state.observed(ticket, judgement, now);
                state.dispatch(now);
                self.note_waiting(&state);
                drop(state);
                match judgement {
                    Judgement::Go => {}
                    Judgement::Wait(standing) => notice(Notice::WouldHold(standing)),
                    Judgement::Refuse(refusal) => notice(Notice::WouldRefuse(refusal)),
                }
                return Ok(Permit::new(self, ticket, route, now));
            }
            let arrival = state.core.arrive(request, now);
            let entered = state.arrived(arrival, now);
            state.dispatch(now);
            self.note_waiting(&state);
            match entered {
                Entered::Go(ticket) => return Ok(Permit::new(self, ticket, route, now)),
                Entered::Refuse(refusal) => return Err(refusal.into()),
                Entered::Wait(ticket, standing, woken) => {
                    let hold_max = state.core.settings().hold_max;
                    drop(state);
                    notice(Notice::Held(standing));
                    (ticket, woken, hold_max)
                }
            }
        };
        let mut waiting = Waiting { queue: self, ticket, woken };
        // An estimate may be wrong: a request that was accepted may wait half as long again.
        let patience = Span::from_nanos(hold_max.as_nanos().saturating_mul(3) / 2);
        let refusal = match tokio::time::timeout(patience.into(), &mut waiting.woken).await {
            Ok(Ok(Ok(ticket))) => return Ok(Permit::new(self, ticket, route, self.clock.now())),
            Ok(Ok(Err(refusal))) => Some(refusal),
            Ok(Err(_)) => None,
            Err(_) => self.give_up(ticket),
        };
        // A permit that came in the same instant is given back by the guard.
        Err(refusal.map_or(Refused { retry_after: Span::from_secs(1), own: false, by_queue: None }, Refused::from))
    }

    /// A permit for a request that is exempt: it does not wait and does not count against the limit.
    pub(crate) fn pass(self: &Arc<Self>, entering: Entering) -> Permit {
        let request = self.request(entering);
        let now = self.clock.now();
        let ticket = self.state().core.pass(request, now);
        Permit::new(self, ticket, entering.route, now)
    }

    fn give_up(&self, ticket: Ticket) -> Option<Refusal> {
        let mut state = self.state();
        let refusal = state.core.give_up(ticket, self.clock.now())?;
        state.waiters[ticket.slot()] = None;
        state.counts.refused += 1;
        Some(refusal)
    }

    /// The estimated time until a request would be answered if it entered now, and the load in flight in thousandths of
    /// the limit.
    pub(crate) fn quote(&self, entering: Entering) -> (Span, u64) {
        let request = self.request(entering);
        let mut state = self.state();
        let time = state.core.time_to_answer(request, self.clock.now());
        let in_flight = u64::from(state.core.in_flight()) * 1000;
        (time, in_flight / u64::from(state.core.limit().max(1)))
    }

    /// A connection to the backend was opened in this time.
    pub(crate) fn connected_within(&self, time: Duration) {
        self.round_trip_ns.fetch_min(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The part of `cost`, measured over `wall`, that is not the way to the backend and back. A sixteenth of it at
    /// least: a round trip that has become shorter must not make requests free.
    fn without_round_trip(&self, cost: Span, wall: Span) -> Span {
        let round_trip = self.round_trip_ns.load(Ordering::Relaxed);
        if round_trip == u64::MAX || wall.is_zero() {
            return cost;
        }
        let wall = wall.as_nanos();
        let at_backend = wall.saturating_sub(round_trip).max(wall / 16);
        let nanos = u128::from(cost.as_nanos()) * u128::from(at_backend) / u128::from(wall);
        Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The CPU time that requests have taken, in nanoseconds; wraps.
    fn work_nanos(&self) -> u64 {
        self.state().core.work_nanos(self.clock.now())
    }

    /// The backend has used `cpu` since the last call; none if that is not measured.
    fn measure(&self, cpu: Option<Span>) {
        self.state().core.measure(cpu, self.clock.now());
    }

    /// Updates prices, limits and estimates, and dispatches requests. Returns whether any still wait.
    fn beat(&self) -> bool {
        let mut state = self.state();
        let now = self.clock.now();
        state.core.tick(now);
        state.dispatch(now);
        self.note_waiting(&state);
        state.core.waiting() > 0
    }

    /// The number of cores of the backend's machine that other processes kept busy since the last call; none if that
    /// was long ago.
    fn machine_busy(&self, busy: Option<Cores>) {
        self.state().core.machine_busy(busy, self.clock.now());
    }

    /// Takes over other settings. Waiting requests go on waiting, and what was learned stays.
    fn reload(&self, settings: &Settings) {
        let sees_machine = self.pulse.reload(settings);
        let mut state = self.state();
        let now = self.clock.now();
        if !sees_machine {
            state.core.machine_unseen();
        }
        state.core.set_settings(queue_settings(settings), now);
        state.is_observing = settings.mode == Mode::Observe;
        if state.is_observing {
            state.release(now);
        }
        state.dispatch(now);
    }

    fn learned(&self) -> core::Learned {
        self.state().core.learned()
    }

    fn restore(&self, learned: &core::Learned) {
        self.state().core.restore(learned, self.clock.now());
    }

    /// How many requests may wait.
    pub(crate) fn waiting_max(&self) -> u64 {
        self.state().core.settings().total as u64
    }

    pub(crate) fn status(&self) -> QueueStatus {
        let state = self.state();
        QueueStatus {
            is_observing: state.is_observing,
            waiting: state.core.waiting() as u64,
            in_flight_max: state.core.limit().into(),
            in_flight: state.core.in_flight().into(),
            cores_milli: state.core.cores().as_milli().into(),
            ..state.counts
        }
    }

    /// How long requests have waited since the last call.
    fn take_waits(&self) -> Waits {
        std::mem::take(&mut self.state().waits)
    }

    fn request(&self, entering: Entering) -> Request {
        let Entering { address, claim, route, bytes } = entering;
        Request { client: self.client(address, claim), route, weight_milli: claim.weight_milli, bytes }
    }

    fn client(&self, address: IpAddr, claim: Claim) -> Client {
        let Claim { user, tenant, account, .. } = claim;
        let hash = |(v4, v6): (u8, u8)| match user {
            Some(user) => self.hasher.hash_one((user, v4, account)),
            None => {
                let network = Network::of(address, if address.is_ipv4() { v4 } else { v6 });
                self.hasher.hash_one((network, account))
            }
        };
        let [address, network, block] = LEVELS.map(hash);
        Client { block, network, address, tenant }
    }

    fn note_waiting(&self, state: &State) {
        let has_waiting = state.core.waiting() > 0;
        if has_waiting != self.has_waiting.load(Ordering::Relaxed) {
            self.has_waiting.store(has_waiting, Ordering::Relaxed);
            if has_waiting {
                self.pulse.wake();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in it can be half done: a panic leaves at worst a request uncounted.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome for an arriving request.
enum Entered {
    Go(Ticket),
    Wait(Ticket, Standing, oneshot::Receiver<Result<Ticket, Refusal>>),
    Refuse(Refusal),
}

impl State {
    fn arrived(&mut self, arrival: Arrival, now: Moment) -> Entered {
        match arrival {
            Arrival::Go(ticket) => {
                self.waits.dispatched += 1;
                Entered::Go(ticket)
            }
            Arrival::Wait(ticket, standing) => {
                let (wake, woken) = oneshot::channel();
                self.add_waiter(ticket, Waiter { wake: Some(wake), since: now });
                self.counts.waited += 1;
                Entered::Wait(ticket, standing, woken)
            }
            Arrival::Refuse(refusal) => {
                self.counts.refused += 1;
                Entered::Refuse(refusal)
            }
        }
    }

    fn observed(&mut self, ticket: Ticket, judgement: Judgement, now: Moment) {
        self.counts.observed += 1;
        match judgement {
            Judgement::Go => self.waits.dispatched += 1,
            Judgement::Wait(_) => {
                self.counts.would_wait += 1;
                self.add_waiter(ticket, Waiter { wake: None, since: now });
            }
            Judgement::Refuse(_) => self.counts.would_refuse += 1,
        }
    }

    fn add_waiter(&mut self, ticket: Ticket, waiter: Waiter) {
        if self.waiters.len() <= ticket.slot() {
            self.waiters.resize_with(ticket.slot() + 1, || None);
        }
        self.waiters[ticket.slot()] = Some(waiter);
    }

    /// Lets every request go that waits: the queue begins to observe.
    fn release(&mut self, now: Moment) {
        let tickets: Vec<Ticket> = self.core.tickets_waiting().collect();
        for ticket in tickets.into_iter().filter(|ticket| self.core.release(*ticket, now)).collect::<Vec<_>>() {
            let wake = self.waiters[ticket.slot()].as_mut().and_then(|waiter| waiter.wake.take());
            if wake.is_none_or(|wake| wake.send(Ok(ticket)).is_err()) {
                self.settled(ticket, now);
                self.core.done(ticket, Span::ZERO, false, now);
            }
        }
    }

    /// A request ends. If its turn has not come, it would have waited until now.
    fn settled(&mut self, ticket: Ticket, now: Moment) {
        if let Some(waiter) = self.waiters.get_mut(ticket.slot()).and_then(Option::take) {
            self.count_wait(now.since(waiter.since));
        }
    }

    fn count_wait(&mut self, wait: Span) {
        self.waits.sum_ns = self.waits.sum_ns.saturating_add(wait.as_nanos());
        self.waits.longest = self.waits.longest.max(wait);
        self.waits.dispatched += 1;
    }

    /// Wakes the requests whose wait is over.
    fn dispatch(&mut self, now: Moment) {
        while let Some(event) = self.core.poll(now) {
            match event {
                Event::Go(ticket) => self.wake(ticket, now),
                Event::Refuse(ticket, refusal) => {
                    match self.waiters[ticket.slot()].take().and_then(|waiter| waiter.wake) {
                        Some(wake) => {
                            self.counts.refused += 1;
                            let _ = wake.send(Err(refusal));
                        }
                        None => self.counts.would_refuse += 1,
                    }
                }
            }
        }
    }

    fn wake(&mut self, ticket: Ticket, now: Moment) {
        let waiter = self.waiters.get_mut(ticket.slot()).and_then(Option::take);
        let is_taken = waiter.is_some_and(|waiter| {
            self.count_wait(now.since(waiter.since));
            waiter.wake.is_none_or(|wake| wake.send(Ok(ticket)).is_ok())
        });
        if !is_taken {
            self.core.done(ticket, Span::ZERO, false, now);
        }
    }
}

/// The settings of one queue: the room for waiting requests is split evenly among the backends.
fn queue_settings(settings: &Settings) -> core::Settings {
    let backends = settings.all_backends().len().max(1);
    core::Settings {
        shares: settings.fairness.shares(),
        cores: settings.cores,
        in_flight: settings.in_flight,
        hold_max: settings.hold.max,
        total: (settings.hold.total as usize).div_ceil(backends),
        memory: settings.hold.memory / backends as u64,
    }
}
