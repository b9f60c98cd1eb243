//! A gRPC service behind a keeper: `cargo run -p tollgate-gatekeeper --features tower --example tonic`
//!
//! The service is gRPC's health check. Every caller, identified by `x-account` in its metadata, may make
//! three calls at once and one more per second. The example serves on a free port and calls itself five times
//! as one caller and once as another.
#![allow(clippy::print_stdout, reason = "the output is for the user")]

use std::error::Error;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tollgate_core::class::Class;
use tollgate_core::limit::{Limit, Rate};
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::Plan;
use tollgate_gatekeeper::tower::{Keeper, KeeperLayer};
use tonic::Request;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let rule = Rule {
        name: "each".into(),
        when: Default::default(),
        unless: None,
        class: Class::parse("header:x-account").map_err(|_| "no class")?,
        limit: Limit::Rate(Rate::new(1, Span::from_secs(1), 3).map_err(|_| "no rate")?),
        escalation: None,
        warmup: None,
        hold_max: Span::ZERO,
        mode: Mode::Enforce,
    };
    let plan = Plan { rules: vec![(rule, 1 << 20)], started: Moment::ZERO, seed: Seed::random(), names_max: 64 };
    let layer = KeeperLayer::new(Keeper::new(plan)?);

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (_reporter, service) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));

    println!("a gRPC service on {address}, three calls at once and one each second for each account");
    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for account in ["ann", "ann", "ann", "ann", "ann", "bob"] {
        let mut call = Request::new(HealthCheckRequest { service: String::new() });
        call.metadata_mut().insert("x-account", account.parse()?);
        match client.check(call).await {
            Ok(answer) => println!("{account}: served, {:?}", answer.metadata().get("ratelimit")),
            Err(status) => {
                println!("{account}: {:?}, retry in {:?} s", status.code(), status.metadata().get("retry-after"));
            }
        }
    }
    Ok(())
}
