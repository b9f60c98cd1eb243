//! The queue: what happened, and what to do about it.

use super::estimate::Estimate;
use super::ledger::Ledger;
use super::tree::Tree;
use super::{
    Arrival, BEHIND, CREDIT, Client, LEVELS, Pass, Places, Settings, Shares, Ticket, Turned, Waits, YIELD_MAX,
};
use crate::time::{Moment, Span};

/// Requests that wait, and how far each key has come.
#[derive(Clone, Debug)]
pub struct FairQueue {
    settings: Settings,
    ledger: Ledger,
    tree: Tree,
    /// Virtual time: the largest tag that was ever dispatched.
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
            tree: Tree::new(),
            settings,
            time,
            estimate: Estimate::new(pace, time, now),
            calm_since: Some(now),
            ahead_at: now,
        }
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.tree.waiting()
    }

    /// Who waits.
    pub fn waits(&self) -> Waits {
        match self.tree.first() {
            None => Waits::Nobody,
            Some((tag, _)) if tag > self.front() => Waits::Ahead,
            Some(_) => Waits::Behind,
        }
    }

    /// Whether nobody waits and anybody may go; what is settled then costs nothing. [`FairQueue::dispatch`] finds out.
    pub const fn is_calm(&self) -> bool {
        self.calm_since.is_some()
    }

    /// A request arrives. `reserve` is what it is expected to cost.
    pub fn arrive(&mut self, client: Client, reserve: Span, places: Places, now: Moment) -> Arrival {
        self.end_calm(now);
        let tags = self.tags(client);
        let tag = largest(tags);
        if self.is_next(tag) && self.has_place(tag, places, now) {
            return Arrival::Goes(self.pass(client, tag, reserve, now));
        }
        if self.tree.waiting_of(client) >= self.settings.per_key && self.projected(client, tags, reserve) > self.front()
        {
            return Arrival::KeyFull(self.turn_away(client, tags, reserve));
        }
        if self.tree.waiting() < self.settings.total {
            return Arrival::Waits(self.wait(client, tags, reserve));
        }
        match self.tree.last().filter(|(last, _)| *last > tag.max(self.front())) {
            Some((_, displaced)) => {
                let turned = self.give_up(displaced);
                let ticket = self.wait(client, tags, reserve);
                turned.map_or(Arrival::Waits(ticket), |turned| Arrival::Displaces(ticket, displaced, turned))
            }
            None => {
                let turned = self.turn_away(client, tags, reserve);
                Arrival::Full(Turned { retry_after: turned.retry_after.max(self.backlog()) })
            }
        }
    }

    /// The client of a waiting request has gone. False when it does not wait any more.
    pub fn leave(&mut self, ticket: Ticket) -> bool {
        self.tree.remove(ticket).is_some()
    }

    /// A request has waited long enough. `None` when it does not wait any more.
    pub fn give_up(&mut self, ticket: Ticket) -> Option<Turned> {
        let (client, reserve) = self.tree.remove(ticket)?;
        Some(self.turn_away(client, self.tags(client), reserve))
    }

    /// The request that goes now; `None` when none may. Call it until it says so whenever the backend is done with a request.
    pub fn dispatch(&mut self, places: Places, now: Moment) -> Option<(Ticket, Pass)> {
        let Some((tag, ticket)) = self.tree.first() else {
            if places.in_flight < places.open && self.calm_since.is_none() {
                self.calm_since = Some(now);
            }
            return None;
        };
        if !self.has_place(tag, places, now) {
            return None;
        }
        let (client, reserve) = self.tree.remove(ticket)?;
        Some((ticket, self.pass(client, tag, reserve, now)))
    }

    /// The backend is done with a request of `client`, which cost `toll`. `reserved` is what its [`Pass`] said, or nothing for a
    /// request that never asked.
    pub fn settle(&mut self, client: Client, reserved: Span, toll: Span) {
        if self.is_calm() {
            return;
        }
        let tags = if toll >= reserved {
            self.shift(client, difference(toll, reserved), u64::saturating_add)
        } else {
            self.shift(client, difference(reserved, toll), u64::saturating_sub)
        };
        self.tree.retag(client, tags);
    }

    /// Whether a request with this tag goes before everybody who waits.
    fn is_next(&self, tag: u64) -> bool {
        match self.waits() {
            Waits::Nobody => true,
            Waits::Ahead => tag <= self.front(),
            Waits::Behind => false,
        }
    }

    fn has_place(&self, tag: u64, places: Places, now: Moment) -> bool {
        let ahead = tag > self.front();
        let starves = places.ahead == 0 && now.since(self.ahead_at) >= YIELD_MAX;
        let up_to = if ahead && !starves { places.open } else { places.limit.max(places.open) };
        places.in_flight < up_to
    }

    fn wait(&mut self, client: Client, tags: [u64; LEVELS], reserve: Span) -> Ticket {
        let rank = self.advance(reserve, self.settings.shares.address_milli).min(BEHIND.as_nanos());
        self.tree.push(client, tags, self.line(), rank, reserve)
    }

    fn pass(&mut self, client: Client, tag: u64, reserved: Span, now: Moment) -> Pass {
        let ahead = tag > self.front();
        if ahead {
            self.ahead_at = now;
        }
        self.time = self.time.max(tag);
        self.estimate.observe(self.time, now);
        let tags = self.shift(client, reserved, u64::saturating_add);
        self.tree.served(client, tags, self.line());
        Pass { reserved, ahead }
    }

    /// One who is turned away gets the turn after those that were promised to others of its address.
    fn turn_away(&mut self, client: Client, tags: [u64; LEVELS], reserve: Span) -> Turned {
        let own = self.advance(reserve, self.settings.shares.address_milli);
        let promised = self.tree.promise(client, largest(tags).max(self.time), own);
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
        let cpu = u128::from(self.tree.reserved().as_nanos()) * 1000 / u128::from(self.settings.cores.as_milli());
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
        let cpu = self.tree.reserved_of(client) + reserve;
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

fn difference(more: Span, less: Span) -> Span {
    Span::from_nanos(more.as_nanos().saturating_sub(less.as_nanos()))
}
