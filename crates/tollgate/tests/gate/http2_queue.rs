//! Many requests of one HTTP/2 connection in the queue: each is decided on by itself, whatever the others wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;

use crate::support::backend::respond;
use crate::support::http2::{connect, read_answer, request, run_local, send};
use crate::support::{Backend, Gate};

/// A backend that answers requests for `/slow` once it is opened, and others at once.
fn closed_backend() -> (Backend, Arc<AtomicBool>) {
    let is_open = Arc::new(AtomicBool::new(false));
    let opened = is_open.clone();
    let backend = Backend::answering(move |request, stream| {
        while request.path() == "/slow" && !opened.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(2));
        }
        respond(stream, "ok")
    });
    (backend, is_open)
}

fn get(path: &str) -> Request<()> {
    request("GET", path).body(()).unwrap()
}

/// Sends a request without a body, and does not wait for its response.
async fn begin(sender: &SendRequest<Bytes>, request: Request<()>) -> ResponseFuture {
    let mut ready = sender.clone().ready().await.unwrap();
    ready.send_request(request, true).unwrap().0
}

/// Waits until a metric has this value.
async fn metric_is(gate: &Arc<Gate>, name: &'static str, value: u64) {
    loop {
        let gate = gate.clone();
        if tokio::task::spawn_blocking(move || gate.metric(name)).await.unwrap() == value {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn an_exempt_request_passes_a_hundred_waiting_ones_of_its_connection() {
    let (backend, is_open) = closed_backend();
    let lines = "h2c = true\nin_flight = 4\nhold = { max = '60s' }\n\
        [[priority]]\nname = 'health'\nwhen = { path = '/healthz' }\nexempt = true\n";
    let gate = Arc::new(Gate::with(&backend, lines));
    run_local(async {
        let sender = connect(gate.address).await;
        let mut waiting = Vec::new();
        for _ in 0..100 {
            waiting.push(begin(&sender, get("/slow")).await);
        }
        for _ in 0..20 {
            assert_eq!(send(&mut sender.clone(), get("/healthz"), b"").await.unwrap().head.status, 200);
        }
        metric_is(&gate, "tollgate_requests_waiting", 96).await;
        assert_eq!(send(&mut sender.clone(), get("/healthz"), b"").await.unwrap().head.status, 200);
        is_open.store(true, Ordering::Relaxed);
        for response in waiting {
            assert_eq!(response.await.unwrap().status(), 200);
        }
    });
    assert_eq!(gate.metric("tollgate_h2_refused_total"), 0);
}

#[test]
fn clients_behind_the_connection_of_a_proxy_take_turns() {
    let (backend, is_open) = closed_backend();
    let lines = "h2c = true\nin_flight = 1\nhold = { max = '60s' }\ntrusted_proxies = '127.0.0.1'";
    let gate = Arc::new(Gate::with(&backend, lines));
    let from = |client: &str| request("GET", "/slow").header("x-forwarded-for", client).body(()).unwrap();
    run_local(async {
        let proxy = connect(gate.address).await;
        let mut responses = Vec::new();
        for _ in 0..60 {
            responses.push(begin(&proxy, from("203.0.113.1")).await);
        }
        responses.push(begin(&proxy, from("198.51.100.1")).await);
        metric_is(&gate, "tollgate_requests_waiting", 60).await;
        is_open.store(true, Ordering::Relaxed);
        for response in responses {
            assert_eq!(response.await.unwrap().status(), 200);
        }
    });
    let requests = backend.requests();
    let of_other = |request: &crate::support::backend::Request| {
        request.field("x-forwarded-for").unwrap().starts_with("198.51.100.1")
    };
    let before = requests.iter().position(of_other).unwrap();
    assert!((1..=2).contains(&before), "{before} requests of the first client were served before");
}

#[test]
fn requests_that_would_wait_too_long_get_a_response_with_retry_after() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_millis(100));
        respond(stream, "ok")
    });
    let gate = Gate::with(&backend, "h2c = true\nin_flight = 1\nhold = { max = '1s' }");
    let refused = Arc::new(AtomicUsize::new(0));
    run_local(async {
        let sender = connect(gate.address).await;
        let mut responses = Vec::new();
        for _ in 0..100 {
            responses.push(begin(&sender, get("/")).await);
        }
        for response in responses {
            let answer = read_answer(response.await.unwrap()).await.unwrap();
            match answer.head.status.as_u16() {
                200 => {}
                429 | 503 => {
                    let retry_secs: u64 = answer.field("retry-after").unwrap().parse().unwrap();
                    assert!((1..=60).contains(&retry_secs), "{retry_secs}");
                    refused.fetch_add(1, Ordering::Relaxed);
                }
                status => panic!("{status}"),
            }
        }
    });
    let refused = refused.load(Ordering::Relaxed) as u64;
    assert!((50..100).contains(&refused), "{refused}");
    assert_eq!(gate.metric("tollgate_requests_refused_total"), refused);
    assert_eq!(gate.metric("tollgate_h2_refused_total"), 0);
    let log = gate.end();
    let counted: u64 = log.iter().filter(|line| line.contains("wait-too-long")).map(|line| count_of(line)).sum();
    assert_eq!(counted, refused, "{log:#?}");
}

/// The number of engagements in a line of the log.
fn count_of(line: &str) -> u64 {
    serde_json::from_str::<serde_json::Value>(line).unwrap()["count"].as_u64().unwrap()
}

#[test]
fn requests_that_a_rule_holds_delay_no_others_of_their_connection() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'calm'\nclass = 'header:x-user'\nrate = { rate = '1/s', burst = 1 }\nhold = '99s'\n";
    let gate = Gate::with(&backend, &format!("h2c = true\nhold = {{ max = '99s' }}\n{rule}"));
    let of_user = |user: &str| request("GET", "/").header("x-user", user).body(()).unwrap();
    run_local(async {
        let sender = connect(gate.address).await;
        let mut held = Vec::new();
        for _ in 0..90 {
            held.push(begin(&sender, of_user("a")).await);
        }
        assert_eq!(send(&mut sender.clone(), of_user("b"), b"").await.unwrap().head.status, 200);
        assert!(backend.count() < 20, "{} requests were forwarded before", backend.count());
    });
}

/// They are the only requests that wait outside the queue, because they may never become complete.
#[test]
fn uploads_that_the_memory_of_their_connection_does_not_suffice_for_count_as_refused() {
    let backend = Backend::saying("ok");
    let lines = "h2c = true\nhold = { max = '1s' }\ntrusted_proxies = '127.0.0.1'\n\
        [gate.access_log]\noutput = 'FILE'\nformat = 'json'\n";
    let folder = tempfile::tempdir().unwrap();
    let access_log = folder.path().join("access.log");
    let gate = Gate::with(&backend, &lines.replace("FILE", access_log.to_str().unwrap()));
    let refused = run_local(async {
        let sender = connect(gate.address).await;
        let mut uploads = Vec::new();
        for _ in 0..60 {
            let head =
                request("POST", "/upload").header("content-length", "10").header("x-forwarded-for", "203.0.113.1");
            let mut ready = sender.clone().ready().await.unwrap();
            uploads.push(ready.send_request(head.body(()).unwrap(), false).unwrap());
        }
        // The newest one is parked, because the memory does not suffice for all.
        let (newest, _stream) = uploads.pop().unwrap();
        assert_eq!(newest.await.unwrap_err().reason(), Some(Reason::REFUSED_STREAM));
        let mut refused = 1;
        for (mut response, _) in uploads {
            let polled = std::future::poll_fn(|cx| std::task::Poll::Ready(std::pin::Pin::new(&mut response).poll(cx)));
            refused += u64::from(polled.await.is_ready());
        }
        refused
    });
    assert!(refused > 30, "{refused}");
    assert_eq!(gate.metric("tollgate_h2_refused_total"), refused);
    assert_eq!(gate.metric("tollgate_requests_refused_total"), refused);
    let log = gate.end();
    let of_queue: Vec<_> = log.iter().filter(|line| line.contains("connection-memory")).collect();
    assert!(of_queue[0].contains("203.0.113.1"), "{log:#?}");
    assert_eq!(of_queue.iter().map(|line| count_of(line)).sum::<u64>(), refused, "{log:#?}");
    let lines = std::fs::read_to_string(access_log).unwrap();
    let lines: Vec<_> = lines.lines().filter(|line| line.contains("connection-memory")).collect();
    assert_eq!(lines.len() as u64, refused);
    assert!(lines[0].contains("203.0.113.1") && lines[0].contains("503"), "{}", lines[0]);
}
