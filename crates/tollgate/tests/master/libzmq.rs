//! Gates on libzmq, through pyzmq.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::bytes::accepted;
use tollgate_test_support::master::Master;
use tollgate_test_support::python::Libzmq;
use tollgate_test_support::tap::{Tap, beginning, hex, same, subscriptions};
use tollgate_test_support::wall_ms;

pub(crate) struct Gate {
    process: Child,
    heard: Receiver<String>,
}

impl Gate {
    pub(crate) fn start(libzmq: Libzmq, accounting: SocketAddr, control: SocketAddr) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/master/peer.py");
        let addresses = [accounting, control].map(|address| address.to_string());
        let mut command = libzmq.python();
        let mut process =
            command.arg(script).args(addresses).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (sender, heard) = channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { process, heard }
    }

    pub(crate) fn accept(&mut self, count: u32) {
        writeln!(self.process.stdin.as_mut().unwrap(), "accept {count}").unwrap();
    }

    /// The end of the ordered delay, once it is after `moment`.
    pub(crate) fn delayed_beyond(&self, moment: u64) -> u64 {
        loop {
            let until = self.delayed_until(Duration::from_secs(20)).expect("no such order came");
            if until > moment {
                return until;
            }
        }
    }

    /// The end of the ordered delay, if an order arrives within this time.
    pub(crate) fn delayed_until(&self, patience: Duration) -> Option<u64> {
        let line = self.heard.recv_timeout(patience).ok()?;
        let frames: Vec<&str> = line.split(' ').collect();
        assert_eq!(frames[..3], ["64656661756c7400", "44454c41595f554e54494c", "3132372e302e302e31"]);
        assert_eq!(frames.len(), 4, "an original overruns its memory on a fifth frame");
        let digits: Vec<u8> =
            (0..frames[3].len()).step_by(2).map(|at| u8::from_str_radix(&frames[3][at..at + 2], 16).unwrap()).collect();
        Some(String::from_utf8(digits).unwrap().parse().unwrap())
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A gate that is connected to the master: its reports are dropped before that.
pub(crate) fn connected(libzmq: Libzmq, master: &Master) -> Gate {
    let mut gate = Gate::start(libzmq, master.accounting, master.control);
    for _ in 0..200 {
        gate.accept(1);
        std::thread::sleep(Duration::from_millis(50));
        if master.metric("tollgate_master_reports_total{outcome=\"charged\"}", 0) > 0 {
            return gate;
        }
    }
    panic!("the master does not hear the gate");
}

#[test]
fn a_libzmq_gate_receives_orders_and_so_does_a_late_one() {
    gates_receive_orders(Libzmq::Current);
}

#[test]
fn a_libzmq_gate_of_zmtp_3_0_receives_orders_and_so_does_a_late_one() {
    gates_receive_orders(Libzmq::Old);
}

fn gates_receive_orders(libzmq: Libzmq) {
    let master = Master::start(&format!("libzmq-{}", libzmq.minor()));
    let mut first = connected(libzmq, &master);
    first.accept(100);
    let until = first.delayed_beyond(wall_ms() + 60_000);
    let late = Gate::start(libzmq, master.accounting, master.control);
    let delayed_until = late.delayed_until(Duration::from_secs(20)).unwrap();
    // Two readings of two clocks differ by a millisecond or two.
    assert!(delayed_until + 5 >= until && delayed_until <= until + 40_000, "{delayed_until} against {until}");
}

#[test]
fn a_libzmq_gate_survives_a_killed_master_and_the_debt_does_too() {
    a_gate_survives(Libzmq::Current);
}

#[test]
fn a_libzmq_gate_of_zmtp_3_0_survives_a_killed_master_and_the_debt_does_too() {
    a_gate_survives(Libzmq::Old);
}

fn a_gate_survives(libzmq: Libzmq) {
    let mut master = Master::start(&format!("killed-{}", libzmq.minor()));
    let mut gate = connected(libzmq, &master);
    gate.accept(100);
    gate.delayed_beyond(wall_ms() + 80_000);
    // The state is written on shutdown and every few seconds.
    assert_eq!(master.stop(), Some(0));
    master.start_again();
    let late = Gate::start(libzmq, master.accounting, master.control);
    let delayed_until = late.delayed_until(Duration::from_secs(20)).unwrap();
    assert!(
        delayed_until > wall_ms() + 40_000,
        "the debt of minutes is now {} ms",
        delayed_until.saturating_sub(wall_ms())
    );
    master.kill_and_restart();
    // Both sockets of the gate reconnect to the new master.
    let delayed_until_again = late.delayed_until(Duration::from_secs(20)).unwrap();
    assert!(
        delayed_until_again.abs_diff(delayed_until) <= 1000,
        "{delayed_until_again} after the kill, {delayed_until} before"
    );
    let charged = "tollgate_master_reports_total{outcome=\"charged\"}";
    while master.metric(charged, 0) == 0 {
        gate.accept(1);
        std::thread::sleep(Duration::from_millis(50));
    }
    late.delayed_beyond(delayed_until_again + 500);
}

#[test]
fn a_damaged_state_file_is_copied_and_the_master_starts_empty() {
    let mut master = Master::start("damaged");
    let mut gate = connected(Libzmq::Current, &master);
    gate.accept(100);
    gate.delayed_beyond(wall_ms() + 60_000);
    assert_eq!(master.stop(), Some(0));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(master.state_file()).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "keys of callers are nobody else's");
    let mut bytes = std::fs::read(master.state_file()).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(master.state_file(), bytes).unwrap();
    master.start_again();
    assert!(master.state_file().with_extension("damaged").exists());
    assert_eq!(master.metric("tollgate_master_identifiers", 0), 0);
}

#[test]
fn our_master_and_a_libzmq_gate_send_the_recorded_bytes_in_both_versions() {
    for libzmq in [Libzmq::Current, Libzmq::Old] {
        let minor = libzmq.minor();
        let master = Master::start(&format!("tapped-{minor}"));
        let [accounting, control] = [master.accounting, master.control].map(Tap::before);
        let mut gate = Gate::start(libzmq, accounting.address, control.address);
        let order = hex("0108 64656661756c7400 010b 44454c41595f554e54494c 0109 3132372e302e302e31 000d");
        let delayed_until = (0..400).find_map(|_| {
            gate.accept(1);
            gate.delayed_until(Duration::from_millis(50))
        });
        let delayed_until = delayed_until.expect("the gate receives no order");
        same(&control.client, &[beginning(minor, "SUB"), subscriptions(minor, &[b"default\0"])].concat());
        same(&control.server, &[beginning(1, "PUB"), order, delayed_until.to_string().into_bytes()].concat());
        same(&accounting.server, &[beginning(1, "SUB"), subscriptions(minor, &[b""])].concat());
        same(&accounting.client, &beginning(minor, "PUB"));
        let said = accounting.client.so_far();
        let reports = &said[beginning(minor, "PUB").len()..];
        let length = accepted(delayed_until).len();
        assert!(reports.len() >= 10 * length, "{} bytes of reports", reports.len());
        for report in reports.chunks_exact(length) {
            let digits = report.iter().position(|&byte| byte == b'\r').unwrap() + 1;
            let time = std::str::from_utf8(&report[digits..digits + 13]).unwrap().parse().unwrap();
            assert_eq!(report.escape_ascii().to_string(), accepted(time).escape_ascii().to_string());
        }
    }
}
