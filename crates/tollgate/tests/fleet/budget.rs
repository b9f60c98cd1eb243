//! Budgets in CPU-seconds that gates share.

use std::time::Instant;

use crate::gate::{Client, Gate, PATIENCE};
use crate::original::Original;
use crate::together::link;
use tollgate_test_support::free_addresses;
use tollgate_test_support::master::Master;
use tollgate_test_support::python::Libzmq;

/// 0.2 s of CPU time at once, then 0.002 cores: a request of 20 ms is paid back in ten seconds.
const RULE: &str = "[[rule]]\nname = \"cpu\"\nclass = \"header:x-key\"\nbudget = { cores = 0.002, burst = \"200ms\" }\n\
                    state = \"master\"\nhold = \"0s\"\n";

/// The number of requests that are admitted before the first refusal.
fn admitted(client: &mut Client, key: &str) -> u32 {
    let end = Instant::now() + PATIENCE;
    let mut admitted = 0;
    while client.get_dear(key) == 200 {
        assert!(Instant::now() < end, "{key} is never refused");
        admitted += 1;
    }
    admitted
}

#[test]
fn a_budget_of_cpu_seconds_is_kept_across_gates() {
    let master = Master::start_with("budget", RULE);
    let gates = [(); 2].map(|()| Gate::start(&format!("{RULE}{}", link(&master))));
    gates.iter().for_each(|gate| gate.until_linked(master.accounting));
    let mut clients = gates.each_ref().map(Gate::client);
    // Five requests at the first gate use half of the budget. They leave no debt, so no order follows.
    (0..5).for_each(|_| assert_eq!(clients[0].get_dear("spender"), 200));
    let first = admitted(&mut clients[0], "spender");
    assert!((4..=8).contains(&first), "{first} after five, each a tenth of what there is at once");
    // Everything was spent at one gate. Alone, the other gate would admit ten requests.
    let orders = format!("tollgate_master_link_orders_total{{master=\"{}\",what=\"obeyed\"}}", master.accounting);
    gates[1].metric(&orders, |orders| orders >= 1);
    assert_eq!(admitted(&mut clients[1], "spender"), 0);
    // The same if half is spent at each gate. The master receives each report before the next request.
    let charged = "tollgate_master_reports_total{outcome=\"charged\"}";
    let spend = |client: &mut Client| {
        let heard = master.metric(charged, 0);
        let status = client.get_dear("roamer");
        if status == 200 {
            master.metric(charged, heard + 1);
        }
        status
    };
    (0..6).for_each(|_| assert_eq!(spend(&mut clients[0]), 200));
    let second = (0..12).take_while(|_| spend(&mut clients[1]) == 200).count();
    assert!((3..=8).contains(&second), "{second} after six elsewhere, where eleven would be all");
    master.metric("tollgate_master_delays_in_force", 2);
    assert_eq!(clients[1].get_dear("modest"), 200);
}

#[test]
fn log_info_contains_the_request_and_its_cost() {
    let addresses = free_addresses();
    let original = Original::start_at(Libzmq::Current, addresses, 5000, &[]);
    let [accounting, control] = addresses;
    let gate = Gate::start(&format!(
        "{RULE}[link]\nlog_info = true\n[[link.master]]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\n"
    ));
    gate.until_linked(accounting);
    assert_eq!(gate.client().get_dear("someone"), 200);
    // One report on admission, and one with the cost, which an original master does not count.
    for (status, info) in [("ACCEPTED", "0.000000 GET /dear -"), ("REJECTED", "0.020000 GET /dear -")] {
        let report = original.report();
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!((report[1].as_str(), report[5].as_str()), (hex(status).as_str(), hex(info).as_str()));
    }
}
