//! The seam between carrying requests and deciding about them.
//!
//! The gate asks once per request ([`Admission::admit`]) and tells the [`Ticket`] how the backend gets on. What happens in
//! between, rules, holding, prices, is behind this seam.
//!
//! A ticket is for work at the backend, not for a client's connection. So it runs from the first byte sent to the backend
//! until the backend has finished: a client that reads slowly holds nothing ([`Meter::stalled`]), and one that leaves does not
//! get away without paying, because its answer is read to the end all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tollgate_core::band::Band;
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::limiter::NoLimiter;
use tollgate_gatekeeper::ticket::Ticket as Charge;

use tollgate_wire::http1::Fields;

use super::body::Meter;
use super::identify::RequestView;
use super::refusal::{Cause, Refusal};
use super::rules::Rules;
use crate::settings::{Domain, Hold};

/// Decides about requests. One for all workers.
pub(crate) struct Admission {
    clock: Clock,
    rules: ArcSwap<Rules>,
    held: AtomicU32,
    at_backend: AtomicU64,
}

/// What is said to a request.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation per request, to move it once less")]
pub(crate) enum Admitted {
    /// It may go to the backend.
    Ticket(Ticket),
    /// It may not, now.
    Refused(Refusal),
}

/// How the backend's part ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The backend gave its whole answer.
    Answered,
    /// The backend failed: it was not reached, hung, or broke off. Not the client's doing.
    Failed,
    /// The gate stopped listening, because the client broke off its request or left an endless answer.
    Abandoned,
}

impl Admission {
    /// Decides by the rules of `domain`, to which everybody is new.
    pub(crate) fn new(domain: &Domain, hold: Hold, clock: Clock) -> Result<Self, NoLimiter> {
        let rules = ArcSwap::from_pointee(Rules::new(domain, hold, clock.now())?);
        Ok(Self { clock, rules, held: AtomicU32::new(0), at_backend: AtomicU64::new(0) })
    }

    /// Takes over other rules. What has not changed keeps its state.
    pub(crate) fn reload(&self, domain: &Domain, hold: Hold) -> Result<(), NoLimiter> {
        let rules = self.rules.load().succeeded_by(domain, hold)?;
        self.rules.store(Arc::new(rules));
        Ok(())
    }

    /// The rules in force.
    pub(crate) fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// Decides about a request. This may hold it; whoever stops waiting gives the place up.
    pub(crate) async fn admit(self: &Arc<Self>, request: &RequestView<'_>) -> Admitted {
        let now = self.clock.now();
        let rules = self.rules.load();
        let (decision, charge) = rules.decide(request, Toll::ONE, Band::Normal, now);
        if decision.verdict.is_refusal() {
            return Admitted::Refused(refusal(&rules, &decision, now));
        }
        let ticket =
            Ticket { admission: self.clone(), decision, charge: Some(charge), state: State::Granted, cpu: None };
        match decision.verdict {
            Verdict::Hold(until) => self.hold(ticket, until, now).await,
            _ => Admitted::Ticket(ticket),
        }
    }

    /// Holds a request until its moment, if there is a place to wait. Dropped on the way, it gives back what it was charged.
    async fn hold(self: &Arc<Self>, ticket: Ticket, until: Moment, now: Moment) -> Admitted {
        let hold = self.rules.load().hold();
        let place = Waiting::take(self, hold.total).filter(|_| until.since(now) <= hold.max);
        if place.is_none() {
            let decision = Decision { verdict: Verdict::Refuse(until), ..ticket.decision };
            return Admitted::Refused(refusal(&self.rules.load(), &decision, now));
        }
        tokio::time::sleep(until.since(now).into()).await;
        Admitted::Ticket(ticket)
    }

    /// How many requests are at the backend now.
    pub(crate) fn at_backend(&self) -> u64 {
        self.at_backend.load(Ordering::Relaxed)
    }

    /// How many requests are held now.
    pub(crate) fn held(&self) -> u32 {
        self.held.load(Ordering::Relaxed)
    }
}

/// One of the places in which requests are held.
struct Waiting<'a>(&'a Admission);

impl<'a> Waiting<'a> {
    fn take(admission: &'a Admission, most: u32) -> Option<Self> {
        let take = |held: u32| (held < most).then_some(held + 1);
        admission.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|_| Self(admission))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What the client of a refused request is told.
fn refusal(rules: &Rules, decision: &Decision, now: Moment) -> Refusal {
    let face = rules.face(decision);
    let mut fields = Vec::new();
    rules.tell(decision, |name, value| fields.push((name.to_vec(), value.to_vec())));
    let retry_after = match decision.verdict {
        Verdict::RefuseForGood => None,
        verdict => Some(verdict.retry_after(now)),
    };
    Refusal {
        cause: Cause::QuotaExceeded,
        status: face.and_then(|face| face.status),
        retry_after,
        rule: face.map(|face| face.name.clone()),
        fields,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Granted,
    AtBackend,
    Stalled,
    Done,
}

/// Leave to use the backend once. Dropped before [`Ticket::started`], it costs nothing.
pub(crate) struct Ticket {
    admission: Arc<Admission>,
    decision: Decision,
    charge: Option<Charge>,
    state: State,
    cpu: Option<Span>,
}

impl Ticket {
    /// The request is on its way to the backend. Later calls change nothing: a retry is the same request.
    pub(crate) fn started(&mut self) {
        if self.state == State::Granted {
            self.enter();
        }
    }

    /// The backend says how much CPU time it took. It is checked when the request is done.
    pub(crate) fn reported(&mut self, cpu: Span) {
        self.cpu = Some(cpu);
    }

    /// The backend has finished with this request.
    pub(crate) fn done(&mut self, outcome: Outcome) {
        if self.state == State::AtBackend {
            self.leave();
        }
        self.state = State::Done;
        let Some(charge) = self.charge.take() else { return };
        let (rules, now) = (self.admission.rules.load(), self.admission.clock.now());
        match outcome {
            // A backend that is broken is nobody's debt.
            Outcome::Failed => rules.limiter().refund(charge, now),
            Outcome::Answered | Outcome::Abandoned => {
                rules.limiter().settle(charge, Toll::of_cpu(self.cpu.unwrap_or_default()), now);
            }
        }
    }

    /// Writes the header fields that tell the client where it stands.
    pub(crate) fn tell(&self, fields: &mut Fields) {
        self.admission.rules.load().tell(&self.decision, |name, value| fields.push(name, value));
    }

    fn enter(&mut self) {
        self.state = State::AtBackend;
        self.admission.at_backend.fetch_add(1, Ordering::Relaxed);
    }

    fn leave(&mut self) {
        self.admission.at_backend.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Meter for Ticket {
    /// The backend waits for a client that reads slowly: nobody pays for that.
    fn stalled(&mut self) {
        if self.state == State::AtBackend {
            self.leave();
            self.state = State::Stalled;
        }
    }

    fn flowing(&mut self) {
        if self.state == State::Stalled {
            self.enter();
        }
    }

    fn source_done(&mut self) {
        self.done(Outcome::Answered);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        match self.state {
            State::Granted => self.done(Outcome::Failed),
            _ => self.done(Outcome::Abandoned),
        }
    }
}
