//! The user and the priority of a request, by which the fair queue shares the backend.
//!
//! Without settings, the queue shares by address, network and block, and connections of one address take turns. The
//! settings may name a class that identifies users ([`Fairness`]), such as a cookie: users then take turns within an
//! address, or replace addresses. They may also define priorities, which have weights or skip the queue. The queue
//! keeps separate accounts of a client's use for each priority.

use std::hash::{BuildHasher, Hasher, RandomState};

use tollgate_core::class::KeySink;
use tollgate_core::inputs::Inputs;
use tollgate_core::network::Network;
use tollgate_core::request::Request;

use crate::settings::{Domain, Fairness, Gate as Settings, Precedence, Priority, UserPlace};

/// The weight of a request without a priority, in thousandths: 1.
const USUAL_WEIGHT_MILLI: u32 = 1000;

/// The user and priority of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The hash of the user, if the settings let users replace addresses: the queue then ignores the address.
    pub(crate) user: Option<u64>,
    /// The user within the address (or within `user`), with whose requests others of the same address take turns: the
    /// hash of a user or of a user agent, or the number of a connection.
    pub(crate) tenant: u64,
    /// The hash of the priority's name, which separates the accounts of priorities; 0 without a priority.
    pub(crate) account: u64,
    /// The weight of its priority, in thousandths.
    pub(crate) weight_milli: u32,
    /// Whether it skips the queue.
    pub(crate) is_exempt: bool,
}

impl Default for Claim {
    fn default() -> Self {
        Self { user: None, tenant: 0, account: 0, weight_milli: USUAL_WEIGHT_MILLI, is_exempt: false }
    }
}

/// The settings of users and priorities.
pub(crate) struct Claims {
    fairness: Fairness,
    /// Priorities with the hashes of their names, in the order of matching.
    priorities: Vec<(Priority, u64)>,
    /// Whether any priority depends on flags, the marks of the watch on accounts that were refused too often.
    pub(crate) looks_at_flags: bool,
    /// The headers and cookies that users and priorities depend on.
    pub(crate) inputs: Inputs,
    hasher: RandomState,
}

impl Claims {
    /// The users and priorities of `settings`. With the hasher of `before`, those that existed before a reload keep
    /// their hashes, and so their accounts in the queue.
    pub(crate) fn new(domain: &Domain, settings: &Settings, before: Option<&Self>) -> Self {
        let hasher = before.map_or_else(RandomState::new, |before| before.hasher.clone());
        let hashed = |priority: &Priority| (priority.clone(), hasher.hash_one(&priority.name));
        let mut inputs = Inputs::default();
        settings.fairness.by.iter().for_each(|class| inputs.add_class(class));
        let conditions = domain.priorities.iter().flat_map(Priority::conditions);
        conditions.for_each(|condition| inputs.add_condition(condition));
        Self {
            fairness: settings.fairness.clone(),
            priorities: domain.priorities.iter().map(hashed).collect(),
            inputs,
            looks_at_flags: domain.priorities.iter().any(Priority::looks_at_flags),
            hasher,
        }
    }

    /// The user and priority of a request. `tenant` is used if users do not replace it.
    pub(crate) fn of(&self, request: &impl Request, tenant: u64) -> Claim {
        let mut claim = Claim { tenant, ..Claim::default() };
        if let Some(user) = self.user_of(request) {
            match self.fairness.place {
                UserPlace::Beneath => claim.tenant = user,
                UserPlace::Instead => claim.user = Some(user),
            }
        }
        if let Some((priority, account)) = self.priorities.iter().find(|(priority, _)| priority.applies(request)) {
            claim.account = *account;
            match priority.precedence {
                Precedence::Weight(weight_milli) => claim.weight_milli = weight_milli,
                Precedence::Exempt => claim.is_exempt = true,
            }
        }
        claim
    }

    fn user_of(&self, request: &impl Request) -> Option<u64> {
        let mut sink = HashSink(self.hasher.build_hasher());
        self.fairness.by.as_ref()?.write_key(request, &mut sink).then(|| sink.0.finish())
    }
}

/// Hashes the parts of a key.
struct HashSink<H>(H);

impl<H: Hasher> KeySink for HashSink<H> {
    fn network(&mut self, network: Network) {
        std::hash::Hash::hash(&network, &mut self.0);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    fn end_part(&mut self) {
        // A byte that UTF-8 does not contain, so that parts of two keys cannot run into each other.
        self.0.write_u8(0xFF);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_wire::http1::RequestHead;

    use super::*;
    use crate::gate::decide::identify::RequestView;
    use crate::settings::Settings as File;

    fn claims(text: &str) -> Claims {
        let file = File::parse("test.toml", text).unwrap();
        Claims::new(&file.domains[0], &file.gate.unwrap_or_default(), None)
    }

    fn claim(claims: &Claims, path: &str, fields: &str, tenant: u64) -> Claim {
        let mut head = RequestHead::default();
        head.parse(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{fields}\r\n").as_bytes()).unwrap();
        let client = "192.0.2.1".parse().unwrap();
        claims.of(&RequestView::new(client, &head), tenant)
    }

    #[test]
    fn a_user_beneath_the_address_is_the_same_on_every_connection() {
        let claims = claims("[gate]\nfairness = { by = \"cookie:sid\" }");
        let of = |fields, tenant| claim(&claims, "/", fields, tenant);
        let first = of("cookie: a=b; sid=one\r\n", 1);
        assert_eq!(first, of("cookie: sid=one\r\n", 2));
        assert_ne!(first.tenant, of("cookie: sid=two\r\n", 1).tenant);
        assert_eq!(of("cookie: other=one\r\n", 7), Claim { tenant: 7, ..Claim::default() });
    }

    #[test]
    fn a_user_instead_of_the_address_keeps_its_connections_apart() {
        let claims = claims("[gate]\nfairness = { by = \"header:x-api-key\", place = \"instead\" }");
        let of = |fields, tenant| claim(&claims, "/", fields, tenant);
        let first = of("x-api-key: one\r\n", 1);
        assert!(first.user.is_some() && first.tenant == 1);
        assert_eq!(first.user, of("x-api-key: one\r\n", 2).user);
        assert_ne!(first.user, of("x-api-key: two\r\n", 1).user);
        assert_eq!(of("", 7), Claim { tenant: 7, ..Claim::default() });
    }

    #[test]
    fn the_first_priority_that_applies_is_in_force_and_has_its_own_account() {
        let text = "[[priority]]\nname = \"health\"\nwhen = { path = \"/healthz\" }\nexempt = true\n\
            [[priority]]\nname = \"logged-in\"\nwhen = { cookie = { session = \"*\" } }\nunless = { path = \"/export\" }\nweight = 4\n\
            [[priority]]\nname = \"search\"\nwhen = { path = \"/search\" }\nweight = 0.25\n";
        let before = claims(text);
        assert_eq!(before.inputs.cookies, ["session"]);
        let session = "cookie: session=x\r\n";
        let of = |path, fields| claim(&before, path, fields, 0);
        assert!(of("/healthz", session).is_exempt && !of("/", session).is_exempt);
        assert_eq!([of("/search", session), of("/search", "")].map(|claim| claim.weight_milli), [4000, 250]);
        assert_eq!(of("/export", session), Claim::default());
        // A path that the backend may read as another one is not exempt, and one that it may read as a search is
        // charged as a search.
        assert!(!of("/a/../healthz", "").is_exempt && !of("/healthz/%2e%2e/report", "").is_exempt);
        assert_eq!(of("/a/../search", "").weight_milli, 250);
        assert_eq!(of("/", session).account, of("/search", session).account);
        assert_ne!(of("/search", "").account, of("/search", session).account);
        // Another order after a reload does not give clients new accounts.
        let file = File::parse("test.toml", "[[priority]]\nname = \"search\"\nweight = 2\n").unwrap();
        let after = Claims::new(&file.domains[0], &file.gate.unwrap_or_default(), Some(&before));
        assert_eq!(claim(&after, "/", "", 0).account, of("/search", "").account);
        assert_eq!(claim(&after, "/", "", 0).weight_milli, 2000);
    }
}
