//! Query parameters as keys.
//!
//! Browsers cannot set header fields of a websocket, so a parameter identifies its client. Escapes are decoded, because
//! `%41` and `A` are the same value to a backend. If a parameter has two different values, some servers use the first
//! and others the last, so a client could show the gate one value and the backend another. All such requests share one
//! key, and so do those with a name that PHP reads as that of the parameter, such as `api.key` for `api_key`.
//! A condition treats their value as unknown.

use crate::form::{AMBIGUOUS, decoded, is_same_php_variable, write_decoded};
use crate::key_sink::KeySink;

/// Hands the value of the parameter `name` of `target` to `sink`; `false` when there is none.
pub fn write_parameter(target: &[u8], name: &str, sink: &mut impl KeySink) -> bool {
    let mut found: Option<&[u8]> = None;
    for (known, value) in parameters(target) {
        if !decoded(known).eq(name.bytes()) {
            if is_same_php_variable(name.as_bytes(), known) {
                sink.write(AMBIGUOUS);
                return true;
            }
            continue;
        }
        match found {
            None => found = Some(value),
            Some(first) if decoded(first).eq(decoded(value)) => {}
            Some(_) => {
                sink.write(AMBIGUOUS);
                return true;
            }
        }
    }
    let Some(value) = found else { return false };
    write_decoded(value, sink);
    true
}

/// The names and values of a target's query, as they are written.
fn parameters(target: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let query = target.iter().position(|&byte| byte == b'?').map_or(&[][..], |at| &target[at + 1..]);
    let query = query.split(|&byte| byte == b'#').next().unwrap_or_default();
    query.split(|&byte| byte == b'&' || byte == b';').map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=');
        at.map_or((pair, &[][..]), |at| (&pair[..at], &pair[at + 1..]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_sink::CollectedKey;
    use alloc::string::String;

    fn value(target: &str, name: &str) -> Option<String> {
        let mut text = CollectedKey::default();
        write_parameter(target.as_bytes(), name, &mut text).then(|| String::from_utf8_lossy(&text.0).into_owned())
    }

    #[test]
    fn every_spelling_of_a_value_is_one_key() {
        for target in
            ["/?device=d%201", "/ws?x=1&device=d+1", "/?%64evice=%64%201#device=2", "/?device=d+1&device=d%201"]
        {
            assert_eq!(value(target, "device").as_deref(), Some("d 1"), "{target}");
        }
        assert_eq!(value("/?device=%4", "device").as_deref(), Some("%4"));
        assert_eq!(value("/?device", "device").as_deref(), Some(""));
    }

    #[test]
    fn a_request_without_the_parameter_has_no_key_and_all_with_two_values_share_one() {
        for target in ["/", "/?", "/device=1", "/?devices=1", "/?x=device=1", "", "/?x#?device=1"] {
            assert_eq!(value(target, "device"), None, "{target}");
        }
        let twice = value("/?device=1&device=2", "device");
        assert!(twice.is_some() && twice == value("/?device=3&device=1;device=4", "device"));
        assert_ne!(twice, value("/?device=?", "device"));
    }

    #[test]
    fn names_that_php_reads_as_the_parameter_share_the_key_of_two_values() {
        let twice = value("/?api_key=1&api_key=2", "api_key");
        for target in [
            "/?api.key=1",
            "/?api+key=1",
            "/?api%20key=1",
            "/?api_key[]=1",
            "/?api_key%5Ba]=1&api_key=1",
            "/?api[key=1",
            "/?api_key%00=1",
            "/?api.key%00x=1",
        ] {
            assert_eq!(value(target, "api_key"), twice, "{target}");
        }
        for target in ["/?api-key=1", "/?API_KEY=1", "/?apikey=1", "/?api_key_=1"] {
            assert_eq!(value(target, "api_key"), None, "{target}");
        }
    }
}
