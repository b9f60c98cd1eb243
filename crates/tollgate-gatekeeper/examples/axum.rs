//! A site behind a keeper: `cargo run -p tollgate-gatekeeper --features tower --example axum`
//!
//! Every address may send five requests at once and one more per second. The example serves on a free port,
//! sends itself ten requests, waits as announced, and sends another one.
#![allow(clippy::print_stdout, reason = "the output is for the user")]

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::{Router, routing::get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate_core::class::Class;
use tollgate_core::limit::{Limit, Rate};
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::Plan;
use tollgate_gatekeeper::tower::{Keeper, KeeperLayer};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let rule = Rule {
        name: "each".into(),
        when: Default::default(),
        unless: None,
        class: Class::parse("ip/32").map_err(|_| "no class")?,
        limit: Limit::Rate(Rate::new(1, Span::from_secs(1), 5).map_err(|_| "no rate")?),
        escalation: None,
        warmup: None,
        hold_max: Span::ZERO,
        mode: Mode::Enforce,
    };
    let plan = Plan { rules: vec![(rule, 1 << 20)], started: Moment::ZERO, seed: Seed::random(), names_max: 64 };
    let layer = KeeperLayer::new(Keeper::new(plan)?)
        .client(|seen| seen.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip()));
    let site = Router::new().route("/", get(|| async { "hello\n" })).layer(layer);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, site.into_make_service_with_connect_info::<SocketAddr>()).await });

    println!("a site on http://{address}, five requests at once and one each second");
    for number in 1..=10 {
        println!("request {number:2}: {}", ask(address).await?);
    }
    println!("waiting for a second");
    tokio::time::sleep(Duration::from_secs(1)).await;
    println!("request 11: {}", ask(address).await?);
    Ok(())
}

/// The status of the response and its rate-limit headers.
async fn ask(address: SocketAddr) -> Result<String, Box<dyn Error>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: example\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let mut lines = answer.lines();
    let status = lines.next().unwrap_or_default().to_owned();
    let told = lines.filter(|line| line.starts_with("ratelimit:") || line.starts_with("retry-after:"));
    Ok(told.fold(status, |text, line| format!("{text}  {line}")))
}
