//! A slice of a limit that a gate has taken ahead: decisions inside it need nobody.
//!
//! The store has charged the whole slice when it was taken, so gates together never have more than the limit. A slice can be used later than
//! it was charged, when time has paid part of it back already: in any time, callers may get more than the rule says by what is leased at
//! that moment, which is at most a slice per gate and key. The rest of a slice that is not used up within [`LEASE_LIFE`] goes back, less what
//! time has paid back since the slice was charged.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tollgate_core::limit::{Charge, Limit, LimitInfo};
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};

use super::count::Level;
use super::{SharedRule, Store};
use crate::clock::Clock;

/// How long a slice is kept.
pub const LEASE_LIFE: Span = Span::from_secs(1);
/// How long after a slice could not be had the store is asked for single requests.
const REST: Span = Span::from_millis(100);
/// So many keys at most have slices; others are asked about one by one.
const KEYS_MAX: usize = 65_536;
const SHARDS: usize = 64;

/// The slices that this process holds.
#[derive(Debug)]
pub(super) struct Leases {
    shards: Box<[Mutex<Shard>]>,
    leased: Level,
    store: Store,
    clock: Clock,
}

/// Slices by the names of their slots.
type Shard = HashMap<Vec<u8>, Lease>;

#[derive(Debug)]
struct Lease {
    rule: Arc<SharedRule>,
    left: u64,
    /// When what is left goes back. With nothing left, when another slice may be taken: meanwhile one is being taken, or could not be had.
    expires: Moment,
    info: LimitInfo,
    /// When the store charged the slice. None before the first.
    charged: Option<Charge>,
}

/// What to do about a request whose rule is leased.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slice {
    /// It is inside a slice, with these figures, that was charged like this.
    Inside(LimitInfo, Charge),
    /// Take a slice: nobody else does.
    Fetch,
    /// Ask about this request alone.
    Ask,
}

/// Why a rule cannot be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unleasable {
    /// What a request costs is known when it ends, or it takes a place until then: nothing can be decided ahead.
    Kind,
    /// It only observes.
    Observes,
    /// The part to be taken ahead is less than two requests: nothing would be saved.
    TooSmall,
}

impl core::fmt::Display for Unleasable {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str(match self {
            Self::Kind => "only a bucket, a rate or a window can be leased",
            Self::Observes => "a rule that only observes cannot be leased",
            Self::TooSmall => "this part of the limit is less than two requests, so nothing would be taken ahead",
        })
    }
}

impl core::error::Error for Unleasable {}

/// How much a gate takes ahead: `millionths` of what a rule has room for, in requests.
pub fn slice_of(rule: &Rule, millionths: u32) -> Result<u64, Unleasable> {
    let room = match &rule.limit {
        Limit::Rate(rate) => rate.parameters().2,
        Limit::Bucket(bucket) => u64::from(bucket.parameters().0),
        Limit::Window(window) => u64::from(window.parameters().0),
        Limit::Budget(_) | Limit::InFlight(_) => return Err(Unleasable::Kind),
    };
    if rule.mode != Mode::Enforce {
        return Err(Unleasable::Observes);
    }
    let slice = u128::from(room) * u128::from(millionths.min(1_000_000)) / 1_000_000;
    if slice < 2 { Err(Unleasable::TooSmall) } else { Ok(u64::try_from(slice).unwrap_or(u64::MAX)) }
}

impl Leases {
    /// None yet, from `store`.
    pub(super) fn new(store: Store, clock: Clock) -> Arc<Self> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let leases = Arc::new(Self { shards, leased: Level::default(), store, clock });
        leases.store.runtime().spawn(sweep(Arc::downgrade(&leases)));
        leases
    }

    /// How many requests are leased and not used.
    pub(super) fn leased(&self) -> u64 {
        self.leased.now()
    }

    /// Takes `count` out of the slice for `slot`, if there is one.
    pub(super) fn take(&self, rule: &Arc<SharedRule>, slot: &[u8], count: u64, now: Moment) -> Slice {
        let mut shard = self.shard(slot);
        let Some(lease) = shard.get_mut(slot) else {
            if shard.len() >= KEYS_MAX / SHARDS {
                return Slice::Ask;
            }
            let (info, expires) = (LimitInfo::default(), now + REST);
            let lease = Lease { rule: Arc::clone(rule), left: 0, expires, info, charged: None };
            shard.insert(slot.to_vec(), lease);
            return Slice::Fetch;
        };
        if now >= lease.expires && lease.left == 0 {
            lease.expires = now + REST;
            return Slice::Fetch;
        }
        let Some(charged) = lease.charged.filter(|_| now < lease.expires && lease.left >= count) else {
            return Slice::Ask;
        };
        lease.left -= count;
        self.leased.sub(count);
        if lease.left == 0 {
            // The next request may take another slice.
            lease.expires = now;
        }
        let remaining = lease.info.remaining.saturating_add(lease.left);
        Slice::Inside(LimitInfo { remaining, reset: Span::ZERO, ..lease.info }, charged)
    }

    /// A slice was taken, of which `left` is left. A former slice, if there is something left of it, goes back: each has its own date.
    pub(super) fn put(&self, slot: &[u8], left: u64, (info, charged): (LimitInfo, Charge), now: Moment) -> bool {
        let mut shard = self.shard(slot);
        let Some(lease) = shard.get_mut(slot) else { return false };
        self.give_back(slot, lease);
        lease.left = left;
        lease.info = info;
        lease.charged = Some(charged);
        lease.expires = now + LEASE_LIFE;
        self.leased.add(left);
        true
    }

    /// Puts back what was taken for a request that was not forwarded: into the slice that it was taken from, or when that is gone, into the
    /// store, which returns what time has not paid back since that slice was charged.
    pub(super) fn put_back(&self, rule: &Arc<SharedRule>, slot: Vec<u8>, count: u64, charged: Charge) {
        let now = self.clock.now();
        let mut shard = self.shard(&slot);
        let is_its_own = |lease: &&mut Lease| now < lease.expires && lease.left > 0 && lease.charged == Some(charged);
        if let Some(lease) = shard.get_mut(&slot).filter(is_its_own) {
            lease.left += count;
            self.leased.add(count);
            return;
        }
        drop(shard);
        self.store.give_back(rule, slot, count, charged);
    }

    /// Gives back to the store what is left of a slice.
    fn give_back(&self, slot: &[u8], lease: &mut Lease) {
        let left = core::mem::take(&mut lease.left);
        if let Some(charged) = lease.charged.filter(|_| left > 0) {
            self.leased.sub(left);
            self.store.give_back(&lease.rule, slot.to_vec(), left, charged);
        }
    }

    /// Gives back to the store what is left of slices that are too old at `now`, and forgets those.
    fn sweep(&self, now: Moment) {
        for shard in &*self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.retain(|slot, lease| {
                let is_over = now >= lease.expires;
                if is_over {
                    self.give_back(slot, lease);
                }
                !is_over
            });
        }
    }

    fn shard(&self, slot: &[u8]) -> MutexGuard<'_, Shard> {
        let mixed = slot.iter().fold(0_usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte)));
        self.shards[mixed % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Leases {
    /// What was taken ahead goes back.
    fn drop(&mut self) {
        self.sweep(Moment::MAX);
    }
}

/// Gives back slices that were not used up.
async fn sweep(leases: Weak<Leases>) {
    let mut ticks = tokio::time::interval(core::time::Duration::from(LEASE_LIFE) / 4);
    loop {
        ticks.tick().await;
        let Some(leases) = leases.upgrade() else { return };
        leases.sweep(leases.clock.now());
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::class::Class;
    use tollgate_core::condition::Condition;
    use tollgate_core::limit::Bucket;

    use super::*;
    use crate::shared::{Address, Options};

    fn rule() -> Arc<SharedRule> {
        let rule = Rule {
            name: "rule".into(),
            when: Condition::default(),
            unless: None,
            class: Class::parse("ip/32").unwrap(),
            limit: Limit::Bucket(Bucket::new(100, 1, Span::from_secs(1)).unwrap()),
            escalation: None,
            warmup: None,
            hold_max: Span::ZERO,
            mode: Mode::Enforce,
        };
        Arc::new(SharedRule::new("test:", "default", rule).unwrap())
    }

    /// It may not have been swept yet.
    #[tokio::test]
    async fn a_slice_is_not_used_beyond_its_life() {
        let nobody = Store::open(Address::parse("redis://127.0.0.1:1", None).unwrap(), Options::default());
        let (clock, _hand) = Clock::by_hand();
        let (leases, rule, now) = (Leases::new(nobody, clock.clone()), rule(), clock.now());
        assert_eq!(leases.take(&rule, b"slot", 1, now), Slice::Fetch);
        let charged = Charge { at: now, mark: 0 };
        assert!(leases.put(b"slot", 9, (LimitInfo::default(), charged), now));
        assert!(matches!(leases.take(&rule, b"slot", 1, now), Slice::Inside(..)));
        assert_eq!(leases.take(&rule, b"slot", 1, now + LEASE_LIFE), Slice::Ask);
        assert_eq!(leases.leased(), 8);
    }

    /// Otherwise a request that is given up late would move credit from a slice that time has paid back into a new one.
    #[tokio::test]
    async fn what_was_taken_from_a_former_slice_is_not_put_into_the_next() {
        let nobody = Store::open(Address::parse("redis://127.0.0.1:1", None).unwrap(), Options::default());
        let (clock, _hand) = Clock::by_hand();
        let (leases, rule, now) = (Leases::new(nobody, clock.clone()), rule(), clock.now());
        let slices = [0, 1].map(|mark| Charge { at: now, mark });
        leases.take(&rule, b"slot", 1, now);
        for charged in slices {
            assert!(leases.put(b"slot", 9, (LimitInfo::default(), charged), now));
        }
        assert_eq!(leases.leased(), 9);
        leases.put_back(&rule, b"slot".to_vec(), 1, slices[0]);
        assert_eq!(leases.leased(), 9);
        leases.put_back(&rule, b"slot".to_vec(), 1, slices[1]);
        assert_eq!(leases.leased(), 10);
    }
}
