//! `tollgate keys`, and the key files with which gates and masters authenticate each other.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate_gatekeeper::link::{KeyPair, LinkSettings};
use zeroize::Zeroizing;

use crate::bounded_file;
use crate::output::CommandError;
use crate::settings::MasterLink;

/// Arguments of `tollgate keys`.
#[derive(Debug, clap::Args)]
pub(crate) struct KeysOptions {
    /// Key file, such as master.key
    file: PathBuf,
}

/// Largest key file, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Prints the public key of a key file. If the file does not exist, creates it with a new key pair.
pub(crate) fn run_keys(options: &KeysOptions) -> Result<(), CommandError> {
    let file = &options.file;
    let keys = read(file).or_else(|problem| if file.exists() { Err(problem) } else { make(file) });
    print_line!("{}", keys.map_err(CommandError::failed)?.public());
    Ok(())
}

fn make(file: &Path) -> Result<KeyPair, String> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| format!("cannot generate random numbers: {error}"))?;
    let keys = KeyPair::from_secret(secret);
    let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let written = written.and_then(|mut file| file.write_all(keys.write().as_bytes()));
    written.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    print_error!("keys written to {}; the public key is:", file.display());
    Ok(keys)
}

/// Reads a key file.
pub(super) fn read(file: &Path) -> Result<KeyPair, String> {
    let unreadable = |error: io::Error| format!("cannot read {}: {error}", file.display());
    let bytes = Zeroizing::new(bounded_file::read(file, FILE_BYTES_MAX).map_err(unreadable)?);
    let text = str::from_utf8(&bytes).map_err(|error| unreadable(io::Error::other(error)))?;
    KeyPair::read(text).map_err(|no_key| format!("{}: {no_key}", file.display()))
}

/// Settings of the link from a gate to its masters, with the keys of its key file.
pub(super) fn link(link: MasterLink) -> Result<LinkSettings, String> {
    let keys = link.key_file.as_deref().map(read).transpose()?;
    Ok(LinkSettings { keys: keys.map(Arc::new), ..link.settings })
}
