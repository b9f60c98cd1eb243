//! What operators and their programs can ask: `GET /api/v1/...`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_core::time::Span;
use tollgate_core::watch::Episode;

use super::Console;
use super::body::Body;
use super::guard::Caller;
use super::problem::Problem;
use super::subject::{AskedPath, Question, Who, with_prefix};
use crate::mask;
use crate::watch::{Watch, canonical, legible, name_of, rfc3339};

/// Lists are at most this long.
pub(super) const TOP_MAX: usize = 1000;
const TOP_DEFAULT: usize = 50;

/// A key is at most this long, with what is no text written out.
const KEY_CHARS_MAX: usize = 2048;

/// An answer in JSON.
pub(super) struct Json(pub(super) Value);

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, "application/json")], self.0.to_string()).into_response()
    }
}

/// What a list is narrowed by.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Narrow {
    #[serde(default)]
    class: String,
    #[serde(default)]
    search: String,
    top: Option<usize>,
    #[serde(default)]
    history: String,
}

impl Narrow {
    pub(super) fn has_top(&self) -> bool {
        self.top.is_some()
    }

    pub(super) fn top(&self) -> usize {
        self.top.unwrap_or(TOP_DEFAULT).min(TOP_MAX)
    }

    /// Whether any of these texts has what is searched for.
    pub(super) fn matches(&self, texts: &[&str]) -> bool {
        let wanted = self.search.to_lowercase();
        wanted.is_empty() || texts.iter().any(|text| text.to_lowercase().contains(&wanted))
    }

    pub(super) fn wants_history(&self) -> bool {
        !matches!(&*self.history, "" | "0" | "false")
    }
}

/// A query that was understood.
pub(super) type Asked<T> = Result<Query<T>, axum::extract::rejection::QueryRejection>;

/// The query, or what is wrong with it.
pub(super) fn asked<T>(query: Asked<T>) -> Result<T, Problem> {
    query.map(|Query(query)| query).map_err(|error| Problem::bad(error.body_text()))
}

/// `GET /api/v1/status`
pub(super) async fn status(State(console): State<Arc<Console>>) -> Json {
    Json(status_value(&console))
}

/// The status as text, for those who look all the time.
pub(super) fn status_text(console: &Console) -> String {
    status_value(console).to_string()
}

fn status_value(console: &Console) -> Value {
    let (now, started, standing) = (console.watch.calendar().now(), console.started, console.watch.standing());
    let omissions = standing.omissions;
    let mut status = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "role": console.subject.role(),
        "ready": console.subject.is_ready(),
        "now": rfc3339(now),
        "started_at": rfc3339(started),
        "uptime_ms": now.since(started).as_nanos() / 1_000_000,
        "last_second": console.history().last(),
        "watch": {
            "flags": standing.flags,
            "kept": standing.is_kept,
            "state_dir": console.watch.state_dir().map(|directory| directory.display().to_string()),
            "journal_bytes": standing.journal_bytes,
            "refusals_ignored": omissions.ignored,
            "refusals_dropped": standing.feed_dropped,
            "flags_dropped": omissions.flags_dropped,
            "accounts_pushed_out": omissions.accounts_evicted,
            "episodes_pushed_out": omissions.episodes_evicted,
        },
        "reload": console.config().reload(),
    });
    if let (Value::Object(status), Value::Object(more)) = (&mut status, console.subject.status()) {
        status.extend(more);
    }
    if let Some(notice) = console.config().reload_notice() {
        match &mut status["notices"] {
            Value::Array(notices) => notices.insert(0, notice),
            absent => *absent = json!([notice]),
        }
    }
    status
}

/// What part of the past is asked for.
#[derive(Debug, Deserialize)]
pub(super) struct Steps {
    step: Option<usize>,
    last: Option<usize>,
}

/// `GET /api/v1/history`
pub(super) async fn history(State(console): State<Arc<Console>>, query: Asked<Steps>) -> Result<Json, Problem> {
    let Steps { step, last } = asked(query)?;
    let (step, last) = (step.unwrap_or(10), last.unwrap_or(3600));
    if !(1..=600).contains(&step) {
        return Err(Problem::bad("`step` is a number of seconds from 1 to 600"));
    }
    if last > 3600 {
        return Err(Problem::bad("`last` is a number of steps up to 3600"));
    }
    let samples = console.history().in_steps(step);
    let shown = &samples[samples.len().saturating_sub(last)..];
    Ok(Json(json!({ "step_ms": step * 1000, "samples": shown })))
}

/// `GET /api/v1/buckets`
pub(super) async fn buckets(State(console): State<Arc<Console>>, query: Asked<Narrow>) -> Result<Json, Problem> {
    let narrow = asked(query)?;
    let class = match &*narrow.class {
        "" => "ip/32".to_owned(),
        "auto" => console.subject.concentrated_class(),
        class => class.to_owned(),
    };
    let class = &*class;
    let buckets = console.subject.buckets(class, narrow.top(), &narrow.search.to_lowercase());
    let Some(buckets) = buckets else {
        let classes = console.subject.classes().join(", ");
        return Err(Problem::absent(format!("no callers are told apart by that class; classes are {classes}")));
    };
    Ok(Json(json!({ "class": class, "classes": console.subject.classes(), "buckets": buckets })))
}

/// `GET /api/v1/episodes`
pub(super) async fn episodes(State(console): State<Arc<Console>>, query: Asked<Narrow>) -> Result<Json, Problem> {
    let narrow = asked(query)?;
    let mut episodes = console.ask(Watch::episodes).await?;
    let total = episodes.len();
    episodes.sort_by(|a, b| b.last.cmp(&a.last).then_with(|| b.count.cmp(&a.count)));
    let shown = episodes.iter().filter_map(|episode| {
        let text = String::from_utf8_lossy(&episode.key);
        let name = name_of(&text);
        let shown = mask::key(&episode.class, &name);
        let key = legible(&shown);
        let wanted = narrow.class.is_empty() || *episode.class == *narrow.class;
        (wanted && narrow.matches(&[&key, &episode.class])).then(|| {
            json!({
                "class": episode.class, "key": key, "rejected": episode.count,
                "first_at": rfc3339(episode.first), "last_at": rfc3339(episode.last),
            })
        })
    });
    Ok(Json(json!({ "total": total, "episodes": shown.take(narrow.top()).collect::<Vec<_>>() })))
}

/// `GET /api/v1/audit`
pub(super) async fn audit(State(console): State<Arc<Console>>, query: Asked<Narrow>) -> Result<Json, Problem> {
    let narrow = asked(query)?;
    let changes = console.ask(Watch::changes).await?;
    let wanted: Vec<_> =
        changes.iter().filter(|change| narrow.matches(&[&change.by, &change.let_in, &change.what])).collect();
    let shown = wanted.iter().take(narrow.top());
    let shown = shown.map(
        |change| json!({ "at": rfc3339(change.at), "by": change.by, "let_in": change.let_in, "what": change.what }),
    );
    Ok(Json(json!({ "total": changes.len(), "matching": wanted.len(), "changes": shown.collect::<Vec<_>>() })))
}

/// `GET /api/v1/config`
pub(super) async fn config(State(console): State<Arc<Console>>) -> Json {
    Json(console.config().shown())
}

/// `GET /api/v1/session`
pub(super) async fn session(Extension(caller): Extension<Caller>) -> Json {
    Json(json!({ "role": caller.role.as_str(), "name": caller.name, "csrf": caller.csrf, "login": caller.login }))
}

/// `GET /api/v1/openapi.json`
pub(super) async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}

/// `POST /api/v1/explain`
pub(super) async fn explain(State(console): State<Arc<Console>>, body: Body) -> Result<Json, Problem> {
    let object = body.object()?;
    object.has_only(&["client", "method", "path", "headers", "attributes", "cost_ms"])?;
    let client = match object.text("client", 64)?.map(str::trim) {
        // `GET /api/v1/key` shows requests of callers without an address so.
        None if object.0.contains_key("client") => None,
        None | Some("") => return Err(Problem::bad("client is missing: write the address")),
        Some(text) => Some(text.parse().map_err(|_| Problem::bad("`client` has to be an address"))?),
    };
    // Names are written as they are shown, so that whoever copies one asks about the caller it stands for.
    let bytes = |text: &str| name_of(text).into_owned();
    let headers = object.texts("headers")?.into_iter();
    let attributes = object.texts("attributes")?.into_iter();
    let mut question = Question {
        client,
        method: bytes(object.text("method", 32)?.unwrap_or("GET")),
        path: AskedPath::new(bytes(object.text("path", 8192)?.unwrap_or("/"))),
        headers: Vec::new(),
        attributes: attributes.map(|(name, value)| (name, bytes(&value))).collect(),
        toll: object.number("cost_ms")?.map(|millis| Span::from_nanos((millis * 1e6) as u64)),
        is_flagged: false,
    };
    headers.for_each(|(name, value)| question.add_header(&name, bytes(&value)));
    question.unmask(&*console.subject);
    let answer = console.subject.explain(&question).await;
    answer.map(Json).ok_or_else(|| Problem::absent("this process decides about no requests"))
}

/// Which key is meant.
#[derive(Debug, Deserialize)]
pub(super) struct WhichKey {
    class: String,
    key: String,
}

/// `GET /api/v1/key`
pub(super) async fn key(State(console): State<Arc<Console>>, query: Asked<WhichKey>) -> Result<Json, Problem> {
    let WhichKey { class, key } = asked(query)?;
    let key = with_prefix(&class, canonical(key.into()));
    let who = Who::new(&class, &key).unmasked(&*console.subject);
    let class = &who.class;
    let known = |watch: &Watch| (watch.episodes(), watch.flags(true), watch.account_class());
    let (episodes, flags, account_class) = console.ask(known).await?;
    let is_meant = |episode: &Episode| {
        *episode.key == *key.as_bytes()
            || *episode.key == *legible(&who.key).as_bytes()
            || mask::is_shown_as(class, &name_of(&String::from_utf8_lossy(&episode.key)), key.as_bytes())
    };
    let episode = episodes.iter().find(|episode| *episode.class == **class && is_meant(episode));
    // Another class may have a key of the same name, which is no account.
    let is_account = *class == account_class;
    let of_account = flags.iter().filter(|flag| is_account && flag.account == key);
    let flags: Vec<_> = of_account.take(20).map(super::flags::shown).collect();
    let mut detail = json!({
        "class": class, "key": key, "flags": flags, "request": who.question.as_ref().map(Question::shown),
        "episode": episode.map(|episode| json!({
            "rejected": episode.count, "first_at": rfc3339(episode.first), "last_at": rfc3339(episode.last),
        })),
    });
    if let (Value::Object(detail), Some(Value::Object(more))) = (&mut detail, console.subject.key(&who).await) {
        detail.extend(more);
    }
    Ok(Json(detail))
}

/// `POST /api/v1/key/clear`
pub(super) async fn clear_key(
    State(console): State<Arc<Console>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json, Problem> {
    let object = body.object()?;
    let (who, key) = who(&object, &console)?;
    let class = &who.class;
    let by = object.text("name", 100)?.unwrap_or(&caller.name);
    let note = object.text("note", 1000)?.unwrap_or_default();
    let place = console.place().await?;
    let forgotten = console.subject.forget(&who).await;
    let how = match forgotten {
        Ok(0) => {
            let detail = "no rule of that class has anything to forget about such a caller: nothing was cleared";
            return Err(Problem::absent(detail));
        }
        Ok(rules) => format!("with {rules} rules"),
        Err(_) => "at this gate, not on Redis".to_owned(),
    };
    let (by, let_in) = (by.to_owned(), caller.let_in());
    let shown = shown(&who);
    let what = format!("cleared {class} \"{shown}\" {how}: {note}");
    place.ask(move |watch| watch.note_change(&by, &let_in, &what)).await?;
    let rules = forgotten.map_err(|why| {
        let detail = format!("cleared at this gate, but Redis may still know it ({why}): try again");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    })?;
    Ok(Json(json!({ "class": class, "key": key, "rules": rules })))
}

/// No exemption is longer than a day: who is to be exempt for good belongs in the rule's `unless`.
const EXEMPTION_MAX_MS: f64 = 86_400_000.0;

/// `POST /api/v1/key/exempt`
pub(super) async fn exempt_key(
    State(console): State<Arc<Console>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Json, Problem> {
    let object = body.object()?;
    let (who, key) = who(&object, &console)?;
    let class = &who.class;
    let for_ms = object.number("for_ms")?.ok_or_else(|| Problem::bad("`for_ms` is missing: 0 ends an exemption"))?;
    if for_ms > EXEMPTION_MAX_MS {
        return Err(Problem::bad("an exemption lasts a day at most; for longer, write `unless` into the rule"));
    }
    let span = (for_ms > 0.0).then(|| Span::from_millis(for_ms as u64));
    let by = object.text("name", 100)?.unwrap_or(&caller.name);
    let note = object.text("note", 1000)?.unwrap_or_default();
    let place = console.place().await?;
    console.subject.exempt(&who, span).map_err(Problem::bad)?;
    let until = span.map(|span| rfc3339(console.watch.calendar().now() + span));
    let shown = shown(&who);
    let what = match span {
        Some(span) => format!("exempted {class} \"{shown}\" for {} s: {note}", span.as_secs_ceil()),
        None => format!("ended the exemption of {class} \"{shown}\": {note}"),
    };
    let (by, let_in) = (by.to_owned(), caller.let_in());
    place.ask(move |watch| watch.note_change(&by, &let_in, &what)).await?;
    Ok(Json(json!({ "class": class, "key": key, "until": until })))
}

/// Whom a change is for, and under which name.
fn who<'a>(object: &'a super::body::Object, console: &Console) -> Result<(Who, &'a str), Problem> {
    let missing = |name: &str| Problem::bad(format!("`{name}` is missing"));
    let class = object.text("class", 255)?.ok_or_else(|| missing("class"))?;
    let key = object.text("key", KEY_CHARS_MAX)?.ok_or_else(|| missing("key"))?;
    Ok((Who::new(class, key).unmasked(&*console.subject), key))
}

/// The name of a caller as it may be shown.
fn shown(who: &Who) -> String {
    legible(&mask::key(&who.class, &who.key)).into_owned()
}
