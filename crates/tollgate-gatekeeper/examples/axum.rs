//! An axum service in which every address may send five requests at once and one more per second:
//! `cargo run -p tollgate-gatekeeper --example axum`, then `curl -i http://127.0.0.1:8081/` several times.
#![allow(clippy::print_stdout, reason = "the output is for the user")]

use std::error::Error;
use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tollgate_gatekeeper::{Limiter, per_second};

fn site() -> Result<Router, Box<dyn Error>> {
    let layer = Limiter::builder()
        .rule(per_second(1).burst(5).by("ip/32").named("each"))
        .layer()?
        .client(|seen| seen.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip()));
    Ok(Router::new().route("/", get(|| async { "hello\n" })).layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:8081").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let site = site()?;
    axum::serve(listener, site.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn ask(address: SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: example\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_sixth_request_is_refused_with_retry_after() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let site = site().unwrap().into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, site).await });
        for _ in 0..5 {
            let answer = ask(address).await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("ratelimit:"), "{answer}");
        }
        let answer = ask(address).await;
        assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after: 1\r\n"), "{answer}");
    }
}
