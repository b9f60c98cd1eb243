//! The books on disk: what everybody owed when it was written, so that a restart refills nothing.
//!
//! The file is written beside its place and moved there when it is complete, so there is always a whole one. A file that is not whole, or
//! not ours, is left alone and said so: books that may be wrong are worse than empty ones, which gates fill again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use tollgate_core::time::Span;

use super::Shared;

/// Where the books are kept.
pub(super) struct StateFile {
    path: PathBuf,
}

const MARK: &[u8] = b"tollgate master 1\n";
/// A file that is larger than this is not ours.
const BYTES_MAX: u64 = 1 << 30;
/// How many places are written down before others have their turn.
const STRETCH: usize = 4096;

impl StateFile {
    pub(super) fn in_directory(directory: PathBuf) -> Self {
        Self { path: directory.join("master.state") }
    }

    /// Takes over what the file says is owed. No file is an empty one.
    pub(super) fn restore(&self, books: &Shared) -> io::Result<()> {
        let bytes = match fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
            Ok(data) if data.len() > BYTES_MAX => Vec::new(),
            Ok(_) => fs::read(&self.path)?,
        };
        match Reader::checked(&bytes).and_then(|reader| restore(reader, books)) {
            Some(restored) => tracing::info!(restored, "the books were restored"),
            None => {
                let aside = self.path.with_extension("damaged");
                fs::rename(&self.path, &aside)?;
                tracing::warn!(file = %aside.display(), "the books on disk are damaged and were put aside");
            }
        }
        Ok(())
    }

    /// Writes everything down, and says so if that fails.
    pub(super) async fn save_or_say(&self, books: &Shared) {
        let bytes = written_down(books).await;
        let path = self.path.clone();
        let outcome = tokio::task::spawn_blocking(move || replace(&path, &bytes)).await;
        if let Ok(Err(error)) = outcome {
            tracing::warn!(file = %self.path.display(), %error, "the books could not be saved");
        }
    }
}

/// The books as bytes, a stretch at a time so that nobody waits for it.
async fn written_down(books: &Shared) -> Vec<u8> {
    let mut bytes = MARK.to_vec();
    let reading = books.borrow().read_clock();
    bytes.extend_from_slice(&reading.wall_ms.to_be_bytes());
    let mut from = 0;
    loop {
        let to = from + STRETCH;
        let places = {
            let mut books = books.borrow_mut();
            let master = books.master();
            for (domain, identifier, clears) in master.debts(from..to, reading.now) {
                put_bytes(&mut bytes, domain);
                put_bytes(&mut bytes, identifier);
                bytes.push(clears.len() as u8);
                clears.for_each(|clear| bytes.extend_from_slice(&clear.since(reading.now).as_nanos().to_be_bytes()));
            }
            master.places()
        };
        if to >= places {
            let sum = checksum(&bytes);
            bytes.extend_from_slice(&sum.to_be_bytes());
            return bytes;
        }
        from = to;
        tokio::task::yield_now().await;
    }
}

fn replace(path: &std::path::Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

fn restore(mut reader: Reader<'_>, books: &Shared) -> Option<u64> {
    let mut books = books.borrow_mut();
    let reading = books.read_clock();
    // What was paid back while nobody was there. A wall clock that went back makes nobody owe more than was written down.
    let away = Span::from_millis(reading.wall_ms.saturating_sub(reader.number()?));
    let mut restored = 0;
    while !reader.0.is_empty() {
        let (domain, identifier) = (reader.bytes()?, reader.bytes()?);
        for place in 0..usize::from(reader.byte()?) {
            let clear = (reading.now + Span::from_nanos(reader.number()?)).before(away);
            if clear > reading.now {
                books.master().restore(domain, identifier, place, clear, reading.now);
            }
        }
        restored += 1;
    }
    Some(restored)
}

fn put_bytes(output: &mut Vec<u8>, bytes: &[u8]) {
    output.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
    output.extend_from_slice(bytes);
}

/// FNV-1a: it is to find damage, not forgery.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// What is between the mark and the checksum, if both are right.
    fn checked(bytes: &'a [u8]) -> Option<Self> {
        let (content, sum) = bytes.split_last_chunk::<8>()?;
        (checksum(content) == u64::from_be_bytes(*sum)).then_some(())?;
        content.strip_prefix(MARK).map(Self)
    }

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*number))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk::<2>()?;
        let (bytes, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
        self.0 = rest;
        Some(bytes)
    }
}
