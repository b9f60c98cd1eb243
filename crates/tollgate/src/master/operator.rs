//! The socket in the state directory of a running master through which the command `tollgate pardon` cancels the debt
//! of an identifier, so that its requests are no longer delayed.
//!
//! Only the owner of the socket can use it. The addresses for gates do not accept such requests.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::Shared;
use crate::hex;

/// The maximum length of a request, in bytes: two names in hexadecimal.
const REQUEST_BYTES_MAX: u64 = 2048;
/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The response to a successful request.
pub(crate) const PARDONED: &str = "pardoned";
/// The response to a request with an unknown identifier.
pub(crate) const UNKNOWN: &str = "unknown";

/// The path of the socket in this state directory.
pub(crate) fn socket(state_dir: &Path) -> PathBuf {
    state_dir.join("master.sock")
}

/// Opens the socket with access for its owner only. Replaces the socket of a master that was killed.
pub(super) fn open(state_dir: &Path) -> io::Result<UnixListener> {
    let path = socket(state_dir);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves operators one at a time.
pub(super) async fn serve(listener: UnixListener, state: Shared) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let _ = tokio::time::timeout(TIMEOUT, answer(stream, &state)).await;
            }
            Err(error) => {
                tracing::warn!(%error, "accepting an operator's connection failed");
                tokio::time::sleep(TIMEOUT).await;
            }
        }
    }
}

/// Reads one request, carries it out and responds.
async fn answer(mut stream: UnixStream, state: &Shared) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut line = String::new();
    BufReader::new(reader.take(REQUEST_BYTES_MAX)).read_line(&mut line).await?;
    let mut words = line.split_whitespace();
    let answer =
        match (words.next(), words.next().and_then(hex::decode), words.next().and_then(hex::decode), words.next()) {
            (Some("pardon"), Some(domain), Some(identifier), None) => {
                let pardoned = state.borrow_mut().pardon(&domain, &identifier);
                tracing::info!(
                    domain = %domain.escape_ascii(),
                    identifier = %identifier.escape_ascii(),
                    pardoned,
                    "an operator cancelled a debt"
                );
                if pardoned { PARDONED } else { UNKNOWN }
            }
            _ => "what?",
        };
    writer.write_all(format!("{answer}\n").as_bytes()).await
}

/// The text of a request. Names may contain any bytes, so they are hexadecimal.
pub(crate) fn request(domain: &str, identifier: &str) -> String {
    format!("pardon {} {}\n", hex::encode(domain.as_bytes()), hex::encode(identifier.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_contain_any_bytes() {
        let text = request("default/login", "a b\n\u{e9}");
        let words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
        assert_eq!(hex::decode(&words[1]).unwrap(), b"default/login");
        assert_eq!(hex::decode(&words[2]).unwrap(), "a b\n\u{e9}".as_bytes());
    }
}
