//! A backend in virtual time: cores that runnable requests share equally, behind workers with a queue of their own.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The work of one request at the backend: it computes, then it sleeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) cpu_ns: u64,
    pub(crate) sleep_ns: u64,
}

/// Requests that share the cores that are left to them equally.
#[derive(Clone, Default)]
struct Pool {
    /// CPU time that each request has had since the beginning, in nanoseconds.
    served: f64,
    /// Requests by the value of `served` at which they have computed enough, as the bits of a positive float, which
    /// sort like it, with the work that follows.
    running: BinaryHeap<Reverse<(u64, usize, u64, u64)>>,
}

impl Pool {
    fn add(&mut self, id: usize, cpu_ns: u64, then: Work) {
        let enough = self.served + cpu_ns as f64;
        self.running.push(Reverse((enough.to_bits(), id, then.cpu_ns, then.sleep_ns)));
    }

    /// CPU time per nanosecond that each request gets of so many cores.
    fn rate(&self, cores: f64, slowness: f64) -> f64 {
        (cores / self.running.len() as f64).min(1.0) / slowness
    }

    /// Nanoseconds until the first has computed enough.
    fn next(&self, rate: f64) -> Option<u64> {
        let Reverse((enough, ..)) = self.running.peek().filter(|_| rate > 0.0)?;
        Some(((f64::from_bits(*enough) - self.served).max(0.0) / rate).ceil() as u64)
    }

    /// Those that have computed enough, with the work that follows.
    fn pop(&mut self) -> Option<(usize, Work)> {
        let Reverse((enough, id, cpu_ns, sleep_ns)) = *self.running.peek()?;
        (f64::from_bits(enough) <= self.served + 1e-3).then(|| {
            self.running.pop();
            (id, Work { cpu_ns, sleep_ns })
        })
    }
}

#[derive(Clone)]
pub(crate) struct Backend {
    cores: f64,
    workers: usize,
    /// Everything takes this many times as long.
    pub(crate) slowness: f64,
    /// CPU time at the beginning of a request that the scheduler prefers, as that of an operating system does.
    pub(crate) slice_ns: u64,
    now: u64,
    queue: VecDeque<(usize, Work)>,
    /// Requests in their first slice, and those beyond.
    young: Pool,
    old: Pool,
    sleeping: BinaryHeap<Reverse<(u64, usize)>>,
    pub(crate) busy_ns: f64,
}

impl Backend {
    pub(crate) fn new(cores: u32, workers: usize) -> Self {
        Self {
            cores: f64::from(cores),
            workers,
            slowness: 1.0,
            slice_ns: 0,
            now: 0,
            queue: VecDeque::new(),
            young: Pool::default(),
            old: Pool::default(),
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

    pub(crate) fn set_workers(&mut self, workers: usize) {
        self.workers = workers;
        self.fill();
    }

    fn fill(&mut self) {
        while self.young.running.len() + self.old.running.len() + self.sleeping.len() < self.workers {
            let Some((id, work)) = self.queue.pop_front() else { return };
            let first = work.cpu_ns.min(self.slice_ns);
            self.young.add(id, first, Work { cpu_ns: work.cpu_ns - first, ..work });
        }
    }

    /// CPU time per nanosecond that each young and each old request gets.
    fn rates(&self) -> [f64; 2] {
        let left = (self.cores - self.young.running.len() as f64).max(0.0);
        [self.young.rate(self.cores, self.slowness), self.old.rate(left, self.slowness)]
    }

    /// When something happens next if nothing is started until then.
    pub(crate) fn next(&self) -> Option<u64> {
        let [young, old] = self.rates();
        let awake = self.sleeping.peek().map(|Reverse((at, _))| *at);
        let computed = [self.young.next(young), self.old.next(old)].into_iter().flatten().map(|nanos| self.now + nanos);
        computed.chain(awake).min()
    }

    /// Moves on to `now`, not further than [`Backend::next`], and returns the requests that are done.
    pub(crate) fn advance(&mut self, now: u64) -> Vec<usize> {
        let rates = self.rates();
        for (pool, rate) in [&mut self.young, &mut self.old].into_iter().zip(rates) {
            if !pool.running.is_empty() {
                let each = (now - self.now) as f64 * rate;
                self.busy_ns += each * pool.running.len() as f64 * self.slowness;
                pool.served += each;
            }
        }
        self.now = now;
        let mut done = Vec::new();
        while let Some((id, work)) = self.young.pop() {
            self.old.add(id, work.cpu_ns, Work { cpu_ns: 0, ..work });
        }
        while let Some((id, work)) = self.old.pop() {
            match work.sleep_ns {
                0 => done.push(id),
                sleep => self.sleeping.push(Reverse((now + (sleep as f64 * self.slowness) as u64, id))),
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
