//! Requests as our parser reads them, compared with hyper: a request that we accept, hyper accepts too, with the same
//! method, target and body. Otherwise a backend on hyper could see another number of requests than the gate.
//!
//! We reject more than hyper does. [`STRICTER`] lists each reason; a rejection for any other reason must be hyper's,
//! too.
#![no_main]

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::rt::{Read, ReadBufCursor, Write};
use libfuzzer_sys::fuzz_target;
use tollgate_wire::http1::chunked::{Decoder, Step};
use tollgate_wire::http1::request::FIELDS_MAX;
use tollgate_wire::http1::scan::{Bounds, Scan};
use tollgate_wire::http1::{Length, RequestHead};

/// The reasons why we reject requests that hyper accepts, each deliberate.
const STRICTER: [&str; 16] = [
    // Parsers disagree about these, so that one of two sees another request.
    "a line ends in a bare LF",
    "both Content-Length and Transfer-Encoding",
    "more than one Transfer-Encoding",
    "the only transfer coding is chunked",
    "Content-Length is not one plain number",
    // hyper leaves the host to the application; rules and backends must see the same one.
    "more than one Host",
    "Host is missing",
    "Host is not a host",
    "the request target has no valid host",
    "the request target and Host disagree",
    "the request target is neither a path nor a URL",
    // hyper drops the fragment, a backend may not.
    "the request target has a fragment",
    // Tunnels and bounds of a gate.
    "a gate is not a forward proxy",
    "Connection names too many fields",
    "the header fields are too large or too many",
    STRICTER_CHUNKS,
];
/// A chunk-size line with white space, with more than 15 digits, or with an extension that is long or has control
/// bytes; trailers that are not fields.
const STRICTER_CHUNKS: &str = "the chunked coding is malformed";

const BOUNDS: Bounds = Bounds { line_bytes_max: 8 << 10, head_bytes_max: 32 << 10 };

/// One request: its head, and its body if it is complete.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    method: Vec<u8>,
    target: Vec<u8>,
    length: Length,
    body: Option<Vec<u8>>,
}

/// The requests of our parser, and why it stopped, if it rejected the next one.
fn ours(bytes: &[u8]) -> (Vec<Request>, Option<&'static str>) {
    let (mut requests, mut rest) = (Vec::new(), bytes);
    loop {
        let (start, end) = match Scan::default().look(rest, BOUNDS, true) {
            Ok(Some(head)) => (head.start, head.end),
            Ok(None) => return (requests, None),
            Err(fault) => return (requests, Some(fault.detail())),
        };
        let mut head = RequestHead::default();
        if let Err(fault) = head.parse(&rest[start..end]) {
            return (requests, Some(fault.detail()));
        }
        rest = &rest[end..];
        let (body, is_malformed) = match head.length {
            Length::Empty | Length::UntilClose => (Some(Vec::new()), false),
            Length::Fixed(length) => {
                let body = usize::try_from(length).ok().and_then(|length| rest.split_at_checked(length));
                rest = body.map_or(&[], |(_, after)| after);
                (body.map(|(body, _)| body.to_vec()), false)
            }
            Length::Chunked => match unchunk(rest) {
                Ok(Some((body, used))) => {
                    rest = &rest[used..];
                    (Some(body), false)
                }
                Ok(None) => (None, false),
                Err(()) => (None, true),
            },
        };
        // A tunnel has no further requests, and neither has a connection that closes.
        let is_last = body.is_none() || !head.keeps_alive() || head.upgrade().is_some();
        let (method, target) = (head.method.clone(), head.target().to_vec());
        requests.push(Request { method, target, length: head.length, body });
        if is_last {
            return (requests, is_malformed.then_some(STRICTER_CHUNKS));
        }
    }
}

/// The body and its length in the input, if it is complete.
fn unchunk(input: &[u8]) -> Result<Option<(Vec<u8>, usize)>, ()> {
    let (mut decoder, mut body, mut at) = (Decoder::default(), Vec::new(), 0);
    loop {
        match decoder.decode(&input[at..]).map_err(|_| ())? {
            Step::Data(range) => {
                body.extend_from_slice(&input[at + range.start..at + range.end]);
                at += range.end;
            }
            Step::More(_) => return Ok(None),
            Step::End(used) => return Ok(Some((body, at + used))),
        }
    }
}

/// A connection that delivers these bytes, then nothing more, and drops what is written.
struct Input<'a>(&'a [u8]);

impl Read for Input<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, mut into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let count = self.0.len().min(into.remaining());
        if count == 0 {
            return Poll::Pending;
        }
        into.put_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Poll::Ready(Ok(()))
    }
}

impl Write for Input<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Whether the connection must be polled again.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The requests of hyper, and whether it rejected the next one.
fn hypers(bytes: &[u8]) -> (Vec<Request>, Option<hyper::Error>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = requests.clone();
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let seen = seen.clone();
        async move {
            let length = match request.body().size_hint().exact() {
                Some(0) => Length::Empty,
                Some(length) => Length::Fixed(length),
                None => Length::Chunked,
            };
            let path = request.uri().path_and_query().map_or("", |path| path.as_str());
            let target = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() }.into_bytes();
            let method = request.method().as_str().as_bytes().to_vec();
            seen.lock().unwrap().push(Request { method, target, length, body: None });
            let index = seen.lock().unwrap().len() - 1;
            if let Ok(body) = request.into_body().collect().await {
                seen.lock().unwrap()[index].body = Some(body.to_bytes().to_vec());
            }
            Ok::<_, Infallible>(hyper::Response::new(Empty::<Bytes>::new()))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new().max_headers(FIELDS_MAX).serve_connection(Input(bytes), service);
    let mut connection = pin!(connection);
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let mut error = None;
    while woken.0.swap(false, Ordering::Relaxed) {
        if let Poll::Ready(result) = connection.as_mut().poll(&mut Context::from_waker(&waker)) {
            error = result.err();
            break;
        }
    }
    let requests = std::mem::take(&mut *requests.lock().unwrap());
    (requests, error)
}

fuzz_target!(|bytes: &[u8]| {
    let ((ours, reason), (hypers, error)) = (ours(bytes), hypers(bytes));
    for (ours, hypers) in ours.iter().zip(&hypers) {
        assert_eq!((&ours.method, &ours.target), (&hypers.method, &hypers.target));
        let is_empty = |length| matches!(length, Length::Empty | Length::Fixed(0));
        assert!(ours.length == hypers.length || (is_empty(ours.length) && is_empty(hypers.length)), "{ours:?} {hypers:?}");
        if ours.body.is_some() {
            assert_eq!(ours.body, hypers.body);
        }
    }
    if let (Some(next), Some(error)) = (ours.get(hypers.len()), &error) {
        // hyper closes connections that we keep, but it must not reject a request that we accept.
        assert!(is_beyond_hyper(next), "hyper rejects what we accept: {error}: {next:?}");
    }
    if let Some(reason) = reason.filter(|_| hypers.len() > ours.len()) {
        assert!(STRICTER.contains(&reason), "we reject what hyper accepts, because {reason}: {:?}", hypers[ours.len()]);
    }
});

/// Requests that only we accept: hyper's URI type is narrower than the targets that servers accept, which are forwarded
/// unchanged, and its longest body is two bytes short of 2^64.
fn is_beyond_hyper(request: &Request) -> bool {
    hyper::Uri::try_from(&request.target[..]).is_err() || matches!(request.length, Length::Fixed(length) if length > u64::MAX - 2)
}
