//! Deadlines of all connections of a worker (a thread that serves connections), checked by one periodic tick.
//!
//! A runtime timer per read and write would cost more than the read itself. Deadlines last from hundreds of
//! milliseconds to minutes, and none has to be exact. So setting one is a store into a cell, the current time is a
//! number that the last tick stored, and a tick ten times a second wakes the tasks whose deadlines have passed.
//!
//! Since every connection has a [`Timer`] here, this is also the list from which idle connections are chosen when there
//! is no room for new ones ([`Timers::close_idle`]).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use slab::Slab;

/// The number of connections that are closed at a time when there is no room for a new one. More would close
/// connections that are about to be used.
pub(crate) const CLOSED_AT_ONCE: usize = 8;
/// The interval between checks of deadlines, which is also their accuracy.
pub(crate) const TICK: Duration = Duration::from_millis(100);

/// A time in milliseconds that never comes: no deadline, or not idle.
const NEVER: u64 = u64::MAX;
/// A connection that is idle for this long and has never sent a request is closed before all others.
const UNUSED_MS: u64 = 1000;

/// The direction of a wait. Both directions of a connection can be waited for at once, each with its own deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// For bytes of the peer.
    In = 0,
    /// For the peer to accept bytes.
    Out = 1,
}

/// All deadlines of one worker.
pub(crate) struct Timers {
    began: Instant,
    now_ms: Cell<u64>,
    cells: RefCell<Slab<Rc<TimerCell>>>,
    /// The number of cells with `is_closing`. It is counted, because every new connection reads it while there is no
    /// room.
    closing: Cell<usize>,
}

/// The state of one [`Timer`].
struct TimerCell {
    /// The deadline of each [`Way`]; [`NEVER`] if there is none.
    due_ms: [Cell<u64>; 2],
    /// The task that last asked [`Timer::is_over`].
    waker: RefCell<Option<Waker>>,
    /// The start of the idle time; [`NEVER`] while the connection serves a request.
    idle_since_ms: Cell<u64>,
    /// Whether the connection has had a request.
    has_asked: Cell<bool>,
    /// Whether it was chosen by [`Timers::close_idle`]. It counts only while the connection is idle.
    closing: Cell<bool>,
}

/// The deadlines of one connection or stream.
pub(crate) struct Timer {
    timers: Rc<Timers>,
    cell: Rc<TimerCell>,
    index: usize,
}

impl Timers {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { began: Instant::now(), now_ms: Cell::new(0), cells: RefCell::default(), closing: Cell::new(0) })
    }

    /// Milliseconds since the start of the worker, as of the last tick.
    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms.get()
    }

    /// A timer without a deadline.
    pub(crate) fn timer(self: &Rc<Self>) -> Timer {
        let cell = Rc::new(TimerCell {
            due_ms: [Cell::new(NEVER), Cell::new(NEVER)],
            waker: RefCell::default(),
            idle_since_ms: Cell::new(NEVER),
            has_asked: Cell::new(false),
            closing: Cell::new(false),
        });
        let index = self.cells.borrow_mut().insert(cell.clone());
        Timer { timers: self.clone(), cell, index }
    }

    /// Updates the time and wakes every task whose deadline has passed.
    pub(crate) fn sweep(&self) {
        self.advance_to(u64::try_from(self.began.elapsed().as_millis()).unwrap_or(NEVER - 1));
    }

    fn advance_to(&self, now_ms: u64) {
        self.now_ms.set(now_ms);
        for (_, cell) in self.cells.borrow().iter() {
            if cell.due_ms.iter().any(|due| due.get() <= now_ms) {
                cell.wake();
            }
        }
    }

    /// Wakes every waiting task, so that it notices that the worker drains.
    pub(crate) fn wake_all(&self) {
        for (_, cell) in self.cells.borrow().iter() {
            cell.wake();
        }
    }

    /// Marks up to `count` idle connections for closing, and wakes their tasks, which close them. Returns how many.
    /// Connections that have never sent a request for [`UNUSED_MS`] go first, then those that have been idle longest.
    pub(crate) fn close_idle(&self, count: usize) -> usize {
        if count == 0 {
            return 0;
        }
        let cells = self.cells.borrow();
        let is_idle = |cell: &&Rc<TimerCell>| cell.idle_since_ms.get() != NEVER && !cell.closing.get();
        let mut idle: Vec<_> = cells.iter().map(|(_, cell)| cell).filter(is_idle).collect();
        if idle.len() > count {
            let now_ms = self.now_ms();
            idle.select_nth_unstable_by_key(count, |cell| (!cell.is_unused(now_ms), cell.idle_since_ms.get()));
            idle.truncate(count);
        }
        for cell in &idle {
            cell.closing.set(true);
            cell.wake();
        }
        self.closing.set(self.closing.get() + idle.len());
        idle.len()
    }

    /// The number of idle connections that are about to close.
    pub(crate) fn closing(&self) -> usize {
        self.closing.get()
    }
}

impl TimerCell {
    /// Whether it has had no request for [`UNUSED_MS`]. A newer connection may be about to send one.
    fn is_unused(&self, now_ms: u64) -> bool {
        !self.has_asked.get() && now_ms.saturating_sub(self.idle_since_ms.get()) >= UNUSED_MS
    }

    /// Whether it was chosen to be closed while idle, and is still idle.
    fn is_closing(&self) -> bool {
        self.closing.get() && self.idle_since_ms.get() != NEVER
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }
}

impl Timer {
    /// Sets a deadline for this direction, `time` from now.
    pub(crate) fn set(&self, way: Way, time: Duration) {
        let now_ms = self.timers.now_ms();
        // One tick is added because the stored time may be a tick old: a deadline is never early.
        let due_ms = now_ms.saturating_add(time.as_millis() as u64).saturating_add(TICK.as_millis() as u64);
        self.cell.due_ms[way as usize].set(due_ms);
    }

    /// Removes the deadline of this direction.
    pub(crate) fn clear(&self, way: Way) {
        self.cell.due_ms[way as usize].set(NEVER);
    }

    /// Whether the deadline has passed; if not, the task is woken when it does. Call it at each poll while waiting.
    pub(crate) fn is_over(&self, way: Way, cx: &mut Context<'_>) -> bool {
        if self.cell.due_ms[way as usize].get() <= self.timers.now_ms() {
            return true;
        }
        let mut waker = self.cell.waker.borrow_mut();
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
        }
        false
    }

    /// Sets whether the connection is idle and may be closed to make room. A connection that is idle already keeps the
    /// start of its idle time.
    pub(crate) fn set_idle(&self, idle: bool) {
        let was_closing = self.cell.is_closing();
        let since_ms = self.cell.idle_since_ms.get().min(self.timers.now_ms());
        self.cell.idle_since_ms.set(if idle { since_ms } else { NEVER });
        // A connection that gets a request after it was chosen does not close, unless it becomes idle again.
        let others = self.timers.closing.get() - usize::from(was_closing);
        self.timers.closing.set(others + usize::from(self.cell.is_closing()));
    }

    /// Records that the connection has sent a request.
    pub(crate) fn asked(&self) {
        self.cell.has_asked.set(true);
    }

    /// Whether the connection was chosen to be closed while idle.
    pub(crate) fn is_closing(&self) -> bool {
        self.cell.is_closing()
    }

    /// Milliseconds since the start of the worker, as of the last tick.
    pub(crate) fn now_ms(&self) -> u64 {
        self.timers.now_ms()
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // Remove this timer from the closing count.
        self.set_idle(false);
        self.timers.cells.borrow_mut().remove(self.index);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct WakeCount(AtomicUsize);
    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_is_woken_when_its_deadline_has_passed_and_not_before() {
        let (timers, count) = (Timers::new(), Arc::new(WakeCount::default()));
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let timer = timers.timer();
        timer.set(Way::In, Duration::from_millis(500));
        assert!(!timer.is_over(Way::In, &mut cx));
        timers.advance_to(599);
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        timers.advance_to(600);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        assert!(timer.is_over(Way::In, &mut cx));
        assert!(!timer.is_over(Way::Out, &mut cx));
    }

    #[test]
    fn the_longest_idle_are_closed_first_and_the_busy_never() {
        let timers = Timers::new();
        let timers_by_age: Vec<Timer> = (0..5)
            .map(|age| {
                timers.advance_to(age * 10);
                let timer = timers.timer();
                timer.set_idle(age != 1);
                timer
            })
            .collect();
        assert_eq!(timers.close_idle(2), 2);
        let closing: Vec<bool> = timers_by_age.iter().map(Timer::is_closing).collect();
        assert_eq!((timers.closing(), closing), (2, vec![true, false, true, false, false]));
        timers_by_age[0].set_idle(false);
        assert!(!timers_by_age[0].is_closing(), "a request that came in time is served");
        assert_eq!(timers.closing(), 1);
    }

    #[test]
    fn the_number_that_is_closing_is_that_of_those_that_are() {
        let timers = Timers::new();
        let mut all: Vec<Timer> = (0..4).map(|_| timers.timer()).collect();
        let set_all = |all: &[Timer], idle: bool| all.iter().for_each(|timer| timer.set_idle(idle));
        set_all(&all, true);
        assert_eq!((timers.close_idle(0), timers.closing()), (0, 0));
        assert_eq!((timers.close_idle(3), timers.closing()), (3, 3));
        set_all(&all, true);
        assert_eq!(timers.closing(), 3, "it was idle before");
        set_all(&all, false);
        set_all(&all, false);
        assert_eq!(timers.closing(), 0, "all asked in time");
        set_all(&all, true);
        assert_eq!(timers.closing(), 3, "idle again");
        assert_eq!((timers.close_idle(usize::MAX), timers.closing()), (1, 4), "nobody is chosen twice");
        all[0].set_idle(false);
        while let Some(gone) = all.pop() {
            drop(gone);
            assert_eq!(timers.closing(), all.iter().filter(|timer| timer.is_closing()).count());
        }
        let _newcomer = timers.timer();
        assert_eq!(timers.closing(), 0, "nothing is left behind");
    }

    #[test]
    fn connections_without_a_request_close_first_unless_they_are_new() {
        let timers = Timers::new();
        let idle = |has_asked: bool| {
            let timer = timers.timer();
            timer.set_idle(true);
            if has_asked {
                timer.asked();
            }
            timer
        };
        let customer = idle(true);
        timers.advance_to(5000);
        let silent = idle(false);
        timers.advance_to(5000 + UNUSED_MS);
        let newcomer = idle(false);
        let closing = || [&customer, &silent, &newcomer].map(Timer::is_closing);
        assert_eq!(timers.close_idle(1), 1);
        assert_eq!(closing(), [false, true, false]);
        assert_eq!(timers.close_idle(1), 1);
        assert_eq!(closing(), [true, true, false]);
        assert_eq!(timers.close_idle(1), 1);
        assert_eq!(closing(), [true, true, true]);
    }
}
