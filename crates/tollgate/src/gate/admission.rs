//! The seam between carrying requests and deciding about them.
//!
//! The gate asks once per request ([`Admission::admit`]) and tells the [`Ticket`] how the backend gets on. What happens in
//! between, rules, the fair queue, prices, is behind this seam.
//!
//! A ticket is for work at the backend, not for a client's connection. So it runs from the first byte sent to the backend
//! until the backend has finished: a client that reads slowly holds nothing ([`Ticket::stalled`]), and one that leaves does not
//! get away without paying, because its answer is read to the end all the same.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::time::Span;

use super::body::Meter;
use super::identify::RequestView;
use super::refusal::Refusal;

/// Decides about requests. One for all workers.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    at_backend: AtomicU64,
}

/// What is said to a request.
#[derive(Debug)]
#[expect(dead_code, reason = "nothing is refused until rules and the queue are behind the seam")]
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
    /// Decides about a request. This may hold it; whoever stops waiting gives the place up.
    #[expect(clippy::unused_async, reason = "the queue behind this seam waits")]
    pub(crate) async fn admit(self: &std::sync::Arc<Self>, _request: &RequestView<'_>) -> Admitted {
        Admitted::Ticket(Ticket { admission: self.clone(), state: State::Granted, cpu: None })
    }

    /// How many requests are at the backend now.
    pub(crate) fn at_backend(&self) -> u64 {
        self.at_backend.load(Ordering::Relaxed)
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
#[derive(Debug)]
pub(crate) struct Ticket {
    admission: std::sync::Arc<Admission>,
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
        let _ = (outcome, self.cpu);
        if self.state == State::AtBackend {
            self.leave();
        }
        self.state = State::Done;
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
        if self.state != State::Granted {
            self.done(Outcome::Abandoned);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_request_is_at_the_backend_from_its_start_to_its_end_but_not_while_stalled() {
        let admission = Arc::new(Admission::default());
        let mut ticket = Ticket { admission: admission.clone(), state: State::Granted, cpu: None };
        assert_eq!(admission.at_backend(), 0);
        ticket.started();
        ticket.started();
        assert_eq!(admission.at_backend(), 1);
        ticket.stalled();
        assert_eq!(admission.at_backend(), 0);
        ticket.flowing();
        assert_eq!(admission.at_backend(), 1);
        ticket.source_done();
        ticket.stalled();
        drop(ticket);
        assert_eq!(admission.at_backend(), 0);
    }

    #[test]
    fn a_ticket_that_is_dropped_gives_its_place_back() {
        let admission = Arc::new(Admission::default());
        let mut ticket = Ticket { admission: admission.clone(), state: State::Granted, cpu: None };
        ticket.started();
        drop(ticket);
        assert_eq!(admission.at_backend(), 0);
    }
}
