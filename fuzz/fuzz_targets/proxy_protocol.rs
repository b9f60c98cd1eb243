//! The PROXY protocol: no prefix of a header is a complete header.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::proxy_protocol::{ParsedHeader, parse};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(ParsedHeader::Header { length, .. }) = parse(bytes) {
        assert!(length <= bytes.len());
        for cut in 0..length {
            assert_eq!(parse(&bytes[..cut]), Ok(ParsedHeader::More));
        }
    }
});
