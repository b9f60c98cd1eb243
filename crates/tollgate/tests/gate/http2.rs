//! HTTP/2 on the side of the client, of the backend, and on both.

use std::io::{Read, Write};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::backend::respond;
use crate::support::http2::{connect, read_answer, read_body, request, run, run_local, send, send_body};
use crate::support::{Backend, Gate, eventually};

const H2C: &str = "h2c = true";

#[test]
fn a_client_over_http_2_is_served_by_a_backend_over_http_1() {
    let backend = Backend::answering(|request, stream| {
        let text = format!("{} {}", request.line, String::from_utf8_lossy(&request.body));
        if request.line.starts_with("HEAD") {
            return stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len()).as_bytes());
        }
        respond(stream, &text)
    });
    let gate = Gate::with(&backend, H2C);
    run(async {
        let mut sender = connect(gate.address).await;
        let get = request("GET", "/a?b").header("cookie", "a=1").header("cookie", "b=2").header("te", "trailers");
        let answer = send(&mut sender, get.body(()).unwrap(), b"").await.unwrap();
        assert_eq!((answer.head.status.as_u16(), &answer.body[..]), (200, &b"GET /a?b HTTP/1.1 "[..]));
        let answer = send(&mut sender, request("POST", "/p").body(()).unwrap(), b"hello").await.unwrap();
        assert_eq!(answer.body, b"POST /p HTTP/1.1 hello");
        let head = send(&mut sender, request("HEAD", "/p").body(()).unwrap(), b"").await.unwrap();
        assert_eq!((head.head.status.as_u16(), head.field("content-length"), head.body.len()), (200, Some("17"), 0));
        let sized = request("POST", "/p").header("content-length", "5").body(()).unwrap();
        assert_eq!(send(&mut sender, sized, b"hello").await.unwrap().body, b"POST /p HTTP/1.1 hello");
    });
    let requests = backend.requests();
    assert_eq!(
        (requests[0].field("host"), requests[0].field("cookie"), requests[0].field("te")),
        (Some("site"), Some("a=1; b=2"), Some("trailers"))
    );
    assert_eq!(requests[0].field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!((requests[1].field("transfer-encoding"), requests[1].field("content-length")), (Some("chunked"), None));
    assert_eq!((requests[3].field("transfer-encoding"), requests[3].field("content-length")), (None, Some("5")));
    assert_eq!(backend.connections(), 1);
}

#[test]
fn http_2_without_tls_needs_the_setting() {
    let backend = Backend::saying("ok");
    let gate = Gate::before(&backend);
    run(async {
        let stream = tokio::net::TcpStream::connect(gate.address).await.unwrap();
        let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        assert!(send(&mut sender, request("GET", "/").body(()).unwrap(), b"").await.is_err());
    });
    let gate = Gate::with(&backend, H2C);
    assert_eq!(gate.get("/").status, 200, "HTTP/1.1 works on the same port");
}

#[test]
fn a_client_over_http_1_is_served_by_a_backend_over_http_2() {
    run_local(async {
        let backend = crate::support::http2::backend(|mut request, mut respond| async move {
            let (body, trailers) = read_body(request.body_mut()).await.unwrap();
            let mut text = format!("{} {} {}", request.method(), request.uri(), String::from_utf8_lossy(&body));
            if let Some(trailers) = trailers {
                text += trailers["x-check"].to_str().unwrap();
            }
            let _ = respond.send_informational(Response::builder().status(103).body(()).unwrap());
            let head =
                Response::builder().header("x-for", request.headers()["x-forwarded-for"].clone()).body(()).unwrap();
            let mut stream = respond.send_response(head, false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", HeaderValue::from_static("9"));
            send_body(&mut stream, text.as_bytes(), Some(trailers)).await.unwrap();
        })
        .await;
        let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"h2c://{backend}\"\n"));
        let gate = std::sync::Arc::new(gate);
        let test = gate.clone();
        let (get, post) = tokio::task::spawn_blocking(move || {
            let post = "POST /p HTTP/1.1\r\nHost: site\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\n\
                        hello\r\n0\r\nX-Check: 7\r\n\r\n";
            (test.get("/a?b"), crate::support::roundtrip(test.connect(), post.as_bytes()))
        })
        .await
        .unwrap();
        assert_eq!((get.text().as_str(), get.field("x-for")), ("GET http://site/a?b ", Some("127.0.0.1")));
        assert_eq!(get.trailers, [("x-sum".to_owned(), "9".to_owned())]);
        assert_eq!(post.text(), "POST http://site/p hello7");
        // Both sides.
        let gate = Gate::start(&format!("[gate]\nworkers = 1\n{H2C}\nbackend = \"h2c://{backend}\"\n"));
        let mut sender = connect(gate.address).await;
        let mut ready = sender.clone().ready().await.unwrap();
        let (mut response, mut stream) = ready.send_request(request("POST", "/both").body(()).unwrap(), false).unwrap();
        let mut trailers = HeaderMap::new();
        trailers.insert("x-check", HeaderValue::from_static("8"));
        send_body(&mut stream, b"hi", Some(trailers)).await.unwrap();
        let interim = std::future::poll_fn(|cx| response.poll_informational(cx)).await.unwrap().unwrap();
        assert_eq!(interim.status(), 103);
        let answer = read_answer(response.await.unwrap()).await.unwrap();
        assert_eq!(answer.body, b"POST http://site/both hi8");
        assert_eq!(answer.trailers.unwrap()["x-sum"], "9");
        // A body larger than every window, in both directions.
        let large = vec![b'x'; 3 << 20];
        let answer = send(&mut sender, request("POST", "/").body(()).unwrap(), &large).await.unwrap();
        assert_eq!(answer.body.len(), large.len() + "POST http://site/ ".len());
    });
}

#[test]
fn a_client_that_expects_100_continue_gets_it_from_the_gate_with_an_http_2_backend() {
    run_local(async {
        let backend = crate::support::http2::backend(|mut request, mut respond| async move {
            assert!(request.headers().get("expect").is_none());
            let (body, _) = read_body(request.body_mut()).await.unwrap();
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            stream.send_data(body.into(), true).unwrap();
        })
        .await;
        let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"h2c://{backend}\"\n"));
        tokio::task::spawn_blocking(move || {
            let mut stream = gate.connect();
            stream
                .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
                .unwrap();
            let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
            assert_eq!(crate::support::client::read_any_response(&mut reader, false).unwrap().status, 100);
            stream.write_all(b"hello").unwrap();
            assert_eq!(crate::support::read_response(&mut reader).unwrap().text(), "hello");
        })
        .await
        .unwrap();
    });
}

#[test]
fn an_http_2_backend_that_resets_or_disconnects_is_a_502_and_then_used_again() {
    run_local(async {
        let backend = crate::support::http2::backend(|request, mut respond| async move {
            match request.uri().path() {
                "/reset" => respond.send_reset(h2::Reason::INTERNAL_ERROR),
                "/cut" => {
                    let mut stream = respond.send_response(Response::new(()), false).unwrap();
                    stream.send_data(Bytes::from_static(b"some"), false).unwrap();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    stream.send_reset(h2::Reason::INTERNAL_ERROR);
                }
                _ => drop(respond.send_response(Response::new(()), true)),
            }
        })
        .await;
        let gate = std::sync::Arc::new(Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"h2c://{backend}\"\n")));
        let test = gate.clone();
        tokio::task::spawn_blocking(move || {
            let post = "POST /reset HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
            assert_eq!(crate::support::roundtrip(test.connect(), post.as_bytes()).status, 502);
            // This request may be retried, but only once.
            assert_eq!(test.get("/reset").status, 502);
            let mut stream = test.connect();
            stream.write_all(b"GET /cut HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            assert!(crate::support::read_response(&mut std::io::BufReader::new(stream)).is_none(), "looks whole");
            assert_eq!(test.get("/").status, 200);
        })
        .await
        .unwrap();
    });
}

#[test]
fn a_refused_grpc_call_gets_a_grpc_status_and_no_body() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'each'\nclass = 'ip/32'\nwindow = { max = 1, per = '1h' }\n";
    let gate = Gate::with(&backend, &format!("{H2C}\n{rule}"));
    let down = Gate::start("[gate]\nworkers = 1\nh2c = true\nbackend = 'http://127.0.0.1:1'\n");
    run(async {
        let call = || request("POST", "/a.B/C").header("content-type", "application/grpc").body(()).unwrap();
        let mut sender = connect(gate.address).await;
        assert_eq!(send(&mut sender, call(), b"hello").await.unwrap().head.status, 200);
        let refused = send(&mut sender, call(), b"hello").await.unwrap();
        assert_eq!((refused.head.status.as_u16(), refused.body.len()), (200, 0));
        assert_eq!(
            (refused.field("grpc-status"), refused.field("content-type")),
            (Some("8"), Some("application/grpc"))
        );
        let retry_secs: u64 = refused.field("retry-after").unwrap().parse().unwrap();
        assert_eq!(refused.field("grpc-retry-pushback-ms"), Some(&*(retry_secs * 1000).to_string()));
        assert!(refused.field("grpc-message").is_some() && refused.field("ratelimit").is_some());
        let mut sender = connect(down.address).await;
        let failed = send(&mut sender, call(), b"hello").await.unwrap();
        assert_eq!((failed.head.status.as_u16(), failed.field("grpc-status")), (200, Some("14")));
        assert!(failed.field("grpc-retry-pushback-ms").is_some());
    });
}

#[test]
fn a_request_over_http_2_with_two_lengths_is_refused() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, H2C);
    run(async {
        for lengths in [["5", "5"], ["5", "6"], ["6", "5"]] {
            let mut sender = connect(gate.address).await;
            let post = request("POST", "/").header("content-length", lengths[0]).header("content-length", lengths[1]);
            match send(&mut sender, post.body(()).unwrap(), b"hello").await {
                Ok(answer) => assert_eq!(answer.head.status, 400, "{lengths:?}"),
                Err(error) => assert!(error.is_reset(), "{error}"),
            }
        }
    });
    assert_eq!(backend.count(), 0);
}

#[test]
fn invalid_requests_over_http_2_are_refused() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, H2C);
    run(async {
        let mut sender = connect(gate.address).await;
        for (builder, status) in [
            (request("GET", "/").header("host", "other"), 400),
            (request("GET", "/").header("host", "site").header("host", "site"), 400),
            (http::Request::builder().uri("http://user@site/"), 400),
        ] {
            let answer = send(&mut sender, builder.body(()).unwrap(), b"").await.unwrap();
            assert_eq!(answer.head.status.as_u16(), status);
        }
        let mut many = request("GET", "/");
        for number in 0..101 {
            many = many.header(format!("x-{number}"), "1");
        }
        assert_eq!(send(&mut sender, many.body(()).unwrap(), b"").await.unwrap().head.status.as_u16(), 431);
        let large = request("GET", "/").header("x-large", "a".repeat(60_000)).body(()).unwrap();
        // Too large for the header list: the `h2` crate responds itself.
        assert!(send(&mut sender, large, b"").await.is_ok_and(|answer| answer.head.status.as_u16() == 431));
    });
    assert!(backend.requests().is_empty());
}

#[test]
fn a_path_that_is_invalid_over_http_1_is_invalid_over_http_2() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, H2C);
    let star = || http::Uri::builder().scheme("http").authority("site").path_and_query("*").build().unwrap();
    run(async {
        let mut sender = connect(gate.address).await;
        for (builder, status) in [
            (request("GET", "?id=1"), 400),
            (http::Request::builder().uri(star()), 400),
            (http::Request::builder().method("OPTIONS").uri(star()), 200),
        ] {
            let answer = send(&mut sender, builder.body(()).unwrap(), b"").await.unwrap();
            assert_eq!(answer.head.status.as_u16(), status);
        }
    });
    let lines: Vec<_> = backend.requests().iter().map(|request| request.line.clone()).collect();
    assert_eq!(lines, ["OPTIONS * HTTP/1.1"]);
}

#[test]
fn concurrent_requests_share_a_connection() {
    let backend = Backend::answering(|request, stream| {
        std::thread::sleep(Duration::from_millis(50));
        respond(stream, request.path())
    });
    let gate = Gate::with(&backend, H2C);
    run(async {
        let sender = connect(gate.address).await;
        let requests: Vec<_> = (0..100)
            .map(|number| {
                let mut sender = sender.clone();
                tokio::spawn(async move {
                    let path = format!("/{number}");
                    let answer = send(&mut sender, request("GET", &path).body(()).unwrap(), b"").await.unwrap();
                    assert_eq!(answer.body, path.as_bytes());
                })
            })
            .collect();
        for request in requests {
            request.await.unwrap();
        }
    });
    assert_eq!(gate.metric("tollgate_connections_accepted_total"), 1);
}

#[test]
fn fault_16_a_client_that_opens_and_resets_streams_gets_enhance_your_calm() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(200));
        respond(stream, "ok")
    });
    let gate = Gate::with(&backend, H2C);
    let before_kb = gate.rss_kb();
    let goaway = run(async {
        let stream = tokio::net::TcpStream::connect(gate.address).await.unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut resets = 0;
        while resets < 100_000 {
            let Ok(mut ready) = sender.clone().ready().await else { break };
            let Ok((_, mut stream)) = ready.send_request(request("GET", "/").body(()).unwrap(), true) else { break };
            stream.send_reset(h2::Reason::CANCEL);
            resets += 1;
            if resets % 10 == 0 {
                tokio::task::yield_now().await;
            }
        }
        assert!(resets < 100_000, "never stopped");
        connection.await.unwrap().unwrap_err()
    });
    assert_eq!(goaway.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM), "{goaway:?}");
    eventually("what was started is finished", || gate.metric("tollgate_requests_at_backend") == 0);
    assert!(gate.rss_kb() < before_kb + 16 * 1024, "from {before_kb} to {} kB", gate.rss_kb());
    assert_eq!(gate.get("/").status, 200);
}

/// An HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// After GOAWAY, a client without requests in flight is disconnected within five seconds, even if it is active.
#[test]
fn a_client_that_keeps_pinging_is_disconnected_after_goaway() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, &format!("{H2C}\ntimeouts = {{ drain = \"10min\" }}"));
    let mut stream = gate.connect();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).unwrap();
    let mut reader = stream.try_clone().unwrap();
    reader.read_exact(&mut [0; 9]).unwrap();
    let pinging = std::thread::spawn(move || {
        while stream.write_all(&frame(6, 0, 0, b"stay, OK")).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let reading = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while reader.read(&mut bytes).is_ok_and(|length| length > 0) {}
    });
    gate.signal("TERM");
    assert_eq!(gate.wait(), Some(0));
    pinging.join().unwrap();
    reading.join().unwrap();
}

#[test]
fn a_silent_client_is_disconnected_after_goaway() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, &format!("{H2C}\ntimeouts = {{ drain = \"10min\" }}"));
    let mut stream = gate.connect();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    stream.write_all(&frame(4, 0, 0, &[])).unwrap();
    stream.write_all(&frame(4, 1, 0, &[])).unwrap();
    stream.read_exact(&mut [0; 9]).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    gate.signal("TERM");
    assert_eq!(gate.wait(), Some(0));
}

/// Sends a preface and then the same bytes until the gate closes the connection. Returns the growth of its memory in
/// kB.
fn flood(gate: &Gate, first: &[u8], again: &[u8]) -> u64 {
    let before_kb = gate.rss_kb();
    run(async {
        let mut stream = tokio::net::TcpStream::connect(gate.address).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        opening.extend(frame(4, 0, 0, &[]));
        opening.extend(first);
        writer.write_all(&opening).await.unwrap();
        let floods = async {
            // The loop is bounded because some floods are only slowed down.
            for _ in 0..20_000_000 / again.len().max(1) {
                if writer.write_all(again).await.is_err() {
                    return;
                }
            }
        };
        let reads = async {
            let mut bytes = vec![0; 65536];
            while let Ok(1..) = reader.read(&mut bytes).await {}
        };
        tokio::select! { () = floods => {}, () = reads => {} }
    });
    gate.rss_kb().saturating_sub(before_kb)
}

#[test]
fn fault_16_floods_of_frames_leave_memory_flat() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, H2C);
    // :method GET, :scheme http, :path /, and `:authority: a` as a literal.
    let head = [0x82, 0x86, 0x84, 0x41, 0x01, b'a'];
    let open = |stream| frame(1, 0x4, stream, &head);
    for (name, first, again) in [
        ("continuation", frame(1, 0, 1, &head), frame(9, 0, 1, &[0x40, 1, b'x', 1, b'y'].repeat(20))),
        ("empty data", frame(1, 0x4, 1, &[0x83, 0x86, 0x84, 0x41, 0x01, b'a']), frame(0, 0, 1, &[])),
        ("settings", Vec::new(), frame(4, 0, 0, &[])),
        ("ping", Vec::new(), frame(6, 0, 0, &[0; 8])),
        ("priority", Vec::new(), frame(2, 0, 3, &[0, 0, 0, 0, 1])),
        ("window update of nothing", open(1), frame(8, 0, 1, &[0, 0, 0, 0])),
        ("reset of an idle stream", Vec::new(), frame(3, 0, 5, &[0, 0, 0, 8])),
    ] {
        let grown_kb = flood(&gate, &first, &again.repeat(100));
        assert!(grown_kb < 16 * 1024, "{name}: grew by {grown_kb} kB");
    }
    // A header block that is far larger after decompression.
    let mut bomb = vec![0x82, 0x86, 0x84, 0x41, 0x01, b'a', 0x40, 0x01, b'x', 0x7f, 0x81, 0x1e];
    bomb.extend([b'y'; 4096 - 128]);
    bomb.extend([0xbe; 12_200]);
    let grown_kb = flood(&gate, &frame(1, 0x5, 1, &bomb[..16_000]), b"");
    assert!(grown_kb < 16 * 1024, "bomb: grew by {grown_kb} kB");
    assert_eq!(gate.get("/").status, 200);
}

#[test]
fn fault_16_a_client_that_makes_the_gate_reset_its_streams_gets_enhance_your_calm() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(100));
        respond(stream, "ok")
    });
    let gate = Gate::with(&backend, H2C);
    // Each request is complete, followed by an invalid window update, to which the gate must respond with a reset.
    let head = [0x82, 0x86, 0x84, 0x41, 0x01, b'a'];
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[]));
    for stream in (1..20_000).step_by(2) {
        bytes.extend(frame(1, 0x5, stream, &head));
        bytes.extend(frame(8, 0, stream, &[0x7f, 0xff, 0xff, 0xff]));
    }
    let mut stream = gate.connect();
    let mut writer = stream.try_clone().unwrap();
    let writes = std::thread::spawn(move || {
        let _ = writer.write_all(&bytes);
    });
    let mut received = Vec::new();
    let _ = Read::read_to_end(&mut stream, &mut received);
    writes.join().unwrap();
    // GOAWAY on stream 0 with the reason ENHANCE_YOUR_CALM.
    let goaway = received.windows(17).find(|bytes| bytes[3] == 7 && bytes[5..9] == [0; 4]);
    assert_eq!(goaway.map(|bytes| &bytes[13..17]), Some(&[0, 0, 0, 11][..]));
    assert!(backend.requests().len() <= 256, "{} requests reached the backend", backend.requests().len());
    eventually("what was started is finished", || gate.metric("tollgate_requests_at_backend") == 0);
}

#[test]
fn fault_16_a_client_that_resets_requests_in_flight_gets_enhance_your_calm() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(10));
        respond(stream, "ok")
    });
    let gate = Gate::with(&backend, &format!("{H2C}\nin_flight = 100"));
    let (goaway, resets) = run(async {
        let stream = tokio::net::TcpStream::connect(gate.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = h2::client::handshake(stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut resets = 0;
        // Each request is in flight when it is reset, so the `h2` crate does not detect a flood.
        while resets < 1_000 {
            let Ok(mut ready) = sender.clone().ready().await else { break };
            let Ok((_, mut stream)) = ready.send_request(request("GET", "/").body(()).unwrap(), true) else { break };
            while backend.count() <= resets && !connection.is_finished() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            stream.send_reset(h2::Reason::CANCEL);
            resets += 1;
        }
        (connection.await.unwrap().unwrap_err(), resets)
    });
    assert_eq!(goaway.reason(), Some(h2::Reason::ENHANCE_YOUR_CALM));
    assert!((200..1_000).contains(&resets), "{resets} resets");
    assert_eq!(gate.metric("tollgate_h2_calmed_total"), 1);
}

#[test]
fn fault_16_requests_of_reset_streams_count_until_the_backend_finishes() {
    let backend = Backend::answering(|_, _| {
        std::thread::sleep(Duration::from_secs(20));
        Ok(())
    });
    let gate = Gate::with(&backend, &format!("{H2C}\nin_flight = 100\nbounds = {{ streams = 4 }}"));
    run(async {
        let sender = connect(gate.address).await;
        for _ in 0..40 {
            let mut ready = sender.clone().ready().await.unwrap();
            let (_, mut stream) = ready.send_request(request("GET", "/").body(()).unwrap(), true).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
            stream.send_reset(h2::Reason::CANCEL);
        }
    });
    assert_eq!(backend.requests().len(), 8, "twice the limit of open streams");
}

#[test]
fn fault_16_a_request_that_is_reset_at_once_is_charged() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(50));
        respond(stream, "ok")
    });
    let rule = "[[rule]]\nname = 'each'\nclass = 'ip/32'\nwindow = { max = 20, per = '900s' }\n";
    let gate = Gate::with(&backend, &format!("{H2C}\nin_flight = 100\n{rule}"));
    run(async {
        let sender = connect(gate.address).await;
        for number in 0..20 {
            let mut ready = sender.clone().ready().await.unwrap();
            let (_, mut stream) = ready.send_request(request("GET", "/").body(()).unwrap(), true).unwrap();
            while backend.count() <= number {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            stream.send_reset(h2::Reason::CANCEL);
        }
    });
    assert_eq!(gate.get("/").status, 429);
    assert_eq!(backend.count(), 20);
}

#[test]
fn a_stream_that_the_client_does_not_read_is_reset() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n")?;
        stream.write_all(&vec![0; 50_000_000])
    });
    let gate =
        Gate::with(&backend, &format!("{H2C}\ntimeouts = {{ write = \"500ms\" }}\nbounds = {{ unheard = \"1KiB\" }}"));
    run(async {
        let sender = connect(gate.address).await;
        let mut ready = sender.clone().ready().await.unwrap();
        let (response, _stream) = ready.send_request(request("GET", "/").body(()).unwrap(), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let broken = loop {
            // The window stays closed.
            match body.data().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("the body ended"),
            }
        };
        assert!(broken.is_reset(), "{broken:?}");
        // The connection still works.
        drop(body);
        assert!(send(&mut sender.clone(), request("HEAD", "/").body(()).unwrap(), b"").await.is_ok());
    });
    eventually("nothing is left", || gate.metric("tollgate_requests_at_backend") == 0);
}

#[test]
fn a_gate_that_stops_sends_goaway_and_finishes_the_requests_in_flight() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(400));
        respond(stream, "done")
    });
    let gate = Gate::with(&backend, H2C);
    run(async {
        let mut sender = connect(gate.address).await;
        let mut other = sender.clone();
        let answer =
            tokio::spawn(async move { send(&mut other, request("GET", "/").body(()).unwrap(), b"").await.unwrap() });
        while backend.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        gate.signal("TERM");
        assert_eq!(answer.await.unwrap().body, b"done");
        assert!(send(&mut sender, request("GET", "/").body(()).unwrap(), b"").await.is_err());
    });
    assert_eq!(gate.wait(), Some(0));
}
