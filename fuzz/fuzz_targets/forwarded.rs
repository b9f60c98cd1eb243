//! `X-Forwarded-For` and `Forwarded`: no input causes a panic, and none hides an address that a proxy appends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::forwarded;

fuzz_target!(|bytes: &[u8]| {
    let peer = "127.0.0.1".parse().expect("an address");
    let lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    forwarded::client_by_x_forwarded_for(peer, lines.iter().copied(), |address| address.is_loopback());
    forwarded::client_by_forwarded(peer, lines.iter().copied(), |address| address.is_loopback());
    let appended = [&lines[..], &[b"host=\"a;b,\\\"c\";for=192.0.2.1"]].concat();
    let client = forwarded::client_by_forwarded(peer, appended.into_iter(), |address| address.is_loopback());
    assert_eq!(client.to_string(), "192.0.2.1", "what a proxy appends counts");
});
