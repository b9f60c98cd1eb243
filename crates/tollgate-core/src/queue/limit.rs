//! How many requests may be in flight at once, found by observing the backend.
//!
//! Fewer leave it idle. More do not make it faster: they share it, so each takes longer, and the order that the queue
//! chose is lost. A backend that computes serves as many as it has cores, one that waits for a database serves
//! hundreds, one with sixteen workers serves sixteen.
//!
//! The limit starts at 8, or at the number of cores if that is larger, and changes in waves. A wave is the period in
//! which one number is in force. It ends when the requests that were in flight at its start have left (only then do the
//! measured times belong to the number in force) and enough requests have ended, or after [`WAVE_MAX`] if requests
//! wait. At its end:
//!
//! | the regression ([`Knee`]) finds | requests waited | the limit |
//! |---|---|---|
//! | a number, before [`STUDY_MIN`] or from few requests | | stays |
//! | a new number, later | | becomes that number |
//! | room | yes | grows by 8 times, or is doubled if a number was found before |
//! | the number in force, and several address blocks wait | yes | half is tried for a wave, less and less often |
//! | the number in force, for 31 s | yes | twice is tried for a wave, every 30 s |
//! | nothing clear | yes | grows if that exposes less than 0.4 s per core |
//! | nothing clear after 32 requests, no light client for 3 s | yes | twice what was seen in flight is tried |
//! | anything else | | stays |
//!
//! While heavy clients have a limit of their own (`contention.rs`), only a new number changes the limit.
//!
//! The regression assumes that all requests in flight compete. Where some wait for a database, the number is too small,
//! so requests also go beyond the limit while that does no harm ([`Queue::is_harmless`](super::Queue::is_harmless)).
//!
//! All this is about requests of one cost: that of the requests which most of the waiting CPU time belongs to
//! ([`InFlightLimit::follow_dominant_cost`]). Requests that cost less than a quarter of it, and take less than a
//! quarter of the time, are not used, because the scheduler of an operating system serves short ones at once, however
//! many compute. For requests that cost more than four times as much, nothing is proven; where there is room, for those
//! that cost more than four times the time that requests take.
//!
//! Between waves the limit grows in two cases while requests wait. The backend's machine is known to be idle and no
//! number was found yet: once without proof, then only if new requests are as fast as those before
//! ([`FAST_ENDS_MIN`]). Or no number was found yet, and requests of unknown cost, such as long polls, have neither ended
//! nor slowed light clients for a while ([`InFlightLimit::allow_more`]).
//!
//! A backend with one worker, or one event loop, serves requests one after another. A request that waits there behind a
//! long one seems to cost as much. So one request goes at a time, and its price is what it takes alone
//! ([`Stay::turn`]). Two signs show such a backend: no request overtakes one that started much earlier
//! ([`InFlightLimit::record_order`]), and that explains the times better than any number ([`Knee::is_serial`]).
//!
//! That there is room for two requests does not show that there is room for sixty-four that nobody has seen before, and
//! a machine that was idle when they came does not either ([`InFlightLimit::exposure`]).

use super::knee::{Finding, Knee, MANY, SAMPLES_MIN};
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
/// If no request of unknown cost ends in this time, twice as many may go, because they may be long polls. Longer beside
/// light clients, whom they may slow down: of four requests of a crawler that share one core, one ends in this time.
const SILENCE_ALONE: Span = Span::from_millis(1000);
const SILENCE_BESIDE_LIGHT: Span = Span::from_millis(1500);
/// If a client is alone, and requests have waited for so long before a number was found, more go as well.
const STUCK: Span = Span::from_secs(5);
/// But not beyond this number: in a pool of workers they would wait for each other.
const STUCK_ALLOWANCE_MAX: u32 = 64;
/// A number is not found before this time: the assets of one page are many requests, but show one moment.
const STUDY_MIN: Span = Span::from_millis(400);
/// CPU time of unknown requests that a growing limit may expose, per core.
const EXPOSED: Span = Span::from_millis(400);
/// At least this many requests may be in flight whatever they cost, and as many as there are cores if that is more.
pub(super) const ALWAYS_ALLOWED: u32 = 4;
/// At least this many requests of unknown cost may be in flight, and as many as there are cores if that is more. In a
/// pool of four workers, four of a crawler would make everybody else wait.
pub(super) const UNKNOWN_ALLOWED: u32 = 2;
/// The limit grows by at most this factor per wave.
const GROWTH_MAX: u32 = 8;
/// Another number than the one found is tried after this time, at first and at most.
const TRIAL_AFTER_MIN: Span = Span::from_secs(1);
const TRIAL_AFTER_MAX: Span = Span::from_secs(30);
/// Half of the number is tried at first (0, 1, 3, 7 and 15 s after it was found), and twice the number when trials have
/// become that rare (after 31 s).
const TRIAL_OF_MORE_AFTER: Span = Span::from_secs(10);
/// This number of requests of a wave that are not slower than earlier ones shows that none waits at the backend.
const FAST_ENDS_MIN: u32 = 4;
/// How many readings in a row show that the machine is idle.
const IDLE_READINGS_MIN: u32 = 2;
/// Requests have to wait for this long before readings show something about them: two readings of 50 ms.
const IDLE_MIN: Span = Span::from_millis(100);
/// A finding about requests of one cost holds for those that cost up to this many times as much.
const COMPARABLE: u64 = 4;
/// A wave begins when requests wait again after this time: earlier requests show nothing about those that wait.
const CALM_BEFORE: Span = Span::from_secs(1);
/// This number of requests that ended in order shows that the backend serves one after another, if their times show
/// it, too.
const IN_ORDER_MIN: u32 = 12;
/// When most of what waited has been cheaper for this long, cheaper requests are studied instead.
const CHEAPER_AFTER: Span = Span::from_secs(10);

/// One wave: see the top of the module.
#[derive(Clone, Copy, Debug, Default)]
struct Wave {
    number: u32,
    since: Moment,
    /// Requests in flight from earlier waves.
    older: u32,
    /// Requests in flight that started in this wave.
    started: u32,
    /// Requests that have ended.
    ends: u32,
    /// The shortest time that a request took, in this wave or in any before.
    shortest: Option<Span>,
    /// Requests that started in this wave and took at most 1.5 times the shortest time.
    fast_ends: u32,
    /// When a request first had to wait for the limit.
    first_wait_at: Option<Moment>,
}

/// The in-flight limit of one backend.
#[derive(Clone, Debug, Default)]
pub(super) struct InFlightLimit {
    /// The cost of the requests for which the limit is found: the usual cost of those that most of the waiting CPU time
    /// belongs to. Zero until requests of a settled price have waited.
    reference_cost: Span,
    /// The mean time of the last few requests that cost about as much.
    reference_wall: Option<Span>,
    /// When most of the waiting CPU time was last of requests that cost at least a quarter of that.
    reference_at: Moment,
    knee: Knee,
    /// When the regression began to study requests of the reference cost.
    studied_since: Moment,
    /// The largest number in flight beside a request of about the reference cost.
    pub(super) shown: u32,
    /// The cores that the settings name.
    configured_cores: Cores,
    /// The number that the limit follows from, without trials.
    pub(super) found: u32,
    /// Another number than the one found, which is the limit for this wave.
    trial: Option<u32>,
    /// Whether the regression has found a number that `found` follows from. Otherwise `found` is a guess, and no wait
    /// can be estimated: prices are those of requests that shared the backend with fewer others.
    pub(super) is_clear: bool,
    /// Whether heavy clients have a limit of their own (`contention.rs`). This one then neither tries other numbers nor
    /// grows because the machine is idle.
    pub(super) is_contended: bool,
    /// Whether the backend serves requests one after another.
    pub(super) is_serial: bool,
    /// How many requests have ended in the order in which they started, beside others. Half of that is forgotten with
    /// each request that overtakes another one.
    in_order: u32,
    /// Whether all waiting requests are of one address block.
    pub(super) is_lone: bool,
    /// Whether a client behind its share has used the backend of late without waiting.
    pub(super) has_light: bool,
    /// How many requests of unknown cost may be in flight, because as many as that did not end for a while and slowed
    /// nobody; zero at first. Raises the bounds of [`Self::at_least`].
    pub(super) allowance: u32,
    /// When the allowance last grew, or a request of unknown cost ended.
    pub(super) allowed_at: Moment,
    /// Whether the limit has grown because the machine was idle.
    has_grown_idle: bool,
    /// Whether the regression has found room: the backend does not compute with all its cores. A later wave in which
    /// the number in flight does not vary shows nothing else.
    pub(super) is_roomy: bool,
    /// How many readings in a row showed that the backend's machine has CPU time to spare while requests waited.
    idle_readings: u32,
    /// Since when requests wait without interruption.
    pub(super) waiting_since: Option<Moment>,
    /// When a request last had to wait.
    waited_at: Moment,
    wave: Wave,
    /// When another number was last tried, and how long after that another one is.
    trial_at: Moment,
    trial_after: Span,
}

impl InFlightLimit {
    pub(super) fn new(configured_cores: Cores, now: Moment) -> Self {
        let start = START.max(configured_cores.count()).min(IN_FLIGHT_MAX);
        Self {
            configured_cores,
            found: start,
            is_lone: true,
            reference_at: now,
            studied_since: now,
            trial_at: now,
            allowed_at: now,
            waited_at: now,
            wave: Wave { since: now, ..Wave::default() },
            ..Self::default()
        }
    }

    /// Whether the limit follows from what was measured with requests of about this price. A hundred that cost a
    /// millisecond each and do not slow each other down say nothing about a hundred that cost a second.
    pub(super) fn is_proven_for(&self, price: Span) -> bool {
        // Where times do not follow the number in flight, a request seems to cost more the fewer there are.
        let wall = self.reference_wall.filter(|_| self.is_roomy).unwrap_or(Span::ZERO);
        self.is_idle()
            || self.trial.is_some()
            || (self.is_clear || self.is_roomy) && price <= self.reference_cost.max(wall).times(COMPARABLE)
    }

    /// Whether a request of this price may be refused for its estimated wait: a number was found. One that was found
    /// before any request had to wait is about requests of all prices.
    pub(super) fn is_certain_for(&self, price: Span) -> bool {
        self.is_clear && (self.reference_cost == Span::ZERO || price <= self.reference_cost.times(COMPARABLE))
    }

    /// Whether the backend is known to serve more than this number at once.
    pub(super) fn has_room(&self, number: u32) -> bool {
        self.is_idle() || self.is_roomy || self.is_clear && self.found > number
    }

    /// How many requests of unsettled price may be in flight. Once a request of the route has ended, or the machine is
    /// idle with them, as many as the limit allows. If the route is unseen, twice the number that was seen in flight.
    /// If a request of the route costs more than expected and none has ended, few.
    pub(super) fn exposure(&self, slot: &Slot, now: Moment) -> u32 {
        let is_known = slot.is_seen || self.is_idle_now(now);
        let twice = if slot.is_unseen { self.shown.saturating_mul(2) } else { 0 };
        let safe = if is_known { IN_FLIGHT_MAX } else { twice };
        let proven = if self.is_proven_for(slot.cost) { self.in_force().min(safe) } else { 0 };
        proven.max(self.at_least(UNKNOWN_ALLOWED))
    }

    /// Whether the backend's machine has CPU time to spare while requests wait. All may sleep for a moment, so one
    /// reading is not enough.
    const fn is_idle(&self) -> bool {
        self.idle_readings >= IDLE_READINGS_MIN
    }

    /// Whether it has that with the requests that wait now. That it was idle before they came shows nothing.
    fn is_idle_now(&self, now: Moment) -> bool {
        self.is_idle() && self.waiting_since.is_some_and(|since| now.since(since) >= IDLE_MIN)
    }

    /// The backend's cores: what the settings name, or fewer if fewer requests at once are all that it serves. A gate
    /// takes its own machine's cores for the backend's, and prices are too high by as much as that is wrong.
    pub(super) fn cores(&self) -> Cores {
        let cores =
            if self.is_clear { self.configured_cores.min(Cores::whole(self.found)) } else { self.configured_cores };
        if self.is_serial { cores.min(Cores::whole(1)) } else { cores }
    }

    /// A request goes to the backend. Returns the number of its wave.
    pub(super) const fn start(&mut self) -> u32 {
        self.wave.started += 1;
        self.wave.number
    }

    /// A request that started in `wave` is not in flight any more.
    pub(super) const fn end(&mut self, wave: u32) {
        let of_wave = if wave == self.wave.number { &mut self.wave.started } else { &mut self.wave.older };
        *of_wave = of_wave.saturating_sub(1);
    }

    /// A request that started at `began` has ended beside others, of which the oldest, or itself, started at `oldest`.
    /// Requests that started nearly together may end in any order.
    pub(super) fn record_order(&mut self, oldest: Moment, began: Moment, now: Moment) {
        let behind = began.since(oldest);
        if behind == Span::ZERO {
            self.in_order = (self.in_order + 1).min(2 * IN_ORDER_MIN);
        } else if behind >= now.since(began) {
            self.in_order /= 2;
        }
    }

    /// A reading of the CPU time of the backend's machine.
    pub(super) const fn set_idle(&mut self, is_idle: bool) {
        self.idle_readings = if is_idle { self.idle_readings.saturating_add(1) } else { 0 };
    }

    /// A request has to wait. In waves in which none does, the limit changes only to a number that the regression
    /// finds.
    pub(super) fn note_wait(&mut self, now: Moment) {
        if now.since(self.waited_at) > CALM_BEFORE {
            self.next_wave(self.trial, now);
        }
        self.waited_at = now;
        self.wave.first_wait_at.get_or_insert(now);
        self.waiting_since.get_or_insert(now);
    }

    /// Learns from a request that has cost `cost`. `dominant` is the usual cost of the requests that most of the
    /// waiting CPU time belongs to.
    pub(super) fn record(&mut self, times: &mut Times, stay: Stay, cost: Span, dominant: Option<Price>, now: Moment) {
        self.follow_dominant_cost(dominant, now);
        let deviations =
            times.usual.compare(log2(stay.wall.as_nanos()), log2(stay.concurrency), log2(stay.turn.as_nanos()));
        // A request that only waits seems to cost less while more are in flight, but it takes as long.
        let costs_as_much = cost.times(COMPARABLE) >= self.reference_cost;
        let takes_as_long = self.reference_wall.is_some_and(|wall| stay.wall.times(COMPARABLE) >= wall);
        if costs_as_much || takes_as_long {
            self.knee.record(&deviations);
            self.shown = self.shown.max(u32::try_from(stay.concurrency / ALONE).unwrap_or(u32::MAX));
        }
        let in_order_min = if self.is_serial { IN_ORDER_MIN / 2 } else { IN_ORDER_MIN };
        self.is_serial = self.in_order >= in_order_min && self.knee.is_serial(self.is_serial);
        let costs_more = !self.reference_cost.is_zero() && cost > self.reference_cost.times(COMPARABLE);
        if costs_as_much && !costs_more {
            self.reference_wall = Some(recent_mean(self.reference_wall, stay.wall));
        }
        let wave = &mut self.wave;
        wave.ends += 1;
        let shortest = wave.shortest.map_or(stay.wall, |shortest| shortest.min(stay.wall));
        wave.shortest = Some(shortest);
        let is_of_wave = stay.wall <= now.since(wave.since);
        wave.fast_ends += u32::from(is_of_wave && stay.wall.times(2) <= shortest.times(3));
        if wave.older == 0 && wave.ends >= self.knee.samples_needed() {
            self.end_wave(dominant, now);
        }
    }

    /// Changes the reference cost if most of the waiting CPU time belongs to requests of another cost: at once to a
    /// higher one, and to a lower one after [`CHEAPER_AFTER`]. A number found with cheap requests may be far too large
    /// for expensive ones, so it is replaced by a small one.
    pub(super) fn follow_dominant_cost(&mut self, dominant: Option<Price>, now: Moment) {
        let Some(price) = dominant.filter(|price| price.is_settled).map(|price| price.usual) else { return };
        if price > self.reference_cost.times(COMPARABLE) {
            let few = self.unproven(price);
            // Nothing was found yet if the number is still the first one.
            if self.found > few && (self.is_clear || self.is_roomy) && !self.is_idle() {
                self.is_clear = false;
                self.set(few, now);
            }
            (self.reference_cost, self.reference_wall, self.studied_since) = (price, None, now);
            (self.knee, self.is_roomy, self.shown, self.trial) = (Knee::default(), false, 0, None);
        } else if self.reference_cost > price.times(COMPARABLE) {
            if now.since(self.reference_at) < CHEAPER_AFTER {
                return;
            }
            (self.reference_cost, self.reference_wall) = (price, None);
        }
        self.reference_at = now;
    }

    /// Lets the limit grow between waves, and ends a wave that lasts too long.
    pub(super) fn tick(&mut self, dominant: Option<Price>, now: Moment) {
        self.follow_dominant_cost(dominant, now);
        if self.wave.first_wait_at.is_none() {
            return;
        }
        // A pool of four workers that wait for a database leaves the machine idle, too. Requests that wait for a worker
        // are slower than those before them.
        let may_be_idle = !self.is_contended && !self.is_clear;
        let serves_all_at_once = !self.has_grown_idle || self.wave.fast_ends >= FAST_ENDS_MIN;
        if self.is_idle_now(now) && may_be_idle && serves_all_at_once {
            self.has_grown_idle = true;
            self.set(self.in_force() * GROWTH_MAX, now);
        } else if !self.is_clear && self.allowance > self.in_force() {
            self.set(self.allowance, now);
        } else if self.wave.ends > 0 && now.since(self.wave.since) > WAVE_MAX {
            self.end_wave(dominant, now);
        }
    }

    /// Lets twice as many requests of unknown cost go if `unknown` are in flight, as many as may be, and none has ended
    /// for a while. Without this, 64 long polls of 25 s would wait for two, until they are refused.
    pub(super) fn allow_more(&mut self, unknown: u32, now: Moment) {
        let Some(since) = self.waiting_since else { return };
        let silence = if self.has_light { SILENCE_BESIDE_LIGHT } else { SILENCE_ALONE };
        let is_silent = now.since(since.max(self.allowed_at)) >= silence;
        let may_be_stuck = !self.is_clear && !self.has_light && self.is_lone && self.allowance < STUCK_ALLOWANCE_MAX;
        let is_stuck = may_be_stuck && now.since(since) >= STUCK;
        if is_silent && (unknown >= self.at_least(UNKNOWN_ALLOWED) || is_stuck) {
            (self.allowance, self.allowed_at) = ((2 * self.at_least(UNKNOWN_ALLOWED)).min(IN_FLIGHT_MAX), now);
        }
    }

    fn end_wave(&mut self, dominant: Option<Price>, now: Moment) {
        let finding = if self.is_serial { Finding::Full(1) } else { self.knee.finding(self.found) };
        let is_early = now.since(self.studied_since) < STUDY_MIN || self.knee.samples < SAMPLES_MIN;
        if is_early && matches!(finding, Finding::Full(_)) {
            // Too early for a number, but more at once would only let requests overtake those that wait.
            return self.next_wave(self.trial, now);
        }
        self.is_roomy = finding == Finding::Roomy || self.is_roomy && finding == Finding::Unclear;
        let may_change = self.wave.first_wait_at.is_some() && !self.is_contended;
        let price = dominant.filter(|_| may_change).map(|price| price.usual);
        let is_trial_due = self.trial.is_none() && now.since(self.trial_at) >= self.trial_after;
        // While the number in flight does not vary, the regression finds nothing, and a remote backend that sleeps
        // would be kept at a few requests for good.
        let may_expose_more = is_trial_due && self.knee.samples >= MANY && !self.has_light && !self.is_idle();
        match (finding, price) {
            (Finding::Full(number), _) if number != self.found || !self.is_clear => {
                (self.is_clear, self.trial_after) = (true, Span::ZERO);
                self.allowance = if self.has_light { self.allowance } else { 0 };
                self.set(number.min(self.found.saturating_mul(GROWTH_MAX)), now);
            }
            (Finding::Roomy, _) if may_change => self.set(self.found * if self.is_clear { 2 } else { GROWTH_MAX }, now),
            (_, Some(_)) if self.is_clear && is_trial_due => {
                let is_of_more = self.trial_after >= TRIAL_OF_MORE_AFTER;
                let number = if is_of_more { self.in_force() * 2 } else { self.found / 2 };
                let tries = is_of_more || !self.is_lone && number > 0;
                self.try_number(tries.then_some(number), now);
            }
            (Finding::Unclear, Some(price)) if !self.is_clear && self.found <= self.few(price) => {
                self.set(self.found * 2, now);
            }
            (Finding::Unclear, Some(_)) if !self.is_clear && may_expose_more => {
                self.try_number(Some(2 * self.shown.max(self.at_least(ALWAYS_ALLOWED))), now);
            }
            _ => self.next_wave(None, now),
        }
    }

    /// Puts a number in force for a wave, and delays the next trial.
    fn try_number(&mut self, number: Option<u32>, now: Moment) {
        self.trial_at = now;
        self.trial_after = self.trial_after.times(2).clamp(TRIAL_AFTER_MIN, TRIAL_AFTER_MAX);
        self.next_wave(number, now);
    }

    /// The limit for requests of this price while nothing is proven.
    pub(super) fn unproven(&self, price: Span) -> u32 {
        self.few(price).max(self.at_least(ALWAYS_ALLOWED)).min(self.in_force().max(self.allowance))
    }

    /// The number of requests of this price that expose no more than [`EXPOSED`].
    fn few(&self, price: Span) -> u32 {
        let exposed = EXPOSED.times(self.configured_cores.as_milli().into()).as_nanos() / 1000;
        u32::try_from(exposed / price.as_nanos().max(1)).unwrap_or(IN_FLIGHT_MAX).min(IN_FLIGHT_MAX)
    }

    /// How many requests may be in flight whatever is known: [`ALWAYS_ALLOWED`] or [`UNKNOWN_ALLOWED`], or more that
    /// keep the cores busy or have harmed nobody.
    pub(super) fn at_least(&self, number: u32) -> u32 {
        number.max(self.configured_cores.count()).max(self.allowance)
    }

    /// Puts a number in force for good.
    pub(super) fn set(&mut self, number: u32, now: Moment) {
        self.found = number.clamp(1, IN_FLIGHT_MAX);
        self.next_wave(None, now);
    }

    /// The limit now. Without a trial, the number that keeps the backend busy. Where requests compute all the time it is
    /// the number found. Where they sleep in between, some of that number sleep at any moment, and others have to fill
    /// in.
    pub(super) fn in_force(&self) -> u32 {
        let beyond_cores = self.found.saturating_sub(self.configured_cores.count());
        let busy = self.found + if self.is_clear { beyond_cores } else { 0 };
        self.trial.unwrap_or(if self.is_serial { 1 } else { busy }).min(IN_FLIGHT_MAX)
    }

    /// Begins a wave, in which another number than the one found may be tried.
    fn next_wave(&mut self, trial: Option<u32>, now: Moment) {
        self.trial = trial;
        let Wave { number, older, started, shortest, .. } = self.wave;
        let (number, older) = (number.wrapping_add(1), older + started);
        self.wave = Wave { number, since: now, older, shortest, ..Wave::default() };
    }
}
