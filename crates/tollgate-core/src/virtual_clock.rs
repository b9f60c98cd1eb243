//! What each of many requests at work takes of the backend's CPU time, without asking the backend.
//!
//! The obvious way, wall time, charges a request for everybody who was there beside it: with sixteen requests on one core each is
//! charged sixteen times its cost, and the victims of a crawler look like crawlers. Requests that share `C` cores get `min(1, C/n)` of a
//! core each while `n` are at work. So one clock runs at that speed for all of them, and a request's toll is what the clock
//! advanced between its start and its end: constant work per start and end, whatever the number at work.
//!
//! Nothing is lost to rounding: what does not divide evenly among those at work stays behind for the next division, so the tolls add
//! up to the busy core time exactly, over any length of time. Where the backend's real CPU time is known ([`VirtualClock::measure`])
//! the clock's speed is scaled to it and what was handed out too much or too little is made up for.

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
}

/// A reading of the virtual clock: where a request's toll begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reading(u64);

/// Divisions of a core's nanosecond: thousandths of a core times parts of [`USED_FULLY`].
const PARTS: i128 = 1000 * USED_FULLY as i128;

/// The share of the cores within reach that requests use, when they use all of it.
const USED_FULLY: u32 = 1024;

/// The clock that all requests at one backend share.
#[derive(Clone, Debug)]
pub struct VirtualClock {
    cores: Cores,
    at: Moment,
    in_service: u32,
    nanos: u64,
    /// Work done and not handed out yet, in [`PARTS`]; negative when more was handed out than was measured.
    carry: i128,
    /// How much of `min(n, C)` requests really use, as last measured, in parts of [`USED_FULLY`].
    used: u32,
    /// Since the last measurement: what was handed out, in [`PARTS`], and what full use would have been, in thousandths.
    handed_out: i128,
    within_reach: i128,
}

impl VirtualClock {
    /// A clock for a backend of `cores`, with nothing at work.
    pub const fn new(cores: Cores) -> Self {
        Self {
            cores,
            at: Moment::ZERO,
            in_service: 0,
            nanos: 0,
            carry: 0,
            used: USED_FULLY,
            handed_out: 0,
            within_reach: 0,
        }
    }

    /// How many requests are at work.
    pub const fn in_service(&self) -> u32 {
        self.in_service
    }

    /// A request begins its work at the backend.
    pub fn start(&mut self, now: Moment) -> Reading {
        self.advance(now);
        self.in_service = self.in_service.saturating_add(1);
        Reading(self.nanos)
    }

    /// What a request that is still at work has taken so far.
    pub fn so_far(&mut self, start: Reading, now: Moment) -> Span {
        self.advance(now);
        Span::from_nanos(self.nanos.saturating_sub(start.0))
    }

    /// The backend is done with a request: its toll.
    pub fn end(&mut self, start: Reading, now: Moment) -> Span {
        let toll = self.so_far(start, now);
        self.in_service = self.in_service.saturating_sub(1);
        toll
    }

    /// The backend has used `cpu` since the last call. Call it every few tens of milliseconds, or not at all.
    ///
    /// CPU time of a stretch in which nothing was at work belongs to nobody and is dropped.
    pub fn measure(&mut self, cpu: Span, now: Moment) {
        self.advance(now);
        if self.within_reach > 0 {
            let measured = i128::from(cpu.as_nanos()) * PARTS;
            self.carry = self.carry.saturating_add(measured - self.handed_out);
            self.used = u32::try_from(measured / self.within_reach).unwrap_or(u32::MAX);
        }
        (self.handed_out, self.within_reach) = (0, 0);
    }

    /// Hands out the work done since the last event in equal parts. A `now` in the past is no time at all.
    fn advance(&mut self, now: Moment) {
        let elapsed = now.since(self.at);
        self.at = self.at.max(now);
        if self.in_service == 0 {
            return;
        }
        let busy_milli = (u64::from(self.in_service) * 1000).min(u64::from(self.cores.0));
        let within_reach = i128::from(elapsed.as_nanos()) * i128::from(busy_milli);
        let work = within_reach.saturating_mul(i128::from(self.used));
        self.within_reach = self.within_reach.saturating_add(within_reach);
        self.handed_out = self.handed_out.saturating_add(work);
        self.carry = self.carry.saturating_add(work);

        let parts_per_nano = i128::from(self.in_service) * PARTS;
        if self.carry >= parts_per_nano {
            let each = u64::try_from(self.carry / parts_per_nano).unwrap_or(u64::MAX);
            self.nanos = self.nanos.saturating_add(each);
            self.carry %= parts_per_nano;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const YEAR_NS: u64 = 365 * 86_400 * 1_000_000_000;

    #[derive(Clone, Debug)]
    enum Event {
        Start,
        End(prop::sample::Index),
        Measure(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![Just(Event::Start), any::<prop::sample::Index>().prop_map(Event::End)]
    }

    fn measured_event() -> impl Strategy<Value = Event> {
        prop_oneof![3 => event(), 1 => (0u64..2_000_000).prop_map(Event::Measure)]
    }

    fn elapsed() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 1u64..10, 0u64..3_000_000_000, YEAR_NS - 9..YEAR_NS]
    }

    /// Runs the events on a clock. Returns what was charged, to the finished and so far to the others, and what was due, in [`PARTS`]:
    /// the measured CPU time, and after the last measurement the clock's own estimate.
    fn run(cores: Cores, events: &[(u64, Event)]) -> (VirtualClock, i128, i128) {
        let mut clock = VirtualClock::new(cores);
        let (mut now, mut at_work) = (Moment::ZERO, Vec::new());
        let (mut charged, mut due, mut was_busy) = (0i128, 0i128, false);
        for (elapsed, event) in events {
            now = now + Span::from_nanos(*elapsed);
            was_busy |= *elapsed > 0 && !at_work.is_empty();
            match event {
                Event::Start => at_work.push(clock.start(now)),
                Event::End(index) if !at_work.is_empty() => {
                    let start = at_work.swap_remove(index.index(at_work.len()));
                    charged += i128::from(clock.end(start, now).as_nanos());
                }
                Event::End(_) => {}
                Event::Measure(cpu) => {
                    clock.measure(Span::from_nanos(*cpu), now);
                    due += if was_busy { i128::from(*cpu) * PARTS } else { 0 };
                    was_busy = false;
                }
            }
        }
        for start in at_work {
            charged += i128::from(clock.so_far(start, now).as_nanos());
        }
        due += clock.handed_out;
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
                    Event::Start => at_work += 1,
                    _ => at_work = (at_work - 1).max(0),
                }
            }
            let (clock, charged, _) = run(cores, &events);
            prop_assert_eq!(charged + clock.carry, integral * i128::from(USED_FULLY));
            // Less than a nanosecond for each at work is left to hand out.
            prop_assert!((0..PARTS * i128::from(clock.in_service.max(1))).contains(&clock.carry));
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
                let toll = u128::from(clock.end(start, Moment::from_nanos(wall)).as_nanos());
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
            assert_eq!(clock.end(start, Moment::from_nanos(year * YEAR_NS + 12_345_679)), Span::from_nanos(12_345_679));
        }
    }

    #[test]
    fn half_a_core_does_half_the_work() {
        let mut clock = VirtualClock::new(Cores::from_milli(500));
        let start = clock.start(Moment::ZERO);
        assert_eq!(clock.end(start, Moment::from_millis(300)), Span::from_millis(150));
    }

    #[test]
    fn a_victim_is_not_charged_for_the_load_of_others() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        let crowd: Vec<_> = (0..15).map(|_| clock.start(Moment::ZERO)).collect();
        let victim = clock.start(Moment::from_millis(100));
        assert_eq!(clock.end(victim, Moment::from_millis(100 + 16 * 20)), Span::from_millis(20));
        assert_eq!(crowd.len(), 15);
    }

    #[test]
    fn requests_that_mostly_sleep_pay_what_was_measured() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        let mut tolls = Vec::new();
        // Ten at a time, 250 ms each, of which 5 ms are work: 200 ms of CPU a second.
        for round in 0..20u64 {
            let starts: Vec<_> = (0..10).map(|_| clock.start(Moment::from_millis(250 * round))).collect();
            for tick in 1..=5 {
                clock.measure(Span::from_millis(10), Moment::from_millis(250 * round + 50 * tick));
            }
            tolls.extend(starts.into_iter().map(|start| clock.end(start, Moment::from_millis(250 * (round + 1)))));
        }
        for toll in &tolls[10..] {
            assert_eq!(toll.as_millis_ceil(), 5);
        }
    }

    #[test]
    fn cpu_time_of_an_idle_stretch_belongs_to_nobody() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        clock.measure(Span::from_secs(100), Moment::from_millis(50));
        let start = clock.start(Moment::from_millis(60));
        assert_eq!(clock.end(start, Moment::from_millis(70)), Span::from_millis(10));
    }

    #[test]
    fn an_end_without_a_start_is_harmless() {
        let mut clock = VirtualClock::new(Cores::whole(1));
        assert_eq!(clock.end(Reading(u64::MAX), Moment::MAX), Span::ZERO);
        assert_eq!(clock.in_service(), 0);
    }
}
