//! A gRPC service in which every caller, identified by `x-account` in its metadata, may make three calls at once and
//! one more per second: `cargo run -p tollgate-gatekeeper --example tonic`. The service is gRPC's health check.
#![allow(clippy::print_stdout, reason = "the output is for the user")]

use std::error::Error;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tollgate_gatekeeper::{Limiter, per_second};
use tonic::transport::Server;

async fn serve(listener: TcpListener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let layer = Limiter::builder()
        .rule(per_second(1).burst(3).by("header:x-account").named("calls"))
        .layer()
        .map_err(|error| error.to_string())?;
    let (_reporter, service) = tonic_health::server::health_reporter();
    let incoming = TcpListenerStream::new(listener);
    Server::builder().layer(layer).add_service(service).serve_with_incoming(incoming).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let listener = TcpListener::bind("127.0.0.1:8081").await?;
    println!("listening on {}", listener.local_addr()?);
    serve(listener).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tonic::transport::Channel;
    use tonic::{Code, Request};
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    #[tokio::test]
    async fn the_fourth_call_of_an_account_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener));
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let mut client = HealthClient::new(channel);
        let mut outcomes = Vec::new();
        for account in ["ann", "ann", "ann", "ann", "bob"] {
            let mut call = Request::new(HealthCheckRequest { service: String::new() });
            call.metadata_mut().insert("x-account", account.parse().unwrap());
            outcomes.push(client.check(call).await.map(|_| ()).map_err(|status| status.code()));
        }
        assert_eq!(outcomes, [Ok(()), Ok(()), Ok(()), Err(Code::ResourceExhausted), Ok(())]);
    }
}
