//! The gate as the simulation sees it: fair queue, virtual clock, the number at once, and what each route has cost so far.

use crate::backend::{Backend, Work};
use std::collections::HashMap;
use tollgate_core::concurrency::Concurrency;
use tollgate_core::fairness::{Arrival, Client, Costs, FairQueue, Pass, Places, Settings, Ticket};
use tollgate_core::prediction::{RouteKey, Routes};
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::{Load, Reading, VirtualClock};

/// One request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) client: Client,
    pub(crate) source: usize,
    pub(crate) route: usize,
    pub(crate) work: Work,
}

/// How many may be at the backend at once.
#[derive(Clone, Copy, Debug)]
pub(crate) enum InFlight {
    /// Given.
    Fixed { open: u32, limit: u32 },
    /// Found out, beginning with as many as the backend is said to have cores.
    Auto,
}

struct InService {
    request: Request,
    pass: Pass,
    reading: Reading,
    expected: Span,
}

pub(crate) struct Gate {
    queue: FairQueue,
    clock: VirtualClock,
    in_flight: InFlight,
    concurrency: Concurrency,
    routes: Routes,
    waiting: HashMap<Ticket, (usize, Request)>,
    tickets: HashMap<usize, Ticket>,
    in_service: HashMap<usize, InService>,
    ahead: u32,
    costs: Costs,
    /// What was charged, by source.
    pub(crate) charged_ns: HashMap<usize, u64>,
}

impl Gate {
    pub(crate) fn new(settings: Settings, in_flight: InFlight) -> Self {
        Self {
            queue: FairQueue::new(settings, Moment::ZERO),
            clock: VirtualClock::new(settings.cores),
            in_flight,
            concurrency: Concurrency::new(settings.cores, 1024),
            routes: Routes::new(64),
            waiting: HashMap::new(),
            tickets: HashMap::new(),
            in_service: HashMap::new(),
            ahead: 0,
            costs: Costs::default(),
            charged_ns: HashMap::new(),
        }
    }

    pub(crate) fn places(&self) -> Places {
        let in_flight = self.clock.in_service();
        let (ahead, costs) = (self.ahead, self.costs);
        match self.in_flight {
            InFlight::Fixed { open, limit } => Places {
                in_flight,
                ahead,
                costs,
                open: Load::of(open),
                serves: Load::of(limit),
                limit: Load::of(limit),
            },
            InFlight::Auto => {
                let (open, serves) = (self.concurrency.open(), self.concurrency.serves());
                Places { in_flight, ahead, costs, open, serves, limit: self.concurrency.limit() }
            }
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.waiting()
    }

    /// A request arrives. Returns those that are refused because of it, itself or others.
    pub(crate) fn arrive(&mut self, id: usize, request: Request, backend: &mut Backend, now: u64) -> Vec<usize> {
        let places = self.places();
        if self.queue.is_calm() && places.in_flight < places.open {
            self.start(id, request, Pass::default(), backend, now);
            return vec![];
        }
        let expected = self.routes.expected(key(request.route));
        match self.queue.arrive(request.client, expected, places, Moment::from_nanos(now)) {
            Arrival::Goes(pass) => self.start(id, request, pass, backend, now),
            Arrival::Waits(ticket) => self.wait(id, request, ticket),
            Arrival::Displaces(ticket, displaced, _) => {
                self.wait(id, request, ticket);
                let (other, _) = self.waiting.remove(&displaced).unwrap();
                self.tickets.remove(&other);
                return vec![other];
            }
            Arrival::KeyFull(_) | Arrival::Full(_) => return vec![id],
        }
        vec![]
    }

    fn wait(&mut self, id: usize, request: Request, ticket: Ticket) {
        self.waiting.insert(ticket, (id, request));
        self.tickets.insert(id, ticket);
    }

    /// The client of a request goes away. True if the request had not reached the backend.
    pub(crate) fn leave(&mut self, id: usize) -> bool {
        let Some(ticket) = self.tickets.remove(&id) else { return false };
        self.waiting.remove(&ticket);
        self.queue.leave(ticket)
    }

    /// The backend is done with a request.
    pub(crate) fn done(&mut self, id: usize, backend: &mut Backend, now: u64) {
        let InService { request, pass, reading, expected } = self.in_service.remove(&id).unwrap();
        let stay = self.clock.end(reading, Moment::from_nanos(now));
        *self.charged_ns.entry(request.source).or_default() += stay.toll.as_nanos();
        self.ahead -= u32::from(pass.ahead);
        self.costs.remove(expected);
        if let Some(times) = self.routes.record(key(request.route), stay.toll) {
            self.concurrency.record(times, stay, pass.ahead, self.queue.waits(), Moment::from_nanos(now));
            let cores = self.concurrency.cores();
            self.clock.set_cores(cores, Moment::from_nanos(now));
            self.queue.set_cores(cores);
        }
        self.queue.settle(request.client, pass, stay.toll);
        self.dispatch(backend, now);
    }

    fn start(&mut self, id: usize, request: Request, pass: Pass, backend: &mut Backend, now: u64) {
        let expected = self.routes.reserve(key(request.route));
        self.costs.add(expected);
        let reading = self.clock.start(self.routes.load(key(request.route)), Moment::from_nanos(now));
        self.in_service.insert(id, InService { request, pass, reading, expected });
        self.ahead += u32::from(pass.ahead);
        backend.start(id, request.work);
    }

    fn dispatch(&mut self, backend: &mut Backend, now: u64) {
        while let Some((ticket, pass)) = self.queue.dispatch(self.places(), Moment::from_nanos(now)) {
            let (id, request) = self.waiting.remove(&ticket).unwrap();
            self.tickets.remove(&id);
            self.start(id, request, pass, backend, now);
        }
    }
}

fn key(route: usize) -> RouteKey {
    RouteKey { route: route as u64, parent: 1000 }
}
