//! `tollgate keys`, and the key files of gates and masters.
#![expect(clippy::print_stderr, clippy::print_stdout, reason = "the public key is what the command is for")]

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use tollgate_gatekeeper::link::{KeyPair, LinkSettings};
use zeroize::Zeroizing;

use crate::bounded_file;
use crate::settings::Link;

/// The arguments of `tollgate keys`.
#[derive(Debug, clap::Args)]
pub(crate) struct KeysOptions {
    /// The file, such as master.key
    file: PathBuf,
}

/// A file that is larger than this is not a key file.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Makes keys, or shows those that are there.
pub(crate) fn run_keys(options: &KeysOptions) -> ExitCode {
    let file = &options.file;
    match read(file).or_else(|problem| if file.exists() { Err(problem) } else { make(file) }) {
        Ok(keys) => {
            println!("{}", keys.public());
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn make(file: &Path) -> Result<KeyPair, String> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| format!("no random numbers: {error}"))?;
    let keys = KeyPair::from_secret(secret);
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let written = written.and_then(|mut file| file.write_all(keys.write().as_bytes()));
    written.map_err(|error| format!("{}: cannot be written: {error}", file.display()))?;
    eprintln!("keys were written to {}; this is the public one:", file.display());
    Ok(keys)
}

/// The keys in a file.
pub(super) fn read(file: &Path) -> Result<KeyPair, String> {
    let unreadable = |error: io::Error| format!("{}: cannot be read: {error}", file.display());
    let bytes = Zeroizing::new(bounded_file::read(file, FILE_BYTES_MAX).map_err(unreadable)?);
    let text = str::from_utf8(&bytes).map_err(|error| unreadable(io::Error::other(error)))?;
    KeyPair::read(text).map_err(|no_key| format!("{}: {no_key}", file.display()))
}

/// What links a gate to its masters, with the keys from its file.
pub(super) fn link(link: Link) -> Result<LinkSettings, String> {
    let keys = link.key_file.as_deref().map(read).transpose()?;
    Ok(LinkSettings { keys: keys.map(Arc::new), ..link.settings })
}
