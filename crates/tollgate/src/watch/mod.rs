//! The watch of a process: records which keys are refused and which accounts are flagged, across restarts. An episode
//! has the refusals of one key within the retention time: an hour, or `flag_window` if that is longer. A flag marks an
//! account that was refused too often, until an operator clears it. The settings name the class whose keys are
//! accounts.
//!
//! [`tollgate_core::watch`] decides when refusals become episodes and flags. This module feeds it with refusals from
//! the threads of this process ([`Feed`]) and from reports of other programs ([`Watch::report`]), and persists the
//! result in the [`journal`]. A report is written to disk, then counted, then acknowledged. Therefore an acknowledged
//! report is never lost, and a report that cannot be written is not acknowledged. The threads of a gate do not wait for
//! the disk: their refusals are counted once a second, or every four seconds while thousands of keys are refused.
//! Those of accounts are written just before, and those of other keys when the journal is rewritten. They count even if
//! the write fails.
//!
//! Flags are passed on to rules of this process ([`Flagged`]), to a [`webhook`] and to other gates ([`sharing`]).
//! Pending announcements are in the journal, and unsent flags are found by comparison, so a restart loses none.

mod calendar;
mod escape;
mod feed;
mod flagged;
mod journal;
#[cfg(test)]
mod journal_faults;
mod metrics;
mod record;
mod sharing;
mod state;
mod state_guard;
mod webhook;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_core::time::{Moment, Span};
use tollgate_core::watch::{Episode, NEVER, Omissions, WatchSettings};

pub(crate) use calendar::{Calendar, rfc3339};
pub(crate) use escape::{canonical_key, escape_key, unescape_key};
pub(crate) use feed::{Feed, NAME_BYTES_MAX};
pub(crate) use flagged::Flagged;
pub(crate) use metrics::watch_metrics;
pub(crate) use record::Entry;
pub(crate) use sharing::share;
pub(crate) use state::{Change, Flag, LOGGED_IN};
#[cfg(test)]
pub(crate) use state_guard::BlockedDisk;
pub(crate) use webhook::{WebhookSettings, announce_all};

use crate::mask;
use journal::Journal;
use record::Record;
use state::{Cleared, WatchState};

/// The log message if the default state directory is unusable.
pub(crate) const IN_MEMORY_ONLY: &str =
    "flags are kept in memory only and are lost when this process ends: set `state_dir` in [watch]";

/// The watch; a process has one.
pub(crate) struct Watch {
    /// The clock of the watch.
    pub(crate) calendar: Calendar,
    feed: Arc<Feed>,
    /// The holder may be blocked on the disk: see [`state_guard`].
    state: Mutex<JournaledState>,
    /// Snapshot of the status, published when the lock on `state` was last released, and the time of that release.
    status: ArcSwap<WatchStatus>,
    unlocked_at: AtomicU64,
    /// The conditions for flags after a reload, which the next holder of the lock applies.
    flagging: ArcSwapOption<WatchSettings>,
    /// Directory of the journal; `None` if the state is not persisted.
    pub(crate) state_dir: Option<PathBuf>,
    counts: WatchCounters,
    flagged: Arc<Flagged>,
    /// Notified when an announcement is pending or the webhook changes.
    announcements_ready: Notify,
    /// Receives announcements of flags, if set.
    webhook: ArcSwapOption<WebhookSettings>,
    /// Notified when flags are to be shared with other gates; `None` if sharing is off.
    sharing_wakeup: Option<Notify>,
}

/// Where the state of the watch is persisted.
#[derive(Clone, Debug)]
pub(crate) enum Persistence {
    /// Not persisted.
    Memory,
    /// In this directory. A report that cannot be written there is not acknowledged.
    Directory(PathBuf),
    /// In this directory if it is usable at startup, otherwise not persisted. Used for the default directory.
    IfPossible(PathBuf),
}

/// Longest time to open the journal at startup. A hung disk must not keep the gate from starting.
const OPEN_MAX: Duration = Duration::from_secs(5);

/// The state with its journal.
struct JournaledState {
    state: WatchState,
    journal: Option<Journal>,
    /// Whether the journal does not match the counted state, because a write failed or the account class has changed.
    has_unwritten: bool,
    /// Accounts whose current flag has not been sent to Redis yet.
    unshared: BTreeSet<String>,
}

/// Counters for the metrics.
#[derive(Debug, Default)]
struct WatchCounters {
    reports: AtomicU64,
    reports_repeated: AtomicU64,
    reports_refused: AtomicU64,
    flags_set: AtomicU64,
    flags_cleared: AtomicU64,
    journal_failures: AtomicU64,
    announcements: AtomicU64,
    announcements_dropped: AtomicU64,
    flags_shared: AtomicU64,
    flags_received: AtomicU64,
    sharing_failures: AtomicU64,
}

/// Snapshot of the status, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WatchStatus {
    /// Accounts that are flagged now.
    pub(crate) flags: usize,
    /// Entries that were dropped because a bound was reached.
    pub(crate) omissions: Omissions,
    /// Refusals of this process that were dropped because the feed was full.
    pub(crate) feed_dropped: u64,
    /// Size of the journal; `None` if the state is not persisted.
    pub(crate) journal_bytes: Option<u64>,
    /// Whether all counted state is on disk; also true if the state is not persisted at all.
    pub(crate) is_persisted: bool,
    /// Announcements that the webhook has not accepted yet.
    pub(crate) announcements_waiting: usize,
    /// Flags that have not been sent to Redis yet.
    pub(crate) flags_unshared: usize,
}

/// Outcome of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReportOutcome {
    /// The report was a duplicate and was not counted again.
    pub(crate) repeated: bool,
    /// Accounts that this report flagged.
    pub(crate) flagged: Vec<String>,
}

/// A change that could not be written to disk and was not applied.
#[derive(Debug)]
pub(crate) struct NotPersisted(pub(crate) io::Error);

/// Opens the journal on a separate thread, and abandons that thread after [`OPEN_MAX`] because the disk may hang.
fn open_in_time(directory: PathBuf, settings: WatchSettings, now: Moment) -> io::Result<(Journal, WatchState)> {
    let (sender, opened) = mpsc::channel();
    let open = move || {
        let mut state = WatchState::new(settings);
        let journal = Journal::open(&directory, |record| state.replay(record, now));
        // The receiver is gone after a timeout. Dropping the journal then releases its lock.
        let _ = sender.send(journal.map(|journal| (journal, state)));
    };
    thread::Builder::new().name("tollgate-journal".to_owned()).spawn(open)?;
    let timeout = || io::Error::new(io::ErrorKind::TimedOut, format!("the journal did not open within {OPEN_MAX:?}"));
    opened.recv_timeout(OPEN_MAX).unwrap_or_else(|_| Err(timeout()))
}

impl Watch {
    /// Creates the watch with the state that its directory holds. If the directory is unusable, an error is logged; a
    /// configured directory is tried again with each report. Flagged accounts are published in `flagged`. With
    /// `is_sharing`, flags are shared with other gates; [`share`] does the work.
    pub(crate) fn new(
        settings: WatchSettings,
        persistence: Persistence,
        feed: Arc<Feed>,
        flagged: Arc<Flagged>,
        calendar: Calendar,
        is_sharing: bool,
    ) -> Self {
        mask::set_account_class(&settings.account_class);
        let mut journaled = JournaledState {
            state: WatchState::new(settings.clone()),
            journal: None,
            has_unwritten: false,
            unshared: BTreeSet::new(),
        };
        let (mut state_dir, is_configured) = match persistence {
            Persistence::Memory => (None, false),
            Persistence::Directory(directory) => (Some(directory), true),
            Persistence::IfPossible(directory) => (Some(directory), false),
        };
        if let Some(path) = &state_dir {
            let directory = path.display();
            match open_in_time(path.clone(), settings, calendar.now()) {
                Ok((journal, state)) => {
                    tracing::info!(%directory, "flags are persisted");
                    (journaled.journal, journaled.state) = (Some(journal), state);
                }
                Err(error) if is_configured => {
                    tracing::error!(%directory, %error, "cannot persist flags: reports are refused until this works");
                }
                Err(error) => {
                    tracing::warn!(%directory, %error, "{IN_MEMORY_ONLY}");
                    state_dir = None;
                }
            }
        }
        let watch = Self {
            unlocked_at: AtomicU64::new(calendar.now().as_nanos()),
            calendar,
            feed,
            status: ArcSwap::from_pointee(journaled.status(state_dir.is_some())),
            flagging: ArcSwapOption::empty(),
            state: Mutex::new(journaled),
            state_dir,
            counts: WatchCounters::default(),
            flagged,
            announcements_ready: Notify::new(),
            webhook: ArcSwapOption::empty(),
            sharing_wakeup: is_sharing.then(Notify::new),
        };
        watch.publish_all(&watch.lock());
        watch
    }

    /// Sets or removes the webhook. [`announce_all`] sends the announcements.
    pub(crate) fn set_webhook(&self, webhook: Option<WebhookSettings>) {
        self.webhook.store(webhook.map(Arc::new));
        self.announcements_ready.notify_one();
    }

    /// Sets the conditions for flags, without blocking. They apply before the next refusal is counted. Existing flags
    /// stay.
    pub(crate) fn set_flagging(&self, settings: WatchSettings) {
        mask::set_account_class(&settings.account_class);
        self.flagging.store(Some(Arc::new(settings)));
    }

    /// Threshold and window of flags; no threshold if accounts are not flagged.
    pub(crate) fn flagging(&self) -> (Option<u64>, Span) {
        let journaled = self.lock();
        let WatchSettings { flag_threshold, flag_window, .. } = *journaled.state.core.settings();
        ((flag_threshold != NEVER).then_some(flag_threshold), flag_window)
    }

    /// Class whose keys are accounts.
    pub(crate) fn account_class(&self) -> String {
        self.lock().state.core.settings().account_class.to_string()
    }

    /// Counts a report of another program once. When this returns `Ok`, the report is on disk, if the state
    /// is persistent.
    pub(crate) fn report(&self, id: &str, entries: &[Entry<'_>]) -> Result<ReportOutcome, NotPersisted> {
        let now = self.calendar.now();
        let mut journaled = self.lock();
        if journaled.state.reports.by_id.contains(id) {
            self.count(&self.counts.reports_repeated);
            return Ok(ReportOutcome { repeated: true, flagged: Vec::new() });
        }
        let report = Record::Report { at: now, id: id.to_owned(), entries: entries.to_vec() };
        self.append_records(&mut journaled, &[report]).inspect_err(|_| self.count(&self.counts.reports_refused))?;
        self.count(&self.counts.reports);
        let flagged = journaled.state.count(now, id, entries);
        self.announce(&mut journaled, &flagged);
        Ok(ReportOutcome { repeated: false, flagged: flagged.into_iter().map(|flag| flag.account).collect() })
    }

    /// Counts the refusals in the feed if they are due (see [`Feed::is_due`]), and retries failed writes. Call it once
    /// per second.
    pub(crate) fn tick(&self) {
        if self.feed.is_due() {
            self.take_feed();
        } else {
            self.catch_up(&mut self.lock());
        }
    }

    /// Counts the refusals in the feed now.
    pub(crate) fn take_feed(&self) {
        let now = self.calendar.now();
        let taken = self.feed.take();
        let entries: Vec<_> = taken.entries().collect();
        let mut journaled = self.lock();
        if !entries.is_empty() {
            // Only refusals of accounts lead to flags, so only those are worth a write every second.
            let account_class = &journaled.state.core.settings().account_class;
            let of_account = |entry: &&Entry<'_>| *entry.class == **account_class;
            let accounts: Vec<_> = entries.iter().filter(of_account).cloned().collect();
            if !accounts.is_empty() {
                let report = Record::Report { at: now, id: String::new(), entries: accounts };
                journaled.has_unwritten |= self.append_records(&mut journaled, &[report]).is_err();
            }
            let flagged = journaled.state.count(now, "", &entries);
            self.announce(&mut journaled, &flagged);
        }
        self.catch_up(&mut journaled);
    }

    /// Announces flags that a crash left unannounced, and rewrites the journal if it is incomplete or too long.
    fn catch_up(&self, journaled: &mut JournaledState) {
        let unwritten: Vec<_> = std::mem::take(&mut journaled.state.unwritten).into_values().collect();
        self.announce(journaled, &unwritten);
        if journaled.has_unwritten || journaled.journal.as_ref().is_some_and(Journal::has_grown) {
            let _ = self.rewrite_journal(journaled);
        }
    }

    /// Clears a flag. When this returns `Ok`, the change is on disk. Returns `None` if the account is not flagged.
    pub(crate) fn clear(&self, account: &str, by: &str, note: &str) -> Result<Option<Flag>, NotPersisted> {
        // Count earlier refusals first. If they were counted after the flag is cleared, they could set it again.
        self.take_feed();
        let now = self.calendar.now();
        let mut journaled = self.lock();
        if !journaled.state.is_flagged(account) {
            return Ok(None);
        }
        let Some(flag) = journaled.state.latest_flag_of(account) else { return Ok(None) };
        let cleared = Cleared { at: now, by: by.to_owned(), note: note.to_owned() };
        let clear = Record::Clear { account: account.to_owned(), cleared: cleared.clone() };
        let cleared = Flag { cleared: Some(cleared), ..flag };
        let records: Vec<_> = std::iter::once(clear).chain(self.announcement(&journaled, 0, &cleared)).collect();
        self.append_records(&mut journaled, &records)?;
        records.into_iter().for_each(|record| journaled.state.replay(record, now));
        self.count(&self.counts.flags_cleared);
        tracing::info!(account, by, note, "flag cleared");
        self.flagged.remove(account);
        self.mark_unshared(&mut journaled, account);
        self.wake_senders();
        Ok(Some(cleared))
    }

    /// Records a change by an operator. `by` is the name that the operator gave, `let_in` how the operator was
    /// authenticated, and `what` describes the change. If the write fails, it is retried later.
    pub(crate) fn record_change(&self, by: &str, let_in: &str, what: &str) {
        let now = self.calendar.now();
        let change = Change { at: now, by: by.to_owned(), let_in: let_in.to_owned(), what: what.to_owned() };
        let record = Record::Change(change);
        let mut journaled = self.lock();
        journaled.has_unwritten |= self.append_records(&mut journaled, std::slice::from_ref(&record)).is_err();
        journaled.state.replay(record, now);
        tracing::info!(by, let_in, what, "changed by an operator");
    }

    /// Episodes, the most refusals first.
    pub(crate) fn episodes(&self) -> Vec<Episode> {
        let now = self.calendar.now();
        self.lock().state.core.episodes(now)
    }

    /// Flags that are set, the latest first, followed by cleared flags if `history` is true.
    pub(crate) fn flags(&self, history: bool) -> Vec<Flag> {
        let journaled = self.lock();
        let mut flags = journaled.state.flags();
        if history {
            flags.extend(journaled.state.past.iter().cloned());
        }
        flags
    }

    /// Changes by operators, the latest first.
    pub(crate) fn changes(&self) -> Vec<Change> {
        self.lock().state.changes.iter().cloned().collect()
    }

    /// Status of the watch, without blocking.
    pub(crate) fn status(&self) -> WatchStatus {
        let status = **self.status.load();
        let unlocked_at = Moment::from_nanos(self.unlocked_at.load(Ordering::Relaxed));
        // The lock is taken and released at least once per second, unless its holder is blocked on the disk.
        let hangs = self.state_dir.is_some() && self.calendar.now().since(unlocked_at) > state_guard::HUNG_AFTER;
        WatchStatus { feed_dropped: self.feed.dropped(), is_persisted: status.is_persisted && !hangs, ..status }
    }

    /// Appends records to the journal, if the state is persisted.
    fn append_records(&self, journaled: &mut JournaledState, records: &[Record<'_>]) -> Result<(), NotPersisted> {
        if self.state_dir.is_none() {
            return Ok(());
        }
        if journaled.journal.as_ref().is_none_or(Journal::is_broken) {
            self.rewrite_journal(journaled)?;
        }
        let mut bytes = Vec::new();
        records.iter().for_each(|record| record.write(&mut bytes));
        let journal = journaled.journal.as_mut().expect("opened by rewrite_journal");
        journal.append(&bytes).map_err(|error| self.failed(error))
    }

    /// Rewrites the journal from the state in memory.
    fn rewrite_journal(&self, journaled: &mut JournaledState) -> Result<(), NotPersisted> {
        let Some(directory) = &self.state_dir else { return Ok(()) };
        if journaled.journal.is_none() {
            let now = self.calendar.now();
            // An earlier process may have written records there.
            let journal = Journal::open(directory, |record| journaled.state.replay(record, now));
            journaled.journal = Some(journal.map_err(|error| self.failed(error))?);
            self.publish_all(journaled);
        }
        let JournaledState { state, journal: Some(journal), has_unwritten, .. } = journaled else { return Ok(()) };
        let mut bytes = Vec::new();
        state.write(&mut bytes);
        journal.rewrite(&[&bytes]).map_err(|error| self.failed(error))?;
        *has_unwritten = false;
        Ok(())
    }

    /// Counts a failed write, and logs it at times.
    fn failed(&self, error: io::Error) -> NotPersisted {
        // Log the first failure, then one in 600, so that a full disk does not flood the log.
        if self.counts.journal_failures.fetch_add(1, Ordering::Relaxed).is_multiple_of(600) {
            tracing::error!(%error, "cannot write the journal of the watch: reports are refused until this works");
        }
        NotPersisted(error)
    }

    /// Records and publishes flags that were just set.
    fn announce(&self, journaled: &mut JournaledState, flagged: &[Flag]) {
        if flagged.is_empty() {
            return;
        }
        let (now, mut records, mut announcements) = (self.calendar.now(), Vec::new(), 0);
        let WatchSettings { flag_threshold: threshold, flag_window: window, .. } = *journaled.state.core.settings();
        for flag in flagged {
            let account = &flag.account;
            self.count(&self.counts.flags_set);
            tracing::warn!(
                account,
                rejected = flag.rejected,
                threshold,
                window_ms = window.as_millis_ceil(),
                "account flagged: it exceeded the threshold of refusals"
            );
            if let Some(announcement) = self.announcement(journaled, announcements, flag) {
                announcements += 1;
                records.push(announcement);
            }
            records.push(Record::Flag(flag.clone()));
            self.flagged.insert(account);
            self.mark_unshared(journaled, account);
        }
        journaled.has_unwritten |= self.append_records(journaled, &records).is_err();
        records.into_iter().for_each(|record| journaled.state.replay(record, now));
        self.wake_senders();
    }

    /// Publishes all flags for rules.
    fn publish_all(&self, journaled: &JournaledState) {
        journaled.state.flags().iter().for_each(|flag| self.flagged.insert(&flag.account));
    }

    /// Wakes the tasks that send announcements and share flags.
    fn wake_senders(&self) {
        self.announcements_ready.notify_one();
        self.sharing_wakeup.iter().for_each(Notify::notify_one);
    }

    fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl JournaledState {
    /// Snapshot without the drops of the feed, which are not under this lock. `is_to_persist` is whether there is a
    /// directory for the journal.
    fn status(&self, is_to_persist: bool) -> WatchStatus {
        let is_whole = !self.has_unwritten && self.journal.as_ref().is_some_and(|journal| !journal.is_broken());
        WatchStatus {
            flags: self.state.core.flags().len(),
            omissions: self.state.core.omissions(),
            feed_dropped: 0,
            journal_bytes: self.journal.as_ref().map(|journal| journal.bytes),
            is_persisted: !is_to_persist || is_whole,
            announcements_waiting: self.state.announcements.len(),
            flags_unshared: self.unshared.len(),
        }
    }
}

#[cfg(test)]
mod tests;
