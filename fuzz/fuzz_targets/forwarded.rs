//! `X-Forwarded-For`, `Forwarded` and `Server-Timing`: any bytes, and never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::{forwarded, server_timing};

fuzz_target!(|bytes: &[u8]| {
    let peer = "127.0.0.1".parse().expect("an address");
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    forwarded::client_by_x_forwarded_for(peer, lines.iter().copied(), |address| address.is_loopback());
    forwarded::client_by_forwarded(peer, lines.iter().copied(), |address| address.is_loopback());
    for line in lines {
        let _ = server_timing::cpu(line);
        let mut rest = Vec::new();
        server_timing::write_without_cpu(line, &mut rest);
        assert_eq!(server_timing::cpu(&rest), Ok(None), "the cpu metric is gone");
    }
});
