//! A token that a client shows, and the file that it is in.
//!
//! Tokens are compared as keyed hashes, so that the time it takes tells nothing about how much of a guess was right, nor how long the token is.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::bounded_file;

/// A token shorter than this can be guessed.
const TOKEN_BYTES_MIN: usize = 16;
/// The permission bit that lets everybody read a file.
const OTHERS_READ: u32 = 0o004;
/// A file that is longer than this is no token.
pub(crate) const TOKEN_BYTES_MAX: usize = 4096;

/// The token that is asked for.
pub(crate) struct Token {
    key: hmac::Key,
    tag: hmac::Tag,
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(secret)")
    }
}

impl Token {
    /// The token in this file.
    pub(crate) fn load(path: &Path) -> io::Result<Self> {
        let token = read_token(path, 1)?;
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).map_err(|_| io::Error::other("the system has no random numbers"))?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret);
        Ok(Self { tag: hmac::sign(&key, token.as_bytes()), key })
    }

    /// Whether this is the token. The work is bounded by the length of a token file.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        shown.len() <= TOKEN_BYTES_MAX && hmac::verify(&self.key, shown, self.tag.as_ref()).is_ok()
    }
}

/// The length that tokens need where operators connect to `listen`. Everybody on the network can try tokens beyond loopback.
pub(crate) fn token_bytes_min(listen: SocketAddr) -> usize {
    if listen.ip().is_loopback() { 1 } else { TOKEN_BYTES_MIN }
}

/// The word in a token file, of at least `bytes_min` bytes.
pub(crate) fn read_token(path: &Path, bytes_min: usize) -> io::Result<Zeroizing<String>> {
    let wrong = |message: &str| io::Error::other(format!("the token file {}: {message}", path.display()));
    let unreadable = |error: io::Error| wrong(&error.to_string());
    let bytes = Zeroizing::new(bounded_file::read(path, TOKEN_BYTES_MAX as u64).map_err(unreadable)?);
    let token = str::from_utf8(&bytes).unwrap_or_default().trim();
    if token.is_empty() || token.contains(char::is_whitespace) || !token.is_ascii() {
        return Err(wrong("has to hold one word in ASCII, such as `openssl rand -hex 32` makes"));
    }
    let file = path.display();
    if token.len() < bytes_min {
        return Err(wrong(&format!(
            "its token is shorter than {bytes_min} bytes, so it could be guessed beyond loopback: `openssl rand -hex 32` makes a better one"
        )));
    }
    if token.len() < TOKEN_BYTES_MIN {
        tracing::warn!(%file, "this token is short enough to be guessed: `openssl rand -hex 32` makes a better one");
    }
    if fs::metadata(path).is_ok_and(|data| data.mode() & OTHERS_READ != 0) {
        tracing::warn!(%file, "everybody on this machine can read this token: `chmod o-r` on its file prevents that");
    }
    Ok(Zeroizing::new(token.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_in_the_file_is_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(Token::load(&path).is_err());
        fs::write(&path, "a-token-for-the-doors\n").unwrap();
        let token = Token::load(&path).unwrap();
        assert!(token.is(b"a-token-for-the-doors"));
        for guess in [&b""[..], b"a-token-for-the-door", b"a-token-for-the-doors\n", &[b'a'; TOKEN_BYTES_MAX + 1]] {
            assert!(!token.is(guess));
        }
    }
}
