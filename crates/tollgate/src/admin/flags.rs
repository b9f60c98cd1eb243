//! Flags, and reports of refusals.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Number, Value, json};
use tollgate_core::class::KeySink;
use tollgate_gatekeeper::names::Name;
use tollgate_gatekeeper::truncation::is_cut;

use super::Console;
use super::api::{Asked, Json, Narrow, TOP_MAX, asked};
use super::body::{Body, REPORT_BYTES_MAX};
use super::guard::{Caller, Peer};
use super::problem::Problem;
use crate::watch::{Entry, Flag, NAME_BYTES_MAX, NotKept, canonical, legible, name_of, rfc3339};

/// Reports that are read at once; one network has at most half of them. Each may take 100 MB while it is parsed.
pub(super) const REPORTS_AT_ONCE_MAX: usize = 4;
/// How long a report waits for its turn. Until then nothing of it is read but what the system has received already.
const TURN_MAX: Duration = Duration::from_secs(10);

/// The id of a report is at most this long.
const ID_BYTES_MAX: usize = 128;

/// `GET /api/v1/flags`
pub(super) async fn flags(State(console): State<Arc<Console>>, query: Asked<Narrow>) -> Result<Json, Problem> {
    let narrow = asked(query)?;
    let history = narrow.wants_history();
    let (flags, account_class) = console.ask(move |watch| (watch.flags(history), watch.account_class())).await?;
    let wanted = |flag: &&Flag| {
        let note = flag.cleared.as_ref().map_or("", |cleared| &cleared.note);
        narrow.matches(&[&flag.account, note])
    };
    let most = if narrow.has_top() { narrow.top() } else { TOP_MAX };
    let wanted: Vec<_> = flags.iter().filter(wanted).collect();
    let shown: Vec<_> = wanted.iter().take(most).map(|flag| shown(flag)).collect();
    let (total, matching) = (flags.len(), wanted.len());
    Ok(Json(json!({ "account_class": account_class, "total": total, "matching": matching, "flags": shown })))
}

/// A flag as programs see it.
pub(super) fn shown(flag: &Flag) -> Value {
    let cleared = flag.cleared.as_ref();
    json!({
        "account": flag.account,
        "flagged_at": rfc3339(flag.flagged_at),
        "rejected": flag.rejected,
        "cleared_at": cleared.map(|cleared| rfc3339(cleared.at)),
        "cleared_by": cleared.map(|cleared| &cleared.by),
        "note": cleared.map(|cleared| &cleared.note),
    })
}

/// What may be said with a clearing in the query, for clients that cannot send a body with it.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Said {
    name: Option<String>,
    note: Option<String>,
}

/// `DELETE /api/v1/flags/{account}`
pub(super) async fn clear(
    State(console): State<Arc<Console>>,
    Extension(caller): Extension<Caller>,
    Path(account): Path<String>,
    query: Asked<Said>,
    body: Body,
) -> Result<Json, Problem> {
    let (said, object) = (asked(query)?, body.object()?);
    let account = canonical(account.into()).into_owned();
    let let_in = caller.let_in();
    let name = object.text("name", 100)?.map(str::to_owned).or(said.name).unwrap_or(caller.name);
    let note = object.text("note", 1000)?.map(str::to_owned).or(said.note).unwrap_or_default();
    if note.trim().is_empty() || note.chars().count() > 1000 || name.chars().count() > 100 {
        return Err(Problem::bad("say why in `note`: whoever looks at this account next wants to know"));
    }
    let cleared = console.ask(move |watch| {
        let cleared = watch.clear(&account, &name, &note)?;
        if cleared.is_some() {
            watch.note_change(&name, &let_in, &format!("cleared the flag of \"{account}\": {note}"));
        }
        Ok::<_, NotKept>(cleared)
    });
    match cleared.await? {
        Ok(Some(flag)) => Ok(Json(shown(&flag))),
        Ok(None) => Err(Problem::absent("that account is not flagged")),
        Err(error) => Err(not_kept(&error)),
    }
}

#[derive(Deserialize)]
struct Report<'a> {
    id: String,
    #[serde(borrow)]
    entries: Vec<Reported<'a>>,
}

#[derive(Deserialize)]
struct Reported<'a> {
    #[serde(borrow)]
    class: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
    rejected: Number,
}

/// `POST /api/v1/rejections`
pub(super) async fn rejections(
    State(console): State<Arc<Console>>,
    peer: Option<Extension<Peer>>,
    request: Request,
) -> Result<Response, Problem> {
    let Some(turn) = console.reports.wait(Peer::address(peer), TURN_MAX).await else {
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too many reports at once: send it again later"));
    };
    let body = Body::<REPORT_BYTES_MAX>::from_request(request, &()).await?;
    // A report can be large, so it is taken apart there too: others need not wait for it.
    let taken = console.ask(move |watch| {
        let (id, entries) = read(&body.0)?;
        let reported = watch.report(&id, &entries).map_err(|error| not_kept(&error))?;
        let count = entries.len();
        drop(entries);
        drop((body, turn));
        Ok::<_, Problem>((id, count, reported))
    });
    let (id, count, reported) = taken.await??;
    let answer = json!({ "id": id, "entries": count, "repeated": reported.repeated, "flagged": reported.flagged });
    Ok((StatusCode::ACCEPTED, Json(answer)).into_response())
}

fn read(body: &[u8]) -> Result<(String, Vec<Entry<'_>>), Problem> {
    let Report { id, entries } =
        serde_json::from_slice(body).map_err(|error| Problem::bad(format!("this is no report: {error}")))?;
    if !(1..=ID_BYTES_MAX).contains(&id.len()) {
        return Err(Problem::bad(format!("`id` has 1 to {ID_BYTES_MAX} bytes, and no two reports have the same")));
    }
    Ok((id, entries.into_iter().map(entry).collect()))
}

/// What is not positive is ignored and counted. Long names are cut as those of requests are, unless they were cut before.
fn entry(Reported { class, key, rejected }: Reported<'_>) -> Entry<'_> {
    let name = name_of(&key);
    let key = if name.len() < NAME_BYTES_MAX || is_cut(&name, NAME_BYTES_MAX) {
        canonical(key)
    } else {
        let cut = Name::of(|writer| writer.write(&name));
        Cow::Owned(legible(cut.as_bytes()).into_owned())
    };
    Entry { class, key, count: rejected.as_u64().unwrap_or(0) }
}

fn not_kept(NotKept(error): &NotKept) -> Problem {
    let detail = format!("this could not be kept, and did not happen: {error}; send it again");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_and_nonsense_is_none() {
        let (id, entries) = read(
            br#"{"id": "r1", "entries": [{"class": "user", "key": "u1", "rejected": 12},
            {"class": "user", "key": "u2", "rejected": -1}, {"class": "user", "key": "u3", "rejected": 1.5}]}"#,
        )
        .unwrap();
        assert_eq!(id, "r1");
        assert_eq!(entries.iter().map(|entry| entry.count).collect::<Vec<_>>(), [12, 0, 0]);
        let key_of = |key: &str| {
            let text = json!({ "id": "r", "entries": [{ "class": "user", "key": key, "rejected": 1 }] }).to_string();
            read(text.as_bytes()).unwrap().1[0].key.clone().into_owned()
        };
        // However a name is written.
        let whole = r"\xff".repeat(254);
        for (key, name) in [(r"caf\xE9", r"caf\xe9"), (r"\x61", "a"), (&*whole, &*whole)] {
            assert_eq!(key_of(key), name);
        }
        // A long one is cut as those of requests are, once.
        let [one, other] = [255, 256].map(|bytes| key_of(&r"\xff".repeat(bytes)));
        assert!(is_cut(&name_of(&one), NAME_BYTES_MAX) && is_cut(&name_of(&other), NAME_BYTES_MAX) && one != other);
        assert_eq!(key_of(&one), one);
        for text in ["", "[]", "{}", r#"{"id": "", "entries": []}"#, r#"{"id": 1, "entries": []}"#, r#"{"id": "r"}"#] {
            assert!(read(text.as_bytes()).is_err(), "{text}");
        }
        let long = format!(r#"{{"id": "{}", "entries": []}}"#, "x".repeat(129));
        assert!(read(long.as_bytes()).is_err());
    }
}
