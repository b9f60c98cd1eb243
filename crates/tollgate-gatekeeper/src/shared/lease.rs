//! Leases: slices of a shared limit that a gate takes from the store in advance, so that it can decide on the next
//! requests of a key from memory.
//!
//! The store charges a whole slice when it is taken, so all gates together never exceed the limit. A slice
//! can be used later than it was charged, when part of it is already paid back. In any stretch of time,
//! callers may therefore exceed the rule by the amount leased at that moment, at most one slice per gate and
//! key. The rest of a slice that is not used within [`LEASE_LIFE`] is returned, less the amount paid back
//! since it was charged.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tollgate_core::limit::{Charge, Limit, LimitInfo};
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};

use super::store_ticket::Taken;
use super::{SharedRule, Store};
use crate::clock::Clock;

/// The time after which the rest of a slice is returned.
pub const LEASE_LIFE: Span = Span::from_secs(1);
/// The time after a failed attempt to take a slice in which the store is asked about single requests.
const REST: Span = Span::from_millis(100);
/// The maximum number of keys with slices; others are asked about individually.
const KEYS_MAX: usize = 65_536;
/// The number of locks among which the keys are divided.
const SHARDS: usize = 64;

/// The slices of this process.
#[derive(Debug)]
pub(super) struct Leases {
    shards: Box<[Mutex<Shard>]>,
    /// The number of leased and unused requests.
    pub(super) leased: AtomicU64,
    pub(super) store: Store,
    pub(super) clock: Clock,
}

/// Slices by slot name.
type Shard = HashMap<Vec<u8>, Lease>;

/// The slice of one rule and key.
#[derive(Debug)]
struct Lease {
    rule: Arc<SharedRule>,
    /// The number of requests that are left.
    left: u64,
    /// The time at which the rest is returned. With nothing left, the time from which another slice may be
    /// taken; until then, one is being taken or could not be taken.
    expires: Moment,
    /// The state of the limit right after the slice was taken.
    info: LimitInfo,
    /// The store's charge for the slice; `None` before the first slice.
    charged: Option<Charge>,
}

/// The result for a request with a leased rule.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Slice {
    /// The request is within a slice: the state of the limit, and the store's charge for the slice.
    Inside(LimitInfo, Charge),
    /// The caller must fetch a slice; no other thread does.
    Fetch,
    /// The caller must ask about this request alone.
    Ask,
}

/// The reason why a rule cannot be leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unleasable {
    /// The cost or the slot of a request depends on its end, so nothing can be decided in advance.
    #[error("only a bucket, a rate or a window can be leased")]
    Kind,
    /// The rule is in observe mode.
    #[error("a rule in observe mode cannot be leased")]
    Observes,
    /// The slice is less than two requests, so nothing would be saved.
    #[error("this part of the limit is less than two requests, so a lease saves nothing")]
    TooSmall,
}

/// The size of a slice in requests: `millionths` of the rule's limit.
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
    /// No slices yet, from `store`.
    pub(super) fn new(store: Store, clock: Clock) -> Arc<Self> {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let leases = Arc::new(Self { shards, leased: AtomicU64::new(0), store, clock });
        leases.store.inner.runtime.spawn(sweep(Arc::downgrade(&leases)));
        leases
    }

    /// Takes `count` requests from the slice for `slot`, if they are left.
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
        self.leased.fetch_sub(count, Relaxed);
        if lease.left == 0 {
            // The next request may take another slice.
            lease.expires = now;
        }
        let remaining = lease.info.remaining.saturating_add(lease.left);
        Slice::Inside(LimitInfo { remaining, reset: Span::ZERO, ..lease.info }, charged)
    }

    /// Stores a slice with `left` requests left. The rest of a previous slice is returned, because each has
    /// its own charge. `false` if the entry that [`take`](Self::take) made for the key has been removed.
    pub(super) fn put(&self, slot: &[u8], left: u64, (info, charged): (LimitInfo, Charge), now: Moment) -> bool {
        let mut shard = self.shard(slot);
        let Some(lease) = shard.get_mut(slot) else { return false };
        self.give_back(slot, lease);
        lease.left = left;
        lease.info = info;
        lease.charged = Some(charged);
        lease.expires = now + LEASE_LIFE;
        self.leased.fetch_add(left, Relaxed);
        true
    }

    /// Returns the part for a request that was not forwarded: to its own slice, or if that is gone, to the
    /// store, which refunds it less the amount paid back since the slice was charged.
    pub(super) fn put_back(&self, taken: Taken, count: u64) {
        let (now, charged) = (self.clock.now(), Some(taken.charged));
        let mut shard = self.shard(&taken.slot);
        let is_its_own = |lease: &&mut Lease| now < lease.expires && lease.left > 0 && lease.charged == charged;
        if let Some(lease) = shard.get_mut(&taken.slot).filter(is_its_own) {
            lease.left += count;
            self.leased.fetch_add(count, Relaxed);
            return;
        }
        drop(shard);
        self.store.give_back(taken, count);
    }

    /// Returns the rest of a slice to the store.
    fn give_back(&self, slot: &[u8], lease: &mut Lease) {
        let left = core::mem::take(&mut lease.left);
        if let Some(charged) = lease.charged.filter(|_| left > 0) {
            self.leased.fetch_sub(left, Relaxed);
            let taken = Taken { rule: Arc::clone(&lease.rule), slot: slot.to_vec(), charged };
            self.store.give_back(taken, left);
        }
    }

    /// Returns the rest of expired slices to the store, and removes them.
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
    /// Returns all slices.
    fn drop(&mut self) {
        self.sweep(Moment::MAX);
    }
}

/// Calls [`Leases::sweep`] now and then, until the leases are dropped.
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
    use tollgate_core::limit::Bucket;

    use super::*;
    use crate::shared::{Address, Options};

    fn rule() -> Arc<SharedRule> {
        let rule = Rule::new(
            "rule",
            Class::parse("ip/32").unwrap(),
            Limit::Bucket(Bucket::new(100, 1, Span::from_secs(1)).unwrap()),
        );
        Arc::new(SharedRule::new("test:", "default", rule).unwrap())
    }

    /// It may not have been swept yet.
    #[tokio::test]
    async fn an_expired_slice_is_not_used() {
        let nobody = Store::open(Address::parse("redis://127.0.0.1:1", None).unwrap(), Options::default());
        let (clock, _hand) = Clock::by_hand();
        let (leases, rule, now) = (Leases::new(nobody, clock.clone()), rule(), clock.now());
        assert_eq!(leases.take(&rule, b"slot", 1, now), Slice::Fetch);
        let charged = Charge { at: now, mark: 0 };
        assert!(leases.put(b"slot", 9, (LimitInfo::default(), charged), now));
        assert!(matches!(leases.take(&rule, b"slot", 1, now), Slice::Inside(..)));
        assert_eq!(leases.take(&rule, b"slot", 1, now + LEASE_LIFE), Slice::Ask);
        assert_eq!(leases.leased.load(Relaxed), 8);
    }

    /// Otherwise a late refund would move credit from a slice that is paid back to a new one.
    #[tokio::test]
    async fn a_refund_does_not_go_to_a_later_slice() {
        let nobody = Store::open(Address::parse("redis://127.0.0.1:1", None).unwrap(), Options::default());
        let (clock, _hand) = Clock::by_hand();
        let (leases, rule, now) = (Leases::new(nobody, clock.clone()), rule(), clock.now());
        let slices = [0, 1].map(|mark| Charge { at: now, mark });
        let taken = |charged| Taken { rule: Arc::clone(&rule), slot: b"slot".to_vec(), charged };
        leases.take(&rule, b"slot", 1, now);
        for charged in slices {
            assert!(leases.put(b"slot", 9, (LimitInfo::default(), charged), now));
        }
        assert_eq!(leases.leased.load(Relaxed), 9);
        leases.put_back(taken(slices[0]), 1);
        assert_eq!(leases.leased.load(Relaxed), 9);
        leases.put_back(taken(slices[1]), 1);
        assert_eq!(leases.leased.load(Relaxed), 10);
    }
}
