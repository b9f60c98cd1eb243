//! The ticket of an admitted request: its charges and its permit, until it is settled.

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
use crate::gate::observe::request_stats::PendingStats;
use tollgate_core::decision::Act;

/// The upload of a body that was not complete when the request was forwarded.
pub(super) struct Sending {
    /// Its slot among the uploads, until the backend responds.
    pub(super) upload: Option<Upload>,
    /// Detects whether it stalls.
    pub(super) flow: Flow,
}

/// The right to use the backend once. Dropped before [`Ticket::started`], it costs nothing.
pub(crate) struct Ticket {
    pub(super) admission: Arc<Admission>,
    pub(super) decision: Decision,
    /// The CPU time that budgets reserved at admission.
    pub(super) reserved: Span,
    /// None if no rule has charged anything.
    pub(super) charge: Option<Charge>,
    pub(super) is_settled: bool,
    /// The generation of the rules that decided.
    pub(super) generation: u64,
    /// The route of the request.
    pub(crate) route: RouteKey,
    /// The upload, if the body was not complete when the request was forwarded.
    pub(super) sending: Option<Sending>,
    pub(super) permit: Option<Permit>,
    pub(super) started: Option<Moment>,
    pub(super) cpu: Option<Span>,
    /// The statistics that get the cost when the request is settled.
    pub(crate) account: Option<PendingStats>,
    /// The act of the queue, done or only observed, and its reason.
    pub(super) queued: Option<(Act, &'static str)>,
    /// The cost, once it is settled.
    pub(crate) toll: Option<Span>,
    /// The act of the queue, or else of a rule, in observe mode.
    pub(super) would: Option<Act>,
}

impl Ticket {
    /// The decision, and the rule that made it.
    pub(crate) fn decided(&self) -> (&Decision, Option<String>) {
        let name = self.rules().and_then(|rules| Some(rules.face(&self.decision)?.name.clone()));
        (&self.decision, name)
    }

    /// The decision and its reason for the access log, with the generation and the index of the rule. An act that was
    /// carried out ranks above one that was only observed.
    pub(crate) fn outcome(&self) -> (&'static str, &'static str, Option<(u64, usize)>) {
        let by_rule = self.decision.act();
        let rank = |act: Act| [Act::WouldHold, Act::WouldRefuse, Act::Hold].iter().position(|other| *other == act);
        if let Some((act, reason)) = self.queued.filter(|(act, _)| by_rule.is_none_or(|rule| rank(*act) > rank(rule))) {
            return (act.as_str(), reason, None);
        }
        let rule = self.decision.rule.map(|index| (self.generation, index));
        (by_rule.map_or("admit", Act::as_str), self.decision.reason.as_str(), rule)
    }

    /// The rules that decided, unless a reload has replaced them: the index of a rule is valid only within its
    /// generation.
    fn rules(&self) -> Option<Guard<Arc<Rules>>> {
        let rules = self.admission.rules.load();
        (rules.generation == self.generation).then_some(rules)
    }

    /// The request is sent to the backend. Further calls change nothing: a retry is the same request.
    pub(crate) fn started(&mut self) {
        self.started.get_or_insert_with(|| self.admission.clock.now());
    }

    /// The backend has received nothing of the request.
    pub(crate) fn unsent(&mut self) {
        self.started = None;
    }

    /// Uses the CPU time that the backend reports, if it is valid and plausible.
    pub(crate) fn reported(&mut self, report: Result<Option<Span>, InvalidDuration>) {
        match report {
            Ok(None) => {}
            Ok(Some(cpu)) if self.is_plausible(cpu) => self.cpu = Some(cpu),
            Ok(Some(_)) | Err(InvalidDuration) => {
                self.admission.reports_ignored.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether the request can have taken this CPU time until now.
    fn is_plausible(&self, cpu: Span) -> bool {
        let wall = self.started.map_or(Span::ZERO, |started| self.admission.clock.now().since(started));
        server_timing::is_plausible(cpu, wall, self.admission.cores_milli.load(Ordering::Relaxed))
    }

    /// Records the load that the backend has reported with its response.
    pub(crate) fn reported_load(&self, report: Result<Option<Span>, InvalidDuration>) {
        match report {
            Ok(None) => {}
            Ok(Some(lag)) => self.admission.load.report(lag, self.admission.clock.now()),
            Err(InvalidDuration) => {
                self.admission.reports_ignored.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The request goes to the backend with this queue. If the queue of another backend granted the permit, the permit
    /// stays there, and no price is learned.
    pub(crate) fn goes_to(&mut self, queue: &Arc<Queue>) {
        if let Some(permit) = &mut self.permit {
            permit.served_by(queue);
        }
    }

    /// There was no room for the response, so the backend may have waited for the client. The permit is kept.
    pub(crate) fn held_up(&mut self) {
        if let Some(permit) = &mut self.permit {
            permit.held_up();
        }
    }

    /// The longest wait for the next bytes of the upload before it stalls; none if the body was complete.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.sending.as_ref().map(|sending| sending.flow.patience())
    }

    /// More of the upload came after this wait.
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

    /// More bytes of the upload came.
    pub(crate) fn fed(&mut self, bytes: usize) {
        if let (Some(sending), Some(permit)) = (&mut self.sending, &mut self.permit)
            && sending.flow.feed(bytes)
        {
            permit.feed();
        }
    }

    /// The backend starts its final response. If the request is not complete, the backend did not wait for the rest of
    /// it: it works until it has responded, and the time in which the upload stalled was work too, unless the status
    /// blames the client.
    ///
    /// In a gRPC call (`talks`) both sides go on sending. Its permit still stops while the client sends nothing, but it
    /// is no longer an upload.
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

    /// The rest of the request has come, or is not needed any more.
    pub(crate) fn sent(&mut self) {
        if let (Some(_), Some(permit)) = (self.sending.take(), &mut self.permit) {
            permit.feed();
        }
    }

    /// Settles the request: the backend has finished with it. Further calls change nothing.
    pub(crate) fn done(&mut self, outcome: Outcome) {
        self.sending = None;
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        // A backend that was not reached costs nothing.
        let cpu = if self.started.is_some() { self.cpu } else { Some(Span::ZERO) };
        let toll = self.permit.take().map_or(Span::ZERO, |permit| permit.leave(cpu, outcome));
        let now = self.admission.clock.now();
        if let Some(account) = self.account.take() {
            account.settle(toll, self.would, now);
        }
        self.toll = self.started.map(|_| toll);
        if self.decision.rule.is_some()
            && let Some(rules) = self.rules()
        {
            rules.cost(&self.decision, toll);
        }
        let Some(charge) = self.charge.take() else { return };
        let rules = self.admission.rules.load();
        // A request that was sent costs what the backend spent on it, even if it failed. Otherwise the requests that
        // overload a backend would be free.
        if self.started.is_some() {
            charge.settle(&rules.limiter, Toll::of_cpu(toll), now);
        } else {
            charge.refund(&rules.limiter, now);
        }
    }

    /// Settles a request that nobody waits for any more. Changes nothing if it is settled.
    pub(crate) fn end(&mut self) {
        self.done(if self.started.is_some() { Outcome::Abandoned } else { Outcome::Failed });
    }

    /// Writes the header fields with the state of the limit.
    pub(crate) fn tell(&self, fields: &mut Fields) {
        if self.decision.rule.is_some()
            && let Some(rules) = self.rules()
        {
            rules.tell(&self.decision, |name, value| fields.push(name, value));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end();
    }
}
