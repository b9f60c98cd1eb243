//! Failures that take a backend out of use, and failures that do not.

use std::io::{BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::backend::{read_head, read_request, respond};
use crate::support::client::connect_from;
use crate::support::{Backend, Gate, Response, closed, eventually, roundtrip};

/// A backend that closes the connection without a response to `/crash`, as a crashing worker process does.
fn crashing() -> Backend {
    Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = read_request(&mut reader) {
            if request.path().starts_with("/crash") || respond(&mut stream, "ok").is_err() {
                return;
            }
        }
    })
}

fn get_from(gate: &Gate, client: u8, path: &str) -> Response {
    let stream = connect_from([127, 3, 3, client].into(), gate.address);
    roundtrip(stream, format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
}

#[test]
fn a_client_that_requests_a_crashing_page_does_not_affect_others() {
    let backend = crashing();
    let gate = Gate::with(&backend, "in_flight = 100");
    let (is_over, crashes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let served = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(get_from(&gate, 1, "/crash").status, 502);
                crashes.fetch_add(1, Ordering::Relaxed);
            }
        });
        eventually("the page has crashed", || crashes.load(Ordering::Relaxed) >= 5);
        let served = (0..100).filter(|_| get_from(&gate, 2, "/").status == 200).count();
        is_over.store(true, Ordering::Relaxed);
        served
    });
    assert_eq!(served, 100);
    assert!(gate.log().iter().all(|line| !line.contains("backend is down")));
}

/// Even if all clients request only crashing pages: refusing all requests would be worse.
#[test]
fn the_only_backend_stays_in_use_while_it_accepts_connections() {
    let backend = crashing();
    let gate = Gate::before(&backend);
    for client in 1..20 {
        assert_eq!(get_from(&gate, client, &format!("/crash{}", char::from(b'a' + client))).status, 502);
    }
    assert_eq!(gate.admin("/readyz").status, 200);
    assert_eq!(gate.get("/").status, 200);
    assert!(gate.log().iter().all(|line| !line.contains("backend is down")));
}

#[test]
fn a_backend_that_fails_on_many_routes_is_replaced_by_another() {
    let broken = Backend::connecting(|stream| {
        read_request(&mut BufReader::new(stream));
    });
    let good = Backend::saying("ok");
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = [\"{}\", \"{}\"]\n", broken.url(), good.url()));
    // Failures of one client on one route are not enough, however many.
    let statuses: Vec<u16> = (0..20).map(|_| get_from(&gate, 1, "/one").status).collect();
    assert!(statuses.iter().filter(|status| **status == 502).count() >= 5, "{statuses:?}");
    for client in 2..20 {
        get_from(&gate, client, &format!("/{}", char::from(b'a' + client)));
    }
    gate.logged("backend is down");
    // Only a probe request may fail.
    let failed = (0..20).filter(|_| gate.get("/").status != 200).count();
    assert!(failed <= 2, "{failed} of 20 failed");
}

/// A backend that responds to `/healthz` with 200 or 500, and to other paths with its name.
fn checked(name: &'static str, is_healthy: Arc<AtomicBool>) -> Backend {
    Backend::answering(move |request, stream| match request.path() {
        "/healthz" if !is_healthy.load(Ordering::Relaxed) => {
            stream.write_all(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        }
        _ => respond(stream, name),
    })
}

#[test]
fn a_backend_whose_health_check_fails_gets_no_requests_until_it_succeeds() {
    let is_healthy = Arc::new(AtomicBool::new(true));
    let (first, second) = (checked("first", is_healthy.clone()), checked("second", Arc::new(true.into())));
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\nbackend = [\"{}\", \"{}\"]\nhealth = {{ path = \"/healthz\", interval = \"50ms\" }}\n",
        first.url(),
        second.url()
    ));
    let names = |gate: &Gate| (0..10).map(|_| gate.get("/").text()).collect::<Vec<_>>();
    assert!(names(&gate).contains(&"first".to_owned()));
    is_healthy.store(false, Ordering::Relaxed);
    assert!(gate.logged("its health check fails").contains("status 500"));
    assert_eq!(names(&gate), ["second"; 10]);
    is_healthy.store(true, Ordering::Relaxed);
    gate.logged("backend is up again");
    assert!(names(&gate).contains(&"first".to_owned()));
}

#[test]
fn the_only_backend_is_used_even_if_its_health_check_fails() {
    let backend = checked("only", Arc::new(false.into()));
    let gate = Gate::with(&backend, "health = { path = \"/healthz\", interval = \"50ms\" }");
    gate.logged("its health check fails");
    assert_eq!(gate.get("/").text(), "only");
    assert_eq!(gate.admin("/readyz").status, 200);
}

/// Without a check the next probe is up to fifteen seconds away.
#[test]
fn a_health_check_restores_a_backend_before_the_end_of_its_backoff() {
    let (taken, address) = closed();
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\nbackend = \"http://{address}\"\nhealth = {{ path = \"/\", interval = \"100ms\" }}\n"
    ));
    (0..3).for_each(|_| assert_eq!(gate.get("/").status, 502));
    gate.logged("backend is down");
    taken.listen(16).unwrap();
    std::thread::spawn(move || {
        while let Ok((stream, _)) = taken.accept() {
            let mut stream = std::net::TcpStream::from(stream);
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            if read_request(&mut BufReader::new(stream.try_clone().unwrap())).is_some() {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nback");
            }
        }
    });
    gate.logged("backend is up again");
    assert_eq!(gate.get("/").text(), "back");
}

/// The first request after an outage is the probe. If it is a stalled upload, its client must not determine how long
/// all others are refused.
#[test]
fn a_stalled_upload_does_not_delay_the_return_of_a_backend() {
    let (taken, address) = closed();
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"http://{address}\"\n"));
    eventually("the backend is out", || gate.get("/").status == 503);
    let heads = Arc::new(AtomicUsize::new(0));
    taken.listen(128).unwrap();
    let (listener, counted) = (TcpListener::from(taken), heads.clone());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let counted = counted.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let Some(head) = read_head(&mut reader) else { return };
                counted.fetch_add(1, Ordering::SeqCst);
                if head.line.starts_with("GET") {
                    let _ = respond(&mut stream, "back");
                }
                // The rest of an upload never arrives.
                let _ = reader.read_to_end(&mut Vec::new());
            });
        }
    });
    let mut stalled = Vec::new();
    eventually("an upload is the probe", || {
        let mut upload = gate.connect();
        upload.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n").unwrap();
        upload.write_all(&[b'a'; 20_000]).unwrap();
        stalled.push(upload);
        std::thread::sleep(Duration::from_millis(50));
        heads.load(Ordering::SeqCst) == 1
    });
    let response = gate.get("/");
    assert_eq!((response.status, response.text().as_str()), (200, "back"));
}
