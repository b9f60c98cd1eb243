//! A bounded number of permits, for event streams and for reports of refusals. One network may hold at most half of
//! them, so that it cannot lock out the others.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_core::network::Network;

use super::connections::network_of;
use crate::key_counts::KeyCounts;

/// Permits in total and per network.
pub(super) struct Quota {
    total_max: usize,
    per_network_max: usize,
    /// Permits that are taken.
    taken: Mutex<KeyCounts<Network>>,
    /// Notified when a permit is released.
    freed: Notify,
}

/// A permit, released when dropped.
pub(super) struct QuotaPermit {
    quota: Arc<Quota>,
    network: Network,
}

impl Quota {
    /// `total_max` permits, of which one network gets at most half.
    pub(super) fn new(total_max: usize) -> Arc<Self> {
        let (taken, freed) = (Mutex::default(), Notify::new());
        Arc::new(Self { total_max, per_network_max: total_max / 2, taken, freed })
    }

    /// Acquires a permit for `address`, if one is free.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<QuotaPermit> {
        let (network, mut taken) = (network_of(address), self.taken.lock());
        if taken.of(&network) >= self.per_network_max || taken.total() >= self.total_max {
            return None;
        }
        taken.add(network);
        Some(QuotaPermit { quota: self.clone(), network })
    }

    /// Acquires a permit for `address`, waiting at most `wait_max`.
    pub(super) async fn wait(self: &Arc<Self>, address: IpAddr, wait_max: Duration) -> Option<QuotaPermit> {
        let entered = async {
            loop {
                let mut freed = pin!(self.freed.notified());
                // Registered before the check, so that a permit released after it wakes this wait.
                freed.as_mut().enable();
                if let Some(permit) = self.enter(address) {
                    return permit;
                }
                freed.await;
            }
        };
        tokio::time::timeout(wait_max, entered).await.ok()
    }
}

impl Drop for QuotaPermit {
    fn drop(&mut self) {
        self.quota.taken.lock().remove(&self.network);
        self.quota.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_network_gets_half_of_the_permits_and_a_released_one_goes_to_a_waiter() {
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
        assert!(quota.taken.lock().total() == 0);
    }
}
