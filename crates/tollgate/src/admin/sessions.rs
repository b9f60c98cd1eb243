//! Who has logged in, and who has tried too often.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate_core::network::Network;
use tollgate_core::time::{Moment, Span};

use super::tokens::{Role, random_word};

/// How many of a role can be logged in at once. One more ends the session of that role that was not used for longest: who may only look
/// ends no operator's session.
const SESSIONS_MAX: usize = 64;
/// A session is over so long after its login, however much it is used: a page that is left open keeps asking.
const LIFE: Span = Span::from_secs(12 * 3600);
/// So many wrong tokens within [`WINDOW`], and none is looked at until it is over.
const FAILURES_MAX: u32 = 10;
const WINDOW: Span = Span::from_secs(60);
/// How many addresses are counted for. When there are more, all others are counted together.
const ADDRESSES_MAX: usize = 1024;

/// Somebody who has logged in.
#[derive(Clone, Debug)]
pub(super) struct Session {
    /// What they may do.
    pub(super) role: Role,
    /// What they call themselves.
    pub(super) name: String,
    /// What their page shows with every change, so that no other page can make one.
    pub(super) csrf: String,
    begun_at: Moment,
    used_at: Moment,
}

/// All who have logged in, by the word in their cookie.
#[derive(Default)]
pub(super) struct Sessions(Mutex<HashMap<String, Session>>);

impl Sessions {
    /// Begins a session, and returns the word for the cookie.
    pub(super) fn begin(&self, role: Role, name: &str, now: Moment) -> String {
        let mut sessions = self.lock();
        sessions.retain(|_, session| now.since(session.begun_at) < LIFE);
        let alike = sessions.iter().filter(|(_, session)| session.role == role);
        let alike: Vec<_> = alike.map(|(word, session)| (session.used_at, word.clone())).collect();
        if alike.len() >= SESSIONS_MAX
            && let Some((_, oldest)) = alike.iter().min()
        {
            sessions.remove(oldest);
        }
        let word = random_word();
        let session = Session { role, name: name.to_owned(), csrf: random_word(), begun_at: now, used_at: now };
        sessions.insert(word.clone(), session);
        word
    }

    /// The session with this word.
    pub(super) fn find(&self, word: &str, now: Moment) -> Option<Session> {
        let mut sessions = self.lock();
        let session = sessions.get_mut(word)?;
        if now.since(session.begun_at) >= LIFE {
            sessions.remove(word);
            return None;
        }
        session.used_at = session.used_at.max(now);
        Some(session.clone())
    }

    /// Ends a session.
    pub(super) fn end(&self, word: &str) {
        self.lock().remove(word);
    }

    /// Everybody has to log in again.
    pub(super) fn end_all(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Session>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wrong tokens, by where they came from.
#[derive(Default)]
pub(super) struct Attempts(Mutex<HashMap<Option<Network>, (u32, Moment)>>);

impl Attempts {
    /// Whether a token from there is looked at.
    pub(super) fn may_try(&self, from: IpAddr, now: Moment) -> bool {
        let attempts = self.lock();
        let of = |place: &Option<Network>| {
            attempts.get(place).is_none_or(|(failures, since)| *failures < FAILURES_MAX || now.since(*since) >= WINDOW)
        };
        of(&Some(place(from))) && (attempts.len() < ADDRESSES_MAX || of(&None))
    }

    /// A token from there was wrong.
    pub(super) fn failed(&self, from: IpAddr, now: Moment) {
        let mut attempts = self.lock();
        attempts.retain(|_, (_, since)| now.since(*since) < WINDOW);
        let known = attempts.contains_key(&Some(place(from)));
        let place = (known || attempts.len() < ADDRESSES_MAX).then(|| place(from));
        attempts.entry(place).or_insert((0, now)).0 += 1;
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<Network>, (u32, Moment)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(from: IpAddr) -> Network {
    Network::of(from, if from.is_ipv4() { 32 } else { 64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(secs: u64) -> Moment {
        Moment::from_millis(secs * 1000)
    }

    #[test]
    fn a_session_ends_twelve_hours_after_its_login_however_much_it_is_used() {
        let sessions = Sessions::default();
        let word = sessions.begin(Role::Viewer, "ann", second(0));
        for hour in 0..12 {
            assert_eq!(sessions.find(&word, second(hour * 3600)).unwrap().name, "ann");
        }
        assert!(sessions.find(&word, second(43_199)).is_some());
        assert!(sessions.find(&word, second(43_200)).is_none());
        assert!(sessions.find("", second(0)).is_none());
        let word = sessions.begin(Role::Viewer, "ann", second(0));
        sessions.end(&word);
        assert!(sessions.find(&word, second(0)).is_none());
    }

    #[test]
    fn sessions_are_bounded_and_the_one_not_used_for_longest_ends() {
        let sessions = Sessions::default();
        let words: Vec<_> =
            (0..SESSIONS_MAX as u64 + 1).map(|at| sessions.begin(Role::Operator, "x", second(at))).collect();
        assert!(sessions.find(&words[0], second(100)).is_none());
        assert!(words[1..].iter().all(|word| sessions.find(word, second(100)).is_some()));
        // However many only look, operators stay.
        for at in 0..1000 {
            sessions.begin(Role::Viewer, "x", second(100 + at));
        }
        assert!(words[1..].iter().all(|word| sessions.find(word, second(1100)).is_some()));
        assert_eq!(sessions.lock().len(), 2 * SESSIONS_MAX);
    }

    #[test]
    fn who_is_wrong_too_often_is_not_listened_to_for_a_while() {
        let (attempts, from) = (Attempts::default(), "203.0.113.7".parse().unwrap());
        for _ in 0..FAILURES_MAX {
            assert!(attempts.may_try(from, second(1)));
            attempts.failed(from, second(1));
        }
        assert!(!attempts.may_try(from, second(60)));
        assert!(attempts.may_try("198.51.100.1".parse().unwrap(), second(60)));
        assert!(attempts.may_try(from, second(61)));
    }

    #[test]
    fn wrong_tokens_from_everywhere_are_bounded_too() {
        let attempts = Attempts::default();
        for number in 0..5000u32 {
            attempts.failed(std::net::Ipv4Addr::from(number).into(), second(1));
        }
        assert!(attempts.lock().len() <= ADDRESSES_MAX + 1);
        assert!(!attempts.may_try("203.0.113.7".parse().unwrap(), second(2)));
    }
}
