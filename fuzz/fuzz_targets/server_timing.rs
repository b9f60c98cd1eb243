//! `Server-Timing`: a parsed CPU time is finite and not negative, and the field without it has none.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::server_timing;

fuzz_target!(|line: &[u8]| {
    let _ = server_timing::cpu(line);
    let mut rest = Vec::new();
    server_timing::write_without_cpu(line, &mut rest);
    // Each comma becomes a comma and a space.
    assert!(rest.len() <= 2 * line.len(), "the rest is at most twice as long");
    assert_eq!(server_timing::cpu(&rest), Ok(None), "the cpu metric is gone");
    let mut again = Vec::new();
    server_timing::write_without_cpu(&rest, &mut again);
    assert_eq!(rest, again, "nothing else is removed");
});
