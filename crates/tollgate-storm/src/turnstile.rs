//! The site's workers: so many requests at work at once, the rest in a queue in order of arrival.
//!
//! A semaphore from the shelf does not promise order, and order is the point: first come, first served is what most servers
//! do, and it is what lets one client that asks for much stand in front of everybody else.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, PoisonError},
};

pub(crate) struct Turnstile {
    queue: Mutex<Queue>,
}

struct Queue {
    free: usize,
    waiting: VecDeque<Arc<Turn>>,
}

#[derive(Default)]
struct Turn {
    come: Mutex<bool>,
    changed: Condvar,
}

/// The right to be at work. Dropping it lets the next one in.
pub(crate) struct Pass<'a>(&'a Turnstile);

impl Turnstile {
    pub(crate) const fn new(workers: usize) -> Self {
        Self { queue: Mutex::new(Queue { free: workers, waiting: VecDeque::new() }) }
    }

    /// Waits for its turn, behind all who came before.
    pub(crate) fn enter(&self) -> Pass<'_> {
        let turn = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            if queue.free > 0 {
                queue.free -= 1;
                return Pass(self);
            }
            let turn = Arc::new(Turn::default());
            queue.waiting.push_back(Arc::clone(&turn));
            turn
        };
        let mut come = turn.come.lock().unwrap_or_else(PoisonError::into_inner);
        while !*come {
            come = turn.changed.wait(come).unwrap_or_else(PoisonError::into_inner);
        }
        Pass(self)
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let next = {
            let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let next = queue.waiting.pop_front();
            if next.is_none() {
                queue.free += 1;
            }
            next
        };
        if let Some(turn) = next {
            *turn.come.lock().unwrap_or_else(PoisonError::into_inner) = true;
            turn.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread};

    impl Turnstile {
        fn waiting(&self) -> usize {
            self.queue.lock().unwrap().waiting.len()
        }
    }

    #[test]
    fn those_who_wait_are_let_in_in_order_of_arrival() {
        let turnstile = Turnstile::new(2);
        let (entered, order) = mpsc::channel();
        thread::scope(|scope| {
            let first = (turnstile.enter(), turnstile.enter());
            for number in 0..5 {
                let (entered, turnstile) = (entered.clone(), &turnstile);
                scope.spawn(move || {
                    let _pass = turnstile.enter();
                    entered.send(number).unwrap();
                });
                while turnstile.waiting() <= number {
                    thread::yield_now();
                }
            }
            drop(first.0);
            assert_eq!(order.iter().take(5).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        });
        assert_eq!(turnstile.queue.lock().unwrap().free, 2);
    }
}
