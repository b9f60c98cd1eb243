//! The head of a backend's response.

use core::mem::MaybeUninit;

use super::fields::Fields;
use super::{Length, Version, content_length};

/// The number of fields that are parsed on the stack. More need an allocation.
const FIELDS_USUAL: usize = 128;
/// The maximum number of fields in a response. The size of the head is the main bound; this one keeps the
/// allocation below 64 KiB.
pub const FIELDS_MAX: usize = 2048;

/// A response that a gate cannot forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseError(
    /// The problem.
    pub &'static str,
);

const TOO_MANY_FIELDS: ResponseError = ResponseError("the head has too many fields");

/// A response head. The memory is reused for the next response.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    /// The status code, 100 to 999.
    pub status: u16,
    /// The reason phrase, unchanged.
    pub reason: Vec<u8>,
    /// The backend's HTTP version.
    pub version: Version,
    /// The length of the body.
    pub length: Length,
    /// The fields in order, except `Content-Length` and `Transfer-Encoding`, which are in `length`.
    pub fields: Fields,
    /// The `Content-Length` of a response to HEAD, or of a 304: the length that the body of a GET would have.
    pub would_be_length: Option<u64>,
}

impl ResponseHead {
    /// Parses one complete head. `to_head` means that the request was a HEAD.
    pub fn parse(&mut self, bytes: &[u8], to_head: bool) -> Result<(), ResponseError> {
        let mut slots = [const { MaybeUninit::uninit() }; FIELDS_USUAL];
        match self.parse_in(bytes, to_head, &mut slots) {
            Err(TOO_MANY_FIELDS) => self.parse_in(bytes, to_head, &mut vec![MaybeUninit::uninit(); FIELDS_MAX]),
            parsed => parsed,
        }
    }

    fn parse_in<'b>(
        &mut self,
        bytes: &'b [u8],
        to_head: bool,
        slots: &mut [MaybeUninit<httparse::Header<'b>>],
    ) -> Result<(), ResponseError> {
        let mut config = httparse::ParserConfig::default();
        // RFC 9112, 5.1: a proxy removes the white space between a name and its colon from a response. The
        // head is serialized again, so the client sees the same names that determined the framing here.
        config.allow_spaces_after_header_name_in_responses(true);
        let mut parsed = httparse::Response::new(&mut []);
        match config.parse_response_with_uninit_headers(&mut parsed, bytes, slots) {
            Ok(httparse::Status::Complete(end)) if end == bytes.len() => {}
            Ok(_) => return Err(ResponseError("the head is cut short")),
            Err(httparse::Error::TooManyHeaders) => return Err(TOO_MANY_FIELDS),
            Err(_) => return Err(ResponseError("the head is not HTTP/1.1")),
        }
        let (Some(status @ 100..), Some(minor)) = (parsed.code, parsed.version) else {
            return Err(ResponseError("the status line is incomplete"));
        };
        self.clear();
        self.status = status;
        self.reason.extend_from_slice(parsed.reason.unwrap_or_default().as_bytes());
        self.version = if minor == 0 { Version::Http10 } else { Version::Http11 };
        let mut length = None;
        let mut chunked = None;
        for header in parsed.headers.iter() {
            if header.name.eq_ignore_ascii_case("content-length") {
                let value = content_length(header.value).ok_or(ResponseError("Content-Length is not a number"))?;
                if length.replace(value).is_some_and(|other| other != value) {
                    return Err(ResponseError("two different Content-Lengths"));
                }
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                if chunked.replace(header.value.eq_ignore_ascii_case(b"chunked")).is_some() {
                    return Err(ResponseError("more than one Transfer-Encoding"));
                }
            } else {
                self.fields.push(header.name.as_bytes(), header.value);
            }
        }
        self.frame(length, chunked, to_head)
    }

    /// Removes the response and keeps the memory.
    pub fn clear(&mut self) {
        self.status = 0;
        self.reason.clear();
        self.version = Version::Http11;
        self.length = Length::Empty;
        self.fields.clear();
        self.would_be_length = None;
    }

    /// Whether this is an interim response. 101 is final, because it ends HTTP on the connection.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    /// Whether the backend keeps the connection open for another request.
    pub fn keeps_alive(&self) -> bool {
        self.length != Length::UntilClose && self.fields.keeps_alive(self.version)
    }

    /// Sets the length of the body from `Content-Length` and from `Transfer-Encoding` (`chunked` is whether its value
    /// is that word, if there is one).
    fn frame(&mut self, length: Option<u64>, chunked: Option<bool>, to_head: bool) -> Result<(), ResponseError> {
        if length.is_some() && chunked.is_some() {
            return Err(ResponseError("both Content-Length and Transfer-Encoding"));
        }
        self.length = match (chunked, length) {
            _ if to_head || self.status < 200 || matches!(self.status, 204 | 304) => {
                self.would_be_length = length.filter(|_| to_head || self.status == 304);
                Length::Empty
            }
            (Some(true), _) if self.version == Version::Http11 => Length::Chunked,
            (Some(_), _) => return Err(ResponseError("a transfer coding other than chunked")),
            (None, Some(length)) => Length::Fixed(length),
            (None, None) => Length::UntilClose,
        };
        Ok(())
    }
}

/// The standard reason phrase of a status, by RFC 9110.
pub fn reason(status: u16) -> &'static str {
    match status {
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        _ => http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, to_head: bool) -> Result<ResponseHead, ResponseError> {
        let mut head = ResponseHead::default();
        head.parse(text.as_bytes(), to_head).map(|()| head)
    }

    #[test]
    fn the_body_length_follows_the_rules() {
        let length =
            |fields: &str, to_head| parse(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), to_head).unwrap().length;
        assert_eq!(length("Content-Length: 7\r\n", false), Length::Fixed(7));
        assert_eq!(length("Content-Length: 7\r\n", true), Length::Empty);
        assert_eq!(length("Transfer-Encoding: chunked\r\n", false), Length::Chunked);
        assert_eq!(length("", false), Length::UntilClose);
        for status in [100, 101, 204, 304] {
            let head = parse(&format!("HTTP/1.1 {status} x\r\nContent-Length: 7\r\n\r\n"), false).unwrap();
            assert_eq!(head.length, Length::Empty);
            assert_eq!(head.would_be_length, (status == 304).then_some(7));
        }
    }

    #[test]
    fn an_ambiguous_response_is_rejected() {
        for fields in [
            "Content-Length: 7\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 7\r\nContent-Length: 8\r\n",
            "Content-Length: x\r\n",
            "Transfer-Encoding: gzip\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        ] {
            assert!(parse(&format!("HTTP/1.1 200 OK\r\n{fields}\r\n"), false).is_err(), "{fields:?}");
        }
        for line in ["HTTP/1.1 99 x", "HTTP/1.1", "SSH-2.0-x", "HTTP/2 200 OK", "HTTP/1.1 2000 x"] {
            assert!(parse(&format!("{line}\r\n\r\n"), false).is_err(), "{line}");
        }
    }

    #[test]
    fn white_space_before_a_colon_is_removed_and_the_field_is_used() {
        let head = parse("HTTP/1.1 200 OK\r\nX-A : b\r\nX-B\t :c\r\nContent-Length : 7\r\n\r\n", false).unwrap();
        let fields: Vec<_> = head.fields.iter().map(|field| (field.name_bytes, field.value)).collect();
        assert_eq!(fields, [(&b"x-a"[..], &b"b"[..]), (b"x-b", b"c")]);
        assert_eq!(head.length, Length::Fixed(7));
        let chunked = parse("HTTP/1.1 200 OK\r\nTransfer-Encoding : chunked\r\n\r\n", false).unwrap();
        assert_eq!(chunked.length, Length::Chunked);
        for line in ["X A: b", "X A : b", " : b", ": b", "X-A\u{b}: b", "X-A b", " X-A: b", "X-A: b\r\n folded"] {
            assert!(parse(&format!("HTTP/1.1 200 OK\r\n{line}\r\n\r\n"), false).is_err(), "{line:?}");
        }
        let both = "HTTP/1.1 200 OK\r\nContent-Length : 7\r\nTransfer-Encoding\t: chunked\r\n\r\n";
        assert!(parse(both, false).is_err());
    }

    #[test]
    fn a_response_may_have_many_fields_but_not_any_number() {
        let many = |count| format!("HTTP/1.1 200 OK\r\n{}\r\n", "Set-Cookie: a=b\r\n".repeat(count));
        for count in [FIELDS_USUAL, FIELDS_USUAL + 1, FIELDS_MAX] {
            assert_eq!(parse(&many(count), false).unwrap().fields.len(), count);
        }
        assert_eq!(parse(&many(FIELDS_MAX + 1), false).unwrap_err(), TOO_MANY_FIELDS);
    }

    #[test]
    fn a_connection_is_kept_if_the_response_has_a_definite_end() {
        let keeps = |text| parse(text, false).unwrap().keeps_alive();
        assert!(keeps("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"));
        assert!(!keeps("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
        assert!(!keeps("HTTP/1.1 200 OK\r\n\r\n"));
        assert!(!keeps("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"));
        assert!(keeps("HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive\r\n\r\n"));
    }
}
