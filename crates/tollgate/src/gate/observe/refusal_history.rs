//! Recent refusals by client, so that an operator can explain a refusal after the fact.
//!
//! The rules' tables only hold the current state of a key, and the watch only counts. This module records when a client
//! was refused, by which rule or bound, and for how long. Each thread writes to its own book, whose lock is rarely
//! contended. Refusals of one client for the same reason, each within [`MERGED_WITHIN`] after the one before, are one
//! record with a count, so a client that retries in a loop takes a single record. Only a new record allocates, and a
//! thread starts at most [`BEGUN_MAX`] of them per [`BEGUN_WITHIN`]; further refusals are not recorded. A full book
//! drops the half of its clients with the fewest refusals.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use tollgate_core::network::Network;
use tollgate_core::time::{Moment, Span};

use super::engagement::{Engagement, EngagementSum};
use super::spenders::Spenders;
use crate::per_thread::PerThread;
use tollgate_core::decision::Act;

/// The number of clients in the book of one thread.
const CLIENTS_MAX: usize = 512;
/// The number of records per client and book. The oldest one is dropped first.
const RECORDS_MAX: usize = 8;
/// A refusal this soon after the last one of a record is added to that record.
const MERGED_WITHIN: Span = Span::from_secs(60);
/// Older records are not shown: support requests about a refusal arrive within a day.
const SHOWN_FOR: Span = Span::from_secs(24 * 3600);
/// The number of new records per thread and [`BEGUN_WITHIN`]. Bounds the cost of a flood of refused clients.
const BEGUN_MAX: usize = 512;
const BEGUN_WITHIN: Span = Span::from_secs(10);

/// The recent refusals of all clients.
#[derive(Default)]
pub(crate) struct RefusalHistory {
    hasher: RandomState,
    books: PerThread<HistoryBook>,
}

/// The refusals that one thread recorded, by the hash of the client; without an address, of the class and key.
#[derive(Default)]
struct HistoryBook {
    clients: HashMap<u64, VecDeque<PastRefusal>, RandomState>,
    /// The start of the current [`BEGUN_WITHIN`], and the number of records that were started in it.
    begun_since: Moment,
    begun: usize,
}

/// Consecutive refusals of one client for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PastRefusal {
    /// The client's address (IPv6: its /64), if it is known.
    pub(crate) client: Option<Network>,
    /// The refusals; the act is [`Act::Refuse`] or [`Act::WouldRefuse`].
    pub(crate) sum: EngagementSum,
    pub(crate) first: Moment,
    pub(crate) last: Moment,
}

impl RefusalHistory {
    /// Records an engagement if it is a refusal, or would have been one.
    pub(crate) fn record(&self, engagement: &Engagement<'_>, now: Moment) {
        if !matches!(engagement.act, Act::Refuse | Act::WouldRefuse) {
            return;
        }
        let client = engagement.client.map(Spenders::address);
        let id = match client {
            Some(client) => self.hasher.hash_one(client),
            None => self.hasher.hash_one((engagement.class, engagement.key.as_bytes())),
        };
        self.books.own().record(id, client, engagement, now);
    }

    /// The records of the last day that `is_meant` selects, the latest first, at most `max`.
    pub(crate) fn find(&self, is_meant: impl Fn(&PastRefusal) -> bool, max: usize, now: Moment) -> Vec<PastRefusal> {
        let is_shown = |record: &&PastRefusal| now.since(record.last) < SHOWN_FOR && is_meant(record);
        let mut found: Vec<PastRefusal> = Vec::new();
        for book in self.books.all() {
            found.extend(book.clients.values().flatten().filter(is_shown).cloned());
        }
        found.sort_by_key(|record| Reverse(record.last));
        // Connections of one client may be on several threads, each with its own record.
        let mut merged: Vec<PastRefusal> = Vec::new();
        for record in found {
            match merged.iter_mut().find(|later| later.continues(&record)) {
                Some(later) => later.absorb(&record),
                None => merged.push(record),
            }
        }
        merged.truncate(max);
        merged
    }
}

impl HistoryBook {
    fn record(&mut self, id: u64, client: Option<Network>, engagement: &Engagement<'_>, now: Moment) {
        if let Some(records) = self.clients.get_mut(&id)
            && let Some(record) = records.iter_mut().rev().find(|record| record.continues_with(engagement, now))
        {
            record.last = record.last.max(now);
            return record.sum.add(engagement);
        }
        if now.since(self.begun_since) >= BEGUN_WITHIN {
            (self.begun_since, self.begun) = (now, 0);
        }
        if self.begun >= BEGUN_MAX {
            return;
        }
        self.begun += 1;
        if self.clients.len() >= CLIENTS_MAX && !self.clients.contains_key(&id) {
            self.make_room(now);
        }
        let records = self.clients.entry(id).or_default();
        if records.len() >= RECORDS_MAX {
            records.pop_front();
        }
        records.push_back(PastRefusal { client, sum: EngagementSum::of(engagement), first: now, last: now });
    }

    /// Removes clients whose records are too old to be shown; if that is not enough, half of the others.
    fn make_room(&mut self, now: Moment) {
        let last = |records: &VecDeque<PastRefusal>| records.iter().map(|record| record.last).max();
        self.clients.retain(|_, records| last(records).is_some_and(|last| now.since(last) < SHOWN_FOR));
        if self.clients.len() < CLIENTS_MAX {
            return;
        }
        let weight = |records: &VecDeque<PastRefusal>| {
            (records.iter().fold(0, |sum: u64, record| sum.saturating_add(record.sum.count)), last(records))
        };
        let mut weights: Vec<_> = self.clients.iter().map(|(id, records)| (weight(records), *id)).collect();
        weights.select_nth_unstable(CLIENTS_MAX / 2);
        for (_, id) in &weights[..CLIENTS_MAX / 2] {
            self.clients.remove(id);
        }
    }
}

impl PastRefusal {
    /// Whether `engagement` belongs to this record.
    fn continues_with(&self, engagement: &Engagement<'_>, now: Moment) -> bool {
        now.since(self.last) < MERGED_WITHIN
            && (self.sum.act, self.sum.reason) == (engagement.act, engagement.reason)
            && self.sum.rule.as_deref() == engagement.rule
            && *self.sum.key == *engagement.key.as_bytes()
    }

    /// Whether `earlier`, the record of another thread, and this one are about the same series of refusals.
    fn continues(&self, earlier: &Self) -> bool {
        let (own, other) = (&self.sum, &earlier.sum);
        self.first.since(earlier.last) < MERGED_WITHIN
            && (own.act, own.reason, self.client) == (other.act, other.reason, earlier.client)
            && (&own.rule, &own.class, &own.key) == (&other.rule, &other.class, &other.key)
    }

    /// Adds `earlier` to this record.
    fn absorb(&mut self, earlier: &Self) {
        self.first = self.first.min(earlier.first);
        self.sum.count += earlier.sum.count;
        self.sum.observed = self.sum.observed.max(earlier.sum.observed);
        self.sum.backoff = self.sum.backoff.max(earlier.sum.backoff);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use tollgate_core::band::Band;
    use tollgate_core::class::KeySink;
    use tollgate_gatekeeper::names::Name;

    const START: Moment = Moment::from_millis(5_000);

    fn refused(client: IpAddr, rule: Option<&'static str>) -> Engagement<'static> {
        Engagement {
            act: Act::Refuse,
            client: Some(client),
            rule,
            class: "user-agent",
            key: Name::of(|writer| writer.write(b"crawler")),
            reason: "over-limit",
            band: Band::Normal,
            observed: 11,
            allowed: 10,
            backoff: Span::from_millis(1500),
            level: 0,
            standing: None,
        }
    }

    fn client(number: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + number).into()
    }

    fn of(history: &RefusalHistory, client: IpAddr, now: Moment) -> Vec<PastRefusal> {
        history.find(|record| record.client == Some(Spenders::address(client)), 20, now)
    }

    #[test]
    fn refusals_close_together_are_one_record_with_the_worst_values() {
        let history = RefusalHistory::default();
        for second in 0..30 {
            let engagement = Engagement { observed: 40 - second, ..refused(client(1), Some("login")) };
            history.record(&engagement, START + Span::from_secs(second));
        }
        history.record(&refused(client(1), None), START + Span::from_secs(31));
        history.record(&refused(client(1), Some("login")), START + Span::from_secs(200));
        let found = of(&history, client(1), START + Span::from_secs(300));
        let shown: Vec<_> = found.iter().map(|record| (record.sum.rule.as_deref(), record.sum.count)).collect();
        assert_eq!(shown, [(Some("login"), 1), (None, 1), (Some("login"), 30)], "the latest first");
        let oldest = &found[2];
        assert_eq!((oldest.first, oldest.last), (START, START + Span::from_secs(29)));
        assert_eq!((oldest.sum.observed, oldest.sum.allowed, &*oldest.sum.key), (40, 10, &b"crawler"[..]));
    }

    #[test]
    fn refusals_on_several_threads_are_one_record() {
        let history = RefusalHistory::default();
        std::thread::scope(|scope| {
            for second in 0..4 {
                let history = &history;
                scope.spawn(move || {
                    history.record(&refused(client(1), Some("login")), START + Span::from_secs(second));
                });
            }
        });
        let found = of(&history, client(1), START + Span::from_secs(9));
        let [record] = &found[..] else { panic!("one: {found:?}") };
        assert_eq!((record.sum.count, record.first, record.last), (4, START, START + Span::from_secs(3)));
    }

    #[test]
    fn only_refusals_are_recorded_and_for_a_day() {
        let history = RefusalHistory::default();
        for (second, act) in Act::ALL.into_iter().enumerate() {
            let engagement = Engagement { act, ..refused(client(1), None) };
            history.record(&engagement, START + Span::from_secs(second as u64));
        }
        let acts = |now: Moment| of(&history, client(1), now).iter().map(|record| record.sum.act).collect::<Vec<_>>();
        assert_eq!(acts(START + Span::from_secs(10)), [Act::WouldRefuse, Act::Refuse]);
        assert_eq!(acts(START + SHOWN_FOR + Span::from_secs(2)), [Act::WouldRefuse]);
        assert_eq!(acts(START + SHOWN_FOR + Span::from_secs(9)), []);
    }

    #[test]
    fn a_flood_of_clients_stays_within_bounds_and_keeps_the_client_that_is_refused_most() {
        let history = RefusalHistory::default();
        for number in 0..100_000u32 {
            let now = START + Span::from_millis(u64::from(number));
            history.record(&refused(client(1 + number), None), now);
            history.record(&refused(client(0), Some("api")), now);
        }
        let now = START + Span::from_secs(100);
        let kept = history.find(|_| true, usize::MAX, now);
        assert!(kept.len() <= CLIENTS_MAX * RECORDS_MAX, "{}", kept.len());
        assert_eq!(of(&history, client(0), now)[0].sum.count, 100_000);
    }

    #[test]
    fn a_client_that_is_refused_for_ever_new_reasons_has_a_few_records() {
        let history = RefusalHistory::default();
        for number in 0..100u32 {
            let key = Name::of(|writer| writer.write(&number.to_le_bytes()));
            history.record(&Engagement { key, ..refused(client(1), None) }, START + Span::from_secs(number.into()));
        }
        let found = of(&history, client(1), START + Span::from_secs(100));
        assert_eq!(found.len(), RECORDS_MAX);
        assert_eq!(*found[0].sum.key, 99u32.to_le_bytes());
    }
}
