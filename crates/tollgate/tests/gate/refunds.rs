//! Requests are refunded if, and only if, they were not forwarded.

use std::io::{BufReader, Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::support::{Backend, Gate, closed, eventually, read_response};

const ONCE: &str = "[[rule]]\nname = 'once'\nclass = 'ip/32'\nrate = { rate = '1/h', burst = 1 }\nhold = '0s'\n";

fn gate(url: &str, timeouts: &str) -> Gate {
    Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"{url}\"\n{timeouts}\n{ONCE}"))
}

#[test]
fn a_request_on_which_the_backend_crashes_is_charged() {
    let backend = Backend::connecting(|mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.shutdown(Shutdown::Both);
    });
    let gate = gate(&backend.url(), "");
    assert_eq!([gate.get("/").status, gate.get("/").status], [502, 429]);
}

#[test]
fn a_request_that_takes_too_long_is_charged() {
    let backend = Backend::answering(|_, stream| {
        std::thread::sleep(Duration::from_secs(2));
        crate::support::backend::respond(stream, "ok")
    });
    let gate = gate(&backend.url(), "timeouts.response_head = '200ms'");
    assert_eq!([gate.get("/").status, gate.get("/").status], [504, 429]);
}

#[test]
fn a_request_with_a_truncated_response_is_charged() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")?;
        stream.shutdown(Shutdown::Both)
    });
    let gate = gate(&backend.url(), "");
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    assert_eq!(gate.get("/").status, 429);
}

#[test]
fn a_request_whose_backend_cannot_be_reached_is_refunded() {
    let (_socket, address) = closed();
    let gate = gate(&format!("http://{address}"), "");
    let statuses: Vec<_> = (0..5).map(|_| gate.get("/").status).collect();
    assert!(statuses.iter().all(|status| [502, 503].contains(status)), "{statuses:?}");
}

/// Uploads without a body are parked while the rule admits more requests. Then each is closed for another request.
#[test]
fn abandoned_parked_uploads_do_not_refund_a_burst() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'rate'\nclass = 'ip/32'\nrate = { rate = '10/s', burst = 2 }\nhold = '0s'\n";
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{rule}", backend.url()));
    let mut parked = Vec::new();
    for number in 1..=14 {
        let mut stream = gate.connect();
        stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n").unwrap();
        eventually("it is decided", || gate.metric("tollgate_requests_total") == number);
        parked.push(stream);
        // The rate admits the next one.
        std::thread::sleep(Duration::from_millis(110));
    }
    // The burst is full again.
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    let mut forwarded = 0;
    for stream in parked {
        drop(stream);
        let mut stream = gate.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        forwarded += u32::from(read_response(&mut BufReader::new(stream)).unwrap().status == 200);
    }
    let most = 2 + began.elapsed().as_millis() / 100;
    assert!(u128::from(forwarded) <= most, "{forwarded} of {most} were forwarded in {:?}", began.elapsed());
}
