//! Faults of a connection, one test each. The seeded runs allow for measured delays; these tests compare
//! exact debts.

use proptest::prelude::*;
use tollgate_core::fleet::{ClockReading, Command, Gate, Master, Order, Outcome, Stamp};
use tollgate_core::limit::Room;
use tollgate_core::record::PlainRecord;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::packet::{OrderPacket, ReportPacket};
use crate::scenarios::{
    EPOCH, Hasher, WALL_MS, at, delay_until, gate, limit, master, master_called, notices, obey, pass, reports,
};

/// A gate with its own clocks.
struct Host {
    gate: Gate<Hasher>,
    record: PlainRecord,
    origin_ms: u64,
    skew_ms: i64,
}

impl Host {
    fn new(id: u64, skew_ms: i64) -> Self {
        Self { gate: gate(id), record: PlainRecord::new(1), origin_ms: 500_000 * id, skew_ms }
    }

    /// The gate's clocks, `ms` milliseconds after the start of the test.
    fn at(&self, ms: u64) -> ClockReading {
        let wall_ms = (WALL_MS + ms).checked_add_signed(self.skew_ms).unwrap();
        ClockReading { now: Moment::from_millis(self.origin_ms + ms), wall_ms }
    }

    fn hear(&mut self, order: &Order<'_>, ms: u64) {
        let reading = self.at(ms);
        obey(&mut self.gate, &mut self.record, order, reading);
    }

    fn pass(&mut self, ms: u64) {
        let reading = self.at(ms);
        pass(&mut self.gate, &mut self.record, reading);
    }

    fn reports(&mut self, ms: u64) -> Vec<ReportPacket> {
        let reading = self.at(ms);
        reports(&mut self.gate, reading)
    }

    /// The time at which the record is paid back, in milliseconds after the start.
    fn clear_ms(&self) -> u64 {
        limit().clear_at(&self.record).since(self.at(0).now).as_millis_ceil()
    }
}

/// The time at which the client's debt is paid back in the master's accounts, in milliseconds after the
/// start.
fn owed_ms(master: &Master<Hasher>, ms: u64) -> u64 {
    let debt = master.debts(0..master.slots(), at(ms).now).next();
    debt.map_or(0, |(_, _, mut clears)| clears.next().unwrap().since(at(0).now).as_millis_ceil())
}

#[test]
fn fault_36_a_restarted_master_charges_no_request_twice() {
    let (mut first, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&first.beacon(at(0).now), at(0));
    (0..10).for_each(|_| pass(&mut gate, &mut record, at(0)));
    assert_eq!(first.handle_report(&reports(&mut gate, at(0))[0].report(), at(0)), Outcome::Charged(10));
    gate.handle_order(&first.beacon(at(250).now), at(250));
    // A second master, with the state of the first.
    let mut second = master_called(EPOCH + 1, limit());
    second.restore(b"default", b"client", 0, at(owed_ms(&first, 250)).now, at(500).now);
    gate.handle_order(&second.beacon(at(500).now), at(500));
    for packet in reports(&mut gate, at(500)) {
        assert_eq!(second.handle_report(&packet.report(), at(500)), Outcome::Repeated);
    }
    assert_eq!(owed_ms(&second, 500), 10_000);
    // The next request is new to it.
    pass(&mut gate, &mut record, at(600));
    assert_eq!(second.handle_report(&reports(&mut gate, at(600))[0].report(), at(600)), Outcome::Charged(1));
    assert_eq!(owed_ms(&second, 600), 11_000);
}

#[test]
fn fault_36_a_new_master_learns_debts_before_the_gate_receives_its_beacon() {
    let (mut first, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&first.beacon(at(0).now), at(0));
    (0..10).for_each(|_| pass(&mut gate, &mut record, at(0)));
    assert_eq!(first.handle_report(&reports(&mut gate, at(0))[0].report(), at(0)), Outcome::Charged(10));
    gate.handle_order(&first.beacon(at(250).now), at(250));
    // A second master without state, from which the gate has received nothing.
    gate.handle_disconnect();
    let mut second = master_called(EPOCH + 1, limit());
    pass(&mut gate, &mut record, at(1000));
    for packet in reports(&mut gate, at(1000)) {
        second.handle_report(&packet.report(), at(1000));
    }
    assert_eq!(owed_ms(&second, 1000), 11_000);
}

#[test]
fn fault_37_requests_served_in_a_partition_are_charged_at_their_own_time() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    pass(&mut gate, &mut record, at(0));
    assert_eq!(master.handle_report(&reports(&mut gate, at(0))[0].report(), at(0)), Outcome::Charged(1));
    // One request per second, which the limit allows; no report arrives.
    for turn in 1..=30 {
        pass(&mut gate, &mut record, at(turn * 990));
        reports(&mut gate, at(turn * 990));
    }
    gate.handle_order(&master.beacon(at(30_000).now), at(30_000));
    pass(&mut gate, &mut record, at(30_500));
    let told = reports(&mut gate, at(30_500));
    assert_eq!(master.handle_report(&told[0].report(), at(30_500)), Outcome::Charged(31));
    assert_eq!(delay_until(&mut master, at(30_500)), None, "blocked for what was served half a minute ago");
}

/// A master that was paused, or whose packets were lost, receives the reports of several seconds together.
#[test]
fn fault_37_reports_that_arrive_together_are_charged_at_their_own_times() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    (0..9).for_each(|_| pass(&mut gate, &mut record, at(0)));
    let mut told = reports(&mut gate, at(0));
    // Four requests have been paid back by now, so there is room for two more.
    (0..2).for_each(|_| pass(&mut gate, &mut record, at(4_000)));
    told.extend(reports(&mut gate, at(4_000)));
    for report in &told {
        master.handle_report(&report.report(), at(8_000));
    }
    assert_eq!(owed_ms(&master, 8_000), 11_000);
    assert_eq!(delay_until(&mut master, at(8_000)), None, "blocked for a burst that was none");
}

#[test]
fn fault_37_a_debt_reported_after_a_partition_keeps_its_age() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    // Ten requests at once during the partition; half of the debt is paid back when it ends.
    (0..10).for_each(|_| pass(&mut gate, &mut record, at(10_000)));
    reports(&mut gate, at(10_000));
    gate.handle_order(&master.beacon(at(15_000).now), at(15_000));
    let told = reports(&mut gate, at(15_000));
    assert_eq!(master.handle_report(&told[0].report(), at(15_000)), Outcome::Charged(10));
    assert_eq!(owed_ms(&master, 15_000), 20_000);
    assert_eq!(delay_until(&mut master, at(15_000)), None);
}

#[test]
fn fault_37_a_gate_without_a_master_charges_only_unreported_requests() {
    let (mut first, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    // One request per second, all of them reported.
    for second in 0..30 {
        gate.handle_order(&first.beacon(at(second * 990).now), at(second * 990));
        pass(&mut gate, &mut record, at(second * 990));
        for packet in reports(&mut gate, at(second * 990)) {
            first.handle_report(&packet.report(), at(second * 990));
        }
    }
    // The second master receives a report before the gate receives its beacon.
    gate.handle_disconnect();
    let mut second = master_called(EPOCH + 1, limit());
    for turn in 30..33 {
        pass(&mut gate, &mut record, at(turn * 990));
        for packet in reports(&mut gate, at(turn * 990)) {
            let tally = packet.tally.unwrap();
            assert_eq!(
                (tally.master, tally.base.count),
                (None, 29),
                "what the first master surely knew is not told as new"
            );
            second.handle_report(&packet.report(), at(turn * 990));
        }
        assert_eq!(delay_until(&mut second, at(turn * 990)), None, "blocked for what the first master knew");
    }
    let owed = owed_ms(&second, 32 * 990);
    assert!((31 * 990 + 1000..34 * 990 + 1000).contains(&owed), "{owed}");
}

#[test]
fn fault_37_a_report_that_was_stuck_for_half_a_minute_on_the_way_to_an_unknown_master_is_not_charged() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    (0..20).for_each(|_| pass(&mut gate, &mut record, at(0)));
    for packet in reports(&mut gate, at(0)) {
        assert_eq!(master.handle_report(&packet.report(), at(31_000)), Outcome::Stale);
    }
    assert_eq!(delay_until(&mut master, at(31_000)), None);
}

#[test]
fn fault_38_a_late_tally_of_an_older_count_is_ignored() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    (0..5).for_each(|_| pass(&mut gate, &mut record, at(0)));
    let late = reports(&mut gate, at(0));
    gate.handle_order(&master.beacon(at(6000).now), at(6000));
    // All debt is paid back and forgotten.
    reports(&mut gate, at(6000));
    assert_eq!(gate.identifiers(), 0);
    (0..7).for_each(|_| pass(&mut gate, &mut record, at(6000)));
    let told = reports(&mut gate, at(6000));
    assert!(told[0].tally.unwrap().serial > late[0].tally.unwrap().serial);
    assert_eq!(master.handle_report(&told[0].report(), at(6000)), Outcome::Charged(7));
    assert_eq!(master.handle_report(&late[0].report(), at(6000)), Outcome::Repeated);
    assert_eq!(delay_until(&mut master, at(6000)), None, "seven of ten were used");
}

proptest! {
    /// The interval of the limit is 1 s and everything happens within 100 ms. An error of one request is
    /// therefore far larger than the transit times.
    #[test]
    fn fault_38_lost_duplicated_and_reordered_reports_charge_exactly_the_admitted_requests(
        passes in prop::collection::vec((any::<bool>(), any::<bool>()), 1..40),
        arrivals in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let mut master = master();
        let mut hosts = [Host::new(1, 0), Host::new(2, 0)];
        hosts.iter_mut().for_each(|host| host.hear(&master.beacon(at(0).now), 0));
        let mut packets = Vec::new();
        for (ms, &(second, tells)) in (1..).zip(&passes) {
            let host = &mut hosts[usize::from(second)];
            host.pass(ms);
            if tells {
                packets.extend(host.reports(ms));
            }
        }
        let latest: Vec<_> = hosts.iter_mut().flat_map(|host| {
            host.pass(50);
            host.reports(50)
        }).collect();
        packets.extend(latest.clone());
        let truth = (passes.len() as u64 + 2) * 1000;
        let delivered = arrivals.iter().map(|place| &packets[place.index(packets.len())]).chain(&latest);
        for (ms, packet) in (51..).zip(delivered) {
            master.handle_report(&packet.report(), at(ms));
            prop_assert!(owed_ms(&master, ms) <= truth + 200, "{} of {truth} ms", owed_ms(&master, ms));
        }
        prop_assert!(owed_ms(&master, 200) + 200 >= truth, "{} of {truth} ms", owed_ms(&master, 200));
    }

    #[test]
    fn fault_38_lost_duplicated_and_reordered_orders_neither_drop_nor_add_debt(
        requests in 10_u64..40,
        arrivals in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
    ) {
        let (mut master, mut teller, mut hearer) = (master(), Host::new(1, 0), Host::new(2, 0));
        for host in [&mut teller, &mut hearer] {
            host.hear(&master.beacon(at(0).now), 0);
        }
        let mut orders = Vec::new();
        for ms in 1..=requests {
            teller.pass(ms);
            teller.reports(ms).iter().for_each(|packet| {
                master.handle_report(&packet.report(), at(ms));
            });
            orders.extend(notices(&mut master, at(ms)));
        }
        let latest = orders.last().cloned();
        let mut before = 0;
        for (ms, place) in (50..).zip(&arrivals) {
            hearer.hear(&orders[place.index(orders.len())].order(), ms);
            prop_assert!(hearer.clear_ms() >= before, "an order took back what a later one had said");
            before = hearer.clear_ms();
        }
        hearer.hear(&latest.unwrap().order(), 150);
        prop_assert!(hearer.clear_ms().abs_diff(owed_ms(&master, 150)) <= 200);
    }
}

#[test]
fn fault_39_a_delay_is_as_long_as_the_debt_for_any_wall_clock() {
    for skew_ms in [-5000, 0, 5000] {
        let (mut master, mut hosts) = (master(), [Host::new(1, skew_ms), Host::new(2, -skew_ms)]);
        hosts.iter_mut().for_each(|host| host.hear(&master.beacon(at(0).now), 0));
        (0..10).for_each(|_| hosts[0].pass(0));
        for packet in hosts[0].reports(0) {
            assert_eq!(master.handle_report(&packet.report(), at(0)), Outcome::Charged(10));
        }
        let orders = notices(&mut master, at(0));
        assert_eq!(orders.len(), 1);
        for host in &mut hosts {
            host.hear(&orders[0].order(), 0);
            let room = limit().room(&host.record, Toll::ONE, host.at(0).now);
            assert_eq!(room, Room::From(host.at(1000).now), "with wall clocks {skew_ms} ms off");
        }
    }
}

#[test]
fn fault_39_a_gate_without_a_master_is_charged_its_requests_for_any_wall_clock() {
    for skew_ms in [-5000, 0, 5000] {
        let (mut master, mut host) = (master(), Host::new(1, skew_ms));
        (0..15).for_each(|_| host.pass(0));
        for packet in host.reports(300) {
            assert_eq!(master.handle_report(&packet.report(), at(300)), Outcome::Charged(1));
        }
        assert_eq!(owed_ms(&master, 300), 15_000, "with a wall clock {skew_ms} ms off");
    }
}

#[test]
fn fault_39_a_gate_with_the_masters_clock_ignores_its_wall_clock() {
    let mut host = Host::new(1, -5000);
    host.hear(&master().beacon(at(0).now), 0);
    // This is 3 s for a gate with a correct clock, and 8 s for this one.
    let command = Command::DelayUntil { until_ms: WALL_MS + 3000 };
    host.hear(&Order { domain: b"default", identifier: b"client", command }, 0);
    assert_eq!(limit().room(&host.record, Toll::ONE, host.at(0).now), Room::Now);
}

#[test]
fn fault_39_a_late_message_does_not_shift_the_masters_clock() {
    let mut host = Host::new(1, 0);
    host.hear(&master().beacon(at(0).now), 0);
    let stamp = Stamp { master: EPOCH, tick: at(1000).now };
    let command = Command::Delay { stamp, era: 0, next: at(2000).now, clear: None };
    let order = OrderPacket::new(&Order { domain: b"default", identifier: b"client", command });
    host.hear(&order.order(), 1400);
    let Room::From(next) = limit().room(&host.record, Toll::ONE, host.at(1400).now) else { panic!("not delayed") };
    let late = next.since(host.at(2000).now);
    assert!(late <= Span::from_millis(1) && next >= host.at(2000).now, "{late:?} too late");
}

#[test]
fn fault_40_the_lag_of_reports_is_visible() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    pass(&mut gate, &mut record, at(10));
    let told = reports(&mut gate, at(10));
    master.handle_report(&told[0].report(), at(710));
    assert_eq!(master.gates(at(710).now), (1, Span::from_millis(700)));
}
