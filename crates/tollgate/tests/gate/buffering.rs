//! Clients that read more slowly than the backend sends.

use std::io::{BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::backend::read_request;
use crate::support::client::{connect_from, socket_from};
use crate::support::http2::{connect, read_body, request, run, send};
use crate::support::{Gate, PATIENCE, eventually, read_response, roundtrip};
use crate::tls::{certificate, shake_hands, write};

const BIG: usize = 30_000_000;

/// Bytes without repetition, so that a misplaced part is noticed.
pub(crate) fn pattern() -> &'static [u8] {
    static PATTERN: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut state = 1u32;
        let next = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..BIG).map(next).collect()
    })
}

fn answer(path: &str, stream: &mut TcpStream) -> std::io::Result<()> {
    match path {
        "/big" => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BIG}\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes())?;
            stream.write_all(pattern())
        }
        "/chunked" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n")?;
            for chunk in pattern().chunks(10_007) {
                stream.write_all(format!("{:x}\r\n", chunk.len()).as_bytes())?;
                stream.write_all(chunk)?;
                stream.write_all(b"\r\n")?;
            }
            stream.write_all(b"0\r\nX-Sum: 7\r\n\r\n")
        }
        "/events" | "/unbuffered" => {
            let field = if path == "/events" { "Content-Type: text/event-stream" } else { "X-Accel-Buffering: no" };
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {BIG}\r\n{field}\r\nConnection: close\r\n\r\n");
            stream.write_all(head.as_bytes())?;
            stream.write_all(pattern())
        }
        _ => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"),
    }
}

/// A backend with two workers: each serves one connection after the other.
pub(crate) fn two_workers() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for _ in 0..2 {
        let listener = listener.try_clone().unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let request = read_request(&mut BufReader::new(stream.try_clone().unwrap()));
                let _ = request.map(|request| answer(request.path(), &mut stream));
            }
        });
    }
    address
}

pub(crate) fn gate(backend: SocketAddr, lines: &str) -> Gate {
    Gate::start(&format!("[gate]\nworkers = 1\nin_flight = 2\nbackend = \"http://{backend}\"\n{lines}\n"))
}

/// A client that has sent a request for this path and does not read.
pub(crate) fn not_reading(gate: &Gate, client: u8, path: &str) -> TcpStream {
    let from = IpAddr::from([127, 5, 5, client]);
    let mut stream = socket_from(from, gate.address, |socket| socket.set_recv_buffer_size(4096));
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
    stream
}

/// Asserts that other clients are served while the slow ones do not read.
pub(crate) fn assert_others_are_served(gate: &Gate) {
    for _ in 0..20 {
        let started = Instant::now();
        let stream = connect_from([127, 6, 6, 6].into(), gate.address);
        let response = roundtrip(stream, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(response.text(), "ok");
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    }
}

pub(crate) fn buffered(gate: &Gate) -> (u64, u64) {
    (gate.metric("tollgate_buffered_memory_bytes"), gate.metric("tollgate_buffered_spool_bytes"))
}

#[test]
fn clients_that_do_not_read_occupy_no_worker_of_the_backend() {
    for path in ["/big", "/chunked"] {
        let gate = gate(two_workers(), "");
        let slow = [1, 2].map(|client| not_reading(&gate, client, path));
        eventually("both are at the backend", || gate.metric("tollgate_requests_total") == 2);
        assert_others_are_served(&gate);
        eventually("the backend is done", || gate.metric("tollgate_backend_in_flight") == 0);
        assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
        let (memory, spool) = buffered(&gate);
        assert!(memory > 0 && spool > 40_000_000, "{memory} and {spool} bytes");
        // The clients read now, and get every byte.
        for stream in slow {
            let response = read_response(&mut BufReader::new(stream)).unwrap();
            assert!(response.body == pattern(), "{path}: {} bytes arrived", response.body.len());
            let trailers = if path == "/chunked" { vec![("x-sum".to_owned(), "7".to_owned())] } else { Vec::new() };
            assert_eq!(response.trailers, trailers);
        }
        eventually("nothing is left", || buffered(&gate) == (0, 0));
    }
}

/// A connection whose window is larger than that of one stream, so that an unread stream does not block others.
async fn connect_windowed(gate: &Gate, stream_window: u32) -> h2::client::SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(gate.address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(stream_window).initial_connection_window_size(1 << 20);
    let (sender, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(connection);
    sender
}

#[test]
fn streams_whose_client_does_not_read_occupy_no_worker_of_the_backend() {
    let gate = gate(two_workers(), "h2c = true");
    run(async {
        let client = connect_windowed(&gate, 65_535).await;
        let mut streams = Vec::new();
        for path in ["/big", "/chunked"] {
            let mut ready = client.clone().ready().await.unwrap();
            let (response, _) = ready.send_request(request("GET", path).body(()).unwrap(), true).unwrap();
            streams.push(response.await.unwrap().into_body());
        }
        // The window of the connection is used up, so another connection is used.
        let mut second = connect(gate.address).await;
        for _ in 0..10 {
            let answer = send(&mut second, request("GET", "/").body(()).unwrap(), b"");
            let answer = tokio::time::timeout(Duration::from_secs(5), answer).await.expect("in time").unwrap();
            assert_eq!(answer.body, b"ok");
        }
        for (number, stream) in streams.iter_mut().enumerate() {
            let (body, trailers) = read_body(stream).await.unwrap();
            assert!(body == pattern(), "{} bytes of {number} arrived", body.len());
            assert_eq!(trailers.is_some(), number == 1);
        }
        drop(client);
    });
    eventually("nothing is left", || buffered(&gate) == (0, 0));
}

#[test]
fn a_slow_reader_over_http_2_gets_every_byte_through_the_spool() {
    let gate = gate(two_workers(), "h2c = true\nbuffer = { memory = \"256KiB\" }");
    run(async {
        let sender = connect_windowed(&gate, 200_000).await;
        let mut ready = sender.ready().await.unwrap();
        let (response, _stream) = ready.send_request(request("GET", "/big").body(()).unwrap(), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let mut received = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            if received.len() < 2_000_000 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            received.extend_from_slice(&data);
            let _ = body.flow_control().release_capacity(data.len());
        }
        assert!(received == pattern(), "{} bytes arrived", received.len());
    });
    eventually("nothing is left", || buffered(&gate) == (0, 0));
}

#[test]
fn a_full_spool_blocks_the_backend_and_loses_nothing() {
    let gate = gate(two_workers(), "buffer = { memory = \"1MiB\", spool = \"2MiB\" }");
    let stream = not_reading(&gate, 1, "/big");
    eventually("the spool is full", || buffered(&gate).1 > 1 << 20);
    std::thread::sleep(Duration::from_millis(300));
    let (memory, spool) = buffered(&gate);
    assert!(memory <= 1 << 20 && spool <= 2 << 20, "{memory} and {spool} bytes");
    assert_eq!(gate.metric("tollgate_backend_in_flight"), 1, "the backend has more to send");
    assert_others_are_served(&gate);
    let response = read_response(&mut BufReader::new(stream)).unwrap();
    assert!(response.body == pattern(), "{} bytes arrived", response.body.len());
    eventually("nothing is left", || buffered(&gate) == (0, 0));
}

/// The block ends long before `timeouts.write`, which is 30 s.
#[test]
fn with_a_full_spool_clients_that_do_not_read_block_the_backend_for_a_few_seconds() {
    let gate = gate(two_workers(), "buffer = { memory = \"1MiB\", spool = \"2MiB\" }\nhold = { max = \"20s\" }");
    let slow = [1, 2].map(|client| not_reading(&gate, client, "/big"));
    eventually("both are at the backend", || gate.metric("tollgate_backend_in_flight") == 2);
    let began = Instant::now();
    eventually("both are cut off", || gate.metric("tollgate_connections") == 0);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_others_are_served(&gate);
    drop(slow);
}

#[test]
fn a_client_that_does_not_read_is_disconnected_with_a_full_and_with_an_empty_spool() {
    for spool in ["1MiB", "1GiB"] {
        let lines = format!("timeouts = {{ write = \"500ms\" }}\nbuffer = {{ spool = \"{spool}\" }}");
        let gate = gate(two_workers(), &lines);
        let stream = not_reading(&gate, 1, "/big");
        eventually("the request has come", || gate.metric("tollgate_requests_total") == 1);
        eventually("the connection is closed", || gate.metric("tollgate_connections") == 0);
        eventually("nothing is left", || buffered(&gate) == (0, 0));
        eventually("the backend is free", || gate.metric("tollgate_backend_in_flight") == 0);
        drop(stream);
    }
}

#[test]
fn without_a_spool_directory_memory_is_used_and_one_line_is_logged() {
    let gate = gate(two_workers(), "buffer = { memory = \"4MiB\", dir = \"/nonexistent/spool\" }");
    gate.logged("responses cannot be spooled");
    let streams = [1, 2].map(|client| not_reading(&gate, client, "/big"));
    eventually("memory is used", || buffered(&gate).0 >= 1 << 20);
    for stream in streams {
        let response = read_response(&mut BufReader::new(stream)).unwrap();
        assert!(response.body == pattern(), "{} bytes arrived", response.body.len());
    }
    let lines = gate.end();
    assert_eq!(lines.iter().filter(|line| line.contains("responses cannot be spooled")).count(), 1);
}

#[test]
fn one_address_fills_only_its_part_of_the_spool() {
    let gate = gate(two_workers(), "buffer = { per_address = \"3MiB\" }");
    let _greedy = not_reading(&gate, 1, "/big");
    eventually("its part is full", || {
        let (memory, spool) = buffered(&gate);
        memory + spool >= 3 << 20
    });
    std::thread::sleep(Duration::from_millis(300));
    let (memory, spool) = buffered(&gate);
    assert!(memory + spool <= (3 << 20) + (64 << 10), "{memory} and {spool} bytes");
    let other = not_reading(&gate, 2, "/");
    assert_eq!(read_response(&mut BufReader::new(other)).unwrap().text(), "ok");
    let _other = not_reading(&gate, 3, "/big");
    eventually("another address has its own part", || {
        let (memory, spool) = buffered(&gate);
        memory + spool >= 6 << 20
    });
}

#[test]
fn streaming_responses_are_not_buffered() {
    for path in ["/events", "/unbuffered"] {
        let gate = gate(two_workers(), "");
        let stream = not_reading(&gate, 1, path);
        eventually("the request has come", || gate.metric("tollgate_requests_total") == 1);
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(buffered(&gate), (0, 0), "{path}");
        assert_eq!(gate.metric("tollgate_backend_in_flight"), 1, "{path}");
        let response = read_response(&mut BufReader::new(stream)).unwrap();
        assert!(response.body == pattern(), "{path}: {} bytes arrived", response.body.len());
    }
}

#[test]
fn the_buffer_of_a_disconnected_client_is_released() {
    let gate = gate(two_workers(), "");
    let stream = not_reading(&gate, 1, "/big");
    eventually("the backend is done", || buffered(&gate).1 > 10_000_000);
    drop(stream);
    eventually("nothing is left", || buffered(&gate) == (0, 0));
    assert_others_are_served(&gate);
}

#[test]
fn a_slow_reader_over_tls_gets_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let site = certificate(&["site"]);
    write(folder.path(), "site", &site);
    let tls = format!("tls = [{{ cert = \"{0}/site.pem\", key = \"{0}/site.key\" }}]", folder.path().display());
    let gate = gate(two_workers(), &tls);
    run(async {
        for path in ["/big", "/chunked"] {
            let stream = tokio::net::TcpStream::connect(gate.address).await.unwrap();
            let mut stream = shake_hands(stream, site.cert.der(), "site", &["http/1.1"]).await.unwrap();
            let get = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            stream.write_all(get.as_bytes()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(500)).await;
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.unwrap();
            if path == "/big" {
                assert!(received.ends_with(pattern()), "{} bytes arrived", received.len());
            } else {
                let response = read_response(&mut &received[..]).unwrap();
                assert!(response.body == pattern(), "{} bytes arrived", response.body.len());
            }
        }
    });
    eventually("nothing is left", || buffered(&gate) == (0, 0));
}
