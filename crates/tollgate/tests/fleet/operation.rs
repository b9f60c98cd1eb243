//! Operations on a running master: pardon, reload, and metrics for statsd.

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::gate::{Gate, PATIENCE, RULE};
use crate::together::link;
use tollgate_test_support::master::Master;

/// One per hour with a burst of twenty: a client that has used them up stays delayed for the whole test.
fn rule() -> String {
    RULE.replace("rate = \"10/s\", burst = 10", "rate = \"1/h\", burst = 20")
}

fn pardon(master: &Master, domain: &str, identifier: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = command.args(["pardon", domain, identifier, "--config"]).arg(master.settings_file()).output().unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
    )
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_pardon_reaches_all_gates_and_is_final() {
    let master = Master::start_with("pardon", &rule());
    let gates = [(); 2].map(|()| Gate::start(&format!("{}{}", rule(), link(&master))));
    gates.iter().for_each(|gate| gate.until_linked(master.accounting));
    let mut clients = gates.each_ref().map(Gate::client);
    assert_eq!((0..21).map(|_| clients[0].get("someone").0).filter(|status| *status == 429).count(), 1);
    until("the other gate does not refuse the client", || clients[1].get("someone").0 == 429);
    let (code, said) = pardon(&master, "default/each", "nobody");
    assert!(code == Some(1) && said.contains("it owes nothing there"), "{said}");
    let (code, said) = pardon(&master, "default/each", "someone");
    assert_eq!(code, Some(0), "{said}");
    until("a gate still delays", || clients.iter_mut().all(|client| client.get("someone").0 == 200));
    // Later reports about earlier requests do not restore the debt.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(clients[0].get("someone").0, 200);
}

#[test]
fn a_reload_changes_rules_and_keeps_debts_under_unchanged_ones() {
    let other = rule().replace("\"each\"", "\"other\"").replace("x-key", "x-other");
    let master = Master::start_with("reload", &rule());
    let gate = Gate::start(&format!("{}{}", rule(), link(&master)));
    gate.until_linked(master.accounting);
    let mut client = gate.client();
    assert_eq!((0..21).map(|_| client.get("someone").0).filter(|status| *status == 429).count(), 1);
    master.metric("tollgate_master_delays_in_force", 1);
    let file = std::fs::read_to_string(master.settings_file()).unwrap();
    std::fs::write(master.settings_file(), format!("{file}{other}")).unwrap();
    master.signal("HUP");
    // The new rule has metrics now.
    master.metric("tollgate_master_over_admission_bound{domain=\"default/other\"}", 1);
    master.metric("tollgate_master_delays_in_force", 1);
    // An invalid file changes nothing.
    std::fs::write(master.settings_file(), "[mster]\n").unwrap();
    master.signal("HUP");
    let late = Gate::start(&format!("{}{}", rule(), link(&master)));
    late.until_linked(master.accounting);
    let mut client = late.client();
    until("the client that was delayed before the reload is admitted", || client.get("someone").0 == 429);
}

#[test]
fn statsd_receives_metrics_under_the_original_names() {
    let statsd = UdpSocket::bind("127.0.0.1:0").unwrap();
    statsd.set_read_timeout(Some(PATIENCE)).unwrap();
    let settings = format!("statsd = \"{}\"\n", statsd.local_addr().unwrap());
    let master = Master::start_with_link("statsd", &settings, RULE);
    let gate = Gate::start(&format!("{RULE}{}", link(&master)));
    gate.until_linked(master.accounting);
    assert_eq!(gate.client().get("someone").0, 200);
    let mut packet = [0; 2048];
    let length = statsd.recv(&mut packet).unwrap();
    assert_eq!(std::str::from_utf8(&packet[..length]).unwrap(), "request.total:1|c\nrequest.status.ACCEPTED:1|c");
}
