//! When a rule applies.

use tollgate_core::condition::{Condition, Pattern};
use tollgate_core::network::Network;
use tollgate_core::path::PathPattern;
use toml::Spanned;
use toml::de::DeValue;

use super::fault::Collector;
use super::rule::Surroundings;
use super::shape::Shape;
use super::table::{Placed, Value, table};
use super::value::{CookieName, Glob, HeaderName, Map, Method, OneOrMany};

table! {
    /// What a request must be like. All keys that are present must hold; of a list, one is enough.
    struct ConditionTable {
        /// The method, such as `POST`.
        method: OneOrMany<Method>,
        /// The path without its query. `*` stands for anything, so `/api/*` is everything below `/api/`. The path is compared as it came and in its
        /// normal form, without escapes, dots, parameters and doubled slashes: `when` holds if one of them matches, `unless` if both do.
        path: OneOrMany<Glob>,
        /// The host that was asked for, in any case and without its port or a dot at the end. `*` stands for anything.
        host: OneOrMany<Glob>,
        /// Headers that must be there, each with a pattern or a list of patterns that its value is compared with, in any case: `"*bot*"` matches `Googlebot`.
        /// `*` stands for anything.
        header: Map<HeaderName, OneOrMany<Glob>>,
        /// Cookies that must be there, each with a pattern or a list of patterns that its value is compared with. `*` stands for anything, so `{ session = "*" }`
        /// asks for a cookie of that name.
        cookie: Map<CookieName, OneOrMany<Glob>>,
        /// The protocol that the client asks to change to, such as `websocket`, in any case. If the client asks for several, one is enough for
        /// `when`, and `unless` needs all.
        upgrade: OneOrMany<Glob>,
        /// Networks or addresses, one of which the client is in.
        client: OneOrMany<Network>,
        /// Whether the account is flagged: it was refused very often, and nobody has cleared it. Accounts are what `watch.account_class` tells apart; a
        /// request that has none is not flagged.
        flagged: bool,
        /// Descriptors of Envoy, or the attributes of a check: keys with a pattern for the value. The request has these entries and no others. `*` stands for
        /// anything, so `{ user = "*" }` is every descriptor with `user` alone.
        descriptor: OneOrMany<Map<EntryKey, Glob>>,
    }
}

/// The key of a descriptor's entry.
#[derive(Clone, Debug)]
pub(super) struct EntryKey(String);

impl Value for EntryKey {
    fn shape() -> Shape {
        Shape::Text { what: "the key of an entry", example: "user" }
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        Glob::read(value, faults).map(|key| Self(key.0))
    }
}

impl ConditionTable {
    /// What the table means. An empty list would hold for every request, which nobody means by it.
    pub(super) fn meaning(self, around: &Surroundings, faults: &mut Collector) -> Condition {
        fn all<T, U>(
            values: Option<Placed<OneOrMany<T>>>,
            faults: &mut Collector,
            meaning: impl FnMut(T) -> U,
        ) -> Vec<U> {
            if let Some(empty) = values.as_ref().filter(|values| values.value.is_empty()) {
                faults.fault(&empty.span, "an empty list says nothing: write at least one, or leave the key out");
            }
            values.into_iter().flat_map(|values| values.value.values()).map(meaning).collect()
        }
        if let Some(flagged) = self.flagged.as_ref().filter(|_| around.account.is_none()) {
            let message = "`flagged` is about accounts, and `watch.account_class` names none that a request has: write a class there, such as `header:x-api-key`";
            faults.missing(&flagged.span, message);
        }
        for glob in self.path.iter().flat_map(|globs| &globs.value.0) {
            if let Some(message) = unmatchable_path(&glob.value.0) {
                faults.fault(&glob.span, message);
            }
        }
        let headers = self.header.map(|header| header.value.0).unwrap_or_default();
        let cookies = self.cookie.map(|cookie| cookie.value.0).unwrap_or_default();
        let mut one_of = |globs: Placed<OneOrMany<Glob>>, pattern: fn(String) -> Pattern| {
            all(Some(globs), faults, |glob| pattern(glob.0))
        };
        let headers = headers.into_iter().map(|(name, globs)| (name.0, one_of(globs, Pattern::ignoring_case)));
        let headers = headers.collect();
        let cookies = cookies.into_iter().map(|(name, globs)| (name.0, one_of(globs, Pattern::new))).collect();
        Condition {
            methods: all(self.method, faults, |method| method.0),
            paths: all(self.path, faults, |glob| PathPattern::new(glob.0)),
            hosts: all(self.host, faults, |glob| Pattern::ignoring_case(glob.0.trim_end_matches('.'))),
            headers,
            cookies,
            upgrades: all(self.upgrade, faults, |glob| Pattern::ignoring_case(glob.0)),
            clients: all(self.client, faults, |network| network),
            flagged: self.flagged.map(|flagged| flagged.value),
            descriptors: all(self.descriptor, faults, |entries| {
                entries.0.into_iter().map(|(key, glob)| (key.0, Pattern::new(glob.value.0))).collect()
            }),
        }
    }
}

/// Why no path matches this pattern, and what to write instead.
fn unmatchable_path(glob: &str) -> Option<String> {
    if let Some((path, _)) = glob.split_once('?') {
        let instead = if path.starts_with(['/', '*']) { path } else { "/*" };
        return Some(format!(
            "paths are compared without their query, so no path matches `{glob}`: write `{instead}`; the class \
             `query:NAME` tells requests apart by a parameter"
        ));
    }
    (!glob.starts_with(['/', '*']))
        .then(|| format!("every path begins with a slash, so no path matches `{glob}`: write `/{glob}`"))
}
