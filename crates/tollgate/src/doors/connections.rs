//! The connections of one thread: how many there may be, and which one is closed for a new one.
//!
//! A fixed number, first come first served, would let anybody who can connect keep everybody else out. So while the room is full a new connection takes
//! the place of the one that is of least use: one that never made a call that was understood, before one that did, and of those the one that has been silent the longest.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The connections of one thread.
pub(super) struct Connections {
    all: RefCell<Vec<Rc<Usage>>>,
    max: usize,
}

/// How a connection has been used.
pub(super) struct Usage {
    /// Whether a call on it was understood and let in.
    is_useful: Cell<bool>,
    is_serving: Cell<bool>,
    used_at: Cell<Instant>,
    replaced: Notify,
}

impl Usage {
    /// A call was understood and let in.
    pub(super) fn is_of_use(&self) {
        self.is_useful.set(true);
        self.used_at.set(Instant::now());
    }

    /// Whether a call on it was understood and let in.
    pub(super) fn is_useful(&self) -> bool {
        self.is_useful.get()
    }

    /// Whether a call is being answered.
    pub(super) fn set_serving(&self, is_serving: bool) {
        self.is_serving.set(is_serving);
        self.used_at.set(Instant::now());
    }

    /// Waits until another connection takes the place of this one.
    pub(super) async fn replaced(&self) {
        self.replaced.notified().await;
    }
}

/// One connection; it is counted until this is dropped.
pub(super) struct Connection {
    connections: Rc<Connections>,
    pub(super) usage: Rc<Usage>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.forget(&self.usage);
    }
}

impl Connections {
    pub(super) fn new(max: usize) -> Rc<Self> {
        Rc::new(Self { all: RefCell::default(), max: max.max(1) })
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.all.borrow().len()
    }

    /// Counts a new connection. Returns whether another closes for it. No connection: all are answering calls.
    pub(super) fn enter(self: &Rc<Self>) -> Option<(Connection, bool)> {
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
        Some((Connection { connections: self.clone(), usage }, is_full))
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
    async fn a_full_room_closes_the_connection_of_least_use() {
        let connections = Connections::new(3);
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
        assert!(connections.enter().is_none(), "all are answering");
        drop((useful, silent, busy, new));
        assert_eq!(connections.count(), 0);
    }
}
