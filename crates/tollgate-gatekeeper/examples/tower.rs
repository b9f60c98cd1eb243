//! Any tower service behind a limit by API key: `cargo run -p tollgate-gatekeeper --example tower`
#![allow(clippy::print_stdout, reason = "the output is for the user")]

use std::convert::Infallible;
use std::error::Error;

use http::{Request, Response};
use tollgate_gatekeeper::{Limiter, per_minute};
use tower::{Layer, Service, ServiceExt, service_fn};

async fn hello(_request: Request<String>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".to_string()))
}

async fn statuses() -> Result<Vec<u16>, Box<dyn Error>> {
    let layer = Limiter::builder().rule(per_minute(3).by("header:x-api-key").named("api")).layer()?;
    let mut service = layer.layer(service_fn(hello));
    let mut statuses = Vec::new();
    for key in ["ann", "ann", "ann", "ann", "bob"] {
        let request = Request::builder().uri("/").header("x-api-key", key).body(String::new())?;
        statuses.push(service.ready().await?.call(request).await?.status().as_u16());
    }
    Ok(statuses)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("{:?}", statuses().await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn each_key_has_three_requests_a_minute() {
        assert_eq!(super::statuses().await.expect("the rules are valid"), [200, 200, 200, 429, 200]);
    }
}
