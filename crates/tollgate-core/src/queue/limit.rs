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
//! | the number in force | yes | is compared with twice of it, in turns, until one is clearly better |
//! | the same, and several address blocks wait | yes | is compared with half of it first |
//! | room, no number found before | yes | grows, by up to 8 times |
//! | room, and times do not follow the number in flight | yes | is doubled |
//! | nothing clear | yes | grows if that exposes less than 0.4 s per core |
//! | nothing clear, and that exposes more | yes | half is tried for a wave, or more if there seems to be room |
//! | room, nothing clear | no | stays |
//!
//! All this is about requests of one cost: that of the requests which most of the waiting CPU time belongs to
//! ([`InFlightLimit::follow_dominant_cost`]). Requests that cost less than a quarter of it are not used, because the
//! scheduler of an operating system serves short ones at once, however many compute. For requests that cost more than
//! four times as much, nothing is proven.
//!
//! Between waves the limit grows in three cases while requests wait. The backend's machine is known to be idle and no
//! number was found yet: once without proof, then only if requests seem to be served at once
//! ([`InFlightLimit::serves_all_at_once`]). The machine has been idle for [`IDLE_MAX`] with the number that was found.
//! Nothing has ended for [`SILENCE_MAX`].
//!
//! Requests are weighed, not counted ([`Times::load`]): in a backend where some requests compute and others sleep, a
//! hundred sleepers do not compete with one that computes.

use super::IN_FLIGHT_MAX;
use super::knee::{Finding, Knee, Usual};
use super::log2::log2;
use super::price::Price;
use super::response::{COMPUTES, Follows, ONLY_SHARE, Response, STILL_ROOM};
use crate::time::{Moment, Span};
use crate::virtual_clock::{Cores, Load, Stay};

/// The limit before anything is known. A backend of up to 8 cores is busy with it, and 8 expensive requests slow others
/// by 8 times at most.
const START: Load = Load::of(8);
/// The limit never grows beyond this.
const LIMIT_MAX: Load = Load::of(IN_FLIGHT_MAX);
/// A wave ends after this time at the latest, if requests wait and one has ended: long polls of 25 s would make it last
/// 25 s.
const WAVE_MAX: Span = Span::from_secs(2);
/// Without a single completion the limit grows after this time: a new backend may be one of long polls.
const SILENCE_MAX: Span = Span::from_secs(4);
/// CPU time of unknown requests that a growing limit may expose, per core.
const EXPOSED: Span = Span::from_millis(400);
/// Up to this many times as much, where requests seem to be served at once.
const EXPOSED_TIMES_MAX: u64 = 16;
/// At least this many requests may be in flight whatever they cost, and as many as there are cores if that is more.
const ALWAYS_ALLOWED: u32 = 4;
/// The limit grows by at most this factor per wave.
const GROWTH_MAX: u64 = 8;
/// A number that was found is tried again in both directions after this time, at first and at most.
const TRIAL_AFTER_MIN: Span = Span::from_secs(10);
const TRIAL_AFTER_MAX: Span = Span::from_secs(30);
/// Requests have to wait for this long before an idle machine counts: two readings of its CPU time.
const IDLE_MIN: Span = Span::from_millis(100);
/// A number that leaves the backend's machine idle for this long while requests wait is doubled: some of those in
/// flight only wait.
const IDLE_MAX: Span = Span::from_secs(1);
/// The number of waves in which another number is tried, in turns with the number found.
const TRIES: u8 = 6;
/// The backend may have this many times the cores that the settings name. That many requests compute at once without
/// slowing each other down.
const CORES_MARGIN: u64 = 4;
/// A finding about requests of one cost holds for those that cost up to this many times as much.
const COMPARABLE: u64 = 4;
/// When most of what waited has been cheaper for this long, cheaper requests are studied instead.
const CHEAPER_AFTER: Span = Span::from_secs(10);
/// Requests that it takes to know how long a route takes in calm, and requests that are remembered.
const CALM_SAMPLES_MIN: i32 = 8;
const CALM_MEMORY: i32 = 32;
/// The load of a request that sleeps.
const SLEEPER: Load = Load::from_256ths(4);

/// How long a route's requests take, and whether they compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// How long they take alone, by each candidate of the regression.
    usual: Usual,
    /// Whether they take longer while more requests that compute are in flight.
    response: Response,
    /// Whether they mostly wait, for a database for example, and hardly compute.
    is_sleeper: bool,
    /// The mean time of requests while nothing waits, as a logarithm, and how many it is the mean of.
    calm: i32,
    calm_samples: i32,
}

impl Times {
    /// A request of a client behind its share took `took` while nothing waits, as a logarithm.
    pub(super) fn record_calm(&mut self, took: i32) {
        self.calm_samples = (self.calm_samples + 1).min(CALM_MEMORY);
        self.calm += (took - self.calm) / self.calm_samples;
    }

    /// How much longer than in calm a request takes, as a logarithm, if that is known.
    pub(super) fn longer_than_calm(&self, took: i32) -> Option<i32> {
        (self.calm_samples >= CALM_SAMPLES_MIN).then_some(took - self.calm)
    }

    /// Whether a request of this route has ended. Parent paths have no times.
    pub(super) fn is_known(&self) -> bool {
        self.is_sleeper || self.usual != Usual::default()
    }

    /// The load that a request of this route puts on the backend.
    pub(super) const fn load(&self) -> Load {
        if self.is_sleeper { SLEEPER } else { Load::ONE }
    }
}

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

/// Whether another number than the one found is in force for one wave, to compare the times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Trial {
    #[default]
    None,
    Half,
    Twice,
}

/// The in-flight limit of one backend.
#[derive(Clone, Debug)]
pub(super) struct InFlightLimit {
    /// The cost of the requests for which the limit is found: the usual cost of those that most of the waiting CPU time
    /// belongs to. Zero until requests of a settled price have waited.
    reference_cost: Span,
    /// When most of the waiting CPU time was last of requests that cost at least a quarter of that.
    reference_at: Moment,
    knee: Knee,
    /// How times follow the number in flight near the number in force, over all routes.
    response: Response,
    /// When the number found has changed last.
    set_at: Moment,
    /// The cores that the settings name.
    configured_cores: Cores,
    /// The limit without trials.
    found: Load,
    /// The limit now.
    in_force: Load,
    /// Whether the regression has found a number that `found` follows from. Otherwise `found` is a guess.
    is_clear: bool,
    /// Whether heavy clients have a limit of their own (`contention.rs`). This one then neither tries other numbers nor
    /// grows because the machine is idle.
    is_contended: bool,
    /// Whether all waiting requests are of one address block.
    is_lone: bool,
    /// Since when the machine is idle with this limit.
    idle_since: Moment,
    /// Whether the limit has grown because the machine was idle.
    has_grown_idle: bool,
    /// Whether the last wave found room: the backend does not compute with all its cores.
    is_roomy: bool,
    /// Whether the backend's machine was last seen to have CPU time to spare.
    is_idle: bool,
    wave: Wave,
    /// When other numbers were last tried, and how long after that they are tried again.
    trial_at: Option<Moment>,
    trial_after: Span,
    /// How many more waves try another number, in turns with the number itself, and whether that is a larger one.
    tries: u8,
    tries_more: bool,
    trial: Trial,
    /// How many times [`EXPOSED`] is allowed.
    exposed_times: u64,
    /// Until then, the number in flight at a time and the times of requests are not compared ([`Self::rescale`]).
    blind_until: Moment,
}

impl InFlightLimit {
    pub(super) fn new(configured_cores: Cores, now: Moment) -> Self {
        let start = START.max(Load::of_cores(configured_cores)).min(LIMIT_MAX);
        Self {
            reference_cost: Span::ZERO,
            reference_at: now,
            knee: Knee::new(),
            response: Response::default(),
            set_at: now,
            configured_cores,
            found: start,
            in_force: start,
            is_clear: false,
            is_contended: false,
            is_lone: false,
            idle_since: now,
            has_grown_idle: false,
            is_roomy: false,
            is_idle: false,
            wave: Wave { since: now, ..Wave::default() },
            trial_at: None,
            trial_after: TRIAL_AFTER_MIN,
            tries: 0,
            tries_more: true,
            trial: Trial::None,
            exposed_times: 1,
            blind_until: now,
        }
    }

    /// The limit in force.
    pub(super) const fn in_force(&self) -> Load {
        self.in_force
    }

    /// The limit without trials.
    pub(super) const fn found(&self) -> Load {
        self.found
    }

    /// Starts at a number that was found earlier, as unproven as any other.
    pub(super) fn restore(&mut self, number: u32, now: Moment) {
        self.is_clear = false;
        self.set(Load::of(number).max(self.always_allowed()).as_256ths(), now);
    }

    /// Whether the limit follows from what was measured.
    pub(super) const fn is_proven(&self) -> bool {
        self.is_clear || self.is_roomy || self.is_idle
    }

    /// Whether the limit follows from what was measured with requests of about this price. A hundred that cost a
    /// millisecond each and do not slow each other down say nothing about a hundred that cost a second.
    pub(super) fn is_proven_for(&self, price: Span) -> bool {
        self.is_idle || self.is_proven() && price <= self.reference_cost.times(COMPARABLE)
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

    /// Whether the backend is known to serve more than this number at once.
    pub(super) fn has_room(&self, number: Load) -> bool {
        self.is_idle || self.is_roomy || self.is_clear && self.found > number
    }

    pub(super) const fn set_contended(&mut self, is_contended: bool, is_lone: bool) {
        (self.is_contended, self.is_lone) = (is_contended, is_lone);
    }

    /// CPU time that requests in flight may take while the limit is not proven.
    pub(super) fn exposed_cpu(&self) -> Span {
        Span::from_nanos(EXPOSED.times(self.configured_cores.as_milli().into()).as_nanos() / 1000)
    }

    /// How much load of unsettled price (no request of the route has ended, or one costs far more) may be in flight.
    pub(super) fn exposure(&self, price: Span) -> Load {
        let least = self.always_allowed();
        if self.is_proven_for(price) { self.in_force.max(least) } else { least }
    }

    /// The backend's cores: what the settings name, or fewer if fewer requests at once are all that it serves. A gate
    /// takes its own machine's cores for the backend's, and prices are too high by as much as that is wrong.
    pub(super) fn cores(&self) -> Cores {
        if !self.is_clear {
            return self.configured_cores;
        }
        let found = self.found.max(Load::ONE).as_256ths() * 1000 / Load::ONE.as_256ths();
        self.configured_cores.min(Cores::from_milli(u32::try_from(found).unwrap_or(u32::MAX)))
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

    /// A request has to wait. In waves in which none does, the limit changes only to a number that the regression
    /// finds.
    pub(super) fn note_wait(&mut self, now: Moment) {
        self.wave.first_wait_at.get_or_insert(now);
    }

    /// Learns from a request that has cost `cost`. `dominant` is the usual cost of the requests that most of the
    /// waiting CPU time belongs to. Returns the route's load if that has changed.
    pub(super) fn record(
        &mut self,
        route: &mut Times,
        stay: Stay,
        cost: Span,
        dominant: Option<Price>,
        now: Moment,
    ) -> Option<Load> {
        self.follow_dominant_cost(dominant, now);
        let (took, concurrency) = (log2(stay.wall.as_nanos()), log2(stay.concurrency.as_256ths()));
        let is_new = route.usual == Usual::default();
        let deviations = route.usual.compare(took, concurrency);
        let (more_in_flight, longer) = route.usual.off_mean(took, concurrency);
        let is_comparable = cost.times(COMPARABLE) >= self.reference_cost;
        // A sleeper that others did not slow down says nothing about how many of those may compute.
        if is_comparable && (!route.is_sleeper || stay.computing == Load::ZERO) && now >= self.blind_until {
            self.knee.record(&deviations);
            if !is_new && stay.wall <= now.since(self.set_at) {
                self.response.add(more_in_flight, longer);
            }
        }
        self.wave.ends += 1;
        self.wave.comparable_ends += u32::from(is_comparable);
        self.wave.longest = self.wave.longest.max(stay.wall);
        let shortest = self.wave.shortest.map_or(stay.wall, |shortest| shortest.min(stay.wall));
        self.wave.shortest = Some(shortest);
        let is_of_wave = stay.wall <= now.since(self.wave.since);
        let is_fast = stay.wall.times(2) <= shortest.times(3);
        self.wave.fast_ends += u32::from(is_of_wave && is_fast);
        if self.wave.older <= self.wave.older_at_start / 4
            && now.since(self.wave.since) >= self.wave.lasts_min
            && self.wave.comparable_ends >= self.knee.samples_needed()
        {
            self.end_wave(dominant, now);
        }
        self.classify(route, stay, took)
    }

    /// Changes the reference cost if most of the waiting CPU time belongs to requests of another cost: at once to a
    /// higher one, and to a lower one after [`CHEAPER_AFTER`]. A number found with cheap requests may be far too large
    /// for expensive ones, so it is replaced by a small one.
    fn follow_dominant_cost(&mut self, dominant: Option<Price>, now: Moment) {
        let Some(price) = dominant.filter(|price| price.is_settled).map(|price| price.usual) else { return };
        if price > self.reference_cost.times(COMPARABLE) {
            self.exposed_times = 1;
            let few = self.unproven(price);
            // Nothing was found yet if the number is still the first one.
            if self.found > few && self.is_proven() && !self.is_idle {
                self.is_clear = false;
                self.set(few.as_256ths(), now);
            }
            (self.reference_cost, self.is_roomy) = (price, false);
            (self.knee, self.response) = (Knee::new(), Response::default());
            (self.tries, self.tries_more) = (TRIES, self.found <= Load::ONE);
            self.in_force = self.found;
        } else if self.reference_cost > price.times(COMPARABLE) {
            if now.since(self.reference_at) < CHEAPER_AFTER {
                return;
            }
            self.reference_cost = price;
        }
        self.reference_at = now;
    }

    /// Requests of a route have another load, and another cost. If those that the limit is about are among them, so has
    /// the number that was found, and what was measured before says nothing.
    pub(super) fn rescale(&mut self, (from, to): (Load, Load), (cost_before, cost): (Span, Span), now: Moment) {
        if cost_before.times(COMPARABLE) < self.reference_cost {
            return;
        }
        let (from, to) = (u128::from(from.as_256ths().max(1)), u128::from(to.as_256ths().max(1)));
        let number = u128::from(self.found.as_256ths()) * to / from;
        let most = self.found.max(self.few(self.reference_cost)).as_256ths();
        (self.knee, self.reference_cost) = (Knee::new(), cost);
        // Until requests with the load of before have left, and for as long after that, since the first to end are the
        // short ones.
        self.blind_until = now + self.wave.longest.max(self.wave.lasts_min).times(2);
        self.set(u64::try_from(number).unwrap_or(u64::MAX).min(most), now);
    }

    /// Ends a wave that lasts too long. `is_idle` says that the machine of the backend is known to have CPU time to
    /// spare.
    pub(super) fn tick(&mut self, is_idle: bool, dominant: Option<Price>, now: Moment) {
        self.follow_dominant_cost(dominant, now);
        self.is_idle = is_idle;
        if !is_idle {
            self.idle_since = now;
        }
        if self.wave.first_wait_at.is_none() {
            return;
        }
        let lasts = now.since(self.wave.since);
        // A machine that was idle before requests came says nothing.
        let has_waited = self.wave.first_wait_at.is_some_and(|at| now.since(at) >= IDLE_MIN);
        let is_idle = is_idle && has_waited && !self.is_contended;
        if is_idle && !self.is_clear {
            self.grow_if_idle(now);
        } else if is_idle && now.since(self.idle_since) >= IDLE_MAX {
            self.idle_since = now;
            self.is_clear = false;
            self.set(self.in_force.as_256ths() * 2, now);
        } else if self.wave.ends == 0 && lasts > SILENCE_MAX {
            self.set(self.in_force.as_256ths() * GROWTH_MAX / 2, now);
        } else if self.wave.ends > 0 && lasts > WAVE_MAX {
            self.end_wave(dominant, now);
        }
    }

    /// Lets the limit grow if nothing speaks against it, because the backend's machine is idle.
    fn grow_if_idle(&mut self, now: Moment) {
        if !self.has_grown_idle || self.serves_all_at_once(now) {
            self.has_grown_idle = true;
            self.set(self.in_force.as_256ths() * GROWTH_MAX, now);
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
        let (trial, tried) = (core::mem::take(&mut self.trial), self.in_force);
        self.in_force = if self.is_clear { self.with_sleep_margin() } else { self.found };
        self.is_roomy = finding == Finding::Roomy;
        let price = dominant.filter(|_| self.wave.first_wait_at.is_some()).map(|price| price.usual);
        match (finding, price) {
            (Finding::Full(number), _) if number != self.found || !self.is_clear => self.take_over(number, now),
            _ if self.is_contended => self.next_wave(now),
            (Finding::Roomy, Some(_)) if !self.is_clear => {
                self.set(self.found.as_256ths() * GROWTH_MAX, now);
            }
            (Finding::Roomy, Some(_)) if self.response.follows(ONLY_SHARE) == Follows::No => {
                self.set(self.found.as_256ths() * 2, now);
            }
            (_, Some(_)) if self.is_clear => self.steer(trial, tried, now),
            (Finding::Unclear, Some(price)) if self.exposes_little(price) => self.grow(price, now),
            (Finding::Unclear, Some(price)) if !self.is_idle => self.explore(trial, price, now),
            _ => self.next_wave(now),
        }
    }

    /// Nothing is clear, and more requests would be expensive. Half of them is tried for one wave. If requests seem to
    /// be served at once, twice as many go: certainty can take a minute where times vary.
    fn explore(&mut self, trial: Trial, price: Span, now: Moment) {
        if self.knee.leans_to_room() {
            self.exposed_times = (self.exposed_times * 2).min(EXPOSED_TIMES_MAX);
            self.set(self.found.max(self.few(price)).as_256ths(), now);
        } else if trial == Trial::None {
            self.attempt(Trial::Half, self.unproven(price).as_256ths() / 2, now);
        } else {
            self.next_wave(now);
        }
    }

    /// Takes over a number that the regression found. Half of it is tried next, if requests of several address blocks
    /// wait.
    fn take_over(&mut self, number: Load, now: Moment) {
        let most = self.found.as_256ths().saturating_mul(GROWTH_MAX);
        (self.is_clear, self.exposed_times) = (true, 1);
        (self.tries, self.tries_more) = (TRIES, false);
        self.set(number.as_256ths().min(most), now);
    }

    /// Compares the number with half of it or twice as much, in turns, until it is certain which is better: the smaller
    /// if the times follow the number in flight, so that more only share the backend, the larger if not.
    fn steer(&mut self, trial: Trial, tried: Load, now: Moment) {
        let test = if trial == Trial::Twice { STILL_ROOM } else { ONLY_SHARE };
        match (trial, self.response.follows(test)) {
            (Trial::Half, Follows::Yes) | (Trial::Twice, Follows::No) => {
                (self.tries, self.tries_more) = (TRIES, false);
                self.set(tried.as_256ths(), now);
                if trial == Trial::Twice {
                    self.attempt(Trial::Twice, self.in_force.as_256ths() * 2, now);
                }
            }
            (Trial::Half, Follows::No) | (Trial::Twice, Follows::Yes) => {
                self.tries = 0;
                self.next_wave(now);
            }
            (Trial::None, _) => {
                if self.tries == 0 && self.is_trial_due(now) {
                    self.tries_more = !self.tries_more;
                    self.tries = if self.tries_more { 2 } else { TRIES };
                    // Times at smaller numbers say nothing about larger ones.
                    (self.response, self.set_at) = (Response::default(), now);
                }
                self.try_another(now);
            }
            _ => self.next_wave(now),
        }
    }

    fn try_another(&mut self, now: Moment) {
        // Half of one request is one request.
        let half = (self.found.as_256ths() / 2).max(Load::ONE.as_256ths());
        // A smaller number would serve others sooner, but there are none, and the backend may need this one.
        if !self.tries_more && self.is_lone {
            (self.tries, self.trial_at) = (0, self.trial_at.or(Some(now)));
        }
        if self.tries == 0 || !self.tries_more && half >= self.found.as_256ths() {
            return self.next_wave(now);
        }
        self.tries -= 1;
        let twice = self.in_force.as_256ths() * 2;
        let (trial, number) = if self.tries_more { (Trial::Twice, twice) } else { (Trial::Half, half) };
        self.attempt(trial, number, now);
    }

    fn is_trial_due(&mut self, now: Moment) -> bool {
        let is_due = self.trial_at.is_none_or(|at| now.since(at) >= self.trial_after);
        if is_due {
            self.trial_after =
                if self.trial_at.is_some() { self.trial_after.times(2).min(TRIAL_AFTER_MAX) } else { TRIAL_AFTER_MIN };
            self.trial_at = Some(now);
        }
        is_due
    }

    /// The limit for requests of this price while nothing is proven.
    pub(super) fn unproven(&self, price: Span) -> Load {
        self.few(price).min(self.in_force)
    }

    /// The number of requests of this price that expose no more than [`EXPOSED`], or that keep the cores busy, times
    /// what a guess adds ([`Self::explore`]).
    fn few(&self, price: Span) -> Load {
        let number = self.exposed_cpu().as_nanos() / price.as_nanos().max(1);
        let number = Load::from_256ths(number.saturating_mul(Load::ONE.as_256ths())).max(self.always_allowed());
        Load::from_256ths(number.as_256ths().saturating_mul(self.exposed_times))
    }

    /// The load that may be in flight whatever the requests cost: it keeps the cores busy.
    pub(super) fn always_allowed(&self) -> Load {
        Load::of(ALWAYS_ALLOWED).max(Load::of_cores(self.configured_cores))
    }

    fn exposes_little(&self, price: Span) -> bool {
        let cpu = u128::from(price.as_nanos()) * u128::from(self.found.as_256ths()) / u128::from(Load::ONE.as_256ths());
        cpu <= u128::from(self.exposed_cpu().as_nanos())
    }

    fn grow(&mut self, price: Span, now: Moment) {
        let limit = self.found.as_256ths();
        let by = self.exposed_cpu().times(Load::ONE.as_256ths()).as_nanos() / price.as_nanos().max(1);
        self.set(limit + by.clamp(limit / 2, limit), now);
    }

    /// Puts a number in force for good.
    fn set(&mut self, number: u64, now: Moment) {
        self.attempt(Trial::None, number, now);
        (self.response, self.set_at) = (Response::default(), now);
        self.found = self.in_force;
        if self.is_clear {
            self.in_force = self.with_sleep_margin();
        }
    }

    /// The number that keeps the backend busy. Where requests compute all the time it is the number found. Where they
    /// sleep in between, some of that number sleep at any moment, and others have to fill in.
    fn with_sleep_margin(&self) -> Load {
        if self.tries > 0 {
            return self.found;
        }
        let beyond_cores = self.found.minus(Load::of_cores(self.configured_cores));
        self.found.plus(beyond_cores).min(LIMIT_MAX)
    }

    /// Puts a number in force for one wave.
    fn attempt(&mut self, trial: Trial, number: u64, now: Moment) {
        self.trial = trial;
        self.in_force = Load::from_256ths(number.max(SLEEPER.as_256ths())).min(LIMIT_MAX);
        self.next_wave(now);
    }

    fn next_wave(&mut self, now: Moment) {
        let older = self.wave.older + self.wave.started;
        let number = self.wave.number.wrapping_add(1);
        let lasts_min = self.wave.longest.min(WAVE_MAX);
        self.wave = Wave {
            number,
            since: now,
            older_at_start: older,
            older,
            lasts_min,
            shortest: self.wave.shortest,
            ..Wave::default()
        };
    }

    /// Finds out whether the route's requests compute or sleep, and returns its load if that has changed.
    fn classify(&self, route: &mut Times, stay: Stay, took: i32) -> Option<Load> {
        // Beside light clients, times show the competition and not the route: a pool whose workers wait for a database
        // would be taken for one that serves any number.
        if self.is_contended {
            return None;
        }
        let room = log2(Load::of_cores(self.configured_cores).as_256ths() * CORES_MARGIN);
        route.response.add((log2(stay.computing.as_256ths()) - room).max(0), took);
        let is_sleeper = match route.response.follows(COMPUTES) {
            Follows::Yes => false,
            Follows::No => true,
            Follows::Unclear => return None,
        };
        if is_sleeper == route.is_sleeper {
            return None;
        }
        let Times { calm, calm_samples, .. } = *route;
        *route = Times { is_sleeper, calm, calm_samples, ..Times::default() };
        Some(route.load())
    }
}
