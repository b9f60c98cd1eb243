//! Detects the format of a recording from its first lines.

use super::{LINE_BYTES_MAX, Parser};

tollgate_core::named_enum! {
    /// The format of a recording. If lines are valid in several formats, [`Format::detect`] selects the first of them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Format {
        /// A Tollgate trace, in JSON Lines.
        Trace = "trace",
        /// Apache's and nginx's combined or common log format.
        Combined = "combined",
        /// An access log with one JSON object per line.
        Json = "json",
    }
}

/// The maximum number of lines from which the format is detected.
const LINES_MAX: usize = 32;

impl Format {
    /// The format in which most of the first lines are valid, if any. `head` is the start of the recording;
    /// its last line may be incomplete.
    pub fn detect(head: &[u8]) -> Option<Self> {
        let mut parser = Parser::new();
        let mut scores = Self::ALL.map(|format| (0, format));
        for line in lines(head) {
            for (score, format) in &mut scores {
                *score += u32::from(parser.parse(*format, line).is_ok());
            }
        }
        let best = scores.into_iter().reduce(|best, next| if next.0 > best.0 { next } else { best })?;
        (best.0 > 0).then_some(best.1)
    }
}

/// The first nonempty lines of acceptable length, without the byte order mark of the file.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head);
    let lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty() && line.len() <= LINE_BYTES_MAX).take(LINES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"{"at_ms": 1000, "client": "203.0.113.7"}"#;
    const COMBINED: &str = r#"203.0.113.7 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.1" 200 12 "-" "x""#;
    const JSON: &str = r#"{"time": "2026-11-15T03:27:00Z", "remote_addr": "203.0.113.7"}"#;

    #[test]
    fn the_first_lines_determine_the_format() {
        assert_eq!(Format::detect(TRACE.as_bytes()), Some(Format::Trace));
        assert_eq!(Format::detect(COMBINED.as_bytes()), Some(Format::Combined));
        assert_eq!(Format::detect(JSON.as_bytes()), Some(Format::Json));
        assert_eq!(Format::detect(format!("\u{feff}\r\n\n{TRACE}\r\n").as_bytes()), Some(Format::Trace));
        assert_eq!(Format::detect(br#"{"at_ms": 2000, "band": "critical"}"#), Some(Format::Trace));
        let both = br#"{"at_ms": 2000, "client": "203.0.113.7", "time": "2026-11-15T03:27:00Z"}"#;
        assert_eq!(Format::detect(both), Some(Format::Trace));
    }

    #[test]
    fn a_few_invalid_lines_do_not_hide_the_format() {
        let head = format!("# rotated\n{TRACE}\n{COMBINED}\n{COMBINED}\n{{\"at_ms\": 10");
        assert_eq!(Format::detect(head.as_bytes()), Some(Format::Combined));
    }

    #[test]
    fn other_files_have_no_format() {
        for head in [&b""[..], b"\n\n\n", b"hello world", b"{}", b"\x1f\x8b\x08\0\0\0", &[b'['; 1_000_000]] {
            assert_eq!(Format::detect(head), None);
        }
    }
}
