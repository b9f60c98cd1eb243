//! The in-flight limit of heavy clients while light clients use the backend at the same time.
//!
//! [`InFlightLimit`](super::limit::InFlightLimit) asks how many requests the backend serves at once. The answer takes
//! some hundred requests, and until then an error harms the clients behind their share: a page waits for a crawler's
//! requests in the backend, where no order can be chosen. In a pool of four workers, five requests of a second each
//! make a page of 10 ms take a second. So while light clients are there, heavy clients have a limit of their own. It
//! follows the times of the light clients, which show an error within a few requests.
//!
//! A client is light if it is behind its share, has nothing waiting, and its last request went at once. Heavy clients
//! are those ahead of their share. If most of the waiting CPU time belongs to one address block, the network of the
//! waiting client furthest ahead is heavy, too. While all cores of the backend's machine are seen to be busy, so are
//! requests that cost four times as much as a light client's: a crawler with an address in each of 64 networks is
//! behind its share with all of them.
//!
//! | state | event | limit |
//! |---|---|---|
//! | off | heavy clients wait; a light one was seen less than [`LASTS`] ago | at most the cores |
//! | on | light clients' requests take clearly longer than in calm; more than the busy cores | halved, down to one |
//! | on | they hardly do, and the backend is known to have room or idle cores | grows by a quarter |
//! | on | the machine is as busy with a smaller limit, or no busier with a larger one | the smaller ([`Saturation`]) |
//! | on | no light client was seen for [`LASTS`], or nothing waits for as long | off; remembered for [`REMEMBERED`] |

use super::client::Client;
use super::contenders::Contenders;
use super::log2::OCTAVE;
use super::saturation::{Advice, Saturation};
use crate::time::{Moment, Span};
use crate::virtual_clock::{Cores, Load};

/// A light client uses the backend for this long after its last request: a page every few seconds is enough.
const LASTS: Span = Span::from_secs(3);
/// The limit of the last contention is used again if the next one begins within this time.
const REMEMBERED: Span = Span::from_secs(30);
/// Light clients' requests that take this much longer than in calm (1.15 octaves: 2.2 times) show that the limit is too
/// large. A request that shares a core with one other takes twice as long.
const TOO_SLOW: i32 = OCTAVE * 23 / 20;
/// The limit may grow while they take at most this much longer (0.3 octaves: 1.2 times).
const FAST: i32 = OCTAVE * 3 / 10;
/// Requests that it takes to lower the limit, and to raise it. It is raised without any if none are compared.
const SAMPLES_TO_LOWER: i32 = 4;
const SAMPLES_TO_RAISE: i32 = 8;
/// The limit does not grow before this time, and before two heavy requests have ended one after the other.
const RAISE_AFTER: Span = Span::from_millis(500);
/// After a change of the limit, light clients' requests count when heavy ones have left, after this time at the latest.
const SETTLING_MAX: Span = Span::from_secs(1);
/// How many requests the mean slowdown remembers, and the recent one.
const MEMORY: i32 = 32;
const RECENT: i32 = 8;
/// Light clients' requests that take this much longer (0.5 octaves: 1.4 times) show that others compute at the same
/// time.
const SLOWED: i32 = OCTAVE / 2;
/// A number that was too large is not tried again before this time, which doubles each time it fails.
const BACKOFF_MIN: Span = Span::from_secs(5);
const BACKOFF_MAX: Span = Span::from_secs(40);
/// Cheaper requests are no samples: the scheduler of an operating system serves them at once, however many compute.
const COST_MIN: Span = Span::from_millis(4);

/// A request of a client behind its share that went to the backend at once.
#[derive(Clone, Copy, Debug)]
struct Served {
    client: Client,
    /// The usual cost of requests of its route.
    cost: Span,
    at: Moment,
}

#[derive(Clone, Debug)]
pub(super) struct Contention {
    /// The last two clients behind their share whose request went at once, of different networks, with the usual cost
    /// of the request, and when.
    served: [Option<Served>; 2],
    /// The network of the waiting client furthest ahead, if contention is on, and when that was last so.
    network: Option<u64>,
    seen_at: Moment,
    /// Requests of one octave below this or more are heavy, whichever client sends them. Octaves class prices by
    /// factors of two.
    heavy: Option<u8>,
    limit: Load,
    /// How much longer light clients' requests take than in calm since the limit changed, and how much that varies, as
    /// logarithms.
    slowdown: i32,
    spread: i32,
    samples: i32,
    changed_at: Moment,
    /// The same over the last few requests, whatever the limit.
    recent_slowdown: i32,
    /// How long heavy clients' requests take: the effect of a larger limit shows after that time.
    turnaround: Option<Span>,
    /// The last number that was too large, and when.
    failed: Option<(Load, Moment)>,
    backoff: Span,
    saturation: Saturation,
}

impl Contention {
    pub(super) const fn new(now: Moment) -> Self {
        Self {
            served: [None; 2],
            network: None,
            seen_at: now,
            heavy: None,
            limit: Load::ONE,
            slowdown: 0,
            spread: 0,
            samples: 0,
            changed_at: now,
            recent_slowdown: 0,
            turnaround: None,
            failed: None,
            backoff: BACKOFF_MIN,
            saturation: Saturation::new(now),
        }
    }

    /// A request of a client behind its share, which usually costs `cost`, goes to the backend at once.
    pub(super) fn serve(&mut self, client: Client, cost: Span, now: Moment) {
        if self.served[0].is_some_and(|last| last.client.network != client.network) {
            self.served[1] = self.served[0];
        }
        self.served[0] = Some(Served { client, cost, at: now });
    }

    /// Whether a light client of another network uses the backend.
    pub(super) fn has_light(&self, network: u64, is_light: impl Fn(&Client, Span) -> bool, now: Moment) -> bool {
        let mut others = self.served.iter().flatten().filter(|served| served.client.network != network);
        others.any(|served| now.since(served.at) < LASTS && is_light(&served.client, served.cost))
    }

    /// Whether requests may be heavy whoever sends them: these cores are all busy, and light clients' requests take
    /// longer than in calm. That long polls are in flight proves nothing.
    pub(super) fn may_have_heavy(&self, cores: Cores, now: Moment) -> bool {
        let is_short_of_cores = self.saturation.is_saturated(cores) && self.recent_slowdown > SLOWED;
        is_short_of_cores || self.is_on(now) && self.heavy.is_some()
    }

    /// Whether a request is heavy although its client is behind its share.
    pub(super) fn is_heavy(&self, network: u64, octave: u8, now: Moment) -> bool {
        self.is_on(now) && (self.network == Some(network) || self.is_heavy_octave(octave))
    }

    fn is_heavy_octave(&self, octave: u8) -> bool {
        self.heavy.is_some_and(|heavy| octave + 1 >= heavy)
    }

    /// Whether light and heavy clients compete now.
    pub(super) fn is_on(&self, now: Moment) -> bool {
        self.network.is_some() && now.since(self.seen_at) <= LASTS
    }

    /// The limit of clients ahead of their share, while contention is on.
    pub(super) fn limit(&self, now: Moment) -> Option<Load> {
        self.is_on(now).then_some(self.limit)
    }

    /// The limit of requests of this octave if they are heavy, whichever client sends them.
    pub(super) fn limit_of_octave(&self, octave: u8, now: Moment) -> Option<Load> {
        self.limit(now).filter(|_| self.is_heavy_octave(octave))
    }

    /// The limit of this network if it is the heavy one, also for its clients behind their share.
    pub(super) fn limit_of(&self, network: u64, now: Moment) -> Option<Load> {
        self.limit(now).filter(|_| self.network == Some(network))
    }

    /// Turns contention on or off. `has_room` returns whether the backend is known to serve more than this number.
    pub(super) fn update(&mut self, contenders: &Contenders, has_room: impl Fn(Load) -> bool, now: Moment) {
        let Contenders { network, heavy, start, cores } = *contenders;
        if network.is_some() && !self.is_on(now) {
            if self.turnaround.is_none() || now.since(self.seen_at) > REMEMBERED {
                self.set(start.max(Load::ONE), false, now);
                (self.turnaround, self.failed, self.backoff) = (None, None, BACKOFF_MIN);
            }
            self.heavy = None;
            self.saturation.begin();
        }
        self.network = network;
        if network.is_some() {
            self.seen_at = now;
            self.heavy = heavy.or(self.heavy);
            if self.may_grow(cores, has_room(self.limit)) {
                self.raise(now);
            }
        }
    }

    fn may_grow(&self, cores: Cores, has_room: bool) -> bool {
        let is_fast = self.samples == 0 || self.samples >= SAMPLES_TO_RAISE && self.slowdown + self.error() / 2 < FAST;
        if !self.saturation.is_seen() {
            return is_fast && has_room;
        }
        let Some(busy) = self.saturation.busy_milli() else { return false };
        // More busy cores than the settings name show that these are wrong.
        let cores = u64::from(cores.as_milli());
        let has_idle = busy * 10 < cores * 9 || busy * 20 > cores * 21;
        let all_compute = busy * 10 >= self.limit.as_256ths() * 9000 / Load::ONE.as_256ths();
        (has_room || has_idle) && (is_fast || has_idle && all_compute && !self.is_too_slow())
    }

    /// A heavy client's request has taken `wall`.
    pub(super) fn record_heavy(&mut self, wall: Span) {
        let before = self.turnaround.map_or(0, |turnaround| turnaround.as_nanos() / 8 * 7);
        self.turnaround = Some(wall.max(Span::from_nanos(before)));
    }

    /// A light client's request that costs `cost` has taken `wall` (so far), which is `longer` than in calm as a
    /// logarithm.
    pub(super) fn record_light(&mut self, longer: i32, cost: Span, wall: Span, now: Moment) {
        let longer = longer.clamp(-2 * OCTAVE, 4 * OCTAVE);
        if cost >= COST_MIN {
            self.recent_slowdown += (longer - self.recent_slowdown) / RECENT;
        }
        // Heavy requests that were in flight when the limit changed still slow others down.
        let settling = self.turnaround.map_or(Span::ZERO, |turnaround| turnaround.min(SETTLING_MAX));
        if cost < COST_MIN || wall + settling > now.since(self.changed_at) || !self.is_on(now) {
            return;
        }
        self.samples = (self.samples + 1).min(MEMORY);
        let deviation = longer - self.slowdown;
        self.slowdown += deviation / self.samples;
        if self.samples > 1 {
            self.spread += (deviation.abs() - self.spread) / self.samples;
        }
        if self.is_too_slow() {
            self.lower(now);
        }
    }

    /// Takes a reading of the busy cores of the backend's machine, with this load of heavy clients in flight.
    pub(super) fn record_busy(&mut self, busy: Cores, in_flight: Load, now: Moment) {
        self.saturation.see(busy);
        if !self.is_on(now) {
            return;
        }
        match self.saturation.record(busy, in_flight, self.limit, now) {
            Some(advice @ (Advice::TryFewer(limit) | Advice::TooMany(limit))) => {
                (self.failed, self.backoff) = (Some((self.limit, now)), BACKOFF_MAX);
                self.set(limit, matches!(advice, Advice::TryFewer(_)), now);
            }
            Some(Advice::TooFew(limit)) => {
                self.failed = None;
                self.set(limit, false, now);
            }
            None => {}
        }
    }

    /// The gate cannot see how busy the backend's machine is.
    pub(super) const fn forget_machine(&mut self, now: Moment) {
        self.saturation = Saturation::new(now);
    }

    fn is_too_slow(&self) -> bool {
        self.samples >= SAMPLES_TO_LOWER && self.slowdown - self.error() > TOO_SLOW
    }

    /// Two standard errors of the slowdown.
    fn error(&self) -> i32 {
        2 * self.spread / self.samples.max(1).isqrt()
    }

    fn lower(&mut self, now: Moment) {
        // Fewer than the busy cores would leave some of them idle.
        let busy = self.saturation.busy_milli().map_or(0, |busy| (busy + 300) / 1000);
        let is_known = !self.saturation.is_seen() || self.saturation.busy_milli().is_some();
        if !is_known || self.limit <= Load::ONE.max(Load::of(u32::try_from(busy).unwrap_or(u32::MAX))) {
            return;
        }
        let has_failed = self.failed.is_some_and(|(failed, _)| failed == self.limit);
        self.backoff = if has_failed { self.backoff.times(2).min(BACKOFF_MAX) } else { BACKOFF_MIN };
        self.failed = Some((self.limit, now));
        self.set(Load::from_256ths(self.limit.as_256ths() / 2).max(Load::ONE), false, now);
    }

    fn raise(&mut self, now: Moment) {
        let limit = self.limit.as_256ths();
        let more = Load::from_256ths(limit + (limit / 4).max(Load::ONE.as_256ths()));
        let is_tried = self.failed.is_some_and(|(failed, at)| more >= failed && now.since(at) < self.backoff);
        let shows = self
            .turnaround
            .is_some_and(|turnaround| now.since(self.changed_at) >= turnaround.times(2).max(RAISE_AFTER));
        if shows && !is_tried {
            self.set(more, true, now);
        }
    }

    fn set(&mut self, limit: Load, is_trial: bool, now: Moment) {
        // Whole requests: with a part of one more, one more goes, and a number that failed would be tried again.
        let limit = Load::from_256ths(limit.as_256ths() & !(Load::ONE.as_256ths() - 1)).max(Load::ONE);
        self.saturation.change(self.limit, limit, is_trial, now);
        self.limit = limit;
        (self.slowdown, self.spread, self.samples, self.changed_at) = (0, 0, 0, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETWORK: u64 = 1;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn beside(network: Option<u64>, start: u32) -> Contenders {
        Contenders { network, heavy: None, start: Load::of(start), cores: Cores::whole(1) }
    }

    /// Contention that has begun with `cores` at 1 s, and has seen a heavy request of 100 ms.
    fn contended(cores: u32) -> Contention {
        let mut contention = Contention::new(at(0));
        contention.update(&beside(Some(NETWORK), cores), |_| false, at(1000));
        contention.record_heavy(Span::from_millis(100));
        contention
    }

    /// Light requests that take `times` as long as in calm, every 50 ms from `from` on.
    fn light(contention: &mut Contention, times: f64, from: u64, count: u64, has_room: bool) {
        let longer = (times.log2() * f64::from(OCTAVE)) as i32;
        for millis in (0..count).map(|index| from + 50 * index) {
            contention.update(&beside(Some(NETWORK), 1), |_| has_room, at(millis));
            contention.record_light(longer, Span::from_millis(20), Span::from_millis(20), at(millis));
        }
    }

    #[test]
    fn the_limit_is_halved_until_light_clients_are_fast_enough() {
        let mut contention = contended(8);
        light(&mut contention, 4.5, 1500, 4, false);
        assert_eq!(contention.limit(at(1700)), Some(Load::of(4)));
        light(&mut contention, 2.5, 1900, 6, false);
        assert_eq!(contention.limit(at(2200)), Some(Load::of(2)));
        light(&mut contention, 1.5, 2500, 100, false);
        assert_eq!(contention.limit(at(7500)), Some(Load::of(2)));
        light(&mut contention, 100.0, 8000, 100, false);
        assert_eq!(contention.limit(at(13_000)), Some(Load::ONE), "never less than one");
    }

    #[test]
    fn the_limit_grows_only_where_the_backend_has_room_and_light_clients_do_not_suffer() {
        let mut contention = contended(4);
        light(&mut contention, 1.0, 2000, 40, false);
        assert_eq!(contention.limit(at(4000)), Some(Load::of(4)), "no room is known");
        let mut contention = contended(4);
        light(&mut contention, 2.0, 1400, 40, true);
        assert_eq!(contention.limit(at(4000)), Some(Load::of(4)), "they take twice as long");
        let mut contention = contended(4);
        light(&mut contention, 1.0, 2000, 10, true);
        assert_eq!(contention.limit(at(2500)), Some(Load::of(5)));
    }

    #[test]
    fn a_number_that_was_too_large_is_not_tried_again_soon() {
        let mut contention = contended(2);
        light(&mut contention, 4.0, 1500, 4, false);
        assert_eq!(contention.limit(at(1700)), Some(Load::ONE));
        light(&mut contention, 1.0, 1800, 40, true);
        assert_eq!(contention.limit(at(3800)), Some(Load::ONE));
        light(&mut contention, 1.0, 6700, 10, true);
        assert_eq!(contention.limit(at(7200)), Some(Load::of(2)));
    }

    #[test]
    fn contention_ends_with_the_light_clients_and_its_limit_is_remembered() {
        let mut contention = contended(8);
        light(&mut contention, 4.5, 1500, 4, false);
        contention.update(&beside(None, 8), |_| false, at(1700));
        assert_eq!(contention.limit(at(1701)), None);
        contention.update(&beside(Some(NETWORK), 8), |_| false, at(9000));
        assert_eq!(contention.limit(at(9000)), Some(Load::of(4)));
        assert_eq!(contention.limit(at(12_001)), None, "nothing has waited for three seconds");
        contention.update(&beside(Some(NETWORK), 8), |_| false, at(60_000));
        assert_eq!(contention.limit(at(60_000)), Some(Load::of(8)));
    }

    #[test]
    fn clients_of_the_heaviest_network_are_no_light_ones() {
        let client = |network| Client { block: 7, network, address: network + 100, tenant: 0 };
        let mut contention = Contention::new(at(0));
        contention.serve(client(NETWORK), Span::from_millis(20), at(10));
        assert!(!contention.has_light(NETWORK, |_, _| true, at(20)));
        contention.serve(client(2), Span::from_millis(20), at(30));
        contention.serve(client(NETWORK), Span::from_millis(20), at(40));
        assert!(contention.has_light(NETWORK, |_, _| true, at(50)));
        assert!(!contention.has_light(NETWORK, |_, _| false, at(50)));
        assert!(!contention.has_light(NETWORK, |_, _| true, at(3031)), "three seconds later");
    }
}
