//! The names of throttled callers, for display.
//!
//! Tables store fingerprints, not names, because a name per key would cost more than the key's state. Only
//! throttled callers need a name, and they are few unless an attacker invents callers to hide among them. The
//! store has a fixed number of entries and uses the space-saving algorithm: a new name replaces the entry
//! with the least weight and inherits that weight, so that a caller that is throttled often stays. The
//! displayed counts do not include that weight: they start when the name was stored. While thousands are throttled
//! per second they are approximate ([`crate::sample`]).

use core::fmt::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate_core::class::KeySink;
use tollgate_core::decision::{Act, ActCounts};
use tollgate_core::limit::LimitInfo;
use tollgate_core::network::Network;
use tollgate_core::time::{Moment, Span};

use crate::hash::KeyHash;
use crate::truncation::{self, Tail};

/// The maximum length of a name in bytes. A name of this length or longer is truncated ([`crate::truncation`]). Most
/// user agents fit.
pub const NAME_BYTES_MAX: usize = 255;
/// The time after which a caller that was not throttled again has no weight.
const MEMORY: Span = Span::from_secs(3_600);
/// The number of entries per shard.
const SHARD_NAMES: usize = 16;

/// A throttled caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Throttled {
    /// The index of the rule.
    pub rule: usize,
    /// The key, unescaped: escape it before displaying it.
    pub key: Vec<u8>,
    /// Whether the key was truncated and ends with a digest.
    pub cut: bool,
    /// The number of its holds and refusals, also of rules in observe mode.
    pub acts: ActCounts,
    /// The time of the first of these since the name was stored.
    pub first: Moment,
    /// The time of the last of them.
    pub last: Moment,
    /// The current state of its limit.
    pub info: LimitInfo,
    /// The identifier of the rule's table.
    pub(crate) table: u32,
    /// The hash of the key in that table.
    pub(crate) hash: KeyHash,
}

/// A bounded store of names, by weight.
pub(crate) struct Names {
    shards: Box<[Mutex<Shard>]>,
}

/// Some entries under one lock. The fields that a search reads are in arrays of their own, so that it accesses few
/// cache lines; the index in all arrays is that of the entry.
#[derive(Clone, Copy)]
struct Shard {
    hashes: [KeyHash; SHARD_NAMES],
    /// How often a caller was throttled, plus the weight of the entry that it replaced.
    weights: [u64; SHARD_NAMES],
    /// The times at which the callers were last throttled.
    lasts: [Moment; SHARD_NAMES],
    entries: [Entry; SHARD_NAMES],
}

#[derive(Clone, Copy)]
struct Entry {
    table: u32,
    acts: ActCounts,
    first: Moment,
    name: Name,
}

impl Names {
    /// A store for at least `most` names, or for none if that is 0.
    pub(crate) fn new(most: usize) -> Self {
        let shards = most.div_ceil(SHARD_NAMES);
        Self { shards: (0..shards).map(|_| Mutex::new(Shard::EMPTY)).collect() }
    }

    /// Counts that the key with `hash` was throttled `times` times; `write` supplies its name if it is new.
    pub(crate) fn note(
        &self,
        table: u32,
        hash: KeyHash,
        act: Act,
        times: u64,
        now: Moment,
        write: impl FnOnce(&mut NameWriter),
    ) {
        if self.shards.is_empty() {
            return;
        }
        let mut shard = lock(&self.shards[hash.row(self.shards.len() as u64)]);
        let at = shard.find(table, hash, now).unwrap_or_else(|| {
            let at = shard.lightest(now);
            shard.hashes[at] = hash;
            shard.weights[at] = shard.weight(at, now);
            shard.entries[at] = Entry { table, first: now, ..Entry::EMPTY };
            shard.entries[at].name = Name::of(write);
            at
        });
        shard.count(at, act, times, now);
    }

    /// The most throttled callers of rules with these tables.
    pub(crate) fn top(&self, of_table: impl Fn(u32) -> bool, most: usize, now: Moment) -> Vec<Throttled> {
        let mut all: Vec<Throttled> = Vec::new();
        for shard in &self.shards {
            let shard = *lock(shard);
            let wanted = |at: &usize| shard.weight(*at, now) > 0 && of_table(shard.entries[*at].table);
            all.extend((0..SHARD_NAMES).filter(wanted).map(|at| shard.shown(at)));
        }
        all.sort_by_key(|caller| {
            core::cmp::Reverse((caller.acts.into_iter().fold(0, u64::saturating_add), caller.last))
        });
        all.truncate(most);
        all
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shard {
    const EMPTY: Self = Self {
        hashes: [KeyHash(0); SHARD_NAMES],
        weights: [0; SHARD_NAMES],
        lasts: [Moment::ZERO; SHARD_NAMES],
        entries: [Entry::EMPTY; SHARD_NAMES],
    };

    fn find(&self, table: u32, hash: KeyHash, now: Moment) -> Option<usize> {
        let is_it = |at: &usize| self.hashes[*at] == hash && self.entries[*at].table == table;
        (0..SHARD_NAMES).find(is_it).filter(|&at| self.weight(at, now) > 0)
    }

    fn lightest(&self, now: Moment) -> usize {
        (0..SHARD_NAMES).min_by_key(|&at| self.weight(at, now)).unwrap_or(0)
    }

    /// The weight of an entry; 0 if it is older than [`MEMORY`].
    fn weight(&self, at: usize, now: Moment) -> u64 {
        if now.since(self.lasts[at]) < MEMORY { self.weights[at] } else { 0 }
    }

    fn count(&mut self, at: usize, act: Act, times: u64, now: Moment) {
        let counter = &mut self.entries[at].acts[act as usize];
        *counter = counter.saturating_add(times);
        self.weights[at] = self.weights[at].saturating_add(times);
        self.lasts[at] = self.lasts[at].max(now);
    }

    /// The caller of an entry. [`Limiter::throttled`](crate::limiter::Limiter::throttled) fills `rule` and `info`.
    fn shown(&self, at: usize) -> Throttled {
        let Entry { table, acts, first, name } = self.entries[at];
        Throttled {
            rule: 0,
            key: name.as_bytes().to_vec(),
            cut: name.is_cut(),
            acts,
            first,
            last: self.lasts[at],
            info: LimitInfo::default(),
            table,
            hash: self.hashes[at],
        }
    }
}

impl Entry {
    const EMPTY: Self = Self { table: 0, acts: [0; Act::ALL.len()], first: Moment::ZERO, name: Name::EMPTY };
}

/// A key as readable text of bounded length, stored inline. Parts are separated by spaces.
#[derive(Clone, Copy)]
pub struct Name {
    bytes: [u8; NAME_BYTES_MAX],
    length: u8,
    is_cut: bool,
}

impl Name {
    /// An empty name.
    pub const EMPTY: Self = Self { bytes: [0; NAME_BYTES_MAX], length: 0, is_cut: false };

    /// The name of a key that `write` writes.
    pub fn of(write: impl FnOnce(&mut NameWriter)) -> Self {
        let mut writer = NameWriter { name: Self::EMPTY, tail: None, part_ended: false };
        write(&mut writer);
        let NameWriter { mut name, tail, .. } = writer;
        truncation::finish(&mut name.bytes, &tail);
        name.is_cut = tail.is_some();
        name
    }

    /// The name, unescaped and possibly truncated: escape it before displaying it.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Whether a digest replaces a part of it.
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// Writes a [`Name`].
#[derive(Debug)]
pub struct NameWriter {
    name: Name,
    /// The truncated part of the name.
    tail: Option<Tail>,
    /// Whether a part is complete, so that a space follows if there is another.
    part_ended: bool,
}

impl NameWriter {
    fn push(&mut self, bytes: &[u8]) {
        let mut length = usize::from(self.name.length);
        truncation::push(&mut self.name.bytes, &mut length, &mut self.tail, bytes);
        self.name.length = length as u8;
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}", self.as_bytes().escape_ascii().to_string())
    }
}

impl Write for NameWriter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

impl KeySink for NameWriter {
    fn network(&mut self, network: Network) {
        self.write(b"");
        let _ = write!(self, "{network}");
    }

    fn write(&mut self, bytes: &[u8]) {
        if core::mem::take(&mut self.part_ended) {
            self.push(b" ");
        }
        self.push(bytes);
    }

    fn end_part(&mut self) {
        self.part_ended = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(names: &Names, key: &str, hash: u64, now: Moment) {
        names.note(1, KeyHash(hash), Act::Refuse, 1, now, |name| name.write(key.as_bytes()));
    }

    fn keys(names: &Names, now: Moment) -> Vec<String> {
        names.top(|_| true, 100, now).into_iter().map(|caller| String::from_utf8(caller.key).unwrap()).collect()
    }

    /// Spreads numbers over all shards.
    fn scattered(number: u64) -> u64 {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn an_offender_stays_among_any_number_of_other_names() {
        let names = Names::new(64);
        for round in 0..100_000 {
            note(&names, &format!("sprayed {round}"), scattered(round + 1), Moment::ZERO);
            if round % 20 == 0 {
                note(&names, "offender", 5, Moment::ZERO);
            }
        }
        let top = names.top(|_| true, 1, Moment::ZERO);
        assert_eq!(top[0].key, b"offender");
        assert!(top[0].acts[1] > 4_900 && top[0].acts[1] <= 5_000, "{}", top[0].acts[1]);
    }

    #[test]
    fn counts_never_exceed_the_truth() {
        let names = Names::new(16);
        for number in 0..1_000 {
            note(&names, "once", scattered(number + 1), Moment::ZERO);
        }
        assert_eq!(names.top(|_| true, 100, Moment::ZERO).len(), SHARD_NAMES);
        assert!(names.top(|_| true, 100, Moment::ZERO).iter().all(|caller| caller.acts[1] == 1));
    }

    #[test]
    fn a_name_without_throttling_expires_after_an_hour() {
        let names = Names::new(16);
        for _ in 0..1_000 {
            note(&names, "yesterday", 1, Moment::ZERO);
        }
        let later = Moment::ZERO + MEMORY;
        assert!(keys(&names, later).is_empty());
        for number in 0..16 {
            note(&names, "today", 100 + number, later);
        }
        assert_eq!(keys(&names, later), vec!["today"; 16]);
    }

    #[test]
    fn holds_and_refusals_are_counted_separately_with_their_times() {
        let names = Names::new(16);
        let at = Moment::from_millis;
        names.note(3, KeyHash(9), Act::Hold, 1, at(1), |name| name.write(b"k"));
        names.note(3, KeyHash(9), Act::Refuse, 1, at(2), |_| panic!("the name is known"));
        names.note(3, KeyHash(9), Act::Refuse, 1, at(4), |_| panic!("the name is known"));
        let [caller] = &names.top(|_| true, 10, at(5))[..] else { panic!("one name") };
        assert_eq!((caller.acts, caller.first, caller.last), ([1, 2, 0, 0], at(1), at(4)));
    }

    #[test]
    fn names_are_truncated_and_parts_are_separated() {
        let write = |writer: &mut NameWriter| {
            writer.write(b"GET");
            writer.end_part();
            writer.network(Network::parse("203.0.113.0/24").unwrap());
            writer.end_part();
        };
        let name = Name::of(write);
        assert_eq!((name.as_bytes(), name.is_cut()), (&b"GET 203.0.113.0/24"[..], false));
        let name = Name::of(|writer| {
            write(writer);
            writer.write(&[b'x'; 500]);
        });
        assert_eq!((name.as_bytes().len(), name.is_cut()), (NAME_BYTES_MAX, true));
    }
}
