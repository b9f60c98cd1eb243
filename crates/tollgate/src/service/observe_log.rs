//! The summary of observe mode in the event log, at most once a minute: the requests that the gate would have held or
//! refused if it enforced its decisions.

use parking_lot::Mutex;
use serde_json::Value;
use tollgate_core::time::{Moment, Span};

use crate::observe_summary;

/// The time between two lines.
const INTERVAL: Span = Span::from_secs(60);

/// Logs the summary if it has changed since the last line.
#[derive(Debug, Default)]
pub(super) struct ObserveLog(Mutex<LastLine>);

#[derive(Debug, Default)]
struct LastLine {
    /// The time at which the last line was due, written or not; the first tick counts as one. `None` before it.
    at: Option<Moment>,
    /// Requests that would have been held or refused, as of the last line.
    throttled: u64,
}

impl ObserveLog {
    /// To be called once a second. `observed` makes the field `observed` of `/api/v1/status`, and is called only when a
    /// line is due.
    pub(super) fn tick(&self, now: Moment, observed: impl FnOnce() -> Value) {
        if let Some(observed) = self.due(now, observed) {
            let number = |name: &str| observed[name].as_u64();
            let (requests, would_hold, would_refuse) =
                (number("requests"), number("would_hold"), number("would_refuse"));
            tracing::info!(requests, would_hold, would_refuse, "{}", observe_summary::text(&observed));
        }
    }

    /// The values to log now, if a line is due and they have changed.
    fn due(&self, now: Moment, observed: impl FnOnce() -> Value) -> Option<Value> {
        let mut last = self.0.lock();
        if now.since(*last.at.get_or_insert(now)) < INTERVAL {
            return None;
        }
        last.at = Some(now);
        let observed = observed();
        let number = |name: &str| observed[name].as_u64().unwrap_or(0);
        let throttled = number("would_hold") + number("would_refuse");
        (std::mem::replace(&mut last.throttled, throttled) != throttled).then_some(observed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_is_due_once_a_minute_while_clients_would_be_throttled() {
        let log = ObserveLog::default();
        let due = |secs: u64, would_hold: u64| {
            log.due(Moment::from_millis(secs * 1000), || json!({ "would_hold": would_hold, "would_refuse": 1 }))
                .is_some()
        };
        let lines = [(5, 3), (6, 3), (64, 3), (65, 3), (70, 9), (125, 9), (190, 9), (260, 10)];
        let due: Vec<_> = lines.into_iter().filter(|(secs, held)| due(*secs, *held)).map(|(secs, _)| secs).collect();
        assert_eq!(due, [65, 125, 260]);
    }
}
