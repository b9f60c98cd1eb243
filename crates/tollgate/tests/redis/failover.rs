//! Fault 41: the Redis that decides dies, and another takes over. No request fails, and used limits stay used.

use std::time::{Duration, Instant};

use crate::faults::{fallbacks, healed, is_gone};
use crate::load::{alone, load, spacious_gate};
use crate::shared::connected;
use crate::support::{Backend, Gate, roundtrip};
use tollgate_test_support::redis_server::{Cluster, RedisServer, Watched};

/// Longer than servers need to agree on a new master, also with several votes.
const AGREED: Duration = Duration::from_secs(60);
const SIZE: usize = 5;

/// A gate with a small bucket for every key and a deadline that is long enough for a busy machine.
fn patient_gate(backend: &Backend, url: &str) -> Gate {
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\nbackend = \"{}\"\n[redis]\nurl = \"{url}\"\ndeadline = '60s'\n[[rule]]\nname = 'quota'\n\
         class = 'header:x-key'\nstate = 'redis'\nbucket = {{ size = {SIZE}, drip = 1, every = '1h' }}\n",
        backend.url()
    ));
    connected(&gate);
    gate
}

/// The number of admitted requests out of twice the limit.
fn admitted(gate: &Gate, key: &str) -> usize {
    let request = format!("GET / HTTP/1.1\r\nHost: site\r\nX-Key: {key}\r\nConnection: close\r\n\r\n");
    let status = |_: &usize| roundtrip(gate.connect(), request.as_bytes()).status == 200;
    (0..2 * SIZE).filter(status).count()
}

/// Waits for an agreement between servers.
fn agreed(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < AGREED, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a server responds with this. Sentinels close all connections to a new master, including this one.
fn says(server: &RedisServer, words: &[&str], what: &str) -> bool {
    server.command_or_error(words).is_ok_and(|said| said.contains(what))
}

/// Whether a server has run the script: replicated data arrives without it.
fn decides(server: &RedisServer) -> bool {
    says(server, &["INFO", "commandstats"], "cmdstat_evalsha:")
}

/// Waits until `heir` decides and all requests are answered again.
fn taken_over(gate: &Gate, heir: &RedisServer) {
    agreed("the replica is the master", || says(heir, &["ROLE"], "master"));
    agreed("it decides", || decides(heir));
    agreed("all of Redis is asked again", || !is_gone(gate));
    healed(gate);
}

#[test]
fn fault_41_sentinels_name_another_master() {
    let _alone = alone();
    let (backend, mut servers) = (Backend::saying("ok"), Watched::start());
    let gate = spacious_gate(&backend, &servers.url());
    connected(&gate);
    assert_eq!(admitted(&patient_gate(&backend, &servers.url()), "one"), SIZE);
    servers.replicated();
    assert!(!decides(&servers.replica));
    let (report, ()) = load(&gate, || {
        servers.kill_master();
        taken_over(&gate, &servers.replica);
    });
    report.assert_no_request_failed_or_stalled();
    assert!(fallbacks(&gate, "down") > 0);
    // A gate without local state for the client gets it from the new master.
    assert_eq!(admitted(&patient_gate(&backend, &servers.url()), "one"), 0);
}

#[test]
fn fault_41_a_replica_takes_over_a_part_of_a_cluster() {
    let _alone = alone();
    let (backend, mut cluster) = (Backend::saying("ok"), Cluster::start());
    let replica = cluster.replicate(0);
    let gate = spacious_gate(&backend, &cluster.url());
    connected(&gate);
    // A key whose state is on the first node.
    let is_first = |key: &String| {
        let slot = cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", key]);
        slot.trim_start_matches("int(").trim_end_matches(')').parse::<u16>().unwrap() <= 5_460
    };
    let key = (0..).map(|number: u32| number.to_string()).find(is_first).unwrap();
    assert_eq!(admitted(&patient_gate(&backend, &cluster.url()), &key), SIZE);
    cluster.nodes[0].eventually(&["WAIT", "1", "1000"], |acknowledged| acknowledged == "int(1)");
    assert!(!decides(&cluster.nodes[replica]));
    let (report, ()) = load(&gate, || {
        drop(cluster.nodes.remove(0));
        taken_over(&gate, &cluster.nodes[replica - 1]);
    });
    report.assert_no_request_failed_or_stalled();
    assert!(fallbacks(&gate, "down") + fallbacks(&gate, "late") > 0);
    // A node that has not noticed the failover redirects to the dead one.
    let heir = cluster.nodes[replica - 1].command(&["CLUSTER", "MYID"]);
    let is_heir = |line: &str| line.starts_with(&heir) && line.contains("master") && line.contains("0-5460");
    agreed("all nodes know the new master", || {
        cluster.nodes.iter().all(|node| node.command(&["CLUSTER", "NODES"]).lines().any(is_heir))
    });
    assert_eq!(admitted(&patient_gate(&backend, &cluster.url()), &key), 0);
}
