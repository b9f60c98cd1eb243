//! How many requests may be in flight at once, found by observing the backend.
//!
//! Fewer leave it idle. More do not make it faster: they share it, so each takes longer, and the order that the queue
//! chose is lost. A backend that computes serves as many as it has cores, one that waits for a database serves
//! hundreds, one with sixteen workers serves sixteen.
//!
//! The limit starts at 8, or at the number of cores if that is larger, and changes in waves. A wave is the period in
//! which one number is in force. It ends when three quarters of the requests that were in flight at its start have left
//! (only then do the measured times belong to the number in force) and enough requests have ended, or after
//! [`WAVE_MAX`]. At its end:
//!
//! | the regression ([`Knee`]) finds | requests waited | the limit |
//! |---|---|---|
//! | a new number | | becomes that number |
//! | room | yes | grows by 8 times, or is doubled if a number was found before |
//! | the number in force, and several address blocks wait | yes | half is tried, in every other of six waves |
//! | the same, after a wave with half | | stays, or becomes half if that explains the times better |
//! | the number in force | yes | twice is tried for a wave, after [`TRIAL_AFTER_MIN`] |
//! | nothing clear | yes | grows if that exposes less than 0.4 s per core |
//! | nothing clear, and that exposes more | yes | half is tried for a wave, unless room was found before |
//! | room, nothing clear | no | stays |
//!
//! While heavy clients have a limit of their own (`contention.rs`), only a new number changes the limit.
//!
//! All this is about requests of one cost: that of the requests which most of the waiting CPU time belongs to
//! ([`InFlightLimit::follow_dominant_cost`]). Requests that cost less than a quarter of it, and take less than a
//! quarter of the time, are not used, because the scheduler of an operating system serves short ones at once, however
//! many compute. For requests that cost more than four times as much, nothing is proven; where there is room, for those
//! that cost more than four times the time that requests take.
//!
//! Between waves the limit grows in two cases while requests wait. The backend's machine is known to be idle and no
//! number was found yet: once without proof, then only if requests seem to be served at once
//! ([`InFlightLimit::serves_all_at_once`]). Nothing has ended for [`SILENCE_MAX`].
//!
//! That there is room for two requests does not show that there is room for sixty-four that nobody has seen before, and
//! a machine that was idle when they came does not either ([`InFlightLimit::exposure`]).

use super::knee::{Finding, Knee};
use super::log2::log2;
use super::price::{Price, Times, recent_mean};
use super::{IN_FLIGHT_MAX, Slot};
use crate::time::{Moment, Span};
use crate::virtual_clock::{ALONE, Cores, Stay};

/// The limit before anything is known. A backend of up to 8 cores is busy with it, and 8 expensive requests slow others
/// by 8 times at most.
const START: u32 = 8;
/// A wave ends after this time at the latest, if requests wait and one has ended: long polls of 25 s would make it last
/// 25 s.
const WAVE_MAX: Span = Span::from_secs(2);
/// Without a single completion the limit grows after this time: a new backend may be one of long polls.
const SILENCE_MAX: Span = Span::from_secs(4);
/// CPU time of unknown requests that a growing limit may expose, per core.
const EXPOSED: Span = Span::from_millis(400);
/// At least this many requests may be in flight whatever they cost, and as many as there are cores if that is more.
const ALWAYS_ALLOWED: u32 = 4;
/// The limit grows by at most this factor per wave.
const GROWTH_MAX: u32 = 8;
/// Twice the number that was found is tried after this time, at first and at most.
const TRIAL_AFTER_MIN: Span = Span::from_secs(10);
const TRIAL_AFTER_MAX: Span = Span::from_secs(30);
/// The number of waves in which half of a number that was found is tried. A smaller number would serve other address
/// blocks sooner.
const HALVES: u32 = 3;
/// Requests have to wait for this long before an idle machine counts: two readings of its CPU time.
const IDLE_MIN: Span = Span::from_millis(100);
/// A finding about requests of one cost holds for those that cost up to this many times as much.
const COMPARABLE: u64 = 4;
/// When most of what waited has been cheaper for this long, cheaper requests are studied instead.
const CHEAPER_AFTER: Span = Span::from_secs(10);

/// One wave: see the top of the module.
#[derive(Clone, Copy, Debug, Default)]
struct Wave {
    number: u32,
    since: Moment,
    /// Requests in flight from earlier waves: at the start, and now.
    older_at_start: u32,
    older: u32,
    /// Requests in flight that started in this wave.
    started: u32,
    /// Requests that have ended, and those of them that cost at least a quarter of the reference cost.
    ends: u32,
    comparable_ends: u32,
    /// The longest time that a request took in this wave.
    longest: Span,
    /// The same of the wave before, at most [`WAVE_MAX`]: this wave lasts that long, so that expensive requests leave.
    lasts_min: Span,
    /// The shortest time that a request took, in this wave or in any before.
    shortest: Option<Span>,
    /// Requests that started in this wave and took at most 1.5 times the shortest time.
    fast_ends: u32,
    /// When a request first had to wait for the limit.
    first_wait_at: Option<Moment>,
}

/// The in-flight limit of one backend.
#[derive(Clone, Debug)]
pub(super) struct InFlightLimit {
    /// The cost of the requests for which the limit is found: the usual cost of those that most of the waiting CPU time
    /// belongs to. Zero until requests of a settled price have waited.
    reference_cost: Span,
    /// The mean time of the last few requests that cost about as much.
    reference_wall: Option<Span>,
    /// When most of the waiting CPU time was last of requests that cost at least a quarter of that.
    reference_at: Moment,
    knee: Knee,
    /// The largest number in flight beside a request of about the reference cost.
    shown: u32,
    /// The cores that the settings name.
    configured_cores: Cores,
    /// The limit without trials.
    found: u32,
    /// The limit now.
    in_force: u32,
    /// Whether the regression has found a number that `found` follows from. Otherwise `found` is a guess.
    is_clear: bool,
    /// Whether heavy clients have a limit of their own (`contention.rs`). This one then neither tries other numbers nor
    /// grows because the machine is idle.
    is_contended: bool,
    /// Whether all waiting requests are of one address block.
    is_lone: bool,
    /// Whether the limit has grown because the machine was idle.
    has_grown_idle: bool,
    /// Whether the regression has found room: the backend does not compute with all its cores. A later wave in which
    /// the number in flight does not vary shows nothing else.
    is_roomy: bool,
    /// Whether the last two readings showed that the backend's machine has CPU time to spare.
    is_idle: bool,
    /// Whether the last reading showed that.
    was_idle: bool,
    /// Since when requests wait without interruption.
    waiting_since: Option<Moment>,
    wave: Wave,
    /// Whether another number than the one found is in force for this wave.
    is_trial: bool,
    /// How many more waves try half of the number.
    halves: u32,
    /// When twice the number was last tried, and how long after that it is tried again.
    trial_at: Moment,
    trial_after: Span,
}

impl InFlightLimit {
    pub(super) fn new(configured_cores: Cores, now: Moment) -> Self {
        let start = START.max(configured_cores.count()).min(IN_FLIGHT_MAX);
        Self {
            reference_cost: Span::ZERO,
            reference_wall: None,
            reference_at: now,
            knee: Knee::new(),
            shown: 0,
            configured_cores,
            found: start,
            in_force: start,
            is_clear: false,
            is_contended: false,
            is_lone: true,
            has_grown_idle: false,
            is_roomy: false,
            is_idle: false,
            was_idle: false,
            waiting_since: None,
            wave: Wave { since: now, ..Wave::default() },
            is_trial: false,
            halves: 0,
            trial_at: now,
            trial_after: TRIAL_AFTER_MIN,
        }
    }

    /// The limit in force.
    pub(super) const fn in_force(&self) -> u32 {
        self.in_force
    }

    /// The limit without trials.
    pub(super) const fn found(&self) -> u32 {
        self.found
    }

    /// The largest number in flight beside a request of about the reference cost.
    pub(super) const fn shown(&self) -> u32 {
        self.shown
    }

    /// Starts at a number that was found earlier, as unproven as any other.
    pub(super) fn restore(&mut self, number: u32, now: Moment) {
        self.is_clear = false;
        self.set(number.max(self.always_allowed()), now);
    }

    /// Whether the limit follows from what was measured with requests of about this price. A hundred that cost a
    /// millisecond each and do not slow each other down say nothing about a hundred that cost a second.
    pub(super) fn is_proven_for(&self, price: Span) -> bool {
        // Where times do not follow the number in flight, a request seems to cost more the fewer there are.
        let has_reference = self.is_roomy && self.reference_cost > Span::ZERO;
        let wall = self.reference_wall.filter(|_| has_reference).unwrap_or(Span::ZERO);
        self.is_idle || (self.is_clear || self.is_roomy) && price <= self.reference_cost.max(wall).times(COMPARABLE)
    }

    /// Whether a request of this price may be refused for its estimated wait: a number was found. One that was found
    /// before any request had to wait is about requests of all prices.
    pub(super) fn is_certain_for(&self, price: Span) -> bool {
        self.is_clear && (self.reference_cost == Span::ZERO || price <= self.reference_cost.times(COMPARABLE))
    }

    /// Whether a number was found. While the limit grows, no wait can be estimated: prices are those of requests that
    /// shared the backend with fewer others.
    pub(super) const fn is_clear(&self) -> bool {
        self.is_clear
    }

    /// How many requests heavy clients may have in flight beside light ones: four fifths of the number found, or as
    /// many as there are cores. A fifth of a pool's workers is left to light clients.
    pub(super) fn most_beside_light(&self) -> u32 {
        if self.is_clear { (self.found - self.found / 5).max(self.cores().count()) } else { IN_FLIGHT_MAX }
    }

    /// Whether the backend is known to serve more than this number at once.
    pub(super) fn has_room(&self, number: u32) -> bool {
        self.is_idle || self.is_roomy || self.is_clear && self.found > number
    }

    pub(super) const fn set_contended(&mut self, is_contended: bool, is_lone: bool) {
        (self.is_contended, self.is_lone) = (is_contended, is_lone);
    }

    /// How many requests of unsettled price may be in flight. Once a request of the route has ended, or the machine is
    /// idle with them, as many as the limit allows. If the route is unseen, twice the number that was seen in flight.
    /// If a request of the route costs more than expected and none has ended, few.
    pub(super) fn exposure(&self, slot: &Slot, now: Moment) -> u32 {
        let least = self.always_allowed();
        if !self.is_proven_for(slot.cost) {
            least
        } else if slot.is_seen || self.is_idle_now(now) {
            self.in_force.max(least)
        } else if slot.is_unseen {
            self.in_force.min(self.shown.saturating_mul(2)).max(least)
        } else {
            least
        }
    }

    /// Whether the machine is idle although requests have waited for a while. That it was idle before shows nothing.
    fn is_idle_now(&self, now: Moment) -> bool {
        self.is_idle && self.waiting_since.is_some_and(|since| now.since(since) >= IDLE_MIN)
    }

    /// The backend's cores: what the settings name, or fewer if fewer requests at once are all that it serves. A gate
    /// takes its own machine's cores for the backend's, and prices are too high by as much as that is wrong.
    pub(super) fn cores(&self) -> Cores {
        if self.is_clear { self.configured_cores.min(Cores::whole(self.found)) } else { self.configured_cores }
    }

    /// A request goes to the backend. Returns the number of its wave.
    pub(super) const fn start(&mut self) -> u32 {
        self.wave.started += 1;
        self.wave.number
    }

    /// A request that started in `wave` is not in flight any more.
    pub(super) const fn end(&mut self, wave: u32) {
        if wave == self.wave.number {
            self.wave.started = self.wave.started.saturating_sub(1);
        } else {
            self.wave.older = self.wave.older.saturating_sub(1);
        }
    }

    /// A reading of the CPU time of the backend's machine. Two in a row count: all requests may sleep for a moment.
    pub(super) const fn set_idle(&mut self, is_idle: bool) {
        (self.is_idle, self.was_idle) = (is_idle && self.was_idle, is_idle);
    }

    /// Nothing waits any more.
    pub(super) const fn note_empty(&mut self) {
        self.waiting_since = None;
    }

    /// A request has to wait. In waves in which none does, the limit changes only to a number that the regression
    /// finds.
    pub(super) fn note_wait(&mut self, now: Moment) {
        self.wave.first_wait_at.get_or_insert(now);
        self.waiting_since.get_or_insert(now);
    }

    /// Learns from a request that has cost `cost`. `dominant` is the usual cost of the requests that most of the
    /// waiting CPU time belongs to.
    pub(super) fn record(&mut self, times: &mut Times, stay: Stay, cost: Span, dominant: Option<Price>, now: Moment) {
        self.follow_dominant_cost(dominant, now);
        let deviations = times.usual.compare(log2(stay.wall.as_nanos()), log2(stay.concurrency));
        // A request that only waits seems to cost less while more are in flight, but it takes as long.
        let costs_as_much = cost.times(COMPARABLE) >= self.reference_cost;
        let takes_as_long = self.reference_wall.is_some_and(|wall| stay.wall.times(COMPARABLE) >= wall);
        let is_comparable = costs_as_much || takes_as_long;
        if is_comparable {
            self.knee.record(&deviations);
            self.shown = self.shown.max(u32::try_from(stay.concurrency / ALONE).unwrap_or(u32::MAX));
        }
        if costs_as_much {
            self.reference_wall = Some(recent_mean(self.reference_wall, stay.wall));
        }
        let wave = &mut self.wave;
        wave.ends += 1;
        wave.comparable_ends += u32::from(is_comparable);
        let shortest = wave.shortest.map_or(stay.wall, |shortest| shortest.min(stay.wall));
        wave.shortest = Some(shortest);
        let is_of_wave = stay.wall <= now.since(wave.since);
        wave.fast_ends += u32::from(is_of_wave && stay.wall.times(2) <= shortest.times(3));
        wave.longest = wave.longest.max(stay.wall);
        if wave.older <= wave.older_at_start / 4
            && now.since(wave.since) >= wave.lasts_min
            && wave.comparable_ends >= self.knee.samples_needed()
        {
            self.end_wave(dominant, now);
        }
    }

    /// Changes the reference cost if most of the waiting CPU time belongs to requests of another cost: at once to a
    /// higher one, and to a lower one after [`CHEAPER_AFTER`]. A number found with cheap requests may be far too large
    /// for expensive ones, so it is replaced by a small one.
    fn follow_dominant_cost(&mut self, dominant: Option<Price>, now: Moment) {
        let Some(price) = dominant.filter(|price| price.is_settled).map(|price| price.usual) else { return };
        if price > self.reference_cost.times(COMPARABLE) {
            let few = self.unproven(price);
            // Nothing was found yet if the number is still the first one.
            if self.found > few && (self.is_clear || self.is_roomy) && !self.is_idle {
                self.is_clear = false;
                self.set(few, now);
            }
            (self.reference_cost, self.reference_wall, self.is_roomy, self.knee) = (price, None, false, Knee::new());
            self.shown = 0;
            (self.in_force, self.is_trial) = (self.with_sleep_margin(), false);
        } else if self.reference_cost > price.times(COMPARABLE) {
            if now.since(self.reference_at) < CHEAPER_AFTER {
                return;
            }
            (self.reference_cost, self.reference_wall) = (price, None);
        }
        self.reference_at = now;
    }

    /// Ends a wave that lasts too long. `is_idle` says that the machine of the backend is known to have CPU time to
    /// spare.
    pub(super) fn tick(&mut self, dominant: Option<Price>, now: Moment) {
        self.follow_dominant_cost(dominant, now);
        let Some(first_wait_at) = self.wave.first_wait_at else { return };
        let lasts = now.since(self.wave.since);
        if self.is_idle_now(now)
            && !self.is_contended
            && !self.is_clear
            && (!self.has_grown_idle || self.serves_all_at_once(now))
        {
            self.has_grown_idle = true;
            self.set(self.in_force * GROWTH_MAX, now);
        } else if self.wave.ends == 0 && lasts.min(now.since(first_wait_at)) > SILENCE_MAX {
            self.set(self.in_force * GROWTH_MAX / 2, now);
        } else if self.wave.ends > 0 && lasts > WAVE_MAX {
            self.end_wave(dominant, now);
        }
    }

    /// Whether the requests in flight do not seem to wait in a queue of the backend. An idle machine does not show it:
    /// a pool of four workers that wait for a database is idle, too. With such a queue, new requests are slower than
    /// those before them, and fewer end than the number in flight and the shortest time suggest.
    fn serves_all_at_once(&self, now: Moment) -> bool {
        let Wave { older, older_at_start, started, ends, fast_ends, since, .. } = self.wave;
        if fast_ends >= 4 {
            return true;
        }
        let Some(shortest) = self.wave.shortest.filter(|_| ends >= 4 && older <= older_at_start / 4) else {
            return false;
        };
        let (lasts, shortest) = (now.since(since).as_nanos(), shortest.as_nanos().max(1));
        let expected = u128::from(older + started) * u128::from(lasts) / u128::from(shortest);
        lasts < shortest / 2 * 3 || u128::from(ends) * 4 >= expected
    }

    fn end_wave(&mut self, dominant: Option<Price>, now: Moment) {
        let finding = self.knee.finding(self.found);
        let (was_trial, tried) = (self.is_trial, self.in_force);
        self.in_force = self.with_sleep_margin();
        self.is_roomy = finding == Finding::Roomy || self.is_roomy && finding == Finding::Unclear;
        let price = dominant.filter(|_| self.wave.first_wait_at.is_some()).map(|price| price.usual);
        match (finding, price) {
            (Finding::Full(number), _) if number != self.found || !self.is_clear => {
                (self.is_clear, self.halves) = (true, HALVES);
                self.set(number.min(self.found.saturating_mul(GROWTH_MAX)), now);
            }
            _ if self.is_clear && was_trial && tried < self.found && self.knee.leans_to(tried, self.found) => {
                self.set(tried, now);
            }
            _ if self.is_contended => self.next_wave(false, now),
            (Finding::Roomy, Some(_)) => self.set(self.found * if self.is_clear { 2 } else { GROWTH_MAX }, now),
            (_, Some(_)) if self.is_clear && !was_trial && !self.is_lone && self.halves > 0 && self.found > 1 => {
                self.halves -= 1;
                self.attempt(self.found / 2, now);
            }
            (_, Some(_)) if self.is_clear && !was_trial && self.is_trial_due(now) => {
                self.attempt(self.in_force * 2, now);
            }
            (Finding::Unclear, Some(price)) if !self.is_clear && self.found <= self.few(price) => {
                self.set(self.found * 2, now);
            }
            (Finding::Unclear, Some(price)) if !self.is_clear && !self.is_roomy && !was_trial => {
                self.attempt(self.unproven(price) / 2, now);
            }
            _ => self.next_wave(false, now),
        }
    }

    fn is_trial_due(&mut self, now: Moment) -> bool {
        let is_due = now.since(self.trial_at) >= self.trial_after;
        if is_due {
            self.trial_at = now;
            self.trial_after = self.trial_after.times(2).min(TRIAL_AFTER_MAX);
        }
        is_due
    }

    /// The limit for requests of this price while nothing is proven.
    pub(super) fn unproven(&self, price: Span) -> u32 {
        self.few(price).max(self.always_allowed()).min(self.in_force)
    }

    /// The number of requests of this price that expose no more than [`EXPOSED`].
    fn few(&self, price: Span) -> u32 {
        let exposed = EXPOSED.times(self.configured_cores.as_milli().into()).as_nanos() / 1000;
        u32::try_from(exposed / price.as_nanos().max(1)).unwrap_or(IN_FLIGHT_MAX).min(IN_FLIGHT_MAX)
    }

    /// How many requests may be in flight whatever they cost: so many keep the cores busy.
    pub(super) fn always_allowed(&self) -> u32 {
        ALWAYS_ALLOWED.max(self.configured_cores.count())
    }

    /// Puts a number in force for good.
    fn set(&mut self, number: u32, now: Moment) {
        self.found = number.clamp(1, IN_FLIGHT_MAX);
        self.in_force = self.with_sleep_margin();
        self.next_wave(false, now);
    }

    /// Puts a number in force for one wave.
    fn attempt(&mut self, number: u32, now: Moment) {
        self.in_force = number.clamp(1, IN_FLIGHT_MAX);
        self.next_wave(true, now);
    }

    /// The number that keeps the backend busy. Where requests compute all the time it is the number found. Where they
    /// sleep in between, some of that number sleep at any moment, and others have to fill in.
    fn with_sleep_margin(&self) -> u32 {
        let beyond_cores = self.found.saturating_sub(self.configured_cores.count());
        (self.found + if self.is_clear { beyond_cores } else { 0 }).min(IN_FLIGHT_MAX)
    }

    fn next_wave(&mut self, is_trial: bool, now: Moment) {
        self.is_trial = is_trial;
        let Wave { number, older, started, longest, shortest, .. } = self.wave;
        let (number, older, lasts_min) = (number.wrapping_add(1), older + started, longest.min(WAVE_MAX));
        self.wave = Wave { number, since: now, older_at_start: older, older, lasts_min, shortest, ..Wave::default() };
    }
}
