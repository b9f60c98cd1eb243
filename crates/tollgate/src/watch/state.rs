//! The state of the watch that the journal persists: counts of refusals and flags (in [`core::Watch`]), cleared flags,
//! IDs of counted reports, changes by operators, and announcements for the webhook.
//!
//! The journal is a sequence of [`Record`]s. [`WatchState::replay`] applies one to the state, and [`WatchState::write`]
//! writes the whole state as records.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use foldhash::quality::RandomState;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tollgate_core::time::Moment;
use tollgate_core::watch::{self as core, CountKind, Refusals, SavedCount};

use super::calendar::rfc3339;
use super::escape::{escape_key, unescape_key};
use super::record::{Entry, Record, nanos};

/// Number of cleared flags that are kept.
const PAST_FLAGS_MAX: usize = 10_000;
/// Number of report IDs that are remembered to detect duplicates.
const REPORTS_MAX: usize = 16_384;
/// Number of changes that are kept.
const CHANGES_MAX: usize = 1000;
/// Number of those changes that may be logins with the same token, so that a viewer who logs in under many names cannot
/// push out the changes of operators.
const LOGINS_MAX: usize = 100;
/// Prefix of a change that records a login; no other change starts with it.
pub(crate) const LOGGED_IN: &str = "logged in as";

/// A flag on an account, set or cleared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Flag {
    /// The account.
    pub(crate) account: String,
    /// When the flag was set.
    #[serde(with = "nanos")]
    pub(crate) flagged_at: Moment,
    /// Refusals within the window at that moment.
    pub(crate) rejected: u64,
    /// Time, operator and note of the clearing; `None` if the flag is set.
    pub(crate) cleared: Option<Cleared>,
}

/// How a flag was cleared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cleared {
    #[serde(with = "nanos")]
    pub(crate) at: Moment,
    pub(crate) by: String,
    pub(crate) note: String,
}

impl Flag {
    /// The flag as JSON, for the admin API and the webhook.
    pub(crate) fn shown(&self) -> Value {
        let cleared = self.cleared.as_ref();
        json!({
            "account": self.account,
            "flagged_at": rfc3339(self.flagged_at),
            "rejected": self.rejected,
            "cleared_at": cleared.map(|cleared| rfc3339(cleared.at)),
            "cleared_by": cleared.map(|cleared| &cleared.by),
            "note": cleared.map(|cleared| &cleared.note),
        })
    }
}

/// A change by an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    /// Time of the change.
    #[serde(with = "nanos")]
    pub(crate) at: Moment,
    /// Name that the operator gave.
    pub(crate) by: String,
    /// How the operator was authenticated, which unlike the name cannot be chosen.
    pub(crate) let_in: String,
    /// Description of the change.
    pub(crate) what: String,
}

/// Everything that the journal persists.
pub(super) struct WatchState {
    pub(super) core: core::Watch<RandomState>,
    /// Cleared flags, the latest first.
    pub(super) past: VecDeque<Flag>,
    /// Changes by operators, the latest first.
    pub(super) changes: VecDeque<Change>,
    pub(super) reports: Reports,
    /// Flags that follow from reports in the journal but are not in the journal themselves, because the process ended
    /// in between.
    pub(super) unwritten: BTreeMap<String, Flag>,
    /// Pending announcements, the oldest first.
    pub(crate) announcements: VecDeque<(u64, String)>,
    /// Number of the next announcement.
    pub(super) next_announcement: u64,
}

impl WatchState {
    pub(super) fn new(settings: core::WatchSettings) -> Self {
        Self {
            core: core::Watch::new(settings, RandomState::default()),
            past: VecDeque::new(),
            changes: VecDeque::new(),
            reports: Reports::default(),
            unwritten: BTreeMap::new(),
            announcements: VecDeque::new(),
            next_announcement: 0,
        }
    }

    /// Counts refusals and returns the flags that they set. `id` identifies a report, which is counted only once; it is
    /// empty for refusals of this process.
    pub(super) fn count(&mut self, at: Moment, id: &str, entries: &[Entry<'_>]) -> Vec<Flag> {
        if !id.is_empty() && !self.reports.insert(id) {
            return Vec::new();
        }
        let mut flagged = Vec::new();
        for Entry { class, key, count } in entries {
            let refusals = Refusals { class, key: key.as_bytes(), count: *count };
            if let Some(flag) = self.core.record(refusals, at) {
                flagged.push(active_flag(key.to_string(), &flag));
            }
        }
        flagged
    }

    /// Applies a record of the journal. Times in the future, from a clock that was wrong, are replaced by `now`.
    pub(super) fn replay(&mut self, record: Record<'_>, now: Moment) {
        match record {
            Record::Report { at, id, entries } => {
                let flagged = self.count(at.min(now), &id, &entries);
                self.unwritten.extend(flagged.into_iter().map(|flag| (flag.account.clone(), flag)));
            }
            Record::Flag(past) if past.cleared.is_some() => self.add_past(past),
            Record::Flag(Flag { account, flagged_at, rejected, .. }) => {
                self.unwritten.remove(&account);
                self.core.restore(account.as_bytes(), core::Flag { at: flagged_at.min(now), count: rejected });
            }
            Record::Clear { account, cleared } => {
                self.unwritten.remove(&account);
                if let Some(flag) = self.core.clear(account.as_bytes()) {
                    let cleared = Some(Cleared { at: cleared.at.min(now), ..cleared });
                    self.add_past(Flag { cleared, ..active_flag(account, &flag) });
                }
            }
            Record::RemoteClear(flag) => {
                self.core.forget(flag.account.as_bytes());
                self.add_past(flag);
            }
            Record::Reported { id } => {
                self.reports.insert(&id);
            }
            Record::Count { is_of_account, name, at, count } => {
                let kind = if is_of_account { CountKind::Accounts } else { CountKind::View };
                self.core.restore_count(SavedCount { kind, name: &unescape_key(&name), at: at.min(now), count });
            }
            Record::Change(change) => {
                if change.what.starts_with(LOGGED_IN) {
                    self.make_room_for_login(&change.let_in);
                }
                self.changes.push_front(change);
                self.changes.truncate(CHANGES_MAX);
            }
            Record::Announce { number, body } => {
                self.next_announcement = self.next_announcement.max(number.saturating_add(1));
                self.announcements.push_back((number, body));
            }
            Record::Announced { number } => self.announcements.retain(|(waiting, _)| *waiting != number),
        }
    }

    fn add_past(&mut self, flag: Flag) {
        self.past.push_front(flag);
        self.past.truncate(PAST_FLAGS_MAX);
    }

    /// Drops the oldest login with this kind of authentication if the bound is reached.
    fn make_room_for_login(&mut self, let_in: &str) {
        let logins = self.changes.iter().enumerate();
        let mut logins = logins.filter(|(_, one)| one.let_in == let_in && one.what.starts_with(LOGGED_IN));
        if let Some(oldest) = logins.nth(LOGINS_MAX - 1).map(|(index, _)| index) {
            self.changes.remove(oldest);
        }
    }

    /// Current flag of an account, or the last one that was cleared.
    pub(super) fn latest_flag_of(&self, account: &str) -> Option<Flag> {
        self.flag_of(account).or_else(|| self.past.iter().find(|past| past.account == account).cloned())
    }

    /// Flag of an account, if it is set.
    pub(super) fn flag_of(&self, account: &str) -> Option<Flag> {
        self.core.flag(account.as_bytes()).map(|flag| active_flag(account.to_owned(), flag))
    }

    /// Writes all state as records, in an order in which [`Self::replay`] accepts them.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for SavedCount { kind, name, at, count } in self.core.saved_counts() {
            let (is_of_account, name) = (kind == CountKind::Accounts, escape_key(name).into_owned());
            Record::Count { is_of_account, name, at, count }.write(out);
        }
        for flag in self.past.iter().rev().cloned().chain(self.flags()) {
            Record::Flag(flag).write(out);
        }
        for id in &self.reports.in_order {
            Record::Reported { id: id.to_string() }.write(out);
        }
        for change in self.changes.iter().rev().cloned() {
            Record::Change(change).write(out);
        }
        for (number, body) in self.announcements.iter().cloned() {
            Record::Announce { number, body }.write(out);
        }
    }

    pub(super) fn is_flagged(&self, account: &str) -> bool {
        self.core.flag(account.as_bytes()).is_some()
    }

    /// Flags that are set, the latest first.
    pub(super) fn flags(&self) -> Vec<Flag> {
        let mut flags: Vec<_> = self
            .core
            .flags()
            .map(|(account, flag)| active_flag(String::from_utf8_lossy(account).into_owned(), flag))
            .collect();
        flags.sort_by(|a, b| b.flagged_at.cmp(&a.flagged_at).then_with(|| a.account.cmp(&b.account)));
        flags
    }
}

/// Converts a flag of the core.
fn active_flag(account: String, flag: &core::Flag) -> Flag {
    Flag { account, flagged_at: flag.at, rejected: flag.count, cleared: None }
}

/// IDs of the latest reports, to detect duplicates.
#[derive(Default)]
pub(super) struct Reports {
    /// The oldest first.
    in_order: VecDeque<Arc<str>>,
    pub(super) by_id: HashSet<Arc<str>>,
}

impl Reports {
    /// Remembers a report; false if it is a duplicate.
    fn insert(&mut self, id: &str) -> bool {
        let id: Arc<str> = id.into();
        if !self.by_id.insert(id.clone()) {
            return false;
        }
        self.in_order.push_back(id);
        if self.in_order.len() > REPORTS_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
        true
    }
}
