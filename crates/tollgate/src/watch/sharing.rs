//! Shares flags, and the clearing of flags, between gates through Redis.
//!
//! The journal of each gate is authoritative: a flag counts once it is there and is sent to Redis when Redis is
//! reachable. Nothing waits for Redis, and losing Redis loses no flag. At each new connection, after Redis has lost its
//! data, and every ten minutes, a gate reads all flags from Redis and sends those that are missing. In between, only
//! changes are exchanged.
//!
//! If two gates disagree about an account, the later change wins. Times are exchanged in the clock of Redis. Each poll
//! measures the offset between that clock and the local one, and the measurement with the shortest round trip is used.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::shared::{Clearing, FlagWriteOutcome, SharedFlag, SharedFlags, Since, Unanswered};

use super::record::Record;
use super::state::{Cleared, Flag};
use super::{JournaledState, Watch};

/// How often Redis is polled for changes.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How often all flags are compared.
const COMPARE_INTERVAL: Span = Span::from_secs(600);
/// The number of flags that are sent before more are looked up, so that the lock is held only for a short time.
const FLAGS_PER_BATCH: usize = 100;
/// How many of the latest cleared flags are sent to a Redis that lacks them.
const PAST_FLAGS_SHARED_MAX: usize = 1000;
/// Bound of `unshared`; further accounts are found by the comparison.
const UNSHARED_MAX: usize = 100_000;
/// Two flags or two clearings of an account within this time are the same event. Its time differs after it was
/// converted to the clock of Redis and back, with two measurements of the offset.
const SAME_WITHIN: Span = Span::from_secs(1);

/// How to handle a flag received from Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MergeOutcome {
    /// Both sides agree.
    Same,
    /// The flag in Redis is newer: apply this record.
    Take(Record<'static>),
    /// The local flag is newer: send it.
    Send,
}

/// Compares the local flag of an account with the one in Redis.
fn merge(here: Option<&Flag>, there: Flag) -> MergeOutcome {
    let us = |moment: Moment| moment.as_nanos() / 1000;
    let take_if = |is_later, record| if is_later { MergeOutcome::Take(record) } else { MergeOutcome::Send };
    match (here.map(|here| (here, &here.cleared)), there.cleared.clone()) {
        (None, None) => MergeOutcome::Take(Record::Flag(there)),
        (None, Some(_)) => MergeOutcome::Take(Record::RemoteClear(there)),
        (Some((_, None)), None) => MergeOutcome::Same,
        (Some((here, None)), Some(cleared)) => {
            take_if(us(cleared.at) >= us(here.flagged_at), Record::Clear { account: there.account, cleared })
        }
        (Some((flag, Some(here))), None) => {
            let is_new = there.flagged_at > flag.flagged_at + SAME_WITHIN;
            take_if(is_new && us(there.flagged_at) > us(here.at), Record::Flag(there))
        }
        (Some((_, Some(here))), Some(cleared)) if cleared.at > here.at + SAME_WITHIN => {
            MergeOutcome::Take(Record::RemoteClear(there))
        }
        (Some((_, Some(_))), Some(_)) => MergeOutcome::Same,
    }
}

/// The name of a change, for the log.
fn change_name(record: &Record<'_>) -> &'static str {
    match record {
        Record::Flag(_) => "flag",
        Record::Clear { .. } => "clear",
        _ => "remote-clear",
    }
}

impl Watch {
    /// Notes that the flag of this account has to be sent to Redis.
    pub(super) fn mark_unshared(&self, journaled: &mut JournaledState, account: &str) {
        if self.sharing_wakeup.is_some() && journaled.unshared.len() < UNSHARED_MAX {
            journaled.unshared.insert(account.to_owned());
        }
    }

    /// Applies flags received from Redis.
    fn receive(&self, flags: Vec<Flag>) {
        // As with a local clearing, earlier refusals must not count after it.
        if flags.iter().any(|flag| flag.cleared.is_some()) {
            self.take_feed();
        }
        let (now, mut journaled, mut records) = (self.calendar.now(), self.lock(), Vec::new());
        let mut past = HashMap::new();
        for flag in &journaled.state.past {
            past.entry(flag.account.clone()).or_insert_with(|| flag.clone());
        }
        for there in flags {
            let account = there.account.clone();
            let here = journaled.state.flag_of(&account).or_else(|| past.get(&account).cloned());
            match merge(here.as_ref(), there) {
                MergeOutcome::Same => {}
                MergeOutcome::Take(record) => records.push((account, record)),
                MergeOutcome::Send => self.mark_unshared(&mut journaled, &account),
            }
        }
        let (accounts, records): (Vec<_>, Vec<_>) = records.into_iter().unzip();
        if !records.is_empty() {
            journaled.has_unwritten |= self.append_records(&mut journaled, &records).is_err();
        }
        for (account, record) in accounts.into_iter().zip(records) {
            tracing::info!(account, change = change_name(&record), "flag changed by another gate");
            self.counts.flags_received.fetch_add(1, Ordering::Relaxed);
            journaled.state.replay(record, now);
            if journaled.state.is_flagged(&account) {
                self.flagged.insert(&account)
            } else {
                self.flagged.remove(&account)
            }
        }
    }

    /// Current flags of at most `most` accounts that have to be sent to Redis.
    fn unshared(&self, most: usize) -> Vec<Flag> {
        let mut journaled = self.lock();
        let accounts: Vec<_> = journaled.unshared.iter().take(most).cloned().collect();
        let latest = |account: String| {
            let flag = journaled.state.latest_flag_of(&account);
            if flag.is_none() {
                // The flag has been dropped from the history since.
                journaled.unshared.remove(&account);
            }
            flag
        };
        accounts.into_iter().filter_map(latest).collect()
    }

    /// The flag is now in Redis. If it changed in the meantime, it remains to be sent.
    fn mark_shared(&self, flag: &Flag) {
        let mut journaled = self.lock();
        if journaled.state.latest_flag_of(&flag.account).as_ref() == Some(flag) {
            journaled.unshared.remove(&flag.account);
        }
    }

    /// Notes that all flags have to be sent except those of `accounts`, which Redis has.
    fn share_all_except(&self, accounts: &HashSet<String>) {
        let mut journaled = self.lock();
        let past = journaled.state.past.iter().take(PAST_FLAGS_SHARED_MAX).map(|flag| flag.account.clone());
        let known: HashSet<_> = journaled.state.flags().into_iter().map(|flag| flag.account).chain(past).collect();
        for account in known.difference(accounts) {
            self.mark_unshared(&mut journaled, account);
        }
    }
}

/// Difference between the local clock and the clock of Redis.
#[derive(Clone, Copy, Debug)]
struct ClockOffset {
    /// Microseconds to add to the local time.
    us: i128,
    /// Round trip of the measurement; the error is at most half of it.
    round_trip: Span,
}

impl ClockOffset {
    /// Offset for a request sent at `sent_at` and answered at `received_at`, when the clock of Redis was `there_us`.
    fn measured(sent_at: Moment, received_at: Moment, there_us: u64) -> Self {
        let round_trip = received_at.since(sent_at);
        let here = sent_at + Span::from_nanos(round_trip.as_nanos() / 2);
        Self { us: i128::from(there_us) - i128::from(here.as_nanos() / 1000), round_trip }
    }

    fn to_redis(self, moment: Moment) -> u64 {
        u64::try_from(i128::from(moment.as_nanos() / 1000) + self.us).unwrap_or(0)
    }

    fn to_local(self, us: u64) -> Moment {
        let nanos = (i128::from(us) - self.us).saturating_mul(1000);
        Moment::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
    }

    fn flag_to_redis(&self, flag: &Flag) -> SharedFlag {
        let clearing = |cleared: &Cleared| Clearing {
            at_us: self.to_redis(cleared.at),
            by: cleared.by.clone(),
            note: cleared.note.clone(),
        };
        SharedFlag {
            account: flag.account.clone(),
            flagged_at_us: self.to_redis(flag.flagged_at),
            rejected: flag.rejected,
            cleared: flag.cleared.as_ref().map(clearing),
        }
    }

    fn flag_to_local(&self, flag: SharedFlag) -> Flag {
        let cleared = |Clearing { at_us, by, note }| Cleared { at: self.to_local(at_us), by, note };
        Flag {
            account: flag.account,
            flagged_at: self.to_local(flag.flagged_at_us),
            rejected: flag.rejected,
            cleared: flag.cleared.map(cleared),
        }
    }
}

/// Progress of the exchange with Redis.
struct FlagSharing {
    watch: Arc<Watch>,
    flags: SharedFlags,
    /// The position in the changes of Redis; by default at their start, so that all flags are read.
    since: Since,
    /// The best measurement so far.
    offset: Option<ClockOffset>,
    /// When all flags were last compared.
    compared_at: Moment,
    /// Accounts found in Redis so far, while all flags are read.
    seen: Option<HashSet<String>>,
}

/// Shares flags with other gates until the process ends.
pub(crate) async fn share(watch: Arc<Watch>, flags: SharedFlags) {
    let Some(wakeup) = &watch.sharing_wakeup else { return };
    let compared_at = watch.calendar.now();
    let mut sharing =
        FlagSharing { watch: watch.clone(), flags, since: Since::default(), offset: None, compared_at, seen: None };
    let mut is_failing = false;
    loop {
        match sharing.exchange().await {
            Ok(()) if is_failing => tracing::info!("sharing flags through Redis works again"),
            Ok(()) => {}
            Err(why) => {
                watch.counts.sharing_failures.fetch_add(1, Ordering::Relaxed);
                if !is_failing {
                    let why = why.as_str();
                    tracing::warn!(why, "cannot share flags through Redis: retrying, no flag is lost");
                }
                is_failing = true;
                tokio::time::sleep(POLL_INTERVAL).await;
                continue;
            }
        }
        is_failing = false;
        let _ = tokio::time::timeout(POLL_INTERVAL, Notify::notified(wakeup)).await;
    }
}

impl FlagSharing {
    /// Receives changes, then sends unshared flags.
    async fn exchange(&mut self) -> Result<(), Unanswered> {
        let now = self.watch.calendar.now();
        if now.since(self.compared_at) > COMPARE_INTERVAL {
            self.since = Since::default();
        }
        while self.receive().await? {}
        if let Some(seen) = self.seen.take() {
            self.compared_at = now;
            self.watch.run_blocking(move |watch| watch.share_all_except(&seen)).await;
        }
        let Some(offset) = self.offset else { return Ok(()) };
        loop {
            let unshared = self.watch.run_blocking(|watch| watch.unshared(FLAGS_PER_BATCH)).await.unwrap_or_default();
            let is_last = unshared.len() < FLAGS_PER_BATCH;
            for flag in unshared {
                match self.flags.write(&offset.flag_to_redis(&flag)).await? {
                    FlagWriteOutcome::Taken => self.watch.count(&self.watch.counts.flags_shared),
                    FlagWriteOutcome::Full => tracing::warn!(account = flag.account, "Redis has no room for this flag"),
                    // Redis has a newer change of another gate, which the next poll returns if it was not received
                    // already.
                    FlagWriteOutcome::IsSet | FlagWriteOutcome::IsCleared => {}
                }
                self.watch.run_blocking(move |watch| watch.mark_shared(&flag)).await;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Receives a batch of changes; returns whether there are more.
    async fn receive(&mut self) -> Result<bool, Unanswered> {
        let sent_at = self.watch.calendar.now();
        let changes = self.flags.changes(&self.since).await?;
        let measured = ClockOffset::measured(sent_at, self.watch.calendar.now(), changes.now_us);
        let is_better = |known: &ClockOffset| changes.is_from_start || measured.round_trip < known.round_trip;
        let offset = *self.offset.insert(self.offset.filter(|known| !is_better(known)).unwrap_or(measured));
        if changes.is_from_start {
            self.seen = Some(HashSet::new());
        }
        if let Some(seen) = &mut self.seen {
            seen.extend(changes.flags.iter().map(|flag| flag.account.clone()));
        }
        let flags: Vec<_> = changes.flags.into_iter().map(|flag| offset.flag_to_local(flag)).collect();
        if !flags.is_empty() {
            self.watch.run_blocking(move |watch| watch.receive(flags)).await;
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
    fn the_later_change_wins() {
        let minute = 60_000_000;
        for (here, there, expect) in [
            (None, flag(5, None), "flag"),
            (None, flag(5, Some(6)), "remote-clear"),
            (Some(flag(5, None)), flag(9, None), "same"),
            (Some(flag(5, None)), flag(4, Some(5)), "clear"),
            (Some(flag(5, None)), flag(3, Some(4)), "send"),
            (Some(flag(5, Some(6))), flag(6, None), "send"),
            (Some(flag(5, Some(6))), flag(minute, None), "flag"),
            // The time of the flag, read back with another offset, is after the clearing.
            (Some(flag(5, Some(6))), flag(7, None), "send"),
            (Some(flag(5, Some(6))), flag(5, Some(8)), "same"),
            (Some(flag(5, Some(6))), flag(5, Some(minute)), "remote-clear"),
        ] {
            let outcome = match merge(here.as_ref(), there.clone()) {
                MergeOutcome::Same => "same",
                MergeOutcome::Send => "send",
                MergeOutcome::Take(record) => change_name(&record),
            };
            assert_eq!(outcome, expect, "{here:?} {there:?}");
        }
    }

    #[test]
    fn times_survive_an_offset_of_hours_between_clocks() {
        let (sent_at, received_at) = (at(7_200_000_000), at(7_200_000_400));
        for there_us in [1, 7_200_000_200, 1 << 60] {
            let offset = ClockOffset::measured(sent_at, received_at, there_us);
            assert_eq!(offset.to_redis(at(7_200_000_200)), there_us);
            assert_eq!(offset.to_local(there_us), at(7_200_000_200));
        }
        assert_eq!(ClockOffset::measured(sent_at, received_at, 1).to_redis(at(0)), 0);
        assert_eq!(ClockOffset::measured(sent_at, received_at, u64::MAX >> 1).to_local(0), Moment::ZERO);
    }

    proptest! {
        /// A flag that a gate reads back from Redis is not a change.
        #[test]
        fn a_flag_read_back_from_redis_is_unchanged(
            flagged in 0_u64..1_000_000, cleared in prop::option::of(0_u64..1_000_000), there_us in 0_u64..1 << 60,
        ) {
            let offset = ClockOffset::measured(at(2_000_000), at(2_000_100), there_us + 3_000_000);
            let flag = flag(flagged, cleared.map(|after| flagged + after));
            let back = offset.flag_to_local(offset.flag_to_redis(&flag));
            prop_assert_eq!(merge(Some(&flag), back), MergeOutcome::Same);
        }
    }
}
