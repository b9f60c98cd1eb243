//! Masters that keep their state on Redis, and their successors.

use std::time::Duration;

use crate::libzmq::{Gate, connected};
use tollgate_test_support::free_port;
use tollgate_test_support::master::Master;
use tollgate_test_support::python::Libzmq;
use tollgate_test_support::redis_server::RedisServer;
use tollgate_test_support::wall_ms;

const RULE: &str = "[[rule]]\nname = \"each\"\nclass = \"identifier\"\nrate = { rate = \"1/s\", burst = 10 }\n";
const PATIENCE: Duration = Duration::from_secs(30);

/// A master with its own directory and its state on this Redis.
fn master(name: &str, port: u16) -> Master {
    let redis = format!("[redis]\nurl = \"redis://127.0.0.1:{port}\"\n");
    Master::start_with_link(name, "books = \"main\"\n", &format!("{redis}{RULE}"))
}

/// Waits until the current state of a master is on Redis: until a scan that begins after this has ended.
fn written_down(master: &Master) {
    let walks = master.metric("tollgate_master_books_walks_total", 0);
    until(|| master.metric("tollgate_master_books_walks_total", 0) >= walks + 2);
}

fn until(mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "it did not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The end of the delay of the client, as a new subscriber of a master receives it.
fn delayed_until_at(master: &Master) -> u64 {
    let newcomer = Gate::start(Libzmq::Current, master.accounting, master.control);
    newcomer.delayed_until(PATIENCE).expect("it receives the debt")
}

/// A gate whose client owes minutes to this master.
fn in_debt(master: &Master) -> Gate {
    let mut gate = connected(Libzmq::Current, master);
    gate.accept(300);
    master.metric("tollgate_master_reports_total{outcome=\"charged\"}", 301);
    gate
}

#[test]
fn a_master_on_another_machine_takes_over_from_a_killed_one() {
    let server = RedisServer::start(&[]);
    let first = master("replaced", server.port());
    let gate = in_debt(&first);
    let until = delayed_until_at(&first);
    assert!(until > wall_ms() + 200_000);
    written_down(&first);
    // Killed, and its directory removed.
    first.kill();
    drop(gate);
    let second = master("replacing", server.port());
    assert_eq!(second.metric("tollgate_master_books_restored_total", 1), 1);
    let delayed_until = delayed_until_at(&second);
    assert!(delayed_until.abs_diff(until) < 1_000, "until {delayed_until} at the second, until {until} at the first");
    // The second master has written its own state by now.
    written_down(&second);
    second.kill();
    let third = master("replacing-again", server.port());
    let delayed_until = delayed_until_at(&third);
    assert!(delayed_until.abs_diff(until) < 1_000, "until {delayed_until} at the third, until {until} at the first");
}

#[test]
fn a_paused_master_does_not_overwrite_its_successor() {
    let server = RedisServer::start(&[]);
    let first = master("paused", server.port());
    written_down(&first);
    first.signal("STOP");
    let second = master("successor", server.port());
    let gate = in_debt(&second);
    written_down(&second);
    first.signal("CONT");
    first.metric("tollgate_master_books_superseded", 1);
    drop(gate);
    second.kill();
    drop(first);
    assert!(delayed_until_at(&master("third", server.port())) > wall_ms() + 200_000);
}

#[test]
fn a_master_continues_without_redis_and_writes_its_state_again_afterwards() {
    let port = free_port();
    let first = master("alone", port);
    let mut gate = in_debt(&first);
    first.metric("tollgate_master_books_failures_total{outcome=\"down\"}", 1);
    let server = RedisServer::start_on(port, &[]);
    written_down(&first);
    // Redis returns empty and is filled again.
    drop(server);
    let failures = first.metric("tollgate_master_books_failures_total{outcome=\"down\"}", 1);
    until(|| first.metric("tollgate_master_books_failures_total{outcome=\"down\"}", 0) > failures);
    let charged = "tollgate_master_reports_total{outcome=\"charged\"}";
    let before = first.metric(charged, 0);
    gate.accept(10);
    first.metric(charged, before + 10);
    let server = RedisServer::start_on(port, &[]);
    written_down(&first);
    first.kill();
    drop(gate);
    assert!(delayed_until_at(&master("next", server.port())) > wall_ms() + 200_000);
}
