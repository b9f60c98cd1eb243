//! Gates that reach their master through a ZeroMQ proxy.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::gate::{Gate, PATIENCE, RULE};
use tollgate_test_support::free_addresses;
use tollgate_test_support::master::Master;
use tollgate_test_support::python::python;

struct Proxy {
    process: Child,
    accounting: SocketAddr,
    control: SocketAddr,
}

impl Proxy {
    fn before(master: &Master) -> Self {
        let [accounting, control] = free_addresses();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/proxy.py");
        let addresses = [accounting, control, master.accounting, master.control].map(|address| address.to_string());
        let mut process = Command::new(python()).arg(script).args(addresses).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { process, accounting, control }
    }

    /// A gate that knows only the proxy.
    fn gate(&self, rule: &str) -> Gate {
        let Self { accounting, control, .. } = self;
        let gate =
            Gate::start(&format!("{rule}[[link.master]]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\n"));
        gate.until_linked(*accounting);
        // A proxy accepts connections with or without a master behind it.
        gate.metric(&format!("tollgate_master_heard{{master=\"{accounting}\",what=\"control\"}}"), |heard| heard == 1);
        gate
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn gates_behind_a_zeromq_proxy_share_one_limit_and_a_late_one_receives_it() {
    // A client that has used its ten requests waits for minutes.
    let rule = RULE.replace("10/s", "1/min");
    let mut master = Master::start_with("proxied", &rule);
    let proxy = Proxy::before(&master);
    let gates = [(); 2].map(|()| proxy.gate(&rule));
    let mut clients = gates.each_ref().map(Gate::client);
    let until_refused = |client: &mut crate::gate::Client, key: &str| {
        let end = Instant::now() + PATIENCE;
        let mut admitted = 0;
        while client.get(key).0 == 200 {
            assert!(Instant::now() < end, "{key} is not delayed");
            admitted += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        admitted
    };
    assert_eq!(until_refused(&mut clients[0], "greedy"), 10);
    // Alone, the other gate would admit ten more requests.
    let word_took = until(|| master.metric("tollgate_master_delays_in_force", 0) >= 1);
    assert!(word_took, "the master has not heard of it");
    let orders = format!("tollgate_master_link_orders_total{{master=\"{}\",what=\"obeyed\"}}", proxy.accounting);
    gates[1].metric(&orders, |orders| orders >= 1);
    assert_eq!(until_refused(&mut clients[1], "greedy"), 0);
    let late = proxy.gate(&rule);
    late.metric(&orders, |orders| orders >= 1);
    assert_eq!(until_refused(&mut late.client(), "greedy"), 0);
    // The proxy reconnects to a new master, and gates reach it through the proxy.
    master.kill_and_restart();
    let heard = format!("tollgate_master_heard{{master=\"{}\",what=\"control\"}}", proxy.accounting);
    for gate in &gates {
        gate.metric(&heard, |heard| heard == 1);
    }
    assert!(until_refused(&mut clients[0], "other") >= 10);
    assert!(until(|| master.metric("tollgate_master_delays_in_force", 0) >= 2), "the new master does not know both");
    gates[1].metric(&orders, |orders| orders >= 2);
    assert_eq!(until_refused(&mut clients[1], "other"), 0);
    assert_eq!(clients[1].get("modest").0, 200);
}

fn until(mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}
