//! One caller, as the doctor shows it.

use serde_json::Value;

use crate::admin_client::harmless;

/// A caller and its figures.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Caller {
    /// Its key as it is asked for.
    pub(super) key: String,
    /// Its key as it is shown.
    pub(super) title: String,
    /// How long its requests wait on average, in seconds.
    pub(super) wait_secs: f64,
    /// CPU-seconds per second.
    pub(super) cpu: f64,
    /// Of the backend's cores.
    pub(super) share: f64,
    pub(super) requests_per_sec: f64,
    pub(super) held: u64,
    pub(super) refused: u64,
    /// What the tightest rule leaves it.
    pub(super) left: Option<u64>,
    /// How long ago it was seen, in seconds.
    pub(super) last_secs: f64,
}

impl Caller {
    /// The callers of an answer.
    pub(super) fn all(buckets: &Value) -> Vec<Self> {
        buckets.as_array().into_iter().flatten().map(Self::of).collect()
    }

    fn of(bucket: &Value) -> Self {
        let number = |name: &str| bucket[name].as_f64().unwrap_or(0.0);
        let key = bucket["key"].as_str().unwrap_or_default().to_owned();
        let rules = bucket["rules"].as_array().into_iter().flatten();
        Self {
            title: if key.is_empty() { "(none)".to_owned() } else { harmless(&key) },
            key,
            wait_secs: number("wait_ms") / 1000.0,
            cpu: number("cpu_per_second"),
            share: number("share"),
            requests_per_sec: number("requests_per_second"),
            held: bucket["held"].as_u64().unwrap_or(0),
            refused: bucket["refused"].as_u64().unwrap_or(0),
            left: rules.filter_map(|rule| rule["remaining"].as_u64()).min(),
            last_secs: number("idle_ms") / 1000.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_caller_is_read_whatever_is_missing() {
        let buckets = json!([
            { "key": "a\x1bb", "cpu_per_second": 0.5, "wait_ms": 1500, "idle_ms": 67000, "refused": 3,
              "rules": [{ "remaining": 7 }, { "remaining": null }, { "remaining": 2 }] },
            {}
        ]);
        let callers = Caller::all(&buckets);
        assert_eq!((&*callers[0].title, callers[0].cpu, callers[0].wait_secs), ("a\\u{1b}b", 0.5, 1.5));
        assert_eq!((callers[0].left, callers[0].last_secs), (Some(2), 67.0));
        assert_eq!(callers[1].title, "(none)");
        assert_eq!(Caller::all(&Value::Null), []);
    }
}
