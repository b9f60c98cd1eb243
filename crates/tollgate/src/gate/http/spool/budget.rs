//! Limits on the bytes of responses that are buffered for slow clients: in memory, in the spool file, and per client.
//! It only counts; the bytes are elsewhere. The settings `gate.buffer` have the limits.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::BLOCK_BYTES;
use crate::settings::ResponseBuffer as Settings;

/// The place where a block of a response is buffered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    Memory,
    Spool,
}

/// The part of the memory, of all responses together, that a block may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// The first half. The other half is for [`Share::Staging`], so that downloads can still reach the spool when the
    /// first half is in use.
    Half,
    /// All of it: for the few blocks that a download needs to go through the spool, and for the last piece of a
    /// response.
    Staging,
    /// Without a limit: for the block that is read back from the spool, of which a response has one, and for the end of
    /// a response.
    Unbounded,
}

/// One client may use the memory divided by this: a quarter, so that the others have room to reach the spool.
const MEMORY_PARTS: u64 = 4;
/// The limit for one client is not lower than this, in bytes: room for a few downloads that go through the spool.
const CLIENT_MEMORY_MIN: u64 = 8 * BLOCK_BYTES as u64;

/// The number of stalled responses of one client at which its further requests are refused. A stalled response has no
/// room for its rest, so that its backend waits. Each uses up to 84 KiB outside the budget: a buffer of the connection
/// to the backend, and the task.
const STALLED_PER_ADDRESS_MAX: usize = 64;
/// The number of stalled responses in total at which clients that have some get no more.
const STALLED_MAX: usize = 512;

/// The limits and the bytes in use.
#[derive(Debug, Default)]
pub(crate) struct SpoolBudget {
    memory_max: AtomicU64,
    spool_max: AtomicU64,
    per_address_max: AtomicU64,
    /// The bytes in each [`Store`].
    used: [AtomicU64; 2],
    /// The number of stalled responses.
    stalled: AtomicUsize,
    /// The clients with buffered bytes or stalled responses.
    by_address: Mutex<HashMap<IpAddr, ClientBuffers>>,
}

/// The buffered bytes and stalled responses of one client.
#[derive(Clone, Copy, Debug, Default)]
struct ClientBuffers {
    /// The bytes in each [`Store`].
    used: [u64; 2],
    stalled: usize,
}

impl ClientBuffers {
    fn is_nothing(&self) -> bool {
        self.used == [0, 0] && self.stalled == 0
    }
}

impl SpoolBudget {
    pub(super) fn new(settings: &Settings) -> Self {
        let budget = Self::default();
        budget.reload(settings);
        budget
    }

    /// Changes the limits. Blocks in use stay.
    pub(crate) fn reload(&self, settings: &Settings) {
        self.memory_max.store(settings.memory_bytes_max, Ordering::Relaxed);
        self.spool_max.store(settings.spool_bytes_max, Ordering::Relaxed);
        self.per_address_max.store(settings.per_address_bytes_max, Ordering::Relaxed);
    }

    /// The bytes in memory, and those in the spool.
    pub(crate) fn used(&self) -> (u64, u64) {
        let [memory, spool] = &self.used;
        (memory.load(Ordering::Relaxed), spool.load(Ordering::Relaxed))
    }

    /// Takes memory, if the limits permit it. Without a client, as for a trusted proxy, only the total limit applies.
    pub(super) fn take_memory(&self, client: Option<IpAddr>, share: Share, bytes: usize) -> bool {
        let max = self.memory_max.load(Ordering::Relaxed);
        let max = match share {
            Share::Half => max / 2,
            Share::Staging => max,
            Share::Unbounded => u64::MAX,
        };
        self.take(Store::Memory, max, client, share == Share::Unbounded, bytes)
    }

    /// Takes a block of the spool, if the limits permit it.
    pub(super) fn take_spool(&self, client: IpAddr) -> bool {
        self.take(Store::Spool, self.spool_max.load(Ordering::Relaxed), Some(client), false, BLOCK_BYTES)
    }

    fn take(&self, store: Store, max: u64, client: Option<IpAddr>, is_unbounded: bool, bytes: usize) -> bool {
        let (bytes, used) = (bytes as u64, &self.used[store as usize]);
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= max);
        if used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_err() {
            return false;
        }
        let Some(client) = client.map(client_key) else { return true };
        let mut by_address = self.by_address.lock();
        let mut held = by_address.get(&client).copied().unwrap_or_default();
        held.used[store as usize] += bytes;
        let memory_max = (self.memory_max.load(Ordering::Relaxed) / MEMORY_PARTS).max(CLIENT_MEMORY_MIN);
        let [memory, spool] = held.used;
        let is_over = memory + spool > self.per_address_max.load(Ordering::Relaxed)
            || (store == Store::Memory && memory > memory_max);
        if is_over && !is_unbounded {
            used.fetch_sub(bytes, Ordering::Relaxed);
            return false;
        }
        by_address.insert(client, held);
        true
    }

    /// Gives memory back.
    pub(super) fn give_memory(&self, client: Option<IpAddr>, bytes: usize) {
        self.give(Store::Memory, client, bytes);
    }

    /// Gives a block of the spool back.
    pub(super) fn give_spool(&self, client: IpAddr) {
        self.give(Store::Spool, Some(client), BLOCK_BYTES);
    }

    fn give(&self, store: Store, client: Option<IpAddr>, bytes: usize) {
        let bytes = bytes as u64;
        self.used[store as usize].fetch_sub(bytes, Ordering::Relaxed);
        let Some(client) = client.map(client_key) else { return };
        let mut by_address = self.by_address.lock();
        if let Some(held) = by_address.get_mut(&client) {
            let used = &mut held.used[store as usize];
            *used = used.saturating_sub(bytes);
            if held.is_nothing() {
                by_address.remove(&client);
            }
        }
    }

    /// Counts a response as stalled, or no longer.
    pub(super) fn set_stalled(&self, client: IpAddr, is_stalled: bool) {
        let mut by_address = self.by_address.lock();
        let held = by_address.entry(client_key(client)).or_default();
        if is_stalled {
            held.stalled += 1;
            self.stalled.fetch_add(1, Ordering::Relaxed);
        } else {
            held.stalled -= 1;
            self.stalled.fetch_sub(1, Ordering::Relaxed);
        }
        if held.is_nothing() {
            by_address.remove(&client_key(client));
        }
    }

    /// Whether a client has so many stalled responses that it should get no more. A response is stalled when there is
    /// no room for its rest, so that its backend waits. Takes a lock only if many are.
    pub(crate) fn has_too_many_stalled(&self, client: IpAddr) -> bool {
        let stalled = self.stalled.load(Ordering::Relaxed);
        if stalled < STALLED_PER_ADDRESS_MAX {
            return false;
        }
        let by_address = self.by_address.lock();
        let own = by_address.get(&client_key(client)).map_or(0, |held| held.stalled);
        own >= STALLED_PER_ADDRESS_MAX || (own > 0 && stalled >= STALLED_MAX)
    }
}

/// The key of a client: an IPv4 address or an IPv6 /64.
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

    fn budget(memory: u64, spool: u64, per_address: u64) -> SpoolBudget {
        SpoolBudget::new(&Settings {
            memory_bytes_max: memory * BLOCK,
            spool_bytes_max: spool * BLOCK,
            per_address_bytes_max: per_address * BLOCK,
            dir: "/nowhere".into(),
        })
    }

    #[test]
    fn memory_and_spool_are_given_out_up_to_each_bound_and_again_when_they_are_back() {
        let budget = budget(8, 3, 100);
        let clients: Vec<_> = (1..=8).map(|last| IpAddr::from([192, 0, 2, last])).collect();
        let memory =
            |share| clients.iter().filter(|client| budget.take_memory(Some(**client), share, BLOCK_BYTES)).count();
        assert_eq!((memory(Share::Half), memory(Share::Staging)), (4, 4));
        assert_eq!((0..100).take_while(|_| budget.take_spool(clients[0])).count(), 3);
        assert_eq!(budget.used(), (8 * BLOCK, 3 * BLOCK));
        assert!(budget.take_memory(Some(clients[0]), Share::Unbounded, BLOCK_BYTES));
        budget.give_memory(Some(clients[0]), BLOCK_BYTES);
        clients.iter().take(4).for_each(|client| (0..2).for_each(|_| budget.give_memory(Some(*client), BLOCK_BYTES)));
        (0..3).for_each(|_| budget.give_spool(clients[0]));
        assert_eq!(budget.used(), (0, 0));
        assert!(budget.by_address.lock().is_empty());
    }

    #[test]
    fn one_client_gets_its_part_of_memory_and_spool_together() {
        let budget = budget(100, 100, 5);
        let networks = [["2001:db8::1", "2001:db8::2"], ["192.0.2.1", "192.0.2.1"], ["192.0.2.2", "192.0.2.2"]];
        for [one, same] in networks.map(|pair| pair.map(|text| text.parse().unwrap())) {
            assert!(budget.take_memory(Some(one), Share::Half, BLOCK_BYTES));
            assert!(budget.take_memory(Some(same), Share::Staging, BLOCK_BYTES));
            assert_eq!((0..100).take_while(|_| budget.take_spool(same)).count(), 3);
            assert!(!budget.take_memory(Some(one), Share::Half, 1));
        }
        assert_eq!(budget.used(), (6 * BLOCK, 9 * BLOCK));
    }

    #[test]
    fn one_client_gets_a_quarter_of_the_memory_and_a_trusted_proxy_half() {
        let (budget, client) = (budget(64, 100, 100), IpAddr::from([192, 0, 2, 1]));
        let taken = |client| (0..100).take_while(|_| budget.take_memory(client, Share::Half, BLOCK_BYTES)).count();
        assert_eq!((taken(Some(client)), taken(None)), (16, 16), "half of it is in use then");
        assert!(!budget.take_memory(Some(client), Share::Staging, 1));
        assert!(budget.take_memory(Some([192, 0, 2, 2].into()), Share::Staging, BLOCK_BYTES));
    }

    #[test]
    fn a_client_with_too_many_stalled_responses_gets_no_more_and_others_do() {
        let (budget, client, other) = (budget(8, 8, 8), IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2]));
        (1..STALLED_PER_ADDRESS_MAX).for_each(|_| budget.set_stalled(client, true));
        assert!(!budget.has_too_many_stalled(client));
        budget.set_stalled(client, true);
        assert!(budget.has_too_many_stalled(client) && !budget.has_too_many_stalled(other));
        (0..STALLED_PER_ADDRESS_MAX).for_each(|_| budget.set_stalled(client, false));
        assert!(budget.by_address.lock().is_empty());
    }
}
