//! Clients, a gate and a backend in virtual time.

use crate::backend::{Backend, Work};
use crate::gate::{Act, Gate, Visit, patience};
use crate::random::Random;
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
/// A refused client tries again this soon: it ignores what it was told.
const RETRY_NS: u64 = 10 * MS;

/// Stands for a route that only one source asks for.
const OWN_ROUTE: usize = usize::MAX;

/// How requests of a source come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrivals {
    /// So many a second, whatever becomes of them.
    Open(f64),
    /// On so many connections, each as soon as the one before is answered.
    Closed(usize),
    /// So many whenever a request of another source was answered.
    After(usize, usize),
}

/// A kind of client.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) arrivals: Arrivals,
    pub(crate) from_s: u64,
    pub(crate) until_s: u64,
    /// Addresses, of which each request has one.
    pub(crate) addresses: Vec<u32>,
    /// What a request costs and which route it is for, with the probability in percent.
    pub(crate) works: Vec<(u64, Work, usize)>,
    pub(crate) timeout_ns: u64,
    /// Spread of the costs around their mean: the sigma of a lognormal distribution.
    pub(crate) sigma: f64,
    /// Whether the requests of a connection are of one tenant, instead of each request of its own.
    pub(crate) retry: bool,
}

impl Source {
    /// One whose requests are all alike, and for a route of their own.
    pub(crate) fn new(arrivals: Arrivals, addresses: Vec<u32>, work: Work) -> Self {
        let works = vec![(100, work, OWN_ROUTE)];
        Self {
            arrivals,
            from_s: 0,
            until_s: u64::MAX / SEC,
            addresses,
            works,
            timeout_ns: 5 * SEC,
            sigma: 0.0,
            retry: true,
        }
    }

    /// One that waits for as long as it takes.
    pub(crate) fn patient(arrivals: Arrivals, addresses: Vec<u32>, work: Work) -> Self {
        Self { timeout_ns: u64::MAX / 4, ..Self::new(arrivals, addresses, work) }
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) at: u64,
    pub(crate) cpu_ns: u64,
    /// `None`: refused, or given up.
    pub(crate) latency_ms: Option<f64>,
    /// Until it started.
    pub(crate) waited_ms: f64,
    pub(crate) refusal: Option<(u64, Refusal)>,
}

#[derive(Default)]
pub(crate) struct Results {
    pub(crate) outcomes: Vec<Vec<Outcome>>,
    /// For every second: how busy the cores were, and how much might be at the backend.
    pub(crate) busy: Vec<f64>,
    pub(crate) limit: Vec<f64>,
    pub(crate) cores: Vec<u32>,
    pub(crate) charged_ns: HashMap<usize, u64>,
    pub(crate) waiting_max: usize,
}

pub(crate) struct World {
    /// `None`: the clients talk to the backend directly.
    pub(crate) settings: Option<Settings>,
    /// Whether the gate sees how busy the backend's machine is.
    pub(crate) is_local: bool,
    pub(crate) backend: Backend,
    pub(crate) sources: Vec<Source>,
    /// From this second on everything takes so many times as long.
    pub(crate) slow_from: Option<(u64, f64)>,
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
    address: u32,
    at: u64,
    started: u64,
    work: Work,
    connection: u64,
    given_up: bool,
}

pub(crate) fn client(address: u32, tenant: u64) -> Client {
    let hash = |level: u64, prefix: u32| Random::new(level << 40 | u64::from(prefix)).next();
    Client { address: hash(1, address), network: hash(2, address >> 8), block: hash(3, address >> 16), tenant }
}

impl World {
    pub(crate) fn new(cores: u32, workers: usize, sources: Vec<Source>, seconds: u64) -> Self {
        Self {
            settings: Some(Settings { cores: Cores::whole(cores), ..Settings::default() }),
            is_local: false,
            backend: Backend::new(cores, workers),
            sources,
            slow_from: None,
            seconds,
            seed: 7,
        }
    }

    /// The same without a gate.
    pub(crate) fn direct(self) -> Self {
        Self { settings: None, ..self }
    }

    pub(crate) fn run(self) -> Results {
        Run {
            gate: Gate::new(self.settings),
            random: Random::new(self.seed),
            results: Results { outcomes: vec![vec![]; self.sources.len()], ..Results::default() },
            world: self,
            events: BinaryHeap::new(),
            order: 0,
            trips: HashMap::new(),
            trips_ever: 0,
            busy_ns: 0.0,
            tick_busy_ns: 0.0,
            sent: HashMap::new(),
            is_idle: false,
            ticks: 0,
        }
        .run()
    }
}

struct Run {
    world: World,
    gate: Gate,
    random: Random,
    results: Results,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    trips: HashMap<usize, Trip>,
    trips_ever: usize,
    busy_ns: f64,
    tick_busy_ns: f64,
    sent: HashMap<(usize, u64), u64>,
    is_idle: bool,
    ticks: u64,
}

impl Run {
    fn run(mut self) -> Results {
        for index in 0..self.world.sources.len() {
            let from = self.world.sources[index].from_s * SEC;
            match self.world.sources[index].arrivals {
                Arrivals::Open(per_second) => {
                    let gap = self.random.gap_ns(per_second);
                    self.schedule(from + gap, Event::Arrive(index, 0));
                }
                Arrivals::Closed(connections) => {
                    (0..connections as u64).for_each(|c| self.schedule(from + c * 1000, Event::Arrive(index, c)));
                }
                Arrivals::After(..) => {}
            }
        }
        self.schedule(SEC, Event::Second(1));
        self.schedule(TICK_NS, Event::Tick);
        while let Some(now) = self.next().filter(|now| *now <= self.world.seconds * SEC) {
            for id in self.world.backend.advance(now) {
                let acts = self.gate.done(id, &mut self.world.backend, now);
                self.answered(id, now);
                self.happened(acts, now);
            }
            while self.events.peek().is_some_and(|Reverse((at, _, _))| *at <= now) {
                let Some(Reverse((_, _, event))) = self.events.pop() else { break };
                self.happen(event, now);
            }
            self.results.waiting_max = self.results.waiting_max.max(self.gate.waiting());
        }
        self.results.charged_ns = self.gate.charged_ns;
        self.results
    }

    fn next(&self) -> Option<u64> {
        let event = self.events.peek().map(|Reverse((at, _, _))| *at);
        [event, self.world.backend.next()].into_iter().flatten().min()
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn happen(&mut self, event: Event, now: u64) {
        match event {
            Event::Second(second) => {
                self.results.busy.push((self.world.backend.busy_ns - self.busy_ns) / SEC as f64);
                if let Some(queue) = &self.gate.queue {
                    self.results.limit.push(queue.limit().as_256ths() as f64 / 256.0);
                    self.results.cores.push(queue.cores().as_milli());
                }
                self.busy_ns = self.world.backend.busy_ns;
                if let Some((from, slowness)) = self.world.slow_from
                    && second >= from
                {
                    self.world.backend.slowness = slowness;
                }
                self.schedule(now + SEC, Event::Second(second + 1));
            }
            Event::Tick => {
                self.ticks += 1;
                if self.ticks.is_multiple_of(10) {
                    let busy = self.world.backend.busy_ns - self.tick_busy_ns;
                    self.tick_busy_ns = self.world.backend.busy_ns;
                    self.is_idle = self.world.is_local && busy < 0.8 * (10 * TICK_NS) as f64;
                }
                let acts = self.gate.tick(self.is_idle, &mut self.world.backend, now);
                self.happened(acts, now);
                self.schedule(now + TICK_NS, Event::Tick);
            }
            Event::GiveUp(id) => {
                if let Some(trip) = self.trips.get_mut(&id) {
                    trip.given_up = true;
                    if self.gate.leave(id, now) {
                        self.lost(id, None, now);
                    }
                }
            }
            Event::HoldEnds(id) => {
                if let Some(refusal) = self.gate.give_up(id, now) {
                    self.lost(id, Some(refusal), now);
                }
            }
            Event::Arrive(source, connection) => {
                if now >= self.world.sources[source].until_s * SEC {
                    return;
                }
                if let Arrivals::Open(per_second) = self.world.sources[source].arrivals {
                    let gap = self.random.gap_ns(per_second);
                    self.schedule(now + gap, event);
                }
                let addresses = &self.world.sources[source].addresses;
                let address = match self.world.sources[source].arrivals {
                    Arrivals::Closed(_) => addresses[connection as usize % addresses.len()],
                    _ => addresses[self.random.below(addresses.len() as u64) as usize],
                };
                self.send(source, address, connection, now);
            }
        }
    }

    fn send(&mut self, source: usize, address: u32, connection: u64, now: u64) {
        // The nth request of a connection is the same with and without a gate.
        let nth = self.sent.entry((source, connection)).or_default();
        *nth += 1;
        let mut random = Random::new(self.world.seed ^ (source as u64) << 56 ^ connection << 32 ^ *nth);
        let mut dice = random.below(100);
        let works = &self.world.sources[source].works;
        let (_, work, route) = works
            .iter()
            .find(|(percent, ..)| {
                let hit = dice < *percent;
                dice = dice.saturating_sub(*percent);
                hit
            })
            .unwrap();
        let route = if *route == OWN_ROUTE { source } else { *route };
        let sigma = self.world.sources[source].sigma;
        let factor = if sigma > 0.0 { (random.normal() * sigma - sigma * sigma / 2.0).exp() } else { 1.0 };
        let scale = |nanos: u64| (nanos as f64 * factor) as u64;
        let work = Work { cpu_ns: scale(work.cpu_ns), sleep_ns: scale(work.sleep_ns) };
        let id = self.trips_ever;
        self.trips_ever += 1;
        self.trips.insert(id, Trip { source, address, at: now, started: now, work, connection, given_up: false });
        self.schedule(now + self.world.sources[source].timeout_ns, Event::GiveUp(id));
        if let Some(settings) = &self.world.settings {
            self.schedule(now + patience(settings).as_nanos(), Event::HoldEnds(id));
        }
        let visit = Visit { client: client(address, connection), source, route, work };
        let acts = self.gate.arrive(id, visit, &mut self.world.backend, now);
        self.happened(acts, now);
    }

    fn happened(&mut self, acts: Vec<Act>, now: u64) {
        for act in acts {
            match act {
                Act::Start(id) => {
                    if let Some(trip) = self.trips.get_mut(&id) {
                        trip.started = now;
                    }
                }
                Act::Refuse(id, refusal) => self.lost(id, Some(refusal), now),
            }
        }
    }

    fn answered(&mut self, id: usize, now: u64) {
        let Some(trip) = self.trips.remove(&id) else { return };
        let latency_ms = (!trip.given_up).then(|| (now - trip.at) as f64 / MS as f64);
        let waited_ms = (trip.started - trip.at) as f64 / MS as f64;
        let outcome = Outcome { at: trip.at, cpu_ns: trip.work.cpu_ns, latency_ms, waited_ms, refusal: None };
        self.results.outcomes[trip.source].push(outcome);
        if let Arrivals::Closed(_) = self.world.sources[trip.source].arrivals {
            self.schedule(now + PAUSE_NS, Event::Arrive(trip.source, trip.connection));
        }
        if trip.given_up {
            return;
        }
        for source in 0..self.world.sources.len() {
            match self.world.sources[source].arrivals {
                Arrivals::After(of, count) if of == trip.source => {
                    (0..count).for_each(|_| self.send(source, trip.address, 0, now));
                }
                _ => {}
            }
        }
    }

    fn lost(&mut self, id: usize, refusal: Option<Refusal>, now: u64) {
        let Some(trip) = self.trips.remove(&id) else { return };
        let waited_ms = (now - trip.at) as f64 / MS as f64;
        let refusal = refusal.map(|refusal| (now, refusal));
        let outcome = Outcome { at: trip.at, cpu_ns: 0, latency_ms: None, waited_ms, refusal };
        self.results.outcomes[trip.source].push(outcome);
        if let (Arrivals::Closed(_), true) =
            (self.world.sources[trip.source].arrivals, self.world.sources[trip.source].retry)
        {
            self.schedule(now + RETRY_NS, Event::Arrive(trip.source, trip.connection));
        }
    }
}

impl Results {
    fn during(&self, source: usize, from_s: u64, until_s: u64) -> impl Iterator<Item = &Outcome> {
        self.outcomes[source].iter().filter(move |outcome| (from_s * SEC..until_s * SEC).contains(&outcome.at))
    }

    /// The part of requests that were answered.
    pub(crate) fn success(&self, source: usize, from_s: u64, until_s: u64) -> f64 {
        let all = self.during(source, from_s, until_s).count();
        self.during(source, from_s, until_s).filter(|outcome| outcome.latency_ms.is_some()).count() as f64 / all as f64
    }

    /// The latency below which this part of all sources' answers stay, and how many answers there were. Requests that arrived in the
    /// stretch count.
    pub(crate) fn together(&self, q: f64, from_ms: u64, until_ms: u64) -> (f64, usize) {
        let stretch = from_ms * MS..until_ms * MS;
        let outcomes = self.outcomes.iter().flatten().filter(|outcome| stretch.contains(&outcome.at));
        let mut all: Vec<_> = outcomes.filter_map(|outcome| outcome.latency_ms).collect();
        all.sort_by(f64::total_cmp);
        let at = ((all.len() as f64 * q) as usize).min(all.len().saturating_sub(1));
        (all.get(at).copied().unwrap_or(0.0), all.len())
    }

    /// Answers that were given within a stretch of time.
    pub(crate) fn answered(&self, from_ms: u64, until_ms: u64) -> usize {
        let stretch = (from_ms * MS) as f64..(until_ms * MS) as f64;
        let ends = self.outcomes.iter().flatten().filter_map(|o| Some(o.at as f64 + o.latency_ms? * MS as f64));
        ends.filter(|end| stretch.contains(end)).count()
    }

    pub(crate) fn refusals(&self) -> usize {
        self.outcomes.iter().flatten().filter(|outcome| outcome.refusal.is_some()).count()
    }

    /// How long requests of this cost (any, if zero) took; a failure counts as five seconds.
    pub(crate) fn quantile(&self, source: usize, cpu_ms: u64, q: f64, from_s: u64, until_s: u64) -> f64 {
        let mut all: Vec<_> = self
            .during(source, from_s, until_s)
            .filter(|outcome| cpu_ms == 0 || outcome.cpu_ns == cpu_ms * MS || outcome.latency_ms.is_none())
            .map(|outcome| outcome.latency_ms.unwrap_or(5000.0))
            .collect();
        all.sort_by(f64::total_cmp);
        all.get(((all.len() as f64 * q) as usize).min(all.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    /// How long requests of these sources took together; a failure counts as five seconds.
    pub(crate) fn quantile_of(&self, sources: &[usize], q: f64, from_s: u64, until_s: u64) -> f64 {
        let outcomes = sources.iter().flat_map(|source| self.during(*source, from_s, until_s));
        let mut all: Vec<_> = outcomes.map(|outcome| outcome.latency_ms.unwrap_or(5000.0)).collect();
        all.sort_by(f64::total_cmp);
        all.get(((all.len() as f64 * q) as usize).min(all.len().saturating_sub(1))).copied().unwrap_or(0.0)
    }

    /// CPU time that a source's answered requests took, per second.
    pub(crate) fn cpu_rate(&self, source: usize, from_s: u64, until_s: u64) -> f64 {
        let total: u64 = self.during(source, from_s, until_s).map(|outcome| outcome.cpu_ns).sum();
        total as f64 / SEC as f64 / (until_s - from_s) as f64
    }

    /// Answers per second.
    pub(crate) fn rate(&self, source: usize, from_s: u64, until_s: u64) -> f64 {
        self.during(source, from_s, until_s).filter(|outcome| outcome.latency_ms.is_some()).count() as f64
            / (until_s - from_s) as f64
    }

    /// Cores busy on average.
    pub(crate) fn busy(&self, from_s: u64, until_s: u64) -> f64 {
        let seconds = &self.busy[from_s as usize..until_s as usize];
        seconds.iter().sum::<f64>() / seconds.len() as f64
    }
}
