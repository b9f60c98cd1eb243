//! The secret token that clients of the admin address must send, or clients of the doors, through which other programs
//! ask for decisions. It is read from a file.
//!
//! Tokens are compared as keyed hashes, so that the response time reveals neither how much of a guess was right nor the
//! length of the token.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::bounded_file;

/// Shortest token that is considered safe from guessing, in bytes. Doors accept no shorter one; for admin addresses see
/// [`token_bytes_min`].
pub(crate) const TOKEN_BYTES_MIN: usize = 16;
/// Permission bit that lets all users read a file.
const OTHERS_READ: u32 = 0o004;
/// Largest token file and therefore longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 4096;

/// The expected token, kept only as a keyed hash.
pub(crate) struct Token {
    /// Random key of the hash.
    key: hmac::Key,
    /// The hash of the token.
    tag: hmac::Tag,
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(secret)")
    }
}

impl Token {
    /// Reads the token file. A token of less than `bytes_min` bytes is an error. Returns `old` itself if the file still
    /// has that token, so that callers detect a change by comparing pointers.
    pub(crate) fn load(path: &Path, bytes_min: usize, old: Option<&Arc<Self>>) -> io::Result<Arc<Self>> {
        let token = read_token(path, bytes_min)?;
        match old.filter(|old| old.is(token.as_bytes())) {
            Some(old) => Ok(old.clone()),
            None => Self::new(&token).map(Arc::new),
        }
    }

    fn new(token: &str) -> io::Result<Self> {
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).map_err(|_| io::Error::other("cannot generate random numbers"))?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        Ok(Self { tag: hmac::sign(&key, token.as_bytes()), key })
    }

    /// Whether a client has sent the right token. Longer ones than a token file can contain are not hashed.
    pub(crate) fn is(&self, sent: &[u8]) -> bool {
        sent.len() <= TOKEN_BYTES_MAX && hmac::verify(&self.key, sent, self.tag.as_ref()).is_ok()
    }
}

/// Shortest token for an admin address, in bytes. On loopback, any token is accepted that is not empty. Other addresses
/// require a safe one, because everybody on the network can try tokens there.
pub(crate) fn token_bytes_min(listen: SocketAddr) -> usize {
    if listen.ip().is_loopback() { 1 } else { TOKEN_BYTES_MIN }
}

/// Whether a header field can carry this token: it has no spaces, control characters or characters outside ASCII.
pub(crate) fn is_one_word(token: &str) -> bool {
    token.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Reads a token of at least `bytes_min` bytes. Logs a warning if it is short, or if all users can read the file.
fn read_token(path: &Path, bytes_min: usize) -> io::Result<Zeroizing<String>> {
    let wrong = |message: &str| io::Error::other(format!("the token file {}: {message}", path.display()));
    let unreadable = |error: io::Error| wrong(&error.to_string());
    let bytes = Zeroizing::new(bounded_file::read(path, TOKEN_BYTES_MAX as u64).map_err(unreadable)?);
    let token = str::from_utf8(&bytes).unwrap_or_default().trim();
    if token.is_empty() || !is_one_word(token) {
        return Err(wrong("must contain one word in ASCII, such as the output of `openssl rand -hex 32`"));
    }
    let file = path.display();
    if token.len() < bytes_min {
        return Err(wrong(&format!(
            "the token is shorter than {bytes_min} bytes and could be guessed: use the output of `openssl rand -hex 32`"
        )));
    }
    if token.len() < TOKEN_BYTES_MIN {
        tracing::warn!(%file, "the token is short enough to be guessed: use the output of `openssl rand -hex 32`");
    }
    if fs::metadata(path).is_ok_and(|data| data.mode() & OTHERS_READ != 0) {
        tracing::warn!(%file, "all users with access to its folder can read the token file: run `chmod o-r` on it");
    }
    Ok(Zeroizing::new(token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_in_the_file_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(Token::load(&path, TOKEN_BYTES_MIN, None).is_err());
        fs::write(&path, "a-token-for-the-doors\n").unwrap();
        let token = Token::load(&path, TOKEN_BYTES_MIN, None).unwrap();
        assert!(token.is(b"a-token-for-the-doors"));
        for guess in [&b""[..], b"a-token-for-the-door", b"a-token-for-the-doors\n", &[b'a'; TOKEN_BYTES_MAX + 1]] {
            assert!(!token.is(guess));
        }
    }

    #[test]
    fn a_token_that_no_header_can_carry_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for token in ["", "two words", "control\u{1}character", "delete\u{7f}character", "t\u{f6}ken"] {
            fs::write(&path, token).unwrap();
            let error = Token::load(&path, 1, None).unwrap_err().to_string();
            assert!(error.contains("must contain one word in ASCII"), "{token:?}: {error}");
        }
    }

    #[test]
    fn a_token_that_could_be_guessed_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "fifteen-bytes-x\n").unwrap();
        let error = Token::load(&path, TOKEN_BYTES_MIN, None).unwrap_err().to_string();
        assert!(error.contains("shorter than 16 bytes") && error.contains("`openssl rand -hex 32`"), "{error}");
        fs::write(&path, "sixteen-bytes-xx\n").unwrap();
        assert!(Token::load(&path, TOKEN_BYTES_MIN, None).is_ok());
    }
}
