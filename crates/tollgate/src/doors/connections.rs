//! Bounds the connections of one thread.
//!
//! If new connections were refused at the bound, a single client could block all others. Instead, a new connection at
//! the bound closes an existing one without a call in progress: first those that never sent a valid call, and among
//! equals the one that has been idle the longest.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The connections of one thread.
pub(super) struct DoorConnections {
    all: RefCell<Vec<Rc<Usage>>>,
    max: usize,
}

/// The usage of a connection, which determines when it is closed for another.
pub(super) struct Usage {
    /// Whether the connection has carried a valid, authorized call.
    pub(crate) is_useful: Cell<bool>,
    is_serving: Cell<bool>,
    /// The time of the last start or end of a call.
    used_at: Cell<Instant>,
    replaced: Notify,
}

impl Usage {
    /// Records a valid, authorized call.
    pub(super) fn is_of_use(&self) {
        self.is_useful.set(true);
    }

    /// Records the start or the end of a call.
    pub(super) fn set_serving(&self, is_serving: bool) {
        self.is_serving.set(is_serving);
        self.used_at.set(Instant::now());
    }

    /// Whether a call is in progress.
    pub(super) fn is_serving(&self) -> bool {
        self.is_serving.get()
    }

    /// Records that a call begins to arrive.
    pub(super) fn touch(&self) {
        self.used_at.set(Instant::now());
    }

    /// The time of the last call.
    pub(super) fn used_at(&self) -> Instant {
        self.used_at.get()
    }

    /// Waits until this connection must close for another.
    pub(super) async fn replaced(&self) {
        self.replaced.notified().await;
    }
}

/// A connection that counts towards the bound until this is dropped.
pub(super) struct DoorConnection {
    connections: Rc<DoorConnections>,
    pub(super) usage: Rc<Usage>,
}

impl Drop for DoorConnection {
    fn drop(&mut self) {
        self.connections.forget(&self.usage);
    }
}

impl DoorConnections {
    pub(super) fn new(max: usize) -> Rc<Self> {
        Rc::new(Self { all: RefCell::default(), max: max.max(1) })
    }

    /// The number of connections.
    pub(super) fn count(&self) -> usize {
        self.all.borrow().len()
    }

    /// Adds a connection, and returns whether another one closes for it. None if all have a call in progress.
    pub(super) fn enter(self: &Rc<Self>) -> Option<(DoorConnection, bool)> {
        let is_full = self.count() >= self.max;
        if is_full && !self.replace_one() {
            return None;
        }
        let usage = Rc::new(Usage {
            is_useful: Cell::new(false),
            is_serving: Cell::new(false),
            used_at: Cell::new(Instant::now()),
            replaced: Notify::new(),
        });
        self.all.borrow_mut().push(usage.clone());
        Some((DoorConnection { connections: self.clone(), usage }, is_full))
    }

    fn replace_one(&self) -> bool {
        let mut all = self.all.borrow_mut();
        let candidates = all.iter().enumerate().filter(|(_, usage)| !usage.is_serving.get());
        let least = candidates.min_by_key(|(_, usage)| (usage.is_useful.get(), usage.used_at.get()));
        let Some((place, _)) = least else { return false };
        all.swap_remove(place).replaced.notify_one();
        true
    }

    fn forget(&self, usage: &Rc<Usage>) {
        let mut all = self.all.borrow_mut();
        if let Some(place) = all.iter().position(|known| Rc::ptr_eq(known, usage)) {
            all.swap_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn at_the_bound_the_least_used_idle_connection_is_closed() {
        let connections = DoorConnections::new(3);
        let (useful, _) = connections.enter().unwrap();
        useful.usage.is_of_use();
        let (silent, _) = connections.enter().unwrap();
        let (busy, is_full) = connections.enter().unwrap();
        busy.usage.set_serving(true);
        assert!(!is_full);
        let (new, replaces) = connections.enter().unwrap();
        assert!(replaces && connections.count() == 3);
        tokio::time::timeout(std::time::Duration::from_secs(5), silent.usage.replaced()).await.unwrap();
        new.usage.set_serving(true);
        useful.usage.set_serving(true);
        assert!(connections.enter().is_none(), "all have a call in progress");
        drop((useful, silent, busy, new));
        assert_eq!(connections.count(), 0);
    }
}
