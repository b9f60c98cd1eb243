//! Authenticated links: with Tollgate's and with libzmq's CURVE, at either end.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::gate::{Gate, PATIENCE, RULE};
use crate::original::Original;
use tollgate_test_support::free_addresses;
use tollgate_test_support::master::Master;
use tollgate_test_support::python::{Libzmq, python};

/// A directory for key files, removed after the test.
struct Keys(PathBuf);

impl Keys {
    fn new(name: &str) -> Self {
        let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("keys-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&home).unwrap();
        Self(home)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.key"))
    }

    /// Creates a key pair, or reads an existing one. Returns the public key.
    fn public(&self, name: &str) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("keys").arg(self.file(name)).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// The settings of a master that knows the gate `gate`.
    fn master(&self) -> String {
        format!("key_file = \"{}\"\ngates = [\"{}\"]\n", self.file("master").display(), self.public("gate"))
    }

    /// The settings of a link to the master of this name, as the gate of that name.
    fn link(&self, [accounting, control]: [SocketAddr; 2], master: &str, gate: &str) -> String {
        let key = self.public(master);
        self.public(gate);
        format!(
            "[link]\nkey_file = \"{}\"\n[[link.master]]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\nkey = \"{key}\"\n",
            self.file(gate).display()
        )
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A gatekeeper on libzmq that reports requests of 127.0.0.1.
struct Peer(Child);

impl Peer {
    fn start(master: &Master, server: Option<&str>, own: Option<&Path>) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/master/peer.py");
        let mut command = Command::new(python());
        command.arg(script).args([master.accounting.to_string(), master.control.to_string()]).args(server).args(own);
        Self(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn accept(&mut self, count: u32) {
        writeln!(self.0.stdin.as_mut().unwrap(), "accept {count}").unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const CHARGED: &str = "tollgate_master_reports_total{outcome=\"charged\"}";
const IDENTIFIERS: &str = "[[rule]]\nname = \"each\"\nclass = \"identifier\"\nrate = { rate = \"1/s\", burst = 10 }\n";

#[test]
fn keys_are_made_once_kept_from_others_and_read_by_libzmqs_tools() {
    let keys = Keys::new("made");
    let public = keys.public("master");
    assert_eq!(public.len(), 40);
    assert_eq!(keys.public("master"), public, "a second call shows what is there");
    assert_eq!(std::fs::metadata(keys.file("master")).unwrap().permissions().mode() & 0o777, 0o600);
    let script = "import sys, zmq.auth, zmq\npublic, secret = zmq.auth.load_certificate(sys.argv[1])\n\
                  assert zmq.curve_public(secret) == public == sys.argv[2].encode()\n\
                  zmq.auth.create_certificates(sys.argv[3], 'theirs')";
    let done = Command::new(python()).args(["-c", script]).arg(keys.file("master")).arg(&public).arg(&keys.0).status();
    assert!(done.unwrap().success());
    std::fs::rename(keys.0.join("theirs.key_secret"), keys.file("renamed")).unwrap();
    let theirs = std::fs::read_to_string(keys.0.join("theirs.key")).unwrap();
    assert!(theirs.contains(&keys.public("renamed")));
}

#[test]
fn fault_33_only_gates_with_a_known_key_are_heard() {
    let keys = Keys::new("known");
    let server = keys.public("master");
    let master = Master::start_with_link("known", &keys.master(), IDENTIFIERS);
    keys.public("stranger");
    let mut stranger = Peer::start(&master, Some(&server), Some(&keys.file("stranger")));
    let mut keyless = Peer::start(&master, None, None);
    let mut known = Peer::start(&master, Some(&server), Some(&keys.file("gate")));
    let until = Instant::now() + PATIENCE;
    while master.metric(CHARGED, 0) == 0 {
        assert!(Instant::now() < until, "a known gate is not heard");
        stranger.accept(1);
        keyless.accept(1);
        known.accept(1);
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(known);
    std::thread::sleep(Duration::from_millis(200));
    let charged = master.metric(CHARGED, 0);
    master.metric("tollgate_master_faults_total{outcome=\"unauthenticated\"}", 2);
    // A peer without keys disconnects when it sees that keys are required, or is disconnected.
    let turned_away = |why: &str| master.metric(&format!("tollgate_master_faults_total{{outcome=\"{why}\"}}"), 0);
    assert!(turned_away("mechanism") + turned_away("handshake") >= 1);
    for _ in 0..10 {
        stranger.accept(10);
        keyless.accept(10);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(master.metric(CHARGED, 0), charged, "strangers are heard");
}

#[test]
fn our_gate_and_our_master_know_each_other() {
    let keys = Keys::new("ours");
    keys.public("master");
    let master = Master::start_with_link("ours", &keys.master(), RULE);
    let addresses = [master.accounting, master.control];
    let gate = Gate::start(&format!("{RULE}{}", keys.link(addresses, "master", "gate")));
    gate.until_linked(master.accounting);
    let mut client = gate.client();
    let admitted = (0..100).filter(|_| client.get("greedy").0 == 200).count();
    assert!((10..20).contains(&admitted), "{admitted}");
    master.metric(CHARGED, 1);
    gate.metric(&format!("tollgate_master_heard{{master=\"{}\",what=\"control\"}}", addresses[0]), |heard| heard == 1);
    // Another gate, whose keys the master does not know.
    let stranger = Gate::start(&format!("{RULE}{}", keys.link(addresses, "master", "stranger")));
    let failed = format!("tollgate_master_link_connections_total{{master=\"{}\",what=\"failed\"}}", addresses[0]);
    stranger.metric(&failed, |failed| failed >= 2);
    assert_eq!(stranger.client().get("greedy").0, 200, "it decides by itself");
}

#[test]
fn our_gate_comes_to_an_original_with_libzmqs_curve_and_to_no_impostor() {
    let keys = Keys::new("original");
    keys.public("master");
    let addresses = free_addresses();
    let original = Original::start_at(Libzmq::Current, addresses, 5000, &[keys.file("master").to_str().unwrap()]);
    let rule = RULE.replace("state =", "wire_domain = \"default\"\nstate =");
    let gate = Gate::start(&format!("{rule}{}", keys.link(addresses, "master", "gate")));
    gate.until_linked(addresses[0]);
    let mut client = gate.client();
    assert_eq!(client.get("someone").0, 200);
    assert_eq!(original.report()[2], "736f6d656f6e65");
    let begin = Instant::now();
    while client.get("greedy").0 == 200 {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(110));
    }
    // An impostor with the right address and wrong keys.
    let other = Gate::start(&format!("{rule}{}", keys.link(addresses, "another", "gate")));
    let failed = format!("tollgate_master_link_connections_total{{master=\"{}\",what=\"failed\"}}", addresses[0]);
    other.metric(&failed, |failed| failed >= 1);
    other.metric(&format!("tollgate_master_link_up{{master=\"{}\",what=\"control\"}}", addresses[0]), |up| up == 0);
}
