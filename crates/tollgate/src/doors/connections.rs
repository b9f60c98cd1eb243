//! Bounds the connections of one thread to all doors.
//!
//! If new connections were refused at the bound, a single client could block all others. Instead, a new connection at
//! the bound closes an existing one without a call in progress: first those that never sent a valid call, and among
//! equals the one that has been idle the longest.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use tokio::task::AbortHandle;
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
    /// Whether a call is in progress: such a connection is not closed for another.
    is_serving: Cell<bool>,
    /// The time at which the last call ended, or the connection began.
    pub(super) used_at: Cell<Instant>,
    /// The task of the connection, which ends if another connection takes its place.
    pub(super) task: OnceCell<AbortHandle>,
}

impl Usage {
    /// Records the start or the end of a call.
    pub(super) fn set_serving(&self, is_serving: bool) {
        self.is_serving.set(is_serving);
        if !is_serving {
            self.touch();
        }
    }

    /// Records a call that ends without having been in progress.
    pub(super) fn touch(&self) {
        self.used_at.set(Instant::now());
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

    /// Adds a connection, and returns whether another one was closed for it. None if the bound is reached and all
    /// connections have a call in progress.
    pub(super) fn enter(self: &Rc<Self>) -> Option<(DoorConnection, bool)> {
        let is_full = self.count() >= self.max;
        if is_full && !self.replace_one() {
            return None;
        }
        let usage = Rc::new(Usage {
            is_useful: Cell::new(false),
            is_serving: Cell::new(false),
            used_at: Cell::new(Instant::now()),
            task: OnceCell::new(),
        });
        self.all.borrow_mut().push(usage.clone());
        Some((DoorConnection { connections: self.clone(), usage }, is_full))
    }

    /// Closes the least used connection without a call in progress. Returns whether there was one.
    fn replace_one(&self) -> bool {
        let mut all = self.all.borrow_mut();
        let candidates = all.iter().enumerate().filter(|(_, usage)| !usage.is_serving.get());
        let least = candidates.min_by_key(|(_, usage)| (usage.is_useful.get(), usage.used_at.get()));
        let Some((index, _)) = least else { return false };
        if let Some(task) = all.swap_remove(index).task.get() {
            task.abort();
        }
        true
    }

    fn forget(&self, usage: &Rc<Usage>) {
        let mut all = self.all.borrow_mut();
        if let Some(index) = all.iter().position(|known| Rc::ptr_eq(known, usage)) {
            all.swap_remove(index);
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
        useful.usage.is_useful.set(true);
        let (silent, _) = connections.enter().unwrap();
        let task = tokio::spawn(std::future::pending::<()>());
        let _ = silent.usage.task.set(task.abort_handle());
        let (busy, is_full) = connections.enter().unwrap();
        busy.usage.set_serving(true);
        assert!(!is_full);
        let (new, replaces) = connections.enter().unwrap();
        assert!(replaces && connections.count() == 3);
        assert!(task.await.unwrap_err().is_cancelled());
        new.usage.set_serving(true);
        useful.usage.set_serving(true);
        assert!(connections.enter().is_none(), "all have a call in progress");
        drop((useful, silent, busy, new));
        assert_eq!(connections.count(), 0);
    }
}
