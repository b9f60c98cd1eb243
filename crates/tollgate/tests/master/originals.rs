//! Original gates: domains, several rules, gates on other machines, and an outage of the master.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use crate::bytes::{accepted, meet};
use tollgate_test_support::master::Master;
use tollgate_test_support::tap::{self, hex};
use tollgate_test_support::wall_ms;

const CHARGED: &str = "tollgate_master_reports_total{outcome=\"charged\"}";

/// `ACCEPTED` of 127.0.0.1 in this domain.
fn accepted_in(domain: &str, wall_ms: u64) -> Vec<u8> {
    let recorded = accepted(wall_ms);
    let length = u8::try_from(domain.len() + 1).unwrap();
    [&[1, length][..], domain.as_bytes(), b"\0", &recorded[10..]].concat()
}

/// An original gate that is subscribed to this domain.
fn subscribed(master: &Master, domain: &str) -> TcpStream {
    let mut control = meet(master.control, 0, "SUB", "PUB");
    let length = u8::try_from(domain.len() + 2).unwrap();
    control.write_all(&[&[0, length, 1][..], domain.as_bytes(), b"\0"].concat()).unwrap();
    control
}

/// The time from now to the end of the next ordered delay; none if no order comes within a second.
fn next_delay_ms(control: &mut TcpStream) -> Option<u64> {
    control.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut order = [0; 49];
    control.read_exact(&mut order).ok()?;
    let until: u64 = std::str::from_utf8(&order[36..]).unwrap().parse().unwrap();
    Some(until.saturating_sub(wall_ms()))
}

#[test]
fn a_rule_about_identifiers_has_the_domain_that_it_names() {
    let rules = "[[rule]]\nname = \"each\"\nclass = \"identifier\"\nrate = { rate = \"1/s\", burst = 10 }\nwire_domain = \"uploads\"\n";
    let master = Master::start_with("wire-domain", rules);
    let mut accounting = meet(master.accounting, 1, "PUB", "SUB");
    for domain in ["uploads", "default", "uploads"] {
        accounting.write_all(&accepted_in(domain, wall_ms())).unwrap();
    }
    assert_eq!(master.metric(CHARGED, 2), 2);
    assert_eq!(master.metric("tollgate_master_reports_total{outcome=\"unknown-domain\"}", 1), 1);
}

#[test]
fn two_rules_of_one_domain_apply_together() {
    let rules = "[[rule]]\nname = \"fast\"\nclass = \"identifier\"\nrate = { rate = \"10/s\", burst = 5 }\n\
                 [[rule]]\nname = \"slow\"\nclass = \"identifier\"\nrate = { rate = \"1/min\", burst = 20 }\n";
    let master = Master::start_with("two-rules", rules);
    let mut control = subscribed(&master, "default");
    let mut accounting = meet(master.accounting, 1, "PUB", "SUB");
    (0..6).for_each(|_| accounting.write_all(&accepted(wall_ms())).unwrap());
    let delay = next_delay_ms(&mut control).expect("the first rule delays");
    assert!(delay <= 1000, "{delay} ms");
    (0..14).for_each(|_| accounting.write_all(&accepted(wall_ms())).unwrap());
    let slow = std::iter::from_fn(|| next_delay_ms(&mut control)).find(|delay| *delay > 50_000);
    assert!(slow.is_some_and(|delay| delay <= 60_000), "{slow:?}");
}

#[test]
fn an_unknown_domain_is_logged_once() {
    let master = Master::start("unknown");
    let mut accounting = meet(master.accounting, 1, "PUB", "SUB");
    for domain in ["uploads", "uploads", "defaults", "uploads"] {
        accounting.write_all(&accepted_in(domain, wall_ms())).unwrap();
    }
    master.metric("tollgate_master_reports_total{outcome=\"unknown-domain\"}", 4);
    let log = master.log().join("\n");
    for domain in ["uploads", "defaults"] {
        let lines = log.lines().filter(|line| line.contains(&format!("\"domain\":\"{domain}\"")));
        assert_eq!(lines.count(), 1, "{log}");
    }
}

#[test]
fn the_bound_on_excess_requests_counts_original_gates() {
    let master = Master::start("bound");
    let bound = "tollgate_master_over_admission_bound{domain=\"default\"}";
    assert_eq!(master.metric(bound, 1), 1);
    let _gates: Vec<_> = (0..3).map(|_| subscribed(&master, "default")).collect();
    assert_eq!(master.metric("tollgate_master_original_gates", 3), 3);
    // Two gates beside the one that admits, with a burst of ten each, and one request in transit from each of three.
    assert_eq!(master.metric(bound, 23), 23);
}

#[test]
fn an_outage_of_the_master_is_not_charged_to_clients_of_original_gates() {
    let master = Master::start("outage");
    let mut control = subscribed(&master, "default");
    let mut accounting = meet(master.accounting, 1, "PUB", "SUB");
    // libzmq keeps reports while the master is away, and sends them when it is back.
    (0..15).for_each(|_| accounting.write_all(&accepted(wall_ms() - 8000)).unwrap());
    (0..15).for_each(|_| accounting.write_all(&accepted(wall_ms() - 12_000)).unwrap());
    assert_eq!(master.metric(CHARGED, 15), 15);
    assert_eq!(master.metric("tollgate_master_reports_total{outcome=\"stale\"}", 15), 15);
    assert_eq!(next_delay_ms(&mut control), None, "fifteen requests of eight seconds ago are paid back");
}

/// A connection from another address of this machine.
fn connect_from(address: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(IpAddr::from(address), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

#[test]
fn original_gates_of_a_named_network_connect_without_keys_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let public_key = |name: &str| {
        let file = folder.path().join(name);
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("keys").arg(&file).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    public_key("master.key");
    let link = format!(
        "key_file = '{}'\ngates = ['{}']\ngates_without_keys = '127.0.0.2'\n",
        folder.path().join("master.key").display(),
        public_key("gate.key")
    );
    let rule = "[[rule]]\nname = \"each\"\nclass = \"identifier\"\nrate = { rate = \"1/s\", burst = 10 }\n";
    let master = Master::start_with_link("without-keys", &link, rule);
    for (address, is_served) in [([127, 0, 0, 2], true), ([127, 0, 0, 1], false)] {
        let mut accounting = connect_from(address, master.accounting);
        accounting.write_all(&tap::beginning(1, "PUB")).unwrap();
        accounting.write_all(&accepted(wall_ms())).unwrap();
        let mut answer = Vec::new();
        if is_served {
            let subscription = hex("040a 09535542534352494245");
            let greeting = tap::beginning(1, "SUB");
            answer.resize(greeting.len() + subscription.len(), 0);
            accounting.read_exact(&mut answer).unwrap();
            assert_eq!(answer, [greeting, subscription].concat());
            assert_eq!(master.metric(CHARGED, 1), 1);
        } else {
            // Closed, whatever it has sent before.
            let _ = accounting.read_to_end(&mut answer);
            assert_eq!(master.metric(CHARGED, 1), 1);
        }
    }
}

/// The first configuration of docs/coming-from/smockron.md, on other ports and with an admin address.
#[test]
fn original_gatekeepers_work_with_the_documented_master() {
    let page = include_str!("../../../../docs/coming-from/smockron.md");
    let config = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let state = tempfile::tempdir().unwrap();
    let master = Master::start_file("documented", |[accounting, control, admin]| {
        let config = config.replace("0.0.0.0:10004", &format!("0.0.0.0:{}", accounting.port()));
        let config = config.replace("0.0.0.0:10005", &format!("0.0.0.0:{}", control.port()));
        let config = config.replace("/var/lib/tollgate", &state.path().display().to_string());
        format!("{config}\n[admin]\nlisten = \"{admin}\"\n")
    });
    let mut control = subscribed(&master, "default");
    let mut accounting = meet(master.accounting, 1, "PUB", "SUB");
    (0..11).for_each(|_| accounting.write_all(&accepted(wall_ms())).unwrap());
    let delay = next_delay_ms(&mut control).expect("the eleventh of ten");
    assert!((500..=2000).contains(&delay), "{delay} ms");
}
