//! The identity of the client, and the headers that describe it to the backend.

use std::io::{BufReader, Write};

use crate::support::client::is_closed;
use crate::support::{Backend, Gate, eventually, read_response, roundtrip};

/// The field `name` of the forwarded request, if a client at 127.0.0.1 sends these fields.
fn told(gate: &Gate, backend: &Backend, fields: &str, name: &str) -> Option<String> {
    roundtrip(gate.connect(), format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").as_bytes());
    backend.requests().pop().unwrap().field(name).map(str::to_owned)
}

#[test]
fn fault_19_forwarding_headers_of_an_untrusted_client_are_removed() {
    let backend = Backend::saying("ok");
    let gate = Gate::before(&backend);
    let fields = "X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nX-Forwarded-Proto: https\r\n\
                  X-Forwarded-Host: evil\r\nX-Real-IP: 1.2.3.4\r\nX_Forwarded_For: 1.2.3.4\r\nX_Real_IP: 1.2.3.4\r\n";
    for (name, value) in [
        ("x-forwarded-for", Some("127.0.0.1")),
        ("forwarded", Some("for=127.0.0.1;host=a;proto=http")),
        ("x-forwarded-proto", Some("http")),
        ("x-forwarded-host", Some("a")),
        ("x-real-ip", None),
        // Some backends treat these like those above.
        ("x_forwarded_for", None),
        ("x_real_ip", None),
    ] {
        assert_eq!(told(&gate, &backend, fields, name).as_deref(), value, "{name}");
    }
}

#[test]
fn fault_20_forwarding_headers_of_a_trusted_proxy_are_extended() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "trusted_proxies = \"127.0.0.0/8\"");
    let fields = "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8:99, [2001:db8::1]\r\n\
                  X-Forwarded-Proto: https\r\nForwarded: for=1.2.3.4\r\n";
    for (name, value) in [
        ("x-forwarded-for", "1.2.3.4, 5.6.7.8:99, [2001:db8::1], 127.0.0.1"),
        ("x-forwarded-proto", "https"),
        // The proxy sets the other header, so this one comes from the client.
        ("forwarded", "for=127.0.0.1;host=a;proto=http"),
    ] {
        assert_eq!(told(&gate, &backend, fields, name).as_deref(), Some(value), "{name}");
    }
    let many = format!("X-Forwarded-For: {}\r\n", "10.0.0.1,".repeat(3000));
    assert!(told(&gate, &backend, &many, "x-forwarded-for").unwrap().ends_with(", 127.0.0.1"));
}

#[test]
fn fault_20_every_spelling_of_an_address_is_the_same_key() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'each'\nclass = 'ip/32'\nwindow = { max = 100, per = '900s' }\n";
    let gate = Gate::with(&backend, &format!("trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]\n{rule}"));
    let mut asked = std::collections::HashMap::new();
    let mut ask = |client: &'static str, fields: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
        let left = roundtrip(gate.connect(), request.as_bytes()).field("x-ratelimit-remaining").unwrap().to_owned();
        let count = asked.entry(client).or_insert(0);
        *count += 1;
        assert_eq!(left, (100 - *count).to_string(), "{fields} is not {client}");
    };
    for said in [
        "1.2.3.4",
        "1.2.3.4:5678",
        "::ffff:1.2.3.4",
        "[::ffff:1.2.3.4]",
        "[::ffff:1.2.3.4]:80",
        "6.6.6.6, 1.2.3.4",
        "1.2.3.4, 10.0.0.7, 127.0.0.9",
        "garbage, 1.2.3.4",
        "6.6.6.6\r\nX-Forwarded-For: 1.2.3.4",
    ] {
        ask("1.2.3.4", &format!("X-Forwarded-For: {said}"));
    }
    for said in ["2001:db8::1", "[2001:db8::1]", "[2001:db8::1]:443", "2001:db8::99"] {
        ask("2001:db8::/64", &format!("X-Forwarded-For: {said}"));
    }
    // An invalid entry ends the walk at the last valid hop, the proxy that added the entry.
    for said in ["unknown", "1.2.3.4, unknown", "1.2.3.4, _hidden", "1.2.3.4,", "1.2.3.4, 5.6.7.8.9"] {
        ask("the proxy", &format!("X-Forwarded-For: {said}"));
    }
    ask("10.0.0.7", "X-Forwarded-For: 1.2.3.4, unknown, 10.0.0.7");
    // The length of the walk is bounded.
    ask("10.1.1.1", &format!("X-Forwarded-For: 6.6.6.6{}", ",10.1.1.1".repeat(3_000)));
}

#[test]
fn fault_19_an_untrusted_client_does_not_become_another_key() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'each'\nclass = 'ip/32'\nwindow = { max = 3, per = '900s' }\n";
    let gate = Gate::with(&backend, rule);
    let ask = |number: usize| {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.{number}\r\nForwarded: for=1.2.3.{number}\r\n\r\n"
        );
        roundtrip(gate.connect(), request.as_bytes()).status
    };
    assert_eq!((0..5).map(ask).collect::<Vec<_>>(), [200, 200, 200, 429, 429]);
}

#[test]
fn the_configured_header_names_the_client_and_the_other_one_is_ignored() {
    let backend = Backend::saying("ok");
    let rule = "[[rule]]\nname = 'each'\nclass = 'ip/32'\nwindow = { max = 100, per = '1h' }\n";
    let trusting = "trusted_proxies = ['127.0.0.0/8', '10.0.0.0/8']";
    let gate = Gate::with(&backend, &format!("{trusting}\nforwarded_header = 'forwarded'\n{rule}"));
    let fields = [
        "Forwarded: for=1.2.3.4",
        "Forwarded: for=\"1.2.3.4:99\";proto=https",
        "Forwarded: for=6.6.6.6, for=1.2.3.4, for=\"10.0.0.1\"",
        "Forwarded: for=1.2.3.4;host=\"a;for=9.9.9.1;b\"",
        "Forwarded: host=\"a;for=9.9.9.1;b\";for=1.2.3.4",
        "Forwarded: host=\"a\\\", for=9.9.9.1;x=\\\"\";for=1.2.3.4",
        "Forwarded: for=1.2.3.4\r\nX-Forwarded-For: 6.6.6.6\r\nX-Real-IP: 6.6.6.6\r\nX-Forwarded-Proto: https",
    ];
    for (count, fields) in fields.into_iter().enumerate() {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n\r\n");
        let left = roundtrip(gate.connect(), request.as_bytes()).field("x-ratelimit-remaining").unwrap().to_owned();
        assert_eq!(left, (99 - count).to_string(), "{fields}");
    }
    let told = backend.requests().pop().unwrap();
    let field = |name: &str| told.field(name);
    assert_eq!((field("x-forwarded-for"), field("x-forwarded-proto")), (Some("127.0.0.1"), Some("http")));
    assert_eq!((field("forwarded"), field("x-real-ip")), (Some("for=1.2.3.4, for=127.0.0.1;host=a;proto=http"), None));
}

#[test]
fn a_proxy_removed_by_a_reload_is_not_trusted_on_its_open_connection() {
    let backend = Backend::saying("ok");
    let config = |trusted: &str, more: &str| {
        format!("[gate]\nworkers = 1\nbackend = '{}'\ntrusted_proxies = '{trusted}'\n{more}", backend.url())
    };
    for header in ["", "PROXY TCP4 192.0.2.1 10.0.0.1 56324 80\r\n"] {
        let more = if header.is_empty() { "" } else { "proxy_protocol = true\n" };
        let gate = Gate::start(&config("127.0.0.1", more));
        let mut stream = gate.connect();
        stream.write_all(header.as_bytes()).unwrap();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nX-Real-IP: 1.2.3.4\r\n\r\n";
        stream.write_all(request).unwrap();
        assert_eq!(read_response(&mut reader).unwrap().status, 200);
        let before = backend.requests().pop().unwrap();
        assert_eq!(before.field("x-real-ip"), header.is_empty().then_some("1.2.3.4"));
        gate.rewrite(&config("10.0.0.1", more));
        gate.signal("HUP");
        gate.logged("settings reloaded");
        // The log line comes before all workers have applied the settings.
        eventually("the proxy is not trusted any more", || {
            let count = backend.count();
            stream.write_all(request).unwrap();
            match read_response(&mut reader) {
                None => !header.is_empty() && backend.count() == count,
                Some(_) => header.is_empty() && backend.requests().pop().unwrap().field("x-real-ip").is_none(),
            }
        });
    }
}

#[test]
fn the_proxy_protocol_names_the_client() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "proxy_protocol = true\ntrusted_proxies = \"127.0.0.1\"");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    v2.extend([192, 0, 2, 7, 10, 0, 0, 1, 0, 80, 0, 81]);
    for (header, client) in [
        (b"PROXY TCP4 192.0.2.1 10.0.0.1 56324 80\r\n".to_vec(), "192.0.2.1"),
        (b"PROXY TCP6 2001:db8::1 ::1 56324 80\r\n".to_vec(), "2001:db8::1"),
        (v2, "192.0.2.7"),
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
    ] {
        let mut bytes = header;
        bytes.extend_from_slice(request);
        assert_eq!(roundtrip(gate.connect(), &bytes).status, 200);
        assert_eq!(backend.requests().pop().unwrap().field("x-forwarded-for"), Some(client));
    }
    // A header in two parts.
    let mut stream = gate.connect();
    stream.write_all(b"PROXY TCP4 192.0.2.9 10.0").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    stream.write_all(b".0.1 56324 80\r\n").unwrap();
    stream.write_all(request).unwrap();
    assert_eq!(read_response(&mut BufReader::new(stream)).unwrap().status, 200);
    assert_eq!(backend.requests().pop().unwrap().field("x-forwarded-for"), Some("192.0.2.9"));
}

#[test]
fn without_an_address_in_the_proxy_header_the_proxy_is_the_client() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "proxy_protocol = true\ntrusted_proxies = \"127.0.0.1\"");
    let v2 = |command: u8, family: u8| [&b"\r\n\r\n\0\r\nQUIT\n"[..], &[command, family, 0, 0]].concat();
    for (header, told) in [
        (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        (v2(0x21, 0x00), "127.0.0.1"),
        (v2(0x21, 0x31), "127.0.0.1"),
        (v2(0x20, 0x00), "1.2.3.4, 127.0.0.1"),
    ] {
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1.2.3.4\r\nConnection: close\r\n\r\n";
        assert_eq!(roundtrip(gate.connect(), &[&header[..], request].concat()).status, 200);
        let request = backend.requests().pop().unwrap();
        assert_eq!(request.field("x-forwarded-for"), Some(told), "{}", header.escape_ascii());
    }
}

#[test]
fn fault_24_a_missing_or_untrusted_proxy_header_closes_the_connection() {
    let backend = Backend::saying("ok");
    let gate = Gate::with(&backend, "proxy_protocol = true\ntrusted_proxies = \"127.0.0.1\"");
    for bytes in
        [&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], b"PROXY TCP4 1.2.3.4\r\n", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x01a"]
    {
        let mut stream = gate.connect();
        stream.write_all(bytes).unwrap();
        assert!(is_closed(&stream), "{}", bytes.escape_ascii());
    }
    let gate = Gate::with(&backend, "proxy_protocol = true\ntrusted_proxies = \"192.0.2.1\"");
    let mut stream = gate.connect();
    let _ = stream.write_all(b"PROXY TCP4 192.0.2.1 10.0.0.1 56324 80\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(is_closed(&stream));
    assert!(backend.requests().is_empty());
    eventually("it is counted", || gate.metric("tollgate_connections_unopened_total") == 1);
    // Without `proxy_protocol`, the header is invalid HTTP.
    let gate = Gate::before(&backend);
    let response = roundtrip(gate.connect(), b"PROXY TCP4 192.0.2.1 10.0.0.1 56324 80\r\nHost: a\r\n\r\n");
    assert!(matches!(response.status, 400 | 505), "{response:?}");
}
