//! The books on disk: what everybody owed when it was written, so that a restart refills nothing.
//!
//! The file is private, and replaced as a whole, so there is always a whole one. A copy of a file that is damaged is put aside with one line in the log: books that
//! may be wrong are worse than empty ones, which gates fill again.

use std::io;
use std::path::PathBuf;

use tollgate_core::time::Span;

use super::Shared;
use super::page::{self, Page, Reader};
use crate::durable;

/// Where the books are kept.
pub(super) struct StateFile {
    path: PathBuf,
}

const MARK: &[u8] = b"tollgate master 2\n";
/// Version 1 has another checksum.
const MARK_1: &[u8] = b"tollgate master 1\n";
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
        let Some(bytes) = durable::read(&self.path, BYTES_MAX)? else { return Ok(()) };
        let reader = durable::unseal(&bytes, MARK).map(Reader::of).or_else(|| Reader::checked(&bytes, MARK_1));
        match reader.and_then(|reader| take_over(reader, books)) {
            Some(restored) => tracing::info!(restored, "the books were restored"),
            None => durable::put_aside(&self.path, "its checksum is wrong: the books are empty")?,
        }
        Ok(())
    }

    /// Writes everything down, and says so if that fails.
    pub(super) async fn save_or_say(&self, books: &Shared) {
        let bytes = written_down(books).await;
        let path = self.path.clone();
        let outcome = tokio::task::spawn_blocking(move || durable::replace(&path, &[&bytes]).map(drop)).await;
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
            durable::seal(&mut bytes);
            return bytes;
        }
        from = to;
        tokio::task::yield_now().await;
    }
}

fn take_over(mut reader: Reader<'_>, books: &Shared) -> Option<u64> {
    // What was paid back while nobody was there. A wall clock that went back makes nobody owe more than was written down.
    let wall_ms = books.borrow().read_clock().wall_ms;
    let away = Span::from_millis(wall_ms.saturating_sub(reader.number()?));
    page::restore(reader, away, books)
}
