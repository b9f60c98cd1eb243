//! Passing without a lock, as long as nobody waits and there is room for all who come.
//!
//! Then there is nothing to decide: who comes goes. All that must be known is how much is at the backend, and what the virtual clock
//! shows that prices requests; it runs more slowly the more are there, so both change together. They are one word of 128 bits: the load,
//! and the number from which the clock's time is told at the pace of that load ([`Pace`]). The first that does not find room
//! takes the lock and marks the word as busy: from then on everybody comes to the lock, and the clock and the queue behind it
//! do their work. The last of a crowd turns the word back.
//!
//! ```text
//!   enter, leave: compare and swap          enter, leave: the lock
//!   +---------------------------+  suspend  +---------------------------+
//!   |           calm            | --------> |           busy            |
//!   | load and time in the word | <-------- | load and time by the clock|
//!   +---------------------------+  resume   +---------------------------+
//! ```
//!
//! Both ways are taken with the lock held, so one of them is in force at any moment, and nobody counts in both.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use portable_atomic::AtomicU128;
use tollgate_core::fairness::Costs;
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::{Cores, Load, Pace, Stay};

/// So many bits for the load, and above them as many for the part of it that computes.
const LOAD_BITS: u32 = 22;
const LOAD_MASK: u64 = (1 << LOAD_BITS) - 1;
/// Above those, one that says whether it is busy.
const BUSY_AT: u32 = 2 * LOAD_BITS;
/// The rest of the half counts how often the calm has ended, so that no word is like one of another calm.
const ENDED_AT: u32 = BUSY_AT + 1;
const ENDED_MASK: u64 = u64::MAX >> ENDED_AT;
/// More is not said of one request, so that no sum overflows.
const COST_MAX_US: u64 = 60_000_000;

/// How much is at the backend while nobody waits.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Calm {
    word: AtomicU128,
    /// How much may be at the backend in calm.
    room: AtomicU64,
    /// The cores of the backend. Changed only while it is busy.
    cores_milli: AtomicU32,
    costs_us: AtomicU64,
    costs_squared: AtomicU64,
}

/// The word, taken apart.
#[derive(Clone, Copy, Debug)]
struct Word {
    load: Load,
    computing: Load,
    busy: bool,
    ended: u64,
    /// What the clock was set with: see [`Pace::shows`].
    base: u64,
}

impl Word {
    const fn pack(self) -> u128 {
        let low = self.load.as_256ths() & LOAD_MASK
            | (self.computing.as_256ths() & LOAD_MASK) << LOAD_BITS
            | (self.busy as u64) << BUSY_AT
            | (self.ended & ENDED_MASK) << ENDED_AT;
        (self.base as u128) << 64 | low as u128
    }

    const fn unpack(word: u128) -> Self {
        let low = word as u64;
        Self {
            load: Load::from_256ths(low & LOAD_MASK),
            computing: Load::from_256ths(low >> LOAD_BITS & LOAD_MASK),
            busy: low >> BUSY_AT & 1 != 0,
            ended: low >> ENDED_AT,
            base: (word >> 64) as u64,
        }
    }

    /// What the clock shows, and the word with another load.
    const fn with(self, load: u64, computing: u64, cores: Cores, now: Moment) -> (u64, Self) {
        let (load, computing) = (Load::from_256ths(load), Load::from_256ths(computing));
        let (before, after) = (Pace::of(self.load, cores), Pace::of(load, cores));
        let shows = before.shows(self.base, now);
        (shows, Self { load, computing, base: after.base(shows, now), ..self })
    }
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
    /// The whole stay, of which the part from when the calm ended was watched: so much was there with it then, over time.
    pub(super) fn stay(&self, toll: Span, until: &Until, (load, full): (u64, u64), now: Moment) -> Stay {
        let (wall, calm) = (now.since(self.at), until.at.since(self.at).as_nanos());
        let (crowd, computing) = self.crowd(until.shows, until.at, (self.crowd, self.computing), until.cores);
        let mean = |before: Load, after: u64| {
            let sum = u128::from(before.as_256ths()) * u128::from(calm) + u128::from(after);
            let mean = sum.checked_div(u128::from(wall.as_nanos())).unwrap_or(before.as_256ths().into());
            Load::from_256ths(u64::try_from(mean).unwrap_or(u64::MAX))
        };
        Stay { toll, wall, crowd: mean(crowd, load), computing: mean(computing, full) }
    }

    /// What was there with it in calm, and the part of it that computes. Where there were more than cores the clock tells, because it ran the
    /// more slowly the more there were; otherwise it is taken to be the mean of the beginning and the end.
    fn crowd(&self, shows: u64, now: Moment, at_end: (Load, Load), cores: Cores) -> (Load, Load) {
        let mean = |a: Load, b: Load| Load::from_256ths(u64::midpoint(a.as_256ths(), b.as_256ths()));
        let (crowd, computing) = (mean(self.crowd, at_end.0), mean(self.computing, at_end.1));
        let (wall, passed) = (now.since(self.at).as_nanos(), shows.saturating_sub(self.since));
        if passed == 0 || passed >= wall - wall / 64 || crowd == Load::ZERO {
            return (crowd, computing);
        }
        let told = u128::from(Load::of_cores(cores).as_256ths()) * u128::from(wall) / u128::from(passed);
        let told = u64::try_from(told).unwrap_or(u64::MAX).min(LOAD_MASK);
        let part = u128::from(told) * u128::from(computing.as_256ths()) / u128::from(crowd.as_256ths());
        (Load::from_256ths(told), Load::from_256ths(u64::try_from(part).unwrap_or(told)))
    }
}

/// When a calm ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub(super) at: Moment,
    /// What the virtual clock showed.
    pub(super) shows: u64,
    /// What was at the backend, and the part of it that computes.
    pub(super) load: Load,
    pub(super) computing: Load,
    cores: Cores,
}

impl Until {
    /// There was none yet.
    pub(super) const fn never(cores: Cores) -> Self {
        Self { at: Moment::ZERO, shows: 0, load: Load::ZERO, computing: Load::ZERO, cores }
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
    /// Calm, with nothing at a backend of so many cores and no room yet.
    pub(super) fn new(cores: Cores) -> Self {
        Self {
            word: AtomicU128::new(0),
            room: AtomicU64::new(0),
            cores_milli: AtomicU32::new(cores.as_milli()),
            costs_us: AtomicU64::new(0),
            costs_squared: AtomicU64::new(0),
        }
    }

    /// Lets so much be at the backend in calm.
    pub(super) fn set_room(&self, room: Load) {
        self.room.store(room.as_256ths().min(LOAD_MASK), Ordering::Relaxed);
    }

    /// How much may be at the backend in calm.
    pub(super) fn room(&self) -> Load {
        Load::from_256ths(self.room.load(Ordering::Relaxed))
    }

    /// The cores that prices are made with in calm.
    pub(super) fn cores(&self) -> Cores {
        Cores::from_milli(self.cores_milli.load(Ordering::Relaxed))
    }

    /// A place at the backend, if it is calm and there is room.
    pub(super) fn enter(&self, load: Load, now: Moment) -> Option<Began> {
        let room = self.room.load(Ordering::Relaxed);
        let own = (load.as_256ths(), load.computing().as_256ths());
        let (before, since, after) = self.change(now, |word| {
            let load = word.load.as_256ths() + own.0;
            (load <= room).then_some((load, word.computing.as_256ths() + own.1))
        })?;
        Some(Began { load, since, at: now, ended: before.ended, crowd: after.load, computing: after.computing })
    }

    /// Gives a place back. `None` if it is not calm any more: then the clock must be asked.
    pub(super) fn leave(&self, began: &Began, now: Moment) -> Option<Ended> {
        let own = (began.load.as_256ths(), began.load.computing().as_256ths());
        let (before, shows, _) = self.change(now, |word| {
            let (load, computing) = (word.load.as_256ths(), word.computing.as_256ths());
            Some((load.saturating_sub(own.0), computing.saturating_sub(own.1)))
        })?;
        let taken = u128::from(shows.saturating_sub(began.since)) * u128::from(own.0);
        let toll = u64::try_from(taken / u128::from(Load::ONE.as_256ths())).unwrap_or(u64::MAX);
        let (crowd, computing) = began.crowd(shows, now, (before.load, before.computing), self.cores());
        let stay = Stay { toll: Span::from_nanos(toll), wall: now.since(began.at), crowd, computing };
        Some(Ended { stay, calm: began.ended == before.ended })
    }

    /// Changes the load and what computes of it, as long as it is calm. The word before, what the clock shows, and the word after.
    fn change(&self, now: Moment, to: impl Fn(&Word) -> Option<(u64, u64)>) -> Option<(Word, u64, Word)> {
        let mut seen = self.word.load(Ordering::Acquire);
        loop {
            let before = Word::unpack(seen);
            if before.busy {
                return None;
            }
            let (load, computing) = to(&before)?;
            // If these are the cores of another calm, the word is another too.
            let (shows, after) = before.with(load, computing, self.cores(), now);
            match self.word.compare_exchange_weak(seen, after.pack(), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((before, shows, after)),
                Err(other) => seen = other,
            }
        }
    }

    /// Ends the calm. What was at the backend then; `None` if it was not calm. With the lock held.
    pub(super) fn suspend(&self, now: Moment) -> Option<Until> {
        let busy = Word { load: Load::ZERO, computing: Load::ZERO, busy: true, ended: 0, base: 0 }.pack();
        let Word { load, computing, busy, base, .. } = Word::unpack(self.word.fetch_or(busy, Ordering::AcqRel));
        let cores = self.cores();
        let shows = Pace::of(load, cores).shows(base, now);
        (!busy).then_some(Until { at: now, shows, load, computing, cores })
    }

    /// Calm begins: so much is at the backend, and the virtual clock shows `shows` when it is `now`. With the lock held.
    pub(super) fn resume(&self, (load, computing): (Load, Load), shows: u64, cores: Cores, now: Moment) {
        self.cores_milli.store(cores.as_milli(), Ordering::Relaxed);
        let ended = Word::unpack(self.word.load(Ordering::Relaxed)).ended.wrapping_add(1);
        let base = Pace::of(load, cores).base(shows, now);
        self.word.store(Word { load, computing, busy: false, ended, base }.pack(), Ordering::Release);
    }

    /// Whether everybody has to come to the lock.
    pub(super) fn is_busy(&self) -> bool {
        Word::unpack(self.word.load(Ordering::Relaxed)).busy
    }

    /// How much is at the backend, if it is calm.
    pub(super) fn load(&self) -> Option<Load> {
        let word = Word::unpack(self.word.load(Ordering::Relaxed));
        (!word.busy).then_some(word.load)
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
        let calm = Calm::new(Cores::whole(4));
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
        let calm = Calm::new(Cores::whole(4));
        calm.set_room(Load::ONE);
        let sleepers: Vec<_> = (0..64).map(|_| calm.enter(Load::from_256ths(4), at(0)).unwrap()).collect();
        assert!(calm.enter(Load::from_256ths(4), at(0)).is_none());
        let Ended { stay, .. } = calm.leave(&sleepers[0], at(640)).unwrap();
        assert_eq!((stay.toll, stay.computing), (Span::from_millis(10), Load::ZERO));
    }

    #[test]
    fn while_it_is_busy_nobody_passes_and_nobody_leaves() {
        let calm = Calm::new(Cores::whole(4));
        calm.set_room(Load::of(4));
        let began = calm.enter(Load::ONE, at(0)).unwrap();
        let until = calm.suspend(at(1)).unwrap();
        assert_eq!((until.load, until.computing, until.shows), (Load::ONE, Load::ONE, at(1).as_nanos()));
        assert!(calm.suspend(at(1)).is_none());
        assert!(calm.enter(Load::ONE, at(1)).is_none() && calm.leave(&began, at(1)).is_none());
        // The clock has stood still for 20 ms meanwhile.
        calm.resume((Load::ONE, Load::ONE), at(30).as_nanos(), Cores::whole(4), at(50));
        let ended = calm.leave(&began, at(60)).unwrap();
        assert_eq!((ended.stay.toll, ended.calm), (Span::from_millis(40), false));
        assert_eq!(calm.load(), Some(Load::ZERO));
    }

    #[test]
    fn many_on_few_cores_pay_their_part_and_know_how_many_they_were() {
        let calm = Calm::new(Cores::whole(2));
        calm.set_room(Load::of(500));
        let alone = calm.enter(Load::ONE, at(0)).unwrap();
        let others: Vec<_> = (0..7).map(|_| calm.enter(Load::ONE, at(10)).unwrap()).collect();
        for other in &others {
            let stay = calm.leave(other, at(50)).unwrap().stay;
            assert!(stay.crowd == Load::of(8) || stay.crowd == Load::of(7), "{stay:?}");
            assert_eq!((stay.toll, stay.computing), (Span::from_millis(10), stay.crowd));
        }
        // Alone for 10 ms, a quarter of a core for 40, alone for 10.
        let stay = calm.leave(&alone, at(60)).unwrap().stay;
        assert_eq!(stay.toll, Span::from_millis(30));
        assert_eq!(stay.crowd, Load::of(4), "as on average");
    }

    #[test]
    fn cores_that_are_found_out_are_prices_from_then_on() {
        let calm = Calm::new(Cores::whole(2));
        calm.set_room(Load::of(500));
        let both = [calm.enter(Load::ONE, at(0)).unwrap(), calm.enter(Load::ONE, at(0)).unwrap()];
        let until = calm.suspend(at(10)).unwrap();
        calm.resume((until.load, until.computing), until.shows, Cores::whole(1), at(10));
        assert_eq!(calm.cores(), Cores::whole(1));
        assert_eq!(calm.leave(&both[0], at(30)).unwrap().stay.toll, Span::from_millis(20));
        assert_eq!(calm.leave(&both[1], at(40)).unwrap().stay.toll, Span::from_millis(30));
    }

    /// What threads pay together is what the cores did, however they meet.
    #[test]
    fn threads_pay_together_what_the_cores_did() {
        let calm = Calm::new(Cores::whole(2));
        calm.set_room(Load::of(100));
        let held: Vec<_> = (0..10).map(|_| calm.enter(Load::ONE, at(0)).unwrap()).collect();
        // All come and go at one moment: that costs nothing, and nothing of those who stay is lost by it.
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let began = calm.enter(Load::ONE, at(50)).unwrap();
                        assert!(calm.leave(&began, at(50)).unwrap().stay.toll <= Span::from_nanos(6));
                    }
                });
            }
        });
        let tolls: u64 = held.iter().map(|began| calm.leave(began, at(100)).unwrap().stay.toll.as_nanos()).sum();
        assert!(tolls.abs_diff(200_000_000) < 10 * 120_000, "{tolls}: a nanosecond for each change is lost at most");
    }

    /// Threads pass and leave while another ends the calm and begins it again: the load counted here and behind the lock is never more
    /// than there is room for, and none of it is lost.
    #[test]
    fn however_threads_meet_nothing_is_counted_twice_or_lost() {
        const ROOM: u32 = 3;
        let (calm, stop) = (Calm::new(Cores::whole(4)), AtomicBool::new(false));
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
                    *load = calm.suspend(at(0)).unwrap().load;
                    assert!(*load <= Load::of(ROOM));
                    drop(load);
                    thread::yield_now();
                    let load = behind_the_lock.lock().unwrap();
                    calm.resume((*load, *load), 0, Cores::whole(4), at(0));
                }
            });
        });
        assert_eq!(calm.load(), Some(Load::ZERO));
    }
}
