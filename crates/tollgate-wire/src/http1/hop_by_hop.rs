//! Hop-by-hop header fields, which concern one connection and which the gate must not forward.
//!
//! A peer lists further hop-by-hop fields in `Connection` (here they are called nominated). A client may list any
//! field, including those that a gate adds to identify the client. Nominated fields are therefore removed
//! ([`strip_nominated`]) before the gate adds its own. The standard hop-by-hop fields are skipped when a head is
//! written ([`is_hop_by_hop`]), because the gate reads them until then.

use super::fields::{Fields, Name, tokens};

/// The maximum number of names in `Connection` of a request. A request with more is malformed.
pub const NOMINATED_MAX: usize = 32;

/// Whether a field of this name is never forwarded unchanged.
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

/// Removes the fields that `Connection` lists, except the standard ones, which [`is_hop_by_hop`] recognizes.
pub fn strip_nominated(fields: &mut Fields) {
    let ordinary = |token: &[u8]| {
        [&b"keep-alive"[..], b"close", b"upgrade", b"te"].iter().any(|known| token.eq_ignore_ascii_case(known))
    };
    if fields.all(Name::Connection).all(|list| tokens(list).all(ordinary)) {
        return;
    }
    // This is rare, so it may allocate.
    let mut nominated: Vec<Vec<u8>> = fields
        .all(Name::Connection)
        .flat_map(tokens)
        .filter(|token| !ordinary(token))
        .map(<[u8]>::to_ascii_lowercase)
        .collect();
    // A response may list any number of names, so they are not compared with every field.
    nominated.sort_unstable();
    fields.retain(|field| nominated.binary_search_by(|name| name.as_slice().cmp(field.name_bytes)).is_err());
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
    fn fields_listed_in_connection_are_removed() {
        let left = names_left(&[
            ("X-Forwarded-For", "1.2.3.4"),
            ("Connection", "close, X-Forwarded-For"),
            ("Connection", "x-CLIENT-id"),
            ("X-Client-Id", "9"),
            ("X-Other", "1"),
        ]);
        assert_eq!(left, ["x-other"]);
    }

    #[test]
    fn all_listed_fields_are_removed_however_many_they_are() {
        let listed: Vec<String> = (0..2 * NOMINATED_MAX).map(|number| format!("X-{number}")).collect();
        let list = listed.join(", ");
        let mut fields = vec![("Connection", list.as_str()), ("X-Other", "1")];
        fields.extend(listed.iter().map(|name| (name.as_str(), "1")));
        assert_eq!(names_left(&fields), ["x-other"]);
    }
}
