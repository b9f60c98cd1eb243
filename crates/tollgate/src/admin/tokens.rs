//! The tokens that the admin address accepts, and the permissions that each of them gives. How one token is read and
//! compared is in [`crate::token`].

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::hex;
use crate::settings::Admin;
use crate::token::Token;

/// Permissions of a token, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// Report refusals of another program (`POST /api/v1/rejections`) and nothing else; no read access.
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

/// The token files in the settings of the admin address, with their permissions.
pub(crate) fn token_files(admin: &Admin) -> impl Iterator<Item = (Role, &Path)> {
    let files = [
        (Role::Operator, &admin.token_file),
        (Role::Viewer, &admin.viewer_token_file),
        (Role::Reporter, &admin.reporter_token_file),
    ];
    files.into_iter().filter_map(|(role, file)| Some((role, file.as_deref()?)))
}

/// Accepted tokens. If there are none, every client is an operator.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Vec<(Role, Arc<Token>)>);

impl Tokens {
    /// Reads the tokens in these files.
    pub(crate) fn load<'a>(files: impl IntoIterator<Item = (Role, &'a Path)>, bytes_min: usize) -> io::Result<Self> {
        Ok(Self::default().renewed(files, bytes_min)?.unwrap_or_default())
    }

    /// Reads the tokens in these files again, after a reload. `None` if roles and tokens are the same as in `self`.
    pub(crate) fn renewed<'a>(
        &self,
        files: impl IntoIterator<Item = (Role, &'a Path)>,
        bytes_min: usize,
    ) -> io::Result<Option<Self>> {
        let read = |(index, (role, path))| {
            let old = self.0.get(index).map(|(_, token)| token);
            Ok((role, Token::load(path, bytes_min, old)?))
        };
        let tokens = files.into_iter().enumerate().map(read).collect::<io::Result<Vec<_>>>()?;
        let is_unchanged = tokens.len() == self.0.len()
            && tokens.iter().zip(&self.0).all(|(new, old)| new.0 == old.0 && Arc::ptr_eq(&new.1, &old.1));
        Ok((!is_unchanged).then_some(Self(tokens)))
    }

    /// Whether a token is required.
    pub(super) fn are_required(&self) -> bool {
        !self.0.is_empty()
    }

    /// Role of the token that a client sent; `None` if it is wrong. If several files have this token, it is the highest
    /// of their roles.
    pub(super) fn role_of(&self, sent: &str) -> Option<Role> {
        // All tokens are compared, even after a match, so that the time does not reveal which one it is.
        let matching = self.0.iter().filter(|(_, token)| token.is(sent.as_bytes()));
        matching.map(|(role, _)| *role).max()
    }
}

/// A random secret of 256 bits in hexadecimal digits, for session IDs and CSRF tokens.
pub(super) fn random_secret() -> String {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system provides random numbers");
    hex::encode(&bytes)
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
        assert!(tokens.are_required() && !Tokens::default().are_required());
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
