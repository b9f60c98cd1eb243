//! Conditions: `when` and `unless` of rules and priorities.

use tollgate_core::condition::{Condition, Pattern};
use tollgate_core::network::Network;
use tollgate_core::path::PathPattern;
use toml::Spanned;
use toml::de::DeValue;

use super::error::{ErrorCollector, shown};
use super::rule::RuleContext;
use super::shape::Shape;
use super::table::{Located, Value, table};
use super::value::{CookieName, Glob, HeaderName, Map, Method, OneOrMany};

table! {
    /// A condition on requests. A request must match all keys that are present, and one element of each list.
    struct ConditionTable {
        /// The method, such as `POST`.
        method: OneOrMany<Method>,
        /// Patterns for the path without its query. `*` matches any text, so `/api/*` is everything below `/api/`. The
        /// pattern is compared with the path as received and with its normal form, without escapes, dots, parameters
        /// and doubled slashes: `when` matches if one of them does, `unless` if both do.
        path: OneOrMany<Glob>,
        /// Patterns for the requested host, case-insensitive, without its port or trailing dot. `*` matches any text.
        host: OneOrMany<Glob>,
        /// Required headers, each with patterns for its value, case-insensitive: `"*bot*"` matches `Googlebot`.
        /// `*` matches any text.
        header: Map<HeaderName, OneOrMany<Glob>>,
        /// Required cookies, each with patterns for its value. `*` matches any text, so `{ session = "*" }`
        /// requires a cookie with that name.
        cookie: Map<CookieName, OneOrMany<Glob>>,
        /// Required query parameters, each with patterns for its value, without escapes. `*` matches any text, so
        /// `{ device = "*" }` requires a parameter with that name. If a parameter has two values, or one of more than
        /// 256 bytes, `when` matches and `unless` does not.
        query: Map<EntryKey, OneOrMany<Glob>>,
        /// Patterns for the protocol of a requested upgrade, such as `websocket`, case-insensitive. If the client names
        /// several protocols, `when` matches if one of them does, `unless` if all do.
        upgrade: OneOrMany<Glob>,
        /// Networks and addresses of clients.
        client: OneOrMany<Network>,
        /// Whether the account of the request is flagged. `watch.account_class` identifies accounts; a
        /// request without an account is not flagged.
        flagged: bool,
        /// Descriptors of Envoy, or the attributes of a check: keys with a pattern for the value. The request has these
        /// entries and no others. `*` matches any text, so `{ user = "*" }` matches every descriptor with `user` alone.
        descriptor: OneOrMany<Map<EntryKey, Glob>>,
    }
}

/// The key of a descriptor's entry, or the name of a query parameter.
#[derive(Clone, Debug)]
pub(super) struct EntryKey(String);

impl Value for EntryKey {
    fn shape() -> Shape {
        Shape::Text { what: "a name", example: "user" }
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        Glob::read(value, errors).map(|key| Self(key.0))
    }
}

impl ConditionTable {
    /// Converts the conditions of `unless`. Empty tables, which would exempt every request, are left out.
    pub(super) fn resolve_all(
        tables: Option<Located<OneOrMany<Self>>>,
        context: &RuleContext,
        errors: &mut ErrorCollector,
    ) -> Vec<Condition> {
        let tables = tables.into_iter().flat_map(|tables| tables.value.values());
        let conditions = tables.map(|table| table.resolve(context, errors));
        conditions.filter(|condition| !condition.is_empty()).collect()
    }

    /// Converts the table to a condition. Reports empty lists, which would match every request.
    pub(super) fn resolve(self, context: &RuleContext, errors: &mut ErrorCollector) -> Condition {
        fn all<T, U>(
            values: Option<Located<OneOrMany<T>>>,
            errors: &mut ErrorCollector,
            convert: impl FnMut(T) -> U,
        ) -> Vec<U> {
            if let Some(empty) = values.as_ref().filter(|values| values.value.is_empty()) {
                errors.report(&empty.span, "an empty list has no effect: write at least one, or leave the key out");
            }
            values.into_iter().flat_map(|values| values.value.values()).map(convert).collect()
        }
        if let Some(flagged) = self.flagged.as_ref().filter(|_| context.account.is_none()) {
            let message = "`flagged` is about accounts, and `watch.account_class` is not a class of requests: write \
                           a class there, such as `header:x-api-key`";
            errors.missing(&flagged.span, message);
        }
        for glob in self.path.iter().flat_map(|globs| &globs.value.0) {
            if let Some(message) = unmatchable_path(&glob.value.0) {
                errors.report(&glob.span, message);
            }
        }
        let headers = self.header.map(|header| header.value.0).unwrap_or_default();
        let cookies = self.cookie.map(|cookie| cookie.value.0).unwrap_or_default();
        let queries = self.query.map(|query| query.value.0).unwrap_or_default();
        let mut one_of = |globs: Located<OneOrMany<Glob>>, pattern: fn(String) -> Pattern| {
            all(Some(globs), errors, |glob| pattern(glob.0))
        };
        let headers = headers.into_iter().map(|(name, globs)| (name.0, one_of(globs, Pattern::ignoring_case)));
        let headers = headers.collect();
        let cookies = cookies.into_iter().map(|(name, globs)| (name.0, one_of(globs, Pattern::new))).collect();
        let queries = queries.into_iter().map(|(name, globs)| (name.0, one_of(globs, Pattern::new))).collect();
        Condition {
            site: None,
            methods: all(self.method, errors, |method| method.0),
            paths: all(self.path, errors, |glob| PathPattern::new(glob.0)),
            hosts: all(self.host, errors, |glob| Pattern::ignoring_case(glob.0.trim_end_matches('.'))),
            headers,
            cookies,
            queries,
            upgrades: all(self.upgrade, errors, |glob| Pattern::ignoring_case(glob.0)),
            clients: all(self.client, errors, |network| network),
            flagged: self.flagged.map(|flagged| flagged.value),
            descriptors: all(self.descriptor, errors, |entries| {
                entries.0.into_iter().map(|(key, glob)| (key.0, Pattern::new(glob.value.0))).collect()
            }),
        }
    }
}

/// The error message for a pattern that matches no path.
fn unmatchable_path(glob: &str) -> Option<String> {
    if let Some((path, _)) = glob.split_once('?') {
        let instead = if path.starts_with(['/', '*']) { path } else { "/*" };
        return Some(format!(
            "paths are compared without their query, so no path matches {}: write {}; the class \
             `query:NAME` uses a parameter as the key, and the condition `query` requires one",
            shown(glob),
            shown(instead)
        ));
    }
    (!glob.starts_with(['/', '*'])).then(|| {
        format!(
            "every path begins with a slash, so no path matches {}: write {}",
            shown(glob),
            shown(&format!("/{glob}"))
        )
    })
}
