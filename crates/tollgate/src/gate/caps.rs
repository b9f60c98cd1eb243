//! How many connections there may be, in total and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tollgate_core::network::Network;

const SHARDS: usize = 16;

/// How many more than there may be are let in while idle ones are being closed to make room.
const RESERVE: usize = 32;

/// Counts connections for all workers. Touched when a connection opens and closes, never by requests.
#[derive(Debug)]
pub(crate) struct Caps {
    total_max: AtomicUsize,
    total: AtomicUsize,
    /// How many connections each address has. As many entries as there are connections, at most.
    by_address: Arc<[Mutex<HashMap<IpAddr, usize>>]>,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The gate has as many as it may have.
    InTotal,
    /// The address has as many as it may have.
    ForAddress,
}

/// A connection that is counted while this lives.
#[derive(Debug)]
pub(crate) struct Counted {
    caps: Arc<[Mutex<HashMap<IpAddr, usize>>]>,
    address: Option<IpAddr>,
}

impl Caps {
    pub(crate) fn new(total_max: usize) -> Self {
        let by_address = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { total_max: AtomicUsize::new(total_max), total: AtomicUsize::new(0), by_address }
    }

    /// There may be so many from now on. Nobody is disconnected for it before somebody else comes.
    pub(crate) fn set_total_max(&self, total_max: usize) {
        self.total_max.store(total_max, Ordering::Relaxed);
    }

    fn total_max(&self) -> usize {
        self.total_max.load(Ordering::Relaxed)
    }

    /// How many connections there are.
    pub(crate) fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// How many have to go, so that there are no more than there may be.
    pub(crate) fn excess(&self) -> usize {
        self.total().saturating_sub(self.total_max())
    }

    /// Counts a connection in the total.
    pub(crate) fn enter(&self) -> Result<(), NoRoom> {
        let bound = self.total_max().saturating_add(RESERVE);
        let enter = |total: usize| (total < bound).then_some(total + 1);
        let entered = self.total.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter);
        entered.map(drop).map_err(|_| NoRoom::InTotal)
    }

    /// Counts the other connection of two that have become one. It is there already.
    pub(crate) fn add(&self) {
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes a connection off the total.
    pub(crate) fn leave(&self) {
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts a connection for its address; an IPv6 client is its /64. No bound: it is not counted.
    pub(crate) fn count(&self, address: IpAddr, per_address_max: Option<usize>) -> Result<Counted, NoRoom> {
        let caps = self.by_address.clone();
        let Some(per_address_max) = per_address_max else {
            return Ok(Counted { caps, address: None });
        };
        let address = Network::of(address, if address.is_ipv6() { 64 } else { 32 }).address();
        {
            let mut counts = shard(&caps, address).lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(address).or_default();
            if *count >= per_address_max {
                if *count == 0 {
                    counts.remove(&address);
                }
                return Err(NoRoom::ForAddress);
            }
            *count += 1;
        }
        Ok(Counted { caps, address: Some(address) })
    }
}

fn shard(shards: &[Mutex<HashMap<IpAddr, usize>>], address: IpAddr) -> &Mutex<HashMap<IpAddr, usize>> {
    let byte = match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[7],
    };
    &shards[usize::from(byte) % SHARDS]
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(address) = self.address {
            let mut counts = shard(&self.caps, address).lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(count) = counts.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&address);
                }
            }
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
        assert_eq!(caps.count(address, Some(3)).unwrap_err(), NoRoom::ForAddress);
        assert!(caps.count("192.0.2.2".parse().unwrap(), Some(3)).is_ok());
        assert!(caps.count(address, None).is_ok(), "who is not counted is not bounded");
        drop(held);
        assert!(caps.count(address, Some(3)).is_ok());
        assert!(caps.by_address.iter().all(|shard| shard.lock().unwrap().is_empty()), "nothing is left behind");
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let caps = Caps::new(100);
        let _first = caps.count("2001:db8::1".parse().unwrap(), Some(1)).unwrap();
        assert!(caps.count("2001:db8::ffff:1".parse().unwrap(), Some(1)).is_err());
        assert!(caps.count("2001:db8:0:1::1".parse().unwrap(), Some(1)).is_ok());
    }

    #[test]
    fn the_total_is_bounded() {
        let caps = Caps::new(2);
        assert!(caps.enter().is_ok() && caps.enter().is_ok());
        assert_eq!(caps.excess(), 0);
        assert!((0..RESERVE).all(|_| caps.enter().is_ok()), "while room is made");
        assert_eq!(caps.excess(), RESERVE);
        assert_eq!(caps.enter(), Err(NoRoom::InTotal));
        caps.leave();
        assert!(caps.enter().is_ok());
        caps.set_total_max(3);
        assert!(caps.enter().is_ok());
        assert_eq!(caps.enter(), Err(NoRoom::InTotal));
    }
}
