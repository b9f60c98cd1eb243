//! The fair queue in front of the backend, for all workers.
//!
//! The queue is at the gate, not in the backend: only here can the order be chosen. At most as many requests as keep the backend busy are
//! at it at once; the rest wait, and the one whose client has had least of its share goes next. The order, the prices and the number
//! at once are the core's ([`FairQueue`], [`VirtualClock`], [`Concurrency`]); this is the part that waits and wakes.
//!
//! One lock, held for the arithmetic of one event and never while anybody waits.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tollgate_core::concurrency::Concurrency;
use tollgate_core::fairness::{Arrival, Client, Costs, FairQueue, Pass, Places, Shares, Ticket, Turned};
use tollgate_core::network::Network;
use tollgate_core::prediction::{RouteKey, Routes};
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::{Load, Reading, Stay, VirtualClock};
use tollgate_gatekeeper::clock::Clock;

use crate::settings::Gate as Settings;

/// Never more requests at the backend than this, whatever is measured.
pub(super) const AT_ONCE_MAX: u32 = 4096;
/// How many routes are told apart.
const ROUTES_MAX: usize = 4096;
/// Prefixes of an address, its network and its block, in IPv4 and in IPv6.
const LEVELS: [(u8, u8); 3] = [(32, 64), (24, 56), (16, 48)];

/// The queue of all workers.
pub(crate) struct Queue {
    clock: Clock,
    hasher: RandomState,
    state: Mutex<State>,
}

struct State {
    queue: FairQueue,
    clock: VirtualClock,
    concurrency: Concurrency,
    /// A number at once that was set, instead of one that is found.
    at_once: Option<u32>,
    routes: Routes,
    /// Those who wait, by the slot of their ticket.
    waiting: Vec<Option<Waiter>>,
    /// How many requests at the backend are from clients ahead of their share.
    ahead: u32,
    /// What the requests at the backend are expected to cost.
    costs: Costs,
    figures: Figures,
}

/// A request that waits.
struct Waiter {
    wake: oneshot::Sender<Result<Grant, Turned>>,
    client: Client,
    route: RouteKey,
    since: Moment,
}

/// A place at the backend, as it is handed to the request that waited for it.
struct Grant {
    pass: Pass,
    reading: Reading,
    expected: Span,
}

/// What a queue shows of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// CPU time charged, in nanoseconds.
    pub(crate) toll_ns: u64,
    /// Requests that have waited.
    pub(crate) waited: u64,
    /// Requests turned away because too many waited.
    pub(crate) turned_away: u64,
    /// Requests that wait now.
    pub(crate) waiting: u64,
    /// How many requests may be at the backend.
    pub(crate) at_once: u64,
    /// Waiting time of the requests that went since [`Queue::take_wait`], and how many those were.
    wait_ns: u64,
    went: u64,
}

/// Why a request does not get a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    /// When its turn would come.
    pub(crate) retry_after: Span,
    /// Whether that is because of what its own client has waiting, rather than of everybody's.
    pub(crate) own: bool,
}

impl Queue {
    pub(crate) fn new(settings: &Settings, clock: Clock) -> Arc<Self> {
        let state = State {
            queue: FairQueue::new(fairness(settings), clock.now()),
            clock: VirtualClock::new(settings.cores),
            concurrency: Concurrency::new(settings.cores, AT_ONCE_MAX),
            at_once: settings.in_flight,
            routes: Routes::new(ROUTES_MAX),
            waiting: Vec::new(),
            ahead: 0,
            costs: Costs::default(),
            figures: Figures::default(),
        };
        Arc::new(Self { clock, hasher: RandomState::new(), state: Mutex::new(state) })
    }

    /// What a request of this route is expected to cost.
    pub(crate) fn expected(&self, route: RouteKey) -> Span {
        self.state().routes.reserve(route)
    }

    /// A place at the backend, now or when it is this request's turn, but no later than after `wait_max`. Whoever stops waiting leaves.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        address: IpAddr,
        route: RouteKey,
        wait_max: Span,
    ) -> Result<Place, Refused> {
        let client = self.client(address);
        let now = self.clock.now();
        let (ticket, woken) = match self.state().arrive(client, route, now)? {
            Entry::Goes(grant) => return Ok(self.place(client, route, grant)),
            Entry::Waits(ticket, woken) => (ticket, woken),
        };
        let mut waiting = Waiting { queue: self, ticket, woken, client };
        let turned = match tokio::time::timeout(wait_max.into(), &mut waiting.woken).await {
            Ok(Ok(Ok(grant))) => return Ok(self.place(client, route, grant)),
            Ok(Ok(Err(turned))) => Some(turned),
            Ok(Err(_)) => None,
            Err(_) => self.state().give_up(ticket),
        };
        // A grant that came in the same instant is given back by the guard.
        Err(Refused { retry_after: turned.map_or(Span::from_secs(1), |turned| turned.retry_after), own: false })
    }

    fn place(self: &Arc<Self>, client: Client, route: RouteKey, grant: Grant) -> Place {
        let Grant { pass, reading, expected } = grant;
        let (toll, at_backend) = (Span::ZERO, Some(reading));
        Place { queue: self.clone(), client, route, pass, expected, at_backend, toll, stay: None }
    }

    /// Takes over other settings. Who waits goes on waiting.
    pub(crate) fn reload(&self, settings: &Settings) {
        self.state().at_once = settings.in_flight;
    }

    /// What is shown.
    pub(crate) fn figures(&self) -> Figures {
        let state = self.state();
        let at_once = state.places().open.as_256ths() / Load::ONE.as_256ths();
        Figures { waiting: state.queue.waiting() as u64, at_once, ..state.figures }
    }

    /// How much is at the backend, in whole requests.
    pub(crate) fn at_backend(&self) -> u64 {
        self.state().clock.in_service().as_256ths() / Load::ONE.as_256ths()
    }

    /// How long requests have waited on average since the last call.
    pub(crate) fn take_wait(&self) -> Span {
        let mut state = self.state();
        let wait = state.figures.wait_ns.checked_div(state.figures.went).unwrap_or(0);
        (state.figures.wait_ns, state.figures.went) = (0, 0);
        Span::from_nanos(wait)
    }

    fn client(&self, address: IpAddr) -> Client {
        let hash = |(v4, v6): (u8, u8)| {
            let network = Network::of(address, if address.is_ipv4() { v4 } else { v6 });
            self.hasher.hash_one(network)
        };
        let [address, network, block] = LEVELS.map(hash);
        Client { address, network, block }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in there can be half done: a panic leaves at worst a request uncounted.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fairness(settings: &Settings) -> tollgate_core::fairness::Settings {
    let shares = Shares {
        address_milli: settings.fairness.address_milli,
        network_milli: settings.fairness.network_milli,
        block_milli: settings.fairness.block_milli,
    };
    tollgate_core::fairness::Settings {
        shares,
        cores: settings.cores,
        per_key: settings.hold.per_key as usize,
        total: settings.hold.total as usize,
        ..tollgate_core::fairness::Settings::default()
    }
}

enum Entry {
    Goes(Grant),
    Waits(Ticket, oneshot::Receiver<Result<Grant, Turned>>),
}

impl State {
    fn places(&self) -> Places {
        let (open, serves, limit) = match self.at_once {
            Some(number) => (Load::of(number), Load::of(number), Load::of(number)),
            None => (self.concurrency.open(), self.concurrency.serves(), self.concurrency.limit()),
        };
        Places { in_flight: self.clock.in_service(), ahead: self.ahead, costs: self.costs, open, serves, limit }
    }

    fn arrive(&mut self, client: Client, route: RouteKey, now: Moment) -> Result<Entry, Refused> {
        let places = self.places();
        if self.queue.is_calm() && places.in_flight < places.open {
            self.figures.went += 1;
            return Ok(Entry::Goes(self.start(route, Pass::default(), now)));
        }
        let expected = self.routes.expected(route);
        match self.queue.arrive(client, expected, places, now) {
            Arrival::Goes(pass) => {
                self.figures.went += 1;
                Ok(Entry::Goes(self.start(route, pass, now)))
            }
            Arrival::Waits(ticket) => Ok(self.wait(ticket, client, route, now)),
            Arrival::Displaces(ticket, displaced, turned) => {
                self.turn_away(displaced, turned);
                Ok(self.wait(ticket, client, route, now))
            }
            Arrival::KeyFull(turned) => Err(self.refuse(turned, true)),
            Arrival::Full(turned) => Err(self.refuse(turned, false)),
        }
    }

    fn refuse(&mut self, turned: Turned, own: bool) -> Refused {
        self.figures.turned_away += 1;
        Refused { retry_after: turned.retry_after, own }
    }

    fn wait(&mut self, ticket: Ticket, client: Client, route: RouteKey, now: Moment) -> Entry {
        let (wake, woken) = oneshot::channel();
        let slot = ticket.slot();
        if self.waiting.len() <= slot {
            self.waiting.resize_with(slot + 1, || None);
        }
        self.waiting[slot] = Some(Waiter { wake, client, route, since: now });
        self.figures.waited += 1;
        Entry::Waits(ticket, woken)
    }

    fn turn_away(&mut self, ticket: Ticket, turned: Turned) {
        self.figures.turned_away += 1;
        if let Some(waiter) = self.waiting[ticket.slot()].take() {
            let _ = waiter.wake.send(Err(turned));
        }
    }

    fn give_up(&mut self, ticket: Ticket) -> Option<Turned> {
        let turned = self.queue.give_up(ticket)?;
        self.waiting[ticket.slot()] = None;
        self.figures.turned_away += 1;
        Some(turned)
    }

    fn start(&mut self, route: RouteKey, pass: Pass, now: Moment) -> Grant {
        self.ahead += u32::from(pass.ahead);
        let expected = self.routes.reserve(route);
        self.costs.add(expected);
        Grant { pass, reading: self.clock.start(self.routes.load(route), now), expected }
    }

    /// Lets go who may.
    fn dispatch(&mut self, now: Moment) {
        while let Some((ticket, pass)) = self.queue.dispatch(self.places(), now) {
            let Some(waiter) = self.waiting[ticket.slot()].take() else { continue };
            self.figures.wait_ns = self.figures.wait_ns.saturating_add(now.since(waiter.since).as_nanos());
            self.figures.went += 1;
            let grant = self.start(waiter.route, pass, now);
            if let Err(Ok(grant)) = waiter.wake.send(Ok(grant)) {
                self.return_unused(waiter.client, grant, now);
            }
        }
    }

    /// A place that nobody came for.
    fn return_unused(&mut self, client: Client, grant: Grant, now: Moment) {
        self.clock.end(grant.reading, now);
        self.ahead -= u32::from(grant.pass.ahead);
        self.costs.remove(grant.expected);
        self.queue.settle(client, grant.pass, Span::ZERO);
    }
}

/// A request that waits; dropped, it leaves the queue.
struct Waiting<'a> {
    queue: &'a Queue,
    ticket: Ticket,
    woken: oneshot::Receiver<Result<Grant, Turned>>,
    client: Client,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let now = self.queue.clock.now();
        let mut state = self.queue.state();
        if state.queue.leave(self.ticket) {
            state.waiting[self.ticket.slot()] = None;
        } else if let Ok(Ok(grant)) = self.woken.try_recv() {
            state.return_unused(self.client, grant, now);
            state.dispatch(now);
        }
    }
}

/// A place at the backend. Dropped, it is free.
pub(crate) struct Place {
    queue: Arc<Queue>,
    client: Client,
    route: RouteKey,
    pass: Pass,
    /// What it is expected to cost.
    expected: Span,
    /// Since when it is at work; none while the backend waits for a client that reads slowly.
    at_backend: Option<Reading>,
    /// What earlier stretches of work have cost.
    toll: Span,
    /// The last stretch of work, which tells how the backend copes.
    stay: Option<Stay>,
}

impl Place {
    /// The backend waits for the client: no work, no charge, and the place is for others.
    pub(crate) fn pause(&mut self) {
        let Some(reading) = self.at_backend.take() else { return };
        let now = self.queue.clock.now();
        let mut state = self.queue.state();
        let stay = state.clock.end(reading, now);
        self.toll = self.toll + stay.toll;
        self.stay = Some(stay);
        state.dispatch(now);
    }

    /// The backend works on.
    pub(crate) fn resume(&mut self) {
        if self.at_backend.is_none() {
            let now = self.queue.clock.now();
            let mut state = self.queue.state();
            let load = state.routes.load(self.route);
            self.at_backend = Some(state.clock.start(load, now));
        }
    }

    /// The backend is done. What the request cost: what the backend says, if it says something, otherwise what the clock does.
    pub(crate) fn leave(mut self, reported: Option<Span>) -> Span {
        self.pause();
        let toll = reported.unwrap_or(self.toll);
        self.settle(toll);
        toll
    }

    fn settle(&mut self, toll: Span) {
        let now = self.queue.clock.now();
        let mut state = self.queue.state();
        let state = &mut *state;
        if let Some(stay) = self.stay.take() {
            let (ahead, waits) = (self.pass.ahead, state.queue.waits());
            if let Some(times) = state.routes.record(self.route, toll) {
                state.concurrency.record(times, stay, ahead, waits, now);
                let cores = state.concurrency.cores();
                state.clock.set_cores(cores, now);
                state.queue.set_cores(cores);
            }
            state.ahead -= u32::from(self.pass.ahead);
            state.costs.remove(self.expected);
            state.queue.settle(self.client, self.pass, toll);
            state.figures.toll_ns = state.figures.toll_ns.saturating_add(toll.as_nanos());
            state.dispatch(now);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pause();
        let toll = self.toll;
        self.settle(toll);
    }
}
