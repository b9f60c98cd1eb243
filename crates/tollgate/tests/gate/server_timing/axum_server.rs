//! A site in axum, with the snippet of the page.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Context;

use axum::extract::Request;
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;

fn cpu_ms() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

async fn server_timing(request: Request, next: Next) -> Response {
    let (mut handler, mut spent_ms) = (pin!(next.run(request)), 0.0);
    let poll = |context: &mut Context<'_>| {
        let begin_ms = cpu_ms();
        let poll = handler.as_mut().poll(context);
        spent_ms += cpu_ms() - begin_ms;
        poll
    };
    let mut response = poll_fn(poll).await;
    let value = HeaderValue::try_from(format!("cpu;dur={spent_ms:.1}"));
    response.headers_mut().append("server-timing", value.expect("a number is a valid value"));
    response
}

async fn burn() -> &'static str {
    let begin_ms = cpu_ms();
    while cpu_ms() - begin_ms < 30.0 {}
    "ok"
}

async fn wait() -> &'static str {
    tokio::time::sleep(super::WAIT).await;
    "ok"
}

/// Serves until the process ends.
pub(super) fn start(is_reporting: bool) -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut site =
        axum::Router::new().route("/burn", axum::routing::get(burn)).route("/wait", axum::routing::get(wait));
    if is_reporting {
        site = site.layer(axum::middleware::from_fn(server_timing));
    }
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, site).await.unwrap();
        });
    });
    address
}
