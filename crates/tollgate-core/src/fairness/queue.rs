//! The queue: what happened, and what to do about it.

use super::estimate::Estimate;
use super::lanes::{Lane, Lanes};
use super::ledger::Ledger;
use super::tree::First;
use super::{
    Arrival, BEHIND, CREDIT, Client, LEVELS, Pass, Places, Settings, Shares, Ticket, Turned, Waits, YIELD_MAX,
};
use crate::prediction::Expected;
use crate::time::{Moment, Span};
use crate::virtual_clock::Cores;

/// So many times as many requests of an address may wait if they are light: an office waits for a dozen pages' assets while one
/// request of a crawler is served.
const LIGHT_PER_KEY: usize = 4;

/// Requests that wait, and how far each key has come.
#[derive(Clone, Debug)]
pub struct FairQueue {
    settings: Settings,
    ledger: Ledger,
    lanes: Lanes,
    /// Virtual time: the largest tag whose turn has ever come.
    time: u64,
    estimate: Estimate,
    /// Since when nobody waits and the backend has room for anybody.
    calm_since: Option<Moment>,
    /// When a client that was ahead last got a place.
    ahead_at: Moment,
}

impl FairQueue {
    /// An empty queue, at a moment of calm.
    pub fn new(settings: Settings, now: Moment) -> Self {
        let time = 2 * CREDIT.as_nanos();
        let pace = 1_000_000 / u64::from(settings.shares.address_milli.max(1));
        Self {
            ledger: Ledger::new(settings.keys),
            lanes: Lanes::new(),
            settings,
            time,
            estimate: Estimate::new(pace, time, now),
            calm_since: Some(now),
            ahead_at: now,
        }
    }

    /// Takes over other settings. Who waits goes on waiting, and tags stay where they are: what a client has had, it has had at the share of then.
    /// How many keys are remembered does not change.
    pub const fn set_settings(&mut self, settings: Settings) {
        self.settings = Settings { keys: self.settings.keys, ..settings };
    }

    /// From now on the backend has this many cores, as far as is known.
    pub const fn set_cores(&mut self, cores: Cores) {
        self.settings.cores = cores;
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lanes.waiting()
    }

    /// Who waits.
    pub fn waits(&self) -> Waits {
        match self.lanes.firsts(self.front()).next() {
            None => Waits::Nobody,
            Some(first) if first.tag > self.front() => Waits::Ahead,
            Some(_) => Waits::Behind,
        }
    }

    /// Whether nobody waits and anybody may go; what is settled then costs nothing. [`FairQueue::dispatch`] finds out.
    pub const fn is_calm(&self) -> bool {
        self.calm_since.is_some()
    }

    /// A request arrives.
    pub fn arrive(&mut self, client: Client, expected: Expected, places: Places, now: Moment) -> Arrival {
        self.end_calm(now);
        let tags = self.tags(client);
        let tag = largest(tags);
        let (lane, reserve) = (self.lane(expected, places), expected.reserve);
        if self.is_next(tag, lane) && self.has_place(tag, expected, places, now) {
            return Arrival::Goes(self.pass(lane, client, tag, reserve, now));
        }
        let most = self.settings.per_key * if lane == Lane::Light { LIGHT_PER_KEY } else { 1 };
        if self.lanes.waiting_of(client) >= most && self.projected(client, tags, reserve) > self.front() {
            return Arrival::KeyFull(self.turn_away(lane, client, tags, reserve));
        }
        if self.lanes.waiting() < self.settings.total {
            return Arrival::Waits(self.wait(lane, client, tags, expected));
        }
        match self.lanes.last().filter(|(last, _)| *last > tag.max(self.front())) {
            Some((_, displaced)) => {
                let turned = self.give_up(displaced);
                let ticket = self.wait(lane, client, tags, expected);
                turned.map_or(Arrival::Waits(ticket), |turned| Arrival::Displaces(ticket, displaced, turned))
            }
            None => {
                let turned = self.turn_away(lane, client, tags, reserve);
                Arrival::Full(Turned { retry_after: turned.retry_after.max(self.backlog()) })
            }
        }
    }

    /// The client of a waiting request has gone. False when it does not wait any more.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        self.lanes.remove(ticket).is_some()
    }

    /// A request has waited long enough. `None` when it does not wait any more.
    pub fn give_up(&mut self, ticket: Ticket) -> Option<Turned> {
        let (client, expected) = self.lanes.remove(ticket)?;
        Some(self.turn_away(self.lanes.lane(ticket), client, self.tags(client), expected.reserve))
    }

    /// The request that goes now; `None` when none may. Call it until it says so whenever the backend is done with a request.
    pub fn dispatch(&mut self, places: Places, now: Moment) -> Option<(Ticket, Pass)> {
        if self.waiting() == 0 {
            if places.in_flight < places.open && self.calm_since.is_none() {
                self.calm_since = Some(now);
            }
            return None;
        }
        // Who stands first may not be let in where one that is light is.
        let mut firsts = self.lanes.firsts(self.front());
        let First { tag, ticket, .. } = firsts.find(|first| self.has_place(first.tag, first.expected, places, now))?;
        let (client, expected) = self.lanes.remove(ticket)?;
        Some((ticket, self.pass(self.lanes.lane(ticket), client, tag, expected.reserve, now)))
    }

    /// The backend is done with a request of `client`, which cost `toll`.
    pub fn settle(&mut self, client: Client, pass: Pass, toll: Span) {
        if self.is_calm() {
            return;
        }
        let by: fn(u64, u64) -> u64 = if toll >= pass.reserved { u64::saturating_add } else { u64::saturating_sub };
        let off = Span::from_nanos(toll.as_nanos().abs_diff(pass.reserved.as_nanos()));
        self.lanes.charge(if pass.light { Lane::Light } else { Lane::Common }, off, by);
        let tags = self.shift(client, off, by);
        self.lanes.retag(client, tags);
    }

    /// Whether a request with this tag goes before everybody who waits, or at least before all who may go.
    fn is_next(&self, tag: u64, lane: Lane) -> bool {
        match self.waits() {
            Waits::Nobody => true,
            Waits::Ahead => tag <= self.front(),
            Waits::Behind => {
                tag <= self.front() && lane == Lane::Light && !self.lanes.waits_in(Lane::Light, self.front())
            }
        }
    }

    fn has_place(&self, tag: u64, expected: Expected, places: Places, now: Moment) -> bool {
        let ahead = tag > self.front();
        let starves = places.ahead == 0 && now.since(self.ahead_at) >= YIELD_MAX;
        let up_to = match ahead {
            true if starves => places.limit,
            true => places.open,
            false if places.costs.is_light(expected) => places.limit,
            false => places.serves,
        };
        places.in_flight < up_to.max(places.open)
    }

    /// Where a request would wait.
    fn lane(&self, expected: Expected, places: Places) -> Lane {
        if self.lanes.costs().and(places.costs).is_light(expected) { Lane::Light } else { Lane::Common }
    }

    fn wait(&mut self, lane: Lane, client: Client, tags: [u64; LEVELS], expected: Expected) -> Ticket {
        let rank = self.advance(expected.reserve, self.settings.shares.address_milli).min(BEHIND.as_nanos());
        self.lanes.push(lane, client, tags, (self.line(), rank), expected)
    }

    fn pass(&mut self, lane: Lane, client: Client, tag: u64, reserved: Span, now: Moment) -> Pass {
        let ahead = tag > self.front();
        if ahead {
            self.ahead_at = now;
        }
        // One that goes before its turn, because it is light, does not make it later for those whose turn it was.
        let turn = self.lanes.least_tag().map_or(tag, |least| tag.min(least));
        self.time = self.time.max(turn);
        self.estimate.observe(self.time, now);
        let tags = self.shift(client, reserved, u64::saturating_add);
        self.lanes.served(client, tags, self.line());
        self.lanes.charge(lane, reserved, u64::saturating_add);
        Pass { reserved, ahead, light: lane == Lane::Light }
    }

    /// One who is turned away gets the turn after those that were promised to others of its address.
    fn turn_away(&mut self, lane: Lane, client: Client, tags: [u64; LEVELS], reserve: Span) -> Turned {
        let own = self.advance(reserve, self.settings.shares.address_milli);
        let promised = self.lanes.promise(lane, client, largest(tags).max(self.time), own);
        Turned { retry_after: self.estimate.wait(promised - self.time) }
    }

    /// While nobody waits, everybody catches up as fast as the whole backend could serve one address.
    fn end_calm(&mut self, now: Moment) {
        if let Some(since) = self.calm_since.take() {
            let milli = u64::from(self.settings.cores.as_milli());
            let cpu = Span::from_nanos(now.since(since).times(milli).as_nanos() / 1000);
            self.time = self.time.saturating_add(self.advance(cpu, self.settings.shares.address_milli));
            self.estimate.restart(self.time, now);
            self.ahead_at = now;
        }
    }

    /// How long the backend needs for all that waits.
    fn backlog(&self) -> Span {
        let cpu = u128::from(self.lanes.reserved().as_nanos()) * 1000 / u128::from(self.settings.cores.as_milli());
        Span::from_nanos(u64::try_from(cpu).unwrap_or(u64::MAX))
    }

    /// Virtual time that `cpu` takes of a key with this share.
    fn advance(&self, cpu: Span, share_milli: u32) -> u64 {
        let due = u128::from(share_milli.max(1)) * u128::from(self.settings.cores.as_milli());
        u64::try_from(u128::from(cpu.as_nanos()) * 1_000_000 / due).unwrap_or(u64::MAX)
    }

    /// Up to here a key is behind its share.
    const fn front(&self) -> u64 {
        self.time.saturating_sub(BEHIND.as_nanos())
    }

    /// From here on, and before all who are ahead, those who are behind stand in line: the cheap before the dear, the early before the late.
    const fn line(&self) -> u64 {
        self.front().saturating_sub(BEHIND.as_nanos())
    }

    /// The earliest tag that a key can have.
    const fn least(&self) -> u64 {
        self.time.saturating_sub(CREDIT.as_nanos())
    }

    fn tags(&self, client: Client) -> [u64; LEVELS] {
        client.keys().map(|key| self.ledger.tag(key, self.least()))
    }

    /// Where the address would be after all it has waiting and this.
    fn projected(&self, client: Client, tags: [u64; LEVELS], reserve: Span) -> u64 {
        let cpu = self.lanes.reserved_of(client) + reserve;
        tags[LEVELS - 1].saturating_add(self.advance(cpu, self.settings.shares.address_milli))
    }

    /// Moves the client's keys on, or back.
    fn shift(&mut self, client: Client, cpu: Span, by: fn(u64, u64) -> u64) -> [u64; LEVELS] {
        let Shares { address_milli, network_milli, block_milli } = self.settings.shares;
        let shares = [block_milli, network_milli, address_milli];
        let (least, keys, mut tags) = (self.least(), client.keys(), self.tags(client));
        for level in 0..LEVELS {
            tags[level] = by(tags[level], self.advance(cpu, shares[level])).max(least);
            self.ledger.set(keys[level], tags[level], least);
        }
        tags
    }
}

fn largest(tags: [u64; LEVELS]) -> u64 {
    tags.into_iter().fold(0, u64::max)
}
