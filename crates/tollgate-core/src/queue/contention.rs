//! The in-flight limit of heavy clients while light clients use the backend at the same time.
//!
//! [`InFlightLimit`] asks how many requests the backend serves at once. The answer takes some hundred requests, and
//! until then an error harms the clients behind their share: a page waits for a crawler's requests in the backend,
//! where no order can be chosen. In a pool of four workers, five requests of a second each make a page of 10 ms take a
//! second. So while light clients are there, heavy clients have a limit of their own, which starts small. Once it is
//! reached, it grows as far as light clients' requests take no longer than in calm.
//!
//! In a pool of workers they are fast until the last worker is taken, and then they wait for whole heavy requests. So
//! free workers are counted before they are given away ([`Queue::record_spare`]): where requests start in the order in
//! which they come, one that ends before older ones shows that each of those has a worker.
//!
//! A client is light if it is behind its share, has nothing waiting, and its last request went at once. Heavy clients
//! are those ahead of their share. If most of the waiting CPU time belongs to one address block, the network of the
//! waiting client furthest ahead is heavy, too. While all cores of the backend's machine are seen to be busy and light
//! clients' requests take longer than in calm, so are requests that cost four times as much as a light client's: a
//! crawler with an address in each of 64 networks is behind its share with all of them.
//!
//! | state | event | limit |
//! |---|---|---|
//! | off | heavy clients wait; a light one was seen less than [`LASTS`] ago | the one remembered |
//! | off | the same, nothing is remembered, the times of light requests in calm are known | half the cores |
//! | off | the same, but these times are not known, and at least [`CROWD_MIN`] requests wait | none |
//! | on, none | they are known | half the cores |
//! | on, none | they are not known after [`CALM_MAX`] | the cores |
//! | on | light requests are fast, the limit is reached, and workers are free | grows, to four fifths at most |
//! | on | they take clearly longer than in calm, or the backend serves fewer at once | falls |
//! | on | no light client was seen for [`LASTS`], or nothing waits for as long | off |
//!
//! Without a time in calm, nobody can tell a backend of two cores from one of one core: beside one more request, pages
//! take 1.5 times as long at both. So heavy clients wait for a moment, and the light ones' requests are timed alone.

use super::client::Client;
use super::limit::InFlightLimit;
use super::log2::{OCTAVE, log2};
use super::price::recent_mean;
use super::tree::Tree;
use super::{IN_FLIGHT_MAX, Queue, Slot, State, octave};
use crate::time::{Moment, Span};
use crate::virtual_clock::Cores;

/// A light client uses the backend for this long after its last request: a page every few seconds is enough.
const LASTS: Span = Span::from_secs(3);
/// If fewer requests wait, such as the assets of a page or two, none is held back to time others.
const CROWD_MIN: usize = 8;
/// How long the times of light clients' requests in calm count as known.
const KNOWN: Span = Span::from_secs(600);
/// The limit of the last contention is used again if the next one begins within this time.
const REMEMBERED: Span = Span::from_secs(60);
/// Heavy clients wait for at most this long until it is known how long light clients' requests take without them.
const CALM_MAX: Span = Span::from_millis(650);
/// Heavy requests from before a smaller limit have to leave within this time. Those that do not, such as long polls,
/// are taken to do no harm.
const DRAIN_MAX: Span = Span::from_secs(5);
/// The limit may grow while light clients' requests take at most this much longer than in calm (0.45 octaves:
/// 1.4 times), and how many of them it takes to show that.
const FAST: i32 = OCTAVE * 9 / 20;
const FAST_SAMPLES: i32 = 8;
/// Light clients' requests that take this much longer (0.5 octaves: 1.4 times) show that others compute at the same
/// time.
const SLOWED: i32 = OCTAVE / 2;
/// The limit is too large if they take this much longer (1.15 octaves: 2.2 times; a request that shares a core with one
/// other takes twice as long), and how many of them it takes to show that.
pub(super) const SLOW: i32 = OCTAVE * 23 / 20;
const SLOW_SAMPLES: i32 = 4;
/// How many requests the mean slowdown remembers, and the recent one.
const MEMORY: i32 = 32;
const RECENT: i32 = 8;
/// A request that costs this many times as much as a light client's is heavy.
const HEAVY: u64 = 4;
/// Requests are short if they take at most this many times as long as those of light clients.
const SHORT: u64 = 4;
/// A number that was too large is not tried again before this time, at first and at most.
const BACKOFF_MIN: Span = Span::from_secs(10);
const BACKOFF_MAX: Span = Span::from_secs(40);
/// Requests that are shorter in calm are no samples: the scheduler of an operating system serves them at once, however
/// many compute.
const CALM_MIN: i32 = log2(4_000_000);
/// This number of workers stays free for light clients: one for a page, and one for the next request.
const SPARE_MIN: u32 = 2;
/// If fewer cores than this are busy, nothing on the machine computes all the time. The kernel counts in steps of 10
/// ms: a core that is always busy can look like 0.8 of one in 50 ms.
const IDLE_MAX: Cores = Cores::from_milli(700);

#[derive(Clone, Debug, Default)]
pub(super) struct Contention {
    /// The last two clients behind their share whose request went at once, of different networks, with the usual cost
    /// of the request, and when.
    served: [Option<(Client, Span, Moment)>; 2],
    /// The network of the waiting client furthest ahead, if contention is on, and when that was last so.
    pub(super) network: Option<u64>,
    seen_at: Option<Moment>,
    /// Requests of one octave below this or more are heavy, whichever client sends them. Octaves class prices by
    /// factors of two.
    heavy: Option<u8>,
    /// Zero until it is known how long light clients' requests take in calm.
    limit: u32,
    changed_at: Moment,
    /// Since when no more heavy requests are in flight than the limit allows.
    settled_at: Option<Moment>,
    /// Whether nearly as many heavy requests were in flight as the limit allows.
    is_used: bool,
    /// When a light client's request last ended of which it is known how long it takes in calm.
    known_at: Option<Moment>,
    /// How much longer light clients' requests take than in calm since the limit changed, and how much that varies, as
    /// logarithms.
    slowdown: i32,
    spread: i32,
    samples: i32,
    /// The most light requests since then that were seen to run at once beside as many heavy ones as the limit allows.
    spare: u32,
    /// The same over the last few requests, whatever the limit.
    recent_slowdown: i32,
    /// How long light and heavy clients' requests have taken of late.
    light_wall: Option<Span>,
    heavy_wall: Option<Span>,
    /// Whether the limit has grown beyond the cores because heavy requests were short.
    is_for_short: bool,
    /// How long the oldest heavy request in flight has been there.
    heavy_age: Span,
    /// The last number that was too large, when, and for how long it is not tried again.
    failed: Option<(u32, Moment, Span)>,
    /// The mean of the last readings of the machine's busy cores, in thousandths, if the gate sees them.
    busy_milli: Option<u64>,
}

impl Contention {
    /// A request of a client behind its share, which usually costs `cost`, goes to the backend at once.
    pub(super) fn serve(&mut self, client: Client, cost: Span, now: Moment) {
        if self.served[0].is_some_and(|(last, ..)| last.network != client.network) {
            self.served[1] = self.served[0];
        }
        self.served[0] = Some((client, cost, now));
    }

    /// Whether a light client of another network uses the backend.
    pub(super) fn has_light(&self, network: u64, is_light: impl Fn(&Client, Span) -> bool, now: Moment) -> bool {
        let mut others = self.served.iter().flatten().filter(|(client, ..)| client.network != network);
        others.any(|(client, cost, at)| now.since(*at) < LASTS && is_light(client, *cost))
    }

    /// Whether light clients' requests take longer than in calm.
    pub(super) const fn is_slowed(&self) -> bool {
        self.recent_slowdown > SLOWED
    }

    /// Whether requests may be heavy by their cost alone: these cores are all busy, and light clients' requests take
    /// longer than in calm. That long polls are in flight proves nothing.
    fn may_be_heavy(&self, cores: Cores, now: Moment) -> bool {
        let is_short_of_cores = self.busy_milli.is_some_and(|busy| busy * 10 >= u64::from(cores.as_milli()) * 9);
        is_short_of_cores && self.is_slowed() || self.is_on(now) && self.heavy.is_some()
    }

    /// Whether requests of this octave are heavy, whichever client sends them.
    pub(super) fn is_heavy_octave(&self, octave: u8) -> bool {
        self.heavy.is_some_and(|heavy| octave + 1 >= heavy)
    }

    /// Whether a request is heavy, beside light clients.
    fn is_heavy(&self, slot: &Slot, now: Moment) -> bool {
        let is_of_network = self.network == Some(slot.request.client.network);
        slot.is_ahead || self.is_on(now) && (is_of_network || self.is_heavy_octave(slot.octave))
    }

    /// Whether light and heavy clients compete now.
    pub(super) fn is_on(&self, now: Moment) -> bool {
        self.network.is_some() && self.seen_at.is_some_and(|at| now.since(at) <= LASTS)
    }

    /// The limit of heavy requests, while contention is on.
    pub(super) fn limit(&self, now: Moment) -> Option<u32> {
        self.is_on(now).then_some(self.limit)
    }

    /// Turns contention on if `network` is heavy beside light clients, and off without one. `is_crowded`: many wait.
    fn update(&mut self, network: Option<u64>, backend: &InFlightLimit, is_crowded: bool, now: Moment) {
        if network.is_some() && !self.is_on(now) {
            if self.seen_at.is_none_or(|at| now.since(at) >= REMEMBERED) {
                let is_known = self.known_at.is_some_and(|at| now.since(at) < KNOWN);
                self.set(if is_known || !is_crowded { backend.cores().count().div_ceil(2) } else { 0 }, now);
                self.heavy_wall = None;
            }
            self.heavy = None;
        }
        self.network = network;
        if network.is_none() {
            return;
        }
        self.seen_at = Some(now);
        let cores = backend.cores().count();
        // A fifth of a pool's workers is left to light clients.
        let most = if backend.is_clear { (backend.found - backend.found / 5).max(cores) } else { IN_FLIGHT_MAX };
        let is_short = self.is_short(self.heavy_age);
        let step = if is_short { self.limit } else { (self.limit / 4).max(1) };
        let more = (self.limit + step).min(most);
        match self.settled_at {
            Some(at) if self.limit == 0 && self.known_at >= Some(at) => self.set(cores.div_ceil(2), now),
            Some(at) if self.limit == 0 && now.since(at) > CALM_MAX => self.set(cores, now),
            _ if self.limit > most => self.set(most, now),
            _ if self.is_for_short && self.limit > cores && !self.is_short(Span::ZERO) => {
                self.is_for_short = false;
                self.set(cores.div_ceil(2), now);
            }
            Some(at) if more > self.limit && self.may_grow(more, now.since(at), backend, now) => {
                self.is_for_short |= is_short && more > cores;
                self.set(more, now);
            }
            _ => {}
        }
    }

    /// Whether this larger limit does no harm: light clients were fast in the time for which the present one was in
    /// force, and heavy requests are short or leave workers free; or light clients have shown nothing, and the backend
    /// has idle cores, or room for short requests.
    fn may_grow(&self, more: u32, lasts: Span, backend: &InFlightLimit, now: Moment) -> bool {
        if self.failed.is_some_and(|(failed, at, backoff)| more >= failed && now.since(at) < backoff) {
            return false;
        }
        let (has_room, is_within_cores) = (backend.has_room(self.limit), more <= backend.cores().count());
        // Light requests that come rarely show nothing soon, and cores would be idle until then.
        if self.samples == 0 {
            return (is_within_cores || has_room && self.is_short(self.heavy_age)) && lasts >= CALM_MAX;
        }
        // Where times do not depend on the number in flight, those in calm may be wrong: only clearly slow ones count.
        let most = if backend.is_roomy { SLOW } else { FAST };
        let is_fast = self.is_used && self.samples >= FAST_SAMPLES && self.slowdown + self.error() / 2 < most;
        let has_workers = backend.is_clear || self.spare >= more - self.limit + SPARE_MIN;
        is_fast && (is_within_cores || self.is_short(self.heavy_age) || has_room && has_workers)
    }

    /// Whether heavy clients' requests, one of which has taken `age`, take about as long as those of light ones. A light
    /// one that has to wait for such a request does not wait long.
    fn is_short(&self, age: Span) -> bool {
        self.heavy_wall.zip(self.light_wall).is_some_and(|(heavy, light)| heavy.max(age) <= light.times(SHORT))
    }

    /// Whether a request that took `wall` shows how long it takes in calm: it ran while heavy clients had to wait, or
    /// light clients' requests take less time than was measured in calm, so that measurement was wrong.
    pub(super) fn is_calm(&self, wall: Span, now: Moment) -> bool {
        let is_faster = self.samples >= FAST_SAMPLES && self.slowdown + self.error() < 0;
        self.is_on(now) && (self.limit == 0 || is_faster) && self.settled_at.is_some_and(|at| wall <= now.since(at))
    }

    /// A request has taken `wall`, which is `longer` than in calm as a logarithm, if that is known.
    pub(super) fn record(&mut self, slot: &Slot, longer: Option<i32>, wall: Span, now: Moment) {
        if self.is_heavy(slot, now) {
            self.heavy_wall = Some(recent_mean(self.heavy_wall, wall));
            return;
        }
        self.light_wall = Some(recent_mean(self.light_wall, wall));
        let Some(longer) = longer.filter(|longer| log2(wall.as_nanos()) - longer >= CALM_MIN) else { return };
        self.known_at = Some(now);
        let longer = longer.clamp(-2 * OCTAVE, 4 * OCTAVE);
        self.recent_slowdown += (longer - self.recent_slowdown) / RECENT;
        if !self.is_on(now) || self.settled_at.is_none_or(|at| wall > now.since(at)) {
            return;
        }
        self.samples = (self.samples + 1).min(MEMORY);
        let deviation = longer - self.slowdown;
        self.slowdown += deviation / self.samples;
        self.spread += if self.samples > 1 { (deviation.abs() - self.spread) / self.samples } else { 0 };
        if self.samples >= SLOW_SAMPLES && self.slowdown - self.error() / 2 > SLOW && self.limit > 1 {
            let backoff = self.failed.map_or(BACKOFF_MIN, |(.., backoff)| backoff.times(2).min(BACKOFF_MAX));
            self.failed = Some((self.limit, now, backoff));
            self.set((self.limit - self.limit / 4).min(self.limit - 1), now);
        }
    }

    /// Two standard errors of the slowdown.
    fn error(&self) -> i32 {
        2 * self.spread / self.samples.max(1).isqrt()
    }

    fn set(&mut self, limit: u32, now: Moment) {
        (self.limit, self.changed_at, self.settled_at, self.is_used) = (limit, now, None, false);
        (self.slowdown, self.spread, self.samples, self.spare) = (0, 0, 0, 0);
    }
}

impl Queue {
    /// The number of cores of the backend's machine that processes other than the gate kept busy since the last call;
    /// `None` if that is not known. Call it every 50 ms while requests wait.
    pub fn machine_busy(&mut self, busy: Option<Cores>) {
        self.limit.set_idle(busy.is_some_and(|busy| busy < IDLE_MAX));
        let mean = |busy: u64| self.contention.busy_milli.map_or(busy, |before| (before * 7 + busy) / 8);
        self.contention.busy_milli = busy.map(|busy| mean(busy.as_milli().into()));
    }

    /// A request ends. If it is a light one, and as many heavy ones from before as the limit allows have not ended yet,
    /// it and the light ones from before had workers that those did not need.
    pub(super) fn record_spare(&mut self, at: u32, now: Moment) {
        let (contention, slot) = (&self.contention, &self.slots[at as usize]);
        let is_sample = contention.settled_at.is_some() && contention.is_on(now) && !contention.is_heavy(slot, now);
        let (true, State::InFlight(start, _)) = (is_sample, slot.state) else { return };
        let older = self.in_flight.requests.range(..start).map(|(_, at)| &self.slots[*at as usize]);
        let older = older.map(|other| contention.is_heavy(other, now));
        let [light, heavy] = older.fold([0, 0], |[light, heavy], is| [light + u32::from(!is), heavy + u32::from(is)]);
        if heavy >= contention.limit {
            self.contention.spare = contention.spare.max(light + 1);
        }
    }

    /// Finds out whether light clients use the backend while heavy ones wait.
    pub(super) fn update_contention(&mut self, now: Moment) {
        let (last, lane) = (self.last(), self.dominant_lane());
        let is_heavy =
            last.is_some_and(|(tag, _)| tag > self.front()) || lane.is_some_and(|lane| self.lanes[lane].blocks() == 1);
        let price = self.dominant().filter(|price| price.is_settled);
        let price = price.filter(|_| self.contention.may_be_heavy(self.cores(), now)).map(|price| price.usual);
        let is_lighter = |cost: Span| price.is_some_and(|price| cost.times(HEAVY) <= price);
        // A light client that has to wait, too, still counts while contention is on.
        let is_light = |client: &Client, cost| {
            let waits = !self.contention.is_on(now) && self.backlogs.contains_key(&client.address);
            (is_heavy || is_lighter(cost)) && !self.is_ahead(client) && !waits
        };
        let network = last.map(|(_, at)| self.slots[at as usize].request.client.network);
        let network = network.filter(|network| self.contention.has_light(*network, is_light, now));
        let has_lighter = |network| self.contention.has_light(network, |_, cost| is_lighter(cost), now);
        let heavy = price.filter(|_| network.is_some_and(has_lighter)).map(octave);
        self.contention.heavy = heavy.or(self.contention.heavy);
        let firsts = self.lanes.iter().filter_map(Tree::first);
        let mut blocks = firsts.map(|first| self.slots[first.request as usize].request.client.block);
        let block = blocks.next();
        let is_lone = blocks.all(|other| Some(other) == block) && self.lanes.iter().all(|lane| lane.blocks() <= 1);
        (self.limit.is_contended, self.limit.is_lone) = (network.is_some(), is_lone);
        self.limit.has_light = self.contention.served.iter().flatten().any(|(.., at)| now.since(*at) < LASTS);
        self.contention.update(network, &self.limit, self.waiting >= CROWD_MIN, now);
        if network.is_some() {
            let mut heavy = self.slots_in_flight().filter(|slot| self.contention.is_heavy(slot, now));
            let oldest = heavy.next().and_then(|slot| slot.state.reading());
            let heavy = heavy.count() as u32 + u32::from(oldest.is_some());
            let contention = &mut self.contention;
            contention.heavy_age = oldest.map_or(Span::ZERO, |oldest| now.since(oldest.at()));
            let is_settled = heavy <= contention.limit || now.since(contention.changed_at) >= DRAIN_MAX;
            contention.settled_at = contention.settled_at.or(is_settled.then_some(now));
            // Light requests are peers of heavy ones, and take a part of the limit.
            contention.is_used |= heavy >= contention.limit - contention.limit / 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Request, Settings};

    const NETWORK: u64 = 1;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn client(network: u64) -> Client {
        Client { block: 7, network, address: network + 100, tenant: 0 }
    }

    /// A backend of four cores that is known to have room for any number, or of which nothing is known.
    fn backend(has_room: bool) -> InFlightLimit {
        let mut limit = InFlightLimit::new(Cores::whole(4), at(0));
        (0..2).for_each(|_| limit.set_idle(has_room));
        limit
    }

    fn record(contention: &mut Contention, network: u64, longer: Option<i32>, wall_ms: u64, millis: u64) {
        let request = Request { client: client(network), ..Request::default() };
        let slot = Slot { mean: Span::from_millis(20), request, ..Slot::default() };
        contention.record(&slot, longer, Span::from_millis(wall_ms), at(millis));
    }

    /// Contention that has begun at 1 s. Light clients' times in calm are known, heavy requests take `heavy_ms`.
    fn contended(heavy_ms: u64) -> Contention {
        let mut contention = Contention::default();
        record(&mut contention, 2, Some(0), 20, 900);
        contention.update(Some(NETWORK), &backend(false), false, at(1000));
        record(&mut contention, NETWORK, None, heavy_ms, 1000);
        contention
    }

    /// Light requests that take `times` as long as in calm, every 50 ms from `from` on. No more heavy requests are in
    /// flight than the limit allows.
    fn light(contention: &mut Contention, times: f64, from: u64, count: u64, room: Option<u32>) {
        let longer = (times.log2() * f64::from(OCTAVE)) as i32;
        for millis in (0..count).map(|index| from + 50 * index) {
            contention.update(Some(NETWORK), &backend(room.is_some()), false, at(millis));
            contention.settled_at = contention.settled_at.or(Some(at(millis - 40)));
            (contention.is_used, contention.spare) = (true, room.unwrap_or(0));
            record(contention, 2, Some(longer), 20, millis);
        }
    }

    #[test]
    fn heavy_clients_wait_until_it_is_known_how_long_light_requests_take_in_calm() {
        for (known_ms, limit) in [(Some(1300), 2), (None, 4)] {
            let mut contention = Contention::default();
            contention.update(Some(NETWORK), &backend(false), true, at(1000));
            assert_eq!(contention.limit(at(1000)), Some(0));
            assert!(!contention.is_calm(Span::from_millis(20), at(1100)), "heavy requests are still in flight");
            contention.settled_at = Some(at(1200));
            assert!(contention.is_calm(Span::from_millis(20), at(1250)));
            known_ms.iter().for_each(|millis| record(&mut contention, 2, Some(0), 20, *millis));
            contention.update(Some(NETWORK), &backend(false), false, at(1300));
            assert_eq!(contention.limit(at(1300)), Some(if known_ms.is_some() { limit } else { 0 }));
            contention.update(Some(NETWORK), &backend(false), false, at(1900));
            assert_eq!(contention.limit(at(1900)), Some(limit));
        }
    }

    #[test]
    fn light_requests_that_come_rarely_leave_no_cores_idle() {
        let mut contention = contended(400);
        for millis in (1000..3000).step_by(50) {
            contention.update(Some(NETWORK), &backend(false), false, at(millis));
            contention.settled_at = contention.settled_at.or(Some(at(millis)));
        }
        assert_eq!(contention.limit(at(3000)), Some(4));
    }

    #[test]
    fn the_limit_falls_if_light_clients_are_slow_and_the_number_is_not_tried_again_soon() {
        let mut contention = contended(400);
        light(&mut contention, 1.0, 1100, 20, None);
        assert_eq!(contention.limit(at(2050)), Some(4));
        light(&mut contention, 4.5, 2100, 9, None);
        assert_eq!(contention.limit(at(2500)), Some(3));
        light(&mut contention, 1.0, 5000, 40, None);
        assert_eq!(contention.limit(at(7000)), Some(3), "four were too many");
        light(&mut contention, 1.0, 12_500, 10, None);
        assert_eq!(contention.limit(at(13_000)), Some(4));
    }

    #[test]
    fn beyond_the_cores_the_limit_grows_only_by_workers_that_are_seen_to_be_free() {
        for (times, room, limit) in [(1.0, None, 4), (2.0, Some(3), 2), (1.0, Some(2), 4), (1.0, Some(3), 8)] {
            let mut contention = contended(400);
            light(&mut contention, times, 1100, 200, room);
            assert_eq!(contention.limit(at(11_100)), Some(limit), "{times} {room:?}");
        }
    }

    #[test]
    fn a_light_request_that_ends_before_older_ones_shows_free_workers() {
        let mut queue = Queue::new(Settings::default(), at(0));
        queue.contention = Contention { limit: 1, settled_at: Some(at(1000)), ..contended(400) };
        let go = |queue: &mut Queue, network, millis| {
            let request = Request { client: client(network), ..Request::default() };
            let ticket = queue.insert(Slot { request, ..Slot::default() });
            queue.run(ticket.slot, at(millis));
            ticket
        };
        let [heavy, first, second] =
            [(NETWORK, 1100), (2, 1110), (3, 1120)].map(|(network, millis)| go(&mut queue, network, millis));
        for (ticket, millis, spare) in [(second, 1130, 2), (first, 1140, 2)] {
            queue.done(ticket, Span::from_millis(10), true, at(millis));
            assert_eq!(queue.contention.spare, spare);
        }
        queue.contention.spare = 0;
        let third = go(&mut queue, 2, 1150);
        queue.done(heavy, Span::from_millis(60), true, at(1160));
        queue.done(third, Span::from_millis(10), true, at(1170));
        assert_eq!(queue.contention.spare, 0, "the heavy request had left");
    }

    #[test]
    fn a_limit_for_short_requests_does_not_hold_for_long_ones() {
        let mut contention = contended(60);
        light(&mut contention, 1.0, 1100, 40, None);
        let limit = contention.limit(at(3100));
        contention.heavy_age = Span::from_millis(100);
        light(&mut contention, 1.0, 3100, 20, None);
        assert_eq!(contention.limit(at(4100)), limit, "one in flight is long");
        (0..8).for_each(|_| record(&mut contention, NETWORK, None, 400, 4100));
        contention.update(Some(NETWORK), &backend(false), false, at(4105));
        assert_eq!(contention.limit(at(4105)), Some(2), "all are long");
    }

    #[test]
    fn beside_requests_that_take_about_as_long_fast_light_clients_are_enough() {
        let mut contention = contended(60);
        light(&mut contention, 1.0, 1100, 40, None);
        assert!(contention.limit(at(3100)) > Some(16));
    }

    #[test]
    fn contention_ends_with_the_light_clients_and_its_limit_is_remembered() {
        let mut contention = contended(400);
        light(&mut contention, 1.0, 1100, 10, None);
        assert_eq!(contention.limit(at(1600)), Some(3));
        contention.update(None, &backend(false), false, at(3000));
        assert_eq!(contention.limit(at(3001)), None);
        contention.update(Some(NETWORK), &backend(false), false, at(9000));
        assert_eq!(contention.limit(at(9000)), Some(3));
        assert_eq!(contention.limit(at(12_001)), None, "nothing has waited for three seconds");
        contention.update(Some(NETWORK), &backend(false), false, at(61_000));
        assert_eq!(contention.limit(at(61_000)), Some(3));
        contention.update(Some(NETWORK), &backend(false), false, at(130_000));
        assert_eq!(contention.limit(at(130_000)), Some(2), "it starts again");
        contention.update(Some(NETWORK), &backend(false), true, at(800_000));
        assert_eq!(contention.limit(at(800_000)), Some(0), "nobody knows the times in calm any more");
    }

    #[test]
    fn clients_of_the_heaviest_network_are_no_light_ones() {
        let mut contention = Contention::default();
        contention.serve(client(NETWORK), Span::ZERO, at(10));
        assert!(!contention.has_light(NETWORK, |_, _| true, at(20)));
        contention.serve(client(2), Span::ZERO, at(30));
        contention.serve(client(NETWORK), Span::ZERO, at(40));
        assert!(contention.has_light(NETWORK, |_, _| true, at(50)));
        assert!(!contention.has_light(NETWORK, |_, _| false, at(50)));
        assert!(!contention.has_light(NETWORK, |_, _| true, at(3031)), "three seconds later");
    }

    /// One page that has to wait beside others on a quiet site is no crawler.
    #[test]
    fn a_few_waiting_requests_are_not_held_back_to_time_others() {
        let mut contention = Contention::default();
        contention.update(Some(NETWORK), &backend(false), false, at(1000));
        assert_eq!(contention.limit(at(1000)), Some(2));
    }
}
