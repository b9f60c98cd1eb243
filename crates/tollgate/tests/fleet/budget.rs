//! Budgets in CPU-seconds that are kept across gates.

use std::time::Instant;

use crate::gate::{Client, Gate, PATIENCE};
use crate::original::Original;
use crate::program::{Master, free_addresses};
use crate::python::Libzmq;
use crate::together::link;

/// A fifth of a second of CPU time at once, and a five-hundredth of a core after that: a request of 20 ms is paid back in ten seconds.
const RULE: &str = "[[rule]]\nname = \"cpu\"\nclass = \"header:x-key\"\nbudget = { cores = 0.002, burst = \"200ms\" }\n\
                    state = \"master\"\nhold = \"0s\"\n";

/// How many requests are admitted until one is not.
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
    // Five at the first gate are half of it. They owe nothing, so nobody has to be told of them.
    (0..5).for_each(|_| assert_eq!(clients[0].get_dear("spender"), 200));
    let first = admitted(&mut clients[0], "spender");
    assert!((4..=8).contains(&first), "{first} after five, each a tenth of what there is at once");
    // All that was spent was spent at one gate; by itself, the other would let ten through.
    let orders = format!("tollgate_master_link_orders_total{{master=\"{}\",what=\"obeyed\"}}", master.accounting);
    gates[1].metric(&orders, |orders| orders >= 1);
    assert_eq!(admitted(&mut clients[1], "spender"), 0);
    // Spent half here and half there, it is as much. The master has heard of each before the next.
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
fn log_info_says_what_a_request_was_about_and_what_it_took() {
    let addresses = free_addresses();
    let original = Original::start_at(Libzmq::Current, addresses, 5000, &[]);
    let [accounting, control] = addresses;
    let gate = Gate::start(&format!(
        "{RULE}[link]\nlog_info = true\n[[link.master]]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\n"
    ));
    gate.until_linked(accounting);
    assert_eq!(gate.client().get_dear("someone"), 200);
    // One when it is let through, and one when it is known what it took, which an original does not count.
    for (status, info) in [("ACCEPTED", "0.000000 GET /dear -"), ("REJECTED", "0.020000 GET /dear -")] {
        let report = original.report();
        let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!((report[1].as_str(), report[5].as_str()), (hex(status).as_str(), hex(info).as_str()));
    }
}
