//! Backends over HTTP/2 that reset streams, hang, idle and close connections.

use std::cell::Cell;
use std::io::Write as _;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::support::client::connect_from;
use crate::support::http2::{connect, read_body, request, run_local, send};
use crate::support::{Gate, roundtrip};

/// The numbers of open and of accepted connections of a backend.
#[derive(Clone, Default)]
struct Connections {
    opened: Rc<Cell<u32>>,
    closed: Rc<Cell<u32>>,
}

impl Connections {
    async fn closed(&self, count: u32) {
        while self.closed.get() < count {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// A backend that never responds to `/hang`, resets the stream of `/reset`, and responds to other paths at once.
/// Returns its address, its connections, and the number of requests for these two paths.
async fn moody() -> (std::net::SocketAddr, Connections, Rc<Cell<u32>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (connections, moods) = (Connections::default(), Rc::new(Cell::new(0)));
    let (counted, mooded) = (connections.clone(), moods.clone());
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (counted, mooded) = (counted.clone(), mooded.clone());
            tokio::task::spawn_local(async move {
                counted.opened.set(counted.opened.get() + 1);
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let mut hanging = Vec::new();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    match request.uri().path() {
                        "/hang" => hanging.push((request, respond)),
                        "/reset" => respond.send_reset(h2::Reason::INTERNAL_ERROR),
                        _ => {
                            drop(respond.send_response(Response::new(()), true));
                            continue;
                        }
                    }
                    mooded.set(mooded.get() + 1);
                }
                counted.closed.set(counted.closed.get() + 1);
            });
        }
    });
    (address, connections, moods)
}

fn gate(backend: std::net::SocketAddr, lines: &str) -> Gate {
    Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"h2c://{backend}\"\n{lines}\n"))
}

/// Runs blocking code on another thread, so that the backend's tasks continue.
async fn beside<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(act).await.unwrap()
}

#[test]
fn a_request_is_retried_once_and_only_if_it_is_idempotent() {
    run_local(async {
        let (backend, connections, resets) = moody().await;
        let gate = gate(backend, "");
        let gate = beside(move || {
            assert_eq!(gate.get("/").status, 200, "leaves an idle connection for reuse");
            assert_eq!(gate.get("/reset").status, 502);
            assert_eq!(gate.metric("tollgate_backend_retries_total"), 1);
            gate
        })
        .await;
        assert_eq!((resets.get(), connections.opened.get()), (2, 2), "once on the kept connection, once on a new one");
        let gate = beside(move || {
            let post = b"POST /reset HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            assert_eq!(roundtrip(gate.connect(), post).status, 502);
            gate
        })
        .await;
        assert_eq!(resets.get(), 3, "a request that is not idempotent is not retried");
        beside(move || {
            (0..4).for_each(|_| assert_eq!(gate.get("/reset").status, 502));
            assert_eq!(gate.get("/").status, 200, "a backend that resets streams is still up");
        })
        .await;
    });
}

/// In one case the backend closes at once, in the other after it has read the request.
#[test]
fn a_backend_that_closes_every_new_connection_is_replaced_by_another() {
    for says_hello in [false, true] {
        run_local(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let broken = listener.local_addr().unwrap();
            tokio::task::spawn_local(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    if says_hello && let Ok(mut connection) = h2::server::handshake(stream).await {
                        let _ = connection.accept().await;
                    }
                }
            });
            let (good, _, _) = moody().await;
            let config = format!("[gate]\nworkers = 1\nbackend = [\"h2c://{broken}\", \"h2c://{good}\"]\n");
            beside(move || {
                let gate = Gate::start(&config);
                for number in 1..30 {
                    let stream = connect_from([127, 4, 4, number].into(), gate.address);
                    let path = char::from(b'A' + number);
                    let get = format!("GET /{path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
                    let status = roundtrip(stream, get.as_bytes()).status;
                    assert!(matches!(status, 200 | 502), "{status}");
                }
                gate.logged("backend is down");
            })
            .await;
        });
    }
}

/// A backend that shuts down sends GOAWAY and finishes its requests in flight. Neither these nor later requests fail.
#[test]
fn after_goaway_requests_use_another_connection() {
    run_local(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = listener.local_addr().unwrap();
        let (connections, long, leave, finish) =
            (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)), Rc::new(Notify::new()), Rc::new(Notify::new()));
        let (opened, begun, leaves, finishes) = (connections.clone(), long.clone(), leave.clone(), finish.clone());
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                opened.set(opened.get() + 1);
                let (begun, leaves, finishes) = (begun.clone(), leaves.clone(), finishes.clone());
                tokio::task::spawn_local(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    loop {
                        let accepted = tokio::select! {
                            accepted = connection.accept() => accepted,
                            () = leaves.notified() => {
                                connection.graceful_shutdown();
                                continue;
                            }
                        };
                        let Some(Ok((request, mut respond))) = accepted else { return };
                        let (begun, finishes) = (begun.clone(), finishes.clone());
                        tokio::task::spawn_local(async move {
                            if request.uri().path() == "/long" {
                                begun.set(begun.get() + 1);
                                finishes.notified().await;
                            }
                            let (body, _) = read_body(&mut request.into_body()).await.unwrap();
                            let mut stream = respond.send_response(Response::new(()), false).unwrap();
                            stream.send_data(Bytes::from(body), true).unwrap();
                        });
                    }
                });
            }
        });
        let gate = Rc::new(gate(backend, "h2c = true"));
        let mut first = connect(gate.address).await;
        let lasting = tokio::task::spawn_local(async move {
            send(&mut first, request("POST", "/long").body(()).unwrap(), b"whole").await
        });
        while long.get() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        leave.notify_one();
        let mut second = connect(gate.address).await;
        for number in 0..20 {
            let answer = send(&mut second, request("POST", "/").body(()).unwrap(), b"body").await.unwrap();
            assert_eq!((answer.head.status.as_u16(), &answer.body[..]), (200, &b"body"[..]), "{number}");
        }
        assert_eq!((connections.get(), long.get()), (2, 1), "one for all of them");
        finish.notify_one();
        let answer = lasting.await.unwrap().unwrap();
        assert_eq!((answer.head.status.as_u16(), &answer.body[..]), (200, &b"whole"[..]));
    });
}

/// All requests share one connection to the backend, and its window.
#[test]
fn clients_that_do_not_read_do_not_block_others() {
    run_local(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = listener.local_addr().unwrap();
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::task::spawn_local(async move {
                    let mut connection = h2::server::handshake(stream).await.unwrap();
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        let length = if request.uri().path() == "/large" { 1 << 20 } else { 100 };
                        let mut stream = respond.send_response(Response::new(()), false).unwrap();
                        stream.send_data(Bytes::from(vec![b'x'; length]), true).unwrap();
                    }
                });
            }
        });
        let gate = Rc::new(gate(backend, "h2c = true\nin_flight = 100"));
        let mut large = Vec::new();
        for _ in 0..40 {
            // Each client connection receives at most one window.
            let mut ready = connect(gate.address).await.ready().await.unwrap();
            let (response, _) = ready.send_request(request("GET", "/large").body(()).unwrap(), true).unwrap();
            let answer = response.await.unwrap();
            assert_eq!(answer.status().as_u16(), 200);
            large.push((ready, answer));
        }
        let mut other = connect(gate.address).await;
        for _ in 0..10 {
            let answer = send(&mut other, request("GET", "/").body(()).unwrap(), b"").await.unwrap();
            assert_eq!((answer.head.status.as_u16(), answer.body.len()), (200, 100));
        }
        drop(large);
    });
}

#[test]
fn requests_that_http_2_cannot_carry_are_refused() {
    run_local(async {
        let (backend, ..) = moody().await;
        let gate = gate(backend, "");
        beside(move || {
            let unsayable = b"GET / HTTP/1.1\r\nHost: a%b\r\nConnection: close\r\n\r\n";
            assert_eq!(roundtrip(gate.connect(), unsayable).status, 400);
            assert_eq!(gate.get("/").status, 200);
        })
        .await;
    });
}

#[test]
fn an_upgrade_by_an_http_2_backend_is_a_502() {
    run_local(async {
        let backend = crate::support::http2::backend(|request, mut respond| async move {
            let mut response = Response::new(());
            if request.uri().path() == "/upgrade" {
                *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
            }
            drop(respond.send_response(response, true));
        })
        .await;
        let gate = gate(backend, "");
        beside(move || {
            for fields in ["", "Connection: upgrade\r\nUpgrade: websocket\r\n"] {
                let request = format!("GET /upgrade HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
                let mut stream = gate.connect();
                stream.write_all(request.as_bytes()).unwrap();
                let mut reader = std::io::BufReader::new(stream);
                assert_eq!(crate::support::client::read_any_response(&mut reader, false).unwrap().status, 502);
            }
            assert_eq!(gate.get("/").status, 200);
        })
        .await;
    });
}

#[test]
fn an_idle_http_2_backend_connection_is_closed() {
    run_local(async {
        let (backend, connections, _) = moody().await;
        let gate = gate(backend, "timeouts = { backend_keep_alive = \"300ms\" }");
        let gate = beside(move || {
            assert_eq!(gate.get("/").status, 200);
            assert_eq!(gate.get("/").status, 200);
            gate
        })
        .await;
        assert_eq!(connections.opened.get(), 1);
        connections.closed(1).await;
        beside(move || assert_eq!(gate.get("/").status, 200)).await;
        assert_eq!(connections.opened.get(), 2);
    });
}

#[test]
fn a_connection_with_a_timed_out_request_is_not_reused_and_is_closed() {
    run_local(async {
        let (backend, connections, hung) = moody().await;
        let gate = gate(backend, "timeouts = { response_head = \"300ms\", backend_keep_alive = \"10min\" }");
        let gate = beside(move || {
            assert_eq!(gate.get("/").status, 200);
            assert_eq!(gate.get("/hang").status, 504);
            gate
        })
        .await;
        assert_eq!((hung.get(), connections.opened.get()), (1, 1), "a request that timed out is not retried");
        connections.closed(1).await;
        beside(move || assert_eq!(gate.get("/").status, 200)).await;
        assert_eq!(connections.opened.get(), 2);
    });
}

#[test]
fn truncated_responses_do_not_cause_enhance_your_calm() {
    run_local(async {
        let backend = crate::support::http2::backend(|request, mut respond| async move {
            if request.method() == "GET" {
                return drop(respond.send_response(Response::new(()), true));
            }
            let mut stream = respond.send_response(Response::new(()), false).unwrap();
            stream.send_data(Bytes::from_static(b"some"), false).unwrap();
            tokio::task::yield_now().await;
            stream.send_reset(h2::Reason::INTERNAL_ERROR);
        })
        .await;
        let gate = gate(backend, "h2c = true");
        let mut sender = connect(gate.address).await;
        for number in 0..900 {
            if number % 3 == 0 {
                // Otherwise the backend would be marked as down.
                assert!(send(&mut sender, request("GET", "/").body(()).unwrap(), b"").await.is_ok(), "{number}");
                continue;
            }
            let answer = send(&mut sender, request("POST", "/").body(()).unwrap(), b"").await;
            let Err(error) = answer else { panic!("the answer to {number} looks whole") };
            assert!(error.is_reset() && !error.is_go_away(), "{number}: {error:?}");
        }
        let gate = beside(move || (gate.metric("tollgate_h2_calmed_total"), gate)).await;
        assert_eq!(gate.0, 0);
    });
}
