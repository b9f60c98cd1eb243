//! Slow, silent and disconnected clients.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::support::backend::respond;
use crate::support::client::{connect_from, is_closed, socket_from};
use crate::support::http2::{request, run};
use crate::support::{Backend, Gate, eventually, read_response};

#[test]
fn fault_12_a_head_that_trickles_in_is_cut_off_at_its_timeout() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "timeouts = { head = \"700ms\" }");
    let started = Instant::now();
    let mut slow: Vec<TcpStream> = (0..50).map(|_| gate.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n").unwrap();
    }
    // The pauses between bytes are shorter than any idle timeout.
    while started.elapsed() < Duration::from_secs(2) {
        for stream in &mut slow {
            let _ = stream.write_all(b"X");
        }
        assert_eq!(gate.get("/").status, 200, "others are served");
        std::thread::sleep(Duration::from_millis(50));
    }
    for stream in &slow {
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        assert!(is_closed(stream), "still open");
    }
    // A silent connection is closed as well.
    let silent = gate.connect();
    assert!(is_closed(&silent));
}

#[test]
fn fault_12_a_body_that_pauses_or_trickles_is_cut_off() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "timeouts = { body_idle = \"500ms\" }");
    let mut stream = gate.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc").unwrap();
    let response = read_response(&mut BufReader::new(stream)).unwrap();
    assert_eq!((response.status, response.field("connection")), (408, Some("close")));
    // Steady bytes, but below the minimum rate.
    let gate = Gate::with(&backend, "timeouts = { body_idle = \"500ms\" }\nbounds = { body_per_second = \"1KiB\" }");
    let mut stream = gate.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n").unwrap();
    let started = Instant::now();
    while stream.write_all(b"x").is_ok() {
        assert!(started.elapsed() < Duration::from_secs(10), "never cut off");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(started.elapsed() > Duration::from_millis(500));
}

#[test]
fn fault_12_a_client_that_does_not_read_is_disconnected() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")?;
        let block = vec![0; 1 << 16];
        for _ in 0..1600 {
            stream.write_all(&block)?;
        }
        Ok(())
    });
    let gate = Gate::with(&backend, "timeouts = { write = \"500ms\" }\nbounds = { unheard = \"1KiB\" }");
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("the request has come", || gate.metric("tollgate_requests_total") == 1);
    eventually("the connection is closed", || gate.metric("tollgate_connections") == 0);
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
    let mut sink = Vec::new();
    let _ = stream.read_to_end(&mut sink);
    assert!(sink.len() < 100_000_000);
}

#[test]
fn a_client_that_reads_slowly_but_steadily_gets_the_whole_response() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n")?;
        stream.write_all(&vec![b'x'; 300_000])
    });
    let gate = Gate::with(&backend, "timeouts = { write = \"3200ms\" }");
    // With small segments and a small window, one write of the gate takes longer than the timeout.
    let mut stream = socket_from([127, 0, 0, 1].into(), gate.address, |socket| {
        socket.set_tcp_mss(536)?;
        socket.set_recv_buffer_size(2048)
    });
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let (mut received, mut bytes) = (0, [0; 8 * 1024]);
    let started = Instant::now();
    loop {
        match stream.read(&mut bytes).unwrap() {
            0 => break,
            length => received += length,
        }
        // 22 bytes per millisecond; a reader that was delayed catches up.
        while received as u128 > started.elapsed().as_millis() * 22 {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert!(received > 300_000, "cut off after {received} bytes");
    assert!(started.elapsed() > Duration::from_secs(4), "too quick to show anything: {:?}", started.elapsed());
}

#[test]
fn fault_12_a_client_that_reads_below_the_minimum_rate_is_disconnected() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n")?;
        stream.write_all(&vec![b'x'; 3_000_000])
    });
    let gate = Gate::with(&backend, "timeouts = { write = \"3200ms\" }\nbounds = { body_per_second = \"1MiB\" }");
    // The same speed as in the test above, but with a higher minimum rate.
    let mut stream = socket_from([127, 0, 0, 1].into(), gate.address, |socket| {
        socket.set_tcp_mss(536)?;
        socket.set_recv_buffer_size(2048)
    });
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut received = stream.read(&mut [0; 256]).unwrap();
    eventually("the connection is closed", || {
        received += stream.read(&mut [0; 256]).unwrap_or(0);
        gate.metric("tollgate_connections") == 0
    });
    assert!(received < 3_000_000);
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
}

/// Reads a response over HTTP/2 with a window of this many bytes, which is reopened 20 ms after use. Returns the
/// length.
async fn take(gate: &Gate, window: u32) -> Result<usize, h2::Error> {
    let stream = tokio::net::TcpStream::connect(gate.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let mut builder = h2::client::Builder::new();
    let (sender, connection) = builder.initial_window_size(window).handshake::<_, Bytes>(stream).await?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let mut ready = sender.ready().await?;
    let (response, _stream) = ready.send_request(request("GET", "/").body(()).unwrap(), true)?;
    let mut body = response.await?.into_body();
    let mut received = 0;
    while let Some(data) = body.data().await {
        let length = data?.len();
        received += length;
        tokio::time::sleep(Duration::from_millis(20)).await;
        // A reset stream returns an error here; the next call of `data` reports it.
        let _ = body.flow_control().release_capacity(length);
    }
    Ok(received)
}

#[test]
fn fault_12_a_window_that_opens_byte_by_byte_does_not_block_a_backend() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n")?;
        stream.write_all(&vec![b'x'; 300_000])
    });
    let lines = "h2c = true\ntimeouts = { write = \"2s\" }\nbounds = { body_per_second = \"1KiB\" }";
    let gate = Gate::with(&backend, lines);
    let started = Instant::now();
    run(async {
        let steadily = async {
            let received = take(&gate, 2048).await;
            (received, started.elapsed())
        };
        let (trickle, (steady, lasted)) = tokio::join!(take(&gate, 1), steadily);
        let broken = trickle.unwrap_err();
        assert!(broken.is_reset(), "{broken:?}");
        // The steady client took longer than the time after which a slow one is cut off.
        assert_eq!(steady.unwrap(), 300_000);
        assert!(lasted > Duration::from_millis(2500), "too quick to show anything: {lasted:?}");
    });
    eventually("nothing is left", || gate.metric("tollgate_backend_in_flight") == 0);
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
}

#[test]
fn an_idle_connection_is_closed_after_its_time() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "timeouts = { keep_alive = \"300ms\" }");
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(read_response(&mut BufReader::new(&stream)).unwrap().status, 200);
    let started = Instant::now();
    assert!(is_closed(&stream));
    assert!((250..5_000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}

#[test]
fn fault_14_idle_connections_are_closed_for_new_ones() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "bounds = { connections = 100, connections_per_address = 1000 }");
    let idle: Vec<TcpStream> = (0..300u32)
        .map(|number| {
            let mut stream = connect_from([127, 1, 0, 1 + (number % 8) as u8].into(), gate.address);
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
            let _ = read_response(&mut BufReader::new(&stream));
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(gate.get("/").status, 200, "a newcomer is served");
    }
    assert!(gate.metric("tollgate_connections") <= 100);
    drop(idle);
}

#[test]
fn fault_14_the_connections_of_one_address_are_bounded() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "bounds = { connections_per_address = 20 }");
    let held: Vec<TcpStream> = (0..20).map(|_| gate.connect()).collect();
    eventually("all are counted", || gate.metric("tollgate_connections") == 20);
    assert!(is_closed(&gate.connect()));
    assert!(gate.metric("tollgate_connections_turned_away_total") >= 1);
    let other = connect_from([127, 9, 9, 9].into(), gate.address);
    let response = crate::support::roundtrip(other, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(response.status, 200, "another address is not concerned");
    drop(held);
    eventually("there is room again", || {
        let mut stream = gate.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_ok()
            && read_response(&mut BufReader::new(&stream)).is_some()
    });
}

#[test]
fn fault_15_running_out_of_file_descriptors_is_survived_and_counted() {
    let backend = Backend::saying("ok");
    let gate = Gate::before(&backend);
    // The limit is lowered at run time: at the start, the gate derives its bound of connections from it.
    gate.leave_descriptors(20);
    // Connections without a descriptor wait in the backlog of the kernel.
    let crowd: Vec<TcpStream> = (0..300)
        .map(|_| {
            let mut stream = gate.connect();
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHos");
            stream
        })
        .collect();
    gate.logged("cannot accept connections");
    drop(crowd);
    eventually("it serves again", || {
        let mut stream = gate.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").is_ok()
            && read_response(&mut BufReader::new(&stream)).is_some_and(|response| response.status == 200)
    });
    assert!(gate.metric("tollgate_accept_failures_total") >= 1);
}

#[test]
fn a_client_that_disconnects_is_charged_until_the_backend_finishes() {
    let release = Arc::new(AtomicUsize::new(0));
    let waits = release.clone();
    let backend = Backend::answering(move |_, stream| {
        while waits.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        respond(stream, "late")
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("the request is at the backend", || backend.requests().len() == 1);
    drop(stream);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 1, "the backend is still working");
    release.store(1, Ordering::Relaxed);
    eventually("the backend is done", || gate.metric("tollgate_requests_at_backend") == 0);
    assert_eq!(gate.metric("tollgate_requests_left_total"), 1);
    assert_eq!(gate.get("/").text(), "late");
    assert_eq!(backend.connections(), 1, "the connection was read to its end and used again");
}

#[test]
fn an_endless_response_is_cut_off_after_its_client_has_disconnected() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        // An endless response without idle timeouts.
        loop {
            stream.write_all(b"400\r\n")?;
            stream.write_all(&[b'x'; 1024])?;
            stream.write_all(b"\r\n")?;
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let gate = Gate::with(&backend, "bounds = { unheard = \"64KiB\" }");
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    drop(stream);
    let left = Instant::now();
    eventually("nobody listens any more", || gate.metric("tollgate_backend_in_flight") == 0);
    assert!(left.elapsed() < Duration::from_secs(10), "{:?}", left.elapsed());
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
}

#[test]
fn a_client_that_reads_slowly_holds_no_permit() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 30000000\r\n\r\n")?;
        stream.write_all(&vec![b'x'; 30_000_000])
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    eventually("the request has come", || gate.metric("tollgate_requests_total") == 1);
    eventually("the backend waits for the client", || gate.metric("tollgate_requests_at_backend") == 0);
    assert_eq!(read_response(&mut BufReader::new(stream)).unwrap().body.len(), 30_000_000);
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
}

#[test]
fn an_aborted_upload_is_aborted_at_the_backend() {
    let broken_off = Arc::new(AtomicUsize::new(0));
    let counted = broken_off.clone();
    let backend = Backend::connecting(move |mut stream| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nsome").unwrap();
    eventually("the request has come", || backend.connections() == 1);
    drop(stream);
    eventually("the backend knows", || broken_off.load(Ordering::Relaxed) == 1);
    eventually("it is no work any more", || gate.metric("tollgate_backend_in_flight") == 0);
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
}
