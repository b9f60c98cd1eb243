//! A request head: an accepted one can be serialized and parsed as the same request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::http1::scan::{Bounds, Scan};
use tollgate_wire::http1::{Length, RequestHead};

fuzz_target!(|bytes: &[u8]| {
    let bounds = Bounds { line_bytes_max: 8 << 10, head_bytes_max: 32 << 10 };
    let Ok(Some(found)) = Scan::default().look(bytes, bounds, true) else { return };
    let mut head = RequestHead::default();
    if head.parse(&bytes[found]).is_err() {
        return;
    }
    let mut again = Vec::new();
    for part in [&head.method[..], b" ", head.target(), b" HTTP/1.1\r\nhost: ", &head.authority, b"\r\n"] {
        again.extend_from_slice(part);
    }
    match head.length {
        Length::Fixed(length) => again.extend_from_slice(format!("content-length: {length}\r\n").as_bytes()),
        Length::Chunked => again.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Length::Empty | Length::UntilClose => {}
    }
    for field in head.fields.iter() {
        for part in [field.name_bytes, b": ", field.value, b"\r\n"] {
            again.extend_from_slice(part);
        }
    }
    again.extend_from_slice(b"\r\n");
    let mut read_again = RequestHead::default();
    // HTTP/1.0 needs no host.
    if head.authority.is_empty() {
        return;
    }
    read_again.parse(&again).expect("what we write is a request");
    assert_eq!((&head.method, head.target(), &head.authority, head.length), (&read_again.method, read_again.target(), &read_again.authority, read_again.length));
    assert_eq!(head.fields.iter().collect::<Vec<_>>(), read_again.fields.iter().collect::<Vec<_>>());
});
