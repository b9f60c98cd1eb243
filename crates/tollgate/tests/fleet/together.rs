//! Gates with a Tollgate master.

use std::time::{Duration, Instant};

use crate::gate::{Gate, PATIENCE, RULE};
use tollgate_test_support::master::Master;

/// The address of the master, as a gate's settings.
pub(crate) fn link(master: &Master) -> String {
    format!("[[link.master]]\naccounting = \"{}\"\ncontrol = \"{}\"\n", master.accounting, master.control)
}

/// The bound of docs/decisions/fleet.md on the admitted requests of one key in this time, for ten per second with a
/// burst of ten.
pub(crate) fn bound(gates: f64, seconds: f64, delay_seconds: f64) -> f64 {
    10.0 + 10.0 * seconds + (gates - 1.0) * (10.0 + 10.0 * delay_seconds) + gates
}

#[test]
fn two_gates_keep_one_limit() {
    let master = Master::start_with("together", RULE);
    let gates = [Gate::start(&format!("{RULE}{}", link(&master))), Gate::start(&format!("{RULE}{}", link(&master)))];
    gates.iter().for_each(|gate| gate.until_linked(master.accounting));
    let mut clients = gates.each_ref().map(Gate::client);
    let begin = Instant::now();
    let mut admitted = 0;
    while begin.elapsed() < Duration::from_secs(3) {
        for client in &mut clients {
            admitted += u32::from(client.get("greedy").0 == 200);
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    let most = bound(2.0, seconds, 0.25);
    assert!(f64::from(admitted) <= most && admitted >= 35, "{admitted} of at most {most:.1} in {seconds:.2} s");
    // A client that used only one gate is delayed at the other too.
    let mut known = false;
    while !known && begin.elapsed() < PATIENCE {
        known = (0..30).map(|_| clients[0].get("roaming").0).any(|status| status == 429)
            && clients[1].get("roaming").0 == 429;
    }
    assert!(known);
    assert_eq!(clients[1].get("modest").0, 200);
}

#[test]
fn fault_35_a_gate_that_starts_late_knows_a_thousand_who_are_delayed() {
    let rule = RULE.replace("10/s", "1/min");
    let master = Master::start_with("late", &rule);
    let settings = format!("{rule}{}", link(&master));
    let early = Gate::start(&settings);
    early.until_linked(master.accounting);
    let mut client = early.client();
    for key in 0..1000 {
        for _ in 0..11 {
            client.get(&format!("key-{key}"));
        }
    }
    master.metric("tollgate_master_delays_in_force", 1000);
    let begin = Instant::now();
    let late = Gate::start(&settings);
    late.metric(
        &format!("tollgate_master_link_orders_total{{master=\"{}\",what=\"obeyed\"}}", master.accounting),
        |orders| orders >= 1000,
    );
    assert!(begin.elapsed() < Duration::from_secs(10));
    let mut client = late.client();
    let admitted = (0..1000).filter(|key| client.get(&format!("key-{key}")).0 == 200).count();
    assert_eq!(admitted, 0, "of a thousand who are delayed");
}
