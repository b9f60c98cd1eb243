//! Estimates the CPU time that each of many concurrent requests takes at the backend, without asking the backend.
//!
//! Wall time would charge a request for everything that ran beside it: with sixteen requests on one core, each would be
//! charged sixteen times its cost, and the victims of a crawler would look like crawlers. Of `n` requests that share
//! `C` cores, each gets `min(1, C/n)` of a core. One virtual clock runs at that speed for all of them, and a request's
//! toll is the advance of the clock between its start and its end. Start and end take constant time, for any `n`.
//!
//! A backend with one worker, such as a process with an event loop, serves requests one after another. There a short
//! request that waits behind a long one would be charged for half of the wait. If that is known, a stay costs the time
//! since the one before it ended.
//!
//! No CPU time is lost to rounding. The remainder of each division is carried over to the next one, so the tolls add up
//! to the busy core time exactly, over any length of time. If the backend's real CPU time is known
//! ([`VirtualClock::measure`]), the clock's speed is scaled to it, and earlier errors are corrected.

use crate::time::{Moment, Span};

/// How much CPU a backend has, in thousandths of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cores(u32);

impl Cores {
    /// This many whole cores; at least a thousandth of one.
    pub const fn whole(cores: u32) -> Self {
        Self::from_milli(cores.saturating_mul(1000))
    }

    /// This many thousandths of a core; at least one.
    pub const fn from_milli(milli: u32) -> Self {
        Self(if milli == 0 { 1 } else { milli })
    }

    /// In thousandths of a core.
    pub const fn as_milli(self) -> u32 {
        self.0
    }

    /// In whole cores, rounded up.
    pub const fn count(self) -> u32 {
        self.0.div_ceil(1000)
    }
}

impl Default for Cores {
    fn default() -> Self {
        Self::whole(1)
    }
}

/// A reading of the virtual clock, for example when a request's stay at the backend begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    at: Moment,
    /// CPU time that a request would have taken since the beginning.
    nanos: u64,
    /// The sum of elapsed nanoseconds divided by the number in service, times [`ALONE`]; wraps. The elapsed time
    /// divided by its advance is the harmonic mean of that number.
    alone: u64,
}

impl Reading {
    /// When the stay began.
    pub(crate) const fn at(&self) -> Moment {
        self.at
    }
}

/// A request's stay at the backend: an uninterrupted time in which the backend works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// The CPU time that it took.
    pub toll: Span,
    /// How long it was there.
    pub wall: Span,
    /// How many requests were there with it, itself included, in parts of [`ALONE`]: the harmonic mean over that time,
    /// because a request that shares a core gets one part of it in as many.
    pub concurrency: u64,
    /// The time from the end of the stay before it, or from its own start if that was later, to its end. If the backend
    /// serves requests one after another, it worked on this one for that time.
    pub turn: Span,
}

/// The share of the cores within reach that requests use, when they use all of it.
const USED_FULLY: u32 = 1024;

/// Concurrency is counted in parts of this size, so that a division by the number of requests loses little.
pub const ALONE: u64 = 1 << 12;

/// The unit of work: parts of a nanosecond. Thousandths of a core times parts of [`USED_FULLY`].
const PARTS: i128 = 1000 * USED_FULLY as i128;

/// The clock that all requests at one backend share.
#[derive(Clone, Debug)]
pub struct VirtualClock {
    cores: Cores,
    /// How many requests are in service.
    pub(crate) in_service: u32,
    /// The clock when it was last advanced.
    latest: Reading,
    /// When the last stay ended.
    ended_at: Moment,
    /// Whether the backend serves requests one after another, so that a stay costs its turn ([`Stay::turn`]).
    pub(crate) is_serial: bool,
    /// Work done and not handed out yet, in [`PARTS`]; negative when more was handed out than was measured.
    carry: i128,
    /// All work since the beginning, in [`PARTS`].
    work: u128,
    /// How much of what is within reach requests really use, as last measured, in parts of [`USED_FULLY`].
    used: u32,
    /// Since the last measurement: the core time within reach, in thousandths of a nanosecond.
    within_reach: i128,
}

impl VirtualClock {
    /// A clock for an idle backend with this many cores.
    pub fn new(cores: Cores) -> Self {
        let (latest, ended_at) = (Reading::default(), Moment::ZERO);
        let used = USED_FULLY;
        Self { cores, in_service: 0, latest, ended_at, is_serial: false, carry: 0, work: 0, used, within_reach: 0 }
    }

    /// From `now` on the backend has this many cores, as far as is known.
    pub fn set_cores(&mut self, cores: Cores, now: Moment) {
        self.advance(now);
        self.cores = cores;
    }

    /// A request begins its work at the backend.
    pub fn start(&mut self, now: Moment) -> Reading {
        self.advance(now);
        self.in_service = self.in_service.saturating_add(1);
        self.latest
    }

    /// The CPU time so far of a request that is still in service.
    pub fn so_far(&mut self, start: Reading, now: Moment) -> Span {
        self.advance(now);
        if !self.is_serial {
            return Span::from_nanos(self.latest.nanos.saturating_sub(start.nanos));
        }
        let turn = u128::from(self.turn(start).as_nanos()) * u128::from(self.used);
        Span::from_nanos(divide(turn, USED_FULLY.into()))
    }

    /// The time since the stay before this one ended, or since this one began if that was later.
    fn turn(&self, start: Reading) -> Span {
        self.latest.at.since(start.at.max(self.ended_at))
    }

    /// The backend has finished a request.
    pub fn end(&mut self, start: Reading, now: Moment) -> Stay {
        let toll = self.so_far(start, now);
        self.in_service = self.in_service.saturating_sub(1);
        let wall = self.latest.at.since(start.at);
        let alone = u128::from(self.latest.alone.wrapping_sub(start.alone));
        let parts = u128::from(wall.as_nanos()) * u128::from(ALONE).pow(2);
        let concurrency = if alone == 0 { ALONE } else { divide(parts, alone) };
        let turn = self.turn(start);
        self.ended_at = self.latest.at;
        Stay { toll, wall, concurrency, turn }
    }

    /// Busy core time since the beginning, in nanoseconds, up to `now`; wraps.
    pub fn work_nanos(&mut self, now: Moment) -> u64 {
        self.advance(now);
        (self.work / PARTS as u128) as u64
    }

    /// Busy core time since the last call of [`Self::measure`], in nanoseconds, up to `now`.
    pub fn unmeasured_nanos(&mut self, now: Moment) -> u64 {
        self.advance(now);
        (self.within_reach.saturating_mul(self.used.into()) / PARTS) as u64
    }

    /// The backend has used `cpu` since the last call; `None` if that is not measured. Call it every few tens of
    /// milliseconds, or not at all.
    ///
    /// CPU time from a period without requests is dropped.
    pub fn measure(&mut self, cpu: Option<Span>, now: Moment) {
        self.advance(now);
        if cpu.is_none() {
            self.used = USED_FULLY;
        } else if let Some(cpu) = cpu.filter(|_| self.within_reach > 0) {
            let measured = i128::from(cpu.as_nanos()) * PARTS;
            let handed_out = self.within_reach.saturating_mul(i128::from(self.used));
            self.carry = self.carry.saturating_add(measured - handed_out);
            self.used = u32::try_from(measured / self.within_reach).unwrap_or(u32::MAX);
        }
        self.within_reach = 0;
    }

    /// Hands out the work done since the last event, to each the same. A `now` in the past is no time at all.
    fn advance(&mut self, now: Moment) {
        let elapsed = now.since(self.latest.at).as_nanos();
        self.latest.at = self.latest.at.max(now);
        if self.in_service == 0 {
            return;
        }
        let count = u64::from(self.in_service);
        let alone = divide(u128::from(elapsed) * u128::from(ALONE), count.into());
        self.latest.alone = self.latest.alone.wrapping_add(alone);
        let busy = (count * 1000).min(self.cores.0.into());
        let within_reach = i128::from(elapsed) * i128::from(busy);
        let work = within_reach.saturating_mul(i128::from(self.used));
        self.within_reach = self.within_reach.saturating_add(within_reach);
        self.carry = self.carry.saturating_add(work);
        self.work = self.work.wrapping_add(work.unsigned_abs());
        let parts_per_nano = i128::from(self.in_service) * PARTS;
        if self.carry >= parts_per_nano {
            let each = divide(self.carry.unsigned_abs(), parts_per_nano.unsigned_abs());
            self.latest.nanos = self.latest.nanos.saturating_add(each);
            self.carry -= i128::from(each) * parts_per_nano;
        }
    }
}

/// The quotient, at most [`u64::MAX`]. Where the numbers fit, a division of 64 bits takes a tenth of the time.
pub(crate) fn divide(dividend: u128, divisor: u128) -> u64 {
    match (u64::try_from(dividend), u64::try_from(divisor)) {
        (Ok(dividend), Ok(divisor)) => dividend / divisor,
        _ => u64::try_from(dividend / divisor).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const YEAR_NS: u64 = 365 * 86_400 * 1_000_000_000;

    #[derive(Clone, Debug)]
    enum ClockEvent {
        Start,
        End(prop::sample::Index),
        Measure(u64),
    }

    fn event() -> impl Strategy<Value = ClockEvent> {
        prop_oneof![Just(ClockEvent::Start), any::<prop::sample::Index>().prop_map(ClockEvent::End)]
    }

    fn measured_event() -> impl Strategy<Value = ClockEvent> {
        prop_oneof![3 => event(), 1 => (0u64..2_000_000).prop_map(ClockEvent::Measure)]
    }

    fn elapsed() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 1u64..10, 0u64..3_000_000_000, YEAR_NS - 9..YEAR_NS]
    }

    /// Runs the events on a clock. Returns what was charged, to the finished and so far to the others, and what was
    /// due, in [`PARTS`]: the measured CPU time, and after the last measurement the clock's own estimate.
    fn run(cores: Cores, events: &[(u64, ClockEvent)]) -> (VirtualClock, i128, i128) {
        let mut clock = VirtualClock::new(cores);
        let (mut now, mut at_work) = (Moment::ZERO, Vec::new());
        let (mut charged, mut due, mut was_busy) = (0i128, 0i128, false);
        for (elapsed, event) in events {
            now = now + Span::from_nanos(*elapsed);
            was_busy |= *elapsed > 0 && !at_work.is_empty();
            match event {
                ClockEvent::Start => at_work.push(clock.start(now)),
                ClockEvent::End(index) if !at_work.is_empty() => {
                    let start = at_work.swap_remove(index.index(at_work.len()));
                    charged += i128::from(clock.end(start, now).toll.as_nanos());
                }
                ClockEvent::End(_) => {}
                ClockEvent::Measure(cpu) => {
                    clock.measure(Some(Span::from_nanos(*cpu)), now);
                    due += if was_busy { i128::from(*cpu) * PARTS } else { 0 };
                    was_busy = false;
                }
            }
        }
        for start in at_work {
            charged += i128::from(clock.so_far(start, now).as_nanos());
        }
        due += clock.within_reach * i128::from(clock.used);
        (clock, charged * PARTS, due)
    }

    proptest! {
        #[test]
        fn tolls_add_up_to_the_busy_core_time_exactly(
            cores in prop_oneof![(1u32..9).prop_map(Cores::whole), (1u32..5000).prop_map(Cores::from_milli)],
            events in prop::collection::vec((elapsed(), event()), 0..200),
        ) {
            let mut integral = 0i128;
            let mut at_work = 0i128;
            for (elapsed, event) in &events {
                integral += i128::from(*elapsed) * i128::from(cores.0).min(at_work * 1000);
                match event {
                    ClockEvent::Start => at_work += 1,
                    ClockEvent::End(_) => at_work = (at_work - 1).max(0),
                    ClockEvent::Measure(_) => {}
                }
            }
            let (clock, charged, _) = run(cores, &events);
            prop_assert_eq!(charged + clock.carry, integral * i128::from(USED_FULLY));
            // At most a nanosecond per request in service is left to hand out.
            prop_assert!((0..=PARTS * (events.len() as i128 + 1)).contains(&clock.carry));
        }

        #[test]
        fn measured_tolls_add_up_to_the_measured_cpu_time_exactly(
            cores in (1u32..9).prop_map(Cores::whole),
            events in prop::collection::vec((0u64..3_000_000, measured_event()), 0..200),
        ) {
            let (clock, charged, due) = run(cores, &events);
            prop_assert_eq!(charged + clock.carry, due);
        }

        #[test]
        fn time_that_goes_backwards_or_stops_changes_nothing(
            events in prop::collection::vec((0u64..1_000_000, any::<bool>()), 1..100),
        ) {
            let mut steady = VirtualClock::new(Cores::whole(2));
            let mut shaken = steady.clone();
            let mut latest = Moment::ZERO;
            let mut at_work = Vec::new();
            for (at, starts) in events {
                let at = Moment::from_nanos(at);
                latest = latest.max(at);
                match at_work.pop() {
                    Some((a, b)) if !starts => prop_assert_eq!(steady.end(a, latest), shaken.end(b, at)),
                    popped => {
                        at_work.extend(popped);
                        at_work.push((steady.start(latest), shaken.start(at)));
                    }
                }
            }
        }

        #[test]
        fn equal_parallel_requests_pay_equal_parts(k in 1u32..200, cores in 1u32..9, wall in 0u64..10_000_000_000) {
            let mut clock = VirtualClock::new(Cores::whole(cores));
            let starts: Vec<_> = (0..k).map(|_| clock.start(Moment::ZERO)).collect();
            let fair = u128::from(wall) * u128::from(k.min(cores)) / u128::from(k);
            for start in starts {
                let toll = u128::from(clock.end(start, Moment::from_nanos(wall)).toll.as_nanos());
                prop_assert!(toll == fair || toll == fair + 1, "{toll} is not {fair}");
            }
            prop_assert_eq!(clock.carry, 0);
        }
    }

    #[test]
    fn a_lone_request_pays_its_wall_time() {
        let mut clock = VirtualClock::new(Cores::whole(4));
        for year in 1..50 {
            let start = clock.start(Moment::from_nanos(year * YEAR_NS));
            let stay = clock.end(start, Moment::from_nanos(year * YEAR_NS + 12_345_679));
            assert_eq!(stay.toll, Span::from_nanos(12_345_679));
            assert_eq!((stay.wall, stay.concurrency), (stay.toll, ALONE));
        }
    }

    #[test]
    fn a_stay_has_the_mean_number_that_was_in_service() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        let first = clock.start(Moment::ZERO);
        let second = clock.start(Moment::from_millis(30));
        assert_eq!(clock.end(second, Moment::from_millis(40)).concurrency, 2 * ALONE);
        // It had the core for 30 ms and half of it for 10 ms: 35 ms of 40.
        assert_eq!(clock.end(first, Moment::from_millis(40)).concurrency, ALONE * 40 / 35);
    }

    #[test]
    fn a_request_that_is_alone_for_hours_has_a_concurrency_of_one() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        let start = clock.start(Moment::ZERO);
        assert_eq!(clock.end(start, Moment::from_millis(20 * 3_600_000)).concurrency, ALONE);
    }

    #[test]
    fn half_a_core_does_half_the_work() {
        let mut clock = VirtualClock::new(Cores::from_milli(500));
        let start = clock.start(Moment::ZERO);
        assert_eq!(clock.end(start, Moment::from_millis(300)).toll, Span::from_millis(150));
    }

    #[test]
    fn a_victim_is_not_charged_for_the_load_of_others() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        let crowd: Vec<_> = (0..15).map(|_| clock.start(Moment::ZERO)).collect();
        let victim = clock.start(Moment::from_millis(100));
        let stay = clock.end(victim, Moment::from_millis(100 + 16 * 20));
        let wall = Span::from_millis(320);
        assert_eq!(stay, Stay { toll: Span::from_millis(20), wall, concurrency: 16 * ALONE, turn: wall });
        assert_eq!(crowd.len(), 15);
    }

    #[test]
    fn one_after_another_a_request_does_not_pay_for_the_one_before_it() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        clock.is_serial = true;
        let at = Moment::from_millis;
        let (long, page) = (clock.start(at(0)), clock.start(at(100)));
        let tolls = [clock.end(long, at(300)), clock.end(page, at(320))].map(|stay| (stay.toll, stay.turn));
        assert_eq!(tolls, [300, 20].map(|millis| (Span::from_millis(millis), Span::from_millis(millis))));
        let idle = clock.start(at(500));
        assert_eq!(
            clock.end(idle, at(507)).toll,
            Span::from_millis(7),
            "time in which nothing was there costs nothing"
        );
    }

    #[test]
    fn requests_that_mostly_sleep_pay_what_was_measured() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        let mut tolls = Vec::new();
        // Ten at a time, 250 ms each, of which 5 ms are work: 200 ms of CPU a second.
        for round in 0..20u64 {
            let starts: Vec<_> = (0..10).map(|_| clock.start(Moment::from_millis(250 * round))).collect();
            for tick in 1..=5 {
                clock.measure(Some(Span::from_millis(10)), Moment::from_millis(250 * round + 50 * tick));
            }
            tolls.extend(starts.into_iter().map(|start| clock.end(start, Moment::from_millis(250 * (round + 1))).toll));
        }
        for toll in &tolls[10..] {
            assert_eq!(toll.as_millis_ceil(), 5);
        }
    }

    #[test]
    fn a_measurement_counts_from_when_it_begins_and_not_beyond_its_end() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        let first = clock.start(Moment::ZERO);
        clock.measure(None, Moment::from_millis(100));
        clock.measure(Some(Span::from_millis(10)), Moment::from_millis(200));
        clock.measure(None, Moment::from_millis(200));
        // 100 ms by the clock, then 10 that were measured, of which the clock had handed out 100 already.
        assert_eq!(clock.end(first, Moment::from_millis(200)).toll, Span::from_millis(200));
        let second = clock.start(Moment::from_millis(200));
        assert_eq!(clock.end(second, Moment::from_millis(400)).toll, Span::from_millis(110));
    }

    #[test]
    fn cpu_time_of_an_idle_stretch_belongs_to_nobody() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        clock.measure(Some(Span::from_secs(100)), Moment::from_millis(50));
        let start = clock.start(Moment::from_millis(60));
        assert_eq!(clock.end(start, Moment::from_millis(70)).toll, Span::from_millis(10));
    }

    #[test]
    fn an_end_without_a_start_is_harmless() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        let mut other = VirtualClock::new(Cores::whole(1));
        other.start(Moment::ZERO);
        let reading = other.start(Moment::from_millis(5));
        assert_eq!(clock.end(reading, Moment::ZERO).toll, Span::ZERO);
        assert_eq!(clock.in_service, 0);
    }
}
