//! The in-flight limit of heavy clients while light clients use the backend at the same time.
//!
//! [`InFlightLimit`] asks how many requests the backend serves at once. The answer takes some hundred requests, and
//! until then an error harms the clients behind their share: a page waits for a crawler's requests in the backend,
//! where no order can be chosen. In a pool of four workers, five requests of a second each make a page of 10 ms take a
//! second. So while light clients are there, heavy clients have a limit of their own, which starts small. It grows as
//! far as light clients' requests take no longer than in calm.
//!
//! A client is light if it is behind its share, has nothing waiting, and its last request went at once. Heavy clients
//! are those ahead of their share. If most of the waiting CPU time belongs to one address block, the network of the
//! waiting client furthest ahead is heavy, too. While all cores of the backend's machine are seen to be busy and light
//! clients' requests take longer than in calm, so are requests that cost four times as much as a light client's: a
//! crawler with an address in each of 64 networks is behind its share with all of them.
//!
//! | state | event | limit |
//! |---|---|---|
//! | off | heavy clients wait; a light one was seen less than [`LASTS`] ago | the cores, or the one remembered |
//! | on | a larger limit does no harm ([`Contention::may_grow`]), and leaves a fifth of the backend free | grows |
//! | on | light clients' requests take clearly longer than in calm | the cores |
//! | on | the machine is as busy with a smaller limit, or no busier with a larger one | the smaller ([`Saturation`]) |
//! | on | no light client was seen for [`LASTS`], or nothing waits for as long | off |

use super::client::Client;
use super::limit::InFlightLimit;
use super::log2::OCTAVE;
use super::price::recent_mean;
use super::saturation::{Advice, Saturation};
use super::{Queue, Slot, octave};
use crate::time::{Moment, Span};
use crate::virtual_clock::Cores;

/// A light client uses the backend for this long after its last request: a page every few seconds is enough.
const LASTS: Span = Span::from_secs(3);
/// The limit of the last contention is used again if the next one begins within this time.
const REMEMBERED: Span = Span::from_secs(60);
/// The limit may grow while light clients' requests take at most this much longer than in calm (0.3 octaves: 1.2
/// times), and how many of them it takes to show that.
const FAST: i32 = OCTAVE * 3 / 10;
const FAST_SAMPLES: i32 = 8;
/// Light clients' requests that take this much longer (0.5 octaves: 1.4 times) show that others compute at the same
/// time.
const SLOWED: i32 = OCTAVE / 2;
/// The limit is too large if they take this much longer (1.15 octaves: 2.2 times; a request that shares a core with one
/// other takes twice as long), and how many of them it takes to show that.
const SLOW: i32 = OCTAVE * 23 / 20;
const SLOW_SAMPLES: i32 = 4;
/// How many requests the mean slowdown remembers, and the recent one.
const MEMORY: i32 = 32;
const RECENT: i32 = 8;
/// A request that costs this many times as much as a light client's is heavy.
const HEAVY: u64 = 4;
/// Requests are short if they take at most this many times as long as those of light clients.
const SHORT: u64 = 4;
/// The limit does not grow before this time, and before three heavy requests have ended one after the other.
const RAISE_AFTER: Span = Span::from_millis(500);
/// A number that was too large is not tried again before this time.
const BACKOFF: Span = Span::from_secs(40);
/// Cheaper requests are no samples: the scheduler of an operating system serves them at once, however many compute.
const COST_MIN: Span = Span::from_millis(4);
/// If fewer cores than this are busy, nothing on the machine computes all the time. The kernel counts in steps of 10
/// ms: a core that is always busy can look like 0.8 of one in 50 ms.
const IDLE_MAX: Cores = Cores::from_milli(700);

#[derive(Clone, Debug)]
pub(super) struct Contention {
    /// The last two clients behind their share whose request went at once, of different networks, with the usual cost
    /// of the request, and when.
    served: [Option<(Client, Span, Moment)>; 2],
    /// The network of the waiting client furthest ahead, if contention is on, and when that was last so.
    network: Option<u64>,
    seen_at: Option<Moment>,
    /// Requests of one octave below this or more are heavy, whichever client sends them. Octaves class prices by
    /// factors of two.
    heavy: Option<u8>,
    limit: u32,
    /// The limit to begin with: at most the cores.
    start: u32,
    changed_at: Moment,
    /// How much longer light clients' requests take than in calm since the limit changed, and how much that varies, as
    /// logarithms.
    slowdown: i32,
    spread: i32,
    samples: i32,
    /// The same over the last few requests, whatever the limit.
    recent_slowdown: i32,
    /// How long light and heavy clients' requests have taken of late.
    light_wall: Option<Span>,
    heavy_wall: Option<Span>,
    /// The last number that was too large, and when.
    failed: Option<(u32, Moment)>,
    /// If the gate sees how busy the backend's machine is.
    saturation: Option<Saturation>,
}

impl Contention {
    pub(super) const fn new(now: Moment) -> Self {
        Self {
            served: [None; 2],
            network: None,
            seen_at: None,
            heavy: None,
            limit: 1,
            start: 1,
            changed_at: now,
            slowdown: 0,
            spread: 0,
            samples: 0,
            recent_slowdown: 0,
            light_wall: None,
            heavy_wall: None,
            failed: None,
            saturation: None,
        }
    }

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

    /// Whether requests may be heavy by their cost alone: these cores are all busy, and light clients' requests take
    /// longer than in calm. That long polls are in flight proves nothing.
    fn may_be_heavy(&self, cores: Cores, now: Moment) -> bool {
        let is_short_of_cores = self.saturation.as_ref().is_some_and(|machine| machine.is_saturated(cores));
        is_short_of_cores && self.recent_slowdown > SLOWED || self.is_on(now) && self.heavy.is_some()
    }

    /// Whether a request is heavy although its client is behind its share.
    fn is_heavy(&self, slot: &Slot, now: Moment) -> bool {
        self.is_on(now) && (self.network == Some(slot.request.client.network) || self.is_heavy_octave(slot.octave))
    }

    fn is_heavy_octave(&self, octave: u8) -> bool {
        self.heavy.is_some_and(|heavy| octave + 1 >= heavy)
    }

    /// Whether light and heavy clients compete now.
    pub(super) fn is_on(&self, now: Moment) -> bool {
        self.network.is_some() && self.seen_at.is_some_and(|at| now.since(at) <= LASTS)
    }

    /// The limit of clients ahead of their share, while contention is on.
    pub(super) fn limit(&self, now: Moment) -> Option<u32> {
        self.is_on(now).then_some(self.limit)
    }

    /// The limit of requests of this octave if they are heavy, whichever client sends them.
    pub(super) fn limit_of_octave(&self, octave: u8, now: Moment) -> Option<u32> {
        self.limit(now).filter(|_| self.is_heavy_octave(octave))
    }

    /// The limit of this network if it is the heavy one, also for its clients behind their share.
    pub(super) fn limit_of(&self, network: u64, now: Moment) -> Option<u32> {
        self.limit(now).filter(|_| self.network == Some(network))
    }

    /// Turns contention on if `network` is heavy beside light clients, and off without one. `start` is the limit to
    /// begin with, `cores` are those of the settings.
    fn update(&mut self, network: Option<u64>, start: u32, cores: Cores, backend: &InFlightLimit, now: Moment) {
        if network.is_some() && !self.is_on(now) {
            self.start = start.max(1);
            if self.seen_at.is_none_or(|at| now.since(at) >= REMEMBERED) {
                self.set(self.start, false, now);
                self.heavy_wall = None;
            }
            self.heavy = None;
            self.saturation.iter_mut().for_each(Saturation::begin);
        }
        self.network = network;
        if network.is_some() {
            self.seen_at = Some(now);
            let more = self.more().min(backend.most_beside_light());
            if more > self.limit && self.may_grow(more, cores, backend, now) {
                self.set(more, true, now);
            }
        }
    }

    /// Whether this larger limit does no harm. Light clients have to be shown to be fast, and the backend to have room.
    /// Before a light request has shown anything, room is enough. If heavy requests are short, fast light clients are
    /// enough. If all heavy requests compute and the machine has idle cores, that is enough.
    fn may_grow(&self, more: u32, cores: Cores, backend: &InFlightLimit, now: Moment) -> bool {
        let shows = self.heavy_wall.map(|wall| wall.times(3).max(RAISE_AFTER));
        let is_tried = self.failed.is_some_and(|(failed, at)| more >= failed && now.since(at) < BACKOFF);
        if is_tried || shows.is_none_or(|shows| now.since(self.changed_at) < shows) {
            return false;
        }
        let has_room = backend.has_room(self.limit);
        let is_fast = self.samples >= FAST_SAMPLES && self.slowdown + self.error() / 2 < FAST;
        let is_harmless = if self.samples == 0 { has_room } else { is_fast && (has_room || self.is_short()) };
        let Some(saturation) = &self.saturation else { return is_harmless };
        let Some(busy) = saturation.busy_milli() else { return false };
        // More busy cores than the settings name show that these are wrong.
        let cores = u64::from(cores.as_milli());
        let has_idle = busy * 10 < cores * 9 || busy * 20 > cores * 21;
        let all_compute = busy >= u64::from(self.limit) * 900;
        is_harmless || has_idle && all_compute
    }

    fn more(&self) -> u32 {
        self.limit + if self.is_short() { self.limit } else { (self.limit / 4).max(1) }
    }

    /// Whether heavy clients' requests take about as long as those of light ones. A light one that has to wait for such
    /// a request does not wait long.
    fn is_short(&self) -> bool {
        self.heavy_wall.zip(self.light_wall).is_some_and(|(heavy, light)| heavy <= light.times(SHORT))
    }

    /// A request has taken `wall`, which is `longer` than in calm as a logarithm, if that is known.
    pub(super) fn record(&mut self, slot: &Slot, longer: Option<i32>, wall: Span, now: Moment) {
        if slot.is_ahead || self.is_heavy(slot, now) {
            self.heavy_wall = Some(recent_mean(self.heavy_wall, wall));
            return;
        }
        self.light_wall = Some(recent_mean(self.light_wall, wall));
        let Some(longer) = longer.filter(|_| slot.mean >= COST_MIN) else { return };
        let longer = longer.clamp(-2 * OCTAVE, 4 * OCTAVE);
        self.recent_slowdown += (longer - self.recent_slowdown) / RECENT;
        if wall <= now.since(self.changed_at) && self.is_on(now) {
            self.record_slowdown(longer, now);
        }
    }

    fn record_slowdown(&mut self, longer: i32, now: Moment) {
        self.samples = (self.samples + 1).min(MEMORY);
        let deviation = longer - self.slowdown;
        self.slowdown += deviation / self.samples;
        if self.samples > 1 {
            self.spread += (deviation.abs() - self.spread) / self.samples;
        }
        if self.samples >= SLOW_SAMPLES && self.slowdown - self.error() > SLOW && self.limit > self.start {
            self.failed = Some((self.limit, now));
            self.set(self.start, false, now);
        }
    }

    /// Two standard errors of the slowdown.
    fn error(&self) -> i32 {
        2 * self.spread / self.samples.max(1).isqrt()
    }

    /// Takes a reading of the busy cores of the backend's machine, with so many heavy requests in flight.
    fn record_busy(&mut self, busy: Cores, in_flight: u32, now: Moment) {
        let is_on = self.is_on(now);
        let saturation = self.saturation.get_or_insert(Saturation::new(now));
        saturation.see(busy);
        match is_on.then(|| saturation.record(busy, in_flight, self.limit, now)).flatten() {
            // Requests that only wait keep no machine busy.
            Some(Advice::TooMany(_)) if self.is_short() && busy < IDLE_MAX => {}
            Some(advice @ (Advice::TryFewer(limit) | Advice::TooMany(limit))) => {
                self.failed = Some((self.limit, now));
                self.set(limit, matches!(advice, Advice::TryFewer(_)), now);
            }
            Some(Advice::TooFew(limit)) => {
                self.failed = None;
                self.set(limit, false, now);
            }
            None => {}
        }
    }

    fn set(&mut self, limit: u32, is_trial: bool, now: Moment) {
        self.saturation.iter_mut().for_each(|saturation| saturation.change(self.limit, limit, is_trial, now));
        self.limit = limit;
        (self.slowdown, self.spread, self.samples, self.changed_at) = (0, 0, 0, now);
    }
}

impl Queue {
    /// The number of cores of the backend's machine that processes other than the gate kept busy since the last call;
    /// `None` if the last call was long ago. Call it every 50 ms while requests wait.
    pub fn machine_busy(&mut self, busy: Option<Cores>, now: Moment) {
        self.is_idle = busy.is_some_and(|busy| busy < IDLE_MAX);
        if let Some(busy) = busy {
            let heavy = self.number_of(|slot| slot.is_ahead || self.contention.is_heavy(slot, now));
            self.contention.record_busy(busy, heavy, now);
        }
    }

    /// The gate cannot see how busy the backend's machine is any more.
    pub fn machine_unseen(&mut self) {
        self.is_idle = false;
        self.contention.saturation = None;
    }

    /// Finds out whether light clients use the backend while heavy ones wait.
    pub(super) fn update_contention(&mut self, now: Moment) {
        let (last, lane) = (self.last(), self.dominant_lane());
        let is_heavy =
            last.is_some_and(|(tag, _)| tag > self.front()) || lane.is_some_and(|lane| self.lanes[lane].blocks() == 1);
        let price = lane.and_then(|lane| self.lane_price(lane)).filter(|price| price.is_settled);
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
        if let Some(price) = price.filter(|_| network.is_some_and(has_lighter)) {
            self.contention.heavy = Some(octave(price));
        }
        let is_lone = self.lanes.iter().all(|lane| lane.blocks() <= 1);
        let start = self.cores().count().min(self.limit.in_force());
        self.limit.set_contended(network.is_some(), is_lone);
        self.contention.update(network, start, self.settings.cores, &self.limit, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::Request;

    const NETWORK: u64 = 1;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn client(network: u64) -> Client {
        Client { block: 7, network, address: network + 100, tenant: 0 }
    }

    /// A backend that is known to have room for any number, or of which nothing is known.
    fn backend(has_room: bool) -> InFlightLimit {
        let mut limit = InFlightLimit::new(Cores::whole(1), at(0));
        limit.tick(has_room, None, at(0));
        limit
    }

    /// Contention that has begun with `cores` at 1 s, and has seen a heavy request.
    fn contended(cores: u32, heavy_ms: u64) -> Contention {
        let mut contention = Contention::new(at(0));
        contention.update(Some(NETWORK), cores, Cores::whole(1), &backend(false), at(1000));
        record(&mut contention, NETWORK, None, heavy_ms, 1000);
        contention
    }

    fn record(contention: &mut Contention, network: u64, longer: Option<i32>, wall_ms: u64, millis: u64) {
        let request = Request { client: client(network), ..Request::default() };
        let slot = Slot { mean: Span::from_millis(20), request, ..Slot::default() };
        contention.record(&slot, longer, Span::from_millis(wall_ms), at(millis));
    }

    /// Light requests that take `times` as long as in calm, every 50 ms from `from` on.
    fn light(contention: &mut Contention, times: f64, from: u64, count: u64, has_room: bool) {
        let longer = (times.log2() * f64::from(OCTAVE)) as i32;
        for millis in (0..count).map(|index| from + 50 * index) {
            contention.update(Some(NETWORK), 2, Cores::whole(1), &backend(has_room), at(millis));
            record(contention, 2, Some(longer), 20, millis);
        }
    }

    #[test]
    fn the_limit_starts_again_if_light_clients_are_slow() {
        let mut contention = contended(2, 400);
        light(&mut contention, 1.0, 1100, 23, true);
        assert_eq!(contention.limit(at(2200)), Some(3));
        light(&mut contention, 4.5, 2250, 4, true);
        assert_eq!(contention.limit(at(2400)), Some(2));
        light(&mut contention, 1.0, 5000, 40, true);
        assert_eq!(contention.limit(at(7000)), Some(2), "three were too many");
        light(&mut contention, 1.0, 43_000, 1, true);
        assert_eq!(contention.limit(at(43_000)), Some(3));
    }

    #[test]
    fn the_limit_grows_only_where_the_backend_has_room_and_light_clients_do_not_suffer() {
        let mut contention = contended(4, 400);
        light(&mut contention, 1.0, 1100, 60, false);
        assert_eq!(contention.limit(at(4100)), Some(4), "no room is known");
        let mut contention = contended(4, 400);
        light(&mut contention, 2.0, 1100, 60, true);
        assert_eq!(contention.limit(at(4100)), Some(4), "they take twice as long");
        let mut contention = contended(4, 400);
        light(&mut contention, 1.0, 2400, 10, true);
        assert_eq!(contention.limit(at(2900)), Some(5));
    }

    #[test]
    fn beside_requests_that_take_about_as_long_fast_light_clients_are_enough() {
        let mut contention = contended(4, 60);
        light(&mut contention, 1.0, 2400, 9, false);
        assert_eq!(contention.limit(at(2800)), Some(8));
    }

    #[test]
    fn contention_ends_with_the_light_clients_and_its_limit_is_remembered() {
        let mut contention = contended(4, 400);
        light(&mut contention, 1.0, 2400, 10, true);
        contention.update(None, 4, Cores::whole(1), &backend(false), at(3000));
        assert_eq!(contention.limit(at(3001)), None);
        contention.update(Some(NETWORK), 4, Cores::whole(1), &backend(false), at(9000));
        assert_eq!(contention.limit(at(9000)), Some(5));
        assert_eq!(contention.limit(at(12_001)), None, "nothing has waited for three seconds");
        contention.update(Some(NETWORK), 4, Cores::whole(1), &backend(false), at(70_000));
        assert_eq!(contention.limit(at(70_000)), Some(4));
    }

    #[test]
    fn clients_of_the_heaviest_network_are_no_light_ones() {
        let mut contention = Contention::new(at(0));
        contention.serve(client(NETWORK), Span::ZERO, at(10));
        assert!(!contention.has_light(NETWORK, |_, _| true, at(20)));
        contention.serve(client(2), Span::ZERO, at(30));
        contention.serve(client(NETWORK), Span::ZERO, at(40));
        assert!(contention.has_light(NETWORK, |_, _| true, at(50)));
        assert!(!contention.has_light(NETWORK, |_, _| false, at(50)));
        assert!(!contention.has_light(NETWORK, |_, _| true, at(3031)), "three seconds later");
    }
}
