//! A backend's head of a response: whatever is taken can be written and read again as the same response.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::http1::scan::{Bounds, Scan};
use tollgate_wire::http1::{Length, ResponseHead};

fuzz_target!(|bytes: &[u8]| {
    let bounds = Bounds { line_bytes_max: 8 << 10, head_bytes_max: 32 << 10 };
    let Ok(Some(found)) = Scan::default().look(bytes, bounds, false) else { return };
    for to_head in [false, true] {
        let mut head = ResponseHead::default();
        if head.parse(&bytes[found.clone()], to_head).is_err() {
            continue;
        }
        let mut again = format!("HTTP/1.1 {} x\r\n", head.status).into_bytes();
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
        let mut read_again = ResponseHead::default();
        read_again.parse(&again, to_head).expect("what we write is a response");
        assert_eq!((head.status, head.length), (read_again.status, read_again.length));
    }
});
