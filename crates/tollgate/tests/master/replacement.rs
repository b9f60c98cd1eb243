//! Masters that keep their books on Redis, and those that come after them.

use std::time::Duration;

use crate::libzmq::{Gate, connected};
use crate::program::{Master, wall_ms};
use crate::python::Libzmq;
use crate::redis_server::{RedisServer, free_port};

const RULE: &str = "[[rule]]\nname = \"each\"\nclass = \"identifier\"\nrate = { rate = \"1/s\", burst = 10 }\n";
const PATIENCE: Duration = Duration::from_secs(30);

/// A master with a directory of its own, and books on this Redis.
fn master(name: &str, port: u16) -> Master {
    let redis = format!("[redis]\nurl = \"redis://127.0.0.1:{port}\"\n");
    Master::start_with_link(name, "books = \"main\"\n", &format!("{redis}{RULE}"))
}

/// Waits until everything that a master knows now is on Redis: a walk that begins after this ends.
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

/// Until when somebody who comes new to a master is told that the caller is delayed.
fn told_by(master: &Master) -> u64 {
    let newcomer = Gate::start(Libzmq::Current, master.accounting, master.control);
    newcomer.delayed_until(PATIENCE).expect("it is told of the debt")
}

/// A gate whose caller owes minutes to this master.
fn in_debt(master: &Master) -> Gate {
    let mut gate = connected(Libzmq::Current, master);
    gate.accept(300);
    master.metric("tollgate_master_reports_total{outcome=\"charged\"}", 301);
    gate
}

#[test]
fn a_master_on_another_machine_carries_on_where_a_killed_one_was() {
    let server = RedisServer::start(&[]);
    let first = master("replaced", server.port());
    let gate = in_debt(&first);
    let until = told_by(&first);
    assert!(until > wall_ms() + 200_000);
    written_down(&first);
    // Gone without a word, and its directory with it.
    first.kill();
    drop(gate);
    let second = master("replacing", server.port());
    assert_eq!(second.metric("tollgate_master_books_restored_total", 1), 1);
    let told = told_by(&second);
    assert!(told.abs_diff(until) < 1_000, "until {told} at the second, until {until} at the first");
    // And so on: the second has books of its own by now.
    written_down(&second);
    second.kill();
    let third = master("replacing-again", server.port());
    let told = told_by(&third);
    assert!(told.abs_diff(until) < 1_000, "until {told} at the third, until {until} at the first");
}

#[test]
fn a_master_that_only_stood_still_does_not_write_over_its_successor() {
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
    assert!(told_by(&master("third", server.port())) > wall_ms() + 200_000);
}

#[test]
fn a_master_goes_on_without_redis_and_keeps_its_books_there_again_when_it_is_back() {
    let port = free_port();
    let first = master("alone", port);
    let mut gate = in_debt(&first);
    first.metric("tollgate_master_books_failures_total{outcome=\"down\"}", 1);
    let server = RedisServer::start_on(port, &[]);
    written_down(&first);
    // Redis comes back empty, and is written to anew.
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
    assert!(told_by(&master("next", server.port())) > wall_ms() + 200_000);
}
