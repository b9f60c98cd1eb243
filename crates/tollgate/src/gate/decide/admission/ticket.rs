//! The ticket of an admitted request: the charges of the rules and the permit of the queue, until the request is
//! settled.
//!
//! The code that forwards the request calls the methods in the order of events. A ticket that is dropped is settled.

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

/// The upload of a body that was not complete when the request entered the queue.
pub(super) struct Sending {
    /// Its slot among the uploads, until the backend responds.
    pub(super) upload: Option<Upload>,
    /// Detects when the upload stalls.
    pub(super) flow: Flow,
}

/// The right of one request to use the backend. Dropped before [`Ticket::started`], it costs nothing.
pub(crate) struct Ticket {
    pub(super) admission: Arc<Admission>,
    pub(super) decision: Decision,
    /// The CPU time that budgets charged in advance, at admission.
    pub(super) reserved: Span,
    /// The charges of the rules; none if no rule has charged anything.
    pub(super) charge: Option<Charge>,
    pub(super) is_settled: bool,
    /// The generation of the rules that decided: a reload starts a new one.
    pub(super) generation: u64,
    /// The route of the request.
    pub(crate) route: RouteKey,
    /// The upload, until the body is complete or the backend needs no more of it.
    pub(super) sending: Option<Sending>,
    /// The permit of the queue, once it is granted.
    pub(super) permit: Option<Permit>,
    /// When the request was sent to the backend.
    pub(super) started: Option<Moment>,
    /// The CPU time that the backend has reported.
    pub(super) cpu: Option<Span>,
    /// The statistics that get the cost when the request is settled.
    pub(crate) account: Option<PendingStats>,
    /// The act of the queue, carried out or only observed, and its reason; none if the request went at once.
    pub(super) queued: Option<(Act, &'static str)>,
    /// Whether the queue does not judge it ([`Admission::skips_queue`]).
    pub(super) skips_queue: bool,
    /// The cost, once it is settled.
    pub(crate) toll: Option<Span>,
    /// Whether a rule, the queue or the limit on uploads has held it.
    pub(super) is_held: bool,
    /// The act that observe mode has prevented, of a rule or of the queue. A refusal ranks above a hold.
    pub(super) would: Option<Act>,
}

impl Ticket {
    /// The decision of the rules, and the name of the rule that decided, unless a reload has replaced it.
    pub(crate) fn decided(&self) -> (&Decision, Option<String>) {
        let name = self.rules().and_then(|rules| Some(rules.face(&self.decision)?.name.clone()));
        (&self.decision, name)
    }

    /// The act on the request and its reason for the access log, with the generation and the index of the rule unless
    /// it was an act of the queue. Of two acts, a hold ranks above a refusal or hold that was only observed.
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

    /// The request is sent to the backend with this queue. If the queue of another backend granted the permit, the
    /// permit stays there, and no price is learned.
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

    /// The longest wait for the next bytes of the upload before it counts as stalled; none if there is no upload.
    pub(crate) fn patience(&self) -> Option<Duration> {
        self.sending.as_ref().map(|sending| sending.flow.patience())
    }

    /// The next bytes of the upload came after this wait.
    pub(crate) fn waited(&mut self, wait: Duration) {
        if let Some(sending) = &mut self.sending {
            sending.flow.waited(wait);
        }
    }

    /// The upload stalls: until it flows again, the permit is released for other requests.
    pub(crate) fn stalled(&mut self) {
        if let (Some(sending), Some(permit)) = (&mut self.sending, &mut self.permit)
            && sending.flow.stall()
        {
            permit.starve();
        }
    }

    /// More bytes of the upload came. If it flows again, the request takes its permit back.
    pub(crate) fn fed(&mut self, bytes: usize) {
        if let (Some(sending), Some(permit)) = (&mut self.sending, &mut self.permit)
            && sending.flow.feed(bytes)
        {
            permit.feed();
        }
    }

    /// The backend starts its final response. If the request is not complete, the backend did not wait for the rest of
    /// it: it works until it has responded, and the time in which the upload stalled was work too, unless the status
    /// blames the client (4xx).
    ///
    /// In a gRPC call (`is_grpc`) both sides may go on sending. Its permit is still released while the client stalls,
    /// but it does not count as an upload any more.
    pub(crate) fn answers(&mut self, status: u16, is_grpc: bool) {
        let (Some(sending), Some(permit)) = (&mut self.sending, &mut self.permit) else { return };
        sending.upload = None;
        if is_grpc {
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

    /// Settles the request, because the backend has finished with it: releases the permit, charges the measured cost
    /// and records it. Further calls change nothing.
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
            account.settle(toll, [self.is_held.then_some(Act::Hold), self.would], now);
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

    /// Settles a request that has no known outcome, because nothing waits for it any more. Changes nothing if it is
    /// settled.
    pub(crate) fn end(&mut self) {
        self.done(if self.started.is_some() { Outcome::Abandoned } else { Outcome::Failed });
    }

    /// Adds the headers with the state of the limit that decided to a response, if the rule shows it.
    pub(crate) fn write_limit_headers(&self, fields: &mut Fields) {
        if self.decision.rule.is_some()
            && let Some(rules) = self.rules()
        {
            rules.write_limit_headers(&self.decision, |name, value| fields.push(name, value));
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.end();
    }
}
