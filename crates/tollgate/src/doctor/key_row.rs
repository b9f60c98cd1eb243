//! A row of the doctor's table, parsed from the response of `/api/v1/buckets`. Missing numbers count as 0.

use serde_json::Value;

use crate::terminal_text;

/// The maximum number of characters of a key that are shown, besides the dots of a shortened one. It is far below
/// 65,535, the largest width that Rust's formatting supports.
const TITLE_CHARS_MAX: usize = 1000;

/// Cost and refusals of one key. The help screen (`columns.rs`) has the periods of the numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct KeyRow {
    /// The key as in the API.
    pub(super) key: String,
    /// The key as shown: escaped and shortened, `(none)` if it is empty.
    pub(super) title: String,
    /// Average time that its latest requests waited at the gate, in seconds. Refused ones do not count.
    pub(super) wait_secs: f64,
    /// CPU time of the backend for its requests, in seconds per second.
    pub(super) cpu: f64,
    /// `cpu` as a part of all cores of the backend, from 0 to 1.
    pub(super) share: f64,
    pub(super) requests_per_sec: f64,
    /// Requests held; if the gate is in observe mode, those that it would have held.
    pub(super) held: u64,
    /// The same for refused requests.
    pub(super) refused: u64,
    /// Requests that were not held or refused only because a rule, or earlier the gate, was in observe mode. 0 while
    /// the gate is in observe mode, because `held` and `refused` have them.
    pub(super) observed: u64,
    /// The lowest remaining quota of its rules: in requests, or in milliseconds of CPU time for a budget. None if it
    /// has no quota.
    pub(super) left: Option<u64>,
    /// Time since its last request, in seconds.
    pub(super) last_secs: f64,
}

impl KeyRow {
    /// The rows of the list `buckets` of an API response. `mode` is that of the gate, from its status.
    pub(super) fn all(buckets: &Value, mode: &Value) -> Vec<Self> {
        let is_observing = mode == "observe";
        buckets.as_array().into_iter().flatten().map(|bucket| Self::of(bucket, is_observing)).collect()
    }

    fn of(bucket: &Value, is_observing: bool) -> Self {
        let (held, refused) = if is_observing { ("would_hold", "would_refuse") } else { ("held", "refused") };
        let number = |name: &str| bucket[name].as_f64().unwrap_or(0.0);
        let count = |name: &str| bucket[name].as_u64().unwrap_or(0);
        let key = bucket["key"].as_str().unwrap_or_default().to_owned();
        let rules = bucket["rules"].as_array().into_iter().flatten();
        Self {
            title: if key.is_empty() { "(none)".to_owned() } else { title(&key) },
            key,
            wait_secs: number("wait_ms") / 1000.0,
            cpu: number("cpu_per_second"),
            share: number("share"),
            requests_per_sec: number("requests_per_second"),
            held: count(held),
            refused: count(refused),
            observed: if is_observing { 0 } else { count("would_hold").saturating_add(count("would_refuse")) },
            left: rules.filter_map(|rule| rule["remaining"].as_u64()).min(),
            last_secs: number("idle_ms") / 1000.0,
        }
    }
}

/// The key, escaped and shortened to [`TITLE_CHARS_MAX`].
fn title(key: &str) -> String {
    let mut title = terminal_text::escape(key);
    if let Some((end, _)) = title.char_indices().nth(TITLE_CHARS_MAX) {
        title.truncate(end);
        title.push_str("...");
    }
    title
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_is_parsed_even_if_fields_are_missing() {
        let buckets = json!([
            { "key": "a\x1bb", "cpu_per_second": 0.5, "wait_ms": 1500, "idle_ms": 67000, "refused": 3,
              "rules": [{ "remaining": 7 }, { "remaining": null }, { "remaining": 2 }] },
            {}
        ]);
        let rows = KeyRow::all(&buckets, &Value::Null);
        assert_eq!((&*rows[0].title, rows[0].cpu, rows[0].wait_secs), ("a\\x1bb", 0.5, 1.5));
        assert_eq!((rows[0].left, rows[0].last_secs), (Some(2), 67.0));
        assert_eq!(rows[1].title, "(none)");
        assert_eq!(KeyRow::all(&Value::Null, &Value::Null), []);
    }

    #[test]
    fn in_observe_mode_the_columns_have_what_the_gate_would_have_done() {
        let buckets = json!([{ "key": "a", "held": 1, "refused": 2, "would_hold": 30, "would_refuse": 40 }]);
        let counts = |mode: &str| {
            let rows = KeyRow::all(&buckets, &json!(mode));
            (rows[0].held, rows[0].refused, rows[0].observed)
        };
        assert_eq!((counts("observe"), counts("enforce")), ((30, 40, 0), (1, 2, 70)));
    }
}
