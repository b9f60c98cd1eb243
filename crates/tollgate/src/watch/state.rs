//! What the watch knows: the core's tallies, and beside them what people did: flags of the past, reports that came, changes.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use tollgate_core::time::Moment;
use tollgate_core::watch::{self as core, Episode, Omissions, Refusals, Remembered};

use super::record::{Entry, Record};

/// How many flags of the past are kept.
const PAST_MAX: usize = 10_000;
/// How many reports are remembered, so that one that comes again is not counted again.
const REPORTS_MAX: usize = 16_384;
/// How many changes are kept.
const CHANGES_MAX: usize = 1000;

/// The mark on an account, now or in the past.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flag {
    /// The account.
    pub(crate) account: String,
    /// When it was set.
    pub(crate) flagged_at: Moment,
    /// Refusals within the window at that moment.
    pub(crate) rejected: u64,
    /// When, by whom and why it was cleared, if it was.
    pub(crate) cleared: Option<Cleared>,
}

/// The end of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cleared {
    pub(crate) at: Moment,
    pub(crate) by: String,
    pub(crate) note: String,
}

/// Something that an operator changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// When.
    pub(crate) at: Moment,
    /// Who.
    pub(crate) by: String,
    /// What.
    pub(crate) what: String,
}

/// Everything that survives.
pub(super) struct State {
    account_class: Box<str>,
    core: core::Watch,
    /// The latest first.
    past: VecDeque<Flag>,
    changes: VecDeque<Change>,
    reports: Reports,
}

impl State {
    pub(super) fn new(settings: core::Settings) -> Self {
        Self {
            account_class: settings.account_class.clone(),
            core: core::Watch::new(settings),
            past: VecDeque::new(),
            changes: VecDeque::new(),
            reports: Reports::default(),
        }
    }

    pub(super) fn account_class(&self) -> &str {
        &self.account_class
    }

    pub(super) fn has_report(&self, id: &str) -> bool {
        self.reports.by_id.contains(id)
    }

    /// Counts a report, and says whom it has flagged.
    pub(super) fn count(&mut self, report: Record) -> Vec<(String, Flag)> {
        let Record::Report { at, id, entries } = report else { return Vec::new() };
        if !id.is_empty() && !self.reports.insert(id) {
            return Vec::new();
        }
        let mut flagged = Vec::new();
        for Entry { class, key, count } in entries {
            let refusals = Refusals { class: &class, key: key.as_bytes(), count };
            if let Some(flag) = self.core.record(refusals, at) {
                let flag = Flag { account: key.clone(), flagged_at: flag.at, rejected: flag.count, cleared: None };
                flagged.push((key, flag));
            }
        }
        flagged
    }

    /// Takes in what was written down. What is from the future, by a clock that was wrong, is from now.
    pub(super) fn replay(&mut self, record: Record, now: Moment) {
        match record {
            Record::Report { at, id, entries } => {
                self.count(Record::Report { at: at.min(now), id, entries });
            }
            Record::Flag { account, at, count } => {
                self.core.restore(account.as_bytes(), core::Flag { at: at.min(now), count });
            }
            Record::Clear { account, at, by, note } => {
                if let Some(flag) = self.core.clear(account.as_bytes()) {
                    let (flagged_at, rejected) = (flag.at, flag.count);
                    let cleared = Some(Cleared { at: at.min(now), by, note });
                    self.past.push_front(Flag { account, flagged_at, rejected, cleared });
                    self.past.truncate(PAST_MAX);
                }
            }
            Record::Past { account, at, count, cleared_at, by, note } => {
                let cleared = Some(Cleared { at: cleared_at, by, note });
                self.past.push_front(Flag { account, flagged_at: at, rejected: count, cleared });
                self.past.truncate(PAST_MAX);
            }
            Record::Reported { id } => {
                self.reports.insert(id);
            }
            Record::Count { tallied, name, at, count } => {
                self.core.remember(Remembered { tallied, name: &name, at: at.min(now), count });
            }
            Record::Change { at, by, what } => {
                self.changes.push_front(Change { at, by, what });
                self.changes.truncate(CHANGES_MAX);
            }
        }
    }

    /// Writes everything down, in an order in which it can be taken in.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for Remembered { tallied, name, at, count } in self.core.remembered() {
            Record::Count { tallied, name: name.to_vec(), at, count }.write(out);
        }
        for flag in self.past.iter().rev() {
            let Some(Cleared { at: cleared_at, by, note }) = flag.cleared.clone() else { continue };
            let (account, at, count) = (flag.account.clone(), flag.flagged_at, flag.rejected);
            Record::Past { account, at, count, cleared_at, by, note }.write(out);
        }
        for flag in self.flags() {
            Record::Flag { account: flag.account, at: flag.flagged_at, count: flag.rejected }.write(out);
        }
        for id in &self.reports.in_order {
            Record::Reported { id: id.to_string() }.write(out);
        }
        for Change { at, by, what } in self.changes.iter().rev().cloned() {
            Record::Change { at, by, what }.write(out);
        }
    }

    pub(super) fn episodes(&mut self, now: Moment) -> Vec<Episode> {
        self.core.episodes(now)
    }

    pub(super) fn is_flagged(&self, account: &str) -> bool {
        self.core.is_flagged(account.as_bytes())
    }

    pub(super) fn flagged(&self) -> usize {
        self.core.flags().len()
    }

    /// The flags that are set, the latest first.
    pub(super) fn flags(&self) -> Vec<Flag> {
        let flag = |(account, flag): (&[u8], &core::Flag)| Flag {
            account: super::legible(account),
            flagged_at: flag.at,
            rejected: flag.count,
            cleared: None,
        };
        let mut flags: Vec<_> = self.core.flags().map(flag).collect();
        flags.sort_by(|a, b| b.flagged_at.cmp(&a.flagged_at).then_with(|| a.account.cmp(&b.account)));
        flags
    }

    pub(super) fn past(&self) -> impl Iterator<Item = &Flag> {
        self.past.iter()
    }

    pub(super) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    pub(super) fn omissions(&self) -> Omissions {
        self.core.omissions()
    }
}

/// The reports that were counted, the latest of them.
#[derive(Default)]
struct Reports {
    in_order: VecDeque<Arc<str>>,
    by_id: HashSet<Arc<str>>,
}

impl Reports {
    /// Remembers a report; false when it was known.
    fn insert(&mut self, id: String) -> bool {
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
