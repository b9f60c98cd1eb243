//! Writes HTTP/1.1 heads for backends and for clients, and selects the fields of a request that are forwarded (also in
//! HTTP/2). Heads are written from the parsed form, so that the other side reads exactly what the gate has read.

use tollgate_core::inputs::is_same_variable;
use tollgate_wire::forwarded::write_forwarded;
use tollgate_wire::http1::fields::Field;
use tollgate_wire::http1::hop_by_hop::is_hop_by_hop;
use tollgate_wire::http1::response::reason;
use tollgate_wire::http1::{Length, Name, RequestHead, ResponseHead, Version};

use crate::gate::decide::identify::ConnectionPeer;
use crate::session_cookie;
use crate::settings::ForwardedHeader;

/// Writes `name: value` and the line end.
pub(crate) fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Names of fields that describe the client and its original request: the provenance of the request.
const PROVENANCE: [&[u8]; 4] = [b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"];

/// Whether a CGI-like backend takes this name for one of [`PROVENANCE`], such as `x_forwarded_for`.
fn is_taken_for_provenance(name: &[u8]) -> bool {
    PROVENANCE.iter().any(|known| is_same_variable(known, name))
}

/// Calls `write` with the name and value of each field that is forwarded unchanged.
pub(crate) fn forwarded_fields(head: &RequestHead, peer: &ConnectionPeer, mut write: impl FnMut(&[u8], &[u8])) {
    for field in head.fields.iter().filter(|field| is_forwarded(field, peer)) {
        match field.name {
            Name::Cookie => session_cookie::without(field.value, |value| write(field.name_bytes, value)),
            _ => write(field.name_bytes, field.value),
        }
    }
}

/// Whether a field of a request is forwarded unchanged.
///
/// Fields that identify the client are forwarded only from a trusted proxy, and the gate adds its own. Variants of
/// their names are never forwarded: a client could have sent them through that proxy.
fn is_forwarded(field: &Field<'_>, peer: &ConnectionPeer) -> bool {
    match field.name {
        // CGI turns `Proxy` into `HTTP_PROXY`, which many programs use as the proxy of their own requests (httpoxy).
        Name::Other => field.name_bytes != b"proxy" && !is_taken_for_provenance(field.name_bytes),
        Name::Accept | Name::Cookie | Name::Expect => true,
        Name::XForwardedFor | Name::Forwarded => false,
        Name::XForwardedHost | Name::XForwardedProto | Name::XRealIp => {
            peer.trust() == Some(ForwardedHeader::XForwardedFor)
        }
        name => !is_hop_by_hop(name),
    }
}

/// Calls `write` with each field by which the gate identifies the client to the backend. `scratch` is reused memory.
pub(crate) fn provenance(
    head: &RequestHead,
    peer: &ConnectionPeer,
    scratch: &mut Vec<u8>,
    mut write: impl FnMut(&[u8], &[u8]),
) {
    // The values of a trusted proxy, then the gate's own.
    let mut joined = |name: Name, ours: &dyn Fn(&mut Vec<u8>), write: &mut dyn FnMut(&[u8])| {
        scratch.clear();
        let header = if name == Name::Forwarded { ForwardedHeader::Forwarded } else { ForwardedHeader::XForwardedFor };
        if peer.trust() == Some(header) {
            for value in head.fields.all(name) {
                scratch.extend_from_slice(value);
                scratch.extend_from_slice(b", ");
            }
        }
        ours(scratch);
        write(scratch);
    };
    joined(Name::XForwardedFor, &|out| out.extend_from_slice(peer.text.as_bytes()), &mut |value| {
        write(b"x-forwarded-for", value);
    });
    let element = |out: &mut Vec<u8>| write_forwarded(out, peer.address, &peer.text, &head.authority, peer.secure);
    joined(Name::Forwarded, &element, &mut |value| write(b"forwarded", value));
    let writes_x_headers = peer.trust() == Some(ForwardedHeader::XForwardedFor);
    let is_set_by_proxy = |name| writes_x_headers && head.fields.first(name).is_some();
    if !is_set_by_proxy(Name::XForwardedProto) {
        write(b"x-forwarded-proto", if peer.secure { b"https" } else { b"http" });
    }
    if !is_set_by_proxy(Name::XForwardedHost) && !head.authority.is_empty() {
        write(b"x-forwarded-host", &head.authority);
    }
}

/// Writes the head of a request for an HTTP/1.1 backend. `backend` is its authority, for requests without a host.
pub(crate) fn write_request(
    out: &mut Vec<u8>,
    head: &RequestHead,
    peer: &ConnectionPeer,
    backend: &str,
    scratch: &mut Vec<u8>,
) {
    out.extend_from_slice(&head.method);
    out.push(b' ');
    out.extend_from_slice(head.target());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    let authority = if head.authority.is_empty() { backend.as_bytes() } else { &head.authority };
    write_field(out, b"host", authority);
    forwarded_fields(head, peer, |name, value| write_field(out, name, value));
    provenance(head, peer, scratch, |name, value| write_field(out, name, value));
    write_length(out, head.length);
    let upgrade = head.upgrade();
    let trailers = head.fields.has_token(Name::Te, b"trailers");
    if let Some(protocol) = upgrade {
        write_field(out, b"upgrade", protocol);
    }
    if trailers {
        out.extend_from_slice(b"te: trailers\r\n");
    }
    match (upgrade.is_some(), trailers) {
        (true, true) => out.extend_from_slice(b"connection: upgrade, te\r\n"),
        (true, false) => out.extend_from_slice(b"connection: upgrade\r\n"),
        (false, true) => out.extend_from_slice(b"connection: te\r\n"),
        (false, false) => {}
    }
    out.extend_from_slice(b"\r\n");
}

fn write_length(out: &mut Vec<u8>, length: Length) {
    match length {
        Length::Empty | Length::UntilClose => {}
        Length::Fixed(length) => write_number_field(out, b"content-length", length),
        Length::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
}

/// Writes a field whose value is a number.
pub(crate) fn write_number_field(out: &mut Vec<u8>, name: &[u8], number: u64) {
    write_field(out, name, itoa::Buffer::new().format(number).as_bytes());
}

/// How the body of a response to a client with this version is delimited, given how the backend delimits it.
pub(crate) fn response_length(length: Length, version: Version) -> Length {
    match (length, version) {
        (Length::UntilClose, Version::Http11) => Length::Chunked,
        (Length::Chunked, Version::Http10) => Length::UntilClose,
        (length, _) => length,
    }
}

/// Writes the head of a response for an HTTP/1.x client. `length`: how its body is delimited; `keep`: the connection is
/// kept for further requests.
pub(crate) fn write_response(out: &mut Vec<u8>, head: &ResponseHead, length: Length, version: Version, keep: bool) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(head.status).as_bytes());
    out.push(b' ');
    let reason_bytes = if head.reason.is_empty() { reason(head.status).as_bytes() } else { &head.reason };
    out.extend_from_slice(reason_bytes);
    out.extend_from_slice(b"\r\n");
    for field in head.fields.iter().filter(|field| !is_hop_by_hop(field.name)) {
        write_field(out, field.name_bytes, field.value);
    }
    match head.would_be_length {
        Some(length) => write_number_field(out, b"content-length", length),
        None => write_length(out, length),
    }
    if head.status == 101 {
        if let Some(protocol) = head.fields.first(Name::Upgrade) {
            write_field(out, b"upgrade", protocol);
        }
        out.extend_from_slice(b"connection: upgrade\r\n");
    } else if !keep {
        out.extend_from_slice(b"connection: close\r\n");
    } else if version == Version::Http10 {
        out.extend_from_slice(b"connection: keep-alive\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Gate as Settings;
    use tollgate_wire::http1::hop_by_hop::strip_nominated;

    fn forwarded(peer: &str, fields: &str) -> String {
        let proxies = tollgate_core::network::Network::parse("10.0.0.0/8").into_iter().collect();
        let settings = Settings { trusted_proxies: proxies, ..Settings::default() };
        let mut head = RequestHead::default();
        head.parse(format!("GET /a HTTP/1.1\r\nHost: site\r\n{fields}\r\n").as_bytes()).unwrap();
        strip_nominated(&mut head.fields);
        let peer = ConnectionPeer::new(peer.parse().unwrap(), false, &settings);
        let mut out = Vec::new();
        write_request(&mut out, &head, &peer, "backend:80", &mut Vec::new());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_of_a_client_that_identify_it_are_replaced() {
        let text = forwarded(
            "192.0.2.1",
            "X-Forwarded-For: 6.6.6.6\r\nForwarded: for=6.6.6.6\r\nX-Forwarded-Proto: https\r\nX-Real-IP: 6.6.6.6\r\n",
        );
        assert!(!text.contains("6.6.6.6") && !text.contains("https"), "{text}");
        assert!(text.contains("x-forwarded-for: 192.0.2.1\r\n"));
        assert!(text.contains("forwarded: for=192.0.2.1;host=site;proto=http\r\n"));
        assert!(text.contains("x-forwarded-host: site\r\n"));
    }

    #[test]
    fn fields_of_a_trusted_proxy_are_kept_and_extended() {
        let text = forwarded(
            "10.0.0.1",
            "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nX-Forwarded-Proto: https\r\n",
        );
        assert!(text.contains("x-forwarded-for: 1.2.3.4, 5.6.7.8, 10.0.0.1\r\n"), "{text}");
        assert_eq!(text.matches("x-forwarded-proto").count(), 1);
        assert!(text.contains("x-forwarded-proto: https\r\n"));
    }

    #[test]
    fn names_that_some_backends_read_as_ours_are_dropped_whoever_says_them() {
        for peer in ["192.0.2.1", "10.0.0.1"] {
            let text = forwarded(
                peer,
                "X_Forwarded_For: 6.6.6.6\r\nx-forwarded_host: 6.6.6.6\r\nX_Forwarded-Proto: 6.6.6.6\r\nX_REAL_IP: 6.6.6.6\r\nX.Forwarded.For: 6.6.6.6\r\nX~Real-IP: 6.6.6.6\r\nX_Real_Id: 7\r\nX_Client: 8\r\n",
            );
            assert!(!text.contains("6.6.6.6"), "{text}");
            assert!(text.contains("x_real_id: 7\r\nx_client: 8\r\n"), "{text}");
            assert!(text.contains("x-forwarded-host: site\r\n"), "{text}");
        }
    }

    #[test]
    fn the_proxy_field_is_dropped() {
        let text = forwarded("10.0.0.1", "Proxy: http://6.6.6.6\r\nX-Proxy: 1\r\n");
        assert!(!text.contains("6.6.6.6") && text.contains("x-proxy: 1\r\n"), "{text}");
    }

    #[test]
    fn nominated_fields_go_and_ours_stay() {
        let text = forwarded(
            "192.0.2.1",
            "Connection: X-Forwarded-For, X-Client-Id\r\nX-Client-Id: 9\r\nX-Forwarded-For: 6.6.6.6\r\n",
        );
        assert!(
            text.contains("x-forwarded-for: 192.0.2.1\r\n")
                && !text.contains("client-id")
                && !text.contains("connection"),
            "{text}"
        );
    }

    #[test]
    fn an_upgrade_and_trailers_are_asked_for_anew() {
        let text = forwarded(
            "192.0.2.1",
            "Connection: keep-alive, Upgrade, TE\r\nUpgrade: websocket\r\nTE: trailers, gzip\r\n",
        );
        assert!(text.contains("upgrade: websocket\r\nte: trailers\r\nconnection: upgrade, te\r\n"), "{text}");
        assert!(!text.contains("keep-alive") && !text.contains("gzip"));
    }
}
