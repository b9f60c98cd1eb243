//! Shares and priorities of clients while the backend is busy.

use std::io::{BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::backend::respond;
use crate::support::client::connect_from;
use crate::support::crowd::{Crowd, slow_backend};
use crate::support::{Backend, Gate, eventually, read_response, roundtrip};

/// A gate with one request in flight.
fn gate(backend: &Backend, rest: &str) -> Gate {
    Gate::start(&format!("[gate]\nworkers = 1\ncores = 1\nin_flight = 1\nbackend = \"{}\"\n{rest}", backend.url()))
}

/// The numbers of served requests of `many` and `few` when the latter reach 20. Each is a list of addresses and
/// requests, one for each connection.
fn served(gate: &Gate, many: &[([u8; 4], &str)], few: &[([u8; 4], &str)]) -> (usize, usize) {
    let crowds = [Crowd::default(), Crowd::default()];
    std::thread::scope(|scope| {
        for (crowd, connections) in crowds.iter().zip([many, few]) {
            connections.iter().for_each(|(from, request)| crowd.join(scope, gate, *from, request));
        }
        eventually("twenty are served", || crowds[1].served() >= 20);
        let served = (crowds[0].served(), crowds[1].served());
        crowds.iter().for_each(Crowd::end);
        served
    })
}

#[test]
fn users_of_one_address_share_it_by_cookie() {
    let backend = slow_backend();
    let gate = gate(&backend, "fairness = { by = 'cookie:sid' }\n");
    let office = [127, 70, 0, 1];
    let (many, few) = served(
        &gate,
        &[(office, "GET / HTTP/1.1\nCookie: sid=one"); 12],
        &[(office, "GET / HTTP/1.1\nCookie: sid=two")],
    );
    // If connections were users, the user with twelve would get twelve times as much.
    assert!(many <= 3 * few, "{many} and {few}");
}

#[test]
fn without_the_cookie_connections_of_one_address_share_it() {
    let backend = slow_backend();
    let gate = gate(&backend, "fairness = { by = 'cookie:sid' }\n");
    let office = [127, 70, 1, 1];
    let (many, few) = served(&gate, &[(office, "GET / HTTP/1.1"); 3], &[(office, "GET / HTTP/1.1")]);
    assert!((2 * few..=4 * few + 4).contains(&many), "{many} and {few}");
}

#[test]
fn a_key_instead_of_the_address_has_one_share_from_all_addresses() {
    let backend = slow_backend();
    let gate = gate(&backend, "fairness = { by = 'header:x-api-key', place = 'instead' }\n");
    let one = "GET / HTTP/1.1\nX-Api-Key: one";
    let many: Vec<_> = (0..8).map(|network| ([127, 71 + network, 0, 1], one)).collect();
    let (many, few) = served(&gate, &many, &[([127, 71, 0, 1], "GET / HTTP/1.1\nX-Api-Key: two")]);
    // If addresses were charged, the key with eight blocks would get eight times as much.
    assert!(many <= 3 * few, "{many} and {few}");
}

const LOGGED_IN: &str = "[[priority]]\nname = 'logged-in'\nwhen = { cookie = { session = '*' } }\nweight = 4\n";

#[test]
fn clients_with_four_times_the_weight_are_served_about_four_times_as_much() {
    let backend = slow_backend();
    let gate = gate(&backend, LOGGED_IN);
    let (many, few) = served(
        &gate,
        &[([127, 80, 0, 1], "GET / HTTP/1.1\nCookie: session=me"); 6],
        &[([127, 81, 0, 1], "GET / HTTP/1.1"); 6],
    );
    assert!((3 * few..=6 * few).contains(&many), "{many} and {few}");
}

#[test]
fn priorities_are_reloaded_like_rules() {
    let backend = slow_backend();
    let gate = gate(&backend, "");
    let config = format!("[gate]\nworkers = 1\ncores = 1\nin_flight = 1\nbackend = \"{}\"\n{LOGGED_IN}", backend.url());
    gate.rewrite(&config);
    gate.signal("HUP");
    gate.logged("settings reloaded");
    let (many, few) = served(
        &gate,
        &[([127, 82, 0, 1], "GET / HTTP/1.1\nCookie: session=me"); 6],
        &[([127, 83, 0, 1], "GET / HTTP/1.1"); 6],
    );
    assert!((3 * few..=6 * few).contains(&many), "{many} and {few}");
}

#[test]
fn searches_of_a_client_do_not_delay_its_own_checkout() {
    let backend = slow_backend();
    let gate = gate(&backend, "[[priority]]\nname = 'checkout'\nwhen = { path = '/checkout' }\nweight = 10\n");
    let (client, other) = ([127, 84, 0, 1], [127, 85, 0, 1]);
    let searches = [[(client, "GET /search HTTP/1.1"); 8], [(other, "GET /search HTTP/1.1"); 8]].concat();
    let (searches, checkouts) = served(&gate, &searches, &[(client, "GET /checkout HTTP/1.1")]);
    // Each checkout waits for the request in flight only. Without the priority it would wait for sixteen.
    assert!(searches <= 3 * checkouts, "{searches} and {checkouts}");
}

#[test]
fn a_health_check_through_a_full_gate_is_never_refused_and_never_waits() {
    let is_open = Arc::new(AtomicBool::new(false));
    let opened = is_open.clone();
    let backend = Backend::answering(move |request, stream| {
        while request.path() == "/stuck" && !opened.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        respond(stream, "ok")
    });
    let lines = "hold = { max = '60s', total = 4 }\n\
        [[priority]]\nname = 'health'\nwhen = { path = '/healthz' }\nexempt = true\n";
    let gate = gate(&backend, lines);
    let mut stuck: Vec<_> = (0..5).map(|client| connect_from([127, 86, 0, client + 1].into(), gate.address)).collect();
    for stream in &mut stuck {
        stream.write_all(b"GET /stuck HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    }
    eventually("four wait", || gate.metric("tollgate_requests_waiting") == 4);
    assert_eq!(gate.get("/").status, 503, "the queue is full");
    for check in 0..50 {
        assert_eq!(gate.get("/healthz").status, 200, "check {check}");
    }
    let explained = |path: &str| {
        let body = format!("{{\"client\": \"127.0.0.1\", \"path\": \"{path}\"}}");
        let head =
            "POST /api/v1/explain HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
        let request = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let answer = roundtrip(std::net::TcpStream::connect(gate.admin).unwrap(), request.as_bytes());
        let answer: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert!(answer["decision"] == "admit" || answer["retry_after_ms"].as_u64().unwrap() >= 1000, "{answer}");
        assert!(answer["decision"] == "admit" || answer["reason"] == answer["queue"]["reason"], "{answer}");
        assert_eq!(answer["decision"], answer["queue"]["decision"], "no rule applies: {answer}");
        answer["decision"].as_str().unwrap().to_owned()
    };
    assert_eq!([explained("/"), explained("/healthz")], ["refuse", "admit"]);
    // An incomplete upload is forwarded too.
    let upload = format!(
        "POST /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n{}",
        "x".repeat(2_000_000)
    );
    assert_eq!(roundtrip(gate.connect(), upload.as_bytes()).status, 200);
    assert_eq!(gate.metric("tollgate_requests_waiting"), 4, "the waiting requests still wait");
    assert_eq!(backend.requests().iter().filter(|request| request.path() == "/stuck").count(), 1);
    is_open.store(true, Ordering::Relaxed);
    for stream in stuck {
        assert_eq!(read_response(&mut BufReader::new(stream)).unwrap().status, 200);
    }
}

#[test]
fn the_values_that_identify_users_are_forwarded() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, &format!("fairness = {{ by = 'header:x-api-key' }}\n{LOGGED_IN}"));
    let twice = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Api-Key: one\r\nX-Api-Key: two\r\n\
                 X_Api_Key: three\r\n\
        Cookie: session=me; a=b; session=you\r\n\r\n";
    assert_eq!(roundtrip(gate.connect(), twice.as_bytes()).status, 200);
    let seen = backend.requests().remove(0);
    assert_eq!((seen.field("x-api-key"), seen.field("x_api_key")), (Some("one, two"), None));
    assert_eq!(seen.field("cookie"), Some("session=me; a=b"));
}
