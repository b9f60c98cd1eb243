//! The commands `CL.THROTTLE`, whose limit comes with the call, and `THROTTLE`, which uses a rule of the settings. The
//! reply is that of redis-cell: five numbers.

use std::borrow::Cow;

use tollgate_core::cell::{Cell, CellReply};
use tollgate_core::decision::Verdict;
use tollgate_core::time::Span;
use tollgate_wire::resp::Replies;

use super::session::Arguments;
use crate::doors::metrics::Count;
use crate::doors::request::DescribedRequest;
use crate::doors::station::Station;
use crate::gate::{Inquiry, NoRuling, OnHold, Ruling};
use crate::settings::DEFAULT_DOMAIN;

/// The class of the keys of `CL.THROTTLE` in the watch.
const CALL_CLASS: &str = "cl.throttle";

/// `CL.THROTTLE key max_burst count period [quantity]`, with the replies of redis-cell.
pub(super) fn by_call(station: &Station, arguments: Arguments<'_>, replies: &mut Replies<'_>) {
    match decide(station, arguments) {
        Ok(reply) => write(&reply, replies),
        Err(message) => {
            station.count(Count::Malformed);
            replies.error(&format!("Cell error: {message}"));
        }
    }
}

/// Decides on `CL.THROTTLE`. The error messages are those of redis-cell.
fn decide(station: &Station, arguments: Arguments<'_>) -> Result<CellReply, String> {
    if !(5..=6).contains(&arguments.count()) {
        return Err(
            "Store error: Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]".to_owned()
        );
    }
    let [burst, count, period] = [number(arguments, 2)?, number(arguments, 3)?, number(arguments, 4)?];
    let quantity = if arguments.count() == 6 { number(arguments, 5)? } else { 1 };
    let cell = Cell::new(burst, count, period).map_err(|_| "Store error: Zero rates are not supported".to_owned())?;
    let key = arguments.at(1);
    let reply = station.limits.cells.throttle(key, cell, quantity, station.decider.now());
    station.decider.count_call();
    if reply.is_overpaid {
        return Err("Store error: Error while setting key expire".to_owned());
    }
    if reply.is_limited {
        station.decider.refused_by_call(CALL_CLASS, key);
    }
    station.count(if reply.is_limited { Count::Refused } else { Count::Admitted });
    Ok(reply)
}

fn number(arguments: Arguments<'_>, index: usize) -> Result<i64, String> {
    let text = std::str::from_utf8(arguments.at(index)).ok().and_then(|text| text.parse().ok());
    text.ok_or_else(|| format!("Store error: Couldn't parse as integer: {:.128}", arguments.text(index)))
}

/// `THROTTLE rule key [quantity]` uses a rule of the settings. With the arguments of `CL.THROTTLE` it is an alias of
/// it.
pub(super) async fn throttle(station: &Station, arguments: Arguments<'_>, replies: &mut Replies<'_>) {
    match arguments.count() {
        5 | 6 => by_call(station, arguments, replies),
        3 | 4 => match by_rule(station, arguments).await {
            Ok(reply) => write(&reply, replies),
            Err(message) => {
                station.count(Count::Malformed);
                replies.error(&message);
            }
        },
        _ => replies.error("ERR wrong number of arguments for 'throttle' command: THROTTLE rule key [quantity]"),
    }
}

/// Decides by the rule that `THROTTLE` names.
async fn by_rule(station: &Station, arguments: Arguments<'_>) -> Result<CellReply, String> {
    let count = match arguments.count() {
        4 => arguments.text(3).parse().map_err(|_| "ERR value is not an integer or out of range".to_owned())?,
        _ => 1,
    };
    let (name, key) = (arguments.text(1), key_of(arguments)?);
    let ask = |domain, rule| {
        (Inquiry { domain, count, cpu: None, factor: None, has_key: true, on_hold: OnHold::Refuse }, rule)
    };
    // A rule of another domain is written `domain/rule`.
    let attempts = [Some(ask(DEFAULT_DOMAIN, &*name)), name.split_once('/').map(|(domain, rule)| ask(domain, rule))];
    for (inquiry, rule) in attempts.into_iter().flatten() {
        let request = DescribedRequest::new(Some(rule), Some(&key), &[]).map_err(|why| format!("ERR {why}"))?;
        match station.decider.decide(inquiry, &request).await {
            Ok(ruling) => return Ok(settled(station, ruling)),
            Err(NoRuling::UnknownRule | NoRuling::UnknownDomain) => {}
            Err(_) => return Err(format!("ERR the class of the rule '{name:.128}' has no such key")),
        }
    }
    Err(format!("ERR no rule '{name:.128}'"))
}

/// The key, which must be UTF-8.
fn key_of(arguments: Arguments<'_>) -> Result<Cow<'_, str>, String> {
    std::str::from_utf8(arguments.at(2)).map(Cow::Borrowed).map_err(|_| "ERR the key is not UTF-8".to_owned())
}

/// Settles an admitted request and returns the reply. Redis clients do not report the end of a request, so a budget is
/// charged the expected cost, and requests in flight are not counted.
fn settled(station: &Station, ruling: Ruling) -> CellReply {
    let (decision, is_limited) = (&ruling.decision, ruling.decision.verdict.is_refusal());
    let info = decision.info.unwrap_or_default();
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let retry_after = match decision.verdict {
        Verdict::Refuse(_) | Verdict::RefuseUntilRelease => secs(decision.verdict.retry_after(ruling.at)),
        _ => -1,
    };
    let reply = CellReply {
        is_limited,
        limit: whole(ruling.figures().map_or(0, |limit| limit.quota)),
        remaining: if is_limited { 0 } else { whole(info.remaining) },
        retry_after_secs: retry_after,
        reset_after_secs: secs(info.clear),
        is_overpaid: false,
    };
    station.count(if is_limited { Count::Refused } else { Count::Admitted });
    if !is_limited {
        station.decider.settle(ruling.ticket(), None);
    }
    reply
}

fn secs(span: Span) -> i64 {
    i64::try_from(span.as_secs_ceil()).unwrap_or(i64::MAX)
}

fn write(reply: &CellReply, replies: &mut Replies<'_>) {
    let CellReply { is_limited, limit, remaining, retry_after_secs, reset_after_secs, .. } = *reply;
    replies.array(5);
    for number in [i64::from(is_limited), limit, remaining, retry_after_secs, reset_after_secs] {
        replies.integer(number);
    }
}
