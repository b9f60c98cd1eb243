//! The memory of HTTP/2 requests before they are forwarded: bounded per connection, without failed requests.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::support::backend::respond;
use crate::support::client::socket_from;
use crate::support::http2::{connect, request, run_local, send};
use crate::support::{Backend, Gate, eventually};

const H2C: &str = "h2c = true";

/// A head of 28 kB, which a client can send in a dozen bytes once its field is in the HPACK table.
fn with_large_head(method: &str, path: &str) -> http::request::Builder {
    let value = "v".repeat(3500);
    (0..8).fold(request(method, path), |head, _| head.header("x-large", &value))
}

#[test]
fn requests_beyond_the_memory_budget_of_their_connection_wait_and_are_served() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(20));
        respond(stream, "ok")
    });
    let gate = Gate::with(&backend, &format!("{H2C}\nin_flight = 4\nhold = {{ total = 400, max = \"60s\" }}"));
    let address = gate.address;
    run_local(async move {
        let sender = connect(address).await;
        let ask = |number: usize| {
            let mut sender = sender.clone();
            async move {
                let head = with_large_head("GET", &format!("/{number}")).body(()).unwrap();
                send(&mut sender, head, b"").await.map(|answer| answer.head.status.as_u16())
            }
        };
        let answers = futures_util::future::join_all((0..100).map(ask)).await;
        let refused: Vec<_> = answers.iter().filter(|answer| !matches!(answer, Ok(200))).collect();
        assert!(refused.is_empty(), "{refused:?}");
    });
    assert_eq!(backend.count(), 100);
    assert_eq!(gate.metric("tollgate_h2_refused_total"), 0);
}

#[test]
fn stalled_uploads_do_not_block_other_requests_of_their_connection() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, H2C);
    let address = gate.address;
    run_local(async move {
        let sender = connect(address).await;
        let mut stalled = Vec::new();
        for number in 0..60 {
            let head = request("POST", &format!("/{number}")).header("content-length", "10").body(()).unwrap();
            let mut ready = sender.clone().ready().await.unwrap();
            stalled.push(ready.send_request(head, false).unwrap());
        }
        for _ in 0..20 {
            let get = request("GET", "/").body(()).unwrap();
            assert_eq!(send(&mut sender.clone(), get, b"").await.unwrap().head.status.as_u16(), 200);
        }
        // Parked uploads are served when their bodies arrive.
        for (_, stream) in &mut stalled {
            stream.send_data(Bytes::from_static(b"0123456789"), true).unwrap();
        }
        for (response, _) in stalled {
            assert_eq!(response.await.unwrap().status().as_u16(), 200);
        }
    });
    assert_eq!(backend.count(), 80);
}

/// The task of a request ends when the `h2` crate has its whole response, so the connection needs a timeout of its own.
#[test]
fn a_client_that_reads_no_response_is_disconnected() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, &format!("{H2C}\ntimeouts = {{ write = \"1s\" }}"));
    let address = gate.address;
    run_local(async move {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (sender, connection) =
            h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(stream).await.unwrap();
        let connected = tokio::task::spawn_local(connection);
        let mut ready = sender.ready().await.unwrap();
        let (response, _) = ready.send_request(request("GET", "/").body(()).unwrap(), true).unwrap();
        let mut response = response.await.unwrap();
        assert!(response.body_mut().data().await.unwrap().is_err());
        let _ = connected.await;
    });
}

/// The backend sends 80 MB of them for each request, and the client reads none.
#[test]
fn unread_interim_responses_take_no_memory() {
    const GROWTH_MAX_KB: u64 = 16 * 1024;
    let finished = Arc::new(AtomicUsize::new(0));
    let counted = finished.clone();
    let backend = Backend::answering(move |_, stream| {
        let hint = format!("HTTP/1.1 103 Early Hints\r\nLink: <{}>\r\n\r\n", "a".repeat(4000));
        for _ in 0..1000 {
            stream.write_all(hint.repeat(20).as_bytes())?;
        }
        counted.fetch_add(1, Ordering::SeqCst);
        respond(stream, "ok")
    });
    let gate = Gate::with(&backend, &format!("{H2C}\nin_flight = 10"));
    assert_eq!(gate.admin("/healthz").status, 200);
    let before_kb = gate.rss_kb();
    let clients: Vec<_> = (1..=2)
        .map(|number| {
            let from = [127, 5, 5, number].into();
            let mut stream = socket_from(from, gate.address, |socket| socket.set_recv_buffer_size(4096));
            // SETTINGS, then GET / without a body.
            stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
            stream.write_all(b"\0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a").unwrap();
            stream
        })
        .collect();
    eventually("the backend has sent them all", || finished.load(Ordering::SeqCst) == clients.len());
    let growth_kb = gate.rss_kb().saturating_sub(before_kb);
    assert!(growth_kb < GROWTH_MAX_KB, "{growth_kb} kB");
}

/// Heads of 30 kB. A stream ends at the gate when the codec has its head, so the limit of streams does not bound the
/// heads.
#[test]
fn unread_response_heads_are_bounded() {
    const CONNECTIONS: u8 = 10;
    const HELD_MAX_KB: u64 = 1200;
    /// Of all requests in the queue: room for those of one round.
    const QUEUED_MAX_KB: u64 = 12 * 1024;
    let backend = Backend::answering(|_, stream| {
        let fields: String = (0..60).map(|number| format!("X-{number}: {}\r\n", unlike_others(480))).collect();
        stream.write_all(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 0\r\n\r\n").as_bytes())
    });
    let gate = Gate::with(&backend, &format!("{H2C}\nin_flight = 8\nhold = {{ memory = \"12MiB\" }}"));
    assert_eq!(gate.admin("/healthz").status, 200);
    let before_kb = gate.rss_kb();
    let connect = |number: u8| {
        let from = [127, 5, 5, number].into();
        let mut stream = socket_from(from, gate.address, |socket| socket.set_recv_buffer_size(4096));
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
        stream
    };
    let mut clients: Vec<_> = (1..=CONNECTIONS).map(connect).collect();
    for round in 0..3u16 {
        for stream in &mut clients {
            for request in 0..120u16 {
                let [high, low] = (round * 240 + request * 2 + 1).to_be_bytes();
                stream.write_all(&[0, 0, 6, 1, 5, 0, 0, high, low, 0x82, 0x86, 0x84, 0x41, 1, b'a']).unwrap();
            }
        }
        let mut seen = 0;
        eventually("nothing moves", || {
            std::thread::sleep(Duration::from_millis(300));
            let count = backend.count();
            std::mem::replace(&mut seen, count) == count && count > 0
        });
    }
    let held_kb = gate.rss_kb().saturating_sub(before_kb + QUEUED_MAX_KB) / u64::from(CONNECTIONS);
    assert!(held_kb < HELD_MAX_KB, "{held_kb} kB for each connection after {} requests", backend.count());
    let refused = gate.metric("tollgate_h2_refused_total");
    assert!(refused > 0 && refused <= gate.metric("tollgate_requests_refused_total"), "{refused}");
}

/// Letters that HPACK cannot compress by reference.
fn unlike_others(length: usize) -> String {
    static START: AtomicUsize = AtomicUsize::new(1);
    let mut state = START.fetch_add(1, Ordering::Relaxed) as u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (state >> 24) as u8 % 26)
    };
    (0..length).map(next).collect()
}
