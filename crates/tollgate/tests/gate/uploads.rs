//! Slow and stalled uploads: their charges, and their effect on others.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response as Answer;

use crate::support::backend::{read_head, read_request, respond};
use crate::support::client::connect_from;
use crate::support::http2::{connect, read_answer, read_body, request, run_local, send_body};
use crate::support::{Backend, Gate, eventually, read_response, roundtrip};

/// The address of stalled uploads, and another address.
const WITHHOLDING: [u8; 4] = [127, 12, 1, 1];
const OTHER: [u8; 4] = [127, 77, 1, 1];

/// With one core, only a few requests get a permit at once.
fn gate(backend: impl std::fmt::Display, rest: &str) -> Gate {
    Gate::start(&format!("[gate]\nworkers = 1\ncores = 1\nh2c = true\nbackend = \"{backend}\"\n{rest}"))
}

/// CPU time charged so far.
fn charged_ms(gate: &Gate) -> f64 {
    let text = gate.admin("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix("tollgate_toll_seconds_total ")).unwrap();
    line.parse::<f64>().unwrap() * 1e3
}

fn others_are_served(gate: SocketAddr, while_there_are: &str) {
    for number in 0..20 {
        let stream = connect_from(OTHER.into(), gate);
        let response = roundtrip(stream, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(response.status, 200, "request {number} of another address, while there are {while_there_are}");
    }
}

/// Sends this head and body from one address on 64 connections, and stalls.
fn withhold(gate: &Gate, head: &str, body: &[u8]) -> Vec<TcpStream> {
    let before = gate.metric("tollgate_requests_total");
    let withheld: Vec<_> = (0..64)
        .map(|number| {
            let mut stream = connect_from(WITHHOLDING.into(), gate.address);
            stream
                .write_all(format!("POST /made-up/{number} HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n").as_bytes())
                .unwrap();
            // This write may fail if the request is already refused.
            let _ = stream.write_all(body);
            stream
        })
        .collect();
    eventually("all have come", || gate.metric("tollgate_requests_total") >= before + 64);
    withheld
}

#[test]
fn fault_12_stalled_uploads_do_not_delay_others() {
    let backend = Backend::saying("ok");
    let gate = gate(backend.url(), "");
    for (what, head, body) in [
        ("small bodies", "Content-Length: 1", &b""[..]),
        ("large bodies", "Content-Length: 1000000", &[b'x'; 100]),
        ("large bodies of which much has come", "Content-Length: 1000000", &[b'x'; 100_000]),
        ("bodies that do not say how long they are", "Transfer-Encoding: chunked", b"1\r\nx\r\n"),
        ("bodies that are asked for", "Content-Length: 1\r\nExpect: 100-continue", b""),
    ] {
        let withheld = withhold(&gate, head, body);
        others_are_served(gate.address, what);
        drop(withheld);
        eventually("nothing is left of them", || gate.metric("tollgate_requests_at_backend") == 0);
    }
}

#[test]
fn fault_12_a_small_stalled_upload_does_not_reach_the_backend() {
    let backend = Backend::saying("ok");
    let gate = gate(backend.url(), "");
    let mut withheld = withhold(&gate, "Content-Length: 1", b"");
    others_are_served(gate.address, "small bodies");
    assert_eq!((backend.count(), backend.connections() <= 20), (20, true));
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
    // When the body arrives, the request is forwarded.
    let mut late = withheld.pop().unwrap();
    late.write_all(b"!").unwrap();
    assert_eq!(read_response(&mut BufReader::new(late)).unwrap().status, 200);
    assert_eq!(backend.requests().last().unwrap().body, b"!");
}

/// The gate responds itself and discards the rest of the body, without a permit.
#[test]
fn an_upload_refused_without_a_backend_holds_no_permit() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let rule = "[[rule]]\nname = 'at once'\nclass = 'ip/32'\nin_flight = 1\n";
    let gate = gate(format!("http://{closed}"), rule);
    let told: Vec<_> = (0..10)
        .map(|number| {
            let mut stream = connect_from(WITHHOLDING.into(), gate.address);
            stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n").unwrap();
            let response = read_response(&mut BufReader::new(stream.try_clone().unwrap())).unwrap();
            assert!(matches!(response.status, 502 | 503), "{number}: {response:?}");
            stream
        })
        .collect();
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
    drop(told);
}

/// Sets the flag when dropped, also when a test fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn fault_12_trickling_uploads_do_not_delay_others() {
    let backend = Backend::saying("ok");
    let gate = gate(backend.url(), "bounds = { body_per_second = \"1B\" }\n");
    let withheld = withhold(&gate, "Content-Length: 1000000", b"x");
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Writes to waiting or refused uploads may fail.
                withheld.iter().for_each(|mut stream| drop(stream.write(b"x")));
                sent.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let _stops = Stops(&stop);
        for round in 1..6 {
            eventually("bytes trickle", || sent.load(Ordering::Relaxed) >= round * 20);
            others_are_served(gate.address, "bytes that trickle");
        }
    });
}

#[test]
fn fault_12_stalled_uploads_over_http_2_do_not_delay_others() {
    let backend = Backend::saying("ok");
    for (what, length, body) in
        [("small", Some("1"), 0), ("large", Some("1000000"), 50_000), ("endless", None, 100), ("endless", None, 50_000)]
    {
        let gate = gate(backend.url(), "");
        let address = gate.address;
        run_local(async move {
            let mut withheld = Vec::new();
            for connection in 0..4 {
                let sender = connect(address).await;
                for number in 0..16 {
                    let mut head = request("POST", &format!("/made-up/{connection}/{number}"));
                    if let Some(length) = length {
                        head = head.header("content-length", length);
                    }
                    let mut ready = sender.clone().ready().await.unwrap();
                    let (response, mut stream) = ready.send_request(head.body(()).unwrap(), false).unwrap();
                    stream.send_data(Bytes::from(vec![b'x'; body]), false).unwrap();
                    withheld.push((response, stream));
                }
            }
            tokio::task::spawn_blocking(move || {
                eventually("all have come", || gate.metric("tollgate_requests_total") >= 64);
                others_are_served(gate.address, what);
            })
            .await
            .unwrap();
            drop(withheld);
        });
    }
}

/// At the bound, one more upload of an address waits for another of them; other requests of the address do not wait.
#[test]
fn the_uploads_of_one_address_are_bounded_and_the_next_waits() {
    let backend = Backend::saying("ok");
    let gate = gate(backend.url(), "hold = { max = \"20s\", total = 400 }\n");
    let begin = || {
        let mut stream = connect_from(WITHHOLDING.into(), gate.address);
        stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n").unwrap();
        stream
    };
    // A quarter of the remainder of 512.
    let mut uploads: Vec<TcpStream> = (0..102).map(|_| begin()).collect();
    eventually("all are at the backend", || backend.connections() == 102);
    let mut waits = begin();
    waits.write_all(&[b'x'; 100_000]).unwrap();
    let stream = connect_from(WITHHOLDING.into(), gate.address);
    assert_eq!(roundtrip(stream, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").status, 200);
    assert_eq!(backend.count(), 1, "the GET only, no upload");
    let mut first = uploads.pop().unwrap();
    first.write_all(&[b'x'; 100_000]).unwrap();
    for stream in [first, waits] {
        assert_eq!(read_response(&mut BufReader::new(stream)).unwrap().status, 200);
    }
}

/// Sends a body of 200,000 bytes in twenty pieces with pauses. Returns the time that it took.
fn send_slowly(stream: &mut TcpStream, chunked: bool) -> Duration {
    let started = Instant::now();
    for number in 0..20u8 {
        let piece = vec![b'a' + number; 10_000];
        if chunked {
            stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes()).unwrap();
        }
        stream.write_all(&piece).unwrap();
        if chunked {
            stream.write_all(b"\r\n").unwrap();
        }
        std::thread::sleep(Duration::from_millis(60));
    }
    if chunked {
        stream.write_all(b"0\r\n\r\n").unwrap();
    }
    started.elapsed()
}

fn is_whole(body: &[u8]) -> bool {
    body.len() == 200_000 && body.iter().enumerate().all(|(at, byte)| *byte == b'a' + (at / 10_000) as u8)
}

#[test]
fn a_slow_upload_arrives_complete_and_is_charged_the_time_of_the_backend() {
    let worked_us = Arc::new(AtomicU64::new(0));
    let counted = worked_us.clone();
    let backend = Backend::answering(move |request, stream| {
        let started = Instant::now();
        std::thread::sleep(Duration::from_millis(100));
        counted.fetch_add(started.elapsed().as_micros() as u64, Ordering::Relaxed);
        respond(stream, if is_whole(&request.body) { "whole" } else { "not whole" })
    });
    let gate = gate(backend.url(), "");
    for (chunked, head) in [(false, "Content-Length: 200000"), (true, "Transfer-Encoding: chunked")] {
        let before_ms = charged_ms(&gate);
        worked_us.store(0, Ordering::Relaxed);
        let mut stream = gate.connect();
        stream.write_all(format!("POST /slow HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n").as_bytes()).unwrap();
        let took = send_slowly(&mut stream, chunked);
        assert_eq!(read_response(&mut BufReader::new(stream)).unwrap().text(), "whole");
        eventually("it is settled", || gate.metric("tollgate_requests_at_backend") == 0);
        let (charged_ms, worked_ms) = (charged_ms(&gate) - before_ms, worked_us.load(Ordering::Relaxed) as f64 / 1e3);
        assert!(charged_ms > worked_ms * 0.8, "{charged_ms} ms of {worked_ms}, {head}");
        assert!(charged_ms < worked_ms + took.as_secs_f64() * 1e3 / 2.0, "{charged_ms} ms of {worked_ms}, {head}");
    }
}

#[test]
fn a_slow_upload_over_http_2_arrives_complete() {
    let backend = Backend::answering(|request, stream| {
        respond(stream, if is_whole(&request.body) { "whole" } else { "not whole" })
    });
    let gate = gate(backend.url(), "");
    run_local(async {
        for length in [None, Some("200000")] {
            let mut head = request("POST", "/slow");
            if let Some(length) = length {
                head = head.header("content-length", length);
            }
            let mut sender = connect(gate.address).await.ready().await.unwrap();
            let (response, mut stream) = sender.send_request(head.body(()).unwrap(), false).unwrap();
            for number in 0..20u8 {
                stream.send_data(vec![b'a' + number; 10_000].into(), number == 19).unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let answer = read_answer(response.await.unwrap()).await.unwrap();
            assert_eq!(answer.body, b"whole", "{length:?}");
        }
        // A small complete request with trailers.
        let mut sender = connect(gate.address).await.ready().await.unwrap();
        let (response, mut stream) = sender.send_request(request("POST", "/small").body(()).unwrap(), false).unwrap();
        let trailers = [("x-sum".parse().unwrap(), "9".parse().unwrap())].into_iter().collect();
        send_body(&mut stream, b"hello", Some(trailers)).await.unwrap();
        assert_eq!(read_answer(response.await.unwrap()).await.unwrap().body, b"not whole");
    });
    let last = backend.requests().pop().unwrap();
    assert_eq!((&last.body[..], last.trailers.trim()), (&b"hello"[..], "x-sum: 9"));
}

/// A body with `content-length` is complete after that many bytes, even without END_STREAM.
#[test]
fn a_body_over_http_2_ends_at_its_content_length() {
    let backend = Backend::saying("ok");
    let gate = gate(backend.url(), "");
    let address = gate.address;
    run_local(async move {
        for length in [5, 50_000] {
            let head = request("POST", "/").header("content-length", length).body(()).unwrap();
            let mut sender = connect(address).await.ready().await.unwrap();
            let (response, mut stream) = sender.send_request(head, false).unwrap();
            stream.send_data(Bytes::from(vec![b'x'; length]), false).unwrap();
            assert_eq!(read_answer(response.await.unwrap()).await.unwrap().body, b"ok");
        }
    });
    assert_eq!(backend.requests().iter().map(|request| request.body.len()).collect::<Vec<_>>(), [5, 50_000]);
}

/// The client waits for a part of the response before it sends the next part of the request.
#[test]
fn a_bidirectional_exchange_works_before_the_request_is_complete() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        read_head(&mut reader).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        for _ in 0..3 {
            let mut chunk = [0; 6];
            reader.read_exact(&mut chunk).unwrap();
            stream.write_all(&chunk).unwrap();
        }
        stream.write_all(b"0\r\n\r\n").unwrap();
    });
    let gate = gate(backend.url(), "");
    let mut stream = gate.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    for word in [b"a", b"b", b"c"] {
        stream.write_all(&[b"1\r\n", &word[..], b"\r\n"].concat()).unwrap();
        let (mut heard, mut byte) = (Vec::new(), [0]);
        while !heard.ends_with(&[b"1\r\n", &word[..], b"\r\n"].concat()) {
            stream.read_exact(&mut byte).unwrap();
            heard.push(byte[0]);
        }
    }
}

/// Few backends read the body of a GET. A client that announces one and does not send it is charged the real cost, not
/// the typical one.
#[test]
fn a_stalled_body_that_the_backend_ignores_does_not_reduce_the_charge() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if read_head(&mut reader).is_some() {
            std::thread::sleep(Duration::from_millis(400));
            let _ = respond(&mut stream, "found");
        }
    });
    let gate = gate(backend.url(), "");
    let mut stream = gate.connect();
    stream.write_all(b"GET /search?q=expensive HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n").unwrap();
    assert_eq!(read_response(&mut BufReader::new(&stream)).unwrap().body, b"found");
    eventually("it is charged", || charged_ms(&gate) >= 300.0);
}

/// A backend that starts to work when it has the head, works until `stop` is set, and then reads on.
fn eager(stop: &Arc<AtomicBool>) -> Backend {
    let stop = stop.clone();
    Backend::connecting(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while read_head(&mut reader).is_some() {
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = respond(&mut stream, "done");
        }
    })
}

#[test]
fn fault_16_a_client_that_aborts_its_upload_is_charged_until_the_backend_finishes() {
    for paused in [false, true] {
        let stop = Arc::new(AtomicBool::new(false));
        let backend = eager(&stop);
        let gate = gate(backend.url(), "");
        let mut stream = gate.connect();
        stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nsome").unwrap();
        eventually("it is at the backend", || backend.connections() == 1);
        if paused {
            eventually("it is waited for", || gate.metric("tollgate_requests_at_backend") == 0);
        }
        drop(stream);
        eventually("it has left", || gate.metric("tollgate_connections") <= 1);
        eventually("it is work again", || gate.metric("tollgate_requests_at_backend") == 1);
        let left = Instant::now();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(gate.metric("tollgate_requests_at_backend"), 1, "the backend is still working");
        let worked_ms = left.elapsed().as_secs_f64() * 1e3;
        stop.store(true, Ordering::Relaxed);
        eventually("the backend is done", || gate.metric("tollgate_requests_at_backend") == 0);
        let charged = charged_ms(&gate);
        assert!(charged > worked_ms * 0.8, "{charged} ms of {worked_ms}");
        assert_eq!(gate.metric("tollgate_requests_left_total"), 1);
    }
}

/// The buffer is full before the end of the response, so the gate stops reading until the client has disconnected.
#[test]
fn a_client_that_reads_nothing_and_disconnects_is_charged_until_the_backend_finishes() {
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let backend = Backend::answering(move |_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 30000001\r\n\r\n")?;
        stream.write_all(&vec![b'x'; 30_000_000])?;
        while !told.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stream.write_all(b"x")
    });
    let buffer = "buffer = { memory = \"1MiB\", spool = \"1MiB\" }\n";
    let gate = gate(backend.url(), &format!("bounds = {{ unheard = \"64MiB\" }}\n{buffer}"));
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("it is at the backend", || backend.count() == 1);
    eventually("the buffer is full", || gate.metric("tollgate_buffered_spool_bytes") == 1 << 20);
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 1, "the permit is held");
    drop(stream);
    eventually("the client has gone", || gate.metric("tollgate_buffered_spool_bytes") == 0);
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 1, "the backend is still working");
    stop.store(true, Ordering::Relaxed);
    eventually("the backend is done", || gate.metric("tollgate_requests_at_backend") == 0);
}

/// After a reset, the gate cannot observe the work of an HTTP/2 backend, so it charges the typical cost of such
/// requests.
#[test]
fn fault_16_a_client_that_resets_an_incomplete_request_is_charged_the_typical_cost() {
    run_local(async {
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = seen.clone();
        let backend = crate::support::http2::backend(move |mut request, mut respond| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move {
                if read_body(request.body_mut()).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    let _ = respond.send_response(Answer::new(()), true);
                }
            }
        })
        .await;
        let gate = gate(format!("h2c://{backend}"), "");
        tokio::task::spawn_blocking(move || {
            for _ in 0..10 {
                let whole = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";
                assert_eq!(roundtrip(gate.connect(), whole).status, 200);
            }
            eventually("all is settled", || gate.metric("tollgate_requests_at_backend") == 0);
            let before = charged_ms(&gate);
            for number in 1..6 {
                let mut stream = gate.connect();
                stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nsome").unwrap();
                eventually("it is at the backend", || seen.load(Ordering::Relaxed) == 10 + number);
                drop(stream);
                eventually("it has left", || gate.metric("tollgate_requests_left_total") == number as u64);
            }
            let charged = charged_ms(&gate) - before;
            assert!(charged > 5.0 * 200.0 * 0.7, "{charged} ms for five requests of 200");
        })
        .await
        .unwrap();
    });
}

/// Bytes that were read ahead are not read twice, and the bytes after the body are the next request.
#[test]
fn pipelined_requests_after_a_body_are_separated_from_it() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = read_request(&mut reader) {
            let said = format!("{} {}", request.path(), request.body.len());
            let _ = respond(&mut stream, &said);
        }
    });
    let gate = gate(backend.url(), "");
    let mut bytes = Vec::new();
    for length in [1, 16 * 1024, 16 * 1024 + 1, 70_000] {
        bytes.extend(format!("POST /fixed HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").as_bytes());
        bytes.extend(vec![b'x'; length]);
        bytes.extend(b"POST /chunked HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        bytes.extend(format!("1\r\nx\r\n{:x}\r\n", length).as_bytes());
        bytes.extend(vec![b'x'; length]);
        bytes.extend(b"\r\n0\r\n\r\n");
    }
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let writes = std::thread::spawn(move || stream.write_all(&bytes));
    for length in [1, 16 * 1024, 16 * 1024 + 1, 70_000] {
        assert_eq!(read_response(&mut reader).unwrap().text(), format!("/fixed {length}"));
        assert_eq!(read_response(&mut reader).unwrap().text(), format!("/chunked {}", length + 1));
    }
    writes.join().unwrap().unwrap();
}
