//! Requests and responses as the other side receives them.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::support::backend::{read_head, respond};
use crate::support::client::{all_responses, is_closed, read_any_response, read_response_to};
use crate::support::{Backend, Gate, Response, read_response, roundtrip};

fn send(gate: &Gate, request: &str) -> Response {
    roundtrip(gate.connect(), request.as_bytes())
}

#[test]
fn hop_by_hop_fields_are_removed_and_the_others_are_forwarded() {
    let backend = Backend::answering(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Kept: 1\r\nConnection: X-Private\r\nX-Private: 1\r\n";
        stream.write_all(
            format!(
                "{head}Keep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nSet-Cookie: a=1\r\n\
                                  Set-Cookie: b=2\r\n\r\nok"
            )
            .as_bytes(),
        )
    });
    let gate = Gate::before(&backend);
    let response = send(
        &gate,
        "GET /a?b=%20 HTTP/1.1\r\nHost: site\r\nX-Kept: 1\r\nCookie: a=b\r\nKeep-Alive: 1\r\nTE: gzip\r\n\
         Proxy-Connection: x\r\nProxy-Authorization: x\r\n\r\n",
    );
    let request = backend.requests().pop().unwrap();
    assert_eq!(request.line, "GET /a?b=%20 HTTP/1.1");
    assert_eq!(
        (request.field("x-kept"), request.field("cookie"), request.field("host")),
        (Some("1"), Some("a=b"), Some("site"))
    );
    for name in ["keep-alive", "te", "proxy-connection", "proxy-authorization", "connection"] {
        assert_eq!(request.field(name), None, "{name}");
    }
    assert_eq!(response.field("x-kept"), Some("1"));
    assert_eq!(response.fields.iter().filter(|field| field.0 == "set-cookie").count(), 2);
    for name in ["keep-alive", "proxy-authenticate", "connection", "x-private"] {
        assert_eq!(response.field(name), None, "{name}");
    }
}

#[test]
fn the_session_cookie_of_the_console_is_not_forwarded() {
    let backend = Backend::saying("ok");
    let gate = Gate::before(&backend);
    for (cookies, forwarded) in [
        ("Cookie: a=1; tollgate_session=5ec7e7; b=2\r\n", Some("a=1; b=2")),
        ("Cookie: tollgate_session=5ec7e7\r\n", None),
        ("Cookie: a=tollgate_session\r\n", Some("a=tollgate_session")),
    ] {
        assert_eq!(send(&gate, &format!("GET / HTTP/1.1\r\nHost: a\r\n{cookies}\r\n")).status, 200);
        assert_eq!(backend.requests().pop().unwrap().field("cookie"), forwarded, "{cookies}");
    }
}

/// A body that looks like a request.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

/// The statuses of a request with that body, which is small enough to be read and discarded, and of the next request on
/// the same connection.
fn statuses_around_hidden(gate: &Gate) -> Vec<u16> {
    let mut stream = gate.connect();
    let request = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{HIDDEN}", HIDDEN.len());
    stream
        .write_all(format!("{request}GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    all_responses(stream).iter().map(|response| response.status).collect()
}

/// The responses to a request with that body behind more bytes than the gate discards, and behind a body of unknown
/// length. Each must be the only response of its connection.
fn answers_before_hidden(gate: &Gate) -> Vec<Response> {
    let lengths = [format!("Content-Length: {}", 1 << 20), "Transfer-Encoding: chunked".to_owned()];
    lengths
        .map(|length| {
            let mut stream = gate.connect();
            let _ = stream.write_all(format!("POST / HTTP/1.1\r\nHost: a\r\n{length}\r\n\r\n{HIDDEN}").as_bytes());
            let [answer] = <[_; 1]>::try_from(all_responses(stream)).unwrap_or_else(|all| panic!("{length}: {all:?}"));
            assert_eq!(answer.field("connection"), Some("close"));
            answer
        })
        .into()
}

#[test]
fn fault_6_the_body_of_a_request_that_is_not_forwarded_is_never_parsed_as_a_request() {
    // The port of this backend has no listener.
    let (_taken, closed) = crate::support::closed();
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"http://{closed}\"\n"));
    let statuses = statuses_around_hidden(&gate);
    assert!(statuses.len() == 2 && statuses.iter().all(|status| matches!(status, 502 | 503)), "{statuses:?}");
    answers_before_hidden(&gate);
}

const ONE_POST: &str = "[[rule]]\nname = 'one'\nwhen = { method = 'POST' }\nclass = 'ip/32'\n\
                        bucket = { size = 1, drip = 1, every = '1h' }\n";

/// A gate whose rule admits one POST, which has been sent.
fn used_up(backend: &Backend) -> Gate {
    let gate = Gate::with(backend, ONE_POST);
    assert_eq!(send(&gate, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").status, 200);
    gate
}

#[test]
fn fault_6_the_body_of_a_request_that_a_rule_refuses_is_never_parsed_as_a_request() {
    let backend = Backend::saying("ok");
    let gate = used_up(&backend);
    assert_eq!(statuses_around_hidden(&gate), [429, 200]);
    assert!(answers_before_hidden(&gate).iter().all(|answer| answer.status == 429));
    let seen: Vec<_> = backend.requests().iter().map(|request| request.path().to_owned()).collect();
    assert_eq!(seen, ["/", "/last"]);
}

#[test]
fn fault_7_bytes_after_a_rejected_upgrade_are_parsed_as_the_next_request() {
    let backend = Backend::saying("no upgrade");
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    let upgrade = "GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    stream
        .write_all(format!("{upgrade}GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let responses = all_responses(stream);
    assert_eq!(responses.len(), 2);
    let requests = backend.requests();
    assert_eq!(requests.iter().map(|request| request.path()).collect::<Vec<_>>(), ["/chat", "/next"]);
    assert_eq!(requests[0].field("upgrade"), Some("websocket"));
    assert_eq!(requests[1].field("x-forwarded-for"), Some("127.0.0.1"), "not raw bytes");
}

#[test]
fn an_upgrade_to_http_2_in_the_clear_is_not_forwarded() {
    let backend = Backend::saying("ok");
    let gate = Gate::before(&backend);
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\
                   HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n";
    assert_eq!(send(&gate, request).status, 200);
    let request = backend.requests().pop().unwrap();
    assert_eq!(
        (request.field("upgrade"), request.field("http2-settings"), request.field("connection")),
        (None, None, None)
    );
}

#[test]
fn an_upgraded_connection_is_a_tunnel_for_any_bytes() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let request = read_head(&mut reader).unwrap();
        assert_eq!((request.field("upgrade"), request.field("connection")), (Some("echo"), Some("upgrade")));
        stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\nhello ")
            .unwrap();
        let mut bytes = [0; 1024];
        while let Ok(length @ 1..) = reader.read(&mut bytes) {
            stream.write_all(&bytes[..length]).unwrap();
        }
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    // Bytes before the response wait for the tunnel.
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nahead\0\xff").unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let response = read_response(&mut reader).unwrap();
    assert_eq!(
        (response.status, response.field("upgrade"), response.field("connection")),
        (101, Some("echo"), Some("upgrade"))
    );
    let mut echoed = [0; 13];
    reader.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"hello ahead\0\xff");
    for round in 0..100 {
        let sent = format!("GET /{round} HTTP/1.1\r\n\r\n");
        stream.write_all(sent.as_bytes()).unwrap();
        let mut back = vec![0; sent.len()];
        reader.read_exact(&mut back).unwrap();
        assert_eq!(back, sent.as_bytes());
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(is_closed(&stream));
    assert_eq!(gate.metric("tollgate_requests_at_backend"), 0, "an upgraded connection holds no permit");
}

#[test]
fn an_idle_tunnel_is_closed_and_a_busy_one_stays_open() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        read_head(&mut reader).unwrap();
        stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n").unwrap();
        // Traffic in one direction only, for a while.
        for _ in 0..12 {
            stream.write_all(b".").unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = reader.read(&mut [0]);
    });
    let gate = Gate::with(&backend, "timeouts = { upgraded_idle = \"600ms\" }");
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    assert_eq!(read_response(&mut reader).unwrap().status, 101);
    let started = Instant::now();
    let mut dots = Vec::new();
    reader.read_to_end(&mut dots).unwrap();
    assert_eq!(dots.len(), 12, "closed while it was busy");
    assert!(started.elapsed() > Duration::from_millis(1600));
}

#[test]
fn fault_8_a_client_cannot_remove_our_fields_with_the_connection_header() {
    let backend = Backend::saying("ok");
    let gate = Gate::before(&backend);
    send(
        &gate,
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: X-Forwarded-For, X-Client-Id, Forwarded\r\nX-Client-Id: 9\r\n\
         X-Forwarded-For: 6.6.6.6\r\n\r\n",
    );
    let request = backend.requests().pop().unwrap();
    assert_eq!(request.field("x-client-id"), None);
    assert_eq!(request.field("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(request.field("forwarded"), Some("for=127.0.0.1;host=a;proto=http"));
}

#[test]
fn fault_9_a_client_that_expects_100_continue_gets_it_from_the_backend_or_a_final_response() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(request) = read_head(&mut reader) {
            assert_eq!(request.field("expect"), Some("100-continue"));
            if request.path() == "/refused" {
                stream.write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n").unwrap();
                return;
            }
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
            let mut body = [0; 5];
            reader.read_exact(&mut body).unwrap();
            respond(&mut stream, std::str::from_utf8(&body).unwrap()).unwrap();
        }
    });
    let gate = Gate::before(&backend);
    let request =
        |path: &str| format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    let mut stream = gate.connect();
    stream.write_all(request("/").as_bytes()).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    assert_eq!(read_any_response(&mut reader, false).unwrap().status, 100);
    stream.write_all(b"hello").unwrap();
    assert_eq!(read_any_response(&mut reader, false).unwrap().text(), "hello");
    stream.write_all(request("/refused").as_bytes()).unwrap();
    let response = read_any_response(&mut reader, false).unwrap();
    assert_eq!((response.status, response.field("connection")), (413, Some("close")), "no 100 before a final answer");
    // Without a backend, the gate's own response comes without a 100 as well.
    let (_taken, closed) = crate::support::closed();
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"http://{closed}\"\n"));
    let mut stream = gate.connect();
    stream.write_all(request("/").as_bytes()).unwrap();
    let response = read_any_response(&mut BufReader::new(stream), false).unwrap();
    assert_eq!((response.status, response.field("connection")), (502, Some("close")));
}

#[test]
fn fault_9_a_client_that_expects_100_continue_gets_only_the_refusal_of_a_rule() {
    let backend = Backend::saying("ok");
    let gate = used_up(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let response = read_any_response(&mut reader, false).unwrap();
    assert_eq!((response.status, response.field("connection")), (429, Some("close")), "no 100 before a final answer");
    assert!(read_any_response(&mut reader, false).is_none());
    assert_eq!(backend.requests().len(), 1);
}

#[test]
fn trailers_are_forwarded_in_both_directions() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\n\
                           X-Sum: 9\r\nContent-Length: 7\r\n\r\n",
        )
    });
    let gate = Gate::before(&backend);
    let response = send(
        &gate,
        "POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n\
         0\r\nX-Check: 1\r\nHost: evil\r\n\r\n",
    );
    assert_eq!(response.body, b"abc");
    assert_eq!(response.trailers, [("x-sum".to_owned(), "9".to_owned())]);
    let request = backend.requests().pop().unwrap();
    assert_eq!(
        (&request.body[..], request.trailers.as_str(), request.field("te")),
        (&b"hi"[..], "x-check: 1\n", Some("trailers"))
    );
}

#[test]
fn head_and_bodiless_responses_keep_their_length_and_have_no_body() {
    let backend = Backend::answering(|request, stream| match request.path() {
        "/304" => stream.write_all(b"HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 9\r\n\r\n"),
        "/204" => stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n"),
        _ => stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"),
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for (method, path, status, length) in [
        ("HEAD", "/", 200, Some("1234")),
        ("GET", "/304", 304, Some("9")),
        ("GET", "/204", 204, None),
        ("HEAD", "/", 200, Some("1234")),
    ] {
        stream.write_all(format!("{method} {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).unwrap();
        let response = read_response_to(&mut reader, method == "HEAD").unwrap();
        assert_eq!((response.status, response.field("content-length")), (status, length));
    }
    assert_eq!(backend.connections(), 1);
}

#[test]
fn early_hints_are_forwarded() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(
            b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        )
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let hints = read_any_response(&mut reader, false).unwrap();
    assert_eq!((hints.status, hints.field("link")), (103, Some("</a.css>")));
    assert_eq!(read_any_response(&mut reader, false).unwrap().status, 200);
}

#[test]
fn http_1_0_clients_get_responses_without_chunks() {
    let backend = Backend::answering(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.ends_with("\r\n\r\nabc") && !text.contains("chunked"), "{text}");
    assert_eq!(backend.requests()[0].field("host"), Some(backend.address.to_string().as_str()));
    // Kept open if the client asks for it and the response has a length.
    let backend = Backend::saying("ok");
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n").unwrap();
        assert_eq!(read_response(&mut reader).unwrap().field("connection"), Some("keep-alive"));
    }
}

#[test]
fn a_response_delimited_by_close_is_forwarded_with_a_framed_end() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        read_head(&mut reader).unwrap();
        stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nabc").unwrap();
    });
    let gate = Gate::before(&backend);
    let mut stream = gate.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let response = read_response(&mut reader).unwrap();
        assert_eq!((response.text().as_str(), response.field("transfer-encoding")), ("abc", Some("chunked")));
    }
}

#[test]
fn a_response_can_arrive_before_the_end_of_the_request() {
    let backend = Backend::connecting(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        read_head(&mut reader).unwrap();
        stream.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno").unwrap();
    });
    let gate = Gate::before(&backend);
    let mut stream: TcpStream = gate.connect();
    stream.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nsome of it").unwrap();
    let response = read_response(&mut BufReader::new(stream)).unwrap();
    assert_eq!((response.status, response.text().as_str(), response.field("connection")), (403, "no", Some("close")));
}
