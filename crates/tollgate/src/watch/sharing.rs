//! Flags that all gates have, through Redis.
//!
//! The journal of each gate is the first truth: a flag counts when it is there, and Redis is told when it can be. So nothing waits for Redis and nothing is
//! lost with it. What is missing on either side is found by comparing: at every new connection, when Redis has forgotten, and now and
//! then, everything that it has is read, and what it does not have is told. After that, only changes are.
//!
//! Two gates may say different things about an account. What happened last counts, by one clock for all: moments travel in the time of Redis. How far
//! that is from the time here is measured with every question, and the quickest answer is believed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::shared::{Clearing, FlagWriteOutcome, SharedFlag, SharedFlags, Since, Unanswered};

use super::record::Record;
use super::state::{Cleared, Flag};
use super::{Kept, Watch};

/// How often Redis is asked what is new.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often everything is compared, whether or not there is a reason to.
const COMPARE_EVERY: Span = Span::from_secs(600);
/// How many flags are told in one go.
const TOLD_AT_ONCE: usize = 100;
/// How many cleared flags a Redis that does not have them is told of, the latest.
const PAST_TOLD_MAX: usize = 1000;
/// More are not owed one by one: comparing finds them.
const OWED_MAX: usize = 100_000;
/// Two clearings of one flag this close together are one, told twice.
const SAME: Span = Span::from_secs(1);

/// What to do about what Redis says of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Merged {
    /// It says what is known here.
    Known,
    /// It knows better.
    Take(Record),
    /// It does not know what happened since.
    Owe,
}

/// Compares how an account stands here with how it stands there.
fn merge(here: Option<&Flag>, there: Flag) -> Merged {
    let us = |moment: Moment| moment.as_nanos() / 1000;
    let Flag { account, flagged_at: at, rejected: count, cleared } = there;
    match (here.map(|here| (here, &here.cleared)), cleared) {
        (None, None) => Merged::Take(Record::Flag { account, at, count }),
        (None, Some(Cleared { at: cleared_at, by, note })) => {
            Merged::Take(Record::Heard { account, at, count, cleared_at, by, note })
        }
        (Some((_, None)), None) => Merged::Known,
        (Some((here, None)), Some(Cleared { at, by, note })) => {
            let is_later = us(at) >= us(here.flagged_at);
            if is_later { Merged::Take(Record::Clear { account, at, by, note }) } else { Merged::Owe }
        }
        (Some((_, Some(here))), None) => {
            if us(at) > us(here.at) {
                Merged::Take(Record::Flag { account, at, count })
            } else {
                Merged::Owe
            }
        }
        (Some((_, Some(here))), Some(Cleared { at: cleared_at, by, note })) => {
            let is_another = cleared_at > here.at + SAME;
            let heard = Record::Heard { account, at, count, cleared_at, by, note };
            if is_another { Merged::Take(heard) } else { Merged::Known }
        }
    }
}

impl Watch {
    /// Other gates are to be told of an account.
    pub(super) fn owe(&self, kept: &mut Kept, account: &str) {
        if self.to_share.is_some() && kept.owed.len() < OWED_MAX {
            kept.owed.insert(account.to_owned());
        }
    }

    /// Takes in what other gates say.
    fn hear(&self, flags: Vec<Flag>) {
        // As with a clearing at this gate: what was refused before it must not count after it.
        if flags.iter().any(|flag| flag.cleared.is_some()) {
            self.take_feed();
        }
        let (now, mut kept, mut records) = (self.calendar.now(), self.kept(), Vec::new());
        let mut past = HashMap::new();
        for flag in kept.state.past() {
            past.entry(flag.account.clone()).or_insert_with(|| flag.clone());
        }
        for there in flags {
            let account = there.account.clone();
            let here = kept.state.flag_of(&account).or_else(|| past.get(&account).cloned());
            match merge(here.as_ref(), there) {
                Merged::Known => {}
                Merged::Take(record) => records.push((account, record)),
                Merged::Owe => self.owe(&mut kept, &account),
            }
        }
        let (accounts, records): (Vec<_>, Vec<_>) = records.into_iter().unzip();
        if !records.is_empty() {
            kept.behind |= self.keep(&mut kept, &records).is_err();
        }
        for (account, record) in accounts.into_iter().zip(records) {
            tracing::info!(account, change = record.word(), "another gate has changed a flag");
            self.counts.flags_heard.fetch_add(1, Ordering::Relaxed);
            kept.state.replay(record, now);
            if kept.state.is_flagged(&account) { self.flagged.insert(&account) } else { self.flagged.remove(&account) }
        }
    }

    /// How accounts stand of which Redis has not been told.
    fn owed(&self, most: usize) -> Vec<Flag> {
        let mut kept = self.kept();
        let accounts: Vec<_> = kept.owed.iter().take(most).cloned().collect();
        let known = |account: &String| {
            let flag = kept.state.standing_of(account);
            flag.ok_or_else(|| account.clone())
        };
        let flags: Vec<_> = accounts.iter().map(known).collect();
        let known = |flag: Result<Flag, String>| match flag {
            Ok(flag) => Some(flag),
            // So long ago that nobody knows any more.
            Err(account) => {
                kept.owed.remove(&account);
                None
            }
        };
        flags.into_iter().filter_map(known).collect()
    }

    /// Redis was told of this; if something has happened since, it will be told of that too.
    fn told(&self, flag: &Flag) {
        let mut kept = self.kept();
        if kept.state.standing_of(&flag.account).as_ref() == Some(flag) {
            kept.owed.remove(&flag.account);
        }
    }

    /// Redis has flags of these accounts and no others: it is to be told of the rest.
    fn owe_all_but(&self, accounts: &HashSet<String>) {
        let mut kept = self.kept();
        let past = kept.state.past().take(PAST_TOLD_MAX).map(|flag| flag.account.clone());
        let known: HashSet<_> = kept.state.flags().into_iter().map(|flag| flag.account).chain(past).collect();
        for account in known.difference(accounts) {
            self.owe(&mut kept, account);
        }
    }
}

/// What is between the time here and the time of Redis.
#[derive(Clone, Copy, Debug)]
struct Offset {
    /// What to add to microseconds here.
    us: i128,
    /// How long the question took that it is from: it may be wrong by half of that.
    took: Span,
}

impl Offset {
    /// What a question says that was asked at `asked` and answered at `answered`, when it was `there_us` there.
    fn measured(asked: Moment, answered: Moment, there_us: u64) -> Self {
        let took = answered.since(asked);
        let here = asked + Span::from_nanos(took.as_nanos() / 2);
        Self { us: i128::from(there_us) - i128::from(here.as_nanos() / 1000), took }
    }

    fn there(&self, moment: Moment) -> u64 {
        u64::try_from(i128::from(moment.as_nanos() / 1000) + self.us).unwrap_or(0)
    }

    fn here(&self, us: u64) -> Moment {
        let nanos = (i128::from(us) - self.us).saturating_mul(1000);
        Moment::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }

    fn flag_there(&self, flag: &Flag) -> SharedFlag {
        let clearing = |cleared: &Cleared| Clearing {
            at_us: self.there(cleared.at),
            by: cleared.by.clone(),
            note: cleared.note.clone(),
        };
        SharedFlag {
            account: flag.account.clone(),
            flagged_at_us: self.there(flag.flagged_at),
            rejected: flag.rejected,
            cleared: flag.cleared.as_ref().map(clearing),
        }
    }

    fn flag_here(&self, flag: SharedFlag) -> Flag {
        let cleared = |Clearing { at_us, by, note }| Cleared { at: self.here(at_us), by, note };
        Flag {
            account: flag.account,
            flagged_at: self.here(flag.flagged_at_us),
            rejected: flag.rejected,
            cleared: flag.cleared.map(cleared),
        }
    }
}

/// What is known of Redis.
struct Sharing {
    watch: Arc<Watch>,
    flags: SharedFlags,
    since: Since,
    offset: Option<Offset>,
    compared_at: Moment,
    /// The accounts that Redis has, while everything is read.
    seen: Option<HashSet<String>>,
}

/// Shares flags with other gates, until the process ends.
pub(crate) async fn share(watch: Arc<Watch>, flags: SharedFlags) {
    let Some(bell) = &watch.to_share else { return };
    let compared_at = watch.calendar.now();
    let mut sharing =
        Sharing { watch: watch.clone(), flags, since: Since::default(), offset: None, compared_at, seen: None };
    let mut is_amiss = false;
    loop {
        match sharing.round().await {
            Ok(()) if is_amiss => tracing::info!("Redis has the flags of this gate again"),
            Ok(()) => {}
            Err(why) => {
                watch.counts.sharing_failures.fetch_add(1, Ordering::Relaxed);
                if !is_amiss {
                    let why = why.as_str();
                    tracing::warn!(why, "Redis is not there to share flags: this gate keeps them, and tells it later");
                }
                is_amiss = true;
                tokio::time::sleep(ASK_EVERY).await;
                continue;
            }
        }
        is_amiss = false;
        let _ = tokio::time::timeout(ASK_EVERY, Notify::notified(bell)).await;
    }
}

impl Sharing {
    /// Hears what is new, and tells what is owed.
    async fn round(&mut self) -> Result<(), Unanswered> {
        let now = self.watch.calendar.now();
        if now.since(self.compared_at) > COMPARE_EVERY {
            self.since = Since::default();
        }
        while self.hear().await? {}
        if let Some(seen) = self.seen.take() {
            self.compared_at = now;
            self.watch.aside(move |watch| watch.owe_all_but(&seen)).await;
        }
        let Some(offset) = self.offset else { return Ok(()) };
        loop {
            let owed = self.watch.aside(|watch| watch.owed(TOLD_AT_ONCE)).await.unwrap_or_default();
            let is_last = owed.len() < TOLD_AT_ONCE;
            for flag in owed {
                match self.flags.write(&offset.flag_there(&flag)).await? {
                    FlagWriteOutcome::Taken => self.watch.count(&self.watch.counts.flags_told),
                    FlagWriteOutcome::Full => tracing::warn!(account = flag.account, "Redis has no room for this flag"),
                    // Somebody else was there before, and has been or will be heard.
                    FlagWriteOutcome::IsSet | FlagWriteOutcome::IsCleared => {}
                }
                self.watch.aside(move |watch| watch.told(&flag)).await;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Hears some of what is new. Says whether there is more.
    async fn hear(&mut self) -> Result<bool, Unanswered> {
        let asked = self.watch.calendar.now();
        let changes = self.flags.changes(&self.since).await?;
        let measured = Offset::measured(asked, self.watch.calendar.now(), changes.now_us);
        let is_better = |known: &Offset| changes.anew || measured.took < known.took;
        let offset = *self.offset.insert(self.offset.filter(|known| !is_better(known)).unwrap_or(measured));
        if changes.anew {
            self.seen = Some(HashSet::new());
        }
        if let Some(seen) = &mut self.seen {
            seen.extend(changes.flags.iter().map(|flag| flag.account.clone()));
        }
        let flags: Vec<_> = changes.flags.into_iter().map(|flag| offset.flag_here(flag)).collect();
        if !flags.is_empty() {
            self.watch.aside(move |watch| watch.hear(flags)).await;
        }
        self.since = changes.since;
        Ok(changes.more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(us: u64) -> Moment {
        Moment::from_nanos(us * 1000)
    }

    fn flag(flagged_us: u64, cleared_us: Option<u64>) -> Flag {
        let cleared = cleared_us.map(|us| Cleared { at: at(us), by: "ann".to_owned(), note: "n".to_owned() });
        Flag { account: "a".to_owned(), flagged_at: at(flagged_us), rejected: 1000, cleared }
    }

    #[test]
    fn what_happened_last_counts() {
        let minute = 60_000_000;
        for (here, there, expect) in [
            (None, flag(5, None), "flag"),
            (None, flag(5, Some(6)), "heard"),
            (Some(flag(5, None)), flag(9, None), "known"),
            (Some(flag(5, None)), flag(4, Some(5)), "clear"),
            (Some(flag(5, None)), flag(3, Some(4)), "owe"),
            (Some(flag(5, Some(6))), flag(6, None), "owe"),
            (Some(flag(5, Some(6))), flag(7, None), "flag"),
            (Some(flag(5, Some(6))), flag(5, Some(8)), "known"),
            (Some(flag(5, Some(6))), flag(5, Some(minute)), "heard"),
        ] {
            let said = match merge(here.as_ref(), there.clone()) {
                Merged::Known => "known",
                Merged::Owe => "owe",
                Merged::Take(record) => record.word(),
            };
            assert_eq!(said, expect, "{here:?} {there:?}");
        }
    }

    #[test]
    fn a_clock_that_is_hours_away_moves_nothing() {
        let (asked, answered) = (at(7_200_000_000), at(7_200_000_400));
        for there_us in [1, 7_200_000_200, 1 << 60] {
            let offset = Offset::measured(asked, answered, there_us);
            assert_eq!(offset.there(at(7_200_000_200)), there_us);
            assert_eq!(offset.here(there_us), at(7_200_000_200));
        }
        assert_eq!(Offset::measured(asked, answered, 1).there(at(0)), 0);
        assert_eq!(Offset::measured(asked, answered, u64::MAX >> 1).here(0), Moment::ZERO);
    }

    proptest! {
        /// Whatever comes back from a store was told by somebody, so nobody who has told it takes it for news.
        #[test]
        fn what_one_has_told_oneself_is_no_news(
            flagged in 0_u64..1_000_000, cleared in prop::option::of(0_u64..1_000_000), there_us in 0_u64..1 << 60,
        ) {
            let offset = Offset::measured(at(2_000_000), at(2_000_100), there_us + 3_000_000);
            let flag = flag(flagged, cleared.map(|after| flagged + after));
            let back = offset.flag_here(offset.flag_there(&flag));
            prop_assert_eq!(merge(Some(&flag), back), Merged::Known);
        }
    }
}
