//! Plays requests to the limiter, at the speed of the recording's own clock.
//!
//! Time begins with the first line, and so does warm-up. It never runs backwards: logs are written when requests end, so
//! their lines are a little out of order, and such a line happens now. A request that went on is at work for what it cost, from
//! the moment it was let through; without a rule that counts requests at work nobody needs to know.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::limit::Limit;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::limiter::Limiter;
use tollgate_gatekeeper::ticket::Ticket;

use super::name::{Name, key_hash};
use super::recorded::Recorded;
use super::watched::Watched;

/// So many requests can be at work at once. More end early, which is counted.
const AT_WORK_MAX: usize = 1 << 16;

/// The limiter, the clock and the band of a recording.
pub(super) struct Player {
    limiter: Limiter,
    /// When the first line was written, by the recording's clock.
    origin: Option<Moment>,
    now: Moment,
    band: Band,
    work: Option<Work>,
    accounts: Option<Accounts>,
    backwards: u64,
}

/// The accounts of the recording, where a rule looks at their flags: they are set in the course of it, as a gate would.
pub(super) struct Accounts {
    class: Class,
    watched: Watched,
}

impl Accounts {
    /// Accounts are the keys of `class`, watched by these.
    pub(super) fn new(class: Class, watched: Watched) -> Self {
        Self { class, watched }
    }

    fn is_flagged(&mut self, request: &Recorded<'_>, now: Moment) -> bool {
        key_hash(&self.class, request).is_some_and(|hash| self.watched.is_flagged(hash, now))
    }

    fn refused(&mut self, request: &Recorded<'_>, rule: usize, class: &Class, now: Moment) {
        if *class == self.class
            && let Some(hash) = key_hash(class, request)
        {
            self.watched.refused((rule, hash), now, || Name::of(class, request));
        }
    }
}

/// Requests at work, the next to end first.
#[derive(Default)]
struct Work {
    ends: BinaryHeap<Reverse<(Moment, usize)>>,
    tickets: Vec<Option<Ticket>>,
    free: Vec<usize>,
    cut_short: u64,
}

impl Player {
    /// Plays to `limiter`; `accounts` are needed where a rule looks at flags.
    pub(super) fn new(limiter: Limiter, accounts: Option<Accounts>) -> Self {
        let counts_work = limiter.rules().any(|rule| matches!(rule.limit, Limit::InFlight(_)));
        Self {
            limiter,
            origin: None,
            now: Moment::ZERO,
            band: Band::Normal,
            work: counts_work.then(Work::default),
            accounts,
            backwards: 0,
        }
    }

    /// The limiter.
    pub(super) const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The time since the first line.
    pub(super) const fn now(&self) -> Moment {
        self.now
    }

    /// The time on the recording's own clock.
    pub(super) fn clock(&self) -> Moment {
        self.origin.unwrap_or(Moment::ZERO) + self.now.since(Moment::ZERO)
    }

    /// When the first line was written, by the recording's clock.
    pub(super) const fn origin(&self) -> Option<Moment> {
        self.origin
    }

    /// How loaded the backend is.
    pub(super) const fn band(&self) -> Band {
        self.band
    }

    /// How many lines were written before the one in front of them.
    pub(super) const fn backwards(&self) -> u64 {
        self.backwards
    }

    /// How many requests ended early, because too many were at work to remember.
    pub(super) fn cut_short(&self) -> u64 {
        self.work.as_ref().map_or(0, |work| work.cut_short)
    }

    /// The band changes.
    pub(super) fn enter_band(&mut self, band: Band, at: Moment) {
        self.advance(at);
        self.band = band;
    }

    /// A request is made: what is said to it.
    #[inline]
    pub(super) fn play(&mut self, request: &Recorded<'_>, cost: Span) -> Decision {
        self.advance(request.line().at);
        let is_flagged = self.accounts.as_mut().is_some_and(|accounts| accounts.is_flagged(request, self.now));
        let request = &request.flagged(is_flagged);
        // The ticket is moved only where it is wanted: it has room for many rules.
        let outcome = self.limiter.decide(request, Toll::of_cpu(cost), self.band, self.now);
        let decision = outcome.0;
        if let (Some(accounts), Some(place), true) = (&mut self.accounts, decision.rule, decision.verdict.is_refusal())
            && let Some(rule) = self.limiter.rule(place)
        {
            accounts.refused(request, place, &rule.class, self.now);
        }
        if let Some(work) = &mut self.work
            && !outcome.1.is_empty()
        {
            let begin = match decision.verdict {
                Verdict::Hold(until) => until,
                _ => self.now,
            };
            work.begin(outcome.1, begin + cost, &self.limiter, self.now);
        }
        decision
    }

    fn advance(&mut self, at: Moment) {
        let origin = *self.origin.get_or_insert(at);
        let now = Moment::ZERO + at.since(origin);
        if at < origin || now < self.now {
            self.backwards += 1;
        }
        self.now = self.now.max(now);
        if let Some(work) = &mut self.work {
            work.end_until(self.now, &self.limiter);
        }
    }
}

impl Work {
    fn begin(&mut self, ticket: Ticket, end: Moment, limiter: &Limiter, now: Moment) {
        if end <= now {
            let toll = ticket.toll();
            return limiter.settle(ticket, toll, now);
        }
        if self.ends.len() >= AT_WORK_MAX {
            self.cut_short += 1;
            self.end_next(limiter, now);
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.tickets.push(None);
            self.tickets.len() - 1
        });
        self.tickets[place] = Some(ticket);
        self.ends.push(Reverse((end, place)));
    }

    fn end_until(&mut self, now: Moment, limiter: &Limiter) {
        while let Some(Reverse((end, _))) = self.ends.peek()
            && *end <= now
        {
            let end = *end;
            self.end_next(limiter, end);
        }
    }

    fn end_next(&mut self, limiter: &Limiter, now: Moment) {
        if let Some(Reverse((_, place))) = self.ends.pop()
            && let Some(ticket) = self.tickets[place].take()
        {
            self.free.push(place);
            let toll = ticket.toll();
            limiter.settle(ticket, toll, now);
        }
    }
}
