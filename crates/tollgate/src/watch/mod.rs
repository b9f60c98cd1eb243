//! The watch of a process: who was refused, and which accounts are flagged for that, over restarts.
//!
//! What to make of refusals is the core's ([`tollgate_core::watch`]). Here they come in, from the workers of this process ([`Feed`]) and from
//! others who report ([`Watch::report`]), and here they survive ([`journal`]). The order is what matters: a report is on disk before it is
//! counted, and counted before it is acknowledged. So what was acknowledged is never lost, and what could not be kept is not
//! acknowledged. Gates are not made to wait for a disk: their refusals count at once, and are on disk a second later.

mod calendar;
mod feed;
mod journal;
mod metrics;
mod record;
mod state;
mod webhook;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_core::watch::{Episode, Omissions};

pub(crate) use calendar::{Calendar, rfc3339};
pub(crate) use feed::{Feed, legible};
pub(crate) use metrics::WatchMetrics;
pub(crate) use record::Entry;
pub(crate) use state::{Change, Flag};
pub(crate) use webhook::{Announced, Announcer, WebhookSettings, open as open_webhook};

use journal::Journal;
use record::Record;
use state::State;

/// The watch. One for all of a process.
pub(crate) struct Watch {
    calendar: Calendar,
    feed: Arc<Feed>,
    state: Mutex<Kept>,
    state_dir: Option<PathBuf>,
    counts: Counts,
    announcer: Option<(Announcer, Announced)>,
}

/// What is known, and where it is kept.
struct Kept {
    state: State,
    journal: Option<Journal>,
    /// Whether something counts that is not on disk.
    behind: bool,
}

/// What the watch has done, for operators.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reports: AtomicU64,
    pub(crate) reports_repeated: AtomicU64,
    pub(crate) reports_refused: AtomicU64,
    pub(crate) flags_set: AtomicU64,
    pub(crate) flags_cleared: AtomicU64,
    pub(crate) journal_failures: AtomicU64,
}

/// How things stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// Accounts that are flagged now.
    pub(crate) flags: usize,
    /// What had to be left out.
    pub(crate) omissions: Omissions,
    /// Refusals of this process that had no place.
    pub(crate) feed_dropped: u64,
    /// The length of the journal; none when nothing is to survive.
    pub(crate) journal_bytes: Option<u64>,
    /// Whether everything that counts is on disk, or is not meant to be.
    pub(crate) is_kept: bool,
}

/// What became of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    /// It had been counted before.
    pub(crate) repeated: bool,
    /// The accounts that it has flagged.
    pub(crate) flagged: Vec<String>,
}

/// A change that could not be put on disk, and did not take place.
#[derive(Debug)]
pub(crate) struct NotKept(pub(crate) io::Error);

impl Watch {
    /// A watch that knows what the last one knew that used this directory. A directory that cannot be used is said, and tried again.
    pub(crate) fn new(
        settings: tollgate_core::watch::Settings,
        state_dir: Option<PathBuf>,
        feed: Arc<Feed>,
        calendar: Calendar,
    ) -> Self {
        let mut kept = Kept { state: State::new(settings), journal: None, behind: false };
        if let Some(directory) = &state_dir {
            let now = calendar.now();
            match Journal::open(directory, |record| kept.state.replay(record, now)) {
                Ok(journal) => kept.journal = Some(journal),
                Err(error) => {
                    let directory = directory.display();
                    tracing::error!(%directory, %error, "flags cannot be kept: reports are refused until they can");
                }
            }
        }
        Self { calendar, feed, state: Mutex::new(kept), state_dir, counts: Counts::default(), announcer: None }
    }

    /// Announces flags to others from now on.
    pub(crate) fn announcing(mut self, announcer: Announcer, announced: Announced) -> Self {
        self.announcer = Some((announcer, announced));
        self
    }

    /// What became of announcements, if there are any.
    pub(crate) fn announced(&self) -> Option<&Announced> {
        self.announcer.as_ref().map(|(_, announced)| announced)
    }

    /// What time it is.
    pub(crate) fn calendar(&self) -> &Calendar {
        &self.calendar
    }

    /// What was done so far.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts a report of others, once, and for good when this returns.
    pub(crate) fn report(&self, id: String, entries: Vec<Entry>) -> Result<Reported, NotKept> {
        let now = self.calendar.now();
        let mut kept = self.kept();
        if kept.state.has_report(&id) {
            self.count(&self.counts.reports_repeated);
            return Ok(Reported { repeated: true, flagged: Vec::new() });
        }
        let report = Record::Report { at: now, id, entries };
        self.keep(&mut kept, std::slice::from_ref(&report))
            .inspect_err(|_| self.count(&self.counts.reports_refused))?;
        self.count(&self.counts.reports);
        let flagged = kept.state.count(report);
        self.announce(&mut kept, &flagged);
        Ok(Reported { repeated: false, flagged: flagged.into_iter().map(|(account, _)| account).collect() })
    }

    /// Counts what gates have left since the last time. To be called once a second.
    pub(crate) fn take_feed(&self) {
        let now = self.calendar.now();
        let entries: Vec<_> =
            self.feed.take().into_iter().map(|(class, key, count)| Entry { class, key, count }).collect();
        let mut kept = self.kept();
        if !entries.is_empty() {
            // Only what flags are decided on is worth a write every second.
            let accounts = entries.iter().filter(|entry| entry.class == kept.state.account_class()).cloned();
            let record = Record::Report { at: now, id: String::new(), entries: accounts.collect() };
            if !matches!(&record, Record::Report { entries, .. } if entries.is_empty()) {
                kept.behind |= self.keep(&mut kept, &[record]).is_err();
            }
            let flagged = kept.state.count(Record::Report { at: now, id: String::new(), entries });
            self.announce(&mut kept, &flagged);
        }
        if kept.behind || kept.journal.as_ref().is_some_and(Journal::has_grown) {
            let _ = self.write_anew(&mut kept);
        }
    }

    /// Takes a flag off, for good when this returns. None when there is no such flag.
    pub(crate) fn clear(&self, account: &str, by: &str, note: &str) -> Result<Option<Flag>, NotKept> {
        let now = self.calendar.now();
        let mut kept = self.kept();
        if !kept.state.is_flagged(account) {
            return Ok(None);
        }
        let record = Record::Clear { account: account.to_owned(), at: now, by: by.to_owned(), note: note.to_owned() };
        self.keep(&mut kept, std::slice::from_ref(&record))?;
        kept.state.replay(record, now);
        self.count(&self.counts.flags_cleared);
        tracing::info!(account, by, note, "flag cleared");
        let cleared = kept.state.past().next().cloned();
        if let (Some((announcer, _)), Some(flag)) = (&self.announcer, &cleared) {
            announcer.announce(flag);
        }
        Ok(cleared)
    }

    /// Writes down that somebody changed something. A change that is not on disk yet is still a change: it is written later.
    pub(crate) fn note_change(&self, by: &str, what: &str) {
        let now = self.calendar.now();
        let record = Record::Change { at: now, by: by.to_owned(), what: what.to_owned() };
        let mut kept = self.kept();
        kept.behind |= self.keep(&mut kept, std::slice::from_ref(&record)).is_err();
        kept.state.replay(record, now);
        tracing::info!(by, what, "changed by an operator");
    }

    /// Who was refused, the most refused first.
    pub(crate) fn episodes(&self) -> Vec<Episode> {
        let now = self.calendar.now();
        self.kept().state.episodes(now)
    }

    /// The flags that are set, the latest first, and then those of the past, if asked for.
    pub(crate) fn flags(&self, history: bool) -> Vec<Flag> {
        let kept = self.kept();
        let mut flags = kept.state.flags();
        if history {
            flags.extend(kept.state.past().cloned());
        }
        flags
    }

    /// What operators have changed, the latest first.
    pub(crate) fn changes(&self) -> Vec<Change> {
        self.kept().state.changes().cloned().collect()
    }

    /// How things stand.
    pub(crate) fn standing(&self) -> Standing {
        let kept = self.kept();
        Standing {
            flags: kept.state.flagged(),
            omissions: kept.state.omissions(),
            feed_dropped: self.feed.dropped(),
            journal_bytes: kept.journal.as_ref().map(Journal::bytes),
            is_kept: self.state_dir.is_none()
                || (!kept.behind && kept.journal.as_ref().is_some_and(|journal| !journal.is_broken())),
        }
    }

    /// Puts records on disk, if there is one.
    fn keep(&self, kept: &mut Kept, records: &[Record]) -> Result<(), NotKept> {
        if self.state_dir.is_none() {
            return Ok(());
        }
        if kept.journal.as_ref().is_none_or(Journal::is_broken) {
            self.write_anew(kept)?;
        }
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.write(&mut bytes));
        let journal = kept.journal.as_mut().expect("it was just written anew");
        journal.append(&bytes).map_err(|error| self.failed(error))
    }

    /// Writes everything that counts anew.
    fn write_anew(&self, kept: &mut Kept) -> Result<(), NotKept> {
        let Some(directory) = &self.state_dir else { return Ok(()) };
        if kept.journal.is_none() {
            let now = self.calendar.now();
            // What an earlier process has written there counts as well.
            let journal = Journal::open(directory, |record| kept.state.replay(record, now));
            kept.journal = Some(journal.map_err(|error| self.failed(error))?);
        }
        let Kept { state, journal: Some(journal), behind } = kept else { return Ok(()) };
        let mut bytes = Vec::new();
        state.write(&mut bytes);
        journal.replace(&bytes).map_err(|error| self.failed(error))?;
        *behind = false;
        Ok(())
    }

    fn failed(&self, error: io::Error) -> NotKept {
        // Once, then once every so many: a full disk must not be filled with complaints.
        if self.counts.journal_failures.fetch_add(1, Ordering::Relaxed).is_multiple_of(600) {
            tracing::error!(%error, "the journal of the watch cannot be written: reports are refused until it can");
        }
        NotKept(error)
    }

    /// Tells everybody of flags that were set.
    fn announce(&self, kept: &mut Kept, flagged: &[(String, Flag)]) {
        if flagged.is_empty() {
            return;
        }
        let record = |(account, flag): &(String, Flag)| {
            self.count(&self.counts.flags_set);
            tracing::warn!(account, rejected = flag.rejected, "account flagged: it was refused very often");
            if let Some((announcer, _)) = &self.announcer {
                announcer.announce(flag);
            }
            Record::Flag { account: account.clone(), at: flag.flagged_at, count: flag.rejected }
        };
        let records: Vec<_> = flagged.iter().map(record).collect();
        kept.behind |= self.keep(kept, &records).is_err();
    }

    fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
