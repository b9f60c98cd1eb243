//! The tokens that operators show.
//!
//! Tokens are compared as keyed hashes, so that the time it takes tells nothing about how much of a guess was right, nor how long
//! the token is.

use std::fmt;
use std::io;
use std::path::Path;

use ring::hmac;

use crate::token::{TOKEN_BYTES_MAX, read_token};

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Report refusals, and nothing else: not even look.
    Reporter,
    /// Look.
    Viewer,
    /// Change things as well.
    Operator,
}

impl Role {
    /// The word that people and programs see.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Reporter => "reporter",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
        }
    }
}

/// The tokens that are known. None at all: whoever can connect is an operator.
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
    /// The tokens in these files.
    pub(crate) fn load<'a>(files: impl IntoIterator<Item = (Role, &'a Path)>, bytes_min: usize) -> io::Result<Self> {
        let none = Self::none();
        let known = none.read(files, bytes_min)?;
        Ok(Self { known, ..none })
    }

    /// The tokens in these files, if they are other ones.
    pub(super) fn renewed<'a>(
        &self,
        files: impl IntoIterator<Item = (Role, &'a Path)>,
        bytes_min: usize,
    ) -> io::Result<Option<Self>> {
        let known = self.read(files, bytes_min)?;
        let same = |((role, tag), (other, shown)): (&(Role, hmac::Tag), &(Role, hmac::Tag))| {
            role == other && tag.as_ref() == shown.as_ref()
        };
        if known.len() == self.known.len() && known.iter().zip(&self.known).all(same) {
            return Ok(None);
        }
        Ok(Some(Self { key: self.key.clone(), known }))
    }

    fn read<'a>(
        &self,
        files: impl IntoIterator<Item = (Role, &'a Path)>,
        bytes_min: usize,
    ) -> io::Result<Vec<(Role, hmac::Tag)>> {
        let mut known = Vec::new();
        for (role, path) in files {
            known.push((role, hmac::sign(&self.key, read_token(path, bytes_min)?.as_bytes())));
        }
        Ok(known)
    }

    /// No tokens.
    pub(crate) fn none() -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, &random()), known: Vec::new() }
    }

    /// Whether a token is asked for.
    pub(super) fn are_asked_for(&self) -> bool {
        !self.known.is_empty()
    }

    /// The role of a token, if it is known. The work is the same for every token of the same length, and bounded by the
    /// length of a token file.
    pub(super) fn role_of(&self, shown: &str) -> Option<Role> {
        if shown.len() > TOKEN_BYTES_MAX {
            return None;
        }
        // All known tokens are compared, also after a match.
        let matching =
            self.known.iter().filter(|(_, tag)| hmac::verify(&self.key, shown.as_bytes(), tag.as_ref()).is_ok());
        matching.map(|(role, _)| *role).max()
    }
}

/// Bytes that nobody can guess.
pub(super) fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    bytes
}

/// A word that nobody can guess.
pub(super) fn random_word() -> String {
    random().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_token_is_what_is_in_its_file_and_nothing_else() {
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
        assert!(tokens.are_asked_for() && !Tokens::none().are_asked_for());
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
    fn a_file_without_a_token_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        assert!(Tokens::load([(Role::Operator, &*path)], 1).is_err());
        for text in ["", " \n", "two words", "schlüssel"] {
            fs::write(&path, text).unwrap();
            assert!(Tokens::load([(Role::Operator, &*path)], 1).is_err(), "{text:?}");
        }
    }
}
