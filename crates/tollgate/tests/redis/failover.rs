//! Fault 41, the long way round: the Redis that decides dies, and another takes over. Nobody notices, and what was used up before is used up.

use std::time::{Duration, Instant};

use crate::faults::{fallbacks, healed, is_gone};
use crate::load::{alone, load, spacious_gate};
use crate::redis_server::{Cluster, RedisServer, Watched};
use crate::shared::connected;
use crate::support::{Backend, Gate, roundtrip};

/// Longer than servers need to agree on who takes over, also when they have to vote more than once.
const AGREED: Duration = Duration::from_secs(60);
const SIZE: usize = 5;

/// A gate with a small bucket for every key, which waits for Redis for longer than a busy machine makes it.
fn patient_gate(backend: &Backend, url: &str) -> Gate {
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\nbackend = \"{}\"\n[redis]\nurl = \"{url}\"\ndeadline = '60s'\n[[rule]]\nname = 'quota'\n\
         class = 'header:x-key'\nstate = 'redis'\nbucket = {{ size = {SIZE}, drip = 1, every = '1h' }}\n",
        backend.url()
    ));
    connected(&gate);
    gate
}

/// How many of twice as many as there is room for are admitted.
fn admitted(gate: &Gate, key: &str) -> usize {
    let request = format!("GET / HTTP/1.1\r\nHost: site\r\nX-Key: {key}\r\nConnection: close\r\n\r\n");
    let status = |_: &usize| roundtrip(gate.connect(), request.as_bytes()).status == 200;
    (0..2 * SIZE).filter(status).count()
}

/// Waits for what servers agree on among themselves.
fn agreed(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < AGREED, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a server says this. Sentinels break all connections to the one that they make the master, ours as well.
fn says(server: &RedisServer, words: &[&str], what: &str) -> bool {
    server.command_or_error(words).is_ok_and(|said| said.contains(what))
}

/// Whether a server has decided: what it has from its master came without the script.
fn decides(server: &RedisServer) -> bool {
    says(server, &["INFO", "commandstats"], "cmdstat_evalsha:")
}

/// Waits until `heir` decides, and all that is asked is answered again.
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
    report.assert_nobody_noticed();
    assert!(fallbacks(&gate, "down") > 0);
    // A gate that has not met the caller hears of it from the new master.
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
    report.assert_nobody_noticed();
    assert!(fallbacks(&gate, "down") + fallbacks(&gate, "late") > 0);
    // Who asks a node that has not heard of it yet is sent to the one that is gone.
    let heir = cluster.nodes[replica - 1].command(&["CLUSTER", "MYID"]);
    let is_heir = |line: &str| line.starts_with(&heir) && line.contains("master") && line.contains("0-5460");
    agreed("all nodes know the new master", || {
        cluster.nodes.iter().all(|node| node.command(&["CLUSTER", "NODES"]).lines().any(is_heir))
    });
    assert_eq!(admitted(&patient_gate(&backend, &cluster.url()), &key), 0);
}
