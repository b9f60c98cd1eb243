//! What is behind the queue's lock: who waits, who is at work, and what is known about the backend.

use std::net::IpAddr;
use std::sync::{Arc, MutexGuard};

use tokio::sync::oneshot;
use tollgate_core::concurrency::Concurrency;
use tollgate_core::fairness::{Arrival, Client, FairQueue, Pass, Places, Ticket, Turned};
use tollgate_core::prediction::{RouteKey, Routes};
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::{Cores, Load, Reading, Stay, VirtualClock};

use super::super::kernel::Used;
use super::calm::{Began, Calm, Until};
use super::glance::Glance;
use super::roll::Roll;
use super::{AT_ONCE_MAX, Figures, Refused};
use crate::settings::Gate as Settings;

/// How many routes are told apart.
const ROUTES_MAX: usize = 4096;
/// How often those at work are charged for what goes beyond what was reserved for them.
const CHARGE_EVERY: Span = Span::from_millis(50);

pub(super) struct State {
    pub(super) queue: FairQueue,
    clock: VirtualClock,
    concurrency: Concurrency,
    /// What the backend is said to have.
    cores: Cores,
    /// A number at once that was set, instead of one that is found.
    pub(super) at_once: Option<u32>,
    routes: Routes,
    /// Those who wait, by the slot of their ticket.
    waiting: Vec<Option<Waiter>>,
    /// Those at work that did not begin in calm, and what they claim together.
    at_work: Vec<Option<Working>>,
    at_work_free: Vec<usize>,
    noticed: Load,
    /// How many requests at the backend, and not waiting for their client, are from clients ahead of their share.
    ahead: u32,
    charged_at: Moment,
    /// What is at work that began in calm and is not written down, when the calm ended, how much had been at work over time until
    /// then, and what one of those that began in calm has cost at least since.
    unnoticed: Load,
    calm_until: Until,
    busy_from: (u64, u64),
    unnoticed_cost: Option<Span>,
    /// Whether what the backend really uses is known: then the clock must be asked about every request.
    metered: bool,
    calm: Arc<Calm>,
    pub(super) figures: Figures,
}

/// A request that waits.
struct Waiter {
    wake: oneshot::Sender<Result<Grant, Turned>>,
    client: Client,
    route: RouteKey,
    since: Moment,
}

/// A request at work.
struct Working {
    client: Client,
    /// What it was let in with, and has been charged so far.
    pass: Pass,
    /// What it is expected to cost.
    expected: Span,
    /// None while the backend waits for the client.
    reading: Option<Reading>,
}

/// A place at the backend, as it is handed to the request that waited for it: where it is written down among those at work.
pub(super) struct Grant(pub(super) usize);

pub(super) enum Entry {
    Goes(Grant),
    Waits(Ticket, oneshot::Receiver<Result<Grant, Turned>>),
}

impl State {
    pub(super) fn new(
        settings: &Settings,
        fairness: tollgate_core::fairness::Settings,
        calm: Arc<Calm>,
        now: Moment,
    ) -> Self {
        let state = Self {
            queue: FairQueue::new(fairness, now),
            clock: VirtualClock::new(settings.cores),
            concurrency: Concurrency::new(settings.cores, AT_ONCE_MAX),
            cores: settings.cores,
            at_once: settings.in_flight,
            routes: Routes::new(ROUTES_MAX),
            waiting: Vec::new(),
            at_work: Vec::new(),
            at_work_free: Vec::new(),
            noticed: Load::ZERO,
            ahead: 0,
            charged_at: now,
            unnoticed: Load::ZERO,
            calm_until: Until::never(settings.cores),
            busy_from: (0, 0),
            unnoticed_cost: None,
            metered: false,
            calm,
            figures: Figures::default(),
        };
        state.make_room();
        state
    }

    /// How much may be at the backend without anybody taking the lock: as much as anybody may bring there.
    pub(super) fn make_room(&self) {
        self.calm.set_room(if self.metered { Load::ZERO } else { self.open() });
    }

    /// Whether prices in calm are made with other cores than are known by now.
    pub(super) fn has_other_cores(&self) -> bool {
        self.calm.cores() != self.concurrency.cores()
    }

    fn open(&self) -> Load {
        self.at_once.map_or_else(|| self.concurrency.open(), Load::of)
    }

    /// What is at the backend, when it is busy.
    pub(super) fn in_service(&self) -> Load {
        self.clock.in_service()
    }

    /// What is at work that began in calm.
    #[cfg(test)]
    pub(super) const fn unnoticed(&self) -> Load {
        self.unnoticed
    }

    pub(super) fn places(&self) -> Places {
        let (open, serves, limit) = match self.at_once {
            Some(number) => (Load::of(number), Load::of(number), Load::of(number)),
            None => (self.concurrency.open(), self.concurrency.serves(), self.concurrency.limit()),
        };
        let (in_flight, costs) = (self.clock.in_service(), self.calm.costs());
        Places { in_flight, ahead: self.ahead, costs, open, serves, limit }
    }

    /// Learns from a request that the backend is done with: what it cost, and if it is known how much was there with it, how long it took.
    pub(super) fn learn(
        &mut self,
        glance: &Glance,
        route: RouteKey,
        stay: Option<Stay>,
        toll: Span,
        ahead: bool,
        now: Moment,
    ) {
        let waits = self.queue.waits();
        if let (Some(times), Some(stay)) = (self.routes.record(route, toll), stay) {
            self.concurrency.record(times, stay, ahead, waits, now);
            self.make_room();
        }
        glance.note(route, &self.routes);
    }

    /// One of those that began in calm has cost so much at least; or there are none.
    fn set_unnoticed_cost(&mut self, cost: Option<Span>) {
        if let Some(before) = std::mem::replace(&mut self.unnoticed_cost, cost) {
            self.calm.remove_cost(before);
        }
        if let Some(cost) = cost {
            self.calm.add_cost(cost);
        }
    }

    /// One of those that are written down begins to work, or works on.
    fn begin(&mut self, route: RouteKey, now: Moment) -> Reading {
        let load = self.routes.load(route);
        self.noticed = self.noticed.plus(load);
        self.clock.start(load, now)
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
}

/// The state while its lock is held and nobody passes without it.
pub(super) struct Busy<'a> {
    state: MutexGuard<'a, State>,
    pub(super) now: Moment,
}

impl<'a> Busy<'a> {
    /// Ends the calm, if it was calm.
    pub(super) fn new(mut state: MutexGuard<'a, State>, now: Moment) -> Self {
        if let Some(until) = state.calm.suspend(now) {
            state.clock.resume(until.shows, until.load, until.computing, now);
            (state.unnoticed, state.calm_until) = (until.load.minus(state.noticed), until);
            state.busy_from = state.clock.load_times();
        }
        let cores = state.concurrency.cores();
        state.clock.set_cores(cores, now);
        state.queue.set_cores(cores);
        Self { state, now }
    }

    pub(super) fn arrive(&mut self, client: Client, route: RouteKey) -> Result<Entry, Refused> {
        let now = self.now;
        let places = self.state.places();
        if self.state.queue.is_calm() && places.in_flight < places.open {
            self.state.figures.went += 1;
            return Ok(Entry::Goes(self.start(client, route, Pass::default())));
        }
        let expected = self.state.routes.expected(route);
        match self.state.queue.arrive(client, expected, places, now) {
            Arrival::Goes(pass) => {
                self.state.figures.went += 1;
                Ok(Entry::Goes(self.start(client, route, pass)))
            }
            Arrival::Waits(ticket) => Ok(self.state.wait(ticket, client, route, now)),
            Arrival::Displaces(ticket, displaced, turned) => {
                self.state.turn_away(displaced, turned);
                Ok(self.state.wait(ticket, client, route, now))
            }
            Arrival::KeyFull(turned) => Err(self.state.refuse(turned, true)),
            Arrival::Full(turned) => Err(self.state.refuse(turned, false)),
        }
    }

    pub(super) fn give_up(&mut self, ticket: Ticket) -> Option<Turned> {
        let turned = self.state.queue.give_up(ticket)?;
        self.state.waiting[ticket.slot()] = None;
        self.state.figures.turned_away += 1;
        Some(turned)
    }

    /// Whoever waited has gone. False when it did not wait any more.
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        let waited = self.state.queue.leave(ticket);
        if waited {
            self.state.waiting[ticket.slot()] = None;
        }
        waited
    }

    /// Everybody who waits leaves. How many those were.
    #[cfg(test)]
    pub(super) fn leave_all(&mut self) -> usize {
        let places = Places { in_flight: Load::ZERO, ..self.places() };
        let mut left = 0;
        while let Some((ticket, pass)) = self.state.queue.dispatch(places, self.now) {
            if let Some(waiter) = self.state.waiting[ticket.slot()].take() {
                self.state.queue.settle(waiter.client, pass, Span::ZERO);
                left += 1;
            }
        }
        left
    }

    /// A request goes to the backend.
    pub(super) fn start(&mut self, client: Client, route: RouteKey, pass: Pass) -> Grant {
        let state = &mut *self.state;
        state.ahead += u32::from(pass.ahead);
        let expected = state.routes.reserve(route);
        state.calm.add_cost(expected);
        let reading = Some(state.begin(route, self.now));
        let working = Some(Working { client, pass, expected, reading });
        let slot = state.at_work_free.pop().unwrap_or(state.at_work.len());
        match state.at_work.get_mut(slot) {
            Some(place) => *place = working,
            None => state.at_work.push(working),
        }
        Grant(slot)
    }

    /// The backend waits for the client of a request, or is done with it.
    pub(super) fn pause(&mut self, slot: usize) -> Option<Stay> {
        let state = &mut *self.state;
        let working = state.at_work.get_mut(slot)?.as_mut()?;
        let reading = working.reading.take()?;
        let stay = state.clock.end(reading, self.now);
        state.noticed = state.noticed.minus(reading.load());
        state.ahead -= u32::from(working.pass.ahead);
        state.calm.remove_cost(working.expected);
        Some(stay)
    }

    /// The same of one that began in calm.
    pub(super) fn pause_unnoticed(&mut self, began: &Began, expected: Span) -> Stay {
        let state = &mut *self.state;
        let toll = state.clock.end_unnoticed(began.load, began.since, self.now);
        let (load, full) = state.clock.load_times();
        let since = (load.wrapping_sub(state.busy_from.0), full.wrapping_sub(state.busy_from.1));
        state.calm.remove_cost(expected);
        state.unnoticed = state.unnoticed.minus(began.load);
        if state.unnoticed == Load::ZERO {
            state.set_unnoticed_cost(None);
        }
        began.stay(toll, &state.calm_until, since, self.now)
    }

    /// The backend works on.
    pub(super) fn resume(&mut self, slot: usize, route: RouteKey) {
        let state = &mut *self.state;
        let Some(Some(Working { reading: None, .. })) = state.at_work.get(slot) else { return };
        let reading = state.begin(route, self.now);
        if let Some(Some(working)) = state.at_work.get_mut(slot) {
            working.reading = Some(reading);
            state.ahead += u32::from(working.pass.ahead);
            state.calm.add_cost(working.expected);
        }
    }

    /// The backend is done with a request, which has cost `toll`. What it was let in with.
    pub(super) fn settle(&mut self, slot: usize, toll: Span) -> Pass {
        self.pause(slot);
        let state = &mut *self.state;
        let Some(Working { client, pass, .. }) = state.at_work.get_mut(slot).and_then(Option::take) else {
            return Pass::default();
        };
        state.at_work_free.push(slot);
        state.queue.settle(client, pass, toll);
        pass
    }

    /// Charges those at work for what goes beyond what was reserved for them: whoever sends requests that run for minutes is in debt before the
    /// first of them ends. And what takes longer than was thought is not light any more.
    pub(super) fn charge_overruns(&mut self, roll: &Roll, client: impl Fn(IpAddr) -> Client) {
        let state = &mut *self.state;
        if self.now.since(state.charged_at) < CHARGE_EVERY {
            return;
        }
        state.charged_at = self.now;
        for working in state.at_work.iter_mut().flatten() {
            let Some(reading) = working.reading else { continue };
            let so_far = state.clock.so_far(reading, self.now);
            if so_far > working.pass.reserved && !state.queue.is_calm() {
                state.queue.settle(working.client, working.pass, so_far);
                working.pass.reserved = so_far;
            }
            if so_far > working.expected {
                state.calm.remove_cost(working.expected);
                state.calm.add_cost(so_far);
                working.expected = so_far;
            }
        }
        if state.unnoticed > Load::ZERO {
            let shows = state.clock.read(self.now);
            if !state.queue.is_calm() {
                roll.charge(shows, |address, reserved, so_far| {
                    state.queue.settle(client(address), Pass { reserved, ..Pass::default() }, so_far);
                });
            }
            let since = shows.saturating_sub(state.calm_until.shows);
            state.set_unnoticed_cost(Some(Span::from_nanos(since)));
        }
        self.dispatch();
    }

    /// The backend has used so much CPU time since the last look.
    pub(super) fn measure(&mut self, used: Used) {
        let now = self.now;
        self.state.metered = used != Used::Unknown;
        self.state.make_room();
        match used {
            Used::Since(cpu) => self.state.clock.measure(cpu, now),
            Used::Begins | Used::Unknown => self.state.clock.unmeasured(now),
        }
    }

    /// Takes over other settings. Who waits goes on waiting, and who has had much has had it. What was found out about a backend does not
    /// hold for one that is said to have other cores.
    pub(super) fn reload(&mut self, settings: &Settings, fairness: tollgate_core::fairness::Settings) {
        let state = &mut *self.state;
        state.at_once = settings.in_flight;
        state.queue.set_settings(fairness);
        if state.cores != settings.cores {
            state.cores = settings.cores;
            state.concurrency = Concurrency::new(settings.cores, AT_ONCE_MAX);
        }
        let cores = state.concurrency.cores();
        state.clock.set_cores(cores, self.now);
        state.queue.set_cores(cores);
        state.make_room();
        self.dispatch();
    }

    /// Lets go who may.
    pub(super) fn dispatch(&mut self) {
        loop {
            let places = self.state.places();
            let Some((ticket, pass)) = self.state.queue.dispatch(places, self.now) else { return };
            let Some(waiter) = self.state.waiting[ticket.slot()].take() else { continue };
            let figures = &mut self.state.figures;
            figures.wait_ns = figures.wait_ns.saturating_add(self.now.since(waiter.since).as_nanos());
            figures.went += 1;
            let grant = self.start(waiter.client, waiter.route, pass);
            if let Err(Ok(Grant(slot))) = waiter.wake.send(Ok(grant)) {
                // Nobody came for it.
                self.settle(slot, Span::ZERO);
            }
        }
    }
}

impl std::ops::Deref for Busy<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl std::ops::DerefMut for Busy<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Busy<'_> {
    /// Calm begins where everybody has gone who waited, and what is left has room.
    fn drop(&mut self) {
        let state = &mut *self.state;
        if !state.metered
            && state.queue.is_calm()
            && state.queue.waiting() == 0
            && state.clock.in_service() <= state.calm.room()
        {
            let shows = state.clock.read(self.now);
            state.unnoticed = Load::ZERO;
            state.set_unnoticed_cost(None);
            state.calm.resume(state.clock.loads(), shows, state.concurrency.cores(), self.now);
        }
    }
}
