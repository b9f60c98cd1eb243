//! Limits on the connections of clients, and on the memory that HTTP/2 connections borrow for requests that are not
//! forwarded yet, in total and per address. The workers (threads) share them.
//!
//! Idle connections are closed to make room for new ones. If none is idle, a connection of the address with the most
//! connections is closed for a new one of an address with fewer, so that a few addresses with busy connections do not
//! exclude all others.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use parking_lot::{Mutex, MutexGuard};
use tollgate_core::network::Network;

/// The number of maps of addresses, each with its own lock.
const SHARDS: usize = 16;

/// Connections above the limit that are accepted while others are being closed for them.
const RESERVE: usize = 32;

/// Bytes that all connections together may borrow for requests that are not forwarded yet.
const BORROWED_MAX: usize = 256 << 20;
/// Bytes that the connections of one address may borrow: an eighth of the total, enough for several connections.
const BORROWED_PER_ADDRESS_MAX: usize = 32 << 20;

/// Counts the connections of all workers. It is updated when a connection opens and closes, not by requests.
#[derive(Debug)]
pub(crate) struct Caps {
    total_max: AtomicUsize,
    /// Open connections, including those of trusted proxies.
    total: AtomicUsize,
    holdings: Arc<Holdings>,
    /// The time of the last search by [`Caps::evict`] that found no address to take connections from, in milliseconds.
    fruitless_ms: AtomicU64,
}

/// The connections of each address, and the borrowed memory.
#[derive(Debug, Default)]
struct Holdings {
    /// The connections of each address. There is at most one entry per connection.
    by_address: [Shard; SHARDS],
    /// Bytes that connections have borrowed.
    borrowed: AtomicUsize,
    /// Connections that are being closed for others and have not ended yet.
    evicting: AtomicUsize,
}

/// One address may have at most the total limit divided by this: a quarter of all connections.
const PART_OF_ONE_ADDRESS: usize = 4;

type Shard = Mutex<HashMap<IpAddr, Holding>>;

/// The connections of one address, oldest first, and the bytes that they have borrowed.
#[derive(Debug, Default)]
struct Holding {
    connections: Vec<Arc<Eviction>>,
    borrowed: usize,
}

impl Holding {
    fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.borrowed == 0
    }
}

/// Closes a connection from any thread, whatever it does.
#[derive(Debug, Default)]
pub(crate) struct Eviction {
    is_evicted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Eviction {
    /// Whether the connection has to end now.
    pub(crate) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Acquire)
    }

    /// Wakes the current task when the connection has to end.
    pub(crate) async fn register_task(&self) {
        poll_fn(|cx| {
            *self.waker.lock() = Some(cx.waker().clone());
            Poll::Ready(())
        })
        .await;
    }

    fn evict(&self) {
        self.is_evicted.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }
}

/// A connection that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct CountedConnection {
    holdings: Arc<Holdings>,
    /// The address that is counted; none for a trusted proxy.
    pub(crate) address: Option<IpAddr>,
    /// The handle that closes this connection.
    pub(crate) eviction: Arc<Eviction>,
    /// Bytes that this connection has borrowed.
    pub(crate) borrowed: usize,
}

impl Caps {
    pub(crate) fn new(total_max: usize) -> Self {
        Self {
            total_max: AtomicUsize::new(total_max),
            total: AtomicUsize::new(0),
            holdings: Arc::default(),
            fruitless_ms: AtomicU64::new(u64::MAX),
        }
    }

    /// Changes the limit. No connection is closed for it before a new one comes.
    pub(crate) fn set_total_max(&self, total_max: usize) {
        self.total_max.store(total_max, Ordering::Relaxed);
    }

    fn total_max(&self) -> usize {
        self.total_max.load(Ordering::Relaxed)
    }

    /// The number of connections.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// The number of connections above the limit.
    pub(crate) fn excess(&self) -> usize {
        self.total().saturating_sub(self.total_max())
    }

    /// Whether more than half of the permitted connections are open, so that each must use less memory.
    pub(crate) fn is_crowded(&self) -> bool {
        self.total() > self.total_max() / 2
    }

    /// Counts a connection in the total. Returns false, and does not count it, if [`RESERVE`] is used up.
    pub(crate) fn enter(&self) -> bool {
        let bound = self.total_max().saturating_add(RESERVE);
        let enter = |total: usize| (total < bound).then_some(total + 1);
        self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).is_ok()
    }

    /// Counts the backend's connection of a tunnel. It exists already, so no limit applies.
    pub(crate) fn add(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a connection from the total.
    pub(crate) fn leave(&self) {
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a connection for its address; an IPv6 client is its /64. None if the address has as many as it may have.
    /// Without a limit, as for a trusted proxy, it is not counted.
    pub(crate) fn count(&self, address: IpAddr, per_address_max: Option<usize>) -> Option<CountedConnection> {
        let holdings = self.holdings.clone();
        let mut counted = CountedConnection { holdings, address: None, eviction: Arc::default(), borrowed: 0 };
        let Some(per_address_max) = per_address_max else { return Some(counted) };
        let address = Network::of(address, if address.is_ipv6() { 64 } else { 32 }).address();
        let bound = per_address_max.min((self.total_max() / PART_OF_ONE_ADDRESS).max(1));
        {
            let mut counts = self.holdings.lock(address);
            let connections = &mut counts.entry(address).or_default().connections;
            if connections.len() >= bound {
                return None;
            }
            connections.push(counted.eviction.clone());
        }
        counted.address = Some(address);
        Some(counted)
    }

    /// The number of connections that are being closed for others.
    pub(crate) fn evicting(&self) -> usize {
        self.holdings.evicting.load(Ordering::Relaxed)
    }

    /// Closes up to `count` connections of the address with the most, the newest first, as long as that address has
    /// more than `own`, the number of the address that needs room. Returns how many.
    ///
    /// The search visits every address. If it finds nothing for an address whose only connection is the new one, there
    /// is no further search before `now_ms` changes.
    pub(crate) fn evict(&self, count: usize, own: usize, now_ms: u64) -> usize {
        if count == 0 || self.fruitless_ms.load(Ordering::Relaxed) == now_ms {
            return 0;
        }
        let most_of = |shard: &Shard| {
            let holdings = shard.lock();
            holdings.iter().map(|(address, holding)| (holding.connections.len(), *address)).max()
        };
        let most =
            self.holdings.by_address.iter().filter_map(most_of).max().filter(|(connections, _)| *connections > own);
        let Some((_, address)) = most else {
            // An address with several connections finds nothing sooner than others. It must not stop their searches.
            if own <= 1 {
                self.fruitless_ms.store(now_ms, Ordering::Relaxed);
            }
            return 0;
        };
        let mut holdings = self.holdings.lock(address);
        let Some(Holding { connections, .. }) = holdings.get_mut(&address) else { return 0 };
        let left = connections.len().saturating_sub(count).max(own).min(connections.len());
        let evicted = connections.split_off(left);
        self.holdings.evicting.fetch_add(evicted.len(), Ordering::Relaxed);
        evicted.iter().for_each(|eviction| eviction.evict());
        evicted.len()
    }
}

impl CountedConnection {
    /// The number of connections of the same address. A trusted proxy is not counted.
    pub(crate) fn connections_of_address(&self) -> usize {
        let Some(address) = self.address else { return 0 };
        self.holdings.lock(address).get(&address).map_or(0, |holding| holding.connections.len())
    }

    /// Borrows bytes, if the limits of the address and of all connections permit it. A trusted proxy has no limit of
    /// its own.
    pub(crate) fn borrow(&mut self, bytes: usize) -> bool {
        let within = |bound: usize| move |borrowed: usize| borrowed.checked_add(bytes).filter(|sum| *sum <= bound);
        let in_total = &self.holdings.borrowed;
        if in_total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within(BORROWED_MAX)).is_err() {
            return false;
        }
        if let Some(address) = self.address {
            let mut holdings = self.holdings.lock(address);
            let holding = holdings.entry(address).or_default();
            match within(BORROWED_PER_ADDRESS_MAX)(holding.borrowed) {
                Some(sum) => holding.borrowed = sum,
                None => {
                    in_total.fetch_sub(bytes, Ordering::Relaxed);
                    return false;
                }
            }
        }
        self.borrowed += bytes;
        true
    }

    /// Returns all borrowed bytes.
    pub(crate) fn give_back(&mut self) {
        let borrowed = std::mem::take(&mut self.borrowed);
        if borrowed == 0 {
            return;
        }
        self.holdings.borrowed.fetch_sub(borrowed, Ordering::Relaxed);
        if let Some(address) = self.address
            && let Some(holding) = self.holdings.lock(address).get_mut(&address)
        {
            holding.borrowed -= borrowed;
        }
    }
}

impl Holdings {
    fn lock(&self, address: IpAddr) -> MutexGuard<'_, HashMap<IpAddr, Holding>> {
        let byte = match address {
            IpAddr::V4(v4) => v4.octets()[3],
            IpAddr::V6(v6) => v6.octets()[7],
        };
        self.by_address[usize::from(byte) % SHARDS].lock()
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.give_back();
        let Some(address) = self.address else { return };
        let mut holdings = self.holdings.lock(address);
        if let Some(holding) = holdings.get_mut(&address) {
            let place = holding.connections.iter().rposition(|other| Arc::ptr_eq(other, &self.eviction));
            if let Some(place) = place {
                holding.connections.remove(place);
            }
            if holding.is_empty() {
                holdings.remove(&address);
            }
        }
        // Under the lock, so that the connection is not evicted after this check.
        if self.eviction.is_evicted() {
            self.holdings.evicting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_as_many_connections_as_it_may_and_gets_them_back() {
        let caps = Caps::new(100);
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let held: Vec<_> = (0..3).map(|_| caps.count(address, Some(3)).unwrap()).collect();
        assert!(caps.count(address, Some(3)).is_none());
        assert!(caps.count("192.0.2.2".parse().unwrap(), Some(3)).is_some());
        assert!(caps.count(address, None).is_some(), "who is not counted is not bounded");
        drop(held);
        assert!(caps.count(address, Some(3)).is_some());
        assert!(caps.holdings.by_address.iter().all(|shard| shard.lock().is_empty()), "nothing is left behind");
    }

    #[test]
    fn an_address_has_at_most_a_quarter_of_all_connections() {
        let caps = Caps::new(40);
        let address: IpAddr = [192, 0, 2, 1].into();
        let _held: Vec<_> = (0..10).map(|_| caps.count(address, Some(1024)).unwrap()).collect();
        assert!(caps.count(address, Some(1024)).is_none());
        assert!(Caps::new(1).count(address, Some(1024)).is_some(), "one at least");
    }

    #[test]
    fn a_newcomer_replaces_connections_of_the_address_with_the_most() {
        let caps = Caps::new(100);
        let client = |last: u8| caps.count([192, 0, 2, last].into(), Some(100)).unwrap();
        let many: Vec<_> = (0..20).map(|_| client(1)).collect();
        let few: Vec<_> = (0..3).map(|_| client(2)).collect();
        let is_evicted = |all: &[CountedConnection]| all.iter().filter(|counted| counted.eviction.is_evicted()).count();
        assert_eq!(caps.evict(8, 20, 1), 0, "it has as many itself");
        assert_eq!(caps.evict(8, 1, 1), 8);
        assert_eq!((is_evicted(&many[..12]), is_evicted(&many[12..]), is_evicted(&few)), (0, 8, 0));
        assert_eq!((many[0].connections_of_address(), caps.evicting()), (12, 8));
        assert_eq!((caps.evict(100, 3, 1), caps.evicting()), (9, 17), "until they have as many");
        assert_eq!((caps.evict(1, 3, 1), caps.evict(1, 2, 1)), (0, 1));
        drop((many, few));
        assert_eq!(caps.evicting(), 0);
        assert!(caps.holdings.by_address.iter().all(|shard| shard.lock().is_empty()), "nothing is left behind");
        assert_eq!((caps.evict(1, 1, 2), caps.fruitless_ms.load(Ordering::Relaxed)), (0, 2));
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let caps = Caps::new(100);
        let _first = caps.count("2001:db8::1".parse().unwrap(), Some(1)).unwrap();
        assert!(caps.count("2001:db8::ffff:1".parse().unwrap(), Some(1)).is_none());
        assert!(caps.count("2001:db8:0:1::1".parse().unwrap(), Some(1)).is_some());
    }

    #[test]
    fn the_total_is_bounded() {
        let caps = Caps::new(2);
        assert!(caps.enter() && caps.enter());
        assert_eq!(caps.excess(), 0);
        assert!((0..RESERVE).all(|_| caps.enter()), "while room is made");
        assert_eq!(caps.excess(), RESERVE);
        assert!(!caps.enter());
        caps.leave();
        assert!(caps.enter());
        caps.set_total_max(3);
        assert!(caps.enter());
        assert!(!caps.enter());
    }

    #[test]
    fn an_address_and_all_together_borrow_no_more_than_they_may() {
        let caps = Caps::new(10_000);
        let client = |number: u32| caps.count(std::net::Ipv4Addr::from(number).into(), Some(1024)).unwrap();
        let (mut first, mut second) = (client(1), client(1));
        assert!(first.borrow(BORROWED_PER_ADDRESS_MAX - 1) && second.borrow(1));
        assert!(!first.borrow(1) && !second.borrow(1));
        drop(first);
        assert!(second.borrow(BORROWED_PER_ADDRESS_MAX - 1));
        second.give_back();
        assert_eq!((second.borrowed, caps.holdings.borrowed.load(Ordering::Relaxed)), (0, 0));
        let mut all: Vec<_> = (0..8).map(client).collect();
        assert!(all.iter_mut().all(|counted| counted.borrow(BORROWED_PER_ADDRESS_MAX)));
        assert!(!second.borrow(1), "all is borrowed");
        let mut proxy = caps.count([10, 0, 0, 1].into(), None).unwrap();
        assert!(!proxy.borrow(1));
        drop(all);
        assert!(proxy.borrow(BORROWED_MAX), "a trusted proxy has no bound of its own");
        drop((proxy, second));
        assert_eq!(caps.holdings.borrowed.load(Ordering::Relaxed), 0);
    }
}
