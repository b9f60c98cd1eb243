//! Fields that are for this hop only.
//!
//! A client names hop-by-hop fields in `Connection`, and may name any: also the ones a gate adds to tell the backend who the
//! client is. So the client's copies go first ([`strip_nominated`]), and only then are ours added. The fixed ones are left out when
//! a head is written ([`is_hop_by_hop`]), because until then the gate needs to read them.

use super::fields::{Fields, Name, tokens};

/// The most names that one message may nominate: each is compared with each field. A request with more is refused when it
/// is parsed.
pub const NOMINATED_MAX: usize = 32;

/// Whether a field of this name is never forwarded as it came.
pub fn is_hop_by_hop(name: Name) -> bool {
    matches!(
        name,
        Name::Connection
            | Name::Http2Settings
            | Name::KeepAlive
            | Name::ProxyAuthenticate
            | Name::ProxyAuthorization
            | Name::ProxyConnection
            | Name::Te
            | Name::TransferEncoding
            | Name::Upgrade
    )
}

/// Removes the fields that `Connection` nominates.
pub fn strip_nominated(fields: &mut Fields) {
    let ordinary = |token: &[u8]| {
        [&b"keep-alive"[..], b"close", b"upgrade", b"te"].iter().any(|known| token.eq_ignore_ascii_case(known))
    };
    if fields.all(Name::Connection).all(|list| tokens(list).all(ordinary)) {
        return;
    }
    // Rare, so this may allocate.
    let nominated: Vec<Vec<u8>> = fields
        .all(Name::Connection)
        .flat_map(tokens)
        .filter(|token| !ordinary(token))
        .take(NOMINATED_MAX)
        .map(<[u8]>::to_ascii_lowercase)
        .collect();
    fields.retain(|field| !nominated.iter().any(|name| name == field.name_bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_left(fields: &[(&str, &str)]) -> Vec<String> {
        let mut all = Fields::default();
        for (name, value) in fields {
            all.push(name.as_bytes(), value.as_bytes());
        }
        strip_nominated(&mut all);
        all.iter()
            .filter(|field| !is_hop_by_hop(field.name))
            .map(|field| String::from_utf8_lossy(field.name_bytes).into_owned())
            .collect()
    }

    #[test]
    fn fields_for_this_hop_are_removed() {
        let left = names_left(&[
            ("Connection", "keep-alive, Upgrade"),
            ("Keep-Alive", "timeout=5"),
            ("TE", "trailers"),
            ("Upgrade", "websocket"),
            ("Transfer-Encoding", "chunked"),
            ("Proxy-Authorization", "Basic x"),
            ("HTTP2-Settings", "AAMAAABkAAQAAP__"),
            ("Accept", "*/*"),
        ]);
        assert_eq!(left, ["accept"]);
    }

    #[test]
    fn nominated_fields_are_removed_whatever_they_are() {
        let left = names_left(&[
            ("X-Forwarded-For", "1.2.3.4"),
            ("Connection", "close, X-Forwarded-For"),
            ("Connection", "x-CLIENT-id"),
            ("X-Client-Id", "9"),
            ("X-Other", "1"),
        ]);
        assert_eq!(left, ["x-other"]);
    }
}
