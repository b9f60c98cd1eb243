//! A backend in virtual time: cores that all runnable requests share equally, in front of them workers with a queue.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a request does at the backend: work, then sleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) cpu_ns: u64,
    pub(crate) sleep_ns: u64,
}

impl Work {
    pub(crate) fn cpu(cpu_ns: u64) -> Self {
        Self { cpu_ns, sleep_ns: 0 }
    }
}

pub(crate) struct Backend {
    cores: f64,
    workers: usize,
    /// Everything takes so many times as long: a backend that becomes slow.
    pub(crate) slowness: f64,
    now: u64,
    queue: VecDeque<(usize, Work)>,
    running: Vec<(usize, f64, u64)>,
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
            running: Vec::new(),
            sleeping: BinaryHeap::new(),
            busy_ns: 0.0,
        }
    }

    pub(crate) fn start(&mut self, id: usize, work: Work) {
        self.queue.push_back((id, work));
        self.fill();
    }

    fn fill(&mut self) {
        while self.running.len() + self.sleeping.len() < self.workers {
            let Some((id, work)) = self.queue.pop_front() else { return };
            let cpu = work.cpu_ns as f64 * self.slowness;
            self.running.push((id, cpu, (work.sleep_ns as f64 * self.slowness) as u64));
        }
    }

    fn rate(&self) -> f64 {
        (self.cores / self.running.len() as f64).min(1.0)
    }

    /// When something happens next if nothing is started until then.
    pub(crate) fn next(&self) -> Option<u64> {
        let least = self.running.iter().map(|(_, cpu, _)| *cpu).fold(f64::INFINITY, f64::min);
        let done = least.is_finite().then(|| self.now + (least / self.rate()).ceil() as u64);
        let awake = self.sleeping.peek().map(|Reverse((at, _))| *at);
        [done, awake].into_iter().flatten().min()
    }

    /// Moves on to `now`, not further than [`Backend::next`], and returns the requests that are done.
    pub(crate) fn advance(&mut self, now: u64) -> Vec<usize> {
        if !self.running.is_empty() {
            let each = (now - self.now) as f64 * self.rate();
            self.busy_ns += each * self.running.len() as f64;
            for (_, cpu, _) in &mut self.running {
                *cpu -= each;
            }
        }
        self.now = now;
        let mut done = Vec::new();
        let (finished, running) = self.running.drain(..).partition::<Vec<_>, _>(|(_, cpu, _)| *cpu <= 1e-3);
        self.running = running;
        for (id, _, sleep) in finished {
            match sleep {
                0 => done.push(id),
                _ => self.sleeping.push(Reverse((now + sleep, id))),
            }
        }
        while self.sleeping.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            done.extend(self.sleeping.pop().map(|Reverse((_, id))| id));
        }
        self.fill();
        done
    }
}
