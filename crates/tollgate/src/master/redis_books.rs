//! The books on Redis: what everybody owes, so that another master carries on when this one is gone, on whatever machine.
//!
//! WriteOutcome down every report would make Redis hear as much as the master does. Instead the books are gone through again and again, a stretch
//! at a time, and what has changed is written: one value for thousands of identifiers. What a master that is killed has heard since is lost to
//! its successor, except for what gates of our own tell again: the time since the last walk is a metric.
//!
//! It is never in the way. A walk takes a fixed part of the time of the one thread, nobody waits for Redis, and a master that cannot read
//! its books starts without them and takes them over when it can.

use std::time::{Duration, Instant};

use tollgate_core::time::Span;
use tollgate_gatekeeper::shared::{FencedPages, FinishedTerm, Unanswered, WriteOutcome};

use super::Shared;
use super::figures::BookFigures;
use super::page::{self, Page, Reader};

const MARK: &[u8] = b"tollgate books 1\n";
/// How many places are on one page: a fraction of a millisecond to write down.
const PAGE: usize = 4096;
/// How long after a page the next is looked at: two million places take two and a half seconds.
const PAGE_EVERY: Duration = Duration::from_millis(5);
/// How long after a walk the next begins.
const WALK_EVERY: Duration = Duration::from_secs(1);
/// How long the start waits for books, and the end for the last words.
const PATIENCE: Duration = Duration::from_secs(2);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The books on Redis.
pub(super) struct RedisBooks {
    shelf: FencedPages,
    figures: BookFigures,
    /// What was written on each page, by its digest. None while there is no term.
    written: Option<Vec<u64>>,
    is_restored: bool,
    /// When everything was last written down; the start, before that.
    walked: Instant,
    is_amiss: bool,
}

/// Why a walk came to no end.
enum Stop {
    /// Redis did not do as it was told.
    Unanswered(Unanswered),
    /// Redis has forgotten everything.
    Forgotten,
    /// Another master has taken over.
    Superseded,
}

impl From<Unanswered> for Stop {
    fn from(why: Unanswered) -> Self {
        Self::Unanswered(why)
    }
}

impl RedisBooks {
    pub(super) fn new(shelf: FencedPages, figures: BookFigures) -> Self {
        Self { shelf, figures, written: None, is_restored: false, walked: Instant::now(), is_amiss: false }
    }

    /// Takes over what another master has left, if Redis says so soon.
    pub(super) async fn restore_soon(&mut self, books: &Shared) {
        let restored = tokio::time::timeout(PATIENCE, self.begin(books)).await;
        if let Ok(Ok(())) = restored {
            return;
        }
        let why = match restored {
            Ok(Err(why)) => why,
            _ => Unanswered::Late,
        };
        self.note_failure(why);
    }

    /// Walks through the books for ever, unless another master takes over.
    pub(super) async fn keep(&mut self, books: &Shared) {
        let mut pause = RETRY_MIN;
        loop {
            let next = match self.walk(books, PAGE_EVERY).await {
                Ok(()) => {
                    pause = RETRY_MIN;
                    WALK_EVERY
                }
                Err(Stop::Forgotten) => {
                    tracing::warn!("Redis has forgotten the books: they are written anew");
                    self.written = None;
                    RETRY_MIN
                }
                Err(Stop::Superseded) => {
                    self.figures.superseded();
                    tracing::error!("another master has taken over the books on Redis: this one writes there no more");
                    return std::future::pending().await;
                }
                Err(Stop::Unanswered(why)) => {
                    self.note_failure(why);
                    pause = (pause * 2).min(RETRY_MAX);
                    pause
                }
            };
            tokio::time::sleep(next).await;
        }
    }

    /// Writes down what has changed since the last walk, at once.
    pub(super) async fn finish(&mut self, books: &Shared) {
        // Whoever has taken over has the last word, and one that cannot be reached hears none.
        let _ = tokio::time::timeout(PATIENCE, self.walk(books, Duration::ZERO)).await;
    }

    fn note_failure(&mut self, why: Unanswered) {
        self.figures.failed(why.as_str(), self.walked.elapsed());
        if !std::mem::replace(&mut self.is_amiss, true) {
            tracing::warn!(why = why.as_str(), "the books on Redis cannot be kept; the master goes on without");
        }
    }

    /// Begins a term, and takes over what is left of the last one. Nothing is written before that: it would hide what is left.
    async fn begin(&mut self, books: &Shared) -> Result<(), Unanswered> {
        let legacy = self.shelf.begin().await?;
        if let Some(legacy) = legacy.filter(|_| !self.is_restored) {
            let restored = self.take_over(&legacy, books).await?;
            tracing::info!(restored, "the books were taken over from Redis");
            self.figures.restored(restored);
        }
        self.is_restored = true;
        self.written = Some(Vec::new());
        Ok(())
    }

    async fn take_over(&mut self, legacy: &FinishedTerm, books: &Shared) -> Result<u64, Unanswered> {
        let mut restored = 0;
        for number in 0..legacy.pages {
            let Some(page) = self.shelf.read(legacy, number).await? else { continue };
            let records = Reader::checked(&page.bytes, MARK);
            match records.and_then(|reader| page::restore(reader, Span::from(page.age), books)) {
                Some(count) => restored += count,
                None => tracing::warn!(number, "a page of the books on Redis is damaged and was left out"),
            }
        }
        Ok(restored)
    }

    async fn walk(&mut self, books: &Shared, pause: Duration) -> Result<(), Stop> {
        if self.written.is_none() {
            self.begin(books).await?;
        }
        let began = Instant::now();
        let mut number = 0;
        loop {
            let (page, places) = {
                let mut books = books.borrow_mut();
                let now = books.read_clock().now;
                (Page::of(&mut books, number * PAGE..(number + 1) * PAGE, now), books.master().slots())
            };
            self.write(number, page).await?;
            number += 1;
            if number * PAGE >= places {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        kept(self.shelf.finish(number as u32).await?)?;
        self.walked = began;
        self.figures.walked();
        if std::mem::take(&mut self.is_amiss) {
            tracing::info!("the books on Redis are kept again");
        }
        Ok(())
    }

    /// Writes a page, if it is not as it was.
    async fn write(&mut self, number: usize, page: Page) -> Result<(), Stop> {
        let written = self.written.get_or_insert_default();
        if written.len() <= number {
            // Nothing is what a page that was never written says.
            written.resize(number + 1, 0);
        }
        if written[number] == page.digest {
            return Ok(());
        }
        let mut bytes = MARK.to_vec();
        bytes.extend_from_slice(&page.bytes);
        page::seal(&mut bytes);
        kept(self.shelf.write(number as u32, &bytes, page.life).await?)?;
        if let Some(written) = &mut self.written {
            written[number] = page.digest;
        }
        self.figures.wrote();
        Ok(())
    }
}

fn kept(writing: WriteOutcome) -> Result<(), Stop> {
    match writing {
        WriteOutcome::Done => Ok(()),
        WriteOutcome::Superseded => Err(Stop::Superseded),
        WriteOutcome::Forgotten => Err(Stop::Forgotten),
    }
}
