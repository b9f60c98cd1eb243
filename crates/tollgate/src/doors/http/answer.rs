//! The response to a check: the fields of a decision, those of Sharkey's LimitInfo, rate limit headers and a ticket.

use tollgate_core::band::Band;
use tollgate_core::time::Span;
use tollgate_gatekeeper::limit_status::{self, Field};

use super::door_reply::DoorReply;
use super::problem::DoorProblem;
use crate::doors::station::Station;
use crate::doors::tickets::TicketId;
use crate::gate::{Refusal, Ruling};

/// `remaining` of a request without a limit: the largest integer that JavaScript represents exactly.
const UNLIMITED: u64 = (1 << 53) - 1;
/// The usual maximum size of the values of the rate limit headers, in bytes.
const FIELDS_BYTES: usize = 128;

/// The rate limit headers, with their values in one piece of memory.
#[derive(Default)]
struct LimitFields {
    values: String,
    /// Each field with the end of its value.
    ends: [Option<(Field, usize)>; 5],
}

impl LimitFields {
    /// Adds a field. Its value is ASCII.
    fn push(&mut self, field: Field, value: &[u8]) {
        if self.values.capacity() == 0 {
            self.values.reserve(FIELDS_BYTES);
        }
        self.values.push_str(std::str::from_utf8(value).unwrap_or_default());
        if let Some(free) = self.ends.iter_mut().find(|end| end.is_none()) {
            *free = Some((field, self.values.len()));
        }
    }

    fn iter(&self) -> impl Iterator<Item = (Field, &str)> {
        let mut start = 0;
        self.ends.iter().flatten().map(move |(field, end)| {
            let value = &self.values[start..*end];
            start = *end;
            (*field, value)
        })
    }
}

/// The response to a check, before serialisation.
pub(super) struct CheckAnswer {
    at_ms: u64,
    decision: &'static str,
    rule: Option<String>,
    reason: &'static str,
    hold_ms: u64,
    retry_after_ms: u64,
    is_blocked: bool,
    remaining: Option<u64>,
    reset: Span,
    clear: Span,
    level: u8,
    band: Band,
    fields: LimitFields,
    retry_after_secs: Option<u64>,
    /// The ticket for reporting the end of the request.
    pub(super) ticket: Option<TicketId>,
}

impl CheckAnswer {
    /// The response with the decision of the rules.
    pub(super) fn of(ruling: &Ruling) -> Self {
        let (decision, now) = (&ruling.decision, ruling.at);
        let is_blocked = decision.verdict.is_refusal();
        let info = decision.info.unwrap_or_default();
        let mut fields = LimitFields::default();
        if let Some(mut standing) = ruling.standing() {
            if is_blocked {
                standing.remaining = 0;
            }
            limit_status::write_fields(standing, is_blocked, |field, value| fields.push(field, value));
        }
        let retry_after = decision.verdict.retry_after(now);
        let has_end = is_blocked && !retry_after.is_zero();
        Self {
            at_ms: Station::unix_ms(),
            decision: decision.verdict.as_str(),
            rule: ruling.rule().map(str::to_owned),
            reason: decision.reason.as_str(),
            hold_ms: decision.verdict.hold(now).as_millis_ceil(),
            retry_after_ms: retry_after.as_millis_ceil(),
            is_blocked,
            remaining: decision.info.map(|info| if is_blocked { 0 } else { info.remaining }),
            reset: info.reset,
            clear: info.clear,
            level: decision.level,
            band: decision.band,
            fields,
            retry_after_secs: has_end.then(|| retry_after.as_secs_ceil().max(1)),
            ticket: None,
        }
    }

    /// Changes the response to an admission, after the hold of a rule.
    pub(super) fn goes_on(&mut self) {
        self.decision = "admit";
        self.hold_ms = 0;
    }

    /// Changes the response to a refusal by the queue.
    pub(super) fn refused_by_queue(self, refusal: &Refusal) -> Self {
        let retry_after = refusal.retry_after.unwrap_or(Span::ZERO);
        Self {
            decision: "refuse",
            rule: None,
            reason: "queue",
            retry_after_ms: retry_after.as_millis_ceil(),
            is_blocked: true,
            remaining: Some(0),
            reset: retry_after,
            clear: retry_after,
            fields: LimitFields::default(),
            retry_after_secs: Some(retry_after.as_secs_ceil().max(1)),
            ..self
        }
    }

    /// The response to a check with the factor 0.
    pub(super) fn unlimited(rule: Option<&str>) -> Self {
        Self {
            at_ms: Station::unix_ms(),
            decision: "admit",
            rule: rule.map(str::to_owned),
            reason: "not-limited",
            hold_ms: 0,
            retry_after_ms: 0,
            is_blocked: false,
            remaining: Some(UNLIMITED),
            reset: Span::ZERO,
            clear: Span::ZERO,
            level: 0,
            band: Band::Normal,
            fields: LimitFields::default(),
            retry_after_secs: None,
            ticket: None,
        }
    }

    /// Writes the response as JSON.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut json = JsonWriter { out, digits: itoa::Buffer::new() };
        json.raw("{\"at_ms\": ");
        json.number(self.at_ms);
        json.raw(", \"decision\": \"");
        json.raw(self.decision);
        json.raw("\", \"rule\": ");
        json.text_or_null(self.rule.as_deref());
        json.raw(", \"reason\": \"");
        json.raw(self.reason);
        json.raw("\"");
        json.field("hold_ms", self.hold_ms);
        json.field("retry_after_ms", self.retry_after_ms);
        json.raw(", \"remaining\": ");
        match self.remaining {
            Some(remaining) => json.number(remaining),
            None => json.raw("null"),
        }
        json.field("reset_ms", self.reset.as_millis_ceil());
        json.field("clear_ms", self.clear.as_millis_ceil());
        json.field("level", self.level.into());
        json.raw(", \"band\": \"");
        json.raw(self.band.as_str());
        json.raw(if self.is_blocked { "\", \"blocked\": true" } else { "\", \"blocked\": false" });
        for (name, span) in [("reset", self.reset), ("fullReset", self.clear)] {
            let millis = span.as_millis_ceil();
            json.raw(", \"");
            json.raw(name);
            json.raw("Ms\": ");
            json.number(millis);
            json.raw(", \"");
            json.raw(name);
            json.raw("Sec\": ");
            json.number(millis.div_ceil(1000));
        }
        json.raw(", \"ticket\": ");
        match &self.ticket {
            Some(ticket) => {
                json.raw("\"");
                ticket.write(json.out);
                json.raw("\"");
            }
            None => json.raw("null"),
        }
        self.write_headers(&mut json);
        json.raw("}");
    }

    /// The header fields for the application's own response.
    fn write_headers(&self, json: &mut JsonWriter<'_>) {
        json.raw(", \"headers\": {");
        let mut between = "";
        for (field, value) in self.fields.iter() {
            json.raw(between);
            json.raw("\"");
            json.raw(field.name());
            json.raw("\": ");
            json.text(value);
            between = ", ";
        }
        if let Some(secs) = self.retry_after_secs {
            json.raw(between);
            json.raw("\"retry-after\": \"");
            json.number(secs);
            json.raw("\"");
        }
        json.raw("}");
    }

    /// Responds to a call with one check.
    pub(super) fn write_reply(&self, reply: &mut DoorReply) {
        self.fields.iter().for_each(|(field, value)| reply.field(field.name(), value.as_bytes()));
        if let Some(secs) = self.retry_after_secs {
            reply.number_field("retry-after", secs);
        }
        reply.json(|out| self.write(out));
    }
}

impl DoorProblem {
    /// Writes the problem as an element of an array of responses.
    pub(super) fn write_element(&self, out: &mut Vec<u8>) {
        let mut json = JsonWriter { out, digits: itoa::Buffer::new() };
        json.raw("{\"error\": ");
        json.text(self.detail());
        json.raw("}");
    }
}

struct JsonWriter<'a> {
    out: &'a mut Vec<u8>,
    digits: itoa::Buffer,
}

impl JsonWriter<'_> {
    fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    fn number(&mut self, number: u64) {
        self.out.extend_from_slice(self.digits.format(number).as_bytes());
    }

    fn field(&mut self, name: &str, number: u64) {
        self.raw(", \"");
        self.raw(name);
        self.raw("\": ");
        self.number(number);
    }

    fn text(&mut self, text: &str) {
        serde_json::to_writer(&mut *self.out, text).expect("writing into memory cannot fail");
    }

    fn text_or_null(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text(text),
            None => self.raw("null"),
        }
    }
}
