//! Handlers of the admin API for flags, and for reports of refusals.
//!
//! A flag is a mark on an account that was refused too often. The watch sets it, from the refusals of this gate and
//! from those that other programs report with `POST /api/v1/rejections`. An operator clears it.

use std::borrow::Cow;
use std::time::Duration;

use axum::extract::{FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_core::class::KeySink;
use tollgate_gatekeeper::names::Name;
use tollgate_gatekeeper::truncation::is_cut;

use super::ConsoleState;
use super::api::{JsonResult, ListFilter, QueryResult, TOP_MAX, parse_query};
use super::body::{Body, REPORT_BYTES_MAX};
use super::guard::{Identity, PeerAddress};
use super::problem::AdminProblem;
use super::report_json::{RejectionEntry, RejectionReport};
use crate::watch::{Entry, Flag, NAME_BYTES_MAX, NotPersisted, Watch, canonical_key, escape_key, unescape_key};

/// Reports processed at once; one network has at most half of them. Parsing one may take 100 MB of memory.
pub(super) const REPORTS_AT_ONCE_MAX: usize = 4;
/// Longest wait of a report until fewer than [`REPORTS_AT_ONCE_MAX`] are processed. Until then its body stays in the
/// receive buffer of the socket.
const TURN_WAIT_MAX: Duration = Duration::from_secs(10);

/// `GET /api/v1/flags`: the flags, and the limit (`threshold` refusals within `window`) beyond which they are set.
pub(super) async fn flags(State(console): ConsoleState, query: QueryResult<ListFilter>) -> JsonResult {
    let filter = parse_query(query)?;
    let history = filter.wants_history();
    let read = move |watch: &Watch| (watch.flags(history), watch.account_class(), watch.flagging());
    let (flags, account_class, (threshold, window)) = console.run_on_watch(read).await?;
    let wanted = |flag: &&Flag| {
        let note = flag.cleared.as_ref().map_or("", |cleared| &cleared.note);
        filter.matches(&[&flag.account, note])
    };
    let wanted: Vec<_> = flags.iter().filter(wanted).collect();
    let shown: Vec<_> = wanted.iter().take(filter.top(TOP_MAX)).map(|flag| flag.shown()).collect();
    Ok(Json(json!({
        "account_class": account_class,
        "threshold": threshold,
        "window_ms": window.as_millis_ceil(),
        "total": flags.len(),
        "matching": wanted.len(),
        "flags": shown,
    })))
}

/// Query parameters of [`clear`], for clients that cannot send a body with `DELETE`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ClearQuery {
    name: Option<String>,
    note: Option<String>,
}

/// `DELETE /api/v1/flags/{account}`: clears a flag.
pub(super) async fn clear(
    State(console): ConsoleState,
    Extension(identity): Extension<Identity>,
    Path(account): Path<String>,
    query: QueryResult<ClearQuery>,
    body: Body,
) -> JsonResult {
    let (parameters, mut object) = (parse_query(query)?, body.object()?);
    for (field, text) in [("name", parameters.name), ("note", parameters.note)] {
        let value = object.0.entry(field).or_insert(Value::Null);
        if value.is_null() {
            *value = text.into();
        }
    }
    let account = canonical_key(account.into()).into_owned();
    let authentication = identity.authentication();
    let name = object.text("name", 100)?.map_or(identity.name, str::to_owned);
    let note = object.text("note", 1000)?.unwrap_or_default().to_owned();
    if note.trim().is_empty() {
        return Err(AdminProblem::bad(
            "`note` is missing: send the reason as `{\"note\": \"...\"}`, for the next operator who looks at this account",
        ));
    }
    let cleared = console.run_on_watch(move |watch| {
        let cleared = watch.clear(&account, &name, &note)?;
        if cleared.is_some() {
            watch.record_change(&name, &authentication, &format!("cleared the flag of \"{account}\": {note}"));
        }
        Ok::<_, NotPersisted>(cleared)
    });
    match cleared.await? {
        Ok(Some(flag)) => Ok(Json(flag.shown())),
        Ok(None) => Err(AdminProblem::absent("that account is not flagged")),
        Err(error) => Err(not_persisted(&error)),
    }
}

/// `POST /api/v1/rejections`: counts the refusals that another program reports.
pub(super) async fn rejections(
    State(console): ConsoleState,
    peer: Option<Extension<PeerAddress>>,
    request: Request,
) -> Result<Response, AdminProblem> {
    let Some(turn) = console.reports.wait(PeerAddress::address(peer), TURN_WAIT_MAX).await else {
        return Err(AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, "too many reports at once: try again later"));
    };
    let body = Body::<REPORT_BYTES_MAX>::from_request(request, &()).await?;
    // Parsing a large report takes long enough to delay other requests, so it also runs on the blocking thread.
    let counted = console.run_on_watch(move |watch| {
        let (id, entries) = parse_report(&body.0)?;
        let reported = watch.report(&id, &entries).map_err(|error| not_persisted(&error))?;
        let count = entries.len();
        // The memory is freed before the next report gets its turn.
        drop(entries);
        drop((body, turn));
        Ok::<_, AdminProblem>((id, count, reported))
    });
    let (id, count, reported) = counted.await??;
    let answer = json!({ "id": id, "entries": count, "repeated": reported.repeated, "flagged": reported.flagged });
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

/// The ID of a report, and its entries.
fn parse_report(body: &[u8]) -> Result<(String, Vec<Entry<'_>>), AdminProblem> {
    let RejectionReport { id, entries } = RejectionReport::parse(body).map_err(AdminProblem::bad)?;
    Ok((id, entries.into_iter().map(entry).collect()))
}

/// Converts an entry of a report for the watch. Counts that are not positive whole numbers become 0: the watch skips
/// them, and counts them as ignored. Long keys are truncated like those of requests, unless they already were.
fn entry(RejectionEntry { class, key, rejected }: RejectionEntry<'_>) -> Entry<'_> {
    let name = unescape_key(&key);
    let key = if name.len() < NAME_BYTES_MAX || is_cut(&name, NAME_BYTES_MAX) {
        canonical_key(key)
    } else {
        let cut = Name::of(|writer| writer.write(&name));
        Cow::Owned(escape_key(cut.as_bytes()).into_owned())
    };
    Entry { class, key, count: rejected.as_u64().unwrap_or(0) }
}

fn not_persisted(NotPersisted(error): &NotPersisted) -> AdminProblem {
    let detail = format!("cannot write to the journal, nothing was changed: {error}; try again");
    AdminProblem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_reports_are_parsed_and_others_rejected() {
        let (id, entries) = parse_report(
            br#"{"id": "r1", "entries": [{"class": "user", "key": "u1", "rejected": 12},
            {"class": "user", "key": "u2", "rejected": -1}, {"class": "user", "key": "u3", "rejected": 1.5}]}"#,
        )
        .unwrap();
        assert_eq!(id, "r1");
        assert_eq!(entries.iter().map(|entry| entry.count).collect::<Vec<_>>(), [12, 0, 0]);
        let key_of = |key: &str| {
            let text = json!({ "id": "r", "entries": [{ "class": "user", "key": key, "rejected": 1 }] }).to_string();
            parse_report(text.as_bytes()).unwrap().1[0].key.clone().into_owned()
        };
        // Every spelling of a key is accepted.
        let whole = r"\xff".repeat(254);
        for (key, name) in [(r"caf\xE9", r"caf\xe9"), (r"\x61", "a"), (&*whole, &*whole)] {
            assert_eq!(key_of(key), name);
        }
        // Long keys are truncated like those of requests, but only once.
        let [one, other] = [255, 256].map(|bytes| key_of(&r"\xff".repeat(bytes)));
        assert!(
            is_cut(&unescape_key(&one), NAME_BYTES_MAX)
                && is_cut(&unescape_key(&other), NAME_BYTES_MAX)
                && one != other
        );
        assert_eq!(key_of(&one), one);
        for text in ["", "[]", "{}", r#"{"id": "", "entries": []}"#, r#"{"id": 1, "entries": []}"#, r#"{"id": "r"}"#] {
            assert!(parse_report(text.as_bytes()).is_err(), "{text}");
        }
        let long = format!(r#"{{"id": "{}", "entries": []}}"#, "x".repeat(129));
        assert!(parse_report(long.as_bytes()).is_err());
    }
}
