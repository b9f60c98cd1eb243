//! The watch: turns refusals into episodes for operators, and into flags on accounts.
//!
//! An episode shows how often one key was refused lately. An account is a key of one chosen class, such as the user. An
//! account that is refused too often within a window gets a flag: it is set once, announced, and cleared by a person.
//! A flag bans nobody by itself; rules can have it as a condition. There are two separate bounded counters: the view of
//! currently throttled keys of all classes, and the counts of accounts on which flags are based. Made-up addresses
//! therefore cannot evict the evidence against an account, and cannot flag an account falsely, because only the
//! account's own refusals are compared with the threshold.
//!
//! Clearing a flag resets the count; otherwise the next refusal would set the flag again.

mod indexed_heap;
mod sliding_count;
mod top_k;

use crate::time::{Moment, Span};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use top_k::TopK;

/// The minimum time for which an episode is shown after its last refusal.
const RETENTION_MIN: Span = Span::from_secs(3600);
/// The maximum length of a class in bytes, so that one byte holds it. Refusals with a longer class are only counted as
/// ignored.
const CLASS_BYTES_MAX: usize = 255;
/// The maximum length of a key in bytes. A key has up to 255 bytes, each of which takes up to four when it is escaped.
const KEY_BYTES_MAX: usize = 4 * 255;

/// A threshold that no account reaches: refusals are shown and nobody is flagged.
pub const NEVER: u64 = u64::MAX;

/// When to flag, and how much to keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchSettings {
    /// The number of refusals within the window that flags an account; [`NEVER`] for no flags.
    pub flag_threshold: u64,
    /// The window in which refusals are counted.
    pub flag_window: Span,
    /// The class whose keys are accounts.
    pub account_class: Box<str>,
    /// The maximum number of accounts that are counted.
    pub accounts_max: usize,
    /// The maximum number of episodes in the view.
    pub episodes_max: usize,
    /// The maximum number of flags.
    pub flags_max: usize,
}

impl Default for WatchSettings {
    fn default() -> Self {
        Self {
            flag_threshold: 1000,
            flag_window: Span::from_secs(600),
            account_class: "user".into(),
            accounts_max: 10_000,
            episodes_max: 1000,
            flags_max: 100_000,
        }
    }
}

/// Refusals of one key, as reported by a gate or another gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusals<'a> {
    /// The caller's class.
    pub class: &'a str,
    /// The caller's key.
    pub key: &'a [u8],
    /// The number of refused requests.
    pub count: u64,
}

/// A recent span of refusals of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Episode {
    /// The caller's class.
    pub class: Box<str>,
    /// The caller's key.
    pub key: Box<[u8]>,
    /// Refusals within the retention time.
    pub count: u64,
    /// The time of the first of them.
    pub first: Moment,
    /// The time of the last of them.
    pub last: Moment,
}

/// A flag on an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// When it was set.
    pub at: Moment,
    /// Refusals within the window at that moment.
    pub count: u64,
}

/// The counter that a count belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountKind {
    /// The view of throttled keys.
    View,
    /// The counts on which flags are based.
    Accounts,
}

/// One count in a form that can be saved and restored across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedCount<'a> {
    /// The counter that it belongs to.
    pub kind: CountKind,
    /// In the view, the length of the class in one byte, the class and the key; otherwise the account.
    pub name: &'a [u8],
    /// The time of the refusals.
    pub at: Moment,
    /// The number of refusals; 0 if this only marks the time of the newest refusal.
    pub count: u64,
}

/// The data that the watch had to drop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Omissions {
    /// Reported refusals without a valid name or count.
    pub ignored: u64,
    /// Flags that were not set because of the limit.
    pub flags_dropped: u64,
    /// Accounts whose count was evicted by accounts with more refusals.
    pub accounts_evicted: u64,
    /// Episodes that were evicted by keys with more refusals.
    pub episodes_evicted: u64,
}

/// Episodes and flags.
#[derive(Clone, Debug)]
pub struct Watch<S> {
    settings: WatchSettings,
    /// The latest time that any call has passed. Earlier times count as this, so that a clock may go back.
    latest: Moment,
    /// The counts of keys of all classes. A name is the length of the class in one byte, the class and the key.
    view: TopK<S>,
    /// The counts of accounts, by key.
    accounts: TopK<S>,
    /// The flags, by account.
    flags: BTreeMap<Box<[u8]>, Flag>,
    /// Omissions other than evictions, which the counters count.
    omitted: Omissions,
    /// Buffer for a name in the view.
    name: Vec<u8>,
}

impl<S: BuildHasher + Clone> Watch<S> {
    /// An empty watch. Clients choose names, so the hasher must be unpredictable.
    pub fn new(settings: WatchSettings, hasher: S) -> Self {
        let retention = settings.flag_window.max(RETENTION_MIN);
        Self {
            view: TopK::new(settings.episodes_max, retention, hasher.clone()),
            accounts: TopK::new(settings.accounts_max, settings.flag_window, hasher),
            settings,
            latest: Moment::ZERO,
            flags: BTreeMap::new(),
            omitted: Omissions::default(),
            name: Vec::new(),
        }
    }

    /// Changes the flag settings. Counts stay, unless the account class changes; flags stay. An account that
    /// is already above a lower threshold is flagged at its next refusal.
    pub fn set_flagging(&mut self, threshold: u64, window: Span, account_class: &str) {
        self.settings.flag_threshold = threshold;
        let has_new_class = *account_class != *self.settings.account_class;
        if !has_new_class && window == self.settings.flag_window {
            return;
        }
        let kept = |known: &SavedCount<'_>| known.kind == CountKind::View || !has_new_class;
        let known: Vec<_> = self
            .saved_counts()
            .filter(kept)
            .map(|known| (known.kind, known.name.to_vec(), known.at, known.count))
            .collect();
        self.settings.flag_window = window;
        self.settings.account_class = account_class.into();
        self.view = self.view.with_window(window.max(RETENTION_MIN));
        self.accounts = self.accounts.with_window(window);
        for (kind, name, at, count) in &known {
            self.restore_count(SavedCount { kind: *kind, name, at: *at, count: *count });
        }
    }

    /// The settings in force.
    pub const fn settings(&self) -> &WatchSettings {
        &self.settings
    }

    /// Records refusals. Returns the flag if they set one.
    pub fn record(&mut self, refusals: Refusals<'_>, now: Moment) -> Option<Flag> {
        let Refusals { class, key, count } = refusals;
        let nameable = (1..=CLASS_BYTES_MAX).contains(&class.len()) && (1..=KEY_BYTES_MAX).contains(&key.len());
        if count == 0 || !nameable {
            self.omitted.ignored = self.omitted.ignored.saturating_add(1);
            return None;
        }
        self.latest = self.latest.max(now);
        self.name.clear();
        self.name.push(class.len() as u8);
        self.name.extend_from_slice(class.as_bytes());
        self.name.extend_from_slice(key);
        self.view.add(&self.name, count, self.latest);
        if class == &*self.settings.account_class { self.count_account(key, count) } else { None }
    }

    /// The episodes of all keys that were refused within the retention time, the most refused key first.
    pub fn episodes(&mut self, now: Moment) -> Vec<Episode> {
        self.latest = self.latest.max(now);
        self.view.expire(self.latest);
        let mut episodes: Vec<_> = self.view.iter().map(episode).collect();
        episodes.sort_by(|a, b| (b.count, b.last, &a.key).cmp(&(a.count, a.last, &b.key)));
        episodes
    }

    /// The flags, by account.
    pub fn flags(&self) -> impl ExactSizeIterator<Item = (&[u8], &Flag)> {
        self.flags.iter().map(|(account, flag)| (&**account, flag))
    }

    /// The flag of `account`, if it has one.
    pub fn flag(&self, account: &[u8]) -> Option<&Flag> {
        self.flags.get(account)
    }

    /// Sets a flag, also one from a previous run or from another process. Returns whether there was room.
    pub fn restore(&mut self, account: &[u8], flag: Flag) -> bool {
        let fits = self.flags.len() < self.settings.flags_max || self.flags.contains_key(account);
        if fits {
            self.flags.insert(account.into(), flag);
        } else {
            self.omitted.flags_dropped = self.omitted.flags_dropped.saturating_add(1);
        }
        fits
    }

    /// Resets the count of `account`, because an operator has reviewed it.
    pub fn forget(&mut self, account: &[u8]) {
        self.accounts.forget(account);
    }

    /// All counts, oldest first for each name, to save them or to move them to other settings.
    pub fn saved_counts(&self) -> impl Iterator<Item = SavedCount<'_>> {
        let of = |kind| move |(name, at, count)| SavedCount { kind, name, at, count };
        self.view.points().map(of(CountKind::View)).chain(self.accounts.points().map(of(CountKind::Accounts)))
    }

    /// Restores a count from a previous run. This sets no flag, because flags are restored separately.
    pub fn restore_count(&mut self, saved: SavedCount<'_>) {
        let SavedCount { kind, name, at, count } = saved;
        match kind {
            // The first byte of a name in the view is the length of its class.
            CountKind::View if name.first().is_some_and(|&class| usize::from(class) < name.len()) => {
                self.view.add(name, count, at);
            }
            CountKind::Accounts if !name.is_empty() => {
                self.accounts.add(name, count, at);
            }
            CountKind::View | CountKind::Accounts => self.omitted.ignored = self.omitted.ignored.saturating_add(1),
        }
    }

    /// The number of refusals of `account` within the window at `now`.
    pub fn counted(&mut self, account: &[u8], now: Moment) -> u64 {
        self.latest = self.latest.max(now);
        self.accounts.counted(account, self.latest)
    }

    /// Removes the flag. Only later refusals can set it again.
    pub fn clear(&mut self, account: &[u8]) -> Option<Flag> {
        let flag = self.flags.remove(account)?;
        self.accounts.forget(account);
        Some(flag)
    }

    /// The data dropped so far.
    pub fn omissions(&self) -> Omissions {
        Omissions { accounts_evicted: self.accounts.evicted, episodes_evicted: self.view.evicted, ..self.omitted }
    }

    /// Adds refusals to an account. Returns the flag if they set one.
    fn count_account(&mut self, account: &[u8], count: u64) -> Option<Flag> {
        let count = self.accounts.add(account, count, self.latest);
        let threshold = self.settings.flag_threshold;
        if threshold == NEVER || count < threshold || self.flags.contains_key(account) {
            return None;
        }
        let flag = Flag { at: self.latest, count };
        self.restore(account, flag.clone()).then_some(flag)
    }
}

/// The episode of a name in the view.
fn episode((name, count, first, last): (&[u8], u64, Moment, Moment)) -> Episode {
    let (class, key) = name[1..].split_at(usize::from(name[0]));
    let class = alloc::string::String::from_utf8_lossy(class);
    Episode { class: (&*class).into(), key: key.into(), count, first, last }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use proptest::prelude::*;
    use std::hash::RandomState;

    extern crate std;

    const MINUTE: Span = Span::from_secs(60);

    fn watch() -> Watch<RandomState> {
        Watch::new(WatchSettings::default(), RandomState::new())
    }

    fn refused<'a>(class: &'a str, key: &'a str, count: u64) -> Refusals<'a> {
        Refusals { class, key: key.as_bytes(), count }
    }

    fn minute(minutes: u64) -> Moment {
        Moment::ZERO + MINUTE.times(minutes)
    }

    #[test]
    fn the_threshold_is_inclusive_and_a_flag_is_set_once() {
        let mut watch = watch();
        assert_eq!(watch.record(refused("user", "u1", 999), minute(1)), None);
        let flag = watch.record(refused("user", "u1", 1), minute(2));
        assert_eq!(flag, Some(Flag { at: minute(2), count: 1000 }));
        assert_eq!(watch.record(refused("user", "u1", 5000), minute(3)), None);
        assert_eq!(watch.flags().count(), 1);
    }

    #[test]
    fn the_window_is_inclusive() {
        let mut watch = watch();
        watch.record(refused("user", "in time", 999), minute(1));
        assert!(watch.record(refused("user", "in time", 1), minute(11)).is_some());
        watch.record(refused("user", "too late", 999), minute(20));
        assert!(watch.record(refused("user", "too late", 1), minute(30) + Span::from_nanos(1)).is_none());
    }

    #[test]
    fn a_settings_change_keeps_the_counts_of_the_same_account_class() {
        let mut watch = watch();
        watch.record(refused("user", "u1", 400), minute(1));
        watch.record(refused("user", "flagged", 1000), minute(1));
        watch.set_flagging(500, MINUTE.times(30), "user");
        assert_eq!((watch.counted(b"u1", minute(2)), watch.flags().count()), (400, 1));
        let flag = watch.record(refused("user", "u1", 100), minute(20));
        assert_eq!(flag, Some(Flag { at: minute(20), count: 500 }), "by the new threshold and within the new window");
        watch.set_flagging(500, MINUTE.times(5), "user");
        assert_eq!(watch.counted(b"u1", minute(21)), 100, "what is older than the new window does not count");
        assert_eq!(watch.episodes(minute(21)).len(), 2);
    }

    #[test]
    fn a_new_account_class_starts_with_empty_counts() {
        let mut watch = watch();
        watch.record(refused("user", "u1", 999), minute(1));
        watch.set_flagging(1000, MINUTE.times(10), "header:x-api-key");
        assert_eq!(watch.record(refused("user", "u1", 5000), minute(1)), None, "no account any more");
        assert_eq!(watch.counted(b"u1", minute(1)), 0);
        assert!(watch.record(refused("header:x-api-key", "u1", 1000), minute(1)).is_some());
        assert_eq!(watch.episodes(minute(1)).len(), 2, "keys of other classes are shown too");
    }

    #[test]
    fn only_accounts_are_flagged() {
        let mut watch = watch();
        assert_eq!(watch.record(refused("ip/32", "203.0.113.7", 1_000_000), minute(1)), None);
        assert_eq!(watch.flags().count(), 0);
        assert_eq!(watch.episodes(minute(1)).len(), 1);
    }

    /// 250 made-up keys per report were enough to hide forever in a view that evicted the least recently seen
    /// key.
    #[test]
    fn spraying_a_hundred_thousand_keys_prevents_no_flag_and_hides_no_offender() {
        let mut watch = watch();
        let mut flagged_in_report = None;
        for report in 0..4u64 {
            let now = minute(report);
            for sprayed in 0..100_000 {
                watch.record(refused("user", &format!("sprayed-{report}-{sprayed}"), 1), now);
            }
            if watch.record(refused("user", "offender", 250), now).is_some() {
                flagged_in_report = Some(report);
            }
        }
        assert_eq!(flagged_in_report, Some(3), "as soon as without the spraying");
        let worst = &watch.episodes(minute(5))[0];
        assert_eq!((&*worst.key, worst.count), (&b"offender"[..], 1000));
        assert_eq!(watch.flags().count(), 1);
        assert!(watch.omissions().accounts_evicted > 300_000);
    }

    #[test]
    fn a_cleared_flag_returns_only_for_refusals_after_the_clearing() {
        let mut watch = watch();
        watch.record(refused("user", "u1", 5000), minute(1));
        assert_eq!(watch.clear(b"u1").map(|flag| flag.count), Some(5000));
        assert_eq!(watch.clear(b"u1"), None);
        assert_eq!(watch.record(refused("user", "u1", 999), minute(2)), None);
        assert!(watch.record(refused("user", "u1", 1), minute(3)).is_some());
    }

    #[test]
    fn a_restored_flag_is_not_announced_again() {
        let mut watch = watch();
        watch.restore(b"u1", Flag { at: minute(0), count: 1234 });
        assert_eq!(watch.record(refused("user", "u1", 5000), minute(1)), None);
    }

    #[test]
    fn saved_counts_continue_after_a_restart() {
        let mut first = watch();
        first.record(refused("user", "u1", 600), minute(1));
        first.record(refused("user", "u1", 399), minute(5));
        first.record(refused("ip/32", "203.0.113.7", 7), minute(5));
        first.record(refused("user", "cleared", 5000), minute(5));
        first.clear(b"cleared");
        let mut second = watch();
        for saved in first.saved_counts() {
            second.restore_count(saved);
        }
        assert_eq!(second.episodes(minute(6)), first.episodes(minute(6)));
        assert_eq!((second.counted(b"u1", minute(6)), second.counted(b"cleared", minute(6))), (999, 0));
        assert!(second.record(refused("user", "u1", 1), minute(11)).is_some());
        assert!(second.record(refused("user", "cleared", 999), minute(11)).is_none());
        second.restore_count(SavedCount { kind: CountKind::View, name: &[9, 1], at: minute(11), count: 1 });
        assert_eq!(second.omissions().ignored, 1);
    }

    #[test]
    fn the_view_expires_without_new_reports() {
        let mut watch = watch();
        watch.record(refused("ip/24", "203.0.113.0/24", 7), minute(1));
        assert_eq!(watch.episodes(minute(61)).len(), 1, "an hour old is still in");
        assert_eq!(watch.episodes(minute(61) + Span::from_nanos(1)), []);
    }

    #[test]
    fn an_episode_has_the_key_the_count_and_both_times() {
        let mut watch = watch();
        watch.record(refused("ip/32", "a", 3), minute(1));
        watch.record(refused("ip/32", "b", 1), minute(1));
        watch.record(refused("ip/32", "a", 4), minute(9));
        let episodes = watch.episodes(minute(10));
        let expect =
            Episode { class: "ip/32".into(), key: b"a".as_slice().into(), count: 7, first: minute(1), last: minute(9) };
        assert_eq!(episodes[0], expect);
        assert_eq!(episodes.len(), 2);
    }

    #[test]
    fn invalid_reports_are_ignored_and_counted() {
        let mut watch = watch();
        let (long, class) = ("k".repeat(KEY_BYTES_MAX + 1), "c".repeat(CLASS_BYTES_MAX + 1));
        for refusals in [
            refused("", "k", 1),
            refused("user", "", 1),
            refused("user", "k", 0),
            refused("user", &long, 1),
            refused(&class, "k", 1),
        ] {
            assert_eq!(watch.record(refusals, minute(1)), None);
        }
        assert_eq!(watch.omissions().ignored, 5);
        assert_eq!(watch.episodes(minute(1)), []);
        let longest = (&class[1..], &long[1..]);
        assert_eq!(watch.record(refused(longest.0, longest.1, 1), minute(1)), None);
        let shown = watch.episodes(minute(1)).remove(0);
        assert_eq!((&*shown.class, &*shown.key), (longest.0, longest.1.as_bytes()));
        assert!(watch.record(refused("user", "k", u64::MAX), minute(1)).is_some());
        assert_eq!(watch.record(refused("user", "k", u64::MAX), minute(2)), None);
    }

    #[test]
    fn flags_are_bounded_and_dropped_flags_are_counted() {
        let mut watch = Watch::new(WatchSettings { flags_max: 1, ..WatchSettings::default() }, RandomState::new());
        assert!(watch.record(refused("user", "a", 1000), minute(1)).is_some());
        assert!(watch.record(refused("user", "b", 1000), minute(1)).is_none());
        assert_eq!(watch.omissions().flags_dropped, 1);
        let flag = Flag { at: minute(1), count: 7 };
        assert!(watch.restore(b"a", flag.clone()) && !watch.restore(b"b", flag));
        assert_eq!((watch.flag(b"a").unwrap().count, watch.flag(b"b"), watch.omissions().flags_dropped), (7, None, 2));
    }

    #[test]
    fn a_forgotten_account_starts_from_zero() {
        let mut watch = watch();
        watch.record(refused("user", "u1", 999), minute(1));
        watch.forget(b"u1");
        assert_eq!(watch.record(refused("user", "u1", 999), minute(1)), None);
        assert!(watch.record(refused("user", "u1", 1), minute(1)).is_some());
    }

    /// An eviction that scanned every series took 1.5 seconds for 8,000 keys, and four times as long for
    /// twice as many.
    #[test]
    fn a_report_costs_linear_time() {
        let nanos_per_key = |keys: u64| {
            let mut watch = watch();
            let begin = std::time::Instant::now();
            for key in 0..keys {
                watch.record(refused("user", &format!("{key}"), 1 + key % 7), minute(1));
            }
            begin.elapsed().as_nanos() as u64 / keys
        };
        // Other processes only add time, so one good pair of several is enough.
        let linear = |_| {
            let small = (0..5).map(|_| nanos_per_key(8_000)).min().unwrap();
            nanos_per_key(96_000) < 5 * small
        };
        assert!((0..8).any(linear), "twelve times the keys take sixty times as long");
    }

    /// Expired counts are removed now and then, not at every report. Otherwise many small reports would cost
    /// their number times the size of the table.
    #[test]
    fn a_small_report_does_not_scan_the_table() {
        for known in [500, 8_000] {
            let settings = WatchSettings { accounts_max: 10_000, episodes_max: 10_000, ..WatchSettings::default() };
            let mut watch = Watch::new(settings, RandomState::new());
            for key in 0..known {
                watch.record(refused("user", &format!("{key}"), 1), minute(1));
            }
            let begin = watch.view.examined + watch.accounts.examined;
            for report in 0..1_000 {
                let now = minute(1) + Span::from_millis(10 * report);
                watch.record(refused("user", &format!("{}", report % known), 1), now);
            }
            let examined = watch.view.examined + watch.accounts.examined - begin;
            assert!(examined <= 2 * known, "{examined} of {known} were looked at within ten seconds");
            assert_eq!(watch.episodes(minute(2)).len() as u64, known);
        }
    }

    proptest! {
        #[test]
        fn no_account_is_flagged_for_the_refusals_of_others(
            reports in prop::collection::vec((0u8..20, 1u64..40, 0u64..90), 1..300),
            accounts_max in 1usize..10,
        ) {
            let settings = WatchSettings { flag_threshold: 100, accounts_max, ..WatchSettings::default() };
            let (mut watch, mut now, mut all) = (Watch::new(settings, RandomState::new()), Moment::ZERO, Vec::new());
            for (account, count, elapsed_s) in reports {
                now = now + Span::from_secs(elapsed_s);
                all.push((account, now, count));
                if watch.record(Refusals { class: "user", key: &[account], count }, now).is_some() {
                    let own = all.iter().filter(|(who, at, _)| *who == account && now.since(*at) <= Span::from_secs(600));
                    prop_assert!(own.map(|(_, _, count)| count).sum::<u64>() >= 100);
                }
            }
        }

        #[test]
        fn a_clock_that_goes_backwards_changes_nothing(reports in prop::collection::vec((0u8..4, 1u64..400, 0u64..40), 1..60)) {
            let (mut steady, mut shaken, mut latest) = (watch(), watch(), Moment::ZERO);
            for (account, count, at) in reports {
                latest = latest.max(minute(at));
                let refusals = Refusals { class: "user", key: &[account], count };
                prop_assert_eq!(steady.record(refusals, latest), shaken.record(refusals, minute(at)));
                prop_assert_eq!(steady.episodes(latest), shaken.episodes(minute(at)));
            }
        }
    }
}
