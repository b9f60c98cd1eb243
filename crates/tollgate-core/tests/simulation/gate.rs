//! The gate in virtual time: the queue of the core, and nothing else.

use crate::backend::{Backend, Work};
use std::collections::HashMap;
use tollgate_core::queue::{Arrival, Client, Event, Queue, Refusal, Request, RouteKey, Settings, Ticket};
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::Cores;

/// One request on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    pub(crate) client: Client,
    pub(crate) route: usize,
    pub(crate) work: Work,
}

/// The gate's decision about a request.
pub(crate) enum Act {
    Start(usize),
    Refuse(usize, Refusal),
}

pub(crate) struct Gate {
    /// Without a queue, everything goes to the backend at once.
    pub(crate) queue: Option<Queue>,
    visits: HashMap<usize, (Visit, Option<Ticket>)>,
    ids: HashMap<Ticket, usize>,
}

impl Gate {
    pub(crate) fn new(settings: Option<Settings>, now: u64) -> Self {
        let queue = settings.map(|settings| Queue::new(settings, Moment::from_nanos(now)));
        Self { queue, visits: HashMap::new(), ids: HashMap::new() }
    }

    pub(crate) fn arrive(&mut self, id: usize, visit: Visit, backend: &mut Backend, now: u64) -> Vec<Act> {
        let Some(queue) = &mut self.queue else {
            self.visits.insert(id, (visit, None));
            backend.start(id, visit.work);
            return vec![Act::Start(id)];
        };
        let request = Request { client: visit.client, route: key(visit.route), weight_milli: 1000, bytes: 1000 };
        let mut acts = vec![];
        match queue.arrive(request, Moment::from_nanos(now)) {
            Arrival::Go(ticket) => {
                self.visits.insert(id, (visit, Some(ticket)));
                self.ids.insert(ticket, id);
                backend.start(id, visit.work);
                acts.push(Act::Start(id));
            }
            Arrival::Wait(ticket, _) => {
                self.visits.insert(id, (visit, Some(ticket)));
                self.ids.insert(ticket, id);
            }
            Arrival::Refuse(refusal) => acts.push(Act::Refuse(id, refusal)),
        }
        self.poll(backend, now, acts)
    }

    /// The client of a request disconnects. True if the request had not reached the backend.
    pub(crate) fn leave(&mut self, id: usize, now: u64) -> bool {
        let (Some(queue), Some((_, Some(ticket)))) = (&mut self.queue, self.visits.get(&id)) else { return false };
        let ticket = *ticket;
        let left = queue.leave(ticket, Moment::from_nanos(now));
        if left {
            self.ids.remove(&ticket);
            self.visits.remove(&id);
        }
        left
    }

    /// A request has waited for as long as it may.
    pub(crate) fn give_up(&mut self, id: usize, now: u64) -> Option<Refusal> {
        let (Some(queue), Some((_, Some(ticket)))) = (&mut self.queue, self.visits.get(&id)) else { return None };
        let ticket = *ticket;
        let refusal = queue.give_up(ticket, Moment::from_nanos(now))?;
        self.ids.remove(&ticket);
        self.visits.remove(&id);
        Some(refusal)
    }

    /// The backend is done with a request.
    pub(crate) fn done(&mut self, id: usize, backend: &mut Backend, now: u64) -> Vec<Act> {
        let (Some(queue), Some((_, Some(ticket)))) = (&mut self.queue, self.visits.remove(&id)) else { return vec![] };
        let toll = queue.so_far(ticket, Moment::from_nanos(now));
        queue.done(ticket, toll, true, Moment::from_nanos(now));
        self.ids.remove(&ticket);
        self.poll(backend, now, vec![])
    }

    pub(crate) fn tick(&mut self, backend: &mut Backend, now: u64) -> Vec<Act> {
        let Some(queue) = &mut self.queue else { return vec![] };
        queue.tick(Moment::from_nanos(now));
        self.poll(backend, now, vec![])
    }

    /// The gate sees how many thousandths of a core of the backend's machine were busy. It looks while requests wait.
    pub(crate) fn machine_busy(&mut self, milli: u32) {
        if let Some(queue) = self.queue.as_mut().filter(|queue| queue.waiting() > 0) {
            queue.machine_busy(Some(Cores::from_milli(milli)));
        }
    }

    fn poll(&mut self, backend: &mut Backend, now: u64, mut acts: Vec<Act>) -> Vec<Act> {
        let Some(queue) = &mut self.queue else { return acts };
        while let Some(event) = queue.poll(Moment::from_nanos(now)) {
            match event {
                Event::Go(ticket) => {
                    let id = self.ids[&ticket];
                    backend.start(id, self.visits[&id].0.work);
                    acts.push(Act::Start(id));
                }
                Event::Refuse(ticket, refusal) => {
                    let id = self.ids.remove(&ticket).expect("it waits");
                    self.visits.remove(&id);
                    acts.push(Act::Refuse(id, refusal));
                }
            }
        }
        acts
    }
}

pub(crate) fn key(route: usize) -> RouteKey {
    RouteKey { route: route as u64, parent: 1_000_000 }
}

/// How long a request may wait in all, as a gate enforces it.
pub(crate) fn patience(settings: &Settings) -> Span {
    Span::from_nanos(settings.hold_max.as_nanos() / 2 * 3)
}
