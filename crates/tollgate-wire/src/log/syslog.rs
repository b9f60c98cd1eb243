//! Finds the end of the header that syslog writes before a line of an access log, so that the parser can skip it.
//!
//! Access logs are often collected by syslog or the journal, which put a time, a host and a program before each line:
//!
//! ```text
//! Aug  5 10:11:12 web1 nginx: 203.0.113.7 - - [...
//! <190>Aug  5 10:11:12 web1 nginx[77]: 203.0.113.7 - - [...
//! 2026-08-05T10:11:12.123+02:00 web1 nginx: 203.0.113.7 - - [...
//! <190>1 2026-08-05T10:11:12Z web1 nginx 77 - - 203.0.113.7 - - [...
//! ```
//!
//! The first word of such a line is not the client. Only a header that is complete is skipped, so that no other line
//! loses its beginning.

use super::client::Client;
use super::date::{self, MONTHS};
use super::{Expected, LineError};

/// The maximum length of a word of the header, in bytes. RFC 5424 allows 255 for the host and less for the others.
const NAME_BYTES_MAX: usize = 255;

/// The number of bytes of the syslog header, or 0 if the line has none. A line that begins with the time of syslog and
/// continues differently is an error: its first word would be taken for the client.
pub(super) fn header_bytes(line: &[u8]) -> Result<usize, LineError> {
    // Nearly all lines begin with an address or a brace.
    if !matches!(line.first(), Some(b'<' | b'0'..=b'9' | b'A'..=b'Z')) {
        return Ok(0);
    }
    match (header(line), bsd_time(line)) {
        (None, Some(rest)) => Err(LineError::at(line.len() - rest.len(), Expected::SyslogProgram)),
        (bytes, _) => Ok(bytes.unwrap_or(0)),
    }
}

/// The number of bytes of the header, if it is complete.
fn header(line: &[u8]) -> Option<usize> {
    let mut rest = match line {
        [b'<', ..] => priority(line)?,
        _ => line,
    };
    let has_priority = rest.len() < line.len();
    if let (true, Some(versioned)) = (has_priority, rest.strip_prefix(b"1 ")) {
        return rfc5424(versioned).map(|message| line.len() - message.len());
    }
    rest = match bsd_time(rest) {
        Some(rest) => rest,
        None => {
            let (time, rest) = split_word(rest)?;
            is_rfc3339(time).then_some(rest)?
        }
    };
    let message = tagged(rest)?;
    Some(line.len() - message.len())
}

/// Skips `<190>`.
fn priority(line: &[u8]) -> Option<&[u8]> {
    let end = line.iter().take(5).position(|byte| *byte == b'>')?;
    let digits = line.get(1..end)?;
    (!digits.is_empty() && digits.iter().all(u8::is_ascii_digit)).then(|| &line[end + 1..])
}

/// Skips `Aug  5 10:11:12 `.
fn bsd_time(line: &[u8]) -> Option<&[u8]> {
    let (time, rest) = line.split_at_checked(16)?;
    let is_digit = |index: usize| time[index].is_ascii_digit();
    let is_time = MONTHS.iter().any(|month| month.as_bytes() == &time[..3])
        && (time[4] == b' ' || is_digit(4))
        && [5, 7, 8, 10, 11, 13, 14].into_iter().all(is_digit)
        && [(3, b' '), (6, b' '), (9, b':'), (12, b':'), (15, b' ')]
            .into_iter()
            .all(|(index, byte)| time[index] == byte);
    is_time.then_some(rest)
}

fn is_rfc3339(word: &[u8]) -> bool {
    word.len() >= 20 && word.get(4) == Some(&b'-') && word.get(10) == Some(&b'T') && date::parse(word).is_some()
}

/// Skips `web1 nginx[77]: `, `nginx: `, or `web1 ` before an address.
fn tagged(rest: &[u8]) -> Option<&[u8]> {
    let (first, after) = split_word(rest)?;
    if is_tag(first) {
        return Some(after);
    }
    let (second, after) = split_word(after)?;
    let is_client = |word| matches!(Client::parse(word), Client::Address(_));
    if is_tag(second) {
        Some(after)
    } else if is_client(first) {
        Some(rest)
    } else {
        is_client(second).then(|| &rest[first.len() + 1..])
    }
}

fn is_tag(word: &[u8]) -> bool {
    matches!(word, [_, .., b':']) && word.len() <= NAME_BYTES_MAX
}

/// Skips `2026-08-05T10:11:12Z web1 nginx 77 - - `, with or without structured data.
fn rfc5424(rest: &[u8]) -> Option<&[u8]> {
    let (time, mut rest) = split_word(rest)?;
    (time == b"-" || is_rfc3339(time)).then_some(())?;
    for _ in 0..4 {
        rest = split_word(rest)?.1;
    }
    match rest {
        [b'-', b' ', message @ ..] => Some(message),
        [b'[', ..] => structured(rest),
        _ => None,
    }
}

/// Skips `[id name="value"][id2] `.
fn structured(rest: &[u8]) -> Option<&[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (index, byte) in rest.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b']' if !is_quoted && rest.get(index + 1) != Some(&b'[') => {
                return rest[index + 1..].strip_prefix(b" ");
            }
            _ => {}
        }
    }
    None
}

/// The next word, and the text after the space behind it.
fn split_word(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = rest.iter().take(NAME_BYTES_MAX + 1).position(|byte| *byte == b' ').filter(|end| *end > 0)?;
    Some((&rest[..end], &rest[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::super::{Format, Line, Parser};
    use super::*;
    use proptest::prelude::*;

    const MESSAGE: &str = r#"203.0.113.7 - - [05/Aug/2026:10:11:12 +0000] "GET / HTTP/1.1" 200 5 "-" "x" 0.250"#;

    #[test]
    fn every_usual_header_is_skipped() {
        for header in [
            "",
            "Aug  5 10:11:12 web1 nginx: ",
            "Aug 05 10:11:12 web1 nginx[77]: ",
            "Aug  5 10:11:12 nginx: ",
            "Aug  5 10:11:12 web1 ",
            "Aug  5 10:11:12 ",
            "<190>Aug  5 10:11:12 web1 nginx: ",
            "2026-08-05T10:11:12.123456+02:00 web1 nginx: ",
            "<13>2026-08-05T10:11:12Z web1 nginx[1]: ",
            "<190>1 2026-08-05T10:11:12Z web1 nginx 77 - - ",
            r#"<190>1 2026-08-05T10:11:12.5Z web1 nginx 77 ID [a b="\"]c"][d] "#,
            "<190>1 - - - - - - ",
        ] {
            let line = format!("{header}{MESSAGE}");
            assert_eq!(header_bytes(line.as_bytes()), Ok(header.len()), "{header}");
            match Parser::new().parse(Format::Combined, line.as_bytes()) {
                Ok(Line::Request(request)) => {
                    assert_eq!(request.client, Client::Address("203.0.113.7".parse().unwrap()), "{header}");
                    assert_eq!(request.cost.map(|cost| cost.as_nanos()), Some(250_000_000));
                }
                other => panic!("{line}: {other:?}"),
            }
            assert_eq!(Format::detect(line.as_bytes()), Some(Format::Combined));
        }
    }

    #[test]
    fn an_object_behind_a_header_is_read_and_columns_count_from_the_start_of_the_line() {
        let header = "Aug  5 10:11:12 web1 caddy: ";
        let line = format!(r#"{header}{{"time": "2026-08-05T10:11:12Z", "remote_addr": "203.0.113.7"}}"#);
        assert!(Parser::new().parse(Format::Json, line.as_bytes()).is_ok());
        let error = Parser::new().parse(Format::Json, format!("{header}{{]").as_bytes()).unwrap_err();
        assert_eq!(error.column as usize, header.len() + 2);
    }

    #[test]
    fn other_lines_keep_their_beginning() {
        for line in [
            "Aug - - [05/Aug/2026:10:11:12 +0000] \"GET / HTTP/1.1\" 200 5",
            "<>Aug  5 10:11:12 web1 nginx: x",
            "<1900>Aug  5 10:11:12 web1 nginx: x",
            "<190>1 2026-08-05T10:11:12Z web1 nginx 77 - [a",
            "<190>1 2026-08-05T10:11:12Z web1",
            "www.example.org:443 203.0.113.7 - -",
            "2001:db8::7 - - [05",
            "<",
            "A",
        ] {
            assert_eq!(header_bytes(line.as_bytes()), Ok(0), "{line}");
        }
    }

    #[test]
    fn the_month_of_an_unknown_header_is_not_a_client() {
        for line in [
            "Aug  5 10:11:12 web1 nginx",
            "Aug  5 10:11:12 ",
            "Aug  5 10:11:12 web1 app - - [05/Aug/2026:10:11:12 +0000] \"GET / HTTP/1.1\" 200 5",
        ] {
            let error = Parser::new().parse(Format::Combined, line.as_bytes()).unwrap_err();
            assert_eq!((error.column, error.expected), (17, Expected::SyslogProgram), "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_accepted(line in prop::collection::vec(any::<u8>(), 0..80), start in "(<1[0-9]?>)?(1 )?(Aug  5 10:11:12 |2026-08-05T10:11:12Z )?") {
            let line = [start.as_bytes(), &line].concat();
            prop_assert!(header_bytes(&line).is_ok_and(|bytes| bytes <= line.len()) || header_bytes(&line).is_err());
        }
    }
}
