//! A value in a JSON body: the first line is the pointer, the rest is the body.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_wire::json_body::{AMBIGUOUS, find};

fuzz_target!(|input: &[u8]| {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return };
    let Ok(pointer) = std::str::from_utf8(&input[..end]) else { return };
    let body = &input[end + 1..];
    let found = find(body, pointer);
    // A general parser agrees, except that it takes the last of several members.
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(body)
        && let Some(serde_json::Value::String(text)) = value.pointer(pointer)
        && found.as_deref() != Some(AMBIGUOUS)
    {
        assert_eq!(found.as_deref(), Some(text.as_bytes()));
    }
});
