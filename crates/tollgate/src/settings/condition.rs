//! When a rule applies.

use tollgate_core::condition::{Condition, Pattern};
use tollgate_core::network::Network;

use super::table::table;
use super::value::{Glob, HeaderName, Map, Method, OneOrMany};

table! {
    /// What a request must be like. All keys that are present must hold; of a list, one is enough.
    struct ConditionTable {
        /// The method, such as `POST`.
        method: OneOrMany<Method>,
        /// The path without its query. `*` stands for anything, so `/api/*` is everything below `/api/`.
        path: OneOrMany<Glob>,
        /// The host that was asked for, without its port. `*` stands for anything.
        host: OneOrMany<Glob>,
        /// Headers that must be there, each with what it must be. `*` stands for anything.
        header: Map<HeaderName, Glob>,
        /// The protocol that the client asks to change to, such as `websocket`.
        upgrade: OneOrMany<Glob>,
        /// Networks or addresses, one of which the client is in.
        client: OneOrMany<Network>,
    }
}

impl ConditionTable {
    pub(super) fn meaning(self) -> Condition {
        fn all<T, U>(values: Option<super::table::Placed<OneOrMany<T>>>, meaning: impl FnMut(T) -> U) -> Vec<U> {
            let values = values.map(|values| values.value.0).unwrap_or_default();
            values.into_iter().map(|placed| placed.value).map(meaning).collect()
        }
        let headers = self.header.map(|header| header.value.0).unwrap_or_default();
        Condition {
            methods: all(self.method, |method| method.0),
            paths: all(self.path, |glob| Pattern::new(glob.0)),
            hosts: all(self.host, |glob| Pattern::ignoring_case(glob.0)),
            headers: headers.into_iter().map(|(name, glob)| (name.value.0, Pattern::new(glob.0))).collect(),
            upgrades: all(self.upgrade, |glob| Pattern::ignoring_case(glob.0)),
            clients: all(self.client, |network| network),
        }
    }
}
