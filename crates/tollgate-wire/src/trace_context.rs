//! The `traceparent` header field (W3C Trace Context). The gate reads it from requests and writes it into the requests
//! to backends, so that its own spans are part of the client's trace.

use std::io::Write as _;

/// The span in which a request was sent: the parent of the spans that its receiver adds to the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace identifier.
    pub trace: [u8; 16],
    /// The parent span's identifier.
    pub span: [u8; 8],
    /// Whether the trace is sampled.
    pub sampled: bool,
}

/// The length of the field's value in version 0, in bytes.
pub const TEXT_LENGTH: usize = 55;

impl TraceParent {
    /// Parses a value of the field; `None` if it is invalid. The receiver then starts a new trace.
    pub fn read(value: &[u8]) -> Option<Self> {
        let (head, rest) = value.split_at_checked(TEXT_LENGTH)?;
        let [version] = parse_hex(&head[..2])?;
        // Later versions may append data; version 255 is invalid.
        if version == 255 || (version == 0 && !rest.is_empty()) || !matches!(rest, [] | [b'-', ..]) {
            return None;
        }
        if head[2] != b'-' || head[35] != b'-' || head[52] != b'-' {
            return None;
        }
        let (trace, span) = (parse_hex(&head[3..35])?, parse_hex(&head[36..52])?);
        let [flags] = parse_hex(&head[53..55])?;
        (trace != [0; 16] && span != [0; 8]).then_some(Self { trace, span, sampled: flags & 1 == 1 })
    }

    /// The value of the field.
    pub fn write(&self) -> [u8; TEXT_LENGTH] {
        let (trace, span) = (u128::from_be_bytes(self.trace), u64::from_be_bytes(self.span));
        let mut text = [0; TEXT_LENGTH];
        write!(&mut text[..], "00-{trace:032x}-{span:016x}-{:02x}", u8::from(self.sampled))
            .expect("it has this length");
        text
    }
}

fn parse_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (pair, byte) in text.chunks_exact(2).zip(&mut bytes) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_recommendation_is_read_and_written() {
        let parent = TraceParent::read(EXAMPLE).unwrap();
        assert_eq!((parent.trace[0], parent.span[7], parent.sampled), (0x4b, 0xb7, true));
        assert_eq!(parent.write(), EXAMPLE);
    }

    #[test]
    fn an_invalid_traceparent_starts_a_new_trace() {
        for odd in [
            &b""[..],
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
            b"00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::read(odd), None, "{}", String::from_utf8_lossy(odd));
        }
        assert!(TraceParent::read(b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more").is_some());
    }

    proptest! {
        #[test]
        fn written_data_is_read_back(trace: [u8; 16], span: [u8; 8], sampled: bool) {
            prop_assume!(trace != [0; 16] && span != [0; 8]);
            let parent = TraceParent { trace, span, sampled };
            prop_assert_eq!(TraceParent::read(&parent.write()), Some(parent));
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes: Vec<u8>) {
            TraceParent::read(&bytes);
        }
    }
}
