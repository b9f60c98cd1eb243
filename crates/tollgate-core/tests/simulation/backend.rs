//! A backend in virtual time: cores that all runnable requests share equally, behind workers with a queue of their own.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The work of one request at the backend: it computes, then it sleeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) cpu_ns: u64,
    pub(crate) sleep_ns: u64,
}

#[derive(Clone)]
pub(crate) struct Backend {
    cores: f64,
    workers: usize,
    /// Everything takes this many times as long.
    pub(crate) slowness: f64,
    now: u64,
    queue: VecDeque<(usize, Work)>,
    /// CPU time that each running request has had since the beginning, in nanoseconds.
    served: f64,
    /// Running requests by the value of `served` at which they have computed enough, as the bits of a positive float,
    /// which sort like it.
    running: BinaryHeap<Reverse<(u64, usize, u64)>>,
    sleeping: BinaryHeap<Reverse<(u64, usize)>>,
    pub(crate) busy_ns: f64,
}

impl Backend {
    pub(crate) fn new(cores: u32, workers: usize) -> Self {
        Self {
            cores: f64::from(cores),
            workers,
            slowness: 1.0,
            now: 0,
            queue: VecDeque::new(),
            served: 0.0,
            running: BinaryHeap::new(),
            sleeping: BinaryHeap::new(),
            busy_ns: 0.0,
        }
    }

    pub(crate) fn cores(&self) -> f64 {
        self.cores
    }

    pub(crate) fn start(&mut self, id: usize, work: Work) {
        self.queue.push_back((id, work));
        self.fill();
    }

    fn fill(&mut self) {
        while self.running.len() + self.sleeping.len() < self.workers {
            let Some((id, work)) = self.queue.pop_front() else { return };
            let enough = self.served + work.cpu_ns as f64;
            self.running.push(Reverse((enough.to_bits(), id, work.sleep_ns)));
        }
    }

    /// CPU time per nanosecond that each running request gets.
    fn rate(&self) -> f64 {
        (self.cores / self.running.len() as f64).min(1.0) / self.slowness
    }

    /// When something happens next if nothing is started until then.
    pub(crate) fn next(&self) -> Option<u64> {
        let done = self.running.peek().map(|Reverse((enough, ..))| {
            self.now + ((f64::from_bits(*enough) - self.served).max(0.0) / self.rate()).ceil() as u64
        });
        let awake = self.sleeping.peek().map(|Reverse((at, _))| *at);
        [done, awake].into_iter().flatten().min()
    }

    /// Moves on to `now`, not further than [`Backend::next`], and returns the requests that are done.
    pub(crate) fn advance(&mut self, now: u64) -> Vec<usize> {
        if !self.running.is_empty() {
            let each = (now - self.now) as f64 * self.rate();
            self.busy_ns += each * self.running.len() as f64 * self.slowness;
            self.served += each;
        }
        self.now = now;
        let mut done = Vec::new();
        while let Some(Reverse((enough, id, sleep))) = self.running.peek().copied()
            && f64::from_bits(enough) <= self.served + 1e-3
        {
            self.running.pop();
            match sleep {
                0 => done.push(id),
                _ => self.sleeping.push(Reverse((now + (sleep as f64 * self.slowness) as u64, id))),
            }
        }
        while let Some(Reverse((at, id))) = self.sleeping.peek().copied()
            && at <= now
        {
            self.sleeping.pop();
            done.push(id);
        }
        self.fill();
        done
    }
}
