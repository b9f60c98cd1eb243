//! A Tollgate gate with an original master on libzmq.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::gate::{Gate, PATIENCE};
use tollgate_test_support::free_addresses;
use tollgate_test_support::python::Libzmq;
use tollgate_test_support::tap::{Tap, beginning, hex, same, subscriptions};

pub(crate) struct Original {
    process: Child,
    pub(crate) accounting: SocketAddr,
    pub(crate) control: SocketAddr,
    heard: Receiver<String>,
}

impl Original {
    /// A master that admits one request per second with a burst of `burst_ms` thousandths.
    pub(crate) fn start_at(
        libzmq: Libzmq,
        [accounting, control]: [SocketAddr; 2],
        burst_ms: u32,
        more: &[&str],
    ) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/smockron_master.py");
        let mut process = libzmq
            .python()
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

/// Smockron's domain `default`. This gate allows ten times as much as the master, so the master decides.
fn rule(accounting: SocketAddr, control: SocketAddr) -> String {
    format!(
        "[[rule]]\nname = \"each\"\nclass = \"header:x-key\"\nrate = {{ rate = \"10/s\", burst = 100 }}\nstate = \"master\"\n\
         wire_domain = \"default\"\nhold = \"0s\"\n\
         [link]\nrefusals = 1\n[[link.master]]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\n"
    )
}

#[test]
fn an_original_master_delays_clients_of_our_gate() {
    an_original_delays(Libzmq::Current);
}

#[test]
fn an_original_master_of_zmtp_3_0_delays_clients_of_our_gate() {
    an_original_delays(Libzmq::Old);
}

fn an_original_delays(libzmq: Libzmq) {
    let original = Original::start_at(libzmq, free_addresses(), 5000, &[]);
    let gate = Gate::start(&rule(original.accounting, original.control));
    gate.until_linked(original.accounting);
    let mut client = gate.client();
    // A burst of five admits six requests before the first order, and some more while it is in transit.
    let begin = Instant::now();
    let mut admitted = 0;
    let retry_after = loop {
        assert!(begin.elapsed() < PATIENCE, "no client is delayed");
        match client.get("127.0.0.1") {
            (200, _) => admitted += 1,
            (429, retry_after) => break retry_after.unwrap(),
            (status, _) => panic!("{status}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!((6..20).contains(&admitted), "{admitted} were admitted");
    assert!((1.0..20.0).contains(&retry_after), "told to wait {retry_after} s");
    let heard = format!("tollgate_master_heard{{master=\"{}\",what=\"control\"}}", original.accounting);
    gate.metric(&heard, |heard| heard == 1);
    let first = original.report();
    // "default\0", "ACCEPTED", "127.0.0.1", a time of thirteen digits, two empty frames, and Tollgate's addition.
    assert_eq!(first[..3], ["64656661756c7400", "4143434550544544", "3132372e302e302e31"]);
    assert_eq!((first[3].len(), first[4].as_str(), first[5].as_str(), first.len()), (26, "", "", 7));
    let statuses: Vec<_> = (0..admitted).map(|_| original.report()[1].clone()).collect();
    assert!(statuses.contains(&"52454a4543544544".to_owned()), "the refusal is reported");
    assert_eq!(client.get("127.0.0.2").0, 200, "a neighbour is served");
    // A client that waits as announced is admitted.
    std::thread::sleep(Duration::from_secs_f64(retry_after));
    assert_eq!(client.get("127.0.0.1").0, 200);
}

#[test]
fn our_gate_survives_a_killed_original_master_without_debt() {
    our_gate_survives(Libzmq::Current);
}

#[test]
fn our_gate_survives_a_killed_original_master_of_zmtp_3_0_without_debt() {
    our_gate_survives(Libzmq::Old);
}

fn our_gate_survives(libzmq: Libzmq) {
    let addresses = free_addresses();
    let original = Original::start_at(libzmq, addresses, 5000, &[]);
    let gate = Gate::start(&rule(original.accounting, original.control));
    gate.until_linked(original.accounting);
    let mut client = gate.client();
    assert_eq!(client.get("a").0, 200);
    assert_eq!(original.report()[1], "4143434550544544");
    drop(original);
    gate.metric(&format!("tollgate_master_link_up{{master=\"{}\",what=\"accounting\"}}", addresses[0]), |up| up == 0);
    gate.metric(&format!("tollgate_master_heard{{master=\"{}\",what=\"control\"}}", addresses[0]), |heard| heard == 0);
    (0..15).for_each(|_| assert_eq!(client.get("innocent").0, 200));
    let dropped = format!("tollgate_master_link_reports_dropped_total{{master=\"{}\",what=\"away\"}}", addresses[0]);
    gate.metric(&dropped, |dropped| dropped >= 15);
    let original = Original::start_at(libzmq, addresses, 5000, &[]);
    gate.until_linked(original.accounting);
    // With the original gatekeeper, fifteen requests during an outage delayed the next one by seconds.
    (0..3).for_each(|_| assert_eq!(client.get("innocent").0, 200));
    assert_eq!(original.report()[2], "696e6e6f63656e74");
}

#[test]
fn our_gate_and_a_libzmq_master_send_the_recorded_bytes_in_both_versions() {
    for libzmq in [Libzmq::Current, Libzmq::Old] {
        let minor = libzmq.minor();
        let original = Original::start_at(libzmq, free_addresses(), 1000, &[]);
        let [accounting, control] = [original.accounting, original.control].map(Tap::before);
        let gate = Gate::start(&rule(accounting.address, control.address));
        gate.until_linked(accounting.address);
        let mut client = gate.client();
        let tries = 400;
        let refused = (0..tries).find(|_| {
            std::thread::sleep(Duration::from_millis(20));
            client.get("127.0.0.1").0 == 429
        });
        assert!(refused.is_some(), "no client is delayed in {tries} tries");
        same(&accounting.server, &[beginning(minor, "SUB"), subscriptions(minor, &[b""])].concat());
        let topics: [&[u8]; 3] = [b"\0tollgate\0\0", b"\0tollgate\0default\0", b"default\0"];
        same(&control.client, &[beginning(1, "SUB"), subscriptions(minor, &topics)].concat());
        let order = hex("0108 64656661756c7400 010b 44454c41595f554e54494c 0109 3132372e302e302e31 000d");
        same(&control.server, &[beginning(minor, "PUB"), order].concat());
        same(&accounting.client, &beginning(1, "PUB"));
        // Six frames as the original's. The last one has the flag for a further frame: Tollgate's.
        let report = hex("0108 64656661756c7400 0108 4143434550544544 0109 3132372e302e302e31 010d");
        let said = accounting.client.so_far();
        let at = said.windows(report.len()).position(|bytes| bytes == report).expect("there is no report on the wire");
        let (time, rest) = said[at + report.len()..].split_at(13);
        assert!(time.iter().all(u8::is_ascii_digit));
        assert_eq!(rest[..4], hex("0100 0100"));
        // Only ZMTP 3.1 has PING.
        assert_eq!(said.windows(5).any(|bytes| bytes == b"\x04PING"), minor == 1);
    }
}

/// The second configuration of docs/coming-from/smockron.md, with the addresses of this test.
#[test]
fn the_documented_gate_reports_whole_addresses_to_an_original_master() {
    let page = include_str!("../../../../docs/coming-from/smockron.md");
    let config = page.split("```toml\n").nth(2).unwrap().split("```").next().unwrap();
    let (_, config) = config.split_once("[[rule]]").unwrap();
    let original = Original::start_at(Libzmq::Current, free_addresses(), 5000, &[]);
    let link = format!("\"{}\"\ncontrol = \"{}\"", original.accounting, original.control);
    let rule = format!("[[rule]]{}", config.replace("\"127.0.0.1:10004\"", &link));
    let gate = Gate::start_with("trusted_proxies = \"127.0.0.1\"\n", &rule);
    gate.until_linked(original.accounting);
    for client in ["127.0.0.1", "2001:db8::1:2:3:4"] {
        assert_eq!(gate.client().get_for(client), 200);
        let identifier: String = client.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(original.report()[..3], ["64656661756c7400", "4143434550544544", &identifier]);
    }
}
