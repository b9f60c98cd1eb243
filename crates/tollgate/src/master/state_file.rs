//! The state of the master on disk, so that a restart refills no limit.
//!
//! The file is private and replaced atomically. A copy of a damaged file is kept and logged. The master then starts
//! with an empty state, which gates fill again, because wrong debts would be worse.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Buf as _;
use tollgate_core::time::Span;

use super::Shared;
use super::page::{self, StatePage};
use crate::durable;

/// The file of the state.
pub(super) struct StateFile {
    path: PathBuf,
}

/// The start of the file, which identifies its format.
const MARK: &[u8] = b"tollgate master 2\n";
/// The interval at which the state is written. Gates report the debts that a crash loses.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// The maximum size of a valid file, in bytes.
const BYTES_MAX: u64 = 1 << 30;
/// Slots that are serialised before other tasks run.
const SLOTS_PER_STEP: usize = 4096;

impl StateFile {
    pub(super) fn in_directory(directory: PathBuf) -> Self {
        Self { path: directory.join("master.state") }
    }

    /// Restores the debts from the file. A missing file equals an empty one.
    pub(super) fn restore(&self, state: &Shared) -> io::Result<()> {
        let Some(bytes) = durable::read(&self.path, BYTES_MAX)? else { return Ok(()) };
        match durable::unseal(&bytes, MARK).and_then(|reader| take_over(reader, state)) {
            Some(restored) => tracing::info!(restored, "restored the state"),
            None => durable::put_aside(&self.path, "its checksum is wrong: the master starts with an empty state")?,
        }
        Ok(())
    }

    /// Writes the state at an interval.
    pub(super) async fn save_regularly(&self, state: &Shared) {
        loop {
            tokio::time::sleep(SAVE_EVERY).await;
            self.save_or_log(state).await;
        }
    }

    /// Writes the state and logs a failure.
    pub(super) async fn save_or_log(&self, state: &Shared) {
        let bytes = serialise(state).await;
        let path = self.path.clone();
        let outcome = tokio::task::spawn_blocking(move || durable::replace(&path, &[&bytes]).map(drop)).await;
        if let Ok(Err(error)) = outcome {
            tracing::warn!(file = %self.path.display(), %error, "the state could not be saved");
        }
    }
}

/// Serialises the state, yielding regularly to other tasks.
async fn serialise(state: &Shared) -> Vec<u8> {
    let mut bytes = MARK.to_vec();
    let reading = state.borrow().clock.read();
    bytes.extend_from_slice(&reading.wall_ms.to_be_bytes());
    let mut from = 0;
    loop {
        let to = from + SLOTS_PER_STEP;
        let slots = {
            let mut state = state.borrow_mut();
            bytes.append(&mut StatePage::of(&mut state, from..to, reading.now).bytes);
            state.master.slots()
        };
        if to >= slots {
            durable::seal(&mut bytes);
            return bytes;
        }
        from = to;
        tokio::task::yield_now().await;
    }
}

/// Restores the state from the content of the file: the wall clock in milliseconds when it was written, and the
/// records.
fn take_over(mut reader: &[u8], state: &Shared) -> Option<u64> {
    // Debts that were paid back while no master ran. If the wall clock was set back, debts stay as written.
    let wall_ms = state.borrow().clock.read().wall_ms;
    let away = Span::from_millis(wall_ms.saturating_sub(reader.try_get_u64().ok()?));
    page::restore(reader, away, state)
}
