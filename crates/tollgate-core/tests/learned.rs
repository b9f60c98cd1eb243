//! A queue that starts from the learned state of an earlier one: correct, wrong and hostile.

use tollgate_core::queue::{Arrival, Client, Event, Learned, LearnedPrice, Queue, Request, RouteKey, Settings, Ticket};
use tollgate_core::time::{Moment, Span};

/// The step of the simulated time.
const STEP_US: u64 = 200;
/// Requests arrive from the start. The measurement lasts from second 2 to second 6.
const MEASURED_FROM_MS: u64 = 2_000;
const END_MS: u64 = 6_000;
/// Clients that always have a request at the gate, and a visitor that requests a page every 200 ms.
const CROWD: u64 = 64;
const VISITOR: u64 = 9_000_000;
const VISIT_EVERY_MS: u64 = 200;

#[derive(Clone, Copy, Debug)]
enum Backend {
    /// One core, shared by all requests in flight, with this many milliseconds of work each.
    OneCore(u64),
    /// Each request takes this many milliseconds, for any number in flight.
    Sleeping(u64),
}

/// A request at the backend, and the milliseconds of work left.
struct InFlight {
    ticket: Ticket,
    client: u64,
    left: f64,
}

#[derive(Debug)]
struct Measured {
    served: u64,
    refused: u64,
    /// The visitor's longest page time, in milliseconds.
    page_ms_max: u64,
}

fn request(client: u64) -> Request {
    // Twenty routes in four directories.
    let route = RouteKey { route: 1_000 + client % 20, parent: 2_000 + client % 4 };
    let client = Client { block: client, network: 100_000 + client, address: 200_000 + client, tenant: 0 };
    Request { client, route, weight_milli: 1000, bytes: 1000 }
}

fn at(micros: u64) -> Moment {
    Moment::ZERO + Span::from_nanos((1_000_000 + micros) * 1_000)
}

struct Run {
    queue: Queue,
    backend: Backend,
    in_flight: Vec<InFlight>,
    /// Waiting clients, by ticket.
    waiting: Vec<(Ticket, u64)>,
    refused: u64,
}

impl Run {
    fn arrive(&mut self, client: u64, now: Moment) -> bool {
        match self.queue.arrive(request(client), now) {
            Arrival::Go(ticket) => self.start(ticket, client),
            Arrival::Wait(ticket, _) => self.waiting.push((ticket, client)),
            Arrival::Refuse(_) => {
                self.refused += 1;
                return false;
            }
        }
        true
    }

    fn start(&mut self, ticket: Ticket, client: u64) {
        let (Backend::OneCore(millis) | Backend::Sleeping(millis)) = self.backend;
        self.in_flight.push(InFlight { ticket, client, left: millis as f64 });
    }

    /// Dispatches; returns the clients that were refused.
    fn poll(&mut self, now: Moment) -> Vec<u64> {
        let mut refused = Vec::new();
        while let Some(event) = self.queue.poll(now) {
            let (Event::Go(ticket) | Event::Refuse(ticket, _)) = event;
            let index = self.waiting.iter().position(|(waiting, _)| *waiting == ticket).expect("it waits");
            let (_, client) = self.waiting.swap_remove(index);
            match event {
                Event::Go(_) => self.start(ticket, client),
                Event::Refuse(..) => refused.push(client),
            }
        }
        self.refused += refused.len() as u64;
        refused
    }

    /// Runs the backend for one step. Returns the clients whose requests ended.
    fn work(&mut self, now: Moment) -> Vec<u64> {
        let step = STEP_US as f64 / 1e3;
        let each = match self.backend {
            Backend::OneCore(_) => step / self.in_flight.len().max(1) as f64,
            Backend::Sleeping(_) => step,
        };
        self.in_flight.iter_mut().for_each(|request| request.left -= each);
        let (ended, left) = std::mem::take(&mut self.in_flight).into_iter().partition(|request| request.left <= 1e-9);
        self.in_flight = left;
        let ended: Vec<InFlight> = ended;
        for InFlight { ticket, .. } in &ended {
            let toll = self.queue.so_far(*ticket, now);
            self.queue.done(*ticket, toll, true, now);
        }
        ended.into_iter().map(|request| request.client).collect()
    }
}

fn run(backend: Backend, learned: Option<&Learned>) -> (Measured, Learned) {
    let mut queue = Queue::new(Settings::default(), at(0));
    if let Some(learned) = learned {
        queue.restore(learned, at(0));
    }
    let mut run = Run { queue, backend, in_flight: Vec::new(), waiting: Vec::new(), refused: 0 };
    let (mut served, mut page_ms_max, mut visit_since, mut refused_before) = (0, 0, None, 0);
    let mut idle: Vec<u64> = (0..CROWD).collect();
    for micros in (0..END_MS * 1000).step_by(STEP_US as usize) {
        let (now, is_measured) = (at(micros), micros >= MEASURED_FROM_MS * 1000);
        if micros == MEASURED_FROM_MS * 1000 {
            refused_before = run.refused;
        }
        // A refused client retries immediately.
        idle.retain(|client| !run.arrive(*client, now));
        if micros % (VISIT_EVERY_MS * 1000) == 0 && visit_since.is_none() && run.arrive(VISITOR, now) {
            visit_since = Some(micros);
        }
        let refused = run.poll(now);
        let ended = run.work(now);
        for client in refused.iter().chain(&ended).copied() {
            if client != VISITOR {
                idle.push(client);
            } else if let Some(since) = visit_since.take()
                && is_measured
            {
                page_ms_max = page_ms_max.max((micros - since) / 1000);
            }
        }
        served += if is_measured { ended.len() as u64 } else { 0 };
        if micros % 5_000 == 0 {
            run.queue.tick(now);
        }
        idle.extend(run.poll(now).into_iter().filter(|client| *client != VISITOR));
    }
    let refused = run.refused - refused_before;
    (Measured { served, refused, page_ms_max }, run.queue.learned())
}

fn prices(mean: Span) -> Vec<LearnedPrice> {
    (1_000..1_020).chain(2_000..2_004).map(|key| LearnedPrice { key, mean, deviation: mean }).collect()
}

#[test]
fn wrong_and_hostile_learned_state_does_no_harm_after_two_seconds() {
    let years = Span::from_secs(10 * 365 * 86_400);
    for backend in [Backend::OneCore(20), Backend::OneCore(2), Backend::Sleeping(50), Backend::Sleeping(250)] {
        let (fresh, _) = run(backend, None);
        for (in_flight, price) in [
            (4096, Some(Span::ZERO)),
            (u32::MAX, Some(Span::from_nanos(1))),
            (4096, None),
            (4096, Some(Span::MAX)),
            (1, None),
            (1, Some(years)),
            (0, Some(years)),
            (0, Some(Span::ZERO)),
            (12, Some(Span::from_millis(500))),
        ] {
            let learned = Learned { in_flight, prices: price.map_or_else(Vec::new, prices) };
            let (measured, _) = run(backend, Some(&learned));
            let what = format!("{backend:?}, limit {in_flight}, price {price:?}: {measured:?}, new: {fresh:?}");
            assert!(measured.served * 10 >= fresh.served * 9, "throughput: {what}");
            assert!(measured.page_ms_max <= 2 * fresh.page_ms_max + 50, "page time: {what}");
            assert!(measured.refused <= fresh.refused, "refusals: {what}");
        }
    }
}

#[test]
fn learned_state_is_restored_after_a_restart() {
    let (before, learned) = run(Backend::Sleeping(50), None);
    assert!(learned.in_flight >= 64, "{learned:?} {before:?}");
    let mut queue = Queue::new(Settings::default(), at(0));
    queue.restore(&learned, at(0));
    assert_eq!(queue.learned().in_flight, learned.in_flight.min(4096));
    let mut restored = queue.learned().prices;
    let mut known = learned.prices.clone();
    restored.sort_by_key(|price| price.key);
    known.sort_by_key(|price| price.key);
    assert_eq!(restored, known);
    for price in &known {
        let shown = queue.price(RouteKey { route: price.key, parent: 0 });
        assert_eq!((shown.mean, shown.is_settled), (price.mean, false));
    }
}

/// A hostile file cannot keep the prices of real routes out.
#[test]
fn a_table_full_of_restored_prices_has_room_for_new_routes() {
    let mut queue = Queue::new(Settings::default(), at(0));
    let price = |key: u64| LearnedPrice { key: key * 0x9E37_79B9, mean: Span::from_secs(5), deviation: Span::ZERO };
    queue.restore(&Learned { in_flight: 8, prices: (1..100_000).map(price).collect() }, at(0));
    assert!(queue.learned().prices.len() <= Queue::PRICES_MAX);
    for round in 0..20 {
        let now = at(round * 100_000);
        for client in 0..20 {
            let Arrival::Go(ticket) = queue.arrive(request(client), now) else { panic!("{client}") };
            queue.done(ticket, Span::from_millis(3), true, now + Span::from_millis(3));
        }
    }
    for client in 0..20 {
        assert_eq!(queue.price(request(client).route).mean, Span::from_millis(3));
    }
}

#[test]
fn the_other_restored_prices_are_dropped_when_most_of_the_first_ones_were_wrong() {
    let mut queue = Queue::new(Settings::default(), at(0));
    let prices = (0..200).map(|key| LearnedPrice { key, mean: Span::from_secs(9), deviation: Span::ZERO }).collect();
    queue.restore(&Learned { in_flight: 8, prices }, at(0));
    let route = |route: u64| RouteKey { route, parent: 7_000 };
    assert_eq!(queue.price(route(150)).mean, Span::from_secs(9));
    for number in 0..12 {
        let now = at(number * 10_000);
        let asked = Request { route: route(number), ..request(number) };
        let Arrival::Go(ticket) = queue.arrive(asked, now) else { panic!("{number}") };
        queue.done(ticket, Span::from_millis(3), true, now + Span::from_millis(3));
    }
    assert_eq!(queue.price(route(150)).mean, Span::from_millis(3), "like its parent");
}
