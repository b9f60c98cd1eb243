//! Backends that crash, hang, send invalid responses, and recover.

use std::io::{BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::backend::{read_head, read_request, respond};
use crate::support::client::{connect_from, is_closed};
use crate::support::{Backend, Gate, closed, eventually, read_response, roundtrip};

#[test]
fn fault_11_ambiguous_responses_are_502_and_their_connection_is_not_reused() {
    for answer in [
        &b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc"[..],
        b"HTTP/1.1 200 OK\r\nContent-Length : 2\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: b\r\n folded: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Field: 1\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"garbage without end\r\n",
    ] {
        let backend = Backend::connecting(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            if read_request(&mut reader).is_some() {
                stream.write_all(answer).unwrap();
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = reader.read(&mut [0]);
            }
        });
        let gate = Gate::before(&backend);
        for _ in 0..2 {
            assert_eq!(gate.get("/").status, 502, "{}", answer.escape_ascii());
        }
        assert_eq!(backend.connections(), 2, "{}", answer.escape_ascii());
    }
}

#[test]
fn a_body_after_the_response_to_head_is_not_parsed_as_a_response() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = read_request(&mut reader) {
            if request.line.starts_with("HEAD") {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 38\r\n\r\n").unwrap();
                std::thread::sleep(Duration::from_millis(50));
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            } else {
                respond(&mut stream, "ok").unwrap();
            }
        }
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    assert_eq!(crate::support::client::read_response_to(&mut reader, true).unwrap().status, 200);
    std::thread::sleep(Duration::from_millis(150));
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(read_response(&mut reader).unwrap().text(), "ok");
    assert_eq!(backend.connections(), 2);
}

#[test]
fn a_truncated_response_is_never_forwarded_as_complete() {
    for head in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
        let backend = Backend::connecting(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            if read_request(&mut reader).is_some() {
                stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n5\r\nabcde\r\n").as_bytes()).unwrap();
            }
        });
        let gate = Gate::before(&backend);
        let mut stream = gate.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert!(read_response(&mut BufReader::new(&stream)).is_none(), "{head}: looks whole");
        assert!(is_closed(&stream));
    }
}

#[test]
fn a_request_on_a_closed_idle_connection_is_retried_on_a_new_one() {
    let rounds = Arc::new(AtomicUsize::new(0));
    let counted = rounds.clone();
    let backend = Backend::connecting(move |mut stream| {
        // One response, then the connection is closed. The gate notices only after it has sent the next request.
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if read_request(&mut reader).is_some() {
            counted.fetch_add(1, Ordering::Relaxed);
            respond(&mut stream, "ok").unwrap();
            let _ = read_head(&mut reader);
        }
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..5 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(read_response(&mut reader).unwrap().status, 200);
    }
    assert_eq!(gate.metric("tollgate_backend_retries_total"), 4);
    // A request that is not idempotent is not retried.
    let before = rounds.load(Ordering::Relaxed);
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").unwrap();
    let response = read_response(&mut reader).unwrap();
    assert_eq!((response.status, rounds.load(Ordering::Relaxed) - before), (502, 0));
}

#[test]
fn a_request_that_fails_on_a_new_connection_is_not_retried() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = seen.clone();
    let backend = Backend::connecting(move |stream| {
        let mut reader = BufReader::new(stream);
        if read_request(&mut reader).is_some() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let gate = Gate::before(&backend);
    assert_eq!(gate.get("/").status, 502);
    assert_eq!((seen.load(Ordering::Relaxed), gate.metric("tollgate_backend_retries_total")), (1, 0));
}

#[test]
fn a_closed_backend_connection_is_detected_before_its_next_use() {
    let closed = Arc::new(AtomicUsize::new(0));
    let counted = closed.clone();
    let backend = Backend::connecting(move |mut stream| {
        // The backend does not announce that it will close the connection.
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        if read_request(&mut reader).is_some() {
            respond(&mut stream, "ok").unwrap();
        }
        drop((stream, reader));
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut served = 0;
    for _ in 0..20 {
        // Not idempotent, so a closed connection would be an error.
        let before = closed.load(Ordering::Relaxed);
        stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi").unwrap();
        let is_served = read_response(&mut reader).unwrap().status == 200;
        eventually("it is closed", || !is_served || closed.load(Ordering::Relaxed) > before);
        served += usize::from(is_served);
    }
    // The gate may learn of the close slightly later than this test.
    assert!(served >= 15, "{served} of 20");
    assert_eq!(gate.metric("tollgate_backend_retries_total"), 0);
}

#[test]
fn an_idle_backend_connection_is_closed_after_its_timeout() {
    let closed = Arc::new(AtomicUsize::new(0));
    let counted = closed.clone();
    let backend = Backend::connecting(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while read_request(&mut reader).is_some() {
            respond(&mut stream, "ok").unwrap();
        }
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let gate = Gate::with(&backend, "timeouts = { backend_keep_alive = \"300ms\" }");
    for _ in 0..3 {
        assert_eq!(gate.get("/").status, 200);
    }
    assert_eq!((backend.connections(), closed.load(Ordering::Relaxed)), (1, 0));
    let idle = Instant::now();
    eventually("it is closed", || closed.load(Ordering::Relaxed) == 1);
    assert!((200..10_000).contains(&idle.elapsed().as_millis()), "{:?}", idle.elapsed());
}

#[test]
fn bytes_after_a_response_are_not_the_next_response() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while read_request(&mut reader).is_some() {
            let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
            let hidden = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
            if stream.write_all(format!("{answer}{hidden}").as_bytes()).is_err() {
                return;
            }
        }
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..10 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(read_response(&mut reader).unwrap().text(), "ok");
    }
    assert_eq!(backend.connections(), 10, "no connection is reused");
}

#[test]
fn fault_46_a_dead_backend_is_reported_at_once_probed_and_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"http://{address}\"\n"));
    for _ in 0..3 {
        let response = gate.get("/");
        assert_eq!(response.status, 502);
        assert!(matches!(response.field("retry-after"), Some("1" | "2")), "{response:?}");
    }
    // The backend is not tried any more: a failed attempt would be a 502.
    let response = gate.get("/");
    assert_eq!(response.status, 503);
    assert!(response.field("retry-after").is_some());
    assert_eq!(gate.admin("/readyz").status, 503);
    assert_eq!(gate.admin("/healthz").status, 200);
    let metrics = gate.admin("/metrics").text();
    let toll = metrics.lines().find_map(|line| line.strip_prefix("tollgate_toll_seconds_total ")).unwrap();
    assert_eq!(toll.parse(), Ok(0.0), "no client is charged for it");
    // A probe finds that the backend is up again.
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while read_request(&mut reader).is_some() {
                    respond(&mut stream, "back").unwrap();
                }
            });
        }
    });
    eventually("the backend is used again", || gate.get("/").text() == "back");
    eventually("it is ready", || gate.admin("/readyz").status == 200);
}

/// Otherwise the most expensive requests, those that crash or time out, would not be charged.
#[test]
fn fault_46_a_request_that_a_broken_backend_received_counts_once() {
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = broken.clone();
    let backend = Backend::connecting(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = read_request(&mut reader) {
            match (is_broken.load(Ordering::Relaxed), request.path()) {
                (true, "/hangs") => std::thread::sleep(Duration::from_millis(500)),
                (true, "/truncates") => {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
                }
                (true, _) => {}
                (false, _) => {
                    respond(&mut stream, "ok").unwrap();
                    continue;
                }
            }
            return;
        }
    });
    let rule = "timeouts = { response_head = \"200ms\" }\n\
                [[rule]]\nname = 'dear'\nclass = 'ip/32'\nbucket = { size = 11, drip = 1, every = '900s' }\n\
                [[rule]]\nname = 'at once'\nclass = 'ip/32'\nin_flight = 1\n";
    let gate = Gate::with(&backend, rule);
    for path in ["/dies", "/hangs", "/truncates", "/dies", "/hangs", "/truncates", "/dies", "/dies"] {
        let mut stream = gate.connect();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
        let response = read_response(&mut BufReader::new(stream));
        let status = response.as_ref().map(|response| response.status);
        assert!(matches!(status, None | Some(502..=504)), "{path}: {response:?}");
        assert!(response.is_none_or(|response| response.field("retry-after").is_some()), "{path}");
    }
    broken.store(false, Ordering::Relaxed);
    eventually("a request is answered", || gate.get("/").status == 200);
    let statuses = [gate.get("/").status, gate.get("/").status, gate.get("/").status];
    assert_eq!(statuses, [200, 200, 429], "eight of eleven were charged");
}

/// A single page that is always truncated must not affect other pages.
#[test]
fn truncated_responses_do_not_mark_a_backend_as_down() {
    let begun = AtomicUsize::new(0);
    let backend = Backend::connecting(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = read_request(&mut reader) {
            if request.path() == "/breaks" {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
                // All five responses have begun before the first is truncated.
                let last = begun.fetch_add(1, Ordering::Relaxed) / 5 * 5 + 5;
                eventually("five have begun", || begun.load(Ordering::Relaxed) >= last);
                return;
            }
            respond(&mut stream, "ok").unwrap();
        }
    });
    let gate = Gate::with(&backend, "in_flight = 10");
    for _ in 0..3 {
        let streams: Vec<_> = (0..5).map(|_| gate.connect()).collect();
        for mut stream in &streams {
            stream.write_all(b"GET /breaks HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        }
        assert!(streams.iter().all(|stream| read_response(&mut BufReader::new(stream)).is_none()));
        assert_eq!(gate.get("/").status, 200);
    }
    assert!(gate.log().iter().all(|line| !line.contains("backend is down")));
}

#[test]
fn a_backend_is_up_when_the_head_of_its_response_arrives() {
    let (taken, address) = closed();
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"http://{address}\"\n"));
    (0..3).for_each(|_| assert_eq!(gate.get("/").status, 502));
    gate.logged("backend is down");
    taken.listen(16).unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = taken.accept() {
            std::thread::spawn(move || {
                let mut stream = std::net::TcpStream::from(stream);
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while let Some(request) = read_request(&mut reader) {
                    if request.path() == "/events" {
                        let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n";
                        stream.write_all(head).unwrap();
                        // Until the client disconnects.
                        let _ = reader.read(&mut [0]);
                        return;
                    }
                    respond(&mut stream, "ok").unwrap();
                }
            });
        }
    });
    // The response to the probe does not end.
    let mut events = gate.connect();
    eventually("the stream has begun", || {
        events = gate.connect();
        events.write_all(b"GET /events HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut line = [0; 12];
        events.read_exact(&mut line).is_ok() && line.ends_with(b"200")
    });
    assert_eq!(gate.get("/").status, 200);
    drop(events);
}

/// With the same `Retry-After`, all clients would return at once to a backend that has just recovered.
#[test]
fn retry_after_is_jittered_while_no_backend_is_up() {
    let (_taken, address) = closed();
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"http://{address}\"\n"));
    let told: std::collections::BTreeSet<(u16, String)> = (1..60)
        .map(|last| {
            let stream = connect_from([127, 7, 7, last].into(), gate.address);
            let response = roundtrip(stream, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            assert!(matches!(response.status, 502 | 503), "{response:?}");
            (response.status, response.field("retry-after").unwrap().to_owned())
        })
        .collect();
    assert!(told.iter().filter(|(status, _)| *status == 503).count() > 1, "{told:?}");
}

#[test]
fn a_hanging_backend_is_a_504_after_the_timeout() {
    let backend = Backend::connecting(|stream| {
        let mut reader = BufReader::new(stream);
        while read_request(&mut reader).is_some() {}
    });
    let gate = Gate::with(&backend, "timeouts = { response_head = \"500ms\" }");
    let started = Instant::now();
    let response = gate.get("/");
    assert_eq!(response.status, 504);
    assert!(matches!(response.field("retry-after"), Some("1" | "2")), "{response:?}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn error_responses_of_a_backend_are_forwarded() {
    let backend =
        Backend::answering(|_, stream| stream.write_all(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops"));
    let gate = Gate::before(&backend);
    for _ in 0..20 {
        let response = gate.get("/");
        assert_eq!((response.status, response.text().as_str()), (500, "oops"));
    }
}

#[test]
fn requests_go_to_the_backend_with_the_fewest_in_flight() {
    let stuck = Arc::new(AtomicBool::new(true));
    let waits = stuck.clone();
    let slow = Backend::answering(move |_, stream| {
        while waits.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        respond(stream, "slow")
    });
    let fast = Backend::saying("fast");
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\nin_flight = 100\nbackend = [\"{}\", \"{}\"]\n",
        slow.url(),
        fast.url()
    ));
    let mut held = gate.connect();
    // Of two concurrent requests, one is at the slow backend.
    let mut held_too = gate.connect();
    for stream in [&mut held, &mut held_too] {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        std::thread::sleep(Duration::from_millis(30));
    }
    eventually("a request is at the slow backend", || !slow.requests().is_empty());
    for _ in 0..20 {
        assert_eq!(gate.get("/").text(), "fast");
    }
    stuck.store(false, Ordering::Relaxed);
    let texts = [held, held_too].map(|stream| read_response(&mut BufReader::new(stream)).unwrap().text());
    assert!(texts.contains(&"slow".to_owned()), "{texts:?}");
}

#[test]
fn an_unreachable_backend_fails_no_request_while_another_is_up() {
    let (_taken, closed) = closed();
    let alive = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(100));
        respond(stream, "alive")
    });
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\nin_flight = 100\nbackend = [\"http://{closed}\", \"{}\"]\n",
        alive.url()
    ));
    let body = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
    // Also while the other backend has more requests in flight.
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| assert_eq!(roundtrip(gate.connect(), body.as_bytes()).text(), "alive"));
        }
    });
}

/// A backend with one worker that takes `millis` for a request, and its busy time in microseconds.
fn with_one_worker(millis: u64) -> (Backend, Arc<AtomicUsize>) {
    let (worker, busy) = (std::sync::Mutex::new(()), Arc::new(AtomicUsize::new(0)));
    let measured = busy.clone();
    let backend = Backend::answering(move |_, stream| {
        let working = worker.lock().unwrap();
        let start = Instant::now();
        std::thread::sleep(Duration::from_millis(millis));
        measured.fetch_add(start.elapsed().as_micros() as usize, Ordering::Relaxed);
        drop(working);
        respond(stream, "ok")
    });
    (backend, busy)
}

#[test]
fn two_backends_of_different_speed_are_both_kept_busy() {
    let ((fast, fast_busy), (slow, slow_busy)) = (with_one_worker(5), with_one_worker(50));
    let gate =
        Gate::start(&format!("[gate]\nworkers = 1\ncores = 1\nbackend = [\"{}\", \"{}\"]\n", fast.url(), slow.url()));
    let done = AtomicBool::new(false);
    let counts = || {
        let busy = |busy: &AtomicUsize| busy.load(Ordering::Relaxed) as f64 / 1e6;
        [(fast.count() as f64, busy(&fast_busy)), (slow.count() as f64, busy(&slow_busy))]
    };
    std::thread::scope(|scope| {
        for client in 0..24u8 {
            let (gate, done) = (&gate, &done);
            scope.spawn(move || {
                let mut stream = connect_from([127, 0, 0, 10 + client].into(), gate.address);
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while !done.load(Ordering::Relaxed) {
                    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                    assert_eq!(read_response(&mut reader).unwrap().status, 200);
                }
            });
        }
        std::thread::sleep(Duration::from_secs(2));
        let (start, before) = (Instant::now(), counts());
        std::thread::sleep(Duration::from_secs(4));
        let (elapsed, after) = (start.elapsed().as_secs_f64(), counts());
        done.store(true, Ordering::Relaxed);
        let rows = gate.admin("/api/v1/status").text();
        let (mut served, mut possible) = (0.0, 0.0);
        for (before, after) in before.into_iter().zip(after) {
            let (count, busy) = (after.0 - before.0, after.1 - before.1);
            served += count;
            // A backend that is always busy completes one request per service time.
            possible += elapsed / (busy / count);
        }
        // In real time, the runs that missed a bound of 0.9 had 0.89.
        assert!(served >= 0.85 * possible, "{served} of {possible}: {before:?} {after:?} {rows}");
        assert_eq!(rows.matches("\"in_flight_max\"").count(), 4, "one for each backend, in both sums: {rows}");
    });
}
