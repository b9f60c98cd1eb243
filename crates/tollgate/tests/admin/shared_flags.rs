//! Flags shared through a real Redis, and during its outages.

use std::process::Command;

use serde_json::json;

use crate::support::{Gate, ask, eventually};
use tollgate_test_support::redis_server::RedisServer;

fn config(server: &RedisServer) -> String {
    format!(
        "[redis]\nurl = \"{}\"\n[watch]\nstate = \"redis\"\nstate_dir = \"FOLDER/state\"\naccount_class = \"header:x-api-key\"\n\
        [[rule]]\nname = \"flagged\"\nwhen = {{ flagged = true }}\nclass = \"header:x-api-key\"\nbucket = {{ size = 1, drip = 1, every = \"1h\" }}\n",
        server.url()
    )
}

fn refused(gate: &Gate, account: &str, count: u64) {
    let id = format!("{account} {count} at {:?}", std::time::Instant::now());
    let entry = json!({ "class": "header:x-api-key", "key": account, "rejected": count });
    assert_eq!(gate.post("/api/v1/rejections", &json!({ "id": id, "entries": [entry] })).status, 202);
}

fn clear(gate: &Gate, account: &str, note: &str) {
    let body = json!({ "name": "ann", "note": note }).to_string();
    assert_eq!(ask(gate.admin, "DELETE", &format!("/api/v1/flags/{account}"), &[], &body).status, 200);
}

/// Flagged accounts, sorted.
fn flagged(gate: &Gate) -> Vec<String> {
    let flags = gate.json("/api/v1/flags");
    let mut accounts: Vec<_> =
        flags["flags"].as_array().unwrap().iter().map(|flag| flag["account"].as_str().unwrap().to_owned()).collect();
    accounts.sort();
    accounts
}

/// Waits until exactly these accounts are flagged at all of the gates.
fn all_have(gates: &[&Gate], accounts: &[&str]) {
    for gate in gates {
        eventually(&format!("{accounts:?} at every gate"), || flagged(gate) == accounts);
    }
}

/// Whether the gate has sent all flags to Redis.
fn owes_nothing(gate: &Gate) -> bool {
    gate.get("/metrics").body.contains("\ntollgate_watch_flags_owed 0\n")
}

#[test]
fn a_flag_set_or_cleared_at_one_gate_reaches_all_gates() {
    let server = RedisServer::start(&[]);
    let [first, second] = [(); 2].map(|()| Gate::start(&config(&server)));
    refused(&first, "k1", 1000);
    assert_eq!(flagged(&first), ["k1"], "it does not wait for Redis");
    all_have(&[&second], &["k1"]);
    // Rules and the command see it at the other gate.
    let statuses = (0..2).map(|_| second.request("/", &[("X-Api-Key", "k1")]).status);
    assert_eq!(statuses.collect::<Vec<_>>(), [200, 429]);
    let listed = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["flags", "list", "--admin", &format!("http://{}", second.admin)])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).starts_with("k1  flagged "), "{listed:?}");
    clear(&second, "k1", "a load test");
    assert!(flagged(&second).is_empty());
    all_have(&[&first], &[]);
    let past = &first.json("/api/v1/flags?history=1")["flags"][0];
    assert_eq!((&past["cleared_by"], &past["note"]), (&json!("ann"), &json!("a load test")));
    // Earlier refusals do not set it again at either gate.
    refused(&first, "k1", 999);
    assert!(flagged(&first).is_empty());
    refused(&first, "k1", 1);
    all_have(&[&first, &second], &["k1"]);
    let late = Gate::start(&config(&server));
    all_have(&[&late], &["k1"]);
}

/// Refusals at a gate before a clearing at another gate no longer count.
#[test]
fn a_clearing_applies_at_gates_that_had_not_flagged_the_account() {
    let server = RedisServer::start(&[]);
    let [first, second] = [(); 2].map(|()| Gate::start(&config(&server)));
    refused(&second, "k1", 999);
    refused(&first, "k1", 1000);
    all_have(&[&second], &["k1"]);
    clear(&first, "k1", "seen");
    all_have(&[&second], &[]);
    refused(&second, "k1", 999);
    assert!(flagged(&second).is_empty());
    let again = Gate::start_in(second.kill(), &config(&server));
    refused(&again, "k1", 1);
    assert_eq!(flagged(&again), ["k1"]);
}

/// The same for a gate that was down when the flag was set and cleared.
#[test]
fn a_clearing_applies_at_a_gate_that_was_down_during_it() {
    let server = RedisServer::start(&[]);
    let [first, second] = [(); 2].map(|()| Gate::start(&config(&server)));
    refused(&second, "k1", 999);
    let folder = second.kill();
    refused(&first, "k1", 1000);
    clear(&first, "k1", "seen");
    eventually("Redis knows", || owes_nothing(&first));
    let second = Gate::start_in(folder, &config(&server));
    let past = || second.json("/api/v1/flags?history=1")["flags"].as_array().map(Vec::len);
    eventually("the gate has heard of it", || past() == Some(1));
    refused(&second, "k1", 999);
    assert!(flagged(&second).is_empty());
    refused(&second, "k1", 1);
    assert_eq!(flagged(&second), ["k1"]);
}

#[test]
fn flags_set_during_an_outage_of_redis_are_sent_after_it_even_after_a_kill() {
    let server = RedisServer::start(&[]);
    let [first, second] = [(); 2].map(|()| Gate::start(&config(&server)));
    for account in ["k1", "k2"] {
        refused(&first, account, 1000);
    }
    all_have(&[&second], &["k1", "k2"]);
    let port = server.port();
    let configured = config(&server);
    drop(server);
    refused(&first, "k3", 1000);
    clear(&first, "k2", "seen");
    refused(&second, "k4", 1000);
    assert_eq!(
        (flagged(&first), flagged(&second)),
        (vec!["k1".into(), "k3".into()], vec!["k1".into(), "k2".into(), "k4".into()])
    );
    second.logged("cannot share flags through Redis");
    // A kill before anything was sent, and a Redis that has lost its data.
    let first = Gate::start_in(first.kill(), &configured);
    assert_eq!(flagged(&first), ["k1", "k3"]);
    let server = RedisServer::start_on(port, &[]);
    all_have(&[&first, &second], &["k1", "k3", "k4"]);
    let past = second.json("/api/v1/flags?history=1")["flags"].as_array().unwrap().last().unwrap().clone();
    assert_eq!((&past["account"], &past["note"]), (&json!("k2"), &json!("seen")));
    eventually("everything is told", || owes_nothing(&first) && owes_nothing(&second));
    second.logged("sharing flags through Redis works again");
    let third = Gate::start(&config(&server));
    all_have(&[&third], &["k1", "k3", "k4"]);
}

#[test]
fn flags_are_sent_again_after_redis_lost_its_data() {
    let server = RedisServer::start(&[]);
    let first = Gate::start(&config(&server));
    refused(&first, "k1", 1000);
    refused(&first, "k2", 1000);
    clear(&first, "k2", "seen");
    eventually("Redis knows", || owes_nothing(&first) && server.keys("tollgate:{flags}:*").len() == 2);
    server.command(&["FLUSHALL"]);
    eventually("Redis knows again", || server.keys("tollgate:{flags}:*").len() == 2);
    let second = Gate::start(&config(&server));
    all_have(&[&second], &["k1"]);
}

#[test]
fn a_gate_that_was_down_does_not_restore_a_cleared_flag() {
    let server = RedisServer::start(&[]);
    let [first, second] = [(); 2].map(|()| Gate::start(&config(&server)));
    refused(&first, "k1", 1000);
    all_have(&[&second], &["k1"]);
    let folder = second.kill();
    clear(&first, "k1", "seen");
    eventually("Redis knows", || owes_nothing(&first));
    let second = Gate::start_in(folder, &config(&server));
    all_have(&[&second], &[]);
    // Nor if Redis has lost the clearing.
    refused(&first, "k2", 1000);
    all_have(&[&second], &["k2"]);
    let folder = second.kill();
    clear(&first, "k2", "seen");
    eventually("Redis knows", || owes_nothing(&first));
    server.command(&["FLUSHALL"]);
    let second = Gate::start_in(folder, &config(&server));
    all_have(&[&second, &first], &[]);
}
