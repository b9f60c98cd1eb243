//! Several gates, one limit.

use crate::redis_server::RedisServer;
use crate::support::{Backend, Gate, eventually};

/// A gate that asks this server, patiently enough for a busy machine.
pub(crate) fn gate(backend: &Backend, server: &RedisServer, rules: &str) -> Gate {
    Gate::start(&config(backend, server, rules))
}

pub(crate) fn config(backend: &Backend, server: &RedisServer, rules: &str) -> String {
    format!(
        "[gate]\nworkers = 2\nbackend = \"{}\"\n[redis]\nurl = \"{}\"\ndeadline = '2s'\n{rules}",
        backend.url(),
        server.url()
    )
}

/// Waits until the gate has a connection.
pub(crate) fn connected(gate: &Gate) {
    eventually("the gate is connected to Redis", || gate.metric("tollgate_redis_connects_total") > 0);
}

const BUCKET: &str =
    "[[rule]]\nname = 'api'\nclass = 'ip/32'\nstate = 'redis'\nbucket = { size = 7, drip = 1, every = '1h' }\n";

/// How many of so many requests are let through, with connections of their own, several at a time.
fn admitted(gate: &Gate, count: usize) -> usize {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| gate.get("/").status)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).filter(|status| *status == 200).count()
    })
}

#[test]
fn two_gates_admit_together_what_the_limit_says() {
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let gates = [gate(&backend, &server, BUCKET), gate(&backend, &server, BUCKET)];
    gates.iter().for_each(connected);
    let counts: Vec<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = gates.iter().map(|gate| scope.spawn(|| admitted(gate, 20))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(counts.iter().sum::<usize>(), 7, "{counts:?}");
    assert_eq!(backend.requests().len(), 7);
}
