//! RESP, the protocol of Redis, for the door that answers Redis clients: parses their commands and writes replies in
//! RESP2 or RESP3.
//!
//! Clients send a command as an array of bulk strings, or as a line of words (an inline command). The number of
//! arguments, their length and the length of a command are bounded. The error messages are those of Redis where it has
//! such a message, so that clients recognise them.

use core::ops::Range;

use crate::decimal;

/// Maximum number of arguments of a command, its name included.
pub const ARGUMENTS_MAX: usize = 64;
/// Maximum length of a command on the wire, in bytes.
pub const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a line, in bytes: an inline command, or a length before an array or a bulk string.
const LINE_BYTES_MAX: usize = 4096;

/// Invalid bytes. The connection that sent them must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The number of arguments is invalid or too large.
    #[error("invalid multibulk length")]
    MultibulkLength,
    /// The length of an argument is invalid or too large.
    #[error("invalid bulk length")]
    BulkLength,
    /// Another byte instead of `$`.
    #[error("expected '$', got '{}'", char::from(*.0).escape_default())]
    ExpectedBulk(u8),
    /// An inline command is too long or has too many words.
    #[error("too big inline request")]
    TooBigInline,
    /// The command is too long.
    #[error("too big command")]
    TooBigCommand,
}

/// A command: the ranges of its arguments in the bytes that it was parsed from.
#[derive(Clone, Debug, Default)]
pub struct Command {
    arguments: Vec<Range<usize>>,
}

impl Command {
    /// Parses the command at the start of `bytes`. Returns its length in bytes, or `None` if it is incomplete. An empty
    /// line or array gives a command without arguments, which the caller must skip without a reply.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        self.arguments.clear();
        let read = match bytes.first() {
            None => Ok(None),
            Some(b'*') => self.read_array(bytes),
            Some(_) => self.read_words(bytes),
        };
        match read {
            Ok(None) if bytes.len() >= COMMAND_BYTES_MAX => Err(ProtocolError::TooBigCommand),
            Ok(Some(length)) if length > COMMAND_BYTES_MAX => Err(ProtocolError::TooBigCommand),
            read => read,
        }
    }

    fn read_array(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let Some((count, mut at)) = length(bytes, 1).map_err(|_| ProtocolError::MultibulkLength)? else {
            return Ok(None);
        };
        if count > ARGUMENTS_MAX as i64 {
            return Err(ProtocolError::MultibulkLength);
        }
        for _ in 0..count.max(0) {
            match bytes.get(at) {
                None => return Ok(None),
                Some(b'$') => {}
                Some(other) => return Err(ProtocolError::ExpectedBulk(*other)),
            }
            let Some((bulk, start)) = length(bytes, at + 1).map_err(|_| ProtocolError::BulkLength)? else {
                return Ok(None);
            };
            let bulk = usize::try_from(bulk).ok().filter(|bulk| *bulk <= COMMAND_BYTES_MAX);
            let end = start + bulk.ok_or(ProtocolError::BulkLength)?;
            match bytes.get(end..end + 2) {
                None => return Ok(None),
                Some(b"\r\n") => {}
                Some(_) => return Err(ProtocolError::BulkLength),
            }
            self.arguments.push(start..end);
            at = end + 2;
        }
        Ok(Some(at))
    }

    fn read_words(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let Some(end) = line_end(bytes, 0).map_err(|_| ProtocolError::TooBigInline)? else { return Ok(None) };
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        let mut start = None;
        for at in 0..=line.len() {
            let is_word = line.get(at).is_some_and(|byte| !byte.is_ascii_whitespace());
            match (start, is_word) {
                (None, true) => start = Some(at),
                (Some(from), false) => {
                    if self.arguments.len() == ARGUMENTS_MAX {
                        return Err(ProtocolError::TooBigInline);
                    }
                    self.arguments.push(from..at);
                    start = None;
                }
                _ => {}
            }
        }
        Ok(Some(end + 1))
    }

    /// The number of arguments, the name included.
    pub fn count(&self) -> usize {
        self.arguments.len()
    }

    /// The argument at `place` of the command that was parsed from `bytes`; 0 is its name.
    pub fn argument<'a>(&self, bytes: &'a [u8], place: usize) -> Option<&'a [u8]> {
        bytes.get(self.arguments.get(place)?.clone())
    }
}

/// A line is too long, or is not a number.
struct NoLength;

/// The position of the line feed of the line at `from`. None if it is incomplete.
fn line_end(bytes: &[u8], from: usize) -> Result<Option<usize>, NoLength> {
    let rest = bytes.get(from..).unwrap_or_default();
    match memchr::memchr(b'\n', &rest[..rest.len().min(LINE_BYTES_MAX)]) {
        Some(end) => Ok(Some(from + end)),
        None if rest.len() >= LINE_BYTES_MAX => Err(NoLength),
        None => Ok(None),
    }
}

/// The number in the line at `from`, and the start of the next line.
fn length(bytes: &[u8], from: usize) -> Result<Option<(i64, usize)>, NoLength> {
    let Some(end) = line_end(bytes, from)? else { return Ok(None) };
    let digits = bytes[from..end].strip_suffix(b"\r").ok_or(NoLength)?;
    let text = core::str::from_utf8(digits).map_err(|_| NoLength)?;
    // `parse` would accept a plus sign.
    let is_plain = digits.len() <= 20 && digits.iter().skip(1).all(u8::is_ascii_digit) && !text.starts_with('+');
    let number = text.parse().map_err(|_| NoLength)?;
    if is_plain { Ok(Some((number, end + 1))) } else { Err(NoLength) }
}

/// The protocol version of replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    /// RESP2: a map is an array of names and values.
    #[default]
    Two,
    /// RESP3.
    Three,
}

/// Writes replies.
pub struct Replies<'a> {
    out: &'a mut Vec<u8>,
    version: RespVersion,
}

impl<'a> Replies<'a> {
    /// Appends replies to `out`.
    pub fn new(out: &'a mut Vec<u8>, version: RespVersion) -> Self {
        Self { out, version }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        // Bytes from a client must not end the line.
        self.out.extend(text.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    fn header(&mut self, kind: u8, count: usize) {
        self.out.push(kind);
        decimal::put(self.out, count as u64);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A simple string, such as `+OK`.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error. Its first word is its kind, such as `ERR`.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text.as_bytes());
    }

    /// An integer.
    pub fn integer(&mut self, number: i64) {
        self.out.push(b':');
        if number < 0 {
            self.out.push(b'-');
        }
        decimal::put(self.out, number.unsigned_abs());
        self.out.extend_from_slice(b"\r\n");
    }

    /// A bulk string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A null.
    pub fn null(&mut self) {
        let null: &[u8] = if self.version == RespVersion::Three { b"_\r\n" } else { b"$-1\r\n" };
        self.out.extend_from_slice(null);
    }

    /// The header of an array with this many replies.
    pub fn array(&mut self, count: usize) {
        self.header(b'*', count);
    }

    /// The header of a map with this many pairs of name and value.
    pub fn map(&mut self, count: usize) {
        match self.version {
            RespVersion::Two => self.header(b'*', 2 * count),
            RespVersion::Three => self.header(b'%', count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The length of a command, and its arguments.
    type Found<'a> = Option<(usize, Vec<&'a [u8]>)>;

    fn read(bytes: &[u8]) -> Result<Found<'_>, ProtocolError> {
        let mut command = Command::default();
        let length = command.read(bytes)?;
        let arguments = (0..command.count()).map(|place| command.argument(bytes, place).unwrap()).collect();
        Ok(length.map(|length| (length, arguments)))
    }

    #[test]
    fn commands_are_arrays_or_words() {
        assert_eq!(read(b"*2\r\n$4\r\nPING\r\n$2\r\nhi\r\nmore"), Ok(Some((22, vec![&b"PING"[..], b"hi"]))));
        assert_eq!(read(b"  PING  hi \r\nmore"), Ok(Some((13, vec![&b"PING"[..], b"hi"]))));
        assert_eq!(read(b"PING\n"), Ok(Some((5, vec![&b"PING"[..]]))));
        // Arguments are binary and may contain line ends.
        assert_eq!(read(b"*1\r\n$4\r\n\r\n\0\xff\r\n"), Ok(Some((14, vec![&b"\r\n\0\xff"[..]]))));
        for skipped in [&b"\r\n"[..], b"*0\r\n", b"*-1\r\n"] {
            assert_eq!(read(skipped), Ok(Some((skipped.len(), Vec::new()))));
        }
    }

    #[test]
    fn every_beginning_of_a_command_is_incomplete() {
        let whole = b"*3\r\n$8\r\nTHROTTLE\r\n$0\r\n\r\n$3\r\nkey\r\n";
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), Ok(None), "{end}");
        }
        assert!(read(whole).unwrap().is_some());
    }

    #[test]
    fn invalid_bytes_have_the_error_messages_of_redis() {
        for (bytes, error) in [
            (&b"*x\r\n"[..], ProtocolError::MultibulkLength),
            (b"*65\r\n", ProtocolError::MultibulkLength),
            (b"*99999999999999999999\r\n", ProtocolError::MultibulkLength),
            (b"*1\n", ProtocolError::MultibulkLength),
            (b"*1\r\n:1\r\n", ProtocolError::ExpectedBulk(b':')),
            (b"*1\r\n$-1\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$+1\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$65537\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$1\r\nabc\r\n", ProtocolError::BulkLength),
        ] {
            assert_eq!(read(bytes), Err(error), "{}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(read(&[b'a'; LINE_BYTES_MAX]), Err(ProtocolError::TooBigInline));
        assert_eq!(read(&b"a ".repeat(ARGUMENTS_MAX + 1)), Ok(None));
        assert_eq!(read(&[b"a ".repeat(ARGUMENTS_MAX + 1), b"\n".to_vec()].concat()), Err(ProtocolError::TooBigInline));
        let long = [b"*2\r\n$60000\r\n".to_vec(), vec![b'a'; 60_000], b"\r\n$60000\r\n".to_vec(), vec![b'a'; 6_000]];
        assert_eq!(read(&long.concat()), Err(ProtocolError::TooBigCommand));
    }

    #[test]
    fn replies_are_written_in_both_versions() {
        let written = |version| {
            let mut out = Vec::new();
            let mut replies = Replies::new(&mut out, version);
            replies.map(1);
            replies.bulk(b"a");
            replies.null();
            replies.integer(i64::MIN);
            replies.error("ERR two\r\nlines");
            String::from_utf8(out).unwrap()
        };
        let rest = ":-9223372036854775808\r\n-ERR two  lines\r\n";
        assert_eq!(written(RespVersion::Two), format!("*2\r\n$1\r\na\r\n$-1\r\n{rest}"));
        assert_eq!(written(RespVersion::Three), format!("%1\r\n$1\r\na\r\n_\r\n{rest}"));
    }

    #[test]
    fn the_seeds_of_the_fuzzer_are_read_at_every_length() {
        let seeds = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/resp_command");
        let mut count = 0;
        for seed in std::fs::read_dir(seeds).unwrap() {
            let bytes = std::fs::read(seed.unwrap().path()).unwrap();
            for end in 0..=bytes.len() {
                let _ = read(&bytes[..end]);
            }
            count += 1;
        }
        assert!(count >= 7);
    }

    proptest! {
        #[test]
        fn any_arguments_are_parsed_back(arguments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8)) {
            let mut out = Vec::new();
            let mut replies = Replies::new(&mut out, RespVersion::Two);
            replies.array(arguments.len());
            arguments.iter().for_each(|argument| replies.bulk(argument));
            let (length, found) = read(&out).unwrap().unwrap();
            prop_assert_eq!(length, out.len());
            prop_assert_eq!(found, arguments.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(Some((length, _))) = read(&bytes) {
                prop_assert!((1..=bytes.len()).contains(&length));
            }
        }
    }
}
