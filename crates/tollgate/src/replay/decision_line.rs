//! The output of `tollgate replay --decisions`: a line of JSON for each request, with the same fields in the same order
//! every time.

use tollgate_core::band::Band;
use tollgate_core::decision::Decision;
use tollgate_core::time::{Moment, Span};

/// Writes a line for each decision.
pub(super) struct DecisionLine {
    /// The names of the rules as JSON strings, by index.
    rules: Vec<String>,
    digits: itoa::Buffer,
}

impl DecisionLine {
    /// For rules with these names, by their indices.
    pub(super) fn new<'a>(rules: impl Iterator<Item = &'a str>) -> Self {
        let json = |name| serde_json::to_string(name).expect("a text is always JSON");
        Self { rules: rules.map(json).collect(), digits: itoa::Buffer::new() }
    }

    /// Appends the line for a request. `at` is its time in the recording. `now` is the time on the limiter's clock, to
    /// which the times in `decision` belong.
    pub(super) fn write(&mut self, decision: &Decision, at: Moment, now: Moment, line: &mut Vec<u8>) {
        let info = decision.info.unwrap_or_default();
        self.begin(at, line);
        let rule = decision.rule.and_then(|place| self.rules.get(place)).map_or("null", String::as_str);
        push(line, &["\"decision\": \"", decision.verdict.as_str(), "\", \"rule\": ", rule]);
        push(line, &[", \"reason\": \"", decision.reason.as_str(), "\", \"hold_ms\": "]);
        self.wait(decision.verdict.hold(now), line);
        push(line, &[", \"retry_after_ms\": "]);
        self.wait(decision.verdict.retry_after(now), line);
        push(line, &[", \"remaining\": "]);
        match decision.info {
            Some(info) => line.extend_from_slice(self.digits.format(info.remaining).as_bytes()),
            None => line.extend_from_slice(b"null"),
        }
        push(line, &[", \"reset_ms\": "]);
        self.wait(info.reset, line);
        push(line, &[", \"clear_ms\": "]);
        self.wait(info.clear, line);
        push(line, &[", \"level\": "]);
        line.extend_from_slice(self.digits.format(decision.level).as_bytes());
        push(line, &[", \"band\": \"", Band::as_str(decision.band), "\"}\n"]);
    }

    /// Begins the line with the time of the request in milliseconds, with decimals only if it has a fraction.
    fn begin(&mut self, at: Moment, line: &mut Vec<u8>) {
        let (millis, nanos) = (at.as_nanos() / 1_000_000, at.as_nanos() % 1_000_000);
        push(line, &["{\"at_ms\": ", self.digits.format(millis)]);
        if nanos > 0 {
            let fraction = format!(".{nanos:06}");
            push(line, &[fraction.trim_end_matches('0')]);
        }
        push(line, &[", "]);
    }

    /// Waits are rounded up, so that a client that waits as announced has waited long enough.
    fn wait(&mut self, span: Span, line: &mut Vec<u8>) {
        line.extend_from_slice(self.digits.format(span.as_millis_ceil()).as_bytes());
    }
}

fn push(line: &mut Vec<u8>, pieces: &[&str]) {
    pieces.iter().for_each(|piece| line.extend_from_slice(piece.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::decision::{Reason, Verdict};
    use tollgate_core::limit::LimitInfo;

    fn line(decision: &Decision, at_nanos: u64) -> String {
        let mut text = Vec::new();
        let now = Moment::from_millis(500);
        DecisionLine::new(["api", "a \"b\""].into_iter()).write(decision, Moment::from_nanos(at_nanos), now, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_line_has_its_fields_in_their_order() {
        let decision = Decision {
            verdict: Verdict::Admit,
            reason: Reason::WithinLimit,
            rule: Some(0),
            info: Some(LimitInfo { remaining: 9, reset: Span::ZERO, clear: Span::from_millis(1000) }),
            level: 0,
            band: Band::Normal,
        };
        let expect = r#"{"at_ms": 1000, "decision": "admit", "rule": "api", "reason": "within-limit", "hold_ms": 0, "retry_after_ms": 0, "remaining": 9, "reset_ms": 0, "clear_ms": 1000, "level": 0, "band": "normal"}"#;
        assert_eq!(line(&decision, 1_000_000_000), format!("{expect}\n"));
        let refused = Decision {
            verdict: Verdict::Refuse(Moment::from_nanos(501_000_001)),
            reason: Reason::InBackoff,
            rule: Some(1),
            level: 3,
            band: Band::Critical,
            ..decision
        };
        let expect = r#"{"at_ms": 0.25, "decision": "refuse", "rule": "a \"b\"", "reason": "in-backoff", "hold_ms": 0, "retry_after_ms": 2, "remaining": 9, "reset_ms": 0, "clear_ms": 1000, "level": 3, "band": "critical"}"#;
        assert_eq!(line(&refused, 250_000), format!("{expect}\n"));
    }

    #[test]
    fn without_a_rule_remaining_is_null() {
        let text = line(&Decision::no_rule(Band::Normal), 0);
        let expect = r#"{"at_ms": 0, "decision": "admit", "rule": null, "reason": "no-rule", "hold_ms": 0, "retry_after_ms": 0, "remaining": null, "reset_ms": 0, "clear_ms": 0, "level": 0, "band": "normal"}"#;
        assert_eq!(text, format!("{expect}\n"));
        assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
    }
}
