//! Turns refusals into episodes that a person can look at, and into flags on accounts.
//!
//! A flag is soft: it is set once, announced, and cleared by a person; nobody is banned by it. Two bounded tallies stand behind it, and
//! they are apart: the view of who is being throttled right now, over all classes, and the counts that flags are decided
//! on, over accounts alone. So no number of made-up addresses can push an account's evidence out, and none can flag an
//! account falsely: what is compared with the threshold is only what the account itself was refused.
//!
//! After a flag is cleared the count begins at nothing, otherwise the next single refusal would bring it back.

mod names;
mod ranks;
mod rolling;
mod tally;

use crate::time::{Moment, Span};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::hash::BuildHasher;
use tally::Tally;

/// Episodes are shown for at least this long after their last refusal.
const RETENTION_MIN: Span = Span::from_secs(3600);
/// Classes longer than this are not names that anybody could read; they are ignored and counted.
const CLASS_BYTES_MAX: usize = 255;
/// The same for keys. A byte that is no text takes four where it is written out, and all of 255 may be such.
const KEY_BYTES_MAX: usize = 4 * 255;

/// When to flag, and how much to remember.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// So many refusals within the window flag an account.
    pub flag_threshold: u64,
    /// The window in which refusals are counted.
    pub flag_window: Span,
    /// The class whose keys are accounts.
    pub account_class: Box<str>,
    /// How many accounts are counted at once.
    pub accounts_max: usize,
    /// How many episodes are kept for the view.
    pub episodes_max: usize,
    /// How many flags there can be.
    pub flags_max: usize,
}

impl Default for Settings {
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

/// Refusals of one key, as a gate or any gateway reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusals<'a> {
    /// How the caller was told apart.
    pub class: &'a str,
    /// The caller.
    pub key: &'a [u8],
    /// How many requests of it were refused.
    pub count: u64,
}

/// One key's recent stretch of refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Episode {
    /// How the caller was told apart.
    pub class: Box<str>,
    /// The caller.
    pub key: Box<[u8]>,
    /// Refusals within the retention.
    pub count: u64,
    /// The first of them.
    pub first: Moment,
    /// The last of them.
    pub last: Moment,
}

/// The mark on an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// When it was set.
    pub at: Moment,
    /// Refusals within the window at that moment.
    pub count: u64,
}

/// Which of the two tallies a count belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tallied {
    /// The view of who is being throttled.
    View,
    /// The counts that flags are decided on.
    Accounts,
}

/// One count as it is remembered, to be written down in one life of a process and given back in the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered<'a> {
    /// Where it belongs.
    pub tallied: Tallied,
    /// The class and the key as one name, as this watch keeps it.
    pub name: &'a [u8],
    /// When it was counted.
    pub at: Moment,
    /// How much.
    pub count: u64,
}

/// What the watch had to leave out, so that nothing is silent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Omissions {
    /// Reported refusals without a usable name or count.
    pub ignored: u64,
    /// Flags that were not set because there are too many.
    pub flags_dropped: u64,
    /// Accounts whose count began anew because too many others were refused more.
    pub accounts_pushed_out: u64,
    /// Episodes that left the view because too many others were refused more.
    pub episodes_pushed_out: u64,
}

/// Episodes and flags.
#[derive(Clone, Debug)]
pub struct Watch<S> {
    settings: Settings,
    latest: Moment,
    view: Tally<S>,
    accounts: Tally<S>,
    flags: BTreeMap<Box<[u8]>, Flag>,
    ignored: u64,
    flags_dropped: u64,
    /// Class and key of an episode as one name; kept to be reused.
    name: Vec<u8>,
}

impl<S: BuildHasher + Clone> Watch<S> {
    /// A watch that has seen nothing. Names are chosen by strangers: take a hasher that nobody can predict.
    pub fn new(settings: Settings, hasher: S) -> Self {
        let retention = settings.flag_window.max(RETENTION_MIN);
        Self {
            view: Tally::new(settings.episodes_max, retention, hasher.clone()),
            accounts: Tally::new(settings.accounts_max, settings.flag_window, hasher),
            settings,
            latest: Moment::ZERO,
            flags: BTreeMap::new(),
            ignored: 0,
            flags_dropped: 0,
            name: Vec::new(),
        }
    }

    /// Takes over when to flag whom. What was counted stays counted, unless accounts are something else from now on; flags stay. Who has reached a
    /// lower threshold already is flagged when it is refused the next time.
    pub fn set_flagging(&mut self, threshold: u64, window: Span, account_class: &str) {
        self.settings.flag_threshold = threshold;
        let are_others = *account_class != *self.settings.account_class;
        if !are_others && window == self.settings.flag_window {
            return;
        }
        let kept = |known: &Remembered<'_>| known.tallied == Tallied::View || !are_others;
        let known: Vec<_> = self
            .remembered()
            .filter(kept)
            .map(|known| (known.tallied, known.name.to_vec(), known.at, known.count))
            .collect();
        self.settings.flag_window = window;
        self.settings.account_class = account_class.into();
        self.view = self.view.emptied(window.max(RETENTION_MIN));
        self.accounts = self.accounts.emptied(window);
        for (tallied, name, at, count) in &known {
            self.remember(Remembered { tallied: *tallied, name, at: *at, count: *count });
        }
    }

    /// Takes a report entry. Returns the flag when this sets one.
    pub fn record(&mut self, refusals: Refusals<'_>, now: Moment) -> Option<Flag> {
        let Refusals { class, key, count } = refusals;
        let nameable = (1..=CLASS_BYTES_MAX).contains(&class.len()) && (1..=KEY_BYTES_MAX).contains(&key.len());
        if count == 0 || !nameable {
            self.ignored = self.ignored.saturating_add(1);
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

    /// Everything refused within the retention, the most refused first. What is too old is gone even if no report has come since.
    pub fn episodes(&mut self, now: Moment) -> Vec<Episode> {
        self.latest = self.latest.max(now);
        self.view.expire(self.latest);
        let mut episodes: Vec<_> = self.view.iter().map(episode).collect();
        episodes.sort_by(|a, b| (b.count, b.last, &a.key).cmp(&(a.count, a.last, &b.key)));
        episodes
    }

    /// The flags that are set, by account.
    pub fn flags(&self) -> impl ExactSizeIterator<Item = (&[u8], &Flag)> {
        self.flags.iter().map(|(account, flag)| (&**account, flag))
    }

    /// Whether `account` is flagged.
    pub fn is_flagged(&self, account: &[u8]) -> bool {
        self.flags.contains_key(account)
    }

    /// The flag of `account`, if it has one.
    pub fn flag(&self, account: &[u8]) -> Option<&Flag> {
        self.flags.get(account)
    }

    /// Sets a flag that was set before, in another life of this process or by another. Says whether there was room.
    pub fn restore(&mut self, account: &[u8], flag: Flag) -> bool {
        let fits = self.flags.len() < self.settings.flags_max || self.flags.contains_key(account);
        if fits {
            self.flags.insert(account.into(), flag);
        } else {
            self.flags_dropped = self.flags_dropped.saturating_add(1);
        }
        fits
    }

    /// What `account` was refused so far does not count any more: somebody has looked at it.
    pub fn forget(&mut self, account: &[u8]) {
        self.accounts.forget(account);
    }

    /// Everything that is counted, oldest first for each name.
    pub fn remembered(&self) -> impl Iterator<Item = Remembered<'_>> {
        let of = |tallied| move |(name, at, count)| Remembered { tallied, name, at, count };
        self.view.points().map(of(Tallied::View)).chain(self.accounts.points().map(of(Tallied::Accounts)))
    }

    /// Takes back what another life of this process had counted. It flags nobody: flags are restored by themselves.
    pub fn remember(&mut self, remembered: Remembered<'_>) {
        let Remembered { tallied, name, at, count } = remembered;
        match tallied {
            // The first byte of a name in the view is the length of the class in it.
            Tallied::View if name.first().is_some_and(|&class| usize::from(class) < name.len()) => {
                self.view.add(name, count, at);
            }
            Tallied::Accounts if !name.is_empty() => {
                self.accounts.add(name, count, at);
            }
            Tallied::View | Tallied::Accounts => self.ignored = self.ignored.saturating_add(1),
        }
    }

    /// How much `account` was refused within the window, as of `now`.
    pub fn counted(&mut self, account: &[u8], now: Moment) -> u64 {
        self.latest = self.latest.max(now);
        self.accounts.counted(account, self.latest)
    }

    /// Takes the flag off. It returns only for refusals from now on.
    pub fn clear(&mut self, account: &[u8]) -> Option<Flag> {
        let flag = self.flags.remove(account)?;
        self.accounts.forget(account);
        Some(flag)
    }

    /// What had to be left out so far.
    pub fn omissions(&self) -> Omissions {
        Omissions {
            ignored: self.ignored,
            flags_dropped: self.flags_dropped,
            accounts_pushed_out: self.accounts.pushed_out(),
            episodes_pushed_out: self.view.pushed_out(),
        }
    }

    fn count_account(&mut self, account: &[u8], count: u64) -> Option<Flag> {
        let count = self.accounts.add(account, count, self.latest);
        if count < self.settings.flag_threshold || self.flags.contains_key(account) {
            return None;
        }
        if self.flags.len() >= self.settings.flags_max {
            self.flags_dropped = self.flags_dropped.saturating_add(1);
            return None;
        }
        let flag = Flag { at: self.latest, count };
        self.flags.insert(account.into(), flag.clone());
        Some(flag)
    }
}

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
        Watch::new(Settings::default(), RandomState::new())
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
    fn other_settings_keep_what_was_counted_of_the_same_accounts() {
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
    fn other_accounts_begin_at_nothing() {
        let mut watch = watch();
        watch.record(refused("user", "u1", 999), minute(1));
        watch.set_flagging(1000, MINUTE.times(10), "header:x-api-key");
        assert_eq!(watch.record(refused("user", "u1", 5000), minute(1)), None, "no account any more");
        assert_eq!(watch.counted(b"u1", minute(1)), 0);
        assert!(watch.record(refused("header:x-api-key", "u1", 1000), minute(1)).is_some());
        assert_eq!(watch.episodes(minute(1)).len(), 2, "who was refused is seen all the same");
    }

    #[test]
    fn only_accounts_are_flagged() {
        let mut watch = watch();
        assert_eq!(watch.record(refused("ip/32", "203.0.113.7", 1_000_000), minute(1)), None);
        assert_eq!(watch.flags().count(), 0);
        assert_eq!(watch.episodes(minute(1)).len(), 1);
    }

    /// 250 made-up keys per report were enough to hide for ever in a view that dropped the least recently seen.
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
        assert!(watch.omissions().accounts_pushed_out > 300_000);
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
    fn what_is_remembered_counts_on_in_the_next_life() {
        let mut first = watch();
        first.record(refused("user", "u1", 600), minute(1));
        first.record(refused("user", "u1", 399), minute(5));
        first.record(refused("ip/32", "203.0.113.7", 7), minute(5));
        first.record(refused("user", "cleared", 5000), minute(5));
        first.clear(b"cleared");
        let mut second = watch();
        for remembered in first.remembered() {
            second.remember(remembered);
        }
        assert_eq!(second.episodes(minute(6)), first.episodes(minute(6)));
        assert_eq!((second.counted(b"u1", minute(6)), second.counted(b"cleared", minute(6))), (999, 0));
        assert!(second.record(refused("user", "u1", 1), minute(11)).is_some());
        assert!(second.record(refused("user", "cleared", 999), minute(11)).is_none());
        second.remember(Remembered { tallied: Tallied::View, name: &[9, 1], at: minute(11), count: 1 });
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
    fn an_episode_tells_who_how_often_and_from_when_to_when() {
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
    fn nonsense_is_ignored_and_counted() {
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
    fn flags_are_bounded_and_the_bound_is_not_silent() {
        let mut watch = Watch::new(Settings { flags_max: 1, ..Settings::default() }, RandomState::new());
        assert!(watch.record(refused("user", "a", 1000), minute(1)).is_some());
        assert!(watch.record(refused("user", "b", 1000), minute(1)).is_none());
        assert_eq!(watch.omissions().flags_dropped, 1);
        let flag = Flag { at: minute(1), count: 7 };
        assert!(watch.restore(b"a", flag.clone()) && !watch.restore(b"b", flag));
        assert_eq!((watch.flag(b"a").unwrap().count, watch.flag(b"b"), watch.omissions().flags_dropped), (7, None, 2));
    }

    #[test]
    fn what_is_forgotten_does_not_count() {
        let mut watch = watch();
        watch.record(refused("user", "u1", 999), minute(1));
        watch.forget(b"u1");
        assert_eq!(watch.record(refused("user", "u1", 999), minute(1)), None);
        assert!(watch.record(refused("user", "u1", 1), minute(1)).is_some());
    }

    /// Eviction that looked at every series took a second and a half for 8,000 keys, and four times as long for twice as many.
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
        // Neighbours on the machine only ever add time, so one good pair among several is enough.
        let linear = |_| {
            let small = (0..5).map(|_| nanos_per_key(8_000)).min().unwrap();
            nanos_per_key(96_000) < 5 * small
        };
        assert!((0..8).any(linear), "twelve times the keys take sixty times as long");
    }

    /// What has expired is looked for now and then, not at every report: many small reports would otherwise cost their product with
    /// all that is known.
    #[test]
    fn a_small_report_does_not_look_at_all_that_is_known() {
        for known in [500, 8_000] {
            let settings = Settings { accounts_max: 10_000, episodes_max: 10_000, ..Settings::default() };
            let mut watch = Watch::new(settings, RandomState::new());
            for key in 0..known {
                watch.record(refused("user", &format!("{key}"), 1), minute(1));
            }
            let begin = watch.view.swept + watch.accounts.swept;
            for report in 0..1_000 {
                let now = minute(1) + Span::from_millis(10 * report);
                watch.record(refused("user", &format!("{}", report % known), 1), now);
            }
            let swept = watch.view.swept + watch.accounts.swept - begin;
            assert!(swept <= 2 * known, "{swept} of {known} were looked at within ten seconds");
            assert_eq!(watch.episodes(minute(2)).len() as u64, known);
        }
    }

    proptest! {
        #[test]
        fn no_account_is_flagged_for_what_others_did(
            reports in prop::collection::vec((0u8..20, 1u64..40, 0u64..90), 1..300),
            accounts_max in 1usize..10,
        ) {
            let settings = Settings { flag_threshold: 100, accounts_max, ..Settings::default() };
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
        fn time_that_goes_backwards_changes_nothing(reports in prop::collection::vec((0u8..4, 1u64..400, 0u64..40), 1..60)) {
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
