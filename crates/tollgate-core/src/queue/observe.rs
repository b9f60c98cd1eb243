//! A queue that only observes: every request goes to the backend at once, and the queue computes what it would have
//! done. [`Queue::poll`] reports when the turn of a request would have come, or that it would have been refused.
//!
//! A request that would have waited stays in the order of waiting requests while it is at the backend, so that the
//! position and the estimated wait of the next request are those of a queue that holds. It counts against the in-flight
//! limit when its turn has come. A request that would have been refused does not count, with one exception: after a
//! stalled upload, a request counts like any other. The virtual clock, which divides the backend's cores among
//! requests, includes all of them: their clients are charged for them, and prices and the in-flight limit are learned
//! from them.
//!
//! | state | event | next |
//! |---|---|---|
//! | new | may go | in flight |
//! | new | would wait | waiting, uncounted |
//! | new | would be refused | uncounted |
//! | waiting | the queue begins to observe | waiting, uncounted |
//! | waiting, uncounted | first in order that may go | in flight |
//! | waiting, uncounted | would be refused: displaced, or the estimated wait is too long | uncounted |
//! | uncounted, waiting or not | its client stalls the upload | paused |
//! | paused | the upload flows again | in flight |
//! | uncounted, waiting or not | the backend has finished | settled: its slot is free |
//!
//! "Uncounted" is [`State::Uncounted`], or [`State::Waiting`] with a reading of the clock: the request is at the
//! backend and runs, but does not count against the in-flight limit. Exempt requests ([`Queue::pass`])
//! are uncounted as well, in every mode, also after a stalled upload. Their clients are not charged.

use super::{Arrival, Queue, Request, Slot, State, Ticket};
use crate::time::Moment;

impl Queue {
    /// A request arrives and goes to the backend at once, whatever the queue would have done.
    pub fn observe(&mut self, request: Request, now: Moment) -> (Ticket, Arrival) {
        let arrival = self.arrive(request, now);
        let ticket = match arrival {
            Arrival::Go(ticket) => return (ticket, arrival),
            Arrival::Wait(ticket, _) => ticket,
            Arrival::Refuse(_) => self.insert(self.slot_for(request, now)),
        };
        self.run_uncounted(ticket.slot, now);
        (ticket, arrival)
    }

    /// A request arrives that neither waits nor counts against the limit, such as a health check. Its client is not
    /// charged.
    pub fn pass(&mut self, request: Request, now: Moment) -> Ticket {
        self.advance(now);
        let ticket = self.insert(Slot { is_exempt: true, ..self.slot_for(request, now) });
        self.run(ticket.slot, now);
        ticket
    }

    /// Lets a waiting request go to the backend at once, unless it is there already, and goes on observing it.
    pub fn release(&mut self, ticket: Ticket, now: Moment) {
        self.advance(now);
        if self.slot(ticket).is_some_and(|slot| slot.state == State::Waiting(None)) {
            self.run_uncounted(ticket.slot, now);
        }
    }

    /// Begins the stay of a request that does not count against the in-flight limit.
    fn run_uncounted(&mut self, at: u32, now: Moment) {
        let (reading, state) = (self.clock.start(now), &mut self.slots[at as usize].state);
        let waits = matches!(state, State::Waiting(_));
        *state = if waits { State::Waiting(Some(reading)) } else { State::Uncounted(reading) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Client, Event, Refusal, RefusedBy, RouteKey, Settings};
    use crate::time::Span;

    fn at(millis: u64) -> Moment {
        Moment::from_millis(millis)
    }

    fn request(address: u64) -> Request {
        let client = Client { block: 3_000 + address, network: 2_000 + address, address: 1_000 + address, tenant: 0 };
        Request { client, route: RouteKey { route: 1, parent: 2 }, weight_milli: 1000, bytes: 100 }
    }

    fn one_at_a_time() -> Queue {
        Queue::new(Settings { in_flight: Some(1), total: 2, ..Settings::default() }, at(0))
    }

    fn finish(queue: &mut Queue, ticket: Ticket, now: Moment) -> Span {
        let toll = queue.so_far(ticket, now);
        queue.done(ticket, toll, true, now);
        toll
    }

    #[test]
    fn all_go_at_once_and_the_queue_computes_what_it_would_have_done() {
        let mut queue = one_at_a_time();
        let observed: [_; 4] = core::array::from_fn(|address| queue.observe(request(address as u64), at(1)));
        let [(first, Arrival::Go(_)), (second, Arrival::Wait(..)), (third, Arrival::Wait(..)), (fourth, refused)] =
            observed
        else {
            panic!("{observed:?}")
        };
        assert!(matches!(refused, Arrival::Refuse(Refusal { reason: RefusedBy::Full, .. })), "{refused:?}");
        assert_eq!((queue.in_flight(), queue.waiting()), (4, 2));
        // The backend shares its core among all four.
        assert_eq!(finish(&mut queue, first, at(41)), Span::from_millis(10));
        assert_eq!(queue.poll(at(41)), Some(Event::Go(second)), "its turn would have come now");
        assert_eq!((queue.poll(at(41)), queue.waiting()), (None, 1));
        // The backend finishes the third before its turn, and the one that would have been refused.
        finish(&mut queue, third, at(50));
        finish(&mut queue, fourth, at(50));
        finish(&mut queue, second, at(50));
        assert_eq!((queue.poll(at(50)), queue.waiting()), (None, 0));
        assert_eq!(queue.in_flight(), 0);
        assert!(matches!(queue.observe(request(9), at(51)), (_, Arrival::Go(_))));
    }

    #[test]
    fn a_request_that_waits_when_the_queue_begins_to_observe_goes() {
        let mut queue = one_at_a_time();
        let (first, _) = queue.observe(request(1), at(1));
        let Arrival::Wait(second, _) = queue.arrive(request(2), at(2)) else { panic!("it waits") };
        queue.release(second, at(3));
        queue.release(second, at(3));
        assert_eq!(queue.in_flight(), 2, "it goes once");
        assert!(!queue.leave(second, at(4)), "it is at the backend");
        finish(&mut queue, second, at(5));
        finish(&mut queue, first, at(6));
        assert_eq!((queue.poll(at(6)), queue.waiting(), queue.in_flight()), (None, 0, 0));
    }

    #[test]
    fn an_uncounted_request_that_is_refused_later_stays_at_the_backend() {
        let mut queue = one_at_a_time();
        let tickets: [_; 3] = core::array::from_fn(|address| queue.observe(request(address as u64), at(1)).0);
        queue.refuse(tickets[2].slot, RefusedBy::WaitTooLong);
        assert!(matches!(queue.poll(at(2)), Some(Event::Refuse(ticket, _)) if ticket == tickets[2]));
        assert_eq!(queue.in_flight(), 3);
        tickets.into_iter().for_each(|ticket| {
            finish(&mut queue, ticket, at(20));
            while queue.poll(at(20)).is_some() {}
        });
        assert_eq!((queue.waiting(), queue.in_flight()), (0, 0));
    }
}
