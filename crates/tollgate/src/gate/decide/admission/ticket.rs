//! The work of one admitted request at the backend, from its admission until it is settled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::Guard;
use tollgate_core::decision::Decision;
use tollgate_core::queue::RouteKey;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_wire::http1::Fields;
use tollgate_wire::server_timing::{self, InvalidDuration};

use super::{Admission, Outcome};
use crate::gate::decide::flow::Flow;
use crate::gate::decide::queue::{Permit, Queue};
use crate::gate::decide::remote_state::Charge;
use crate::gate::decide::rules::Rules;
use crate::gate::decide::uploads::Upload;
use crate::gate::observe::engagement::Act;
use crate::gate::observe::request_stats::PendingStats;

/// How the rest of a request comes.
pub(super) struct Sending {
    /// Until the backend answers.
    pub(super) upload: Option<Upload>,
    /// Whether it is waited for, so that the place is for others.
    pub(super) flow: Flow,
}

/// Leave to use the backend once. Dropped before [`Ticket::started`], it costs nothing.
pub(crate) struct Ticket {
    pub(super) admission: Arc<Admission>,
    pub(super) decision: Decision,
    /// CPU time that budgets were charged when it was let in.
    pub(super) reserved: Span,
    pub(super) charge: Option<Charge>,
    /// Which rules decided.
    pub(super) generation: u64,
    pub(super) route: RouteKey,
    /// How the rest of the request comes, if not all of it was here before.
    pub(super) sending: Option<Sending>,
    pub(super) permit: Option<Permit>,
    pub(super) started: Option<Moment>,
    pub(super) cpu: Option<Span>,
    pub(super) account: Option<PendingStats>,
    /// The act of the queue, done or only observed, and its reason.
    pub(super) queued: Option<(Act, &'static str)>,
    /// The cost, once the backend has finished.
    pub(super) toll: Option<Span>,
    /// What the queue, or else a rule, would have done to it if it did not only observe.
    pub(super) would: Option<Act>,
}

impl Ticket {
    /// What the request comes to is told to `account`.
    pub(crate) fn seen_by(&mut self, account: PendingStats) {
        self.account = Some(account);
    }

    /// The route of the request.
    pub(crate) fn route(&self) -> RouteKey {
        self.route
    }

    /// What was decided, and by which rule.
    pub(crate) fn decided(&self) -> (&Decision, Option<String>) {
        let name = self.rules().and_then(|rules| Some(rules.face(&self.decision)?.name.clone()));
        (&self.decision, name)
    }

    /// The decision and its reason for the access log, with the generation and the number of the rule. An act that was carried out outranks one
    /// that was only observed.
    pub(crate) fn outcome(&self) -> (&'static str, &'static str, Option<(u64, usize)>) {
        let by_rule = Act::of(&self.decision);
        let rank = |act: Act| [Act::WouldHold, Act::WouldRefuse, Act::Hold].iter().position(|other| *other == act);
        if let Some((act, reason)) = self.queued.filter(|(act, _)| by_rule.is_none_or(|rule| rank(*act) > rank(rule))) {
            return (act.as_str(), reason, None);
        }
        let rule = self.decision.rule.map(|index| (self.generation, index));
        (by_rule.map_or("admit", Act::as_str), self.decision.reason.as_str(), rule)
    }

    /// The cost, once the backend has finished; none if it received nothing of the request.
    pub(crate) fn toll(&self) -> Option<Span> {
        self.toll
    }

    /// The rules that decided, unless others have taken their place: a rule's number is another's among those.
    fn rules(&self) -> Option<Guard<Arc<Rules>>> {
        let rules = self.admission.rules.load();
        (rules.generation() == self.generation).then_some(rules)
    }

    /// The request is on its way to the backend. Later calls change nothing: a retry is the same request.
    pub(crate) fn started(&mut self) {
        self.started.get_or_insert_with(|| self.admission.clock.now());
    }

    /// The backend has received nothing of the request.
    pub(crate) fn unsent(&mut self) {
        self.started = None;
    }

    /// The backend says how much CPU time it took, or says something else.
    pub(crate) fn reported(&mut self, report: Result<Option<Span>, InvalidDuration>) {
        let wall = self.started.map_or(Span::ZERO, |started| self.admission.clock.now().since(started));
        let cores_milli = self.admission.cores_milli.load(Ordering::Relaxed);
        match report {
            Ok(None) => {}
            Ok(Some(cpu)) if server_timing::is_plausible(cpu, wall, cores_milli) => self.cpu = Some(cpu),
            Ok(Some(_)) | Err(InvalidDuration) => {
                self.admission.reports_ignored.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The request goes to the backend with this queue. If another backend's queue has granted the permit, the permit stays there, but nothing is learned
    /// from the time that the request takes.
    pub(crate) fn goes_to(&mut self, queue: &Arc<Queue>) {
        if let Some(permit) = &mut self.permit {
            permit.served_by(queue);
        }
    }

    /// There was no room for the response, so that the backend may have waited for the client to read. The permit is kept.
    pub(crate) fn held_up(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.held_up();
        }
    }

    /// How long the rest of the request may be waited for, if not all of it has come.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.sending.as_ref().map(|sending| sending.flow.patience())
    }

    /// More of it has come, after so long.
    pub(crate) fn waited(&mut self, wait: Duration) {
        if let Some(sending) = &mut self.sending {
            sending.flow.waited(wait);
        }
    }

    /// The upload stalls: the permit is released for other requests.
    pub(crate) fn stalled(&mut self) {
        if let (Some(sending), Some(permit)) = (&mut self.sending, &mut self.permit)
            && sending.flow.stall()
        {
            permit.starve();
        }
    }

    /// So many bytes of it have come.
    pub(crate) fn fed(&mut self, bytes: usize) {
        if let (Some(sending), Some(permit)) = (&mut self.sending, &mut self.permit)
            && sending.flow.feed(bytes)
        {
            permit.feed();
        }
    }

    /// The backend starts its final response. If the request is not complete, the backend did not wait for the rest of it. It works until it
    /// has responded, and the time in which the gate waited for the rest was work as well, unless the status blames the client.
    ///
    /// In a conversation (`talks`) both sides go on sending. The request works while its client sends, but is no longer an upload.
    pub(crate) fn answers(&mut self, status: u16, talks: bool) {
        let (Some(sending), Some(permit)) = (&mut self.sending, &mut self.permit) else { return };
        sending.upload = None;
        if talks {
            return;
        }
        if !(400..500).contains(&status) {
            permit.worked_unfed();
        }
        self.sent();
    }

    /// No more of the request will come, or matters.
    pub(crate) fn sent(&mut self) {
        if let (Some(_), Some(permit)) = (self.sending.take(), &mut self.permit) {
            permit.feed();
        }
    }

    /// The backend has finished with this request.
    pub(crate) fn done(&mut self, outcome: Outcome) {
        self.sending = None;
        // Nobody pays for a backend that was not reached.
        let cpu = if self.started.is_some() { self.cpu } else { Some(Span::ZERO) };
        let toll = self.permit.take().map_or(Span::ZERO, |permit| permit.leave(cpu, outcome));
        if let Some(account) = self.account.take() {
            account.settle(toll, self.would);
        }
        let Some(charge) = self.charge.take() else { return };
        self.toll = self.started.map(|_| toll);
        let (rules, now) = (self.admission.rules.load(), self.admission.clock.now());
        if rules.generation() == self.generation {
            rules.cost(&self.decision, toll);
        }
        // A request that was sent costs what the backend spent on it, even if that was not enough: otherwise the requests that overload a
        // backend would be the ones that cost nothing.
        if self.started.is_some() {
            rules.settle(charge, Toll::of_cpu(toll), now);
        } else {
            rules.refund(charge, now);
        }
    }

    /// Nobody waits for the backend any more. Changes nothing if it has finished.
    pub(crate) fn end(&mut self) {
        self.done(if self.started.is_some() { Outcome::Abandoned } else { Outcome::Failed });
    }

    /// Writes the header fields that tell the client where it stands.
    pub(crate) fn tell(&self, fields: &mut Fields) {
        if let Some(rules) = self.rules() {
            rules.tell(&self.decision, |name, value| fields.push(name, value));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end();
    }
}
