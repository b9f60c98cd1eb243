//! Connections that send nothing, before a request or before the handshake: each uses a connection of the bound.

use std::io::{BufReader, Write};
use std::net::{IpAddr, TcpStream};

use rcgen::{CertifiedKey, KeyPair};

use crate::support::client::{connect_from, is_closed};
use crate::support::http2::run;
use crate::support::{Backend, Gate, eventually, read_response, roundtrip};
use crate::tls::{certificate, get, shake_hands, write};

const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 9, 9, 9));
/// Timeouts that are too long to close a connection during the test.
const PATIENT: &str = "timeouts = { head = \"5min\", keep_alive = \"5min\" }";

/// A gate with TLS, and its certificate.
fn over_tls(backend: &Backend, lines: &str) -> (Gate, CertifiedKey<KeyPair>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let site = certificate(&["site"]);
    write(folder.path(), "site", &site);
    let tls = format!("tls = [{{ cert = \"{0}/site.pem\", key = \"{0}/site.key\" }}]", folder.path().display());
    (Gate::with(backend, &format!("{tls}\n{PATIENT}\n{lines}")), site, folder)
}

/// Whether a client at this address is served over TLS.
fn is_served(gate: &Gate, site: &CertifiedKey<KeyPair>, from: IpAddr) -> bool {
    let stream = connect_from(from, gate.address);
    stream.set_nonblocking(true).unwrap();
    run(async {
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        match shake_hands(stream, site.cert.der(), "site", &["http/1.1"]).await {
            Ok(mut stream) => get(&mut stream).await.ends_with("ok"),
            Err(_) => false,
        }
    })
}

/// Opens this many silent connections, and waits until the gate has accepted all and closed those above the bound.
fn silent(gate: &Gate, count: u64, from: impl Fn(u64) -> IpAddr) -> Vec<TcpStream> {
    let crowd = (0..count).map(|number| connect_from(from(number), gate.address)).collect();
    settled(gate, count);
    crowd
}

/// One of eight addresses, so that none exceeds its bound.
fn one_of_eight(number: u64) -> IpAddr {
    [127, 1, 0, 1 + (number % 8) as u8].into()
}

fn settled(gate: &Gate, accepted: u64) {
    eventually("all were accepted", || gate.metric("tollgate_connections_accepted_total") >= accepted);
    eventually("room was made", || gate.metric("tollgate_connections") <= 100);
}

#[test]
fn fault_14_connections_that_are_silent_before_tls_count_for_their_address() {
    let backend = Backend::saying("ok");
    let (gate, site, _folder) = over_tls(&backend, "bounds = { connections = 100, connections_per_address = 20 }");
    let crowd: Vec<TcpStream> = (0..140).map(|_| gate.connect()).collect();
    eventually("the rest was turned away", || gate.metric("tollgate_connections_turned_away_total") == 120);
    assert_eq!(gate.metric("tollgate_connections"), 20);
    assert!(is_served(&gate, &site, OTHER), "another address is not concerned");
    assert!(is_closed(crowd.last().unwrap()));
    eventually("nobody had to go for it", || gate.metric("tollgate_connections") == 20);
    drop(crowd);
    eventually("there is room again", || is_served(&gate, &site, [127, 0, 0, 1].into()));
}

#[test]
fn fault_14_connections_that_are_silent_before_tls_are_closed_for_new_ones() {
    let backend = Backend::saying("ok");
    let (gate, site, _folder) = over_tls(&backend, "bounds = { connections = 100, connections_per_address = 1000 }");
    let crowd = silent(&gate, 200, one_of_eight);
    for _ in 0..20 {
        assert!(is_served(&gate, &site, OTHER), "a newcomer is served");
    }
    drop(crowd);
}

#[test]
fn fault_14_connections_that_are_silent_after_tls_are_closed_for_new_ones() {
    let backend = Backend::saying("ok");
    let (gate, site, _folder) = over_tls(&backend, "bounds = { connections = 100, connections_per_address = 1000 }");
    run(async {
        let mut crowd = Vec::new();
        for number in 0..140 {
            let stream = connect_from(one_of_eight(number), gate.address);
            stream.set_nonblocking(true).unwrap();
            let stream = tokio::net::TcpStream::from_std(stream).unwrap();
            crowd.extend(shake_hands(stream, site.cert.der(), "site", &["h2"]).await);
        }
        assert!(crowd.len() >= 100, "{}", crowd.len());
        tokio::task::spawn_blocking(move || {
            settled(&gate, 140);
            for _ in 0..20 {
                assert!(is_served(&gate, &site, OTHER), "a newcomer is served");
            }
        })
        .await
        .unwrap();
    });
}

#[test]
fn fault_14_silent_connections_with_h2c_are_closed_for_new_ones() {
    let backend = Backend::saying("ok");
    let bounds = "bounds = { connections = 100, connections_per_address = 1000 }";
    let gate = Gate::with(&backend, &format!("h2c = true\n{PATIENT}\n{bounds}"));
    let crowd = silent(&gate, 200, one_of_eight);
    for _ in 0..20 {
        assert_eq!(gate.get("/").status, 200, "a newcomer is served");
    }
    drop(crowd);
}

#[test]
fn fault_14_connections_that_are_silent_before_a_proxy_header_are_closed_for_new_ones() {
    let backend = Backend::saying("ok");
    let bounds = "bounds = { connections = 100, connections_per_address = 20 }";
    let gate =
        Gate::with(&backend, &format!("proxy_protocol = true\ntrusted_proxies = \"127.0.0.1\"\n{PATIENT}\n{bounds}"));
    let crowd = silent(&gate, 200, |_| [127, 0, 0, 1].into());
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let ask = |client: &str| {
        let header = format!("PROXY TCP4 {client} 192.0.2.2 1 2\r\n{request}");
        roundtrip(gate.connect(), header.as_bytes()).status
    };
    for _ in 0..20 {
        assert_eq!(ask("192.0.2.1"), 200, "a newcomer is served");
    }
    drop(crowd);
    eventually("the crowd has gone", || gate.metric("tollgate_connections") == 0);
    let crowd: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = gate.connect();
            stream.write_all(b"PROXY TCP4 192.0.2.9 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            assert_eq!(read_response(&mut BufReader::new(&stream)).unwrap().status, 200);
            stream
        })
        .collect();
    let before = gate.metric("tollgate_connections_turned_away_total");
    let mut more = gate.connect();
    more.write_all(b"PROXY TCP4 192.0.2.9 192.0.2.2 1 2\r\n").unwrap();
    assert!(is_closed(&more), "clients behind a proxy have the same bound");
    assert_eq!(gate.metric("tollgate_connections_turned_away_total"), before + 1);
    assert_eq!(ask("192.0.2.1"), 200);
    drop(crowd);
}

#[test]
fn a_reload_changes_the_bound_on_connections() {
    let backend = Backend::saying("ok");
    let lines = |bounds: &str| format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{PATIENT}\n{bounds}\n", backend.url());
    let gate = Gate::start(&lines(""));
    let crowd: Vec<TcpStream> = (0..150).map(|_| gate.connect()).collect();
    eventually("all are there", || gate.metric("tollgate_connections") == 150);
    gate.rewrite(&lines("bounds = { connections = 50 }"));
    gate.signal("HUP");
    eventually("settings are reloaded", || gate.metric("tollgate_reloads_total") == 1);
    // Each new connection closes some silent ones, until the number is within the bound.
    eventually("there are fewer", || {
        let mut stream = connect_from(OTHER, gate.address);
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        gate.metric("tollgate_connections") <= 50
    });
    eventually("newcomers are served", || {
        let mut stream = connect_from(OTHER, gate.address);
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        read_response(&mut BufReader::new(&stream)).is_some_and(|response| response.status == 200)
    });
    drop(crowd);
}
