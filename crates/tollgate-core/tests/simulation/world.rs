//! Clients, gates and backends in virtual time.

use crate::backend::{Backend, Work};
use crate::gate::{Act, Gate, Visit, patience};
use crate::random::Random;
use crate::results::{Outcome, Results};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use tollgate_core::queue::{Client, Refusal, Settings};
use tollgate_core::virtual_clock::Cores;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SEC: u64 = 1_000_000_000;
/// Between an answer and a client's next request.
const PAUSE_NS: u64 = MS / 5;
/// How often a gate does what is due with time.
const TICK_NS: u64 = 5 * MS;
/// The pause before a client retries that ignores `Retry-After`.
const RETRY_NS: u64 = 10 * MS;

/// Stands for a route that only one source requests.
const OWN_ROUTE: usize = usize::MAX;

/// When requests of a source arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrivals {
    /// This many per second, independent of the answers.
    Open(f64),
    /// On this many connections, each as soon as the request before is answered.
    Closed(usize),
    /// This many whenever a request of another source is answered.
    After(usize, usize),
    /// This many at once, at each of these times in milliseconds.
    Bursts(usize, &'static [u64]),
}

/// How a connection of [`Arrivals::Closed`] retries a request that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// At once, whatever `Retry-After` says.
    Soon,
    /// After the time in Retry-After.
    AsTold,
}

/// A kind of client.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) arrivals: Arrivals,
    pub(crate) from_ms: u64,
    /// Addresses, of which each request has one.
    pub(crate) addresses: Vec<u32>,
    /// Work and route of a request, with the probability in percent.
    pub(crate) works: Vec<(u64, Work, usize)>,
    /// The work of the first requests, and how many those are.
    pub(crate) first: Option<(u64, Work)>,
    pub(crate) timeout_ns: u64,
    /// Spread of the costs around their mean: the sigma of a lognormal distribution.
    pub(crate) sigma: f64,
    pub(crate) retry: Retry,
    /// The tenant of all its requests, instead of one for each connection.
    pub(crate) tenant: Option<u64>,
}

impl Source {
    /// Requests that are all alike, for a route of their own.
    pub(crate) fn new(arrivals: Arrivals, addresses: Vec<u32>, work: Work) -> Self {
        Self {
            arrivals,
            from_ms: 0,
            addresses,
            works: vec![(100, work, OWN_ROUTE)],
            first: None,
            timeout_ns: 5 * SEC,
            sigma: 0.0,
            retry: Retry::Soon,
            tenant: None,
        }
    }

    /// Requests whose client waits without a timeout.
    pub(crate) fn patient(arrivals: Arrivals, addresses: Vec<u32>, work: Work) -> Self {
        Self { timeout_ns: u64::MAX / 4, ..Self::new(arrivals, addresses, work) }
    }
}

/// The CPU and sleep time of a request, in milliseconds, with 0.1 ms for the way to the backend.
pub(crate) fn work(cpu_ms: f64, sleep_ms: f64) -> Work {
    Work { cpu_ns: (cpu_ms * MS as f64) as u64, sleep_ns: (sleep_ms * MS as f64) as u64 + MS / 10 }
}

/// Addresses of different blocks.
pub(crate) fn addresses(count: u32) -> Vec<u32> {
    (0..count).map(|index| (10 + index) << 16 | 0x0101).collect()
}

#[derive(Clone)]
pub(crate) struct World {
    /// `None`: the clients talk to the backends directly.
    pub(crate) settings: Option<Settings>,
    /// Whether the gate sees how busy the backend's machine is.
    pub(crate) is_local: bool,
    /// Requests take turns among this many queues. Queue n is in front of backend n, or of the last one.
    pub(crate) queues: usize,
    pub(crate) backends: Vec<Backend>,
    pub(crate) sources: Vec<Source>,
    /// From this second on everything takes this many times as long.
    pub(crate) slowness: Vec<(u64, f64)>,
    /// From this second on the backends have this many workers.
    pub(crate) workers: Option<(u64, usize)>,
    /// In this second the gates restart and know nothing.
    pub(crate) restart_s: Option<u64>,
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(usize, u64),
    GiveUp(usize),
    HoldEnds(usize),
    Second(u64),
    Tick,
}

struct Trip {
    source: usize,
    queue: usize,
    address: u32,
    at: u64,
    started: Option<u64>,
    work: Work,
    connection: u64,
    has_given_up: bool,
}

pub(crate) fn client(address: u32, tenant: u64) -> Client {
    let hash = |level: u64, prefix: u32| Random::new(level << 40 | u64::from(prefix)).next();
    Client { address: hash(1, address), network: hash(2, address >> 8), block: hash(3, address >> 16), tenant }
}

impl World {
    /// One gate with default settings in front of one backend, whose cores it knows.
    pub(crate) fn new(cores: u32, workers: usize, sources: Vec<Source>, seconds: u64) -> Self {
        Self {
            settings: Some(Settings { cores: Cores::whole(cores), ..Settings::default() }),
            is_local: false,
            queues: 1,
            backends: vec![Backend::new(cores, workers)],
            sources,
            slowness: vec![],
            workers: None,
            restart_s: None,
            seconds,
            seed: 7,
        }
    }

    /// The same with other cores than the backend has in the settings.
    pub(crate) fn said(mut self, cores: u32) -> Self {
        self.settings.iter_mut().for_each(|settings| settings.cores = Cores::whole(cores));
        self
    }

    /// The same without a gate.
    pub(crate) fn direct(&self) -> Self {
        Self { settings: None, ..self.clone() }
    }

    pub(crate) fn run(self) -> Results {
        Run {
            gates: (0..self.queues).map(|_| Gate::new(self.settings, 0)).collect(),
            randoms: (0..self.sources.len() as u64).map(|source| Random::new(self.seed ^ source << 48)).collect(),
            results: Results::new(self.sources.len()),
            in_flight_ns: vec![0; self.sources.len()],
            sent_by: vec![0; self.sources.len()],
            others_ns: vec![0.0; self.backends.len()],
            counted_ms: vec![0; self.backends.len()],
            world: self,
            events: BinaryHeap::new(),
            order: 0,
            trips: HashMap::new(),
            trips_ever: 0,
            busy_ns: 0.0,
            sent: HashMap::new(),
            ticks: 0,
        }
        .run()
    }
}

struct Run {
    world: World,
    gates: Vec<Gate>,
    /// One generator per source, so that its requests arrive at the same times whatever the others do.
    randoms: Vec<Random>,
    results: Results,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    trips: HashMap<usize, Trip>,
    trips_ever: usize,
    /// CPU time of the requests at the backends, by source.
    in_flight_ns: Vec<u64>,
    busy_ns: f64,
    /// CPU time of other processes, and of all processes as the kernel has counted it, by backend.
    others_ns: Vec<f64>,
    counted_ms: Vec<u64>,
    /// Requests sent, by source and connection, and by source.
    sent: HashMap<(usize, u64), u64>,
    sent_by: Vec<u64>,
    ticks: u64,
}

impl Run {
    fn run(mut self) -> Results {
        for index in 0..self.world.sources.len() {
            self.begin(index);
        }
        self.schedule(SEC, Event::Second(1));
        self.schedule(TICK_NS, Event::Tick);
        while let Some(now) = self.next().filter(|now| *now <= self.world.seconds * SEC) {
            for backend in 0..self.world.backends.len() {
                for id in self.world.backends[backend].advance(now) {
                    self.done(id, now);
                }
            }
            while self.events.peek().is_some_and(|Reverse((at, _, _))| *at <= now) {
                let Some(Reverse((_, _, event))) = self.events.pop() else { break };
                self.happen(event, now);
            }
        }
        self.results
    }

    fn begin(&mut self, source: usize) {
        let from = self.world.sources[source].from_ms * MS;
        match self.world.sources[source].arrivals {
            Arrivals::Open(per_second) => {
                let gap = self.randoms[source].gap_ns(per_second);
                self.schedule(from + gap, Event::Arrive(source, 0));
            }
            Arrivals::Closed(connections) => {
                (0..connections as u64).for_each(|c| self.schedule(from + c * 1000, Event::Arrive(source, c)));
            }
            Arrivals::Bursts(count, times) => {
                for (burst, at) in times.iter().enumerate() {
                    let first = (burst * count) as u64;
                    (first..first + count as u64).for_each(|c| self.schedule(from + at * MS, Event::Arrive(source, c)));
                }
            }
            Arrivals::After(..) => {}
        }
    }

    fn next(&self) -> Option<u64> {
        let event = self.events.peek().map(|Reverse((at, _, _))| *at);
        self.world.backends.iter().map(Backend::next).chain([event]).flatten().min()
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn happen(&mut self, event: Event, now: u64) {
        match event {
            Event::Second(second) => self.second(second, now),
            Event::Tick => self.tick(now),
            Event::GiveUp(id) => {
                if let Some(trip) = self.trips.get_mut(&id) {
                    trip.has_given_up = true;
                    if self.gates[trip.queue].leave(id, now) {
                        self.lost(id, None, now);
                    }
                }
            }
            Event::HoldEnds(id) => {
                if let Some(trip) = self.trips.get(&id)
                    && let Some(refusal) = self.gates[trip.queue].give_up(id, now)
                {
                    self.lost(id, Some(refusal), now);
                }
            }
            Event::Arrive(source, connection) => {
                if let Arrivals::Open(per_second) = self.world.sources[source].arrivals {
                    let gap = self.randoms[source].gap_ns(per_second);
                    self.schedule(now + gap, event);
                }
                let addresses = &self.world.sources[source].addresses;
                let address = match self.world.sources[source].arrivals {
                    Arrivals::Open(_) => addresses[self.randoms[source].below(addresses.len() as u64) as usize],
                    _ => addresses[connection as usize % addresses.len()],
                };
                self.send(source, address, connection, now);
            }
        }
    }

    fn second(&mut self, second: u64, now: u64) {
        let busy_ns: f64 = self.world.backends.iter().map(|backend| backend.busy_ns).sum();
        self.results.busy.push((busy_ns - self.busy_ns) / SEC as f64);
        self.busy_ns = busy_ns;
        if let Some(queue) = &self.gates[0].queue {
            self.results.limit.push(f64::from(queue.limit()));
            self.results.cores.push(queue.cores().as_milli());
        }
        for (from, slowness) in &self.world.slowness {
            if second == *from {
                self.world.backends.iter_mut().for_each(|backend| backend.slowness = *slowness);
            }
        }
        if let Some((_, workers)) = self.world.workers.filter(|(from, _)| second == *from) {
            self.world.backends.iter_mut().for_each(|backend| backend.set_workers(workers));
        }
        if self.world.restart_s == Some(second) {
            self.gates = (0..self.world.queues).map(|_| Gate::new(self.world.settings, now)).collect();
            let mut ids: Vec<_> = self.trips.keys().copied().collect();
            ids.sort_unstable();
            ids.into_iter().for_each(|id| self.lost(id, None, now));
            self.in_flight_ns.fill(0);
        }
        self.schedule(now + SEC, Event::Second(second + 1));
    }

    fn tick(&mut self, now: u64) {
        self.ticks += 1;
        if self.world.is_local && self.ticks.is_multiple_of(10) {
            self.look_at_machines(now);
        }
        for queue in 0..self.gates.len() {
            let backend = queue.min(self.world.backends.len() - 1);
            let acts = self.gates[queue].tick(&mut self.world.backends[backend], now);
            self.happened(acts, now);
        }
        self.schedule(now + TICK_NS, Event::Tick);
    }

    /// The kernel counts CPU time in steps of 10 ms, and other processes use some of it.
    fn look_at_machines(&mut self, now: u64) {
        let others = (self.world.seed % 3) as f64 * 0.05;
        for (at, backend) in self.world.backends.iter().enumerate() {
            let swing = 0.5 + (now as f64 / SEC as f64).sin() / 2.0;
            self.others_ns[at] += others * swing * (10 * TICK_NS) as f64;
            let counted = ((backend.busy_ns + self.others_ns[at]) / (10 * MS) as f64) as u64 * 10;
            let busy = counted - self.counted_ms[at];
            self.counted_ms[at] = counted;
            let gates = if self.world.backends.len() == 1 { 0..self.gates.len() } else { at..at + 1 };
            self.gates[gates].iter_mut().for_each(|gate| gate.machine_busy((busy * 20) as u32));
        }
    }

    /// The backend has finished a request.
    fn done(&mut self, id: usize, now: u64) {
        // A request of before a restart is not known any more.
        let Some(trip) = self.trips.get(&id) else { return };
        self.in_flight_ns[trip.source] -= trip.work.cpu_ns;
        let backend = trip.queue.min(self.world.backends.len() - 1);
        let acts = self.gates[trip.queue].done(id, &mut self.world.backends[backend], now);
        self.answered(id, now);
        self.happened(acts, now);
    }

    fn send(&mut self, source: usize, address: u32, connection: u64, now: u64) {
        let (work, route) = self.draw(source, connection);
        let id = self.trips_ever;
        self.trips_ever += 1;
        let queue = id % self.world.queues;
        let trip = Trip { source, queue, address, at: now, started: None, work, connection, has_given_up: false };
        self.trips.insert(id, trip);
        self.schedule(now + self.world.sources[source].timeout_ns, Event::GiveUp(id));
        if let Some(settings) = &self.world.settings {
            self.schedule(now + patience(settings).as_nanos(), Event::HoldEnds(id));
        }
        let tenant = self.world.sources[source].tenant.unwrap_or(connection);
        let visit = Visit { client: client(address, tenant), route, work };
        let backend = queue.min(self.world.backends.len() - 1);
        let acts = self.gates[queue].arrive(id, visit, &mut self.world.backends[backend], now);
        self.happened(acts, now);
    }

    /// The work and route of a connection's next request. The nth request of a connection is the same with and without
    /// a gate.
    fn draw(&mut self, source: usize, connection: u64) -> (Work, usize) {
        let nth = self.sent.entry((source, connection)).or_default();
        *nth += 1;
        self.sent_by[source] += 1;
        let mut random = Random::new(self.world.seed ^ (source as u64) << 56 ^ connection << 32 ^ *nth);
        let of = &self.world.sources[source];
        let mut dice = random.below(100);
        let drawn = of.works.iter().find(|(percent, ..)| {
            let is_hit = dice < *percent;
            dice = dice.saturating_sub(*percent);
            is_hit
        });
        let (_, work, route) = drawn.expect("the percents add up to 100");
        let work = of.first.filter(|(count, _)| self.sent_by[source] <= *count).map_or(*work, |(_, work)| work);
        let factor = if of.sigma > 0.0 { (random.normal() * of.sigma - of.sigma * of.sigma / 2.0).exp() } else { 1.0 };
        let scale = |nanos: u64| (nanos as f64 * factor) as u64;
        let work = Work { cpu_ns: scale(work.cpu_ns), sleep_ns: scale(work.sleep_ns) };
        (work, if *route == OWN_ROUTE { source } else { *route })
    }

    fn happened(&mut self, acts: Vec<Act>, now: u64) {
        for act in acts {
            match act {
                Act::Start(id) => {
                    let Some(trip) = self.trips.get_mut(&id) else { continue };
                    trip.started = Some(now);
                    self.in_flight_ns[trip.source] += trip.work.cpu_ns;
                    let most = &mut self.results.in_flight_ns_max[trip.source];
                    *most = self.in_flight_ns[trip.source].max(*most);
                }
                Act::Refuse(id, refusal) => self.lost(id, Some(refusal), now),
            }
        }
    }

    fn answered(&mut self, id: usize, now: u64) {
        let Some(trip) = self.trips.remove(&id) else { return };
        let latency_ms = (!trip.has_given_up).then(|| (now - trip.at) as f64 / MS as f64);
        let outcome =
            Outcome { id, at: trip.at, cpu_ns: trip.work.cpu_ns, latency_ms, started: trip.started, refusal: None };
        self.results.outcomes[trip.source].push(outcome);
        if let Arrivals::Closed(_) = self.world.sources[trip.source].arrivals {
            self.schedule(now + PAUSE_NS, Event::Arrive(trip.source, trip.connection));
        }
        if trip.has_given_up {
            return;
        }
        for source in 0..self.world.sources.len() {
            if let Arrivals::After(of, count) = self.world.sources[source].arrivals
                && of == trip.source
            {
                (0..count).for_each(|_| self.send(source, trip.address, 0, now));
            }
        }
    }

    fn lost(&mut self, id: usize, refusal: Option<Refusal>, now: u64) {
        let Some(trip) = self.trips.remove(&id) else { return };
        let refusal = refusal.map(|refusal| (now, refusal));
        let outcome = Outcome { id, at: trip.at, cpu_ns: 0, latency_ms: None, started: trip.started, refusal };
        self.results.outcomes[trip.source].push(outcome);
        if let Arrivals::Closed(_) = self.world.sources[trip.source].arrivals {
            let told = refusal.map(|(_, refusal)| refusal.retry_after.as_nanos());
            let pause = told.filter(|_| self.world.sources[trip.source].retry == Retry::AsTold);
            self.schedule(now + pause.unwrap_or(RETRY_NS), Event::Arrive(trip.source, trip.connection));
        }
    }
}
