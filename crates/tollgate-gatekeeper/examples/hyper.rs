//! Plain hyper, without a framework: at most two requests per address at the same time.
//! `cargo run -p tollgate-gatekeeper --example hyper`, then `curl -i http://127.0.0.1:8081/`.
#![allow(clippy::print_stdout, reason = "the output is for the user")]

use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tollgate_gatekeeper::tower::KeeperLayer;
use tollgate_gatekeeper::{Limiter, in_flight};
use tower::{Layer, Service};

async fn hello(_request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok(Response::new(Full::from("hello\n")))
}

async fn serve(listener: TcpListener, layer: KeeperLayer) -> std::io::Result<()> {
    let service = layer.layer(tower::service_fn(hello));
    loop {
        let (stream, peer) = listener.accept().await?;
        let service = service.clone();
        let connection = http1::Builder::new().serve_connection(
            TokioIo::new(stream),
            service_fn(move |mut request: Request<Incoming>| {
                // The layer finds the client's address here.
                request.extensions_mut().insert(peer.ip());
                service.clone().call(request)
            }),
        );
        tokio::spawn(connection);
    }
}

fn layer() -> Result<KeeperLayer, Box<dyn Error>> {
    Ok(Limiter::builder().rule(in_flight(2).by("ip/32").named("at-once")).layer()?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:8081").await?;
    println!("listening on http://{}", listener.local_addr()?);
    serve(listener, layer()?).await?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn a_third_request_at_the_same_time_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, layer().unwrap()));
        let ask = || async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nhost: example\r\nconnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer[9..12].to_string()
        };
        let (first, second, third) = tokio::join!(ask(), ask(), ask());
        let mut statuses = [first, second, third];
        statuses.sort();
        assert_eq!(statuses, ["200", "200", "429"]);
        assert_eq!(ask().await, "200");
    }
}
