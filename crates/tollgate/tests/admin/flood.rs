//! Connections that try to keep operators out of the admin address.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::support::{Gate, PATIENCE, eventually};

/// Loopback addresses: each counts as a separate client.
const FIRST: [u8; 4] = [127, 0, 0, 1];
const SECOND: [u8; 4] = [127, 0, 0, 2];
const OPERATOR: [u8; 4] = [127, 0, 0, 3];

/// Connects to the admin address from this address.
pub(crate) fn connect(gate: &Gate, from: [u8; 4]) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::from(from), 0)).into()).unwrap();
    socket.connect_timeout(&gate.admin.into(), PATIENCE).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.into()
}

/// Status of the response, if the connection lasts until it arrives.
fn status(stream: &mut TcpStream) -> Option<u16> {
    let mut line = [0; 12];
    stream.read_exact(&mut line).ok()?;
    std::str::from_utf8(&line[9..]).unwrap().parse().ok()
}

/// Sends a request from this address and returns the status.
fn get(gate: &Gate, from: [u8; 4], path: &str) -> Option<u16> {
    let mut stream = connect(gate, from);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    status(&mut stream)
}

/// Opens an event stream; returns the status, if it was refused.
fn watch_events(gate: &Gate, from: [u8; 4]) -> (TcpStream, Option<u16>) {
    let mut stream = connect(gate, from);
    write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let status = status(&mut stream);
    (stream, status)
}

/// Sends as many requests as possible and reads no response.
fn pipelining(gate: &Gate, from: [u8; 4]) -> TcpStream {
    let mut stream = connect(gate, from);
    let requests = "GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(400);
    stream.set_nonblocking(true).unwrap();
    match stream.write(requests.as_bytes()) {
        Ok(_) => {}
        Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionReset), "{error}"),
    }
    stream
}

#[test]
fn connections_that_pipeline_and_never_read_do_not_keep_operators_out() {
    let gate = Gate::start("");
    let hostile: Vec<_> = [FIRST, SECOND].iter().flat_map(|from| (0..150).map(|_| pipelining(&gate, *from))).collect();
    assert_eq!(get(&gate, OPERATOR, "/healthz"), Some(200));
    assert_eq!(get(&gate, OPERATOR, "/api/v1/status"), Some(200), "another address has its share");
    eventually("the hostile address itself gets in", || get(&gate, FIRST, "/api/v1/status") == Some(200));
    drop(hostile);
}

#[test]
fn health_checks_are_answered_while_every_other_connection_is_busy() {
    let gate = Gate::start("");
    let upload = |from| {
        let mut stream = connect(&gate, from);
        write!(stream, "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n").unwrap();
        stream
    };
    let mut uploads: Vec<_> = [FIRST, SECOND].iter().flat_map(|from| (0..128).map(|_| upload(*from))).collect();
    let began = Instant::now();
    for _ in 0..5 {
        uploads.iter_mut().for_each(|stream| drop(stream.write(b"x")));
        for from in [FIRST, SECOND, OPERATOR] {
            assert_eq!(get(&gate, from, "/healthz"), Some(200));
            assert_eq!(get(&gate, from, "/readyz"), Some(200));
        }
        // A request with an incomplete body is replaced, although a byte of it has just arrived.
        assert_eq!(get(&gate, FIRST, "/api/v1/status"), Some(200));
        assert_eq!(get(&gate, OPERATOR, "/api/v1/status"), Some(200), "another address has its share");
    }
    // Stalled uploads are closed after 15 seconds; the checks were answered before that.
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

#[test]
fn slow_bodies_of_requests_do_not_keep_their_own_address_out() {
    let gate = Gate::start("");
    let upload = |_| {
        let mut stream = connect(&gate, FIRST);
        write!(stream, "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n").unwrap();
        stream
    };
    let mut uploads: Vec<_> = (0..128).map(upload).collect();
    // After these, the heads of all uploads have been read.
    (0..20).for_each(|_| assert_eq!(get(&gate, SECOND, "/healthz"), Some(200)));
    uploads.iter_mut().for_each(|stream| drop(stream.write(b"x")));
    (0..20).for_each(|_| assert_eq!(get(&gate, SECOND, "/healthz"), Some(200)));
    assert_eq!(get(&gate, FIRST, "/api/v1/status"), Some(200), "although a byte has just arrived on each connection");
}

#[test]
fn a_connection_that_never_reads_is_closed() {
    let gate = Gate::start("");
    let before = open_files(&gate);
    let stream = pipelining(&gate, FIRST);
    eventually("it is accepted", || open_files(&gate) > before);
    let began = Instant::now();
    eventually("the gate closes it", || open_files(&gate) <= before);
    assert!(began.elapsed() > Duration::from_secs(5), "a client may pause");
    assert!(began.elapsed() < Duration::from_secs(25), "not because it was idle: {:?}", began.elapsed());
    drop(stream);
}

/// File descriptors of the gate.
fn open_files(gate: &Gate) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", gate.id())).unwrap().count()
}

#[test]
fn one_address_has_half_of_the_event_streams() {
    let gate = Gate::start("");
    let mut readers: Vec<_> = (0..32).map(|_| watch_events(&gate, FIRST)).collect();
    assert!(readers.iter().all(|(_, status)| *status == Some(200)));
    assert_eq!(watch_events(&gate, FIRST).1, Some(503));
    assert_eq!(get(&gate, FIRST, "/api/v1/status"), Some(200), "everything else is answered");
    let others: Vec<_> = (0..32).map(|_| watch_events(&gate, SECOND)).collect();
    assert!(others.iter().all(|(_, status)| *status == Some(200)));
    assert_eq!(watch_events(&gate, OPERATOR).1, Some(503), "there are no more");
    readers.pop();
    eventually("a closed stream makes room", || watch_events(&gate, OPERATOR).1 == Some(200));
}

#[test]
fn idle_connections_make_room_for_new_ones() {
    let gate = Gate::start("");
    let mut first = connect(&gate, FIRST);
    let ask = |stream: &mut TcpStream| write!(stream, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
    ask(&mut first).unwrap();
    assert_eq!(status(&mut first), Some(200));
    let later: Vec<_> = (0..128)
        .map(|_| {
            let mut stream = connect(&gate, FIRST);
            ask(&mut stream).unwrap();
            assert_eq!(status(&mut stream), Some(200));
            stream
        })
        .collect();
    // An idle connection is closed after 30 seconds; this one is replaced earlier. A reset counts as a close.
    let began = Instant::now();
    let _ = first.read_to_end(&mut Vec::new());
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    drop(later);
}
