//! The books on disk: what everybody owed when it was written, so that a restart refills nothing.
//!
//! The file is written beside its place and moved there when it is complete, so there is always a whole one. A file that is not whole, or
//! not ours, is left alone and said so: books that may be wrong are worse than empty ones, which gates fill again.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use tollgate_core::time::Span;

use super::Shared;
use super::page::{self, Page, Reader};

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
        match Reader::checked(&bytes, MARK).and_then(|reader| take_over(reader, books)) {
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
            bytes.append(&mut Page::of(&mut books, from..to, reading.now).bytes);
            books.master().slots()
        };
        if to >= places {
            page::seal(&mut bytes);
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

fn take_over(mut reader: Reader<'_>, books: &Shared) -> Option<u64> {
    // What was paid back while nobody was there. A wall clock that went back makes nobody owe more than was written down.
    let wall_ms = books.borrow().read_clock().wall_ms;
    let away = Span::from_millis(wall_ms.saturating_sub(reader.number()?));
    page::restore(reader, away, books)
}
