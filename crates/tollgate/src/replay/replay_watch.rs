//! The watch of a replay, which flags accounts that are refused too often. Refusals are reported to it as a gate
//! reports them: counted by key, once a second.

use std::collections::{HashMap, HashSet};
use std::hash::RandomState;

use foldhash::fast::FixedState;
use serde::Serialize;
use tollgate_core::time::{Moment, Span};
use tollgate_core::watch::{Refusals, Watch, WatchSettings};

use super::counts::millis;
use super::key_name::KeyName;
use super::terminal_text::shown;

/// The maximum time between reports.
const REPORT_EVERY: Span = Span::from_secs(1);
/// The maximum number of keys in one report.
const REPORT_KEYS_MAX: usize = 1024;
/// The maximum number of flags kept for the summary.
const FLAGS_MAX: usize = 1000;
/// An episode ends after at least this time without a refusal. The watch of a gate keeps episodes for the same time.
const CALM_MIN: Span = Span::from_secs(3600);

/// The watch, and the refusals that have not been reported to it.
pub(super) struct ReplayWatch {
    watch: Watch<RandomState>,
    /// The time without a refusal after which an episode is over.
    pub(crate) calm: Span,
    /// The classes of the rules, by index.
    classes: Vec<String>,
    /// The refusals of the current report. By the index of the rule and the hash of the key: its name, and their
    /// number.
    report: HashMap<(usize, u64), (KeyName, u64), FixedState>,
    /// The start of the current report.
    reported_at: Moment,
    /// The flags that were set: the time since the start, the account, and the number of refusals until then.
    flags: Vec<(Moment, Vec<u8>, u64)>,
    /// The hashes of flagged accounts.
    flagged: HashSet<u64, FixedState>,
}

/// A flag that was set.
#[derive(Debug, Serialize)]
pub(super) struct SetFlag {
    /// The account, as shown.
    pub(super) account: String,
    /// The time, on the clock of the recording.
    pub(super) at_ms: u64,
    /// The number of refusals until then.
    pub(super) refused: u64,
}

impl ReplayWatch {
    /// Creates a watch for rules of these classes.
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

    /// Whether the account whose key has this hash is flagged.
    pub(super) fn is_flagged(&mut self, hash: u64, now: Moment) -> bool {
        if !self.report.is_empty() && now.since(self.reported_at) >= REPORT_EVERY {
            self.send();
        }
        self.flagged.contains(&hash)
    }

    /// Records a refusal by the rule with this index, of the key with this hash. `name` is called if the key is not in
    /// the report yet.
    pub(super) fn refused(&mut self, (rule, hash): (usize, u64), now: Moment, name: impl FnOnce() -> KeyName) {
        if now.since(self.reported_at) >= REPORT_EVERY || self.report.len() >= REPORT_KEYS_MAX {
            self.send();
            self.reported_at = now;
        }
        self.report.entry((rule, hash)).or_insert_with(|| (name(), 0)).1 += 1;
    }

    /// Reports the collected refusals to the watch.
    fn send(&mut self) {
        for ((rule, hash), (name, count)) in self.report.drain() {
            let key = name.to_text();
            let refusals = Refusals { class: &self.classes[rule], key: &key, count };
            if let Some(flag) = self.watch.record(refusals, self.reported_at) {
                self.flagged.insert(hash);
                self.flags.push((flag.at, key, flag.count));
            }
        }
    }

    /// All flags that were set, by time, in a recording that starts at `origin`.
    pub(super) fn into_flags(mut self, origin: Moment) -> Vec<SetFlag> {
        self.send();
        self.flags.sort_unstable();
        let at_ms = |at: Moment| millis(origin.since(Moment::ZERO) + at.since(Moment::ZERO));
        let flags = self.flags.into_iter();
        flags.map(|(at, account, refused)| SetFlag { account: shown(&account), at_ms: at_ms(at), refused }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_that_is_refused_often_enough_is_flagged_once() {
        let settings =
            WatchSettings { flag_threshold: 50, account_class: "user-agent".into(), ..WatchSettings::default() };
        let mut watched = ReplayWatch::new(settings, vec!["user-agent".into(), "ip/32".into()]);
        for second in 0..200 {
            let now = Moment::from_millis(second * 1000);
            watched.refused((0, 7), now, || KeyName::of_text(b"bot"));
            watched.refused((1, 7), now, || KeyName::of_text(b"203.0.113.7"));
        }
        let flags = watched.into_flags(Moment::ZERO);
        assert_eq!(flags.len(), 1);
        assert_eq!((&flags[0].account[..], flags[0].refused), ("bot", 50));
        assert_eq!(flags[0].at_ms, 49_000);
    }
}
