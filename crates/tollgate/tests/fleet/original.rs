//! Our gate with an original master, on libzmq.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::gate::{Gate, PATIENCE};
use crate::program::free_addresses;
use crate::python::python;

pub(crate) struct Original {
    process: Child,
    pub(crate) accounting: SocketAddr,
    pub(crate) control: SocketAddr,
    heard: Receiver<String>,
}

impl Original {
    /// A master that lets one a second through, `burst_ms` thousandths at once.
    pub(crate) fn start_at([accounting, control]: [SocketAddr; 2], burst_ms: u32, more: &[&str]) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/smockron_master.py");
        let mut process = Command::new(python())
            .arg(script)
            .args([accounting.to_string(), control.to_string(), "1000".into(), burst_ms.to_string()])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, heard) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), "ready");
        Self { process, accounting, control, heard }
    }

    /// The frames of the next report.
    pub(crate) fn report(&self) -> Vec<String> {
        let line = self.heard.recv_timeout(PATIENCE).unwrap();
        line.split(' ').map(str::to_owned).collect()
    }
}

impl Drop for Original {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Smockron's domain `default`; this gate allows ten times as much as the master, so it is the master that decides.
fn rule(accounting: SocketAddr, control: SocketAddr) -> String {
    format!(
        "[[rule]]\nname = \"each\"\nclass = \"header:x-key\"\nrate = {{ rate = \"10/s\", burst = 100 }}\nstate = \"master\"\n\
         wire_domain = \"default\"\nhold = \"0s\"\n\
         [link]\nrefusals = 1\n[[link.master]]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\n"
    )
}

#[test]
fn an_original_master_delays_whom_our_gate_let_through() {
    let original = Original::start_at(free_addresses(), 5000, &[]);
    let gate = Gate::start(&rule(original.accounting, original.control));
    gate.until_linked(original.accounting);
    let mut client = gate.client();
    // A burst of five lets six through before the first order, and some more while that is on its way.
    let begin = Instant::now();
    let mut admitted = 0;
    let retry_after = loop {
        assert!(begin.elapsed() < PATIENCE, "nobody is delayed");
        match client.get("127.0.0.1") {
            (200, _) => admitted += 1,
            (429, retry_after) => break retry_after.unwrap(),
            (status, _) => panic!("{status}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!((6..20).contains(&admitted), "{admitted} were admitted");
    assert!((1.0..20.0).contains(&retry_after), "told to wait {retry_after} s");
    let first = original.report();
    // "default\0", "ACCEPTED", "127.0.0.1", a time of thirteen digits, nothing, nothing, and our addition.
    assert_eq!(first[..3], ["64656661756c7400", "4143434550544544", "3132372e302e302e31"]);
    assert_eq!((first[3].len(), first[4].as_str(), first[5].as_str(), first.len()), (26, "", "", 7));
    let statuses: Vec<_> = (0..admitted).map(|_| original.report()[1].clone()).collect();
    assert!(statuses.contains(&"52454a4543544544".to_owned()), "the refusal is told");
    assert_eq!(client.get("127.0.0.2").0, 200, "a neighbour is served");
    // Who waits as long as it was told is admitted.
    std::thread::sleep(Duration::from_secs_f64(retry_after));
    assert_eq!(client.get("127.0.0.1").0, 200);
}

#[test]
fn our_gate_survives_a_killed_original_master_and_owes_it_nothing() {
    let addresses = free_addresses();
    let original = Original::start_at(addresses, 5000, &[]);
    let gate = Gate::start(&rule(original.accounting, original.control));
    gate.until_linked(original.accounting);
    let mut client = gate.client();
    assert_eq!(client.get("a").0, 200);
    assert_eq!(original.report()[1], "4143434550544544");
    drop(original);
    gate.metric(&format!("tollgate_master_link_up{{master=\"{}\",what=\"accounting\"}}", addresses[0]), |up| up == 0);
    (0..15).for_each(|_| assert_eq!(client.get("innocent").0, 200));
    let dropped = format!("tollgate_master_link_reports_dropped_total{{master=\"{}\",what=\"away\"}}", addresses[0]);
    gate.metric(&dropped, |dropped| dropped >= 15);
    let original = Original::start_at(addresses, 5000, &[]);
    gate.until_linked(original.accounting);
    // On the original fifteen requests of an outage held the next one for seconds.
    (0..3).for_each(|_| assert_eq!(client.get("innocent").0, 200));
    assert_eq!(original.report()[2], "696e6e6f63656e74");
}
