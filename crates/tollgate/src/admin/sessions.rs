//! Sessions of people who have logged in to the console, and the bound on wrong tokens that are logged. Both are in
//! memory only: a restart ends all sessions.

use std::collections::HashMap;
use std::net::IpAddr;

use parking_lot::Mutex;
use tollgate_core::network::Network;
use tollgate_core::time::{Moment, Span};

use super::connections::network_of;
use super::tokens::{Role, random_secret};

/// Sessions per role. A further login ends the session of the same role that was not used for the longest time, so that
/// viewers cannot end sessions of operators.
const SESSIONS_MAX: usize = 64;
/// Lifetime of a session. Use does not prolong it, because a page that is left open keeps sending requests.
pub(super) const SESSION_LIFETIME: Span = Span::from_secs(12 * 3600);
/// Wrong tokens per network within [`WINDOW`] that are logged. Further ones get the status 429 and are not logged.
const FAILURES_MAX: u32 = 10;
/// A window starts with the first wrong token of a network. The count is reset when it ends.
const WINDOW: Span = Span::from_secs(60);
/// Networks with a count of their own. All further networks share one.
const NETWORKS_MAX: usize = 1024;

/// The session of a person who has logged in.
#[derive(Clone, Debug)]
pub(super) struct LoginSession {
    /// Permissions.
    pub(super) role: Role,
    /// Name that the person chose; not verified.
    pub(super) name: String,
    /// CSRF token that changes from the page have to contain.
    pub(super) csrf: String,
    /// Time of the login.
    begun_at: Moment,
    /// Time of the last request.
    used_at: Moment,
}

/// Sessions by the session ID in the cookie.
#[derive(Default)]
pub(super) struct Sessions(pub(super) Mutex<HashMap<String, LoginSession>>);

impl Sessions {
    /// Starts a session; returns its ID.
    pub(super) fn begin(&self, role: Role, name: &str, now: Moment) -> String {
        let mut sessions = self.0.lock();
        sessions.retain(|_, session| now.since(session.begun_at) < SESSION_LIFETIME);
        let of_role = sessions.iter().filter(|(_, session)| session.role == role);
        let of_role: Vec<_> = of_role.map(|(id, session)| (session.used_at, id.clone())).collect();
        if of_role.len() >= SESSIONS_MAX
            && let Some((_, oldest)) = of_role.iter().min()
        {
            sessions.remove(oldest);
        }
        let id = random_secret();
        let session = LoginSession { role, name: name.to_owned(), csrf: random_secret(), begun_at: now, used_at: now };
        sessions.insert(id.clone(), session);
        id
    }

    /// The session with this ID, unless it has expired. Records that it was used.
    pub(super) fn find(&self, id: &str, now: Moment) -> Option<LoginSession> {
        let mut sessions = self.0.lock();
        let session = sessions.get_mut(id)?;
        if now.since(session.begun_at) >= SESSION_LIFETIME {
            sessions.remove(id);
            return None;
        }
        session.used_at = session.used_at.max(now);
        Some(session.clone())
    }

    /// Ends a session.
    pub(super) fn end(&self, id: &str) {
        self.0.lock().remove(id);
    }
}

/// Counts wrong tokens by network: their number, and the start of the window. `None` stands for all networks beyond
/// [`NETWORKS_MAX`]. Valid tokens are not looked up here, so wrong ones cannot lock out an operator.
#[derive(Default)]
pub(super) struct TokenFailures(Mutex<HashMap<Option<Network>, (u32, Moment)>>);

impl TokenFailures {
    /// Counts a wrong token. Returns whether the network is within [`FAILURES_MAX`]; the caller logs it only then.
    pub(super) fn failed(&self, from: IpAddr, now: Moment) -> bool {
        let mut attempts = self.0.lock();
        let network = Some(network_of(from));
        if !attempts.contains_key(&network) && attempts.len() >= NETWORKS_MAX {
            attempts.retain(|_, (_, since)| now.since(*since) < WINDOW);
        }
        let has_own_count = attempts.contains_key(&network) || attempts.len() < NETWORKS_MAX;
        let (failures, since) = attempts.entry(if has_own_count { network } else { None }).or_insert((0, now));
        if now.since(*since) >= WINDOW {
            (*failures, *since) = (0, now);
        }
        *failures = failures.saturating_add(1);
        *failures <= FAILURES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(secs: u64) -> Moment {
        Moment::from_millis(secs * 1000)
    }

    #[test]
    fn a_session_expires_twelve_hours_after_the_login_even_if_it_is_used() {
        let sessions = Sessions::default();
        let id = sessions.begin(Role::Viewer, "ann", second(0));
        for hour in 0..12 {
            assert_eq!(sessions.find(&id, second(hour * 3600)).unwrap().name, "ann");
        }
        assert!(sessions.find(&id, second(43_199)).is_some());
        assert!(sessions.find(&id, second(43_200)).is_none());
        assert!(sessions.find("", second(0)).is_none());
        let id = sessions.begin(Role::Viewer, "ann", second(0));
        sessions.end(&id);
        assert!(sessions.find(&id, second(0)).is_none());
    }

    #[test]
    fn sessions_are_bounded_and_the_least_recently_used_one_ends() {
        let sessions = Sessions::default();
        let ids: Vec<_> =
            (0..SESSIONS_MAX as u64 + 1).map(|at| sessions.begin(Role::Operator, "x", second(at))).collect();
        assert!(sessions.find(&ids[0], second(100)).is_none());
        assert!(ids[1..].iter().all(|id| sessions.find(id, second(100)).is_some()));
        // Logins of viewers do not end sessions of operators.
        for at in 0..1000 {
            sessions.begin(Role::Viewer, "x", second(100 + at));
        }
        assert!(ids[1..].iter().all(|id| sessions.find(id, second(1100)).is_some()));
        assert_eq!(sessions.0.lock().len(), 2 * SESSIONS_MAX);
    }

    #[test]
    fn failures_beyond_the_bound_are_throttled_until_the_window_ends() {
        let (attempts, from) = (TokenFailures::default(), "203.0.113.7".parse().unwrap());
        assert!((0..FAILURES_MAX).all(|_| attempts.failed(from, second(1))));
        assert!(!attempts.failed(from, second(60)));
        assert!(attempts.failed("198.51.100.1".parse().unwrap(), second(60)));
        assert!(attempts.failed(from, second(61)));
    }

    #[test]
    fn failures_from_many_networks_take_bounded_memory_and_are_throttled_together() {
        let attempts = TokenFailures::default();
        let failed = |number: u32| attempts.failed(std::net::Ipv4Addr::from(number).into(), second(1));
        let explained = (0..5000).filter(|number| failed(*number)).count();
        assert_eq!(explained, NETWORKS_MAX + FAILURES_MAX as usize);
        assert_eq!(attempts.0.lock().len(), NETWORKS_MAX + 1);
        assert!(attempts.failed("203.0.113.7".parse().unwrap(), second(61)), "the window is over");
    }
}
