//! WebSockets over HTTP/2 (RFC 8441): an extended CONNECT that turns a stream into a tunnel.
//!
//! The rest of the gate and an HTTP/1.1 backend see such a request as the HTTP/1.1 upgrade that it corresponds to. The
//! heads of request and response are translated here; `h2.rs` carries the bytes. An HTTP/2 backend gets an ordinary
//! GET, so no tunnel opens.

use http::{Method, Request, Response, StatusCode};
use tollgate_wire::http1::{Length, RequestHead};

const KEY: &str = "sec-websocket-key";
const ACCEPT: &str = "sec-websocket-accept";

/// Whether the client asks for a WebSocket. Any other CONNECT gets 501, because a gate is not a forward proxy.
pub(crate) fn asks_for_websocket<B>(request: &Request<B>) -> bool {
    let protocol = request.extensions().get::<h2::ext::Protocol>();
    request.method() == Method::CONNECT && protocol.is_some_and(|protocol| protocol.as_str() == "websocket")
}

/// Turns the head into the corresponding HTTP/1.1 upgrade.
pub(crate) fn make_upgrade(head: &mut RequestHead) {
    head.method.clear();
    head.method.extend_from_slice(b"GET");
    head.length = Length::Empty;
    head.fields.retain(|field| field.name_bytes != KEY.as_bytes());
    head.fields.push(b"upgrade", b"websocket");
    head.fields.push(b"connection", b"upgrade");
    head.fields.push(KEY.as_bytes(), &nonce());
}

/// Translates the response to the upgrade, of the backend or the gate itself. Returns whether the tunnel is open.
pub(crate) fn make_answer(response: &mut Response<()>) -> bool {
    // HTTP/2 does not use this field, and nothing compares it with the key.
    response.headers_mut().remove(ACCEPT);
    let is_open = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_open {
        *response.status_mut() = StatusCode::OK;
    } else if response.status().is_success() {
        // A successful response without an upgrade: to the client it would look like a tunnel.
        *response.status_mut() = StatusCode::BAD_GATEWAY;
    }
    is_open
}

/// Sixteen random bytes in base64, which an HTTP/1.1 client would have chosen.
fn nonce() -> [u8; 24] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut nonce = [b'='; 24];
    let mut bytes = [0; 22];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    for (place, digit) in nonce[..22].iter_mut().enumerate() {
        let random = usize::from(bytes[place]) % DIGITS.len();
        // The last digit has only two bits of the sixteen bytes.
        *digit = DIGITS[if place == 21 { random & 0b11_0000 } else { random }];
    }
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_are_sixteen_bytes_and_differ() {
        let nonces = [nonce(), nonce()];
        assert_ne!(nonces[0], nonces[1]);
        for nonce in nonces {
            assert!(nonce.ends_with(b"==") && b"AQgw".contains(&nonce[21]), "{}", nonce.escape_ascii());
        }
    }
}
