//! How much may be buffered: in memory, in the spool file, and for one client.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::BLOCK_BYTES;
use crate::settings::ResponseBuffer as Settings;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Memory,
    Spool,
}

/// How much of the memory a block may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// The first half. The other half is for [`Share::Staging`], so that downloads can still reach the spool when the first half is in use.
    Half,
    /// All of it: for the few blocks that a download needs to go through the spool.
    Staging,
    /// Without a bound, for what is bounded otherwise: the last piece of a response, and the block that is read back from the spool.
    Unbounded,
}

/// The bounds, and what is in use of them, in bytes.
#[derive(Debug)]
pub(super) struct Budget {
    memory_max: AtomicU64,
    spool_max: AtomicU64,
    per_address_max: AtomicU64,
    memory: AtomicU64,
    spool: AtomicU64,
    /// What each client has buffered. There is an entry only for clients that have at least one block.
    by_address: Mutex<HashMap<IpAddr, u64>>,
}

impl Budget {
    pub(super) fn new(settings: &Settings) -> Self {
        let budget = Self {
            memory_max: AtomicU64::new(0),
            spool_max: AtomicU64::new(0),
            per_address_max: AtomicU64::new(0),
            memory: AtomicU64::new(0),
            spool: AtomicU64::new(0),
            by_address: Mutex::default(),
        };
        budget.reload(settings);
        budget
    }

    /// Changes the bounds. Blocks that are in use stay.
    pub(super) fn reload(&self, settings: &Settings) {
        self.memory_max.store(settings.memory_bytes_max, Ordering::Relaxed);
        self.spool_max.store(settings.spool_bytes_max, Ordering::Relaxed);
        self.per_address_max.store(settings.per_address_bytes_max, Ordering::Relaxed);
    }

    /// The bytes in memory and in the spool.
    pub(super) fn used(&self) -> (u64, u64) {
        (self.memory.load(Ordering::Relaxed), self.spool.load(Ordering::Relaxed))
    }

    /// Takes a block of the memory, if the bounds allow it.
    pub(super) fn take_memory(&self, client: IpAddr, share: Share) -> bool {
        let max = self.memory_max.load(Ordering::Relaxed);
        let (max, per_address_max) = match share {
            Share::Half => (max / 2, self.per_address_max.load(Ordering::Relaxed)),
            Share::Staging => (max, self.per_address_max.load(Ordering::Relaxed)),
            Share::Unbounded => (u64::MAX, u64::MAX),
        };
        self.take(&self.memory, max, client, per_address_max)
    }

    /// Takes a block of the spool, if the bounds allow it.
    pub(super) fn take_spool(&self, client: IpAddr) -> bool {
        let (max, per_address_max) =
            (self.spool_max.load(Ordering::Relaxed), self.per_address_max.load(Ordering::Relaxed));
        self.take(&self.spool, max, client, per_address_max)
    }

    fn take(&self, used: &AtomicU64, max: u64, client: IpAddr, per_address_max: u64) -> bool {
        let block = BLOCK_BYTES as u64;
        let add = |used: u64| used.checked_add(block).filter(|sum| *sum <= max);
        if used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            return false;
        }
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let client = client_key(client);
        let held = by_address.get(&client).copied().unwrap_or_default();
        if held.saturating_add(block) > per_address_max {
            used.fetch_sub(block, Ordering::Relaxed);
            return false;
        }
        by_address.insert(client, held + block);
        true
    }

    /// Gives a block back.
    pub(super) fn give(&self, store: Store, client: IpAddr) {
        let used = match store {
            Store::Memory => &self.memory,
            Store::Spool => &self.spool,
        };
        used.fetch_sub(BLOCK_BYTES as u64, Ordering::Relaxed);
        let mut by_address = self.by_address.lock().unwrap_or_else(PoisonError::into_inner);
        let client = client_key(client);
        if let Some(held) = by_address.get_mut(&client) {
            *held = held.saturating_sub(BLOCK_BYTES as u64);
            if *held == 0 {
                by_address.remove(&client);
            }
        }
    }
}

/// What counts as one client: an IPv4 address or an IPv6 /64.
fn client_key(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(_) => client,
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = BLOCK_BYTES as u64;

    fn budget(memory: u64, spool: u64, per_address: u64) -> Budget {
        Budget::new(&Settings {
            memory_bytes_max: memory * BLOCK,
            spool_bytes_max: spool * BLOCK,
            per_address_bytes_max: per_address * BLOCK,
            dir: "/nowhere".into(),
        })
    }

    #[test]
    fn blocks_are_given_out_up_to_each_bound_and_again_when_they_are_back() {
        let (budget, client) = (budget(8, 3, 100), IpAddr::from([192, 0, 2, 1]));
        let memory = |share| (0..100).take_while(|_| budget.take_memory(client, share)).count();
        assert_eq!((memory(Share::Half), memory(Share::Staging)), (4, 4));
        assert_eq!((0..100).take_while(|_| budget.take_spool(client)).count(), 3);
        assert_eq!(budget.used(), (8 * BLOCK, 3 * BLOCK));
        assert!(budget.take_memory(client, Share::Unbounded));
        (0..9).for_each(|_| budget.give(Store::Memory, client));
        (0..3).for_each(|_| budget.give(Store::Spool, client));
        assert_eq!(budget.used(), (0, 0));
        assert!(budget.by_address.lock().unwrap().is_empty());
    }

    #[test]
    fn one_client_gets_its_part_of_memory_and_spool_together() {
        let budget = budget(100, 100, 5);
        let networks = [["2001:db8::1", "2001:db8::2"], ["192.0.2.1", "192.0.2.1"], ["192.0.2.2", "192.0.2.2"]];
        for [one, same] in networks.map(|pair| pair.map(|text| text.parse().unwrap())) {
            assert!(budget.take_memory(one, Share::Half) && budget.take_memory(same, Share::Staging));
            assert_eq!((0..100).take_while(|_| budget.take_spool(same)).count(), 3);
            assert!(!budget.take_memory(one, Share::Half));
        }
        assert_eq!(budget.used(), (6 * BLOCK, 9 * BLOCK));
    }
}
