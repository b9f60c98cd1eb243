//! The response to a check (`POST /v1/check`): the fields of a decision, those of LimitInfo in Sharkey, whose limiter
//! the door can replace, rate limit headers and a ticket. `docs/door-http.md` describes the fields.

use std::io::{self, Write};

use serde::{Serialize, Serializer};
use serde_json::ser::Formatter;
use tollgate_core::band::Band;
use tollgate_core::time::Span;
use tollgate_gatekeeper::limit_status;

use super::door_reply::DoorReply;
use crate::doors::station::Station;
use crate::doors::tickets::TicketId;
use crate::gate::{Refusal, Ruling};

/// `remaining` of a request without a limit: the largest integer that JavaScript represents exactly.
const UNLIMITED: u64 = (1 << 53) - 1;
/// The usual maximum size of the values of the rate limit headers, in bytes.
const FIELDS_BYTES: usize = 128;

/// The rate limit headers, which the application can add to its own response. One allocation has all values.
#[derive(Default)]
struct LimitFields {
    /// All values, one after the other.
    values: String,
    /// The name of each field, and the end of its value in `values`.
    ends: [Option<(&'static str, usize)>; 6],
}

impl LimitFields {
    /// Adds a field. Its value is ASCII.
    fn push(&mut self, name: &'static str, value: &[u8]) {
        if self.values.capacity() == 0 {
            self.values.reserve(FIELDS_BYTES);
        }
        self.values.push_str(std::str::from_utf8(value).unwrap_or_default());
        if let Some(free) = self.ends.iter_mut().find(|end| end.is_none()) {
            *free = Some((name, self.values.len()));
        }
    }

    fn push_retry_after(&mut self, wait: Span) {
        self.push("retry-after", itoa::Buffer::new().format(wait.as_secs_ceil().max(1)).as_bytes());
    }

    fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let mut start = 0;
        let ends = self.ends.iter().flatten();
        ends.map(move |(name, end)| (*name, &self.values[std::mem::replace(&mut start, *end)..*end]))
    }
}

impl Serialize for LimitFields {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        output.collect_map(self.iter())
    }
}

/// The times of a limit, written with Tollgate's and with Sharkey's names.
#[derive(Default)]
struct ResetTimes {
    /// The time until one more request fits.
    reset: Span,
    /// The time until the full quota is available.
    clear: Span,
}

impl Serialize for ResetTimes {
    fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
        let (reset, clear) = (self.reset.as_millis_ceil(), self.clear.as_millis_ceil());
        let (reset_secs, clear_secs) = (reset.div_ceil(1000), clear.div_ceil(1000));
        let own = [("reset_ms", reset), ("clear_ms", clear)];
        let sharkey =
            [("resetMs", reset), ("resetSec", reset_secs), ("fullResetMs", clear), ("fullResetSec", clear_secs)];
        output.collect_map(own.into_iter().chain(sharkey))
    }
}

/// The response to one check. The field names are those of the JSON.
#[derive(Default, Serialize)]
pub(super) struct CheckAnswer {
    at_ms: u64,
    decision: &'static str,
    rule: Option<String>,
    reason: &'static str,
    hold_ms: u64,
    retry_after_ms: u64,
    remaining: Option<u64>,
    level: u8,
    band: &'static str,
    #[serde(rename = "blocked")]
    is_blocked: bool,
    #[serde(flatten)]
    times: ResetTimes,
    /// The ticket for reporting the end of the request.
    pub(super) ticket: Option<TicketId>,
    headers: LimitFields,
}

impl CheckAnswer {
    /// The response with the decision of the rules.
    pub(super) fn of(ruling: &Ruling) -> Self {
        let (decision, now) = (&ruling.decision, ruling.at);
        let is_blocked = decision.verdict.is_refusal();
        let info = decision.info.unwrap_or_default();
        let mut headers = LimitFields::default();
        if let Some(mut standing) = ruling.standing() {
            if is_blocked {
                standing.remaining = 0;
            }
            limit_status::write_fields(standing, is_blocked, |field, value| headers.push(field.as_str(), value));
        }
        let retry_after = decision.verdict.retry_after(now);
        if is_blocked && !retry_after.is_zero() {
            headers.push_retry_after(retry_after);
        }
        Self {
            at_ms: Station::unix_ms(),
            decision: decision.verdict.as_str(),
            rule: ruling.rule().map(str::to_owned),
            reason: decision.reason.as_str(),
            hold_ms: decision.verdict.hold(now).as_millis_ceil(),
            retry_after_ms: retry_after.as_millis_ceil(),
            remaining: decision.info.map(|info| if is_blocked { 0 } else { info.remaining }),
            level: decision.level,
            band: decision.band.as_str(),
            is_blocked,
            times: ResetTimes { reset: info.reset, clear: info.clear },
            ticket: None,
            headers,
        }
    }

    /// Changes the response of a held request to an admission, after the hold.
    pub(super) fn admit_after_hold(&mut self) {
        self.decision = "admit";
        self.hold_ms = 0;
    }

    /// Changes the response to a refusal by the queue.
    pub(super) fn refused_by_queue(self, refusal: &Refusal) -> Self {
        let retry_after = refusal.retry_after.unwrap_or(Span::ZERO);
        let mut headers = LimitFields::default();
        headers.push_retry_after(retry_after);
        Self {
            decision: "refuse",
            rule: None,
            reason: "queue",
            retry_after_ms: retry_after.as_millis_ceil(),
            remaining: Some(0),
            is_blocked: true,
            times: ResetTimes { reset: retry_after, clear: retry_after },
            headers,
            ..self
        }
    }

    /// The response to a check with the factor 0, which means no limit.
    pub(super) fn unlimited(rule: Option<&str>) -> Self {
        Self {
            at_ms: Station::unix_ms(),
            decision: "admit",
            rule: rule.map(str::to_owned),
            reason: "not-limited",
            remaining: Some(UNLIMITED),
            band: Band::Normal.as_str(),
            ..Self::default()
        }
    }

    /// Writes the response as JSON.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut json = serde_json::Serializer::with_formatter(out, Spaced);
        self.serialize(&mut json).expect("writing into memory cannot fail");
    }

    /// Makes this the response to a call with a single check.
    pub(super) fn write_reply(&self, reply: &mut DoorReply) {
        self.headers.iter().for_each(|(name, value)| reply.field(name, value.as_bytes()));
        reply.json(|out| self.write(out));
    }
}

/// Formats JSON with a space after each comma and colon of an object.
struct Spaced;

impl Formatter for Spaced {
    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, is_first: bool) -> io::Result<()> {
        if is_first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(b": ")
    }
}
