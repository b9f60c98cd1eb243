//! Single scenarios: each flaw of the original that is fixed, and each fault that a connection can have.

use std::hash::{BuildHasherDefault, DefaultHasher};

use tollgate_core::fleet::{
    ClockReading, Command, Domain, Gate, GateSettings, Instruction, Master, MasterSettings, Order, Outcome, Report,
    Snapshot, Stamp, Status, Usage,
};
use tollgate_core::limit::{Budget, Limit, Rate, Room};
use tollgate_core::record::PlainRecord;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::laws;
use crate::packet::{OrderPacket, ReportPacket};
use crate::plan::{Fault, MILLI, Plan, SECOND};
use crate::simulated_fleet::SimulatedFleet;

pub(crate) type Hasher = BuildHasherDefault<DefaultHasher>;

pub(crate) const WALL_MS: u64 = 1_794_704_482_860;
pub(crate) const EPOCH: u64 = 7;

/// One per second, with a burst of ten.
pub(crate) fn limit() -> Limit {
    Limit::Rate(Rate::new(1, Span::from_secs(1), 10).unwrap())
}

pub(crate) fn master() -> Master<Hasher> {
    master_of(limit())
}

fn master_of(limit: Limit) -> Master<Hasher> {
    master_called(EPOCH, limit)
}

pub(crate) fn master_called(epoch: u64, limit: Limit) -> Master<Hasher> {
    let settings = MasterSettings {
        domains: vec![Domain { name: (*b"default").into(), limits: vec![limit] }],
        identifiers_max: 4096,
        gates_max: 8,
        lag_max: Span::from_secs(20),
        beacon_every: Span::from_secs(1),
        delay_max: Span::from_secs(3600),
    };
    Master::new(settings, epoch, Hasher::default(), at(0).now)
}

pub(crate) fn gate(id: u64) -> Gate<Hasher> {
    let settings = GateSettings {
        domains: [(*b"default").into()].into(),
        identifiers_max: 64,
        repeat_every: Span::from_secs(1),
        silence_max: Span::from_secs(5),
        delay_max: Span::from_secs(3600),
        log_info: false,
    };
    Gate::new(settings, id, Hasher::default())
}

/// The clocks, `ms` milliseconds after the start.
pub(crate) fn at(ms: u64) -> ClockReading {
    ClockReading { now: Moment::from_millis(1_000_000 + ms), wall_ms: WALL_MS + ms }
}

/// A report of an original gate that admitted a request at `ms`.
fn accepted(ms: i64) -> Report<'static> {
    let received_ms = WALL_MS.checked_add_signed(ms).unwrap();
    Report {
        domain: b"default",
        status: Status::Accepted,
        identifier: b"client",
        received_ms,
        delayed_until_ms: None,
        note: b"",
        cpu: None,
        tally: None,
    }
}

/// The time until which original gates must delay the client, in milliseconds after the start.
pub(crate) fn delay_until(master: &mut Master<Hasher>, reading: ClockReading) -> Option<u64> {
    let order = master.poll_notice(reading.now)?.original(reading.wall_ms)?;
    match order.command {
        Command::DelayUntil { until_ms } => Some(until_ms - WALL_MS),
        _ => None,
    }
}

pub(crate) fn pass(gate: &mut Gate<Hasher>, record: &mut PlainRecord, reading: ClockReading) {
    limit().charge(record, Toll::ONE, reading.now);
    let clear = limit().clear_at(record);
    let usage = Usage { domain: 0, identifier: b"client", held_until: None, toll: Toll::ONE, clear, note: b"" };
    gate.handle_usage(&usage, reading.now);
}

pub(crate) fn reports(gate: &mut Gate<Hasher>, reading: ClockReading) -> Vec<ReportPacket> {
    let mut packets = Vec::new();
    while let Some(report) = gate.poll_report(reading) {
        packets.push(ReportPacket::new(&report));
    }
    packets
}

pub(crate) fn notices(master: &mut Master<Hasher>, reading: ClockReading) -> Vec<OrderPacket> {
    let mut packets = Vec::new();
    while let Some(notice) = master.poll_notice(reading.now) {
        packets.push(OrderPacket::new(&notice.own()));
    }
    packets
}

pub(crate) fn obey(gate: &mut Gate<Hasher>, record: &mut PlainRecord, order: &Order<'_>, reading: ClockReading) {
    if let Some((_, instruction)) = gate.handle_order(order, reading) {
        instruction.apply(&limit(), record);
    }
}

#[test]
fn a_burst_of_ten_admits_ten_and_then_one_per_interval() {
    let mut master = master();
    for _ in 0..9 {
        assert_eq!(master.handle_report(&accepted(0), at(0)), Outcome::Charged(1));
        assert_eq!(delay_until(&mut master, at(0)), None);
    }
    master.handle_report(&accepted(0), at(0));
    assert_eq!(delay_until(&mut master, at(0)), Some(1000));
    master.handle_report(&accepted(1000), at(1000));
    assert_eq!(delay_until(&mut master, at(1000)), Some(2000));
}

#[test]
fn debt_is_kept_until_it_is_repaid() {
    let mut master = master();
    (0..30).for_each(|_| assert_eq!(master.handle_report(&accepted(0), at(0)), Outcome::Charged(1)));
    assert_eq!(delay_until(&mut master, at(0)), Some(21_000));
    // The original forgets the debt after ten seconds.
    master.handle_report(&accepted(19_000), at(19_000));
    assert_eq!(delay_until(&mut master, at(19_000)), Some(22_000));
}

#[test]
fn fault_39_a_timestamp_in_the_future_counts_as_now() {
    let mut master = master();
    for _ in 0..10 {
        master.handle_report(&accepted(100_000), at(0));
    }
    let until = delay_until(&mut master, at(0)).unwrap();
    assert!((1000..=1001).contains(&until), "{until}");
}

#[test]
fn fault_37_requests_of_an_original_gate_in_an_outage_block_no_client_afterwards() {
    let mut master = master();
    for second in 0..15 {
        assert_eq!(master.handle_report(&accepted(second * 1000), at(15_000)), Outcome::Charged(1));
    }
    assert_eq!(delay_until(&mut master, at(15_000)), None);
    assert_eq!(master.handle_report(&accepted(0), at(21_000)), Outcome::Stale);
}

#[test]
fn a_refusal_costs_nothing_and_an_unknown_domain_is_rejected() {
    let mut master = master();
    let refused = Report { status: Status::Rejected, ..accepted(0) };
    (0..100).for_each(|_| assert_eq!(master.handle_report(&refused, at(0)), Outcome::Refused));
    assert_eq!(delay_until(&mut master, at(0)), None);
    let elsewhere = Report { domain: b"elsewhere", ..accepted(0) };
    assert_eq!(master.handle_report(&elsewhere, at(0)), Outcome::UnknownDomain);
}

#[test]
fn fault_35_a_late_subscriber_receives_all_delays() {
    let mut master = master();
    // More accounts without delay come first than one step of a snapshot examines.
    for client in 0..4000_u32 {
        let identifier = client.to_be_bytes();
        for _ in 0..if client < 3000 { 1 } else { 10 } {
            master.handle_report(&Report { identifier: &identifier, ..accepted(0) }, at(0));
        }
    }
    let (mut cursor, mut heard) = (0, 0);
    loop {
        match master.snapshot(&mut cursor, |domain| domain == b"default", at(1).now) {
            Snapshot::Notice(_) => heard += 1,
            Snapshot::Onwards => {}
            Snapshot::Done => break,
        }
    }
    assert_eq!(heard, 1000);
    assert_eq!(master.snapshot(&mut 5000, |_| true, at(1).now), Snapshot::Done);
}

#[test]
fn fault_38_a_duplicate_tally_changes_nothing_and_a_lost_one_is_repaired() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    for _ in 0..5 {
        pass(&mut gate, &mut record, at(0));
    }
    let lost = reports(&mut gate, at(0));
    assert_eq!(lost.len(), 1, "one report says it all");
    (0..5).for_each(|_| pass(&mut gate, &mut record, at(1)));
    let told = reports(&mut gate, at(1));
    assert_eq!(master.handle_report(&told[0].report(), at(2)), Outcome::Charged(10));
    assert_eq!(master.handle_report(&told[0].report(), at(2)), Outcome::Repeated);
    assert_eq!(master.handle_report(&lost[0].report(), at(3)), Outcome::Repeated);
    assert_eq!(delay_until(&mut master, at(3)), Some(1000), "as in the record of the gate");
}

#[test]
fn fault_38_an_idle_gate_repeats_debts_until_they_are_paid() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    (0..3).for_each(|_| pass(&mut gate, &mut record, at(0)));
    let lost = reports(&mut gate, at(0));
    assert_eq!(lost.len(), 1);
    gate.handle_order(&master.beacon(at(999).now), at(999));
    assert!(reports(&mut gate, at(999)).is_empty());
    let repeated = reports(&mut gate, at(1000));
    assert_eq!(repeated[0].report().status, Status::Rejected, "an original master must not count it");
    assert_eq!(master.handle_report(&repeated[0].report(), at(1000)), Outcome::Charged(3));
    gate.handle_order(&master.beacon(at(3000).now), at(3000));
    assert!(reports(&mut gate, at(3000)).is_empty());
    assert_eq!(gate.identifiers(), 0);
}

#[test]
fn an_original_master_gets_one_message_for_each_request_and_no_repetitions() {
    let (mut gate, mut record) = (gate(1), PlainRecord::new(1));
    (0..7).for_each(|_| pass(&mut gate, &mut record, at(0)));
    let told = reports(&mut gate, at(0));
    assert_eq!(told.len(), 7);
    assert!(told.iter().all(|packet| packet.report().status == Status::Accepted));
    assert!(reports(&mut gate, at(5000)).is_empty());
}

#[test]
fn fault_36_a_restarted_master_learns_debts_from_its_gates() {
    let (mut first, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&first.beacon(at(0).now), at(0));
    (0..10).for_each(|_| pass(&mut gate, &mut record, at(0)));
    reports(&mut gate, at(0))
        .iter()
        .for_each(|packet| assert_eq!(first.handle_report(&packet.report(), at(0)), Outcome::Charged(10)));
    let stamp = Stamp { master: EPOCH + 1, tick: Moment::from_millis(5) };
    gate.handle_order(&Order { domain: b"", identifier: b"", command: Command::Beacon { stamp } }, at(100));
    let told = reports(&mut gate, at(100));
    assert_eq!(told.len(), 1, "a new master need not wait for the slow timer");
    // The same reports are invalid for the first master.
    assert_eq!(first.handle_report(&told[0].report(), at(100)), Outcome::Stranger);
    let clear = told[0].tally.unwrap().clear;
    assert_eq!(clear, Moment::from_millis(5 + 9900), "on the new master's clock");
}

#[test]
fn a_pardon_is_final() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    (0..20).for_each(|_| pass(&mut gate, &mut record, at(0)));
    let before = reports(&mut gate, at(0));
    master.handle_report(&before[0].report(), at(0));
    let old = notices(&mut master, at(0));
    assert!(master.pardon(b"default", b"client", at(10)));
    let pardon = notices(&mut master, at(10));
    assert!(matches!(pardon[0].command, Command::Pardon { .. }));
    // A gate without the pardon cannot restore the debt, and receives the pardon again.
    let deaf = reports(&mut gate, at(1000));
    master.handle_report(&deaf[0].report(), at(1000));
    assert!(matches!(notices(&mut master, at(1000))[0].command, Command::Pardon { .. }));
    obey(&mut gate, &mut record, &pardon[0].order(), at(1001));
    assert_eq!(limit().room(&record, Toll::ONE, at(1001).now), Room::Now);
    // An order from before the pardon does not either.
    obey(&mut gate, &mut record, &old[0].order(), at(1002));
    assert_eq!(limit().room(&record, Toll::ONE, at(1002).now), Room::Now);
    // A duplicate of the pardon does not remove debt from after it.
    (0..10).for_each(|_| pass(&mut gate, &mut record, at(1003)));
    obey(&mut gate, &mut record, &pardon[0].order(), at(1004));
    assert_ne!(limit().room(&record, Toll::ONE, at(1004).now), Room::Now);
    let after = reports(&mut gate, at(1004));
    assert_eq!(master.handle_report(&after[0].report(), at(1004)), Outcome::Charged(10));
}

#[test]
fn fault_34_a_delay_until_the_year_9999_lasts_an_hour() {
    let (mut gate, mut record) = (gate(1), PlainRecord::new(1));
    let order = |command| Order { domain: b"default", identifier: b"client", command };
    let until_ms = 253_402_300_800_000;
    obey(&mut gate, &mut record, &order(Command::DelayUntil { until_ms }), at(0));
    assert_eq!(limit().room(&record, Toll::ONE, at(0).now), Room::From(at(3_600_000).now));
    let mut record = PlainRecord::new(1);
    let stamp = Stamp { master: EPOCH, tick: at(0).now };
    for clear in [None, Some(Moment::MAX)] {
        let forever = Command::Delay { stamp, era: 0, next: Moment::MAX, clear };
        obey(&mut gate, &mut record, &order(forever), at(0));
        let Room::From(next) = limit().room(&record, Toll::ONE, at(0).now) else { panic!("not delayed") };
        assert!(next <= at(3_600_000).now);
    }
}

#[test]
fn fault_34_a_master_caps_the_delay_that_a_gate_claims() {
    let (mut master, mut gate) = (master(), gate(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    let usage =
        Usage { domain: 0, identifier: b"client", held_until: None, toll: Toll::ONE, clear: Moment::MAX, note: b"" };
    gate.handle_usage(&usage, at(0).now);
    master.handle_report(&reports(&mut gate, at(0))[0].report(), at(0));
    assert!(delay_until(&mut master, at(0)).unwrap() <= 3_600_000);
}

#[test]
fn twenty_held_requests_are_an_interval_apart() {
    let (mut gate, mut record) = (gate(1), PlainRecord::new(1));
    let command = Command::DelayUntil { until_ms: WALL_MS + 700 };
    obey(&mut gate, &mut record, &Order { domain: b"default", identifier: b"client", command }, at(0));
    for place in 0..20 {
        assert_eq!(limit().room(&record, Toll::ONE, at(0).now), Room::From(at(700 + place * 1000).now));
        limit().charge(&mut record, Toll::ONE, at(0).now);
    }
}

#[test]
fn an_order_for_another_domain_is_ignored() {
    let command = Command::DelayUntil { until_ms: WALL_MS + 700 };
    let order = Order { domain: b"other", identifier: b"client", command };
    assert_eq!(gate(1).handle_order(&order, at(0)), None);
    let order = Order { domain: b"default", ..order };
    let instruction = Instruction { forgets: false, next: Some(at(700).now), clear: None };
    assert_eq!(gate(1).handle_order(&order, at(0)), Some((0, instruction)));
}

#[test]
fn nothing_accumulates_for_an_unreachable_master() {
    let mut gate = gate(1);
    for client in 0..100_000_u32 {
        let identifier = client.to_be_bytes();
        let clear = at(1000).now;
        gate.handle_usage(
            &Usage { domain: 0, identifier: &identifier, held_until: None, toll: Toll::ONE, clear, note: b"" },
            at(0).now,
        );
        gate.handle_refusal(0, &identifier);
    }
    assert_eq!(gate.identifiers(), 64);
    let told = reports(&mut gate, at(0));
    assert_eq!(told.iter().filter(|packet| packet.report().status == Status::Accepted).count(), 64);
    assert_eq!(told.iter().filter(|packet| packet.report().status == Status::Rejected).count(), 1024);
}

#[test]
fn a_refusal_is_reported_without_a_tally() {
    let mut gate = gate(1);
    (0..3).for_each(|_| gate.handle_refusal(0, b"client"));
    let told = reports(&mut gate, at(0));
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|packet| packet.tally.is_none()));
}

#[test]
fn gates_beyond_the_maximum_are_untracked_but_their_debts_count() {
    let mut master = master();
    for id in 0..20 {
        let (mut gate, mut record) = (gate(id), PlainRecord::new(1));
        gate.handle_order(&master.beacon(at(0).now), at(0));
        pass(&mut gate, &mut record, at(0));
        let outcome = master.handle_report(&reports(&mut gate, at(0))[0].report(), at(0));
        assert_eq!(outcome, if id < 8 { Outcome::Charged(1) } else { Outcome::Untracked });
    }
    assert_eq!(master.gates(at(0).now).0, 8);
}

#[test]
fn fault_36_ten_master_restarts_in_a_minute_refill_no_limit() {
    for seed in 0..3 {
        let faults = (1..=10).map(|place| (place * 6 * SECOND, Fault::KillMaster(500 * MILLI))).collect();
        let plan =
            Plan { gates: 4, length: 66 * SECOND, faults, round_trip: 5 * MILLI, durable: seed == 0, ..Plan::calm() };
        laws::check_plan(&plan, seed).unwrap();
    }
}

#[test]
fn fault_37_a_partition_of_30_s_leaves_no_blocks_behind() {
    for seed in 0..3 {
        let faults = (0..4).map(|gate| (5 * SECOND, Fault::Cut(gate, 30 * SECOND))).collect();
        let plan = Plan { gates: 4, length: 60 * SECOND, faults, round_trip: 5 * MILLI, ..Plan::calm() };
        let findings = SimulatedFleet::new(plan, seed).run();
        assert!(
            findings.innocent_delay_late(36 * SECOND) <= 50 * MILLI,
            "{} ms",
            findings.innocent_delay_late(36 * SECOND) / MILLI
        );
    }
}

#[test]
fn fault_38_half_of_all_messages_lost_duplicated_and_reordered_keeps_the_bound() {
    for seed in 0..3 {
        let (loss_permille, double_permille) = (500, 300);
        let plan = Plan {
            gates: 4,
            length: 30 * SECOND,
            round_trip: 50 * MILLI,
            loss_permille,
            double_permille,
            ..Plan::calm()
        };
        laws::check_plan(&plan, seed).unwrap();
    }
}

#[test]
fn fault_39_clocks_that_are_five_seconds_off_change_no_delay() {
    for seed in 0..3 {
        let plan = Plan { gates: 4, length: 30 * SECOND, round_trip: 50 * MILLI, skew_ms: 5000, ..Plan::calm() };
        laws::check_plan(&plan, seed).unwrap();
    }
}

#[test]
fn fault_37_a_stale_tally_is_neither_charged_nor_repeated() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    (0..20).for_each(|_| pass(&mut gate, &mut record, at(0)));
    let stuck = reports(&mut gate, at(0));
    // Twenty requests at once are paid back after 20 s, so nothing is owed.
    assert_eq!(master.handle_report(&stuck[0].report(), at(20_001)), Outcome::Stale);
    assert_eq!(delay_until(&mut master, at(20_001)), None);
    gate.handle_order(&master.beacon(at(20_002).now), at(20_002));
    pass(&mut gate, &mut record, at(20_002));
    let told = reports(&mut gate, at(20_002));
    assert_eq!(master.handle_report(&told[0].report(), at(20_002)), Outcome::Charged(1));
}

#[test]
fn a_reverted_request_pays_for_the_next_one() {
    let (mut master, mut gate) = (master(), gate(1));
    let beacon = OrderPacket::new(&master.beacon(at(0).now));
    gate.handle_order(&beacon.order(), at(0));
    let usage = |clear_ms: u64| Usage {
        domain: 0,
        identifier: b"client",
        held_until: None,
        toll: Toll::ONE,
        clear: at(clear_ms).now,
        note: b"",
    };
    let tell = |gate: &mut Gate<Hasher>, master: &mut Master<Hasher>, ms: u64| {
        let report = ReportPacket::new(&gate.poll_report(at(ms)).unwrap());
        master.handle_report(&report.report(), at(ms))
    };
    gate.handle_usage(&usage(1000), at(10).now);
    assert_eq!(tell(&mut gate, &mut master, 20), Outcome::Charged(1));
    gate.handle_return(0, b"client", 1, at(0).now);
    gate.handle_usage(&usage(1000), at(30).now);
    assert_eq!(tell(&mut gate, &mut master, 40), Outcome::Repeated, "the second goes for the first");
    gate.handle_usage(&usage(2000), at(50).now);
    assert_eq!(tell(&mut gate, &mut master, 60), Outcome::Charged(1));
}

#[test]
fn an_original_gate_can_report_cpu_time() {
    let mut master = master_of(Limit::Budget(Budget::new(1_000_000, Span::from_secs(1)).unwrap()));
    let report = |cpu| Report { cpu: Some(Span::from_millis(cpu)), ..accepted(0) };
    assert_eq!(master.handle_report(&report(900), at(0)), Outcome::Charged(1));
    assert_eq!(delay_until(&mut master, at(0)), None);
    assert_eq!(master.handle_report(&report(1100), at(0)), Outcome::Charged(1));
    // The burst is one second, one second is returned per second, and two were used.
    let until = delay_until(&mut master, at(0)).unwrap();
    assert!((1000..=1001).contains(&until), "{until}");
}
