//! The phases of a connection, each with a client that stops in it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};

use crate::measured::{Gate, Measured, backend, connect};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const TLS: &str = "tls = { cert = \"FOLDER/site.pem\", key = \"FOLDER/site.key\" }";
const H2C: &str = "h2c = true";
/// Room for as many waiting requests as are measured.
const QUEUE: &str = "in_flight = 1\nhold = { total = 16000, max = \"60s\" }";

/// An idle connection.
const IDLE: u64 = 4 << 10;
/// A connection with one request in progress: its task, the parsed head and a buffer.
const REQUEST: u64 = 32 << 10;
/// A TLS session, with its buffers.
const SESSION: u64 = 32 << 10;
/// An HTTP/2 connection: the buffers and tables of the codec.
const HTTP_2: u64 = 64 << 10;
/// An HTTP/2 connection with 128 streams, of which the `h2` crate holds about 2 kB each.
const STREAMS: u64 = 384 << 10;
/// A response on its way: a piece of it, and a request in progress.
const RESPONSE: u64 = 160 << 10;
/// A response in the buffer: 1 MiB of it in memory, as long as all together take no more than `buffer.memory`.
const BUFFERED: u64 = 1200 << 10;

/// An HTTP/2 connection with 128 responses that are not read. They may use a quarter of `buffer.memory` per address:
/// 400 KiB for each measured connection. Some of its requests are at the backend meanwhile, and others wait in the
/// queue until responses are read.
const STREAMS_UNREAD: u64 = STREAMS + (1 << 20);

/// Connections with 128 requests with large heads.
const STREAMS_CONNECTIONS: usize = 30;
/// `hold.memory` of the gate that gets 30 times 128 requests with large heads.
const QUEUE_MEMORY: u64 = 8 << 20;
/// An HTTP/2 connection with 128 requests in the queue, of which `hold.memory` counts 10 KiB each.
const STREAMS_QUEUED: u64 = HTTP_2 + 128 * (10 << 10);

/// Measures all phases.
pub(crate) fn all() -> Vec<Measured> {
    vec![
        accepted(),
        idle(),
        tls_begun(),
        tls_idle(),
        head("HTTP/1.1, a part of a head", b"GET / HTTP/1.1\r\nX: ", 0),
        head("HTTP/1.1, a part of a large head", b"GET / HTTP/1.1\r\nX: ", 20_000),
        head(
            "HTTP/1.1, a small body of which one byte has come",
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 16000\r\n\r\nx",
            0,
        ),
        head(
            "HTTP/1.1, a large body of which one byte has come",
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 16000000\r\n\r\nx",
            0,
        ),
        queued(),
        http_2_idle(),
        http_2_streams("HTTP/2, 128 small bodies that do not come", STREAMS, H2C, true),
        http_2_queued(),
        http_2_streams(
            "HTTP/2, 128 requests for a queue of 8 MiB",
            STREAMS + QUEUE_MEMORY / STREAMS_CONNECTIONS as u64,
            &format!("{H2C}\nin_flight = 1\nhold = {{ total = 16000, max = \"60s\", memory = \"8MiB\" }}"),
            false,
        ),
        unread(),
        http_2_unread("HTTP/2, 128 responses that are not read", STREAMS, 2, 0),
        http_2_unread("HTTP/2, 128 responses of 4 kB that are not read", STREAMS_UNREAD, 4000, 0),
        http_2_unread("HTTP/2, 128 responses of 40 kB that are not read", STREAMS_UNREAD, 40_000, 0),
        http_2_unread("HTTP/2, 128 responses of 40 kB, window open, not read", STREAMS_UNREAD, 40_000, 0x7fff_ffff),
        websocket(),
        admin(),
    ]
}

/// Sends bytes on a new connection.
fn sending(gate: &Gate, number: usize, bytes: &[u8]) -> (TcpStream, usize) {
    let mut stream = gate.connect(number);
    stream.write_all(bytes).unwrap();
    (stream, bytes.len())
}

/// Sends a request on a new connection and reads the response.
fn answered(gate: &Gate, number: usize, request: &[u8], answer: &[u8]) -> (TcpStream, usize) {
    let (mut stream, sent) = sending(gate, number, request);
    let mut read = [0; 4096];
    let mut seen = Vec::new();
    while !seen.windows(answer.len()).any(|window| window == answer) {
        let length = stream.read(&mut read).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&read[..length]);
    }
    (stream, sent)
}

fn accepted() -> Measured {
    let gate = Gate::start(backend(OK), "");
    gate.measure("TCP, accepted and silent", IDLE, 2000, |number| (gate.connect(number), 0))
}

fn idle() -> Measured {
    let gate = Gate::start(backend(OK), "");
    gate.measure("HTTP/1.1, idle after a request", IDLE, 2000, |number| answered(&gate, number, GET, b"ok"))
}

fn tls_begun() -> Measured {
    let gate = Gate::start(backend(OK), TLS);
    // The head of a record of 4,000 bytes, and the first of them.
    gate.measure("TLS, a part of a handshake", SESSION, 500, |number| {
        sending(&gate, number, &[0x16, 3, 1, 0x0f, 0xa0, 1, 0, 0x0f, 0x9c, 3, 3])
    })
}

fn tls_idle() -> Measured {
    let gate = Gate::start(backend(OK), TLS);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(gate.folder().join("site.pem")).unwrap()).unwrap();
    let config = Arc::new(rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth());
    gate.measure("TLS, idle after a request over HTTP/1.1", SESSION, 300, |number| {
        let session = rustls::ClientConnection::new(config.clone(), ServerName::try_from("site").unwrap()).unwrap();
        let mut stream = rustls::StreamOwned::new(session, gate.connect(number));
        stream.write_all(GET).unwrap();
        let (mut seen, mut read) = (Vec::new(), [0; 4096]);
        while !seen.ends_with(b"ok") {
            let length = stream.read(&mut read).unwrap();
            seen.extend_from_slice(&read[..length]);
        }
        (stream, 700)
    })
}

/// A head, or the beginning of one, that is followed by nothing.
fn head(phase: &'static str, begin: &[u8], more: usize) -> Measured {
    let gate = Gate::start(backend(b""), "");
    let mut bytes = begin.to_vec();
    bytes.extend(std::iter::repeat_n(b'x', more));
    gate.measure(phase, REQUEST, 400, |number| sending(&gate, number, &bytes))
}

fn queued() -> Measured {
    let gate = Gate::start(backend(b""), QUEUE);
    gate.measure("HTTP/1.1, waiting in the queue", REQUEST, 1000, |number| sending(&gate, number, GET))
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A frame of HEADERS that ends the head, and the request if `ends`.
fn headers(stream: u32, block: &[u8], ends: bool) -> Vec<u8> {
    let mut frame = u32::try_from(block.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([1, if ends { 5 } else { 4 }]);
    frame.extend(stream.to_be_bytes());
    frame.extend(block);
    frame
}

/// A literal field that is added to the dynamic table: a name that is in the static table, or a new one.
fn literal(name: Result<u8, &[u8]>, value: &[u8]) -> Vec<u8> {
    let mut field = match name {
        Ok(index) => vec![0x40 | index],
        Err(name) => [&[0x40, u8::try_from(name.len()).unwrap()], name].concat(),
    };
    if value.len() < 127 {
        field.push(u8::try_from(value.len()).unwrap());
    } else {
        let rest = value.len() - 127;
        field.extend([127, 0x80 | (rest & 0x7f) as u8, (rest >> 7) as u8]);
    }
    field.extend(value);
    field
}

fn http_2_idle() -> Measured {
    let gate = Gate::start(backend(OK), H2C);
    let mut bytes = PREFACE.to_vec();
    bytes.extend(headers(1, &[&[0x82, 0x86, 0x84][..], &literal(Ok(1), b"a")].concat(), true));
    gate.measure("HTTP/2, idle after a request", HTTP_2, 200, |number| answered(&gate, number, &bytes, b"ok"))
}

/// 128 requests whose heads of 30 kB are references into the dynamic table: 22 bytes each on the wire.
fn http_2_streams(phase: &'static str, constant: u64, lines: &str, has_body: bool) -> Measured {
    let gate = Gate::start(backend(b""), lines);
    let method = if has_body { 0x83 } else { 0x82 };
    let fields = [literal(Err(b"x-a"), &[b'v'; 3800]), literal(Ok(1), b"a"), literal(Ok(28), b"100")].concat();
    // The newest entry has the index 62.
    let (length, authority, large) = (0xbe, 0xbf, 0xc0);
    let repeated = [method, 0x86, 0x84, authority, large, large, large, large, large, large, large];
    let mut bytes = PREFACE.to_vec();
    bytes.extend(headers(1, &[&[method, 0x86, 0x84][..], &fields].concat(), false));
    for stream in 1..128 {
        let mut block = repeated.to_vec();
        if has_body {
            block.push(length);
        }
        bytes.extend(headers(2 * stream + 1, &block, !has_body));
    }
    gate.measure(phase, constant, STREAMS_CONNECTIONS, |number| sending(&gate, number, &bytes))
}

/// 128 requests with small heads.
fn http_2_queued() -> Measured {
    let gate = Gate::start(backend(b""), &format!("{H2C}\n{QUEUE}"));
    let mut bytes = PREFACE.to_vec();
    bytes.extend(headers(1, &[&[0x82, 0x86, 0x84][..], &literal(Ok(1), b"a")].concat(), true));
    for stream in 1..128 {
        bytes.extend(headers(2 * stream + 1, &[0x82, 0x86, 0x84, 0xbe], true));
    }
    gate.measure("HTTP/2, 128 requests in the queue", STREAMS_QUEUED, 20, |number| sending(&gate, number, &bytes))
}

fn unread() -> Measured {
    let answer: &'static [u8] = {
        let mut answer = b"HTTP/1.1 200 OK\r\nContent-Length: 30000000\r\n\r\n".to_vec();
        answer.resize(answer.len() + 30_000_000, b'x');
        Vec::leak(answer)
    };
    let gate = Gate::start(backend(answer), "in_flight = 64");
    gate.measure("HTTP/1.1, a response that is not read", BUFFERED, 40, |number| sending(&gate, number, GET))
}

/// 128 responses of this length, and windows of this size.
fn http_2_unread(phase: &'static str, constant: u64, length: usize, window: u32) -> Measured {
    let mut answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n").into_bytes();
    answer.resize(answer.len() + length, b'x');
    let gate = Gate::start(backend(Vec::leak(answer)), "h2c = true\nin_flight = 32");
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04".to_vec();
    bytes.extend(window.to_be_bytes());
    if window > 0 {
        // WINDOW_UPDATE of the connection, which has 65,535 already.
        bytes.extend(b"\0\0\x04\x08\0\0\0\0\0");
        bytes.extend((window - 65_535).to_be_bytes());
    }
    bytes.extend(headers(1, &[&[0x82, 0x86, 0x84][..], &literal(Ok(1), b"a")].concat(), true));
    for stream in 1..128 {
        bytes.extend(headers(2 * stream + 1, &[0x82, 0x86, 0x84, 0xbe], true));
    }
    let connections = if length < 1000 { 10 } else { 40 };
    gate.measure(phase, constant, connections, |number| {
        let mut stream = gate.connect_with_small_buffer(number);
        stream.write_all(&bytes).unwrap();
        if length < 1000 {
            // The memory of waiting requests would be measured too, because the allocator keeps it.
            gate.forwards_all(128 * (number as u64 + 1));
        }
        (stream, bytes.len())
    })
}

fn websocket() -> Measured {
    let upgraded = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let gate = Gate::start(backend(upgraded), "");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    gate.measure("websocket, silent", REQUEST, 400, |number| answered(&gate, number, request, b"\r\n\r\n"))
}

fn admin() -> Measured {
    let gate = Gate::start(backend(OK), "");
    let requests = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(200);
    gate.measure("admin address, responses that are not read", RESPONSE, 100, |number| {
        let mut stream = connect(gate.admin, number);
        stream.set_nonblocking(true).unwrap();
        let sent = stream.write(&requests).unwrap_or(0);
        (stream, sent)
    })
}
