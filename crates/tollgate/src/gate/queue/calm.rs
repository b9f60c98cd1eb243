//! Passing without a lock, as long as every request has a core of its own and nobody waits.
//!
//! Then there is nothing to decide: who comes goes, and the virtual clock that prices requests runs as fast as any clock, so a price is a
//! difference of two times. All that must be known is how much is at the backend, and that is one word. The first that does not find room
//! takes the lock and marks the word as busy: from then on everybody comes to the lock, and the clock and the queue behind it
//! do their work. The last of a crowd turns the word back.
//!
//! ```text
//!   enter, leave: compare and swap          enter, leave: the lock
//!   +---------------------------+  suspend  +---------------------------+
//!   |           calm            | --------> |           busy            |
//!   | load counted in the word  | <-------- | load counted by the clock |
//!   +---------------------------+  resume   +---------------------------+
//! ```
//!
//! Both ways are taken with the lock held, so one of them is in force at any moment, and nobody counts in both.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::fairness::Costs;
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::{Load, Stay};

/// The word is busy: the load is not counted here.
const BUSY: u64 = 1 << 63;
/// So many bits for the load, and above them as many for the part of it that computes.
const BITS: u32 = 28;
const MASK: u64 = (1 << BITS) - 1;
/// More is not said of one request, so that no sum overflows.
const COST_MAX_US: u64 = 60_000_000;

/// How much is at the backend while nobody waits.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Calm {
    word: AtomicU64,
    /// How much may be at the backend in calm.
    room: AtomicU64,
    /// How often the calm has ended.
    ended: AtomicU64,
    /// By how much the virtual clock is behind the real one while it is calm.
    lag_ns: AtomicU64,
    costs_us: AtomicU64,
    costs_squared: AtomicU64,
}

/// A request's stay at the backend that began in calm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began {
    pub(super) load: Load,
    /// What the virtual clock showed.
    pub(super) since: u64,
    at: Moment,
    /// How often the calm had ended before.
    ended: u64,
    /// What was there with it, and the part of it that computes.
    crowd: Load,
    computing: Load,
}

impl Began {
    /// The whole stay, of which the part from `busy_since` on was watched: so much was there with it then, over time.
    pub(super) fn stay(&self, toll: Span, busy_since: Moment, (load, full): (u64, u64), now: Moment) -> Stay {
        let (wall, calm) = (now.since(self.at), busy_since.since(self.at).as_nanos());
        let mean = |before: Load, after: u64| {
            let sum = u128::from(before.as_256ths()) * u128::from(calm) + u128::from(after);
            let mean = sum.checked_div(u128::from(wall.as_nanos())).unwrap_or(before.as_256ths().into());
            Load::from_256ths(u64::try_from(mean).unwrap_or(u64::MAX))
        };
        Stay { toll, wall, crowd: mean(self.crowd, load), computing: mean(self.computing, full) }
    }
}

/// A stay that ended in calm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) stay: Stay,
    /// Whether it was calm all the time, so that it is known how much was there with it.
    pub(super) calm: bool,
}

impl Calm {
    /// Calm, with nothing at the backend and no room yet.
    pub(super) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            room: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            lag_ns: AtomicU64::new(0),
            costs_us: AtomicU64::new(0),
            costs_squared: AtomicU64::new(0),
        }
    }

    /// Lets so much be at the backend in calm.
    pub(super) fn set_room(&self, room: Load) {
        self.room.store(room.as_256ths().min(MASK), Ordering::Relaxed);
    }

    /// How much may be at the backend in calm.
    pub(super) fn room(&self) -> Load {
        Load::from_256ths(self.room.load(Ordering::Relaxed))
    }

    /// A place at the backend, if it is calm and there is room.
    pub(super) fn enter(&self, load: Load, now: Moment) -> Option<Began> {
        let own = pack(load, load.computing());
        let room = self.room.load(Ordering::Relaxed);
        let take = |word: u64| (word & BUSY == 0 && (word & MASK) + load.as_256ths() <= room).then(|| word + own);
        let before = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        let (crowd, computing) = unpack(before + own);
        let since = now.as_nanos().saturating_sub(self.lag_ns.load(Ordering::Relaxed));
        let ended = self.ended.load(Ordering::Relaxed);
        Some(Began { load, since, at: now, ended, crowd, computing })
    }

    /// Gives a place back. `None` if it is not calm any more: then the clock must be asked.
    pub(super) fn leave(&self, began: &Began, now: Moment) -> Option<Ended> {
        let own = pack(began.load, began.load.computing());
        let give = |word: u64| (word & BUSY == 0).then(|| word.saturating_sub(own));
        let before = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, give).ok()?;
        let shows = now.as_nanos().saturating_sub(self.lag_ns.load(Ordering::Relaxed));
        let taken = u128::from(shows.saturating_sub(began.since)) * u128::from(began.load.as_256ths());
        let toll = u64::try_from(taken / u128::from(Load::ONE.as_256ths())).unwrap_or(u64::MAX);
        let mean = |a: Load, b: Load| Load::from_256ths(u64::midpoint(a.as_256ths(), b.as_256ths()));
        let (crowd, computing) = unpack(before);
        let (crowd, computing) = (mean(began.crowd, crowd), mean(began.computing, computing));
        let stay = Stay { toll: Span::from_nanos(toll), wall: now.since(began.at), crowd, computing };
        Some(Ended { stay, calm: began.ended == self.ended.load(Ordering::Relaxed) })
    }

    /// Ends the calm. What was at the backend then, and the part of it that computes; `None` if it was not calm. With the lock held.
    pub(super) fn suspend(&self) -> Option<(Load, Load)> {
        let before = self.word.fetch_or(BUSY, Ordering::AcqRel);
        if before & BUSY != 0 {
            return None;
        }
        self.ended.fetch_add(1, Ordering::Relaxed);
        Some(unpack(before))
    }

    /// Calm begins: so much is at the backend, and the virtual clock shows `shows` when it is `now`. With the lock held.
    pub(super) fn resume(&self, (load, computing): (Load, Load), shows: u64, now: Moment) {
        self.lag_ns.store(now.as_nanos().saturating_sub(shows), Ordering::Relaxed);
        self.word.store(pack(load, computing), Ordering::Release);
    }

    /// Whether everybody has to come to the lock.
    pub(super) fn is_busy(&self) -> bool {
        self.word.load(Ordering::Relaxed) & BUSY != 0
    }

    /// How much is at the backend, if it is calm.
    pub(super) fn load(&self) -> Option<Load> {
        let word = self.word.load(Ordering::Relaxed);
        (word & BUSY == 0).then(|| unpack(word).0)
    }

    /// What the requests at the backend are expected to cost, whether or not it is calm.
    pub(super) fn costs(&self) -> Costs {
        let squared = self.costs_squared.load(Ordering::Relaxed);
        Costs::of_sums(self.costs_us.load(Ordering::Relaxed), squared.into())
    }

    /// A request that is expected to cost so much goes to the backend.
    pub(super) fn add_cost(&self, cost: Span) {
        let us = micros(cost);
        self.costs_us.fetch_add(us, Ordering::Relaxed);
        self.costs_squared.fetch_add(us * us, Ordering::Relaxed);
    }

    /// One that was expected to cost so much has left it.
    pub(super) fn remove_cost(&self, cost: Span) {
        let us = micros(cost);
        self.costs_us.fetch_sub(us, Ordering::Relaxed);
        self.costs_squared.fetch_sub(us * us, Ordering::Relaxed);
    }
}

fn micros(cost: Span) -> u64 {
    (cost.as_nanos() / 1000).clamp(1, COST_MAX_US)
}

const fn pack(load: Load, computing: Load) -> u64 {
    load.as_256ths() | computing.as_256ths() << BITS
}

const fn unpack(word: u64) -> (Load, Load) {
    (Load::from_256ths(word & MASK), Load::from_256ths(word >> BITS & MASK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    #[test]
    fn there_is_room_for_so_much_and_a_place_given_back_is_room_again() {
        let calm = Calm::new();
        assert!(calm.enter(Load::ONE, at(0)).is_none());
        calm.set_room(Load::of(2));
        let first = calm.enter(Load::ONE, at(0)).unwrap();
        let second = calm.enter(Load::ONE, at(10)).unwrap();
        assert!(calm.enter(Load::from_256ths(4), at(10)).is_none());
        let Ended { stay, calm: was_calm } = calm.leave(&first, at(30)).unwrap();
        assert!(was_calm);
        assert_eq!((stay.toll, stay.wall), (Span::from_millis(30), Span::from_millis(30)));
        assert_eq!(stay.crowd.as_256ths(), 256 * 3 / 2);
        assert!(calm.enter(Load::ONE, at(30)).is_some());
        assert!(calm.leave(&second, at(30)).is_some());
    }

    #[test]
    fn one_that_sleeps_takes_little_room_and_pays_little() {
        let calm = Calm::new();
        calm.set_room(Load::ONE);
        let sleepers: Vec<_> = (0..64).map(|_| calm.enter(Load::from_256ths(4), at(0)).unwrap()).collect();
        assert!(calm.enter(Load::from_256ths(4), at(0)).is_none());
        let Ended { stay, .. } = calm.leave(&sleepers[0], at(640)).unwrap();
        assert_eq!((stay.toll, stay.computing), (Span::from_millis(10), Load::ZERO));
    }

    #[test]
    fn while_it_is_busy_nobody_passes_and_nobody_leaves() {
        let calm = Calm::new();
        calm.set_room(Load::of(4));
        let began = calm.enter(Load::ONE, at(0)).unwrap();
        assert_eq!(calm.suspend(), Some((Load::ONE, Load::ONE)));
        assert_eq!(calm.suspend(), None);
        assert!(calm.enter(Load::ONE, at(1)).is_none() && calm.leave(&began, at(1)).is_none());
        // The clock has stood still for 20 ms meanwhile.
        calm.resume((Load::ONE, Load::ONE), at(30).as_nanos(), at(50));
        let ended = calm.leave(&began, at(60)).unwrap();
        assert_eq!((ended.stay.toll, ended.calm), (Span::from_millis(40), false));
        assert_eq!(calm.load(), Some(Load::ZERO));
    }

    /// Threads pass and leave while another ends the calm and begins it again: the load counted here and behind the lock is never more
    /// than there is room for, and none of it is lost.
    #[test]
    fn however_threads_meet_nothing_is_counted_twice_or_lost() {
        const ROOM: u32 = 3;
        let (calm, stop) = (Calm::new(), AtomicBool::new(false));
        calm.set_room(Load::of(ROOM));
        let behind_the_lock = std::sync::Mutex::new(Load::ZERO);
        let inside = AtomicU64::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..200_000 {
                        let Some(began) = calm.enter(Load::ONE, at(round)) else { continue };
                        assert!(inside.fetch_add(1, Ordering::AcqRel) < u64::from(ROOM));
                        inside.fetch_sub(1, Ordering::AcqRel);
                        if calm.leave(&began, at(round)).is_none() {
                            let mut load = behind_the_lock.lock().unwrap();
                            // It may have become calm again in the meantime.
                            match calm.leave(&began, at(round)) {
                                Some(_) => {}
                                None => *load = Load::from_256ths(load.as_256ths() - Load::ONE.as_256ths()),
                            }
                        }
                    }
                    stop.store(true, Ordering::Relaxed);
                });
            }
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut load = behind_the_lock.lock().unwrap();
                    *load = calm.suspend().unwrap().0;
                    assert!(*load <= Load::of(ROOM));
                    drop(load);
                    thread::yield_now();
                    let load = behind_the_lock.lock().unwrap();
                    calm.resume((*load, *load), 0, at(0));
                }
            });
        });
        assert_eq!(calm.load(), Some(Load::ZERO));
    }
}
