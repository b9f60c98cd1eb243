//! Clients and backends that use HTTP/2 without TLS.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::net::{TcpListener, TcpStream};

use super::PATIENCE;

/// Runs an async test on this thread, for at most [`PATIENCE`].
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, test).await.expect("took too long") })
}

/// Connects without TLS.
pub async fn connect(address: SocketAddr) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

/// A response.
pub struct Http2Answer {
    pub head: http::response::Parts,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

impl Http2Answer {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A request for a path of `site`.
pub fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(format!("http://site{path}"))
}

/// Sends a request with this body and reads the whole response.
pub async fn send(
    sender: &mut SendRequest<Bytes>,
    request: Request<()>,
    body: &[u8],
) -> Result<Http2Answer, h2::Error> {
    let mut sender = sender.clone().ready().await?;
    let (response, mut stream) = sender.send_request(request, body.is_empty())?;
    if !body.is_empty() {
        send_body(&mut stream, body, None).await?;
    }
    read_answer(response.await?).await
}

/// Sends a body and its trailers, if there are any, as fast as flow control permits.
pub async fn send_body(
    stream: &mut SendStream<Bytes>,
    body: &[u8],
    trailers: Option<HeaderMap>,
) -> Result<(), h2::Error> {
    let mut left = body;
    while !left.is_empty() {
        stream.reserve_capacity(left.len());
        let capacity = match stream.capacity() {
            0 => match std::future::poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(capacity) => capacity?,
                None => return Ok(()),
            },
            capacity => capacity,
        };
        let (now, later) = left.split_at(capacity.min(left.len()));
        stream.send_data(Bytes::copy_from_slice(now), false)?;
        left = later;
    }
    match trailers {
        Some(trailers) => stream.send_trailers(trailers),
        None => stream.send_data(Bytes::new(), true),
    }
}

pub async fn read_answer(response: Response<RecvStream>) -> Result<Http2Answer, h2::Error> {
    let (head, mut stream) = response.into_parts();
    let (body, trailers) = read_body(&mut stream).await?;
    Ok(Http2Answer { head, body, trailers })
}

pub async fn read_body(stream: &mut RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut body = Vec::new();
    while let Some(data) = stream.data().await {
        let data = data?;
        stream.flow_control().release_capacity(data.len())?;
        body.extend_from_slice(&data);
    }
    Ok((body, stream.trailers().await?))
}

/// A backend that calls `answer` for each request. It needs [`run_local`].
pub async fn backend<F>(answer: impl Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + 'static) -> SocketAddr
where
    F: Future<Output = ()> + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.set_nodelay(true).unwrap();
            let answer = answer.clone();
            tokio::task::spawn_local(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, respond))) = connection.accept().await {
                    tokio::task::spawn_local(answer(request, respond));
                }
            });
        }
    });
    address
}

/// As [`run`], for tests that spawn local tasks.
pub fn run_local<T>(test: impl Future<Output = T>) -> T {
    let local = tokio::task::LocalSet::new();
    run(local.run_until(test))
}
