//! Translates heads between the types of the `h2` crate and those of the gate ([`RequestHead`], [`ResponseHead`]),
//! which have the form of HTTP/1.1. Used for clients and for backends that speak HTTP/2.

use bytes::Bytes;
use h2::RecvStream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri};
use tollgate_wire::http1::chunked::push_trailer;
use tollgate_wire::http1::hop_by_hop::is_hop_by_hop;
use tollgate_wire::http1::request::is_authority;
use tollgate_wire::http1::{Fault, Fields, Length, Name, RequestHead, ResponseHead, Version, content_length};

use super::body::PeerError;
use super::forward;
use super::h2_connect;
use crate::gate::decide::identify::ConnectionPeer;

/// Reads the head of a client's HTTP/2 request, by the same rules as an HTTP/1.1 one. More than `fields_max` header
/// fields are refused. The `h2` crate has limited the size of the head and refused connection-specific fields.
pub(crate) fn read_request(
    request: &Request<RecvStream>,
    head: &mut RequestHead,
    fields_max: usize,
) -> Result<(), Fault> {
    head.clear();
    head.method.extend_from_slice(request.method().as_str().as_bytes());
    head.version = Version::Http11;
    let websocket = h2_connect::asks_for_websocket(request);
    if request.method() == Method::CONNECT && !websocket {
        return Err(Fault::NotImplemented("a gate is not a forward proxy"));
    }
    if request.headers().len() > fields_max {
        return Err(Fault::HeadTooLarge);
    }
    head.set_target(request.uri().path_and_query().map_or("/", |target| target.as_str()).as_bytes());
    // White space in a target would end it in an HTTP/1.1 request line.
    if head.target().iter().any(|byte| *byte <= b' ' || *byte == 0x7f) {
        return Err(Fault::Malformed("the request target has white space or controls in it"));
    }
    // Backends treat other forms of a target differently, so rules for paths could be bypassed.
    let is_target = head.target().first() == Some(&b'/') || (head.target() == b"*" && head.method == b"OPTIONS");
    if !is_target {
        return Err(Fault::Malformed("the request target is not a path"));
    }
    read_authority(request.uri(), request.headers(), head)?;
    let content_length = read_fields(request.headers(), head)?;
    head.length = match (request.body().is_end_stream(), content_length) {
        (true, None) => Length::Empty,
        (true, Some(0)) => Length::Fixed(0),
        (true, Some(_)) => return Err(Fault::Malformed("the body is shorter than its Content-Length")),
        (false, Some(length)) => Length::Fixed(length),
        (false, None) => Length::Chunked,
    };
    if websocket {
        h2_connect::make_upgrade(head);
    }
    Ok(())
}

fn read_authority(uri: &Uri, headers: &HeaderMap, head: &mut RequestHead) -> Result<(), Fault> {
    let mut hosts = headers.get_all(http::header::HOST).iter().map(HeaderValue::as_bytes);
    let named = uri.authority().map(|authority| authority.as_str().as_bytes());
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err(Fault::Malformed("more than one Host"));
    }
    match (named, host) {
        (Some(named), Some(host)) if !named.eq_ignore_ascii_case(host) => {
            return Err(Fault::Malformed("the request target and Host disagree"));
        }
        (Some(authority), _) | (None, Some(authority)) if is_authority(authority) => {
            head.authority.extend_from_slice(authority);
        }
        (None, None) => return Err(Fault::Malformed("Host is missing")),
        _ => return Err(Fault::Malformed("Host is not a host")),
    }
    Ok(())
}

/// The `Content-Length` of a message. The gate compares the body with it (`Announced`), and does not rely on the `h2`
/// crate, which compares them too.
fn content_length_of(headers: &HeaderMap) -> Result<Option<u64>, &'static str> {
    let mut values = headers.get_all(http::header::CONTENT_LENGTH).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("more than one Content-Length");
    }
    content_length(value.as_bytes()).map(Some).ok_or("Content-Length is not one plain number")
}

/// Copies the header fields into `head`. Returns the `Content-Length`.
fn read_fields(headers: &HeaderMap, head: &mut RequestHead) -> Result<Option<u64>, Fault> {
    let mut cookies = Vec::new();
    for (name, value) in headers {
        // HTTP/1.1 drops this white space, so the backend would see another value than the rules.
        if trimmed(value).len() < value.len() {
            return Err(Fault::Malformed("a header value begins or ends with white space"));
        }
        match Name::of(name.as_str().as_bytes()) {
            Name::Host | Name::ContentLength => {}
            // HTTP/2 may split cookies for better compression; HTTP/1.1 may not (RFC 9113, 8.2.3).
            Name::Cookie => {
                if !cookies.is_empty() {
                    cookies.extend_from_slice(b"; ");
                }
                cookies.extend_from_slice(value.as_bytes());
            }
            _ => head.fields.push(name.as_str().as_bytes(), value.as_bytes()),
        }
    }
    if !cookies.is_empty() {
        head.fields.push(b"cookie", &cookies);
    }
    content_length_of(headers).map_err(Fault::Malformed)
}

/// The value without the surrounding white space that HTTP/1.1 drops and HTTP/2 forbids (RFC 9113, 8.2.1).
fn trimmed(value: &HeaderValue) -> &[u8] {
    value.as_bytes().trim_ascii()
}

/// Writes the head of a request for an HTTP/2 backend. None if the `http` crate rejects the method, the host or the
/// target; the request then fails.
///
/// `backend` is its authority, for requests without a host; `secure`: it is connected by TLS; `scratch` is reused
/// memory.
pub(crate) fn write_request(
    head: &RequestHead,
    peer: &ConnectionPeer,
    backend: &str,
    secure: bool,
    scratch: &mut Vec<u8>,
) -> Option<Request<()>> {
    let authority = if head.authority.is_empty() { backend.as_bytes() } else { &head.authority };
    let uri = Uri::builder()
        .scheme(if secure { "https" } else { "http" })
        .authority(authority)
        .path_and_query(head.target())
        .build()
        .ok()?;
    let mut request = Request::builder().method(&head.method[..]).uri(uri).body(()).ok()?;
    let headers = request.headers_mut();
    forward::forwarded_fields(head, peer, |name, value| {
        // The gate has sent the 100 itself, because few backends send one over HTTP/2.
        if name != b"expect" {
            append(headers, name, value);
        }
    });
    forward::provenance(head, peer, scratch, |name, value| append(headers, name, value));
    if let Length::Fixed(length) = head.length {
        headers.insert(http::header::CONTENT_LENGTH, length.into());
    }
    if head.fields.has_token(Name::Te, b"trailers") {
        headers.insert(http::header::TE, HeaderValue::from_static("trailers"));
    }
    Some(request)
}

/// Reads the head of a backend's HTTP/2 response. `to_head`: it responds to a HEAD. `ends`: the stream ends with it, so
/// that there is no body.
pub(crate) fn read_response<B>(
    response: &Response<B>,
    head: &mut ResponseHead,
    to_head: bool,
    ends: bool,
) -> Result<(), PeerError> {
    head.clear();
    head.status = response.status().as_u16();
    let content_length = content_length_of(response.headers()).map_err(PeerError::Malformed)?;
    for (name, value) in response.headers() {
        match Name::of(name.as_str().as_bytes()) {
            Name::ContentLength => {}
            known if is_hop_by_hop(known) => {}
            // No rule reads the value, so trimming it, as HTTP/1.1 does, is safe. Refusing it would fail the request.
            _ => head.fields.push(name.as_str().as_bytes(), trimmed(value)),
        }
    }
    let bodiless = to_head || head.status < 200 || matches!(head.status, 204 | 304);
    head.length = match content_length {
        _ if bodiless => {
            head.would_be_length = content_length.filter(|_| to_head || head.status == 304);
            Length::Empty
        }
        None if ends => Length::Fixed(0),
        Some(length) => Length::Fixed(length),
        None => Length::Chunked,
    };
    Ok(())
}

/// Writes the head of a response for an HTTP/2 client, without hop-by-hop fields. None if the status is not from 100 to
/// 999.
pub(crate) fn write_response(head: &ResponseHead) -> Option<Response<()>> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    let headers = response.headers_mut();
    for field in head.fields.iter().filter(|field| !is_hop_by_hop(field.name)) {
        append(headers, field.name_bytes, field.value);
    }
    let length = match head.length {
        Length::Fixed(length) => Some(length),
        _ => head.would_be_length,
    };
    if let Some(length) = length {
        headers.insert(http::header::CONTENT_LENGTH, length.into());
    }
    Some(response)
}

/// Copies the permitted trailers.
pub(crate) fn read_trailers(map: &HeaderMap, trailers: &mut Fields) {
    for (name, value) in map {
        push_trailer(trailers, name.as_str().as_bytes(), trimmed(value));
    }
}

/// Trailers for HTTP/2.
pub(crate) fn write_trailers(trailers: &Fields) -> HeaderMap {
    let mut map = HeaderMap::with_capacity(trailers.len());
    for field in trailers.iter() {
        append(&mut map, field.name_bytes, field.value);
    }
    map
}

/// Adds a field, or drops it if its name or value is invalid. Callers leave out hop-by-hop fields, which HTTP/2
/// forbids.
fn append(headers: &mut HeaderMap, name: &[u8], value: &[u8]) {
    let (Ok(name), Ok(value)) =
        (HeaderName::from_bytes(name), HeaderValue::from_maybe_shared(Bytes::copy_from_slice(value)))
    else {
        return;
    };
    headers.append(name, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lengths: &[&str]) -> Result<Option<u64>, Fault> {
        let mut headers = HeaderMap::new();
        for length in lengths {
            append(&mut headers, b"content-length", length.as_bytes());
        }
        read_fields(&headers, &mut RequestHead::default())
    }

    #[test]
    fn a_message_has_one_plain_content_length() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&["5"]).unwrap(), Some(5));
        for lengths in [&["5", "5"][..], &["5", "6"], &["5, 5"], &["+5"], &["-1"], &[""], &["18446744073709551616"]] {
            assert_eq!(read(lengths).unwrap_err().status(), 400, "{lengths:?}");
        }
    }

    #[test]
    fn an_answer_has_one_plain_content_length() {
        let answer = |lengths: &[&str]| {
            let mut response = Response::new(());
            for length in lengths {
                append(response.headers_mut(), b"content-length", length.as_bytes());
            }
            read_response(&response, &mut ResponseHead::default(), false, false)
        };
        assert!(answer(&["5"]).is_ok() && answer(&[]).is_ok());
        assert!(answer(&["5", "5"]).is_err() && answer(&["5x"]).is_err());
    }
}
