//! Hands refusals to the watch, as a gate would: counted by key, once a second.

use std::collections::{HashMap, HashSet};
use std::hash::RandomState;

use foldhash::fast::FixedState;
use tollgate_core::time::{Moment, Span};
use tollgate_core::watch::{Refusals, Watch, WatchSettings};

use super::name::Name;

/// Reports are sent at least this often.
const REPORT_EVERY: Span = Span::from_secs(1);
/// So many keys are in one report.
const REPORT_KEYS_MAX: usize = 1024;
/// So many flags are kept for the summary.
const FLAGS_MAX: usize = 1000;
/// After so long without a refusal, the next begins a new episode: the watch keeps episodes for that long.
const CALM_MIN: Span = Span::from_secs(3600);

/// The watch, and what has not been reported to it yet.
pub(super) struct Watched {
    watch: Watch<RandomState>,
    calm: Span,
    /// The classes of the rules, by their places.
    classes: Vec<String>,
    report: HashMap<(usize, u64), (Name, u64), FixedState>,
    reported_at: Moment,
    flags: Vec<SetFlag>,
    /// The hashes of accounts that are flagged.
    flagged: HashSet<u64, FixedState>,
}

/// A flag that was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetFlag {
    /// On which account.
    pub(super) account: Vec<u8>,
    /// When, since the beginning.
    pub(super) at: Moment,
    /// How many refusals it had by then.
    pub(super) refused: u64,
}

impl Watched {
    /// A watch over rules of these classes.
    pub(super) fn new(settings: WatchSettings, classes: Vec<String>) -> Self {
        let calm = settings.flag_window.max(CALM_MIN);
        Self {
            watch: Watch::new(WatchSettings { flags_max: FLAGS_MAX, ..settings }, RandomState::new()),
            calm,
            classes,
            report: HashMap::default(),
            reported_at: Moment::ZERO,
            flags: Vec::new(),
            flagged: HashSet::default(),
        }
    }

    /// Whether the account whose key has this hash is flagged by now.
    pub(super) fn is_flagged(&mut self, hash: u64, now: Moment) -> bool {
        if !self.report.is_empty() && now.since(self.reported_at) >= REPORT_EVERY {
            self.send();
        }
        self.flagged.contains(&hash)
    }

    /// How long a key must not be refused for an episode to be over.
    pub(super) const fn calm(&self) -> Span {
        self.calm
    }

    /// A request was refused by the rule at a place, its key having this hash; `name` is asked for if it is not in the report yet.
    pub(super) fn refused(&mut self, (rule, hash): (usize, u64), now: Moment, name: impl FnOnce() -> Name) {
        if now.since(self.reported_at) >= REPORT_EVERY || self.report.len() >= REPORT_KEYS_MAX {
            self.send();
            self.reported_at = now;
        }
        self.report.entry((rule, hash)).or_insert_with(|| (name(), 0)).1 += 1;
    }

    fn send(&mut self) {
        for ((rule, hash), (name, count)) in self.report.drain() {
            let key = name.to_text();
            let refusals = Refusals { class: &self.classes[rule], key: &key, count };
            if let Some(flag) = self.watch.record(refusals, self.reported_at) {
                self.flagged.insert(hash);
                self.flags.push(SetFlag { account: key, at: flag.at, refused: flag.count });
            }
        }
    }

    /// Every flag that was set, in the order of their times.
    pub(super) fn into_flags(mut self) -> Vec<SetFlag> {
        self.send();
        self.flags.sort_by(|a, b| (a.at, &a.account).cmp(&(b.at, &b.account)));
        self.flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_that_is_refused_often_enough_is_flagged_once() {
        let settings =
            WatchSettings { flag_threshold: 50, account_class: "user-agent".into(), ..WatchSettings::default() };
        let mut watched = Watched::new(settings, vec!["user-agent".into(), "ip/32".into()]);
        for second in 0..200 {
            let now = Moment::from_millis(second * 1000);
            watched.refused((0, 7), now, || Name::of_text(b"bot"));
            watched.refused((1, 7), now, || Name::of_text(b"203.0.113.7"));
        }
        let flags = watched.into_flags();
        assert_eq!(flags.len(), 1);
        assert_eq!((&flags[0].account[..], flags[0].refused), (&b"bot"[..], 50));
        assert_eq!(flags[0].at, Moment::from_millis(49_000));
    }
}
