//! Faults of a link, one place each. The seeded runs measure how late word came and forgive as much; these know exactly what is owed.

use proptest::prelude::*;
use tollgate_core::fleet::{Command, Gate, Master, Order, Outcome, Reading, Stamp};
use tollgate_core::limit::Room;
use tollgate_core::record::PlainRecord;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::packet::{OrderPacket, ReportPacket};
use crate::scenarios::{
    EPOCH, Hasher, WALL_MS, at, delay_until, gate, limit, master, master_called, notices, obey, pass, reports,
};

/// A gate on a machine whose clocks are its own.
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

    /// What its clocks say so many milliseconds into the story.
    fn at(&self, ms: u64) -> Reading {
        let wall_ms = (WALL_MS + ms).checked_add_signed(self.skew_ms).unwrap();
        Reading { now: Moment::from_millis(self.origin_ms + ms), wall_ms }
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

    /// When its record is paid back, in milliseconds into the story.
    fn clear_ms(&self) -> u64 {
        limit().clear_at(&self.record).since(self.at(0).now).as_millis_ceil()
    }
}

/// When the client has paid all back by the master's books, in milliseconds into the story.
fn owed_ms(master: &Master<Hasher>, ms: u64) -> u64 {
    let debt = master.debts(0..master.places(), at(ms).now).next();
    debt.map_or(0, |(_, _, mut clears)| clears.next().unwrap().since(at(0).now).as_millis_ceil())
}

#[test]
fn fault_36_a_restarted_master_charges_nobody_twice() {
    let (mut first, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&first.beacon(at(0).now), at(0));
    (0..10).for_each(|_| pass(&mut gate, &mut record, at(0)));
    assert_eq!(first.handle_report(&reports(&mut gate, at(0))[0].report(), at(0)), Outcome::Charged(10));
    gate.handle_order(&first.beacon(at(250).now), at(250));
    // Another, with the books of the first.
    let mut second = master_called(EPOCH + 1, limit());
    second.restore(b"default", b"client", 0, at(owed_ms(&first, 250)).now, at(500).now);
    gate.handle_order(&second.beacon(at(500).now), at(500));
    for packet in reports(&mut gate, at(500)) {
        assert_eq!(second.handle_report(&packet.report(), at(500)), Outcome::Repeated);
    }
    assert_eq!(owed_ms(&second, 500), 10_000);
    // What comes now is new to it.
    pass(&mut gate, &mut record, at(600));
    assert_eq!(second.handle_report(&reports(&mut gate, at(600))[0].report(), at(600)), Outcome::Charged(1));
    assert_eq!(owed_ms(&second, 600), 11_000);
}

#[test]
fn fault_36_a_new_master_knows_what_is_owed_before_the_gate_hears_it() {
    let (mut first, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&first.beacon(at(0).now), at(0));
    (0..10).for_each(|_| pass(&mut gate, &mut record, at(0)));
    assert_eq!(first.handle_report(&reports(&mut gate, at(0))[0].report(), at(0)), Outcome::Charged(10));
    gate.handle_order(&first.beacon(at(250).now), at(250));
    // Another, without books, that nobody has heard yet.
    gate.handle_disconnect();
    let mut second = master_called(EPOCH + 1, limit());
    pass(&mut gate, &mut record, at(1000));
    for packet in reports(&mut gate, at(1000)) {
        second.handle_report(&packet.report(), at(1000));
    }
    assert_eq!(owed_ms(&second, 1000), 11_000);
}

#[test]
fn fault_37_what_was_served_in_a_partition_is_charged_as_of_when_it_was_served() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    pass(&mut gate, &mut record, at(0));
    assert_eq!(master.handle_report(&reports(&mut gate, at(0))[0].report(), at(0)), Outcome::Charged(1));
    // One a second, which is its due, and none of it gets through.
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

#[test]
fn fault_37_a_debt_that_is_told_after_a_partition_is_as_old_as_it_is() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    // Cut off: ten at once, of which half is paid back when it heals.
    (0..10).for_each(|_| pass(&mut gate, &mut record, at(10_000)));
    reports(&mut gate, at(10_000));
    gate.handle_order(&master.beacon(at(15_000).now), at(15_000));
    let told = reports(&mut gate, at(15_000));
    assert_eq!(master.handle_report(&told[0].report(), at(15_000)), Outcome::Charged(10));
    assert_eq!(owed_ms(&master, 15_000), 20_000);
    assert_eq!(delay_until(&mut master, at(15_000)), None);
}

#[test]
fn fault_37_a_gate_that_does_not_hear_the_master_yet_charges_only_what_nobody_was_told() {
    let (mut first, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    // One a second, without end, all of it heard.
    for second in 0..30 {
        gate.handle_order(&first.beacon(at(second * 990).now), at(second * 990));
        pass(&mut gate, &mut record, at(second * 990));
        for packet in reports(&mut gate, at(second * 990)) {
            first.handle_report(&packet.report(), at(second * 990));
        }
    }
    // Another master hears the gate before the gate hears it.
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
fn fault_38_an_older_counting_that_comes_late_is_not_counted() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    (0..5).for_each(|_| pass(&mut gate, &mut record, at(0)));
    let late = reports(&mut gate, at(0));
    gate.handle_order(&master.beacon(at(6000).now), at(6000));
    // All is paid back, and forgotten.
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
    /// A request's interval is a second, and all happens within a tenth of one: so books that are off by a request are off by far more
    /// than the time that words take.
    #[test]
    fn fault_38_reports_lost_doubled_and_out_of_order_charge_what_was_let_through_and_no_more(
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
    fn fault_38_orders_lost_doubled_and_out_of_order_never_let_go_of_a_debt_and_never_add_to_it(
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
fn fault_39_whatever_wall_clocks_say_a_delay_is_as_long_as_the_debt() {
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
fn fault_39_whatever_its_wall_clock_says_a_gate_that_hears_no_master_is_charged_what_it_let_through() {
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
fn fault_39_who_hears_the_masters_own_clock_does_not_look_at_its_wall_clock() {
    let mut host = Host::new(1, -5000);
    host.hear(&master().beacon(at(0).now), 0);
    // For a gate whose clock is right these are three seconds, for this one eight.
    let command = Command::DelayUntil { until_ms: WALL_MS + 3000 };
    host.hear(&Order { domain: b"default", identifier: b"client", command }, 0);
    assert_eq!(limit().room(&host.record, Toll::ONE, host.at(0).now), Room::Now);
}

#[test]
fn fault_39_a_word_that_was_long_on_its_way_does_not_move_the_masters_clock() {
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
fn fault_40_how_far_behind_reports_are_is_seen() {
    let (mut master, mut gate, mut record) = (master(), gate(1), PlainRecord::new(1));
    gate.handle_order(&master.beacon(at(0).now), at(0));
    pass(&mut gate, &mut record, at(10));
    let told = reports(&mut gate, at(10));
    master.handle_report(&told[0].report(), at(710));
    assert_eq!(master.gates(at(710).now), (1, Span::from_millis(700)));
}
