//! Requests whose bodies come slowly, late or never: what that costs, and whom.

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

/// Whose bodies do not come, and who has nothing to do with that.
const WITHHOLDING: [u8; 4] = [127, 12, 1, 1];
const OTHER: [u8; 4] = [127, 77, 1, 1];

/// One core: no more than a handful of requests have a place at the backend at once.
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

/// Sends this from one address on 64 connections, and no more.
fn withhold(gate: &Gate, head: &str, body: &[u8]) -> Vec<TcpStream> {
    let before = gate.metric("tollgate_requests_total");
    let withheld: Vec<_> = (0..64)
        .map(|number| {
            let mut stream = connect_from(WITHHOLDING.into(), gate.address);
            stream
                .write_all(format!("POST /made-up/{number} HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n").as_bytes())
                .unwrap();
            // Who has been refused by now may not be able to send it.
            let _ = stream.write_all(body);
            stream
        })
        .collect();
    eventually("all have come", || gate.metric("tollgate_requests_total") >= before + 64);
    withheld
}

#[test]
fn fault_12_bodies_that_do_not_come_keep_nobody_else_waiting() {
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
fn fault_12_a_small_body_that_does_not_come_is_nothing_that_the_backend_hears_of() {
    let backend = Backend::saying("ok");
    let gate = gate(backend.url(), "");
    let mut withheld = withhold(&gate, "Content-Length: 1", b"");
    others_are_served(gate.address, "small bodies");
    assert_eq!((backend.count(), backend.connections() <= 20), (20, true));
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
    // When it comes, it is a request like any other.
    let mut late = withheld.pop().unwrap();
    late.write_all(b"!").unwrap();
    assert_eq!(read_response(&mut BufReader::new(late)).unwrap().status, 200);
    assert_eq!(backend.requests().last().unwrap().body, b"!");
}

/// The gate answers itself, and then reads what is left of the body. That is between it and the client, and nothing at the backend.
#[test]
fn who_is_told_that_there_is_no_backend_keeps_no_place_while_it_sends() {
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

/// Stops somebody when it is dropped, also by a test that fails.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn fault_12_bytes_that_trickle_keep_nobody_else_waiting() {
    let backend = Backend::saying("ok");
    let gate = gate(backend.url(), "bounds = { body_per_second = \"1B\" }\n");
    let withheld = withhold(&gate, "Content-Length: 1000000", b"x");
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Those that wait for their turn, or were refused it, do not take it.
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
fn fault_12_bodies_that_do_not_come_over_http_2_keep_nobody_else_waiting() {
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

/// So many uploads of one address are at the backend, one more waits for one of them, and other requests of that address wait for none.
#[test]
fn one_address_has_only_so_many_uploads_and_the_next_waits_for_one_of_its_own() {
    let backend = Backend::saying("ok");
    let gate = gate(backend.url(), "hold = { max = \"20s\", total = 400 }\n");
    let begin = || {
        let mut stream = connect_from(WITHHOLDING.into(), gate.address);
        stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n").unwrap();
        stream
    };
    // A quarter of what is left of 512.
    let mut uploads: Vec<TcpStream> = (0..102).map(|_| begin()).collect();
    eventually("all are at the backend", || backend.connections() == 102);
    let mut waits = begin();
    waits.write_all(&[b'x'; 100_000]).unwrap();
    let stream = connect_from(WITHHOLDING.into(), gate.address);
    assert_eq!(roundtrip(stream, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").status, 200);
    assert_eq!(backend.count(), 1, "that one, and no upload");
    let mut first = uploads.pop().unwrap();
    first.write_all(&[b'x'; 100_000]).unwrap();
    for stream in [first, waits] {
        assert_eq!(read_response(&mut BufReader::new(stream)).unwrap().status, 200);
    }
}

/// Sends a body of 200,000 bytes in twenty pieces, and takes its time. How long that was.
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
fn a_slow_upload_arrives_whole_and_is_charged_what_the_backend_worked() {
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
fn a_slow_upload_over_http_2_arrives_whole() {
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
        // A small one with trailers, whole at once.
        let mut sender = connect(gate.address).await.ready().await.unwrap();
        let (response, mut stream) = sender.send_request(request("POST", "/small").body(()).unwrap(), false).unwrap();
        let trailers = [("x-sum".parse().unwrap(), "9".parse().unwrap())].into_iter().collect();
        send_body(&mut stream, b"hello", Some(trailers)).await.unwrap();
        assert_eq!(read_answer(response.await.unwrap()).await.unwrap().body, b"not whole");
    });
    let last = backend.requests().pop().unwrap();
    assert_eq!((&last.body[..], last.trailers.trim()), (&b"hello"[..], "x-sum: 9"));
}

/// What says how long it is is whole when that has come, whether or not the end of the stream has been said.
#[test]
fn a_body_over_http_2_that_is_as_long_as_it_says_has_ended() {
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

/// Who waits for a part of the answer before it goes on is not waited for.
#[test]
fn a_talk_in_both_directions_goes_on_before_its_request_is_whole() {
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

/// Few backends look at the body of a GET. Who announces one and does not send it does not get for the price of a usual request what takes long.
#[test]
fn who_withholds_a_body_that_nobody_needs_pays_for_the_work() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if read_head(&mut reader).is_some() {
            std::thread::sleep(Duration::from_millis(400));
            let _ = respond(&mut stream, "found");
        }
    });
    let gate = gate(backend.url(), "");
    let mut stream = gate.connect();
    stream.write_all(b"GET /search?q=dear HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n").unwrap();
    assert_eq!(read_response(&mut BufReader::new(&stream)).unwrap().body, b"found");
    eventually("it is charged", || charged_ms(&gate) >= 300.0);
}

/// A backend that begins to work as soon as it has a head, works until it is told to stop, and then reads on.
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
fn fault_16_who_leaves_before_its_request_is_whole_pays_until_the_backend_is_done() {
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
        assert_eq!(gate.metric("tollgate_requests_at_backend"), 1, "the backend is still at it");
        let worked_ms = left.elapsed().as_secs_f64() * 1e3;
        stop.store(true, Ordering::Relaxed);
        eventually("the backend is done", || gate.metric("tollgate_requests_at_backend") == 0);
        let charged = charged_ms(&gate);
        assert!(charged > worked_ms * 0.8, "{charged} ms of {worked_ms}");
        assert_eq!(gate.metric("tollgate_requests_left_total"), 1);
    }
}

/// The buffer is full before all of the response has come, so the gate stops reading until the client has gone.
#[test]
fn a_client_that_reads_nothing_and_leaves_pays_until_the_backend_is_done() {
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
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 1, "the permit is kept");
    drop(stream);
    eventually("the client has gone", || gate.metric("tollgate_buffered_spool_bytes") == 0);
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 1, "the backend is not done");
    stop.store(true, Ordering::Relaxed);
    eventually("the backend is done", || gate.metric("tollgate_requests_at_backend") == 0);
}

/// What a backend over HTTP/2 does after a reset cannot be heard, so what requests like it cost is charged.
#[test]
fn fault_16_who_resets_a_request_that_is_not_whole_pays_what_requests_like_it_cost() {
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

/// What was read ahead is not read again, and what follows it is the next request.
#[test]
fn requests_that_follow_a_body_in_one_go_are_told_apart_from_it() {
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
