//! Active health checks: the first worker requests `health.path` from each backend at an interval, and records in
//! [`Backend::checked`] whether the response has the expected status.

use std::io::IoSlice;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tollgate_wire::http1::ResponseHead;
use tollgate_wire::http1::chunked::Decoder;

use super::backend::h1::H1Answer;
use super::backend::{Backend, h2};
use super::body::PeerError;
use super::halves::BackendAnswer;
use super::worker::Worker;
use crate::gate::net::buffer::ReadBuffer;
use crate::gate::net::pace::Pace;
use crate::gate::net::timer::Way;
use crate::settings::{BackendProtocol, HealthCheck};

/// The interval at which a gate without `health.path` looks whether a reload has set one.
const OFF_INTERVAL: Duration = Duration::from_secs(1);

/// Checks all backends, each in a task of its own, until the worker ends.
pub(crate) async fn run(worker: Rc<Worker>) {
    loop {
        let settings = Rc::new(worker.settings().health.clone());
        if settings.path.is_none() {
            tokio::time::sleep(OFF_INTERVAL).await;
            continue;
        }
        for backend in &worker.shared.backends.load().all {
            let (backend, worker, settings) = (backend.clone(), worker.clone(), settings.clone());
            tokio::task::spawn_local(async move {
                // A check that outlasts the interval would overlap with the next one.
                let time = settings.timeout.min(settings.interval);
                let result = tokio::time::timeout(time, check(&backend, &worker, &settings)).await;
                let result = result.unwrap_or_else(|_| Err("took too long".to_owned()));
                backend.checked(result.as_ref().map(drop).map_err(String::as_str));
            });
        }
        tokio::time::sleep(settings.interval).await;
    }
}

/// Checks one backend on a new connection. Fails with the reason.
async fn check(backend: &Arc<Backend>, worker: &Worker, settings: &HealthCheck) -> Result<(), String> {
    let (path, timeout) = (settings.path.as_deref().unwrap_or_default(), settings.timeout);
    let status = if backend.url.protocol == BackendProtocol::Http2 {
        status_h2(backend, worker, path, timeout).await?
    } else {
        status_h1(backend, worker, path, timeout).await?
    };
    if status == settings.status { Ok(()) } else { Err(format!("status {status}")) }
}

async fn status_h1(backend: &Backend, worker: &Worker, path: &str, timeout: Duration) -> Result<u16, String> {
    let socket = worker.connect(backend).await.map_err(|error| error.to_string())?;
    let authority = &backend.authority;
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: {authority}\r\nuser-agent: tollgate\r\nconnection: close\r\n\r\n");
    let mut parts = [IoSlice::new(request.as_bytes())];
    socket.write_all(&mut parts, timeout).await.map_err(|error| error.to_string())?;
    socket.timer.set(Way::In, timeout);
    let (mut buffer, mut decoder) = (ReadBuffer::default(), Decoder::default());
    let mut answer = H1Answer::new(&socket, &mut buffer, &mut decoder, Pace::without_rate(timeout), false);
    final_status(&mut answer).await
}

async fn status_h2(backend: &Backend, worker: &Worker, path: &str, timeout: Duration) -> Result<u16, String> {
    let socket = worker.connect(backend).await.map_err(|error| error.to_string())?;
    let connection = h2::H2Connection::begin(socket, timeout).await.map_err(|error| error.to_string())?;
    let scheme = if backend.url.tls { "https" } else { "http" };
    let request = http::Request::get(format!("{scheme}://{}{}", backend.authority, path))
        .header("user-agent", "tollgate")
        .body(())
        .map_err(|error| error.to_string())?;
    let opened = h2::open(&connection, request, true, false, Pace::without_rate(timeout), worker.timers.timer()).await;
    let (mut answer, _sink) = opened.map_err(|broken| broken.as_str().to_owned())?;
    final_status(&mut answer).await
}

async fn final_status(answer: &mut impl BackendAnswer) -> Result<u16, String> {
    let mut head = ResponseHead::default();
    loop {
        answer.head(&mut head).await.map_err(|broken: PeerError| broken.as_str().to_owned())?;
        if !head.is_interim() {
            return Ok(head.status);
        }
    }
}
