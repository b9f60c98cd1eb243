//! Requests that two parsers could interpret differently are refused.
//!
//! One property covers them all: the backend never receives more requests than the client gets responses.

use std::io::Write;
use std::net::Shutdown;

use crate::support::client::{all_responses, is_closed};
use crate::support::{Backend, Gate, Response};

struct Vectors {
    backend: Backend,
    gate: Gate,
}

impl Vectors {
    fn new() -> Self {
        let backend = Backend::saying("ok");
        let gate = Gate::before(&backend);
        Self { backend, gate }
    }

    /// Sends bytes on a new connection and returns all responses. Asserts that the backend received no more requests
    /// than there are responses with its text.
    fn send(&self, bytes: &[u8]) -> Vec<Response> {
        let before = self.backend.requests().len();
        let mut stream = self.gate.connect();
        // The gate may refuse and reset the connection during this write.
        let _ = stream.write_all(bytes);
        let _ = stream.write_all(b"");
        let reading = stream.try_clone().unwrap();
        let responses = if bytes.windows(5).any(|window| window == b"close") {
            all_responses(reading)
        } else {
            let reader = std::thread::spawn(move || all_responses(reading));
            std::thread::sleep(std::time::Duration::from_millis(30));
            let _ = stream.shutdown(Shutdown::Write);
            reader.join().unwrap()
        };
        let forwarded = self.backend.requests().len() - before;
        let answered = responses.iter().filter(|response| response.text() == "ok").count();
        assert!(forwarded <= answered, "{forwarded} forwarded, {answered} answered: {}", bytes.escape_ascii());
        responses
    }

    /// Asserts that the request is refused with one of these statuses, that nothing is forwarded, and that the
    /// connection is closed.
    fn refuses(&self, bytes: &[u8], statuses: &[u16]) {
        let before = self.backend.requests().len();
        let responses = self.send(bytes);
        assert_eq!(responses.len(), 1, "{}: {responses:?}", bytes.escape_ascii());
        assert!(statuses.contains(&responses[0].status), "{}: {responses:?}", bytes.escape_ascii());
        assert_eq!(responses[0].field("connection"), Some("close"));
        assert_eq!(self.backend.requests().len(), before, "forwarded: {}", bytes.escape_ascii());
    }

    /// The same for a POST with these fields, whose body looks like a request.
    fn refuses_fields(&self, fields: &str, statuses: &[u16]) {
        let hidden = "GET /hidden HTTP/1.1\r\nHost: site\r\n\r\n";
        let request = format!("POST / HTTP/1.1\r\nHost: site\r\n{fields}\r\n0\r\n\r\n{hidden}");
        self.refuses(request.as_bytes(), statuses);
    }
}

#[test]
fn fault_1_content_length_with_transfer_encoding_is_refused_in_either_order() {
    let vectors = Vectors::new();
    vectors.refuses_fields("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", &[400]);
    vectors.refuses_fields("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", &[400]);
    vectors.refuses_fields(
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        &[400, 501],
    );
}

#[test]
fn fault_2_a_content_length_that_is_not_one_plain_number_is_refused() {
    let vectors = Vectors::new();
    for value in ["+5", "5,5", "5, 5", "0x5", " 5", "-5", "18446744073709551616", "5 5", "", "5;", "\t5"] {
        vectors.refuses_fields(&format!("Content-Length: {value}\r\n"), &[400]);
    }
    vectors.refuses_fields("Content-Length: 5\r\nContent-Length: 6\r\n", &[400]);
    let same_twice =
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi";
    assert_eq!(vectors.send(same_twice)[0].status, 200);
    assert_eq!(vectors.backend.requests().last().unwrap().body, b"hi");
}

#[test]
fn fault_3_any_transfer_encoding_but_one_chunked_is_refused() {
    let vectors = Vectors::new();
    for value in [
        "chunked, identity",
        "xchunked",
        "identity",
        "gzip, chunked",
        "chunked, chunked",
        "chunked;a=b",
        "\u{b}chunked",
        "\"chunked\"",
    ] {
        vectors.refuses_fields(&format!("Transfer-Encoding: {value}\r\n"), &[400, 501]);
    }
    vectors.refuses_fields("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", &[400]);
    vectors.refuses_fields("Transfer-Encoding : chunked\r\n", &[400]);
    vectors.refuses(b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &[400]);
}

#[test]
fn fault_4_malformed_chunks_are_refused_and_the_connection_closed() {
    let vectors = Vectors::new();
    let long_extension = format!("1;{}\r\na\r\n0\r\n\r\n", "e".repeat(64 * 1024));
    for chunks in [
        "0_2e\r\n\r\n",
        "0x2\r\nab\r\n0\r\n\r\n",
        " 2\r\nab\r\n0\r\n\r\n",
        "2 \r\nab\r\n0\r\n\r\n",
        "-2\r\nab\r\n0\r\n\r\n",
        "2\nab\r\n0\r\n\r\n",
        "2\r\nab\n0\r\n\r\n",
        "2\r\nabc\r\n0\r\n\r\n",
        "2\r\nab0\r\n\r\n",
        "2;a\nb\r\nab\r\n0\r\n\r\n",
        "0\r\nX: 1\n\r\n",
        "0\r\n X: 1\r\n\r\n",
        "ffffffffffffffffff\r\n",
        ";\r\n\r\n",
        "\r\n",
        &long_extension,
    ] {
        let hidden = "GET /hidden HTTP/1.1\r\nHost: site\r\n\r\n";
        let request = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}{hidden}");
        let responses = vectors.send(request.as_bytes());
        assert_eq!(responses.len(), 1, "{chunks:?}: {responses:?}");
        assert_eq!(responses[0].status, 400, "{chunks:?}");
        assert!(vectors.backend.requests().is_empty(), "{chunks:?}");
    }
}

#[test]
fn fault_5_white_space_controls_and_bare_line_feeds_are_refused() {
    let vectors = Vectors::new();
    for line in [
        "Folded: a\r\n b",
        "Nul: a\0b",
        "Cr: a\rb",
        "Space : a",
        "Tab\t: a",
        " Leading: a",
        "No-Colon",
        ": nothing",
        "Bad(Name: a",
    ] {
        vectors.refuses(format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n").as_bytes(), &[400]);
    }
    for bytes in [
        &b"GET / HTTP/1.1\nHost: a\n\n"[..],
        b"GET / HTTP/1.1\r\nHost: a\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\n",
        b"GET /\nHTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\rHost: a\r\n\r\n",
        b"GET /a\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
        b"G\xc3\xa9T / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    ] {
        vectors.refuses(bytes, &[400]);
    }
    for bytes in [
        &b"GET / HTTP/3.0\r\nHost: a\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.2\r\nHost: a\r\n\r\n",
    ] {
        vectors.refuses(bytes, &[400, 505]);
    }
    // HTTP/0.9 has no error response.
    vectors.refuses(b"GET /\r\n\r\n", &[400]);
}

#[test]
fn fault_10_there_is_one_host_and_it_agrees_with_the_target() {
    let vectors = Vectors::new();
    vectors.refuses(b"GET / HTTP/1.1\r\n\r\n", &[400]);
    vectors.refuses(b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", &[400]);
    vectors.refuses(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", &[400]);
    for host in ["", "a b", "a/b", "user@a", "a:b", "[::1", "a\"b", "a,b"] {
        vectors.refuses(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes(), &[400]);
    }
    vectors.refuses(b"GET http://other/ HTTP/1.1\r\nHost: site\r\n\r\n", &[400]);
    vectors.refuses(b"GET http://user@site/ HTTP/1.1\r\nHost: site\r\n\r\n", &[400]);
    vectors.refuses(b"CONNECT site:80 HTTP/1.1\r\nHost: site:80\r\n\r\n", &[501]);
    vectors.refuses(b"GET /a#b HTTP/1.1\r\nHost: site\r\n\r\n", &[400]);
    let responses = vectors.send(b"GET http://SITE/x?y HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n");
    assert_eq!(responses[0].status, 200);
    let request = vectors.backend.requests().pop().unwrap();
    assert_eq!((request.line.as_str(), request.field("host")), ("GET /x?y HTTP/1.1", Some("SITE")));
}

#[test]
fn fault_13_oversized_requests_are_refused_with_their_status() {
    let vectors = Vectors::new();
    vectors.refuses(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(100 * 1024)).as_bytes(), &[414]);
    vectors.refuses(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(1024 * 1024)).as_bytes(), &[431]);
    vectors.refuses(format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(10_000)).as_bytes(), &[431]);
    vectors.refuses(format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "a: b\r\n".repeat(101)).as_bytes(), &[431]);
    let fits = format!(
        "GET /{} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX: {}\r\n\r\n",
        "a".repeat(8000),
        "a".repeat(20_000)
    );
    assert_eq!(vectors.send(fits.as_bytes())[0].status, 200);
}

#[test]
fn pipelined_requests_get_their_responses_in_order() {
    let backend = Backend::answering(|request, stream| crate::support::backend::respond(stream, request.path()));
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    let requests: String = (0..50)
        .map(|number| {
            let close = if number == 49 { "Connection: close\r\n" } else { "" };
            format!("POST /{number} HTTP/1.1\r\nHost: a\r\n{close}Content-Length: 3\r\n\r\nabc")
        })
        .collect();
    stream.write_all(requests.as_bytes()).unwrap();
    let paths: Vec<String> = all_responses(stream).iter().map(Response::text).collect();
    assert_eq!(paths, (0..50).map(|number| format!("/{number}")).collect::<Vec<_>>());
    assert!(backend.requests().iter().all(|request| request.body == b"abc"));
}

#[test]
fn a_connection_is_closed_when_the_client_asks_and_kept_open_otherwise() {
    let vectors = Vectors::new();
    let mut stream = vectors.gate.connect();
    for _ in 0..3 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let mut reader = std::io::BufReader::new(&stream);
        assert_eq!(crate::support::read_response(&mut reader).unwrap().status, 200);
    }
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut reader = std::io::BufReader::new(&stream);
    assert_eq!(crate::support::read_response(&mut reader).unwrap().field("connection"), Some("close"));
    assert!(is_closed(&stream));
    assert_eq!(vectors.backend.connections(), 1, "the connection to the backend is kept");
}

/// A small pseudorandom generator with a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }
}

/// Several requests with bodies of every kind, with bytes changed, inserted, removed and doubled.
fn mutated(random: &mut Random) -> Vec<u8> {
    const REQUESTS: [&[u8]; 5] = [
        b"GET /a HTTP/1.1\r\nHost: site\r\n\r\n",
        b"POST /b HTTP/1.1\r\nHost: site\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /c HTTP/1.1\r\nHost: site\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"POST /d HTTP/1.1\r\nHost: site\r\nContent-Length: 38\r\n\r\nGET /hidden HTTP/1.1\r\nHost: site\r\n\r\nxx",
        b"GET /e HTTP/1.1\r\nHost: site\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ];
    const PIECES: [&[u8]; 14] = [
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b"\0",
        b":",
        b",",
        b"0",
        b"\x0b",
        b";",
        b"chunked",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ];
    let mut bytes: Vec<u8> =
        (0..=random.below(3)).flat_map(|_| REQUESTS[random.below(REQUESTS.len())].to_vec()).collect();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(4) {
            0 => bytes[at] = random.below(256) as u8,
            1 => drop(bytes.splice(at..at, PIECES[random.below(PIECES.len())].iter().copied())),
            2 => drop(bytes.remove(at)),
            _ => {
                let end = (at + random.below(40)).min(bytes.len());
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
        }
    }
    bytes
}

#[test]
fn no_mutation_makes_the_backend_receive_more_requests_than_the_client_gets_responses() {
    let backend = Backend::saying("ok");
    // An incomplete request ends with its timeout; all responses have arrived before that.
    let gate = Gate::with(&backend, "timeouts = { head = \"2s\", body_idle = \"2s\", keep_alive = \"2s\" }");
    let vectors = Vectors { backend, gate };
    let mut random = Random(20_261_115);
    let cases: Vec<Vec<u8>> = (0..400).map(|_| mutated(&mut random)).collect();
    let mut streams = Vec::new();
    for case in &cases {
        let mut stream = vectors.gate.connect();
        let _ = stream.write_all(case);
        streams.push(stream);
    }
    let mut answered = 0;
    for (stream, case) in streams.into_iter().zip(&cases) {
        let responses = all_responses(stream);
        answered += responses.iter().filter(|response| response.text() == "ok").count();
        // A refused request is the last of its connection.
        let refused = responses.iter().position(|response| response.status == 400);
        assert!(refused.is_none_or(|place| place + 1 == responses.len()), "{}", case.escape_ascii());
    }
    let requests = vectors.backend.requests();
    assert!(requests.len() <= answered, "{} forwarded, {answered} answered", requests.len());
    assert!(answered > 100, "most mutations leave a valid request: {answered}");
    assert!(requests.iter().all(|request| request.field("x-forwarded-for") == Some("127.0.0.1")));
}
