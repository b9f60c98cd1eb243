//! A service that shares a limit with all its other instances: ten requests per API key and one more per
//! second, for any number of instances.
//!
//! ```sh
//! redis-server --port 6379 &
//! cargo run -p tollgate-gatekeeper --example shared-limits -- redis://127.0.0.1:6379 127.0.0.1:8081 &
//! cargo run -p tollgate-gatekeeper --example shared-limits -- redis://127.0.0.1:6379 127.0.0.1:8082 &
//! for i in $(seq 12); do curl -s -o /dev/null -w '%{http_code} ' -H 'X-Api-Key: me' http://127.0.0.1:808$((1 + i % 2))/; done
//! ```
//!
//! The HTTP code is minimal; the relevant part is `decide`.
#![expect(clippy::print_stdout, reason = "it talks to the person who runs it")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate_core::band::Band;
use tollgate_core::decision::Verdict;
use tollgate_core::request::Request;
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::shared::{Address, Options, SharedLimiter, Store};
use tollgate_gatekeeper::{Limiter, bucket};

#[cfg(test)]
use tollgate_test_support::redis_server;

type Failure = Box<dyn core::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let redis = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".into());
    let listen = arguments.next().unwrap_or_else(|| "127.0.0.1:8081".into());
    let limiter = Arc::new(limiter(&redis)?);
    let listener = TcpListener::bind(listen).await?;
    println!("listening on {}", listener.local_addr()?);
    serve(listener, limiter).await?;
    Ok(())
}

/// The rules of this service and their store. Redis need not be available: until it is, this instance decides
/// by itself.
fn limiter(redis: &str) -> Result<SharedLimiter, Failure> {
    let plan = Limiter::builder()
        .rule(bucket(10, 1, Duration::from_secs(1)).by("header:x-api-key").named("per-key"))
        .plan()?;
    let store = Store::open(Address::parse(redis, None)?, Options::default());
    Ok(SharedLimiter::with_gates(plan, store, Clock::start())?)
}

async fn serve(listener: TcpListener, limiter: Arc<SharedLimiter>) -> io::Result<()> {
    loop {
        let (stream, peer) = listener.accept().await?;
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move {
            // A client may disconnect at any time.
            drop(answer(stream, peer.ip(), &limiter).await);
        });
    }
}

async fn answer(mut stream: TcpStream, client: IpAddr, limiter: &SharedLimiter) -> io::Result<()> {
    let mut head = vec![0; 4096];
    let length = stream.read(&mut head).await?;
    let text = String::from_utf8_lossy(&head[..length]).into_owned();
    let said = decide(limiter, &Call { client, head: &text }).await;
    stream.write_all(said.as_bytes()).await
}

/// Decides on one request.
async fn decide(limiter: &SharedLimiter, call: &Call<'_>) -> String {
    let (decision, ticket) = limiter.decide(call, Toll::ONE, Band::Normal).await;
    if decision.verdict == Verdict::Admit {
        let remaining = decision.info.map_or(0, |info| info.remaining);
        // The service does its work here. `settle` ends the request; `refund` would revert it.
        limiter.settle(ticket, Toll::ONE);
        return format!(
            "HTTP/1.1 200 OK\r\nX-RateLimit-Remaining: {remaining}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    }
    let secs = decision.info.map_or(1, |info| info.reset.as_secs_ceil().max(1));
    format!("HTTP/1.1 429 Too Many Requests\r\nRetry-After: {secs}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

/// A request as rules see it.
struct Call<'head> {
    client: IpAddr,
    head: &'head str,
}

impl Call<'_> {
    fn line(&self, place: usize) -> &[u8] {
        self.head.lines().next().and_then(|line| line.split(' ').nth(place)).unwrap_or_default().as_bytes()
    }
}

impl Request for Call<'_> {
    fn client(&self) -> Option<IpAddr> {
        Some(self.client)
    }

    fn method(&self) -> &[u8] {
        self.line(0)
    }

    fn target(&self) -> &[u8] {
        self.line(1)
    }

    fn host(&self) -> Option<&[u8]> {
        self.header("host")
    }

    // This service has one path, and no rule uses it.

    fn header(&self, name: &str) -> Option<&[u8]> {
        let field = |line: &'_ str| line.split_once(':').is_some_and(|(field, _)| field.eq_ignore_ascii_case(name));
        let line = self.head.lines().skip(1).find(|line| field(line))?;
        Some(line.split_once(':')?.1.trim().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::redis_server::RedisServer;
    use super::*;

    async fn status(address: std::net::SocketAddr) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: me\r\n\r\n").await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        said.split(' ').nth(1).unwrap().to_owned()
    }

    #[tokio::test]
    async fn two_instances_together_admit_the_limit() {
        let server = RedisServer::start(&[]);
        let mut addresses = Vec::new();
        for _ in 0..2 {
            let limiter = Arc::new(limiter(&server.url()).unwrap());
            while limiter.store().counts().connects == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(listener.local_addr().unwrap());
            tokio::spawn(serve(listener, limiter));
        }
        let mut admitted = 0;
        for call in 0..14 {
            admitted += usize::from(status(addresses[call % 2]).await == "200");
        }
        // Ten, and one more if a second has passed. Each instance alone would have admitted seven.
        assert!((10..=11).contains(&admitted), "{admitted}");
    }
}
