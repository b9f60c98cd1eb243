//! Tokens of the admin address.
//!
//! Tokens are compared as keyed hashes, so that the time reveals neither how much of a guess was right nor the length
//! of the token.

use std::fmt;
use std::io;
use std::path::Path;

use ring::hmac;

use crate::hex;
use crate::token::{TOKEN_BYTES_MAX, read_token};

/// Permissions of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Report refusals only; no read access.
    Reporter,
    /// Read everything.
    Viewer,
    /// Read and change everything.
    Operator,
}

impl Role {
    /// Name in the API and in messages.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Reporter => "reporter",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// Accepted tokens. If there are none, every client is an operator.
pub(crate) struct Tokens {
    key: hmac::Key,
    known: Vec<(Role, hmac::Tag)>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Tokens({})", self.known.len())
    }
}

impl Tokens {
    /// Reads the tokens in these files.
    pub(crate) fn load<'a>(files: impl IntoIterator<Item = (Role, &'a Path)>, bytes_min: usize) -> io::Result<Self> {
        let none = Self::none();
        Ok(none.renewed(files, bytes_min)?.unwrap_or(none))
    }

    /// Reads the tokens in these files; `None` if they are unchanged.
    pub(super) fn renewed<'a>(
        &self,
        files: impl IntoIterator<Item = (Role, &'a Path)>,
        bytes_min: usize,
    ) -> io::Result<Option<Self>> {
        let read = |(role, path)| Ok((role, hmac::sign(&self.key, read_token(path, bytes_min)?.as_bytes())));
        let known = files.into_iter().map(read).collect::<io::Result<Vec<_>>>()?;
        let same = |((role, tag), (other, shown)): (&(Role, hmac::Tag), &(Role, hmac::Tag))| {
            role == other && tag.as_ref() == shown.as_ref()
        };
        if known.len() == self.known.len() && known.iter().zip(&self.known).all(same) {
            return Ok(None);
        }
        Ok(Some(Self { key: self.key.clone(), known }))
    }

    /// No tokens are required.
    pub(crate) fn none() -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, &random()), known: Vec::new() }
    }

    /// Whether a token is required.
    pub(super) fn are_required(&self) -> bool {
        !self.known.is_empty()
    }

    /// Role of a token. The time is the same for every token of the same length, and bounded by the size of a token
    /// file.
    pub(super) fn role_of(&self, shown: &str) -> Option<Role> {
        if shown.len() > TOKEN_BYTES_MAX {
            return None;
        }
        // All tokens are compared, even after a match, so that the time is constant.
        let matching =
            self.known.iter().filter(|(_, tag)| hmac::verify(&self.key, shown.as_bytes(), tag.as_ref()).is_ok());
        matching.map(|(role, _)| *role).max()
    }
}

/// Random bytes for secrets.
pub(super) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system provides random numbers");
    bytes
}

/// Random hexadecimal text for secrets.
pub(super) fn random_word() -> String {
    hex::encode(&random())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_the_token_in_the_file_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let (operator, viewer) = (folder.path().join("operator"), folder.path().join("viewer"));
        fs::write(&operator, "a-token-of-an-operator\n").unwrap();
        fs::write(&viewer, "a-token-of-a-viewer").unwrap();
        let tokens = Tokens::load([(Role::Operator, &*operator), (Role::Viewer, &*viewer)], 16).unwrap();
        assert_eq!(tokens.role_of("a-token-of-an-operator"), Some(Role::Operator));
        assert_eq!(tokens.role_of("a-token-of-a-viewer"), Some(Role::Viewer));
        for guess in ["", "a-token-of-an-operato", "a-token-of-an-operator\n", "A-token-of-an-operator"] {
            assert_eq!(tokens.role_of(guess), None, "{guess:?}");
        }
        assert!(tokens.are_required() && !Tokens::none().are_required());
    }

    #[test]
    fn beyond_loopback_a_token_has_at_least_16_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let loads = |token: &str, listen: &str| {
            fs::write(&path, token).unwrap();
            Tokens::load([(Role::Viewer, &*path)], crate::token::token_bytes_min(listen.parse().unwrap()))
        };
        let error = loads("fifteen-bytes-x\n", "0.0.0.0:8889").unwrap_err().to_string();
        assert!(error.contains("shorter than 16 bytes"), "{error}");
        assert!(loads("fifteen-bytes-x\n", "127.0.0.1:8889").is_ok());
        assert!(loads("sixteen-bytes-xx", "[::]:8889").is_ok());
    }

    #[test]
    fn an_empty_token_file_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(Tokens::load([(Role::Operator, &*path)], 1).is_err());
        for text in ["", " \n", "two words", "schlüssel"] {
            fs::write(&path, text).unwrap();
            assert!(Tokens::load([(Role::Operator, &*path)], 1).is_err(), "{text:?}");
        }
    }
}
