//! Handlers of the HTTP API at `/api/v1/` on the admin address: the state of the process, explanations of decisions,
//! and changes to single keys. The handlers of flags are in `flags.rs`. `openapi.json` describes the API.
//!
//! A rule limits each key separately. A key is the value of a class for one request: `203.0.113.7/32` of the class
//! `ip/32`, or the value of a header of the class `header:x-api-key`. Keys in requests and responses are escaped
//! ([`escape_key`]), and secret ones are masked ([`mask`]).

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_core::time::Span;
use tollgate_core::watch::Episode;

use super::body::{Body, Object};
use super::guard::Identity;
use super::monitored_role::{ExplainPath, ExplainRequest, KeyRef, with_prefix};
use super::problem::AdminProblem;
use super::watch_access::WatchPermit;
use super::{Console, ConsoleState};
use crate::mask;
use crate::watch::{Flag, Watch, canonical_key, escape_key, rfc3339, unescape_key};

/// Longest list that is returned, in elements.
pub(super) const TOP_MAX: usize = 1000;
/// Length of most lists if the query does not set `top`.
const TOP_DEFAULT: usize = 50;

/// Longest key in the body of a change, in characters, with escapes.
const KEY_CHARS_MAX: usize = 2048;

/// The response of most handlers.
pub(super) type JsonResult = Result<Json<Value>, AdminProblem>;

/// Query parameters that filter a list.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ListFilter {
    /// Only keys of this class; all if it is empty.
    #[serde(default)]
    class: String,
    /// Only elements that contain this text.
    #[serde(default)]
    search: String,
    /// Length of the longest list to return.
    top: Option<usize>,
    /// Whether to include cleared flags.
    #[serde(default)]
    history: String,
}

impl ListFilter {
    /// Length of the longest list to return; `default` if the query does not set it.
    pub(super) fn top(&self, default: usize) -> usize {
        self.top.unwrap_or(default).min(TOP_MAX)
    }

    /// Whether any of these texts contains the search text; case is ignored.
    pub(super) fn matches(&self, texts: &[&str]) -> bool {
        let wanted = self.search.to_lowercase();
        wanted.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&wanted))
    }

    pub(super) fn wants_history(&self) -> bool {
        !matches!(&*self.history, "" | "0" | "false")
    }
}

/// A query string, parsed or rejected by axum.
pub(super) type QueryResult<T> = Result<Query<T>, axum::extract::rejection::QueryRejection>;

/// Converts a rejected query string to a problem document.
pub(super) fn parse_query<T>(query: QueryResult<T>) -> Result<T, AdminProblem> {
    query.map(|Query(query)| query).map_err(|error| AdminProblem::bad(error.body_text()))
}

/// `GET /api/v1/status`
pub(super) async fn status(State(console): ConsoleState) -> Json<Value> {
    Json(status_value(&console))
}

/// The status, which event streams send too: fields of every process, followed by those of its role.
pub(super) fn status_value(console: &Console) -> Value {
    let (now, started, watch) = (console.watch.calendar.now(), console.started, console.watch.status());
    let omissions = watch.omissions;
    let mut status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "role": console.monitored.role(),
        "ready": console.monitored.is_ready(),
        "now": rfc3339(now),
        "started_at": rfc3339(started),
        "uptime_ms": now.since(started).as_nanos() / 1_000_000,
        "last_second": console.history.lock().last(),
        "watch": {
            "flags": watch.flags,
            "kept": watch.is_persisted,
            "state_dir": console.watch.state_dir.as_ref().map(|directory| directory.display().to_string()),
            "journal_bytes": watch.journal_bytes,
            "refusals_ignored": omissions.ignored,
            "refusals_dropped": watch.feed_dropped,
            "flags_dropped": omissions.flags_dropped,
            "accounts_pushed_out": omissions.accounts_evicted,
            "episodes_pushed_out": omissions.episodes_evicted,
        },
        "reload": console.config.lock().reload(),
    });
    if let (Value::Object(status), Value::Object(more)) = (&mut status, console.monitored.status()) {
        status.extend(more);
    }
    if let Some(notice) = console.config.lock().reload_notice() {
        match &mut status["notices"] {
            Value::Array(notices) => notices.insert(0, notice),
            absent => *absent = json!([notice]),
        }
    }
    status
}

/// Query parameters of the history.
#[derive(Debug, Deserialize)]
pub(super) struct HistoryQuery {
    /// Seconds per sample of the response.
    step: Option<usize>,
    /// Number of samples, counted from the latest.
    last: Option<usize>,
}

/// `GET /api/v1/history`
pub(super) async fn history(State(console): ConsoleState, query: QueryResult<HistoryQuery>) -> JsonResult {
    let HistoryQuery { step, last } = parse_query(query)?;
    let (step, last) = (step.unwrap_or(10), last.unwrap_or(3600));
    if !(1..=600).contains(&step) {
        return Err(AdminProblem::bad("`step` must be a number of seconds from 1 to 600"));
    }
    if last > 3600 {
        return Err(AdminProblem::bad("`last` must be a number of steps up to 3600"));
    }
    let samples = console.history.lock().in_steps(step);
    let shown = &samples[samples.len().saturating_sub(last)..];
    Ok(Json(json!({ "step_ms": step * 1000, "samples": shown })))
}

/// `GET /api/v1/buckets`: the keys of a class with the highest cost or the most refusals.
pub(super) async fn buckets(State(console): ConsoleState, query: QueryResult<ListFilter>) -> JsonResult {
    let filter = parse_query(query)?;
    let class = match &*filter.class {
        "" => "ip/32".to_owned(),
        "auto" => console.monitored.concentrated_class(),
        class => class.to_owned(),
    };
    let class = &*class;
    let buckets = console.monitored.buckets(class, filter.top(TOP_DEFAULT), &filter.search.to_lowercase());
    let Some(buckets) = buckets else {
        let classes = console.monitored.classes().join(", ");
        return Err(AdminProblem::absent(format!("no rule has that class; the classes are {classes}")));
    };
    Ok(Json(json!({ "class": class, "classes": console.monitored.classes(), "buckets": buckets })))
}

/// `GET /api/v1/episodes`: the keys that were refused within the retention time, the latest first.
pub(super) async fn episodes(State(console): ConsoleState, query: QueryResult<ListFilter>) -> JsonResult {
    let filter = parse_query(query)?;
    let mut episodes = console.run_on_watch(Watch::episodes).await?;
    let total = episodes.len();
    episodes.sort_by(|a, b| b.last.cmp(&a.last).then_with(|| b.count.cmp(&a.count)));
    let shown = episodes.iter().filter_map(|episode| {
        let text = String::from_utf8_lossy(&episode.key);
        let name = unescape_key(&text);
        let shown = mask::key(&episode.class, &name);
        let key = escape_key(&shown);
        let wanted = filter.class.is_empty() || *episode.class == *filter.class;
        (wanted && filter.matches(&[&key, &episode.class])).then(|| {
            json!({
                "class": episode.class, "key": key, "rejected": episode.count,
                "first_at": rfc3339(episode.first), "last_at": rfc3339(episode.last),
            })
        })
    });
    Ok(Json(json!({ "total": total, "episodes": shown.take(filter.top(TOP_DEFAULT)).collect::<Vec<_>>() })))
}

/// `GET /api/v1/audit`: the list of changes that operators have made.
pub(super) async fn audit(State(console): ConsoleState, query: QueryResult<ListFilter>) -> JsonResult {
    let filter = parse_query(query)?;
    let changes = console.run_on_watch(Watch::changes).await?;
    let wanted: Vec<_> =
        changes.iter().filter(|change| filter.matches(&[&change.by, &change.let_in, &change.what])).collect();
    let shown = wanted.iter().take(filter.top(TOP_DEFAULT));
    let shown = shown.map(
        |change| json!({ "at": rfc3339(change.at), "by": change.by, "let_in": change.let_in, "what": change.what }),
    );
    Ok(Json(json!({ "total": changes.len(), "matching": wanted.len(), "changes": shown.collect::<Vec<_>>() })))
}

/// `GET /api/v1/config`: the settings in force.
pub(super) async fn config(State(console): ConsoleState) -> Json<Value> {
    Json(console.config.lock().shown())
}

/// `GET /api/v1/session`: the sender of this request, with the CSRF token that its changes must contain.
pub(super) async fn session(Extension(identity): Extension<Identity>) -> Json<Value> {
    Json(
        json!({ "role": identity.role.as_str(), "name": identity.name, "csrf": identity.csrf, "login": identity.login }),
    )
}

/// `GET /api/v1/openapi.json`
pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}

/// `POST /api/v1/explain`: whether the request that the body describes would be admitted, and why.
pub(super) async fn explain(State(console): ConsoleState, body: Body) -> JsonResult {
    let object = body.object()?;
    object.has_only(&["client", "method", "path", "headers", "attributes", "cost_ms"])?;
    let client = match object.text("client", 64)?.map(str::trim) {
        // `GET /api/v1/key` describes requests of keys without an address as `"client": null`.
        None if object.0.contains_key("client") => None,
        None | Some("") => return Err(AdminProblem::bad("`client` is missing: set it to the address of the client")),
        Some(text) => Some(text.parse().map_err(|_| AdminProblem::bad("`client` must be an IP address"))?),
    };
    // Values are escaped as in all responses, so that a key that was copied from one is the same key here.
    let bytes = |text: &str| unescape_key(text).into_owned();
    let headers = object.texts("headers")?.into_iter();
    let attributes = object.texts("attributes")?.into_iter();
    let mut request = ExplainRequest {
        client,
        method: bytes(object.text("method", 32)?.unwrap_or("GET")),
        path: ExplainPath::new(bytes(object.text("path", 8192)?.unwrap_or("/"))),
        headers: Vec::new(),
        attributes: attributes.map(|(name, value)| (name, bytes(&value))).collect(),
        toll: object.number("cost_ms")?.map(|millis| Span::from_nanos((millis * 1e6) as u64)),
        is_flagged: false,
    };
    headers.for_each(|(name, value)| request.add_header(&name, bytes(&value)));
    request.unmask(&*console.monitored);
    let answer = console.monitored.explain(&request).await;
    answer.map(Json).ok_or_else(|| AdminProblem::absent("this process does not decide about requests"))
}

/// Query parameters that name a key.
#[derive(Debug, Deserialize)]
pub(super) struct KeyQuery {
    class: String,
    key: String,
}

/// `GET /api/v1/key`: the state of one key in all rules, with its episode and, if it is an account, its flags.
pub(super) async fn key(State(console): ConsoleState, query: QueryResult<KeyQuery>) -> JsonResult {
    let KeyQuery { class, key } = parse_query(query)?;
    let key = with_prefix(&class, canonical_key(key.into()));
    let key_ref = KeyRef::new(&class, &key).unmasked(&*console.monitored);
    let class = &key_ref.class;
    let read = |watch: &Watch| (watch.episodes(), watch.flags(true), watch.account_class());
    let (episodes, flags, account_class) = console.run_on_watch(read).await?;
    let is_meant = |episode: &Episode| {
        *episode.key == *key.as_bytes()
            || *episode.key == *escape_key(&key_ref.key).as_bytes()
            || mask::is_shown_as(class, &unescape_key(&String::from_utf8_lossy(&episode.key)), key.as_bytes())
    };
    let episode = episodes.iter().find(|episode| *episode.class == **class && is_meant(episode));
    // A key of another class may have the same text as an account.
    let is_account = *class == account_class;
    let of_account = flags.iter().filter(|flag| is_account && flag.account == key);
    let flags: Vec<_> = of_account.take(20).map(Flag::shown).collect();
    let mut detail = json!({
        "class": class, "key": key, "flags": flags, "request": key_ref.request.as_ref().map(ExplainRequest::shown),
        "episode": episode.map(|episode| json!({
            "rejected": episode.count, "first_at": rfc3339(episode.first), "last_at": rfc3339(episode.last),
        })),
    });
    if let (Value::Object(detail), Some(Value::Object(more))) = (&mut detail, console.monitored.key(&key_ref).await) {
        detail.extend(more);
    }
    Ok(Json(detail))
}

/// `POST /api/v1/key/clear`: resets the state of a key in all rules of its class.
pub(super) async fn clear_key(
    State(console): ConsoleState,
    Extension(identity): Extension<Identity>,
    body: Body,
) -> JsonResult {
    let object = body.object()?;
    let (key_ref, key) = parse_key_ref(&object, &console)?;
    let change = OperatorChange::parse(&object, &identity)?;
    // Before the change, so that every change is recorded.
    let permit = console.watch_permit().await?;
    let forgotten = console.monitored.forget(&key_ref).await;
    let how = match forgotten {
        Ok(0) => {
            let detail = "no rule of that class has state for that key: nothing was cleared";
            return Err(AdminProblem::absent(detail));
        }
        Ok(rules) => format!("with {rules} rules"),
        Err(_) => "at this gate only, not on Redis".to_owned(),
    };
    let class = &key_ref.class;
    change.record(permit, format!("cleared {class} \"{}\" {how}", shown(&key_ref))).await?;
    let rules = forgotten.map_err(|why| {
        let detail = format!("cleared at this gate, but not on Redis ({why}): try again");
        AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    Ok(Json(json!({ "class": class, "key": key, "rules": rules })))
}

/// Exemptions last at most one day, in milliseconds. A permanent exemption belongs in `unless` of the rule.
const EXEMPTION_MAX_MS: f64 = 86_400_000.0;

/// `POST /api/v1/key/exempt`: exempts a key from the rules of its class for a while.
pub(super) async fn exempt_key(
    State(console): ConsoleState,
    Extension(identity): Extension<Identity>,
    body: Body,
) -> JsonResult {
    let object = body.object()?;
    let (key_ref, key) = parse_key_ref(&object, &console)?;
    let for_ms = object.number("for_ms")?.ok_or_else(|| {
        AdminProblem::bad("`for_ms` is missing: set it to the duration in milliseconds, or to 0 to end an exemption")
    })?;
    if for_ms > EXEMPTION_MAX_MS {
        return Err(AdminProblem::bad(
            "an exemption lasts at most one day; for a longer one, set `unless` in the rule",
        ));
    }
    let span = (for_ms > 0.0).then(|| Span::from_millis(for_ms as u64));
    let change = OperatorChange::parse(&object, &identity)?;
    // Before the change, so that every change is recorded.
    let permit = console.watch_permit().await?;
    console.monitored.exempt(&key_ref, span).map_err(AdminProblem::bad)?;
    let until = span.map(|span| rfc3339(console.watch.calendar.now() + span));
    let (class, shown) = (&key_ref.class, shown(&key_ref));
    let what = match span {
        Some(span) => format!("exempted {class} \"{shown}\" for {} s", span.as_secs_ceil()),
        None => format!("ended the exemption of {class} \"{shown}\""),
    };
    change.record(permit, what).await?;
    Ok(Json(json!({ "class": class, "key": key, "until": until })))
}

/// Parses the class and the key of a change. Also returns the key as the client wrote it, for the response.
fn parse_key_ref<'a>(object: &'a Object, console: &Console) -> Result<(KeyRef, &'a str), AdminProblem> {
    let missing = |name: &str| AdminProblem::bad(format!("`{name}` is missing"));
    let class = object.text("class", 255)?.ok_or_else(|| missing("class"))?;
    let key = object.text("key", KEY_CHARS_MAX)?.ok_or_else(|| missing("key"))?;
    Ok((KeyRef::new(class, key).unmasked(&*console.monitored), key))
}

/// The operator who makes a change, and the note on it.
struct OperatorChange {
    /// Name that the operator chose.
    by: String,
    /// How the operator was authenticated ([`Identity::authentication`]).
    authentication: String,
    /// Reason for the change; may be empty.
    note: String,
}

impl OperatorChange {
    fn parse(object: &Object, identity: &Identity) -> Result<Self, AdminProblem> {
        let by = object.text("name", 100)?.unwrap_or(&identity.name).to_owned();
        let note = object.text("note", 1000)?.unwrap_or_default().to_owned();
        Ok(Self { by, authentication: identity.authentication(), note })
    }

    /// Records the change in the list of changes. `what` describes it.
    async fn record(self, permit: WatchPermit, what: String) -> Result<(), AdminProblem> {
        let Self { by, authentication, note } = self;
        permit.run(move |watch| watch.record_change(&by, &authentication, &format!("{what}: {note}"))).await
    }
}

/// Text of a key, masked if its class is secret.
fn shown(key_ref: &KeyRef) -> String {
    escape_key(&mask::key(&key_ref.class, &key_ref.key)).into_owned()
}
