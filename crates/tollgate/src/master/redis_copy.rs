//! A copy of the master's state on Redis, so that another master on any machine can take over.
//!
//! Writing every report would give Redis as much load as the master has. Instead, the state is scanned repeatedly,
//! one page at a time, and changed pages are written: one value for thousands of identifiers. Reports since the last
//! scan are lost with the master, except for those that Tollgate gates repeat. The time since the last scan is a
//! metric.
//!
//! The copy never blocks the master. A scan takes a fixed part of its thread's time, no task waits for Redis, and a
//! master that cannot read the copy starts without it and loads it later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tollgate_core::time::Span;
use tollgate_gatekeeper::shared::{FencedPages, FinishedTerm, Unanswered, WriteOutcome};

use super::Shared;
use super::metrics::RedisCopyCounts;
use super::page::{self, StatePage};
use crate::durable;

/// The start of each page, which identifies its format.
const MARK: &[u8] = b"tollgate state 2\n";
/// Slots per page. A slot has one identifier. Serialising a page takes a fraction of a millisecond.
const PAGE_SLOTS: usize = 4096;
/// The pause between pages. Two million slots take 2.5 s.
const PAGE_PAUSE: Duration = Duration::from_millis(5);
/// The pause between scans.
const SCAN_PAUSE: Duration = Duration::from_secs(1);
/// The timeout for loading at startup and for the last write on shutdown.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a failure is doubled with each further one, from twice this value up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The copy of the state on Redis.
pub(super) struct RedisCopy {
    /// The pages on Redis. A master starts a term there before it writes; that ends the term of the previous master.
    pages: FencedPages,
    counts: Arc<Mutex<RedisCopyCounts>>,
    /// The digest of each page as written, to find pages that have changed. `None` before the term has begun.
    written: Option<Vec<u64>>,
    /// Whether the state of the previous master was loaded.
    is_restored: bool,
    /// The start of the last completed scan, initially that of this process.
    scanned: Instant,
    /// Whether the last scan failed, which is logged once.
    is_failing: bool,
}

impl RedisCopy {
    pub(super) fn new(pages: FencedPages, counts: Arc<Mutex<RedisCopyCounts>>) -> Self {
        Self { pages, counts, written: None, is_restored: false, scanned: Instant::now(), is_failing: false }
    }

    /// Loads the state of the previous master, if Redis responds in time.
    pub(super) async fn restore_soon(&mut self, state: &Shared) {
        let restored = tokio::time::timeout(TIMEOUT, self.begin(state)).await;
        if let Err(why) = restored.unwrap_or(Err(Unanswered::Late)) {
            self.note_failure(why);
        }
    }

    /// Scans the state repeatedly until another master takes over.
    pub(super) async fn keep(&mut self, state: &Shared) {
        let mut pause = RETRY_MIN;
        loop {
            let wait = match self.scan(state, PAGE_PAUSE).await {
                Ok(WriteOutcome::Done) => {
                    pause = RETRY_MIN;
                    SCAN_PAUSE
                }
                Ok(WriteOutcome::Forgotten) => {
                    tracing::warn!("Redis has lost the state of the master: writing it again");
                    self.written = None;
                    RETRY_MIN
                }
                Ok(WriteOutcome::Superseded) => {
                    self.counts.lock().is_superseded = true;
                    tracing::error!(
                        "another master has taken over the state on Redis: this master no longer writes it"
                    );
                    return std::future::pending().await;
                }
                Err(why) => {
                    self.note_failure(why);
                    pause = (pause * 2).min(RETRY_MAX);
                    pause
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Writes all changes since the last scan, without pauses, when the master ends.
    pub(super) async fn finish(&mut self, state: &Shared) {
        // If another master has taken over or Redis is unreachable, nothing is written.
        let _ = tokio::time::timeout(TIMEOUT, self.scan(state, Duration::ZERO)).await;
    }

    fn note_failure(&mut self, why: Unanswered) {
        {
            let mut counts = self.counts.lock();
            *counts.failures.entry(why.as_str()).or_default() += 1;
            counts.age_seconds = self.scanned.elapsed().as_secs_f64();
        }
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(why = why.as_str(), "the state cannot be written to Redis; the master continues without it");
        }
    }

    /// Starts a term and loads the state of the previous one. Nothing is written before that, because it would hide
    /// the previous state.
    async fn begin(&mut self, state: &Shared) -> Result<(), Unanswered> {
        let previous = self.pages.begin().await?;
        if let Some(previous) = previous.filter(|_| !self.is_restored) {
            let restored = self.take_over(&previous, state).await?;
            tracing::info!(restored, "loaded the state from Redis");
            self.counts.lock().restored += restored;
        }
        self.is_restored = true;
        self.written = Some(Vec::new());
        Ok(())
    }

    /// Loads the pages of the previous term. Returns the number of identifiers.
    async fn take_over(&mut self, previous: &FinishedTerm, state: &Shared) -> Result<u64, Unanswered> {
        let mut restored = 0;
        for number in 0..previous.pages {
            let Some(page) = self.pages.read(previous, number).await? else { continue };
            let records = durable::unseal(&page.bytes, MARK);
            match records.and_then(|reader| page::restore(reader, Span::from(page.age), state)) {
                Some(count) => restored += count,
                None => tracing::warn!(number, "a page of the state on Redis is damaged and was skipped"),
            }
        }
        Ok(restored)
    }

    /// Writes all changed pages, with a pause after each page. Ends early if another master has taken over, or Redis
    /// has lost its data.
    async fn scan(&mut self, state: &Shared, pause: Duration) -> Result<WriteOutcome, Unanswered> {
        if self.written.is_none() {
            self.begin(state).await?;
        }
        let began = Instant::now();
        let mut number = 0;
        loop {
            let (page, slots) = {
                let mut state = state.borrow_mut();
                let now = state.clock.read().now;
                (StatePage::of(&mut state, number * PAGE_SLOTS..(number + 1) * PAGE_SLOTS, now), state.master.slots())
            };
            let written = self.write(number, page).await?;
            if written != WriteOutcome::Done {
                return Ok(written);
            }
            number += 1;
            if number * PAGE_SLOTS >= slots {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        let finished = self.pages.finish(number as u32).await?;
        if finished != WriteOutcome::Done {
            return Ok(finished);
        }
        self.scanned = began;
        {
            let mut counts = self.counts.lock();
            (counts.walks, counts.age_seconds) = (counts.walks + 1, 0.0);
        }
        if std::mem::take(&mut self.is_failing) {
            tracing::info!("the state is written to Redis again");
        }
        Ok(WriteOutcome::Done)
    }

    /// Writes a page if it has changed.
    async fn write(&mut self, number: usize, page: StatePage) -> Result<WriteOutcome, Unanswered> {
        let written = self.written.get_or_insert_default();
        if written.len() <= number {
            // A page that was never written equals an empty one.
            written.resize(number + 1, 0);
        }
        if written[number] == page.digest {
            return Ok(WriteOutcome::Done);
        }
        let mut bytes = MARK.to_vec();
        bytes.extend_from_slice(&page.bytes);
        durable::seal(&mut bytes);
        let outcome = self.pages.write(number as u32, &bytes, page.life).await?;
        if outcome == WriteOutcome::Done {
            written[number] = page.digest;
            self.counts.lock().pages += 1;
        }
        Ok(outcome)
    }
}
