//! A bounded number of places, of which one network gets a part: event streams, and reports that are being read.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tollgate_core::network::Network;

use super::connections::network_of;

/// Places in total and for one network.
pub(super) struct Quota {
    total_max: usize,
    per_network_max: usize,
    taken: Mutex<HashMap<Network, usize>>,
    freed: Notify,
}

/// One place, until this is dropped.
pub(super) struct QuotaPlace {
    quota: Arc<Quota>,
    network: Network,
}

impl Quota {
    /// `total_max` places, of which one network has at most half.
    pub(super) fn new(total_max: usize) -> Arc<Self> {
        let (taken, freed) = (Mutex::default(), Notify::new());
        Arc::new(Self { total_max, per_network_max: total_max / 2, taken, freed })
    }

    /// A place for `address`, if there is one.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<QuotaPlace> {
        let (network, mut taken) = (network_of(address), self.lock());
        let own = taken.get(&network).copied().unwrap_or(0);
        if own >= self.per_network_max || taken.values().sum::<usize>() >= self.total_max {
            return None;
        }
        taken.insert(network, own + 1);
        Some(QuotaPlace { quota: self.clone(), network })
    }

    /// A place for `address`, as soon as there is one within `wait_max`.
    pub(super) async fn wait(self: &Arc<Self>, address: IpAddr, wait_max: Duration) -> Option<QuotaPlace> {
        let entered = async {
            loop {
                let mut freed = pin!(self.freed.notified());
                // A place that is freed after the check below wakes this wait.
                freed.as_mut().enable();
                if let Some(place) = self.enter(address) {
                    return place;
                }
                freed.await;
            }
        };
        tokio::time::timeout(wait_max, entered).await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Network, usize>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QuotaPlace {
    fn drop(&mut self) {
        let mut taken = self.quota.lock();
        if let Some(count) = taken.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.network);
            }
        }
        drop(taken);
        self.quota.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_network_has_half_of_the_places_and_a_freed_place_goes_to_a_waiter() {
        let (quota, wait_max) = (Quota::new(4), Duration::from_secs(60));
        let address = |last| IpAddr::from([203, 0, 113, last]);
        let mut own: Vec<_> = (0..2).map(|_| quota.enter(address(1)).unwrap()).collect();
        assert!(quota.enter(address(1)).is_none());
        let others: Vec<_> = (2..4).map(|last| quota.enter(address(last)).unwrap()).collect();
        assert!(quota.enter(address(9)).is_none(), "all are taken");
        assert!(quota.wait(address(9), Duration::from_millis(1)).await.is_none());
        let (waited, ()) = tokio::join!(quota.wait(address(9), wait_max), async {
            tokio::task::yield_now().await;
            own.pop();
        });
        drop((waited.unwrap(), others, own));
        assert!(quota.lock().is_empty());
    }
}
