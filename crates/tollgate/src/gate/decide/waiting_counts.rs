//! Counts the waiting requests of each network, so that a refusal can state whether the client's own requests are the
//! reason, or those of other clients.

use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::queue::{Client, Standing};

use super::queue::Queue;
use crate::key_counts::KeyCounts;

/// The numbers of waiting requests, by queue and network (or user).
#[derive(Debug, Default)]
pub(crate) struct WaitingCounts(Mutex<KeyCounts<(usize, u64)>>);

/// One waiting request. Dropping it ends the wait.
#[derive(Debug)]
pub(crate) struct CountedWait<'a> {
    counts: &'a WaitingCounts,
    key: (usize, u64),
}

impl WaitingCounts {
    /// Counts a request that waits until the result is dropped.
    pub(crate) fn add(&self, queue: &Arc<Queue>, client: Client) -> CountedWait<'_> {
        let key = (Arc::as_ptr(queue) as usize, client.network);
        self.0.lock().add(key);
        CountedWait { counts: self, key }
    }

    /// Whether the client of a refused request, or its network, is the reason: it is ahead of its share, or more than
    /// half of what waits before the request is its own. `waited` is the request, if it has waited.
    pub(crate) fn are_own(
        &self,
        queue: &Arc<Queue>,
        client: Client,
        standing: Standing,
        waited: Option<&CountedWait<'_>>,
    ) -> bool {
        let own = self.0.lock().of(&(Arc::as_ptr(queue) as usize, client.network));
        let own_before = own.saturating_sub(usize::from(waited.is_some()));
        let before = standing.position.saturating_sub(1) as usize;
        standing.is_ahead || own_before * 2 > before
    }
}

impl Drop for CountedWait<'_> {
    fn drop(&mut self) {
        self.counts.0.lock().remove(&self.key);
    }
}
