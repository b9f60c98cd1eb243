//! The health of one backend, by the results of its requests and by active checks. It decides whether requests may go
//! to the backend. A backend that is *out* gets none, except for probes, and as the last resort if it accepts
//! connections.
//!
//! Counting failed responses alone would let one client take a site down: a page that crashes its process fails
//! whenever it is requested, while the rest of the site works. So failures are classified:
//!
//! - A failure to *connect* concerns every request. [`CONNECT_FAILURES_MAX`] in a row take the backend out.
//! - A failure to *respond* concerns one route and one client until others fail too. Failures without a response in
//!   between, across [`SPREAD_MIN`] routes and as many clients, take the backend out, but only while another backend
//!   can serve instead.
//! - A failed *check* is the backend's own statement. [`CHECK_FAILURES_MAX`] in a row take it out until a check
//!   succeeds. It is still used if there is no other backend.
//!
//! A backend that is out is probed by one request of a client after a backoff, on a new connection. If the probe fails,
//! the backoff doubles. A backend that could not be connected to is up as soon as a connection is made, so that no
//! client controls for how long others are refused: a probe may be an upload that stalls. If responses failed, a
//! response is needed, and only a complete request is a probe.
//!
//! Transitions of [`Outage`], by its cause. Failed checks are counted apart from it.
//!
//! | from | event | to |
//! |---|---|---|
//! | none | enough connect failures | `Connect` |
//! | none | enough failed answers, another backend is up | `Answers` |
//! | `Connect` | a connection is made | none |
//! | `Connect` | the probe cannot connect | `Connect`, with twice the backoff |
//! | `Answers` | the probe gets no answer | `Answers`, with twice the backoff |
//! | `Answers` | the probe cannot connect | `Connect`, with twice the backoff |
//! | `Answers` | enough connect failures of requests that came as the last resort | `Connect`, with the same backoff |
//! | `Connect`, `Answers` | any answer, or a check that succeeds | none |

use std::net::IpAddr;
use std::time::Duration;

/// Failures to connect, in a row, that take a backend out.
const CONNECT_FAILURES_MAX: u32 = 3;
/// Failed checks, in a row, that take a backend out.
const CHECK_FAILURES_MAX: u32 = 2;
/// The number of routes, and of clients, whose requests must fail before the backend is blamed.
const SPREAD_MIN: usize = 3;
/// The first backoff.
pub(crate) const BACKOFF_MIN: Duration = Duration::from_secs(1);
/// The longest time between two probes.
const BACKOFF_MAX: Duration = Duration::from_secs(15);
/// A probe without a result is given up after this time, and another request becomes the probe.
const PROBE_MAX: Duration = Duration::from_secs(10);

/// A request to which a backend did not respond.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedRequest {
    /// The hash of the route: method, and path without identifiers.
    pub(crate) route: u64,
    /// The address of the client.
    pub(crate) client: IpAddr,
}

impl FailedRequest {
    /// The key of a client: an IPv4 address or an IPv6 /64, because a subscriber owns all its addresses.
    fn client_key(&self) -> u64 {
        match self.client {
            IpAddr::V4(v4) => u64::from(v4.to_bits()),
            IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64,
        }
    }
}

/// The state of one backend. Times are since any fixed moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// Failures to connect in a row.
    connect_failures: u32,
    /// Up to [`SPREAD_MIN`] different routes of requests without a response, as hashes.
    failed_routes: Vec<u64>,
    /// The same for clients, as [`FailedRequest::client_key`].
    failed_clients: Vec<u64>,
    /// Failed checks in a row.
    check_failures: u32,
    /// Why and until when the backend is out; none if it is not, except because of failed checks.
    outage: Option<Outage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outage {
    cause: OutageCause,
    /// The time from the last failure to the next probe.
    backoff: Duration,
    /// The time of the next probe. While one is in flight, the time at which it is given up.
    probe_at: Duration,
    /// Whether a probe is in flight.
    is_probing: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutageCause {
    /// No connection could be made.
    Connect,
    /// Requests got no response.
    Answers,
}

impl Health {
    /// Whether the backend is up and no failure is counted.
    pub(crate) fn is_good(&self) -> bool {
        *self == Self::default()
    }

    /// Whether requests may go to the backend, or else for how long not.
    pub(crate) fn is_up(&self, now: Duration) -> Result<(), Duration> {
        match self.outage {
            Some(outage) if now < outage.probe_at => Err(outage.probe_at - now),
            _ if self.is_failing_checks() => Err(BACKOFF_MIN),
            _ => Ok(()),
        }
    }

    /// Whether the backend accepts connections as far as is known, so that it is better than none.
    pub(crate) fn is_reachable(&self) -> bool {
        self.outage.is_none_or(|outage| outage.cause != OutageCause::Connect)
    }

    fn is_failing_checks(&self) -> bool {
        self.check_failures >= CHECK_FAILURES_MAX
    }

    /// Whether a request may go to the backend. During an outage, only one may, once the backoff is over: the probe.
    /// `is_complete`: the request has arrived as a whole, so that its client cannot delay the response.
    pub(crate) fn admit(&mut self, is_complete: bool, now: Duration) -> bool {
        match &mut self.outage {
            Some(outage) if now < outage.probe_at => false,
            Some(Outage { cause: OutageCause::Answers, .. }) if !is_complete => false,
            Some(outage) => {
                *outage = Outage { probe_at: now + PROBE_MAX, is_probing: true, ..*outage };
                true
            }
            None => true,
        }
    }

    /// The same state at the time of the next probe.
    #[cfg(test)]
    pub(super) fn due(self, now: Duration) -> Self {
        Self { outage: self.outage.map(|outage| Outage { probe_at: now, ..outage }), ..self }
    }

    /// The probe that is in flight, identified by the time at which it is given up.
    pub(crate) fn probe(&self) -> Option<Duration> {
        self.outage.filter(|outage| outage.is_probing).map(|outage| outage.probe_at)
    }

    /// The probe ended without a result, because its client left: the next request becomes the probe.
    pub(crate) fn abandon(&mut self, probe: Duration, now: Duration) {
        if let Some(outage) = &mut self.outage
            && outage.is_probing
            && outage.probe_at == probe
        {
            *outage = Outage { probe_at: now, is_probing: false, ..*outage };
        }
    }

    /// A connection was made. Returns whether the backend was out until now.
    pub(crate) fn connected(&mut self) -> bool {
        self.connect_failures = 0;
        self.outage.take_if(|outage| outage.cause == OutageCause::Connect).is_some()
    }

    /// The backend responded. Returns whether it was out until now.
    pub(crate) fn succeeded(&mut self) -> bool {
        let was_out = self.outage.is_some();
        // A response does not overrule the backend's own check.
        *self = Self { check_failures: self.check_failures, ..Self::default() };
        was_out
    }

    /// No connection could be made. Returns the backoff if the backend is out from now on, or for longer.
    pub(crate) fn connect_failed(&mut self, now: Duration) -> Option<Duration> {
        self.connect_failures = self.connect_failures.saturating_add(1);
        match self.outage {
            None if self.connect_failures < CONNECT_FAILURES_MAX => None,
            None => self.take_out(OutageCause::Connect, BACKOFF_MIN, now),
            Some(outage) if outage.is_probing => self.take_out(OutageCause::Connect, outage.next_backoff(), now),
            // A backend that is out gets requests as the last resort.
            Some(Outage { cause: OutageCause::Answers, backoff, .. })
                if self.connect_failures >= CONNECT_FAILURES_MAX =>
            {
                self.take_out(OutageCause::Connect, backoff, now)
            }
            // The request was in flight when the outage began.
            Some(_) => None,
        }
    }

    /// The backend accepted the connection and did not respond. Returns the backoff if it is out from now on, or for
    /// longer. `has_other`: another backend is up.
    pub(crate) fn answer_failed(&mut self, asked: FailedRequest, has_other: bool, now: Duration) -> Option<Duration> {
        let failed = [(&mut self.failed_routes, asked.route), (&mut self.failed_clients, asked.client_key())];
        let is_spread = failed.map(|(known, value)| {
            if known.len() < SPREAD_MIN && !known.contains(&value) {
                known.push(value);
            }
            known.len() >= SPREAD_MIN
        });
        let backoff = match self.outage {
            Some(outage @ Outage { cause: OutageCause::Answers, .. }) if outage.is_probing => outage.next_backoff(),
            // The request was in flight when the outage began.
            Some(_) => return None,
            None if has_other && is_spread == [true, true] => BACKOFF_MIN,
            None => return None,
        };
        self.take_out(OutageCause::Answers, backoff, now)
    }

    /// A check had this result. Returns whether the backend is in use from now on, if that has changed.
    pub(crate) fn checked(&mut self, is_passed: bool) -> Option<bool> {
        let was_failing = self.is_failing_checks();
        if is_passed {
            let was_out = self.outage.is_some();
            *self = Self::default();
            return (was_failing || was_out).then_some(true);
        }
        self.check_failures = self.check_failures.saturating_add(1);
        (!was_failing && self.is_failing_checks()).then_some(false)
    }

    /// Starts an outage, or its next backoff, which is returned.
    fn take_out(&mut self, cause: OutageCause, backoff: Duration, now: Duration) -> Option<Duration> {
        self.outage = Some(Outage { cause, backoff, probe_at: now + backoff, is_probing: false });
        Some(backoff)
    }
}

impl Outage {
    fn next_backoff(&self) -> Duration {
        (self.backoff * 2).min(BACKOFF_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn asked(route: u64, client: u8) -> FailedRequest {
        FailedRequest { route, client: [192, 0, 2, client].into() }
    }

    fn unreachable() -> Health {
        let mut health = Health::default();
        assert_eq!(health.connect_failed(at(0)), None);
        assert_eq!(health.connect_failed(at(0)), None);
        assert_eq!(health.connect_failed(at(0)), Some(BACKOFF_MIN));
        health
    }

    #[test]
    fn failures_to_connect_take_a_backend_out_only_in_a_row() {
        let mut health = Health::default();
        for _ in 0..10 {
            health.connect_failed(at(0));
            health.connect_failed(at(0));
            assert_eq!(health.is_up(at(0)), Ok(()));
            health.succeeded();
        }
        assert!(health.is_good());
    }

    #[test]
    fn failed_answers_take_a_backend_out_only_across_routes_and_clients() {
        let one_route = |number| asked(1, number);
        let one_client = |number: u8| asked(number.into(), 1);
        let both = |number: u8| asked(number.into(), number);
        for (spread, has_other, is_out) in [
            (&one_route as &dyn Fn(u8) -> FailedRequest, true, false),
            (&one_client, true, false),
            (&both, false, false),
            (&both, true, true),
        ] {
            let mut health = Health::default();
            let outs: Vec<_> =
                (0..100).filter_map(|number| health.answer_failed(spread(number), has_other, at(0))).collect();
            assert_eq!((outs.len(), health.is_up(at(0)).is_err()), (usize::from(is_out), is_out));
            assert!(health.is_reachable());
        }
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let mut health = Health::default();
        for number in 0..100 {
            let client = format!("2001:db8::{number:x}").parse().unwrap();
            assert_eq!(health.answer_failed(FailedRequest { route: number, client }, true, at(0)), None);
        }
    }

    #[test]
    fn an_answer_forgets_the_failures_before_it() {
        let mut health = Health::default();
        for number in 0..100 {
            health.answer_failed(asked(number.into(), number), true, at(0));
            health.answer_failed(asked(200, 200), true, at(0));
            health.succeeded();
        }
        assert!(health.is_good());
    }

    #[test]
    fn one_probe_is_let_through_when_the_backoff_is_over() {
        let mut health = unreachable();
        assert!(!health.is_reachable());
        assert_eq!(health.is_up(at(0)), Err(BACKOFF_MIN));
        assert!(!health.admit(true, at(0)));
        assert!(health.admit(true, at(1)));
        assert!(!health.admit(true, at(1)), "only one");
        assert!(health.succeeded());
        assert!(health.is_good());
    }

    #[test]
    fn a_failed_probe_doubles_the_backoff_up_to_its_bound() {
        let mut health = unreachable();
        let mut now = at(1);
        for backoff in [2, 4, 8, 15, 15] {
            assert!(health.admit(true, now));
            assert_eq!(health.connect_failed(now), Some(at(backoff)));
            assert!(!health.admit(true, now));
            now += at(backoff);
        }
    }

    #[test]
    fn a_connection_ends_an_outage_of_connections_whatever_becomes_of_the_probe() {
        let mut health = unreachable();
        assert!(health.admit(false, at(1)), "an upload will do");
        assert!(!health.admit(true, at(1)));
        assert!(health.connected());
        assert!(!health.connected(), "no news");
        assert_eq!(health.is_up(at(1)), Ok(()));
        assert!(health.is_good());
        assert_eq!(health.answer_failed(asked(1, 1), false, at(1)), None);
        assert_eq!(health.is_up(at(1)), Ok(()));
    }

    #[test]
    fn an_outage_of_answers_ends_with_the_answer_to_a_complete_request() {
        let mut health = Health::default();
        for number in 0..3 {
            health.answer_failed(asked(number.into(), number), true, at(0));
        }
        assert!(!health.connected());
        assert!(!health.admit(false, at(1)), "its client could delay the answer");
        assert!(health.admit(true, at(1)));
        assert!(!health.connected() && !health.admit(true, at(1)));
        assert!(health.succeeded());
        assert!(health.is_good());
    }

    #[test]
    fn a_last_resort_that_cannot_be_connected_to_is_out_for_everybody() {
        let mut health = Health::default();
        for number in 0..3 {
            health.answer_failed(asked(number.into(), number), true, at(0));
        }
        assert!(health.is_up(at(0)).is_err() && health.is_reachable());
        for _ in 0..3 {
            health.connect_failed(at(0));
        }
        assert!(!health.is_reachable());
    }

    #[test]
    fn failed_checks_take_a_backend_out_until_one_passes_whatever_requests_get() {
        let mut health = Health::default();
        assert_eq!(health.checked(false), None);
        assert_eq!(health.checked(false), Some(false));
        assert_eq!(health.checked(false), None, "no news");
        assert!(health.is_up(at(0)).is_err() && health.is_reachable());
        assert!(!health.succeeded());
        assert!(health.is_up(at(0)).is_err());
        assert_eq!(health.checked(true), Some(true));
        assert!(health.is_good());
        let mut health = unreachable();
        assert_eq!(health.checked(true), Some(true), "a check finds out earlier than a probe");
        assert!(health.is_good());
    }

    #[test]
    fn a_probe_that_never_returns_is_replaced() {
        let mut health = unreachable();
        assert!(health.admit(true, at(1)));
        assert!(!health.admit(true, at(10)));
        assert!(health.admit(true, at(11)));
    }

    #[test]
    fn a_probe_whose_client_leaves_makes_room_for_the_next() {
        let mut health = unreachable();
        assert_eq!(health.probe(), None);
        assert!(health.admit(true, at(1)));
        let probe = health.probe().unwrap();
        assert!(!health.admit(true, at(2)));
        health.abandon(probe, at(2));
        assert!(health.admit(true, at(2)), "another is a probe at once");
        health.abandon(probe, at(3));
        assert!(!health.admit(true, at(3)), "one that is over is not given up twice");
        assert_eq!(health.connect_failed(at(3)), Some(at(2)), "and its result counts");
        health.abandon(probe, at(4));
        assert_eq!(health.is_up(at(4)), Err(at(1)));
    }

    #[test]
    fn late_failures_of_requests_that_were_in_flight_change_nothing() {
        let mut health = unreachable();
        assert_eq!(health.connect_failed(Duration::from_millis(500)), None);
        assert!(health.admit(true, at(1)));
    }
}
