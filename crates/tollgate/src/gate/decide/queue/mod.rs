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

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::Thread;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tollgate_core::queue::{self as core, Arrival, Client, Event, Forecast, Refusal, Request, RouteKey, Ticket};
use tollgate_core::rule::Mode;
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::clock::Clock;

use crate::settings::{BackendUrl, Gate as Settings};
pub(crate) use bound::QueueBound;
use permit::Waiting;
pub(crate) use permit::{Outcome, Permit};
pub(crate) use queues::Queues;

/// Prefix lengths of an address, its network and its block, in IPv4 and in IPv6.
pub(crate) const LEVELS: [(u8, u8); 3] = [(32, 64), (24, 56), (16, 48)];

/// The queue in front of one backend.
pub(crate) struct Queue {
    /// None if the settings name no backend.
    url: Option<BackendUrl>,
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    core: core::Queue,
    /// The requests that wait, or would.
    waiters: BTreeMap<Ticket, Waiter>,
    /// The counters; [`Queue::status`] adds the present values.
    counts: QueueStatus,
    waits: Waits,
    /// The shortest time that it took to connect to the backend: one round trip. None before the first connection.
    round_trip: Option<Span>,
    /// Whether every request goes at once, and the queue only computes what it would have done.
    is_observing: bool,
    /// The thread of [`pulse`]; none if it could not be started.
    thread: Option<Thread>,
}

/// The message to a waiting request: its turn has come, or it is refused.
type Wake = oneshot::Sender<Result<(), Refusal>>;
type Woken = oneshot::Receiver<Result<(), Refusal>>;

struct Waiter {
    /// None for a request that only would wait: it is at the backend. Otherwise a [`Waiting`] has the receiver, and
    /// removes this waiter before it drops the receiver.
    wake: Option<Wake>,
    since: Moment,
}

/// How long the requests waited that were dispatched, or refused after a wait, since [`Queues::take_wait`].
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    sum: Span,
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
    /// The in-flight limit.
    pub(crate) in_flight_max: u64,
    /// How many requests are in flight.
    pub(crate) in_flight: u64,
    /// The backend's cores as far as is known, in thousandths.
    pub(crate) cores_milli: u64,
}

impl Queue {
    /// An empty queue.
    fn new(url: Option<BackendUrl>, settings: &Settings, clock: Clock) -> Arc<Self> {
        let state = State {
            core: core::Queue::new(queue_settings(settings), clock.now()),
            waiters: BTreeMap::new(),
            counts: QueueStatus::default(),
            waits: Waits::default(),
            round_trip: None,
            is_observing: settings.mode == Mode::Observe,
            thread: None,
        };
        let queue = Arc::new(Self { url, clock, state: Mutex::new(state) });
        queue.state.lock().thread = pulse::start(&queue);
        queue
    }

    /// Calls the core. No request is dispatched.
    fn with_core<T>(&self, call: impl FnOnce(&mut core::Queue, Moment) -> T) -> T {
        let mut state = self.state.lock();
        call(&mut state.core, self.clock.now())
    }

    /// Changes the state, and dispatches the requests whose turn has come.
    fn update<T>(&self, change: impl FnOnce(&mut State, Moment) -> T) -> T {
        let mut state = self.state.lock();
        let now = self.clock.now();
        let result = change(&mut state, now);
        while let Some(event) = state.core.poll(now) {
            state.handle(event, now);
        }
        result
    }

    /// Predicts the outcome for a request that arrived now; without a route, for an average one.
    pub(crate) fn forecast(&self, client: Client, weight_milli: u32, route: Option<RouteKey>) -> Forecast {
        self.with_core(|core, now| core.forecast(client, weight_milli, route, now))
    }

    /// A permit for the backend, now or when it is this request's turn. `notice` is called with the decision, before
    /// the wait, and with whether the request waits: in observe mode it goes at once, whatever the decision is.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        request: Request,
        notice: impl FnOnce(Arrival, bool),
    ) -> Result<Permit, Refusal> {
        let (ticket, arrival, woken) = self.update(|state, now| state.enter(request, now))?;
        let waiting = woken.map(|woken| Waiting { queue: self, ticket, woken });
        notice(arrival, waiting.is_some());
        if let Some(mut waiting) = waiting {
            waiting.turn().await?;
        }
        Ok(Permit::new(self, ticket, request.route))
    }

    /// A permit for a request that is exempt: it does not wait and does not count against the limit.
    pub(crate) fn pass(self: &Arc<Self>, request: Request) -> Permit {
        let ticket = self.with_core(|core, now| core.pass(request, now));
        Permit::new(self, ticket, request.route)
    }

    /// The estimated time until a request would be answered if it entered now, and the number in flight in thousandths
    /// of the limit.
    pub(crate) fn quote(&self, request: Request) -> (Span, u64) {
        self.with_core(|core, now| {
            (core.time_to_answer(request, now), u64::from(core.in_flight()) * 1000 / u64::from(core.limit().max(1)))
        })
    }

    /// A connection to the backend was opened in this time.
    pub(crate) fn connected_within(&self, time: Span) {
        let round_trip = &mut self.state.lock().round_trip;
        *round_trip = Some(round_trip.map_or(time, |shortest| shortest.min(time)));
    }

    /// Takes over other settings and keeps the learned state. Waiting requests go on waiting, unless the queue begins to
    /// observe.
    fn reload(&self, settings: &Settings) {
        self.update(|state, now| {
            state.core.set_settings(queue_settings(settings), now);
            state.is_observing = settings.mode == Mode::Observe;
            if state.is_observing {
                for (ticket, waiter) in &mut state.waiters {
                    if let Some(wake) = waiter.wake.take() {
                        state.core.release(*ticket, now);
                        let _ = wake.send(Ok(()));
                    }
                }
            }
        });
    }

    pub(crate) fn status(&self) -> QueueStatus {
        let state = self.state.lock();
        QueueStatus {
            is_observing: state.is_observing,
            waiting: state.core.waiting() as u64,
            in_flight_max: state.core.limit().into(),
            in_flight: state.core.in_flight().into(),
            cores_milli: state.core.cores().as_milli().into(),
            ..state.counts
        }
    }
}

impl State {
    /// Decides about a request. Returns the decision, and where the request gets the message that its wait is over, if
    /// it waits.
    fn enter(&mut self, request: Request, now: Moment) -> Result<(Ticket, Arrival, Option<Woken>), Refusal> {
        let (ticket, arrival) = if self.is_observing {
            self.counts.observed += 1;
            self.core.observe(request, now)
        } else {
            let arrival = self.core.arrive(request, now);
            match arrival {
                Arrival::Go(ticket) | Arrival::Wait(ticket, _) => (ticket, arrival),
                Arrival::Refuse(refusal) => {
                    self.counts.refused += 1;
                    return Err(refusal);
                }
            }
        };
        match arrival {
            Arrival::Go(_) => self.count_wait(Span::ZERO),
            Arrival::Refuse(_) => self.counts.would_refuse += 1,
            Arrival::Wait(..) => {
                let (wake, woken) = (!self.is_observing).then(oneshot::channel).unzip();
                let count = if wake.is_some() { &mut self.counts.waited } else { &mut self.counts.would_wait };
                *count += 1;
                self.waiters.insert(ticket, Waiter { wake, since: now });
                if let (1, Some(thread)) = (self.core.waiting(), &self.thread) {
                    thread.unpark();
                }
                return Ok((ticket, arrival, woken));
            }
        }
        Ok((ticket, arrival, None))
    }

    /// Ends the wait of a request, and wakes it if it waits.
    fn handle(&mut self, event: Event, now: Moment) {
        let (wake, message) = match event {
            Event::Go(ticket) => (self.end_wait(ticket, now), Ok(())),
            Event::Refuse(ticket, refusal) => {
                let wake = self.end_wait(ticket, now);
                let count = if wake.is_some() { &mut self.counts.refused } else { &mut self.counts.would_refuse };
                *count += 1;
                (wake, Err(refusal))
            }
        };
        if let Some(wake) = wake {
            let sent = wake.send(message);
            debug_assert!(sent.is_ok(), "a request leaves the queue before it drops its receiver");
        }
    }

    /// The turn of a request has come, or the request ends or is refused before. Records its wait until now, if it
    /// waits or would.
    fn end_wait(&mut self, ticket: Ticket, now: Moment) -> Option<Wake> {
        let waiter = self.waiters.remove(&ticket)?;
        self.count_wait(now.since(waiter.since));
        waiter.wake
    }

    fn count_wait(&mut self, wait: Span) {
        self.waits.sum = self.waits.sum + wait;
        self.waits.longest = self.waits.longest.max(wait);
        self.waits.dispatched += 1;
    }
}

/// The span times `part / whole`.
fn part_of(span: Span, part: u64, whole: u64) -> Span {
    let nanos = u128::from(span.as_nanos()) * u128::from(part) / u128::from(whole.max(1));
    Span::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
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
