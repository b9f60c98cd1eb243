//! Real websockets through the gate.

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;

use crate::support::Gate;
use crate::support::http2::run;

#[test]
fn a_websocket_echoes_through_the_gate() {
    run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let socket = tokio_tungstenite::accept_async(stream).await.unwrap();
                    let (write, read) = socket.split();
                    let _ = read.forward(write).await;
                });
            }
        });
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
