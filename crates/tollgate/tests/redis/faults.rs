//! Fault 41: requests are served during any failure of Redis. After the deadline this gate's own state decides, and
//! the log reports it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::load::{alone, load, spacious_gate};
use crate::shared::connected;
use crate::support::{Backend, Gate, Response, eventually, roundtrip};
use tollgate_test_support::redis_server::RedisServer;

const BEFORE: Duration = Duration::from_millis(300);

/// The value of this metric.
fn figure(gate: &Gate, name: &str) -> f64 {
    let text = gate.admin("/metrics").text();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
}

/// Decisions by the gate for this reason.
pub(crate) fn fallbacks(gate: &Gate, why: &str) -> u64 {
    figure(gate, &format!("tollgate_redis_fallbacks_total{{why=\"{why}\"}}")) as u64
}

/// Whether Redis is considered down.
pub(crate) fn is_gone(gate: &Gate) -> bool {
    figure(gate, "tollgate_redis_gone") > 0.0
}

/// Waits until Redis decides again.
pub(crate) fn healed(gate: &Gate) {
    let decided = gate.metric("tollgate_redis_decisions_total");
    let decides = || gate.metric("tollgate_redis_decisions_total") > decided + 50;
    eventually("Redis decides again", || decides() && !is_gone(gate));
}

/// One request that Redis decides.
fn ask(gate: &Gate) -> Response {
    let request = "GET /redis HTTP/1.1\r\nHost: site\r\nX-Key: one\r\nConnection: close\r\n\r\n";
    roundtrip(gate.connect(), request.as_bytes())
}

/// Runs a temporary failure of Redis under constant load.
fn survives(options: &[&str], fault: impl FnOnce(RedisServer, &Gate) -> RedisServer) -> (Gate, RedisServer) {
    let _alone = alone();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(options));
    let gate = spacious_gate(&backend, &server.url());
    connected(&gate);
    let (report, server) = load(&gate, || {
        sleep(BEFORE);
        let server = fault(server, &gate);
        healed(&gate);
        server
    });
    report.assert_no_request_failed_or_stalled();
    (gate, server)
}

#[test]
fn fault_41_redis_is_killed_and_comes_back() {
    let (gate, _server) = survives(&[], |server, gate| {
        let port = server.port();
        drop(server);
        eventually("Redis counts as gone", || is_gone(gate));
        sleep(Duration::from_secs(1));
        RedisServer::start_on(port, &[])
    });
    assert!(fallbacks(&gate, "down") > 0);
    gate.logged("Redis has not decided");
    let says_so = |line: &String| line.contains("Redis decides again");
    eventually("the log says that Redis decides again", || {
        ask(&gate);
        gate.log().iter().any(says_so)
    });
}

#[test]
fn fault_41_redis_is_paused_for_three_seconds() {
    let begun = Instant::now();
    let (gate, _server) = survives(&[], |server, gate| {
        server.signal("STOP");
        sleep(Duration::from_secs(3));
        eventually("most are decided at once", || {
            fallbacks(gate, "late") >= 5 && fallbacks(gate, "down") > fallbacks(gate, "late")
        });
        server.signal("CONT");
        server
    });
    let said = gate.log().iter().filter(|line| line.contains("Redis has not decided")).count() as u64;
    let most = begun.elapsed().as_secs() + 2;
    assert!((1..=most).contains(&said), "once a second, in about four of {most}: {said}");
}

#[test]
fn fault_41_redis_is_busy_for_two_seconds() {
    let (gate, _server) = survives(&["--enable-debug-command", "local"], |server, gate| {
        // Once, unless this machine stalls meanwhile.
        while fallbacks(gate, "late") < 5 {
            server.command(&["DEBUG", "SLEEP", "2"]);
        }
        server
    });
    assert_eq!(fallbacks(&gate, "garbled"), 0);
}

#[test]
fn fault_41_redis_loses_its_data() {
    let (gate, _server) = survives(&[], |server, _| {
        for _ in 0..5 {
            server.command(&["FLUSHALL"]);
            server.command(&["SCRIPT", "FLUSH"]);
            sleep(Duration::from_millis(100));
        }
        server
    });
    // On a busy machine Redis may be late, busy or considered down; but no response may be wrong.
    let unexpected = ["failed", "garbled", "foreign"].map(|why| (why, fallbacks(&gate, why)));
    assert!(unexpected.iter().all(|(_, count)| *count == 0), "{unexpected:?}");
}

#[test]
fn fault_41_redis_is_full() {
    let (gate, _server) = survives(&[], |server, gate| {
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        eventually("it says so", || fallbacks(gate, "failed") > 50);
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        server
    });
    assert_eq!(fallbacks(&gate, "garbled"), 0);
}

#[test]
fn fault_41_foreign_values_are_stored_under_our_names() {
    let (gate, _server) = survives(&[], |server, gate| {
        let keys = server.keys("tollgate:*");
        assert!(!keys.is_empty());
        for key in keys.iter().take(100) {
            server.command(&["DEL", key]);
            server.command(&["LPUSH", key, "a list"]);
        }
        eventually("it is noticed", || fallbacks(gate, "foreign") > 50);
        for key in keys.iter().take(100) {
            server.command(&["DEL", key]);
        }
        server
    });
    // The log names the key.
    gate.logged("\"slot\":\"tollgate:default:redis:");
}

#[test]
fn fault_41_redis_becomes_slow_for_good() {
    let _alone = alone();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let slow = SlowWay::to(server.port());
    let gate = spacious_gate(&backend, &format!("redis://{}", slow.address));
    connected(&gate);
    let (report, ()) = load(&gate, || {
        sleep(BEFORE);
        slow.delay_ms.store(20, Ordering::Relaxed);
        sleep(Duration::from_secs(2));
        eventually("it counts as gone", || is_gone(&gate) && fallbacks(&gate, "late") >= 5);
        slow.delay_ms.store(0, Ordering::Relaxed);
        healed(&gate);
    });
    report.assert_no_request_failed_or_stalled();
}

#[test]
fn without_redis_a_gate_enforces_the_limit_alone_also_for_earlier_clients() {
    let _alone = alone();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let bucket =
        "[[rule]]\nname = 'api'\nclass = 'ip/32'\nstate = 'redis'\nbucket = { size = 5, drip = 1, every = '1h' }\n";
    let [first, second] = [(); 2].map(|()| crate::shared::gate(&backend, &server, bucket));
    [&first, &second].into_iter().for_each(connected);
    let admitted = |gate: &Gate| (0..10).filter(|_| gate.get("/").status == 200).count();
    assert_eq!(admitted(&first), 5);
    drop(server);
    // The bound of an outage is the limit times the number of gates.
    assert_eq!((admitted(&first), admitted(&second)), (0, 5));
}

/// A busy machine or network delays answers by milliseconds. The default deadline has room for that.
#[test]
fn by_default_an_answer_after_10_ms_is_in_time() {
    let _alone = alone();
    let (backend, server) = (Backend::saying("ok"), RedisServer::start(&[]));
    let slow = SlowWay::to(server.port());
    let rule = "[[rule]]\nname = 'api'\nclass = 'ip/32'\nstate = 'redis'\nrate = { rate = '100/s', burst = 100 }\n";
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\nbackend = '{}'\n[redis]\nurl = 'redis://{}'\n{rule}",
        backend.url(),
        slow.address
    ));
    slow.delay_ms.store(5, Ordering::Relaxed);
    assert!((0..10).all(|_| gate.get("/").status == 200));
    let (decided, late) = (gate.metric("tollgate_redis_decisions_total"), fallbacks(&gate, "late"));
    assert!(decided >= 8 && late <= 2, "{decided} decided, {late} late");
}

/// A relay to a server that can be made slow.
struct SlowWay {
    address: SocketAddr,
    delay_ms: &'static AtomicU64,
}

impl SlowWay {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let delay_ms: &'static AtomicU64 = Box::leak(Box::default());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || carry(from, to, delay_ms));
                std::thread::spawn(move || carry(server, client, delay_ms));
            }
        });
        Self { address, delay_ms }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, delay_ms: &AtomicU64) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        sleep(Duration::from_millis(delay_ms.load(Ordering::Relaxed)));
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
