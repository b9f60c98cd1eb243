//! Sends recorded requests to the limiter, on the clock of the recording.
//!
//! Time begins with the first line, and so does warm-up. It never goes back: a line with an earlier time than the line
//! before is processed at the current time. An admitted request is in flight for its recorded duration, or for its cost
//! if the line has none. This is tracked only if a rule limits requests in flight.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;
use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::limit::Limit;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::limiter::Limiter;
use tollgate_gatekeeper::ticket::Ticket;

use super::key_name::{KeyName, key_hash};
use super::recorded_request::RecordedRequest;
use super::replay_watch::ReplayWatch;

/// The maximum number of requests in flight. When another one begins, the one that would end first ends early, which is
/// counted.
const IN_FLIGHT_MAX: usize = 1 << 16;

/// The limiter, the clock and the band of a recording.
pub(super) struct Player {
    /// The limiter.
    pub(crate) limiter: Limiter,
    /// The time of the first line on the recording's clock.
    pub(crate) origin: Option<Moment>,
    /// The time since the first line.
    pub(crate) now: Moment,
    /// The band of the backend.
    pub(crate) band: Band,
    /// The requests in flight, if a rule limits them.
    in_flight: Option<RequestsInFlight>,
    accounts: Option<Accounts>,
    /// The number of lines with an earlier time than the line before.
    pub(crate) backwards: u64,
}

/// The accounts of the recording, if a rule uses flags. Flags are set during the replay, as in a gate.
pub(super) struct Accounts {
    /// The class whose keys are accounts.
    pub(super) class: Class,
    /// The watch that records them.
    pub(super) watched: ReplayWatch,
}

impl Accounts {
    fn is_flagged(&mut self, request: &RecordedRequest<'_>, now: Moment) -> bool {
        key_hash(&self.class, request).is_some_and(|hash| self.watched.is_flagged(hash, now))
    }

    fn refused(&mut self, request: &RecordedRequest<'_>, rule: usize, class: &Class, now: Moment) {
        if *class == self.class
            && let Some(hash) = key_hash(class, request)
        {
            self.watched.refused((rule, hash), now, || KeyName::of(class, request));
        }
    }
}

/// Requests in flight, ordered by their end.
#[derive(Default)]
struct RequestsInFlight {
    /// The end of each request, with the index of its ticket, the earliest on top.
    ends: BinaryHeap<Reverse<(Moment, usize)>>,
    tickets: Slab<Ticket>,
    /// The number of requests that ended early, because too many were in flight.
    cut_short: u64,
}

impl Player {
    /// Creates a player for `limiter`. `accounts` are needed if a rule uses flags.
    pub(super) fn new(limiter: Limiter, accounts: Option<Accounts>) -> Self {
        let limits_in_flight = limiter.rules().any(|rule| matches!(rule.limit, Limit::InFlight(_)));
        Self {
            limiter,
            origin: None,
            now: Moment::ZERO,
            band: Band::Normal,
            in_flight: limits_in_flight.then(RequestsInFlight::default),
            accounts,
            backwards: 0,
        }
    }

    /// The time on the recording's clock.
    pub(super) fn clock(&self) -> Moment {
        self.origin.unwrap_or(Moment::ZERO) + self.now.since(Moment::ZERO)
    }

    /// The number of requests that ended early, because too many were in flight.
    pub(super) fn cut_short(&self) -> u64 {
        self.in_flight.as_ref().map_or(0, |in_flight| in_flight.cut_short)
    }

    /// Sets the band from this time on.
    pub(super) fn enter_band(&mut self, band: Band, at: Moment) {
        self.advance(at);
        self.band = band;
    }

    /// Returns the decision about a request, at the time of its line. `cost` is the one that is charged.
    #[inline]
    pub(super) fn play(&mut self, request: &RecordedRequest<'_>, cost: Span) -> Decision {
        let duration = request.line.duration.unwrap_or(cost);
        self.advance(request.line.at);
        let is_flagged = self.accounts.as_mut().is_some_and(|accounts| accounts.is_flagged(request, self.now));
        let mut request = *request;
        request.is_flagged = is_flagged;
        // A decision and a ticket. The ticket has room for many rules, so it is moved only if it is needed.
        let outcome = self.limiter.decide(&request, Toll::of_cpu(cost), self.band, self.now);
        let decision = outcome.0;
        if let (Some(accounts), Some(index), true) = (&mut self.accounts, decision.rule, decision.verdict.is_refusal())
            && let Some(rule) = self.limiter.rule(index)
        {
            accounts.refused(&request, index, &rule.class, self.now);
        }
        if let Some(in_flight) = &mut self.in_flight
            && !outcome.1.is_empty()
        {
            let begin = match decision.verdict {
                Verdict::Hold(until) => until,
                _ => self.now,
            };
            in_flight.begin(outcome.1, begin + duration, &self.limiter, self.now);
        }
        decision
    }

    /// Moves the clock to the time of a line, and ends the requests whose end has come.
    fn advance(&mut self, at: Moment) {
        let origin = *self.origin.get_or_insert(at);
        let now = Moment::ZERO + at.since(origin);
        if at < origin || now < self.now {
            self.backwards += 1;
        }
        self.now = self.now.max(now);
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.end_until(self.now, &self.limiter);
        }
    }
}

impl RequestsInFlight {
    fn begin(&mut self, ticket: Ticket, end: Moment, limiter: &Limiter, now: Moment) {
        if end <= now {
            let toll = ticket.toll;
            return limiter.settle(ticket, toll, now);
        }
        if self.ends.len() >= IN_FLIGHT_MAX {
            self.cut_short += 1;
            self.end_next(limiter, now);
        }
        self.ends.push(Reverse((end, self.tickets.insert(ticket))));
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
        if let Some(Reverse((_, index))) = self.ends.pop() {
            let ticket = self.tickets.remove(index);
            let toll = ticket.toll;
            limiter.settle(ticket, toll, now);
        }
    }
}
