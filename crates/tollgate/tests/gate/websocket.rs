//! Real websockets through the gate.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use crate::support::http2::{connect, request, run, send};
use crate::support::{Backend, Gate};

#[test]
fn a_websocket_echoes_through_the_gate() {
    run(async {
        let backend = echoing().await;
        let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"http://{backend}\"\n"));
        let (mut socket, response) =
            tokio_tungstenite::connect_async(format!("ws://{}/chat", gate.address)).await.unwrap();
        assert_eq!(response.status(), 101);
        for length in [0, 1, 125, 126, 65_536, 1_000_000] {
            let message = Message::binary(vec![b'x'; length]);
            socket.send(message.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), message);
        }
        socket.close(None).await.unwrap();
        while let Some(Ok(_)) = socket.next().await {}
    });
}

/// A backend that echoes websockets, except on paths that reject the upgrade.
async fn echoing() -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = [0; 4096];
                let length = stream.peek(&mut head).await.unwrap();
                let head = String::from_utf8_lossy(&head[..length]).into_owned();
                for (path, answer) in [
                    ("GET /ok ", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
                    ("GET /no ", "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno"),
                ] {
                    if head.starts_with(path) {
                        stream.read_exact(&mut vec![0; length]).await.unwrap();
                        stream.write_all(answer.as_bytes()).await.unwrap();
                        return;
                    }
                }
                let socket = tokio_tungstenite::accept_async(stream).await.unwrap();
                let (write, read) = socket.split();
                let _ = read.forward(write).await;
            });
        }
    });
    address
}

/// Requests a websocket over HTTP/2 (RFC 8441).
async fn ask(
    sender: &mut SendRequest<Bytes>,
    path: &str,
    protocol: &'static str,
) -> (http::Response<RecvStream>, SendStream<Bytes>) {
    let mut request =
        request("CONNECT", path).header("sec-websocket-version", "13").header("x-device-id", "d1").body(()).unwrap();
    request.extensions_mut().insert(h2::ext::Protocol::from_static(protocol));
    let mut ready = sender.clone().ready().await.unwrap();
    let (response, stream) = ready.send_request(request, false).unwrap();
    (response.await.unwrap(), stream)
}

/// A websocket frame of a client, with a mask of zeros.
fn frame(text: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x82, 0x80 | 126];
    frame.extend((text.len() as u16).to_be_bytes());
    frame.extend([0; 4]);
    frame.extend(text);
    frame
}

#[test]
fn a_websocket_over_http_2_echoes_through_the_gate() {
    run(async {
        let backend = echoing().await;
        let gate = Gate::start(&format!("[gate]\nworkers = 1\nh2c = true\nbackend = \"http://{backend}\"\n"));
        let mut sender = connect(gate.address).await;
        send(&mut sender, request("GET", "/no").body(()).unwrap(), b"").await.unwrap();
        assert!(sender.is_extended_connect_protocol_enabled());
        let (response, mut stream) = ask(&mut sender, "/chat", "websocket").await;
        assert_eq!((response.status().as_u16(), response.headers().get("sec-websocket-accept")), (200, None));
        let mut body = response.into_body();
        for length in [1, 200, 60_000] {
            let text = vec![b'x'; length];
            let mut left = &frame(&text)[..];
            while !left.is_empty() {
                stream.reserve_capacity(left.len());
                let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
                let (now, later) = left.split_at(capacity.min(left.len()));
                stream.send_data(Bytes::copy_from_slice(now), false).unwrap();
                left = later;
            }
            let mut echoed = Vec::new();
            let header = if length < 126 { 2 } else { 4 };
            while echoed.len() < header + length {
                let data = body.data().await.unwrap().unwrap();
                body.flow_control().release_capacity(data.len()).unwrap();
                echoed.extend_from_slice(&data);
            }
            assert_eq!(&echoed[header..], text);
        }
        // Other requests are served at the same time, and the websocket holds no permit.
        assert_eq!(send(&mut sender, request("GET", "/no").body(()).unwrap(), b"").await.unwrap().body, b"no");
        let gate = tokio::task::spawn_blocking(move || {
            assert_eq!(gate.metric("tollgate_requests_at_backend"), 0);
            assert_eq!(gate.metric("tollgate_connections"), 2, "an upgraded connection counts as two");
            gate
        });
        let gate = gate.await.unwrap();
        stream.send_data(Bytes::new(), true).unwrap();
        while let Some(Ok(_)) = body.data().await {}
        assert!(body.is_end_stream());
        drop(gate);
    });
}

#[test]
fn a_rejected_websocket_over_http_2_is_a_response_and_not_a_tunnel() {
    run(async {
        let backend = echoing().await;
        let rule = "[[rule]]\nname = 'reconnect'\nwhen = { upgrade = 'websocket' }\nclass = 'header:x-device-id'\n\
                    window = { max = 2, per = '60s' }\n";
        let gate = Gate::start(&format!("[gate]\nworkers = 1\nh2c = true\nbackend = \"http://{backend}\"\n{rule}"));
        let mut sender = connect(gate.address).await;
        send(&mut sender, request("GET", "/no").body(()).unwrap(), b"").await.unwrap();
        for (path, protocol, status) in [
            ("/no", "websocket", 403),
            ("/ok", "websocket", 502),
            // Rules treat it as an upgrade.
            ("/chat", "websocket", 429),
            ("/chat", "tcp", 501),
        ] {
            let (response, _stream) = ask(&mut sender, path, protocol).await;
            assert_eq!(response.status().as_u16(), status, "{path} {protocol}");
        }
    });
}

#[test]
fn an_upgrade_to_a_protocol_that_was_not_requested_is_a_502() {
    let backend = Backend::answering(|_, stream| {
        std::io::Write::write_all(
            stream,
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        )
    });
    let gate = Gate::before(&backend);
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    assert_eq!(crate::support::roundtrip(gate.connect(), request).status, 502);
}
