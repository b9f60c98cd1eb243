//! The data of one request for its line in the access log. The exchange fills it in as the request proceeds.

use std::net::IpAddr;

use tollgate_core::time::{Moment, Span};
use tollgate_wire::http1::{RequestHead, ResponseHead};
use tollgate_wire::log::{AccessEntry, RequestLine};

use super::halves::Sent;
use super::worker::Worker;
use crate::gate::decide::admission::Ticket;
use crate::gate::decide::refusal::Refusal;
use crate::wall_clock;
use tollgate_core::decision::Act;

/// The status of a request whose client left before the response. nginx uses the same.
const CLIENT_LEFT: u16 = 499;

/// One request that is logged. It allocates nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessRecord {
    /// The arrival, since 1970.
    at: Moment,
    /// The arrival on the decision clock.
    began: Moment,
    /// The wait before the request was forwarded or refused.
    wait: Span,
    /// The measured cost; none if the request was not sent to a backend.
    pub(crate) cost: Option<Span>,
    decision: &'static str,
    reason: &'static str,
    /// The rule that decided: the generation of the rules (each reload makes a new one), and its index among them.
    rule: Option<(u64, usize)>,
}

impl AccessRecord {
    /// Starts the record of a request that arrives now; none if requests are not logged.
    pub(crate) fn begin(worker: &Worker) -> Option<Self> {
        worker.access_log.is_on().then(|| Self {
            at: wall_clock::now(),
            began: worker.shared.stats.clock.now(),
            wait: Span::ZERO,
            cost: None,
            decision: "none",
            reason: "client-left",
            rule: None,
        })
    }

    /// The request is rejected for this reason before any decision.
    pub(crate) fn without_decision(self, reason: &'static str) -> Self {
        Self { reason, ..self }
    }

    /// The request was refused after this wait.
    pub(crate) fn refused(&mut self, refusal: &Refusal, wait: Span) {
        self.wait = wait;
        (self.decision, self.reason) = (Act::Refuse.as_str(), refusal.reason);
        self.rule = refusal.by.as_ref().and_then(|(rules, decision)| Some((rules.generation, decision.rule?)));
    }

    /// The request is forwarded after this wait.
    pub(crate) fn admitted(&mut self, ticket: &Ticket, wait: Span) {
        self.wait = wait;
        (self.decision, self.reason, self.rule) = ticket.outcome();
    }

    /// Writes the line. `request`: none if its head was malformed.
    pub(crate) fn write(
        self,
        worker: &Worker,
        client: IpAddr,
        request: Option<&RequestHead>,
        response: &ResponseHead,
        sent: Sent,
    ) {
        let Self { at, began, wait, cost, decision, reason, rule } = self;
        let rules = rule.map(|_| worker.shared.admission.rules_now());
        let face = rule.and_then(|(generation, index)| {
            let rules = rules.as_ref().filter(|rules| rules.generation == generation)?;
            rules.faces.get(index)
        });
        worker.access_log.write(&AccessEntry {
            at,
            client,
            request: request.map(|head| RequestLine {
                method: &head.method,
                target: head.target(),
                version: sent.protocol,
                host: &head.authority,
                referer: head.fields.find(b"referer"),
                user_agent: head.fields.find(b"user-agent"),
            }),
            status: if sent.has_begun { response.status } else { CLIENT_LEFT },
            body_bytes: sent.body_bytes,
            duration: worker.shared.stats.clock.now().since(began),
            wait,
            cost,
            decision,
            reason,
            rule: face.map(|face| face.name.as_str()),
        });
    }
}
