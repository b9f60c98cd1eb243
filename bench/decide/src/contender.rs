//! The implementations: our limiter by rate and by bucket, and the governor crate.

use std::num::NonZeroU32;

use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::limit::{Bucket, Limit, Rate};
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::{Limiter, Plan};
use tollgate_gatekeeper::table::table_bytes_for;

use crate::keys::key;

/// 100 per second with a burst of 10, for every key.
const PER_SECOND: u32 = 100;
const BURST: u32 = 10;

/// An implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rate,
    Bucket,
    /// [`Rate`](Self::Rate) with the fast hash, which is for trusted keys only.
    QuickRate,
    /// [`Bucket`](Self::Bucket) with the fast hash.
    QuickBucket,
    Governor,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::Rate, Self::Bucket, Self::QuickRate, Self::QuickBucket, Self::Governor];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "Tollgate rate",
            Self::Bucket => "Tollgate bucket",
            Self::QuickRate => "Tollgate rate, quick hash",
            Self::QuickBucket => "Tollgate bucket, quick hash",
            Self::Governor => "governor",
        }
    }

    /// A limiter that has seen all of `keys` keys, with room for `room`.
    pub(crate) fn contender(self, keys: u32, room: u32) -> Contender {
        let contender = match self {
            Self::Rate => Contender::ours(rate(), room, Seed::random()),
            Self::Bucket => Contender::ours(bucket(), room, Seed::random()),
            Self::QuickRate => Contender::ours(rate(), room, Seed::quick()),
            Self::QuickBucket => Contender::ours(bucket(), room, Seed::quick()),
            Self::Governor => {
                let count = |count| NonZeroU32::new(count).expect("not zero");
                let quota = Quota::per_second(count(PER_SECOND)).allow_burst(count(BURST));
                Contender::Governor(RateLimiter::dashmap(quota))
            }
        };
        contender.decide_all(0..keys);
        contender
    }
}

fn rate() -> Limit {
    Limit::Rate(Rate::new(PER_SECOND.into(), Span::from_secs(1), BURST.into()).expect("the parameters are valid"))
}

fn bucket() -> Limit {
    let every = Span::from_millis(1_000 / u64::from(PER_SECOND));
    Limit::Bucket(Bucket::new(BURST, 1, every).expect("the parameters are valid"))
}

/// A limiter with its clock.
pub(crate) enum Contender {
    Ours { limiter: Limiter, clock: Clock },
    Governor(RateLimiter<u64, DashMapStateStore<u64>, DefaultClock>),
}

impl Contender {
    fn ours(limit: Limit, room: u32, seed: Seed) -> Self {
        let rule = Rule::new("bench", Class::parse("identifier").expect("a class"), limit);
        let bytes = table_bytes_for(&rule, room as usize);
        let plan = Plan { rules: vec![(rule, bytes)], started: Moment::ZERO, seed, names_max: 16 };
        let limiter = Limiter::new(plan).expect("this machine has the memory");
        Self::Ours { limiter, clock: Clock::start() }
    }

    /// One decision per key, each at the current time of its clock. Returns the number of admissions.
    pub(crate) fn decide_all(&self, keys: impl Iterator<Item = u32>) -> u64 {
        match self {
            Self::Ours { limiter, clock } => keys
                .map(|number| {
                    let key = key(number).to_le_bytes();
                    let decided = limiter.decide_key(0, &key, Toll::ONE, Band::Normal, || clock.now());
                    u64::from(decided.is_some_and(|(verdict, _)| !verdict.is_refusal()))
                })
                .sum(),
            Self::Governor(limiter) => keys.map(|number| u64::from(limiter.check_key(&key(number)).is_ok())).sum(),
        }
    }

    /// Its memory outside of the heap in bytes: the table of our limiter, which is mapped.
    pub(crate) fn mapped_bytes(&self) -> usize {
        match self {
            Self::Ours { limiter, .. } => limiter.table(0).map_or(0, |table| table.bytes),
            Self::Governor(_) => 0,
        }
    }
}
