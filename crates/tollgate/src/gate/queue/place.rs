//! A request's place at the backend, and the wait for one.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate_core::fairness::{Pass, Ticket, Turned};
use tollgate_core::prediction::RouteKey;
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::Stay;

use super::Queue;
use super::calm::{Began, Ended};
use super::roll::Signature;
use super::state::{Busy, Grant};

/// A request that waits; dropped, it leaves the queue.
pub(super) struct Waiting<'a> {
    pub(super) queue: &'a Queue,
    pub(super) ticket: Ticket,
    pub(super) woken: oneshot::Receiver<Result<Grant, Turned>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut busy = self.queue.busy();
        if !busy.leave(self.ticket)
            && let Ok(Ok(Grant(slot))) = self.woken.try_recv()
        {
            busy.settle(slot, Span::ZERO);
        }
        busy.dispatch();
    }
}

/// How the backend's part of a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The backend gave its whole answer.
    Answered,
    /// The backend failed: it was not reached, hung, or broke off. Not the client's doing.
    Failed,
    /// The gate stopped listening, because the answer went on for nobody.
    Abandoned,
    /// The client broke off its request, and the backend was heard until it was done with what it had of it.
    CutShort,
    /// The client broke off its request, and how long the backend goes on cannot be heard.
    Unheard,
}

impl Outcome {
    /// Whether the time it took says something about requests like it.
    fn teaches(self) -> bool {
        matches!(self, Self::Answered | Self::Abandoned)
    }
}

/// A place at the backend. Dropped, it is free.
pub(crate) struct Place {
    queue: Arc<Queue>,
    address: IpAddr,
    route: RouteKey,
    /// Where it is written down among those at work; none if it began in calm.
    slot: Option<usize>,
    /// What it is expected to cost.
    expected: Span,
    stretch: Stretch,
    /// Where it has signed, if this stretch began in calm.
    signature: Option<Signature>,
    /// What it has been charged while it ran in stretches that began in calm, until it is written down with that.
    charged: Span,
    /// What earlier stretches of work have cost.
    toll: Span,
    /// Whether there was any work.
    worked: bool,
    /// Whether the client reads too slowly for the backend to go on.
    stalled: bool,
    /// Since when the client keeps the backend waiting for the rest of the request, if it does, and for how long it has before.
    starved_since: Option<Moment>,
    starved: Span,
    /// Whether it was at work all the same, so that how much that took is not known well.
    worked_unfed: bool,
    /// The last stretch of work, which tells how the backend copes, if it is known how much was there with it.
    stay: Option<Stay>,
}

/// A stretch of work.
enum Stretch {
    /// It began in calm.
    Calm(Began),
    /// It is written down.
    Noticed,
    /// There is none: the backend waits for a client that reads or sends slowly, or is done.
    Over,
}

impl Place {
    pub(super) fn calm(queue: &Arc<Queue>, address: IpAddr, route: RouteKey, began: Began, expected: Span) -> Self {
        let signature = queue.roll.sign(address, began.load, began.since);
        let stretch = Stretch::Calm(began);
        Self {
            queue: queue.clone(),
            address,
            route,
            slot: None,
            expected,
            stretch,
            signature,
            charged: Span::ZERO,
            toll: Span::ZERO,
            worked: false,
            stalled: false,
            starved_since: None,
            starved: Span::ZERO,
            worked_unfed: false,
            stay: None,
        }
    }

    pub(super) fn noticed(queue: &Arc<Queue>, address: IpAddr, route: RouteKey, grant: &Grant) -> Self {
        let (slot, stretch, expected) = (Some(grant.0), Stretch::Noticed, Span::ZERO);
        Self {
            queue: queue.clone(),
            address,
            route,
            slot,
            expected,
            stretch,
            signature: None,
            charged: Span::ZERO,
            toll: Span::ZERO,
            worked: false,
            stalled: false,
            starved_since: None,
            starved: Span::ZERO,
            worked_unfed: false,
            stay: None,
        }
    }

    /// The last stretch of work.
    #[cfg(test)]
    pub(super) fn stay(&self) -> Option<Stay> {
        self.stay
    }

    /// The backend waits for the client to read: no work, no charge, and the place is for others.
    pub(crate) fn pause(&mut self) {
        self.stalled = true;
        self.end_stretch();
    }

    /// The client reads on.
    pub(crate) fn resume(&mut self) {
        self.stalled = false;
        self.begin_stretch();
    }

    /// The backend waits for the rest of the request, as far as can be told: the place is for others.
    pub(crate) fn starve(&mut self) {
        self.starved_since.get_or_insert_with(|| self.queue.clock.now());
        self.end_stretch();
    }

    /// The rest of the request comes.
    pub(crate) fn feed(&mut self) {
        self.starved = self.starved();
        self.starved_since = None;
        self.begin_stretch();
    }

    /// The backend did not wait for the rest of the request, as it turns out: what it did since is paid like any work.
    pub(crate) fn worked_unfed(&mut self) {
        let starved = self.starved();
        if starved > Span::ZERO {
            self.toll = self.toll + starved;
            self.starved = Span::ZERO;
            self.starved_since = self.starved_since.map(|_| self.queue.clock.now());
            self.worked_unfed = true;
        }
    }

    /// For how long the client has kept the backend waiting for the rest of the request.
    fn starved(&self) -> Span {
        self.starved_since.map_or(self.starved, |since| self.starved + self.queue.clock.now().since(since))
    }

    fn end_stretch(&mut self) {
        let stay = match (std::mem::replace(&mut self.stretch, Stretch::Over), self.slot) {
            (Stretch::Calm(began), _) => self.end_calm(&began),
            (Stretch::Noticed, Some(slot)) => {
                let mut busy = self.queue.busy();
                let stay = busy.pause(slot);
                busy.dispatch();
                stay.map(|stay| (stay.toll, Some(stay)))
            }
            (Stretch::Noticed | Stretch::Over, _) => None,
        };
        if let Some((toll, stay)) = stay {
            self.toll = self.toll + toll;
            (self.worked, self.stay) = (true, stay);
        }
    }

    fn end_calm(&mut self, began: &Began) -> Option<(Span, Option<Stay>)> {
        let queue = &self.queue;
        let left = queue.calm.leave(began, queue.clock.now());
        // With the lock held, if there is one to hold: nobody charges it meanwhile.
        let busy = left.is_none().then(|| queue.busy());
        if let Some(signature) = self.signature.take() {
            self.charged = self.charged + queue.roll.strike(signature);
        }
        match (left, busy) {
            (Some(Ended { stay, calm }), _) => {
                queue.calm.remove_cost(self.expected);
                Some((stay.toll, calm.then_some(stay)))
            }
            (None, Some(mut busy)) => {
                let stay = busy.pause_unnoticed(began, self.expected);
                busy.dispatch();
                Some((stay.toll, Some(stay)))
            }
            (None, None) => None,
        }
    }

    /// The backend works on, unless it still waits for something.
    fn begin_stretch(&mut self) {
        if !matches!(self.stretch, Stretch::Over) || self.stalled || self.starved_since.is_some() {
            return;
        }
        if self.slot.is_none() {
            let (load, _) = self.queue.glance.at(self.route);
            if let Some(began) = self.queue.calm.enter(load, self.queue.clock.now()) {
                self.queue.calm.add_cost(self.expected);
                self.signature = self.queue.roll.sign(self.address, began.load, began.since);
                self.stretch = Stretch::Calm(began);
                return;
            }
        }
        let mut busy = self.queue.busy();
        match self.slot {
            Some(slot) => busy.resume(slot, self.route),
            None => {
                let client = self.queue.client(self.address);
                // What it has been charged since it began in calm is not charged again in the end.
                let pass = Pass { reserved: std::mem::take(&mut self.charged), ..Pass::default() };
                self.slot = Some(busy.start(client, self.route, pass).0);
            }
        }
        drop(busy);
        self.stretch = Stretch::Noticed;
    }

    /// The backend is done. What the request cost: what the backend says, if it says something, otherwise what the clock does.
    pub(crate) fn leave(mut self, reported: Option<Span>, outcome: Outcome) -> Span {
        self.end_stretch();
        let toll = reported.unwrap_or_else(|| self.cost(outcome));
        self.settle(toll, outcome);
        toll
    }

    /// What the clock says, and for what was done unseen, if anything was, no more than requests like it cost.
    ///
    /// Who withholds the end of a request does not get for nothing what the backend does meanwhile, and who has a slow line pays no more than
    /// others do.
    fn cost(&self, outcome: Outcome) -> Span {
        let unseen = match outcome {
            Outcome::Unheard => Span::MAX,
            _ => self.starved(),
        };
        if unseen == Span::ZERO {
            return self.toll;
        }
        let expected = self.queue.expected(self.route).as_nanos();
        self.toll + unseen.min(Span::from_nanos(expected.saturating_sub(self.toll.as_nanos())))
    }

    fn settle(&mut self, toll: Span, outcome: Outcome) {
        // Of one that waited for its client it is not known what it took.
        let teaches = outcome.teaches() && self.starved() == Span::ZERO && !self.worked_unfed;
        let (queue, route) = (&self.queue, self.route);
        let (stay, worked) = (self.stay.take(), std::mem::take(&mut self.worked));
        if !worked && self.slot.is_none() {
            return;
        }
        queue.counts.cost(toll.as_nanos());
        if self.slot.is_none() && !queue.calm.is_busy() {
            // In calm there is nothing to settle, and nobody waits to learn.
            let now = queue.clock.now();
            if teaches
                && queue.glance.is_due(now)
                && let Ok(mut state) = queue.state.try_lock()
            {
                state.learn(&queue.glance, route, stay, toll, false, now);
                if state.has_other_cores() {
                    drop(Busy::new(state, now));
                }
            }
            return;
        }
        let client = queue.client(self.address);
        let mut busy = queue.busy();
        let pass = match self.slot.take() {
            Some(slot) => busy.settle(slot, toll),
            None => {
                busy.queue.settle(client, Pass { reserved: self.charged, ..Pass::default() }, toll);
                Pass::default()
            }
        };
        if worked && teaches {
            let now = busy.now;
            busy.learn(&queue.glance, route, stay, toll, pass.ahead, now);
        }
        busy.dispatch();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end_stretch();
        let toll = self.toll;
        self.settle(toll, Outcome::Abandoned);
    }
}
