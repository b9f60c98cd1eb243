//! The watch of a process: who was refused, and which accounts are flagged for that, over restarts.
//!
//! What to make of refusals is the core's ([`tollgate_core::watch`]). Here they come in, from the workers of this process ([`Feed`]) and from
//! others who report ([`Watch::report`]), and here they survive ([`journal`]). The order is what matters: a report is on disk before it is
//! counted, and counted before it is acknowledged. So what was acknowledged is never lost, and what could not be kept is not
//! acknowledged. Gates are not made to wait for a disk: their refusals count and are on disk a second later, or four when thousands of callers are refused.
//!
//! From here flags go to others: to rules of this process that look at them ([`Flagged`]), to who wants to be told ([`webhook`]), and to other gates
//! ([`sharing`]). What is to be sent is in the journal too, or can be seen from it, so a restart loses none of it.

mod calendar;
mod feed;
mod flagged;
mod held;
mod journal;
#[cfg(test)]
mod journal_faults;
mod legible;
mod metrics;
mod record;
mod sharing;
mod state;
mod webhook;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::Notify;
use tollgate_core::time::{Moment, Span};
use tollgate_core::watch::{Episode, Omissions};

pub(crate) use calendar::{Calendar, rfc3339};
pub(crate) use feed::{Feed, NAME_BYTES_MAX};
pub(crate) use flagged::Flagged;
#[cfg(test)]
pub(crate) use held::Hanging;
pub(crate) use legible::{canonical, legible, name_of};
pub(crate) use metrics::WatchMetrics;
pub(crate) use record::Entry;
pub(crate) use sharing::share;
pub(crate) use state::{Change, Flag, LOGGED_IN};
pub(crate) use webhook::{WebhookSettings, announce_all};

use crate::mask;
use held::Flagging;
use journal::Journal;
use record::Record;
use state::{Cleared, State};

/// What the log says where the directory that is used by default cannot be.
pub(crate) const IN_MEMORY_ALONE: &str =
    "flags are in memory alone, and gone with this process: name a directory as `state_dir` in [watch]";

/// The watch. One for all of a process.
pub(crate) struct Watch {
    calendar: Calendar,
    feed: Arc<Feed>,
    /// Whoever has this may be waiting for a disk: see [`held`].
    state: Mutex<Kept>,
    /// How things stood when somebody was last done with it, and when that was.
    standing: ArcSwap<Standing>,
    done_at: AtomicU64,
    /// What a reload has brought, until somebody takes it over.
    flagging: ArcSwapOption<Flagging>,
    state_dir: Option<PathBuf>,
    counts: Counts,
    flagged: Arc<Flagged>,
    /// Rings when there is something to announce, or somebody else wants to be told.
    to_announce: Notify,
    /// Who wants to be told.
    webhook: ArcSwapOption<WebhookSettings>,
    /// Rings when there is something to tell other gates; none when there are none.
    to_share: Option<Notify>,
}

/// Where what is known survives.
#[derive(Clone, Debug)]
pub(crate) enum Home {
    /// Nowhere.
    Memory,
    /// In this directory: what cannot be kept there is not acknowledged.
    Directory(PathBuf),
    /// In this directory if it can be used at the start, and otherwise nowhere: nobody has asked for it.
    IfPossible(PathBuf),
}

/// A journal that takes longer to open is given up at the start.
const OPEN_MAX: Duration = Duration::from_secs(5);

/// What is known, and where it is kept.
struct Kept {
    state: State,
    journal: Option<Journal>,
    /// Whether something counts that is not on disk.
    behind: bool,
    /// Accounts of which other gates have not been told how they stand.
    owed: BTreeSet<String>,
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
    pub(crate) announcements: AtomicU64,
    pub(crate) announcements_dropped: AtomicU64,
    pub(crate) flags_told: AtomicU64,
    pub(crate) flags_heard: AtomicU64,
    pub(crate) sharing_failures: AtomicU64,
}

/// How things stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Announcements that nobody has taken yet.
    pub(crate) announcements_waiting: usize,
    /// Flags of which other gates have not been told yet.
    pub(crate) flags_owed: usize,
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

/// Opens the journal of a directory on a thread of its own. A disk that hangs must not keep the gate from serving, so the thread is left
/// behind after [`OPEN_MAX`].
fn open_in_time(
    directory: PathBuf,
    settings: tollgate_core::watch::WatchSettings,
    now: Moment,
) -> io::Result<(Journal, State)> {
    let (sender, opened) = mpsc::channel();
    let open = move || {
        let mut state = State::new(settings);
        let journal = Journal::open(&directory, |record| state.replay(record, now));
        // Nobody listens after a timeout. The journal is closed then.
        let _ = sender.send(journal.map(|journal| (journal, state)));
    };
    thread::Builder::new().name("tollgate-journal".to_owned()).spawn(open)?;
    let timeout = || io::Error::new(io::ErrorKind::TimedOut, format!("the disk did not answer within {OPEN_MAX:?}"));
    opened.recv_timeout(OPEN_MAX).unwrap_or_else(|_| Err(timeout()))
}

impl Watch {
    /// A watch that knows what the last one knew that had this home. A directory that cannot be used is said, and tried again if somebody has asked for it.
    pub(crate) fn new(
        settings: tollgate_core::watch::WatchSettings,
        home: Home,
        feed: Arc<Feed>,
        calendar: Calendar,
    ) -> Self {
        mask::set_account_class(&settings.account_class);
        let mut kept =
            Kept { state: State::new(settings.clone()), journal: None, behind: false, owed: BTreeSet::new() };
        let (mut state_dir, is_asked_for) = match home {
            Home::Memory => (None, false),
            Home::Directory(directory) => (Some(directory), true),
            Home::IfPossible(directory) => (Some(directory), false),
        };
        if let Some(path) = &state_dir {
            let directory = path.display();
            match open_in_time(path.clone(), settings, calendar.now()) {
                Ok((journal, state)) => {
                    tracing::info!(%directory, "flags survive a restart");
                    (kept.journal, kept.state) = (Some(journal), state);
                }
                Err(error) if is_asked_for => {
                    tracing::error!(%directory, %error, "flags cannot be kept: reports are refused until they can");
                }
                Err(error) => {
                    tracing::warn!(%directory, %error, "{IN_MEMORY_ALONE}");
                    state_dir = None;
                }
            }
        }
        Self {
            done_at: AtomicU64::new(calendar.now().as_nanos()),
            calendar,
            feed,
            standing: ArcSwap::from_pointee(kept.standing(state_dir.is_some())),
            flagging: ArcSwapOption::empty(),
            state: Mutex::new(kept),
            state_dir,
            counts: Counts::default(),
            flagged: Arc::default(),
            to_announce: Notify::new(),
            webhook: ArcSwapOption::empty(),
            to_share: None,
        }
    }

    /// Says in `flagged` who is flagged, from now on.
    pub(crate) fn marking(mut self, flagged: Arc<Flagged>) -> Self {
        self.flagged = flagged;
        self.mark_all(&self.kept());
        self
    }

    /// Announces flags to this address from now on, if somebody calls [`announce_all`]; or to nobody.
    pub(crate) fn announce_to(&self, webhook: Option<WebhookSettings>) {
        self.webhook.store(webhook.map(Arc::new));
        self.to_announce.notify_one();
    }

    /// Takes over when to flag whom, before anything else is counted. Flags stay. This waits for nothing.
    pub(crate) fn set_flagging(&self, threshold: u64, window: Span, account_class: &str) {
        mask::set_account_class(account_class);
        let account_class = account_class.into();
        self.flagging.store(Some(Arc::new(Flagging { threshold, window, account_class })));
    }

    /// Shares flags with other gates from now on, if somebody calls [`share`].
    pub(crate) fn sharing(mut self) -> Self {
        self.to_share = Some(Notify::new());
        self
    }

    /// What time it is.
    pub(crate) fn calendar(&self) -> &Calendar {
        &self.calendar
    }

    /// Where flags survive a restart, if they do.
    pub(crate) fn state_dir(&self) -> Option<&Path> {
        self.state_dir.as_deref()
    }

    /// The class whose keys are accounts.
    pub(crate) fn account_class(&self) -> String {
        self.kept().state.account_class().to_owned()
    }

    /// What was done so far.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Counts a report of others, once, and for good when this returns.
    pub(crate) fn report(&self, id: &str, entries: &[Entry<'_>]) -> Result<Reported, NotKept> {
        let now = self.calendar.now();
        let mut kept = self.kept();
        if kept.state.has_report(id) {
            self.count(&self.counts.reports_repeated);
            return Ok(Reported { repeated: true, flagged: Vec::new() });
        }
        self.keep_report(&mut kept, now, id, entries.iter())
            .inspect_err(|_| self.count(&self.counts.reports_refused))?;
        self.count(&self.counts.reports);
        let flagged = kept.state.count(now, id, entries);
        self.announce(&mut kept, &flagged);
        Ok(Reported { repeated: false, flagged: flagged.into_iter().map(|(account, _)| account).collect() })
    }

    /// Counts what gates have left, now or, when very many are refused, a few seconds later. To be called once a second.
    pub(crate) fn tick(&self) {
        if self.feed.is_due() {
            self.take_feed();
        } else {
            self.catch_up(&mut self.kept());
        }
    }

    /// Counts what gates have left since the last time.
    pub(crate) fn take_feed(&self) {
        let now = self.calendar.now();
        let taken = self.feed.take();
        let entries: Vec<_> = taken.entries().collect();
        let mut kept = self.kept();
        if !entries.is_empty() {
            // Only what flags are decided on is worth a write every second.
            let of_account = |entry: &&Entry<'_>| entry.class == kept.state.account_class();
            let accounts: Vec<_> = entries.iter().filter(of_account).collect();
            if !accounts.is_empty() {
                kept.behind |= self.keep_report(&mut kept, now, "", accounts.into_iter()).is_err();
            }
            let flagged = kept.state.count(now, "", &entries);
            self.announce(&mut kept, &flagged);
        }
        self.catch_up(&mut kept);
    }

    /// Does what could not be done before, or was put off.
    fn catch_up(&self, kept: &mut Kept) {
        let unwritten = kept.state.take_unwritten();
        self.announce(kept, &unwritten);
        if kept.behind || kept.journal.as_ref().is_some_and(Journal::has_grown) {
            let _ = self.write_anew(kept);
        }
    }

    /// Takes a flag off, for good when this returns. None when there is no such flag.
    pub(crate) fn clear(&self, account: &str, by: &str, note: &str) -> Result<Option<Flag>, NotKept> {
        // What was refused before this counts before it: counted later, it would bring the flag back.
        self.take_feed();
        let now = self.calendar.now();
        let mut kept = self.kept();
        if !kept.state.is_flagged(account) {
            return Ok(None);
        }
        let Some(flag) = kept.state.standing_of(account) else { return Ok(None) };
        let cleared = Flag { cleared: Some(Cleared { at: now, by: by.to_owned(), note: note.to_owned() }), ..flag };
        let clear = Record::Clear { account: account.to_owned(), at: now, by: by.to_owned(), note: note.to_owned() };
        let records: Vec<_> = std::iter::once(clear).chain(self.announcement(&kept, 0, &cleared)).collect();
        self.keep(&mut kept, &records)?;
        records.into_iter().for_each(|record| kept.state.replay(record, now));
        self.count(&self.counts.flags_cleared);
        tracing::info!(account, by, note, "flag cleared");
        self.flagged.remove(account);
        self.owe(&mut kept, account);
        self.ring();
        Ok(Some(cleared))
    }

    /// Writes down that somebody changed something. A change that is not on disk yet is still a change: it is written later.
    pub(crate) fn note_change(&self, by: &str, let_in: &str, what: &str) {
        let now = self.calendar.now();
        let record = Record::Change { at: now, by: by.to_owned(), let_in: let_in.to_owned(), what: what.to_owned() };
        let mut kept = self.kept();
        kept.behind |= self.keep(&mut kept, std::slice::from_ref(&record)).is_err();
        kept.state.replay(record, now);
        tracing::info!(by, let_in, what, "changed by an operator");
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

    /// How things stand. This waits for nothing.
    pub(crate) fn standing(&self) -> Standing {
        let standing = **self.standing.load();
        let done_at = Moment::from_nanos(self.done_at.load(Ordering::Relaxed));
        // Somebody is done every second, unless they wait for a disk.
        let hangs = self.state_dir.is_some() && self.calendar.now().since(done_at) > held::HANGS_AFTER;
        Standing { feed_dropped: self.feed.dropped(), is_kept: standing.is_kept && !hangs, ..standing }
    }

    /// Puts records on disk, if there is one.
    fn keep(&self, kept: &mut Kept, records: &[Record]) -> Result<(), NotKept> {
        self.append(kept, |bytes| records.iter().for_each(|record| record.write(bytes)))
    }

    /// The same for a report, whose entries are not copied for that.
    fn keep_report<'a>(
        &self,
        kept: &mut Kept,
        at: Moment,
        id: &str,
        entries: impl ExactSizeIterator<Item = &'a Entry<'a>>,
    ) -> Result<(), NotKept> {
        self.append(kept, |bytes| Record::write_report(bytes, at, id, entries))
    }

    fn append(&self, kept: &mut Kept, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), NotKept> {
        if self.state_dir.is_none() {
            return Ok(());
        }
        if kept.journal.as_ref().is_none_or(Journal::is_broken) {
            self.write_anew(kept)?;
        }
        let mut bytes = Vec::new();
        write(&mut bytes);
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
            self.mark_all(kept);
        }
        let Kept { state, journal: Some(journal), behind, .. } = kept else { return Ok(()) };
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
        let (now, mut records, mut announcements) = (self.calendar.now(), Vec::new(), 0);
        for (account, flag) in flagged {
            self.count(&self.counts.flags_set);
            tracing::warn!(account, rejected = flag.rejected, "account flagged: it was refused very often");
            if let Some(announcement) = self.announcement(kept, announcements, flag) {
                announcements += 1;
                records.push(announcement);
            }
            records.push(Record::Flag { account: account.clone(), at: flag.flagged_at, count: flag.rejected });
            self.flagged.insert(account);
            self.owe(kept, account);
        }
        kept.behind |= self.keep(kept, &records).is_err();
        records.into_iter().for_each(|record| kept.state.replay(record, now));
        self.ring();
    }

    /// Marks everybody who is flagged.
    fn mark_all(&self, kept: &Kept) {
        kept.state.flags().iter().for_each(|flag| self.flagged.insert(&flag.account));
    }

    /// Tells those who send that there may be something to send.
    fn ring(&self) {
        self.to_announce.notify_one();
        self.to_share.iter().for_each(Notify::notify_one);
    }

    fn count(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl Kept {
    /// How things stand here, which is all but what gates could not leave.
    fn standing(&self, is_to_survive: bool) -> Standing {
        let is_whole = !self.behind && self.journal.as_ref().is_some_and(|journal| !journal.is_broken());
        Standing {
            flags: self.state.flagged(),
            omissions: self.state.omissions(),
            feed_dropped: 0,
            journal_bytes: self.journal.as_ref().map(Journal::bytes),
            is_kept: !is_to_survive || is_whole,
            announcements_waiting: self.state.announcements().len(),
            flags_owed: self.owed.len(),
        }
    }
}

#[cfg(test)]
mod tests;
