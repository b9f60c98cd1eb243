//! Charges for requests whose clients do not read the response.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::client::socket_from;
use crate::support::{Backend, Gate, eventually};

/// Time that the backend computes after it has flushed the first part of a response. It exceeds one second, so that
/// slow bodies are covered.
const WORK: Duration = Duration::from_millis(1100);
const IN_FLIGHT_MAX: usize = 2;
const REQUESTS: usize = 6;

/// CPU time charged so far.
fn charged(gate: &Gate) -> Duration {
    let text = gate.admin("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix("tollgate_toll_seconds_total ")).unwrap();
    Duration::from_secs_f64(line.parse().unwrap())
}

/// The current and the maximum number of concurrent requests at the backend, and the number of finished ones.
#[derive(Default)]
struct Counts {
    working: AtomicUsize,
    most: AtomicUsize,
    done: AtomicUsize,
}

/// A backend that sends `bytes` bytes of each response, computes, and sends the rest.
fn flushing(bytes: usize) -> (Backend, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    let counted = counts.clone();
    let backend = Backend::answering(move |_, stream| {
        let working = counted.working.fetch_add(1, Ordering::SeqCst) + 1;
        counted.most.fetch_max(working, Ordering::SeqCst);
        let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{bytes:x}\r\n");
        let sent = stream.write_all(&[head.as_bytes(), &vec![b'x'; bytes], b"\r\n"].concat());
        std::thread::sleep(WORK);
        counted.working.fetch_sub(1, Ordering::SeqCst);
        counted.done.fetch_add(1, Ordering::SeqCst);
        sent.and_then(|()| stream.write_all(b"3\r\nend\r\n0\r\n\r\n"))
    });
    (backend, counts)
}

/// A client that has sent these bytes and does not read.
fn not_reading(gate: &Gate, number: usize, bytes: &[u8]) -> TcpStream {
    let from = IpAddr::from([127, 5, 5, number as u8 + 1]);
    let mut stream = socket_from(from, gate.address, |socket| socket.set_recv_buffer_size(4096));
    stream.write_all(bytes).unwrap();
    stream
}

fn assert_counted_and_charged(first_piece: usize, request: &[u8]) {
    let (backend, counts) = flushing(first_piece);
    let gate = Gate::with(&backend, &format!("h2c = true\ncores = 2\nin_flight = {IN_FLIGHT_MAX}"));
    let clients: Vec<_> = (0..REQUESTS).map(|number| not_reading(&gate, number, request)).collect();
    eventually("all have been served", || counts.done.load(Ordering::SeqCst) == REQUESTS);
    assert_eq!(counts.most.load(Ordering::SeqCst), IN_FLIGHT_MAX);
    let least = WORK * REQUESTS as u32;
    eventually("all have been charged for the backend's work", || charged(&gate) >= least * 9 / 10);
    assert!(charged(&gate) < least * 2, "{:?}", charged(&gate));
    drop(clients);
}

#[test]
fn a_client_with_a_closed_window_is_charged_and_counts_as_in_flight() {
    // SETTINGS_INITIAL_WINDOW_SIZE = 0, then GET / without a body.
    let request = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
                    \0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a";
    assert_counted_and_charged(20, request);
}

#[test]
fn a_client_that_does_not_read_is_charged_and_counts_as_in_flight() {
    assert_counted_and_charged(3_000_000, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
}

/// A slow but steady client must not block the backend either: its response is buffered as well.
#[test]
fn a_client_that_reads_slowly_but_steadily_is_charged_for_the_backend_alone() {
    const BYTES: usize = 20_000_000;
    let backend = Backend::answering(|_, stream| {
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n").as_bytes())?;
        stream.write_all(&vec![b'x'; BYTES])
    });
    let gate = Gate::with(&backend, "cores = 2\nin_flight = 2");
    let from = IpAddr::from([127, 5, 5, 1]);
    let mut client = socket_from(from, gate.address, |socket| socket.set_recv_buffer_size(65_536));
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let (mut piece, mut received, began) = (vec![0; 40_000], 0, Instant::now());
    while let Ok(length @ 1..) = client.read(&mut piece) {
        received += length;
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(received > BYTES, "{received} bytes");
    let (charged, took) = (charged(&gate), began.elapsed());
    assert!(charged < took / 2, "{charged:?} for a download of {took:?}");
}
