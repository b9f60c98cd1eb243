//! The summary of observe mode in one sentence, for the log and the command `doctor`. In observe mode a gate forwards
//! every request, and counts those that it would have held (delayed) or refused.

use serde_json::Value;

use crate::terminal_text;

/// Summarises the field `observed` of `/api/v1/status`: how many requests would have been held and refused, and of
/// which clients.
pub(crate) fn text(observed: &Value) -> String {
    let number = |name: &str| observed[name].as_u64().unwrap_or(0);
    let requests = number("requests");
    let count_and_percentage = |name: &str| {
        let count = number(name);
        format!("{count} ({:.1} %)", count as f64 / requests.max(1) as f64 * 100.0)
    };
    let clients = observed["clients"].as_array().into_iter().flatten().filter_map(client);
    let clients: Vec<_> = clients.collect();
    let colon = if clients.is_empty() { "" } else { ": " };
    format!(
        "observe mode: of {requests} requests the gate would have held {}, refused {}{colon}{}",
        count_and_percentage("would_hold"),
        count_and_percentage("would_refuse"),
        clients.join(", ")
    )
}

/// An element of `clients`. `None` without a key.
fn client(client: &Value) -> Option<String> {
    let (held, refused) = (client["would_hold"].as_u64().unwrap_or(0), client["would_refuse"].as_u64().unwrap_or(0));
    Some(format!("{} ({held} held, {refused} refused)", terminal_text::escape(client["key"].as_str()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_summary_has_counts_parts_and_the_numbers_of_each_client() {
        let clients = json!([
            { "key": "203.0.113.7/32", "would_hold": 30, "would_refuse": 1 },
            { "key": "198.51.100.1/32", "would_hold": 6, "would_refuse": 0 },
        ]);
        let observed = json!({ "requests": 1200, "would_hold": 36, "would_refuse": 1, "clients": clients });
        let page = include_str!("../../../docs/start.md");
        let example = page.lines().find(|line| line.starts_with("observe mode")).unwrap();
        assert_eq!(text(&observed), example, "the example of the page");
        let hostile = json!({ "clients": [{ "key": "\x1b[2J" }] });
        assert!(text(&hostile).ends_with(": \\x1b[2J (0 held, 0 refused)"), "{}", text(&hostile));
        assert_eq!(
            text(&Value::Null),
            "observe mode: of 0 requests the gate would have held 0 (0.0 %), refused 0 (0.0 %)"
        );
    }
}
