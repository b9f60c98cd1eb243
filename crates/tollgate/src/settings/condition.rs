//! Conditions on requests: `when` and `unless` of rules and priorities. They are converted to [`Condition`], which the
//! core evaluates for each request.

use tollgate_core::condition::{Condition, Pattern};
use tollgate_core::network::Network;
use tollgate_core::path::PathPattern;

use super::error::{ErrorCollector, shown};
use super::rule::RuleContext;
use super::table::{Located, table};
use super::value::{CookieName, Glob, HeaderName, Map, Method, OneOrMany, text_value};

table! {
    /// A condition on requests. A request must match all keys that are present, and one element of each list.
    struct ConditionTable {
        /// The method, such as `POST`.
        method: OneOrMany<Method>,
        /// Patterns for the path without its query. `*` matches any text, so `/api/*` is everything below `/api/`. The
        /// pattern is compared with the path as received and with its normal form, without escapes, dots, parameters
        /// and doubled slashes: `when` matches if one of them does, `unless` if both do.
        path: OneOrMany<Located<Glob>>,
        /// Patterns for the requested host, case-insensitive, without its port or trailing dot. `*` matches any text.
        host: OneOrMany<Glob>,
        /// Required headers, each with patterns for its value, case-insensitive: `"*bot*"` matches `Googlebot`.
        /// `*` matches any text.
        header: Map<HeaderName, Located<OneOrMany<Glob>>>,
        /// Required cookies, each with patterns for its value. `*` matches any text, so `{ session = "*" }`
        /// requires a cookie with that name.
        cookie: Map<CookieName, Located<OneOrMany<Glob>>>,
        /// Required query parameters, each with patterns for its value, without escapes. `*` matches any text, so
        /// `{ device = "*" }` requires a parameter with that name. If a parameter has two values, or one of more than
        /// 256 bytes, `when` matches and `unless` does not.
        query: Map<EntryKey, Located<OneOrMany<Glob>>>,
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
pub(crate) enum EntryKey {}

text_value!(EntryKey => String, "a name", "user", Glob::parse);

/// Names with patterns for the value of each.
type NamedGlobs = Vec<(String, Located<Vec<String>>)>;

impl ConditionTable {
    /// Converts the conditions of `unless`. Empty tables, which would exempt every request, are left out.
    pub(super) fn resolve_all(
        tables: Option<Located<Vec<Self>>>,
        context: &RuleContext,
        errors: &mut ErrorCollector,
    ) -> Vec<Condition> {
        let conditions = tables.into_iter().flat_map(|tables| tables.value).map(|table| table.resolve(context, errors));
        conditions.filter(|condition| !condition.is_empty()).collect()
    }

    /// Converts the table to a condition. Reports empty lists, which would match every request.
    pub(super) fn resolve(self, context: &RuleContext, errors: &mut ErrorCollector) -> Condition {
        /// The converted values of a list; none if the key is absent.
        fn all<T, U>(
            values: Option<Located<Vec<T>>>,
            errors: &mut ErrorCollector,
            convert: impl FnMut(T) -> U,
        ) -> Vec<U> {
            if let Some(empty) = values.as_ref().filter(|values| values.value.is_empty()) {
                errors.report(&empty.span, "an empty list has no effect: write at least one, or leave the key out");
            }
            values.into_iter().flat_map(|values| values.value).map(convert).collect()
        }
        if let Some(flagged) = self.flagged.as_ref().filter(|_| context.account.is_none()) {
            let message = "`flagged` is about accounts, and `watch.account_class` is not a class of requests: write \
                           a class there, such as `header:x-api-key`";
            errors.missing(&flagged.span, message);
        }
        for glob in self.path.iter().flat_map(|globs| &globs.value) {
            if let Some(message) = unmatchable_path(&glob.value) {
                errors.report(&glob.span, message);
            }
        }
        let mut named = |fields: Option<Located<NamedGlobs>>, pattern: fn(String) -> Pattern| {
            let fields = fields.into_iter().flat_map(|fields| fields.value);
            fields.map(|(name, globs)| (name, all(Some(globs), errors, pattern))).collect()
        };
        Condition {
            // A rule of a site sets it afterwards.
            site: None,
            headers: named(self.header, Pattern::ignoring_case),
            cookies: named(self.cookie, Pattern::new),
            queries: named(self.query, Pattern::new),
            methods: all(self.method, errors, |method| method),
            paths: all(self.path, errors, |glob| PathPattern::new(glob.value)),
            hosts: all(self.host, errors, |glob| Pattern::ignoring_case(glob.trim_end_matches('.'))),
            upgrades: all(self.upgrade, errors, Pattern::ignoring_case),
            clients: all(self.client, errors, |network| network),
            flagged: self.flagged.map(|flagged| flagged.value),
            descriptors: all(self.descriptor, errors, |entries| {
                entries.into_iter().map(|(key, glob)| (key, Pattern::new(glob))).collect()
            }),
        }
    }
}

/// The error message for a pattern that matches no path. None if the pattern can match one.
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
