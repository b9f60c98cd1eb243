//! The workers of the simulated site: a limited number of concurrent requests, and a FIFO queue for the rest.
//!
//! Standard semaphores do not guarantee FIFO order. FIFO is what most servers do, and it lets one heavy
//! client delay all others.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
};

/// The slots of all workers.
pub(crate) struct WorkerSlots {
    queue: Mutex<Queue>,
}

struct Queue {
    /// Slots that no request holds.
    free: usize,
    /// One channel per waiting request, in the order of arrival. A message admits the request.
    waiting: VecDeque<SyncSender<()>>,
}

/// A worker slot. Dropping it admits the next request.
pub(crate) struct WorkerSlot<'a>(&'a WorkerSlots);

impl WorkerSlots {
    pub(crate) const fn new(workers: usize) -> Self {
        Self { queue: Mutex::new(Queue { free: workers, waiting: VecDeque::new() }) }
    }

    /// Waits for a worker, in the order of arrival.
    pub(crate) fn enter(&self) -> WorkerSlot<'_> {
        let mut queue = self.lock();
        if queue.free > 0 {
            queue.free -= 1;
            return WorkerSlot(self);
        }
        let (begin, begun) = sync_channel(1);
        queue.waiting.push_back(begin);
        drop(queue);
        begun.recv().expect("a channel stays in the queue until it is used");
        WorkerSlot(self)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WorkerSlot<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        match queue.waiting.pop_front() {
            Some(begin) => begin.send(()).expect("a waiting request waits until it begins"),
            None => queue.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread};

    impl WorkerSlots {
        fn waiting(&self) -> usize {
            self.queue.lock().unwrap().waiting.len()
        }
    }

    #[test]
    fn waiting_requests_are_admitted_in_order_of_arrival() {
        let worker_slots = WorkerSlots::new(2);
        let (entered, order) = mpsc::channel();
        thread::scope(|scope| {
            let first = (worker_slots.enter(), worker_slots.enter());
            for number in 0..5 {
                let (entered, worker_slots) = (entered.clone(), &worker_slots);
                scope.spawn(move || {
                    let _slot = worker_slots.enter();
                    entered.send(number).unwrap();
                });
                while worker_slots.waiting() <= number {
                    thread::yield_now();
                }
            }
            drop(first.0);
            assert_eq!(order.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        });
        assert_eq!(worker_slots.queue.lock().unwrap().free, 2);
    }
}
