//! Clients that pipeline requests.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::backend::respond;
use crate::support::client::connect_from;
use crate::support::{Backend, Gate, eventually};

/// More bytes than the gate reads ahead, so that it cannot see the end of the connection behind them.
const PIPELINED: usize = 3000;

#[test]
fn a_waiting_request_ends_with_its_client_even_behind_pipelined_bytes() {
    let is_released = Arc::new(AtomicBool::new(false));
    let released = is_released.clone();
    let backend = Backend::answering(move |request, stream| {
        while request.path() == "/held" && !released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        respond(stream, "ok")
    });
    let gate = Gate::with(&backend, "in_flight = 1");
    let mut held = gate.connect();
    held.write_all(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("the backend is busy", || backend.count() == 1);
    let bytes = b"GET /waits HTTP/1.1\r\nHost: a\r\n\r\n".repeat(PIPELINED);
    let waiting: Vec<_> = (1..=10)
        .map(|number| {
            let mut stream = connect_from([127, 5, 5, number].into(), gate.address);
            stream.write_all(&bytes).unwrap();
            stream
        })
        .collect();
    eventually("ten wait", || gate.metric("tollgate_requests_waiting") == 10);
    drop(waiting);
    eventually("none waits", || gate.metric("tollgate_requests_waiting") == 0);
    is_released.store(true, Ordering::SeqCst);
    assert_eq!(gate.get("/").text(), "ok");
    assert_eq!(backend.count(), 2, "no request of a disconnected client was forwarded");
}

#[test]
fn all_pipelined_requests_of_a_connected_client_are_served() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_micros(500));
        respond(stream, "ok")
    });
    let gate = Gate::with(&backend, "in_flight = 1");
    let mut stream = gate.connect();
    let mut writer = stream.try_clone().unwrap();
    let sent = std::thread::spawn(move || {
        writer.write_all(&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(PIPELINED)).unwrap();
        writer
    });
    let mut reader = std::io::BufReader::new(&mut stream);
    for number in 0..PIPELINED {
        let response = crate::support::read_response(&mut reader).unwrap_or_else(|| panic!("no answer {number}"));
        assert_eq!(response.text(), "ok");
    }
    drop(sent.join().unwrap());
}
