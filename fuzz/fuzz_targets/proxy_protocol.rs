//! The PROXY protocol: no prefix of a header is a complete header.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::proxy_protocol::parse;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Some((length, _))) = parse(bytes) {
        assert!(length <= bytes.len());
        for cut in 0..length {
            assert_eq!(parse(&bytes[..cut]), Ok(None));
        }
    }
});
