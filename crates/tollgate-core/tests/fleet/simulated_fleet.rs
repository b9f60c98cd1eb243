//! The simulated fleet: the real state machines of gates and a master, driven by a virtual clock and a seeded
//! network.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use tollgate_core::fleet::{
    ClockReading, Command, Domain, Gate, GateSettings, Master, MasterSettings, Snapshot, Usage,
};
use tollgate_core::limit::{Limit, Rate, Room};
use tollgate_core::record::PlainRecord;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::packet::{OrderPacket, ReportPacket};
use crate::plan::{Fault, MILLI, Plan, SECOND};
use fastrand::Rng;

type Hasher = BuildHasherDefault<DefaultHasher>;

/// The correct wall-clock time at the start.
const WALL_MS: u64 = 1_794_704_482_860;
const REPEAT_EVERY: u64 = SECOND;

pub(crate) const ATTACKER: &[u8] = b"attacker";
pub(crate) const INNOCENT: &[u8] = b"innocent";

/// The measurements for the laws.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// The times at which the attacker's requests were forwarded, in true time.
    pub(crate) passed: Vec<u64>,
    /// The times at which they were sent.
    pub(crate) offered: Vec<u64>,
    /// The longest time until the master knew of a request that a gate had admitted.
    report_lag: HashMap<Vec<u8>, u64>,
    /// The longest time from there until all gates knew.
    order_lag: HashMap<Vec<u8>, u64>,
    /// The number of gates; a restarted gate counts as another.
    pub(crate) gates: u64,
    /// The delays of the innocent client, with their times.
    pub(crate) innocent_delays: Vec<(u64, u64)>,
    pub(crate) innocent_requests: u64,
}

impl Findings {
    /// The longest time until all gates knew of a request that one had admitted.
    pub(crate) fn knowledge_lag(&self, identifier: &[u8]) -> u64 {
        let lag = |lags: &HashMap<Vec<u8>, u64>| lags.get(identifier).copied().unwrap_or_default();
        lag(&self.report_lag) + lag(&self.order_lag)
    }

    /// The longest delay of the innocent client from `time` on.
    pub(crate) fn innocent_delay_late(&self, time: u64) -> u64 {
        self.innocent_delays.iter().filter(|&&(when, _)| when >= time).map(|&(_, wait)| wait).max().unwrap_or_default()
    }
}

enum Event {
    Request {
        gate: usize,
        identifier: &'static [u8],
    },
    /// The innocent client may send another request.
    Innocent,
    ToMaster {
        gate: usize,
        life: u64,
        packet: ReportPacket,
    },
    ToGate {
        gate: usize,
        life: u64,
        packet: OrderPacket,
    },
    PollGate {
        gate: usize,
        life: u64,
    },
    PollMaster,
    /// The gate's subscription arrives.
    Subscribe {
        gate: usize,
        life: u64,
    },
    Fault(Fault),
    MasterUp,
    Save,
}

struct GateHost {
    gate: Gate<Hasher>,
    records: BTreeMap<Vec<u8>, PlainRecord>,
    life: u64,
    /// The gate's clock at true time 0.
    origin: u64,
    wall_ms: u64,
    cut_until: u64,
    /// The time of the next poll, if no event happens before.
    poll_due: u64,
    /// The true times of admitted requests that the master does not know of.
    unreported: HashMap<Vec<u8>, VecDeque<u64>>,
    /// The time since which the master has had an order that the gate does not know of.
    awaited: HashMap<Vec<u8>, (u64, Moment)>,
}

pub(crate) struct SimulatedFleet {
    plan: Plan,
    rng: Rng,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: HashMap<u64, Event>,
    sequence: u64,
    limit: Limit,
    gates: Vec<GateHost>,
    master: Option<Master<Hasher>>,
    master_origin: u64,
    master_wall_ms: u64,
    saved: Vec<(Vec<u8>, u64)>,
    /// The innocent client's own record, which limits its rate.
    innocent: PlainRecord,
    findings: Findings,
}

impl SimulatedFleet {
    pub(crate) fn new(plan: Plan, seed: u64) -> Self {
        let limit = Limit::Rate(Rate::new(plan.rate, Span::from_secs(1), plan.burst).unwrap());
        let mut simulated_fleet = Self {
            rng: Rng::with_seed(!seed),
            now: 0,
            queue: BinaryHeap::new(),
            events: HashMap::new(),
            sequence: 0,
            limit,
            gates: Vec::new(),
            master: None,
            master_origin: 0,
            master_wall_ms: 0,
            saved: Vec::new(),
            innocent: PlainRecord::new(1),
            findings: Findings { gates: plan.gates as u64, ..Findings::default() },
            plan,
        };
        simulated_fleet.start_master();
        for gate in 0..simulated_fleet.plan.gates {
            let host = simulated_fleet.host(gate as u64);
            simulated_fleet.gates.push(host);
            simulated_fleet.connect(gate);
        }
        simulated_fleet.offer();
        for (when, fault) in simulated_fleet.plan.faults.clone() {
            simulated_fleet.at(when, Event::Fault(fault));
        }
        simulated_fleet.at(0, Event::Innocent);
        simulated_fleet.at(SECOND, Event::Save);
        simulated_fleet
    }

    pub(crate) fn run(mut self) -> Findings {
        while let Some(Reverse((time, sequence))) = self.queue.pop() {
            if time > self.plan.length {
                break;
            }
            self.now = time;
            let event = self.events.remove(&sequence).unwrap();
            self.handle(event);
        }
        self.now = self.plan.length;
        for gate in 0..self.gates.len() {
            self.close_lags(gate);
        }
        self.findings.passed.sort_unstable();
        self.findings
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Request { gate, identifier } => self.request(gate, identifier),
            Event::Innocent => self.innocent_turn(),
            Event::ToMaster { gate, life, packet } => self.deliver_report(gate, life, &packet),
            Event::ToGate { gate, life, packet } => self.deliver_order(gate, life, &packet),
            Event::PollGate { gate, life } if self.gates[gate].life == life => self.poll_gate(gate),
            Event::PollGate { .. } => {}
            Event::PollMaster => self.poll_master(),
            Event::Subscribe { gate, life } => self.subscribe(gate, life),
            Event::Fault(fault) => self.fault(fault),
            Event::MasterUp => self.master_up(),
            Event::Save => self.save(),
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.sequence += 1;
        self.events.insert(self.sequence, event);
        self.queue.push(Reverse((time, self.sequence)));
    }

    /// Schedules all requests of the attacker.
    fn offer(&mut self) {
        let plan = self.plan.clone();
        let count = plan.offered * plan.length / SECOND;
        for _ in 0..count {
            let mut time = self.rng.u64(..plan.length);
            if plan.in_waves {
                // The same number of requests, in the first tenth of every five seconds.
                time = time / (5 * SECOND) * (5 * SECOND) + time % (5 * SECOND) / 10;
            }
            let gate = self.rng.u64(..plan.gates as u64) as usize;
            self.findings.offered.push(time);
            self.at(time, Event::Request { gate, identifier: ATTACKER });
        }
        self.findings.offered.sort_unstable();
    }

    fn innocent_turn(&mut self) {
        let now = Moment::from_nanos(self.now);
        match self.limit.room(&self.innocent, Toll::ONE, now) {
            Room::From(moment) => self.at(moment.as_nanos(), Event::Innocent),
            _ => {
                self.limit.charge(&mut self.innocent, Toll::ONE, now);
                self.findings.innocent_requests += 1;
                let gate = self.rng.u64(..self.plan.gates as u64) as usize;
                self.request(gate, INNOCENT);
                // Sometimes at the full rate, sometimes with a pause.
                let pause = if self.rng.u64(..1000) < 200 { self.rng.u64(..5 * SECOND) } else { 0 };
                self.at(self.now + pause, Event::Innocent);
            }
        }
    }

    fn request(&mut self, gate: usize, identifier: &'static [u8]) {
        let host = &mut self.gates[gate];
        let now = Moment::from_nanos(host.origin + self.now);
        let record = host.records.entry(identifier.to_vec()).or_insert_with(|| PlainRecord::new(1));
        let wait = match self.limit.room(record, Toll::ONE, now) {
            Room::From(moment) => moment.since(now).as_nanos(),
            _ => 0,
        };
        if identifier == INNOCENT && wait > 0 {
            self.findings.innocent_delays.push((self.now, wait));
        }
        if wait > self.plan.hold_max {
            return;
        }
        self.limit.charge(record, Toll::ONE, now);
        let held_until = (wait > 0).then_some(now + Span::from_nanos(wait));
        let clear = self.limit.clear_at(record);
        let usage = Usage { domain: 0, identifier, held_until, toll: Toll::ONE, clear, note: b"" };
        host.gate.handle_usage(&usage, now);
        host.unreported.entry(identifier.to_vec()).or_default().push_back(self.now);
        if identifier == ATTACKER {
            self.findings.passed.push(self.now + wait);
        }
        self.poll_gate(gate);
    }

    fn poll_gate(&mut self, gate: usize) {
        let mut packets = Vec::new();
        let host = &mut self.gates[gate];
        let reading =
            ClockReading { now: Moment::from_nanos(host.origin + self.now), wall_ms: host.wall_ms + self.now / MILLI };
        while let Some(report) = host.gate.poll_report(reading) {
            packets.push(ReportPacket::new(&report));
        }
        let (life, origin) = (host.life, host.origin);
        let due = host.gate.poll_timeout();
        for packet in packets {
            if self.lost(gate) {
                continue;
            }
            let copies = if self.rng.u64(..1000) < self.plan.double_permille { 2 } else { 1 };
            for _ in 0..copies {
                let arrival = self.arrival();
                self.at(arrival, Event::ToMaster { gate, life, packet: packet.clone() });
            }
        }
        if let Some(due) = due {
            let time = due.as_nanos().saturating_sub(origin).max(self.now + 1);
            let host = &mut self.gates[gate];
            if host.poll_due <= self.now || time < host.poll_due {
                host.poll_due = time;
                self.at(time, Event::PollGate { gate, life });
            }
        }
    }

    fn deliver_report(&mut self, gate: usize, life: u64, packet: &ReportPacket) {
        let reading = self.master_reading();
        let Some(master) = &mut self.master else { return };
        let report = packet.report();
        let outcome = master.handle_report(&report, reading);
        let host = &mut self.gates[gate];
        if host.life == life && !matches!(outcome, tollgate_core::fleet::Outcome::Stranger) {
            let unreported = host.unreported.entry(report.identifier.to_vec()).or_default();
            let lag = self.findings.report_lag.entry(report.identifier.to_vec()).or_default();
            match packet.tally {
                Some(tally) if tally.master.is_some() => {
                    // The requests up to the last one in this tally, within the error of the master's clock.
                    let told = unreported.len().min(
                        unreported
                            .iter()
                            .filter(|&&time| {
                                let known = tally.last.as_nanos() + self.plan.round_trip / 2 + MILLI;
                                self.master_origin + time <= known
                            })
                            .count(),
                    );
                    for time in unreported.drain(..told) {
                        *lag = (*lag).max(self.now - time);
                    }
                }
                _ => {
                    if let Some(time) = unreported.pop_front() {
                        *lag = (*lag).max(self.now - time);
                    }
                }
            }
        }
        self.poll_master();
    }

    fn poll_master(&mut self) {
        let now = self.master_reading().now;
        let Some(master) = &mut self.master else { return };
        let mut packets = Vec::new();
        while let Some(notice) = master.poll_notice(now) {
            packets.push(OrderPacket::new(&notice.own()));
        }
        if let Some(beacon) = master.poll_beacon(now) {
            packets.push(OrderPacket::new(&beacon));
            let due = master.poll_timeout().as_nanos() - self.master_origin;
            self.at(due.max(self.now + 1), Event::PollMaster);
        }
        for packet in packets {
            for gate in 0..self.gates.len() {
                self.send_order(gate, &packet);
            }
        }
    }

    fn send_order(&mut self, gate: usize, packet: &OrderPacket) {
        if let Command::Delay { stamp, .. } = packet.command {
            let awaited = &mut self.gates[gate].awaited;
            awaited.entry(packet.order().identifier.to_vec()).or_insert((self.now, stamp.tick));
        }
        if self.lost(gate) {
            return;
        }
        let life = self.gates[gate].life;
        let copies = if self.rng.u64(..1000) < self.plan.double_permille { 2 } else { 1 };
        for _ in 0..copies {
            let arrival = self.arrival();
            self.at(arrival, Event::ToGate { gate, life, packet: packet.clone() });
        }
    }

    fn deliver_order(&mut self, gate: usize, life: u64, packet: &OrderPacket) {
        let host = &mut self.gates[gate];
        if host.life != life {
            return;
        }
        let reading =
            ClockReading { now: Moment::from_nanos(host.origin + self.now), wall_ms: host.wall_ms + self.now / MILLI };
        let order = packet.order();
        if let Some((_, instruction)) = host.gate.handle_order(&order, reading) {
            let record = host.records.entry(order.identifier.to_vec()).or_insert_with(|| PlainRecord::new(1));
            instruction.apply(&self.limit, record);
        }
        if let Command::Delay { stamp, .. } = packet.command
            && let Some(&(since, tick)) = host.awaited.get(order.identifier)
            && stamp.tick >= tick
        {
            host.awaited.remove(order.identifier);
            let lag = self.findings.order_lag.entry(order.identifier.to_vec()).or_default();
            *lag = (*lag).max(self.now - since);
        }
        self.poll_gate(gate);
    }

    /// A new subscriber receives the master's clock and all delays in force.
    fn subscribe(&mut self, gate: usize, life: u64) {
        let now = self.master_reading().now;
        let Some(master) = &self.master else { return };
        if self.gates[gate].life != life {
            return;
        }
        let mut packets = vec![OrderPacket::new(&master.beacon(now))];
        let mut cursor = 0;
        loop {
            match master.snapshot(&mut cursor, |_| true, now) {
                Snapshot::Notice(notice) => packets.push(OrderPacket::new(&notice.own())),
                Snapshot::Onwards => {}
                Snapshot::Done => break,
            }
        }
        for packet in packets {
            self.send_order(gate, &packet);
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Cut(gate, lasting) => {
                self.gates[gate].cut_until = self.now + lasting;
                let life = self.gates[gate].life;
                self.at(self.now + lasting, Event::Subscribe { gate, life });
            }
            Fault::KillGate(gate) => {
                self.close_lags(gate);
                self.findings.gates += 1;
                let id = 1000 + self.findings.gates;
                self.gates[gate] = self.host(id);
                self.connect(gate);
            }
            Fault::KillMaster(lasting) => {
                self.master = None;
                self.at(self.now + lasting, Event::MasterUp);
            }
        }
    }

    fn master_up(&mut self) {
        if self.master.is_some() {
            return;
        }
        self.start_master();
        for gate in 0..self.gates.len() {
            self.connect(gate);
        }
    }

    fn start_master(&mut self) {
        let settings = MasterSettings {
            domains: vec![Domain { name: (*b"default").into(), limits: vec![self.limit] }],
            identifiers_max: 64,
            gates_max: 256,
            lag_max: Span::from_secs(10),
            beacon_every: Span::from_millis(250),
            delay_max: Span::from_secs(3600),
        };
        self.master_origin = 3600 * SECOND + self.rng.u64(..3600 * SECOND);
        self.master_wall_ms = self.wall();
        let epoch = self.rng.u64(..) | 1;
        let now = Moment::from_nanos(self.master_origin + self.now);
        let mut master = Master::new(settings, epoch, Hasher::default(), now);
        if self.plan.durable {
            for (identifier, clear) in &self.saved {
                let clear = Moment::from_nanos(self.master_origin + clear);
                master.restore(b"default", identifier, 0, clear, now);
            }
        }
        self.master = Some(master);
        self.at(self.now, Event::PollMaster);
    }

    fn save(&mut self) {
        let now = self.master_reading().now;
        if let Some(master) = &self.master {
            let origin = self.master_origin;
            let debts = master.debts(0..master.slots(), now);
            self.saved = debts
                .map(|(_, identifier, mut clear)| (identifier.to_vec(), clear.next().unwrap().as_nanos() - origin))
                .collect();
        }
        self.at(self.now + SECOND, Event::Save);
    }

    fn connect(&mut self, gate: usize) {
        let (life, arrival) = (self.gates[gate].life, self.arrival());
        self.at(arrival, Event::Subscribe { gate, life });
    }

    fn host(&mut self, id: u64) -> GateHost {
        let settings = GateSettings {
            domains: [(*b"default").into()].into(),
            identifiers_max: 64,
            repeat_every: Span::from_nanos(REPEAT_EVERY),
            silence_max: Span::from_secs(2),
            delay_max: Span::from_secs(3600),
            log_info: false,
        };
        GateHost {
            gate: Gate::new(settings, id, Hasher::default()),
            records: BTreeMap::new(),
            life: id,
            origin: self.rng.u64(..1000 * SECOND),
            wall_ms: self.wall(),
            cut_until: 0,
            poll_due: 0,
            unreported: HashMap::new(),
            awaited: HashMap::new(),
        }
    }

    fn wall(&mut self) -> u64 {
        let skew = self.plan.skew_ms;
        WALL_MS - skew + self.rng.u64(..2 * skew + 1)
    }

    fn lost(&mut self, gate: usize) -> bool {
        self.now < self.gates[gate].cut_until || self.rng.u64(..1000) < self.plan.loss_permille
    }

    fn arrival(&mut self) -> u64 {
        self.now + self.rng.u64(..self.plan.round_trip / 2 + 1)
    }

    fn master_reading(&self) -> ClockReading {
        ClockReading {
            now: Moment::from_nanos(self.master_origin + self.now),
            wall_ms: self.master_wall_ms + self.now / MILLI,
        }
    }

    /// Counts reports and orders that never arrived as late until now.
    fn close_lags(&mut self, gate: usize) {
        let host = &self.gates[gate];
        for (identifier, times) in &host.unreported {
            let lag = self.findings.report_lag.entry(identifier.clone()).or_default();
            *lag = (*lag).max(times.front().map_or(0, |since| self.now - since));
        }
        for (identifier, (since, _)) in &host.awaited {
            let lag = self.findings.order_lag.entry(identifier.clone()).or_default();
            *lag = (*lag).max(self.now - since);
        }
    }
}
