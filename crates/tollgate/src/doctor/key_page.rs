//! The page of one key: the decisions of the rules whose key follows from it, the decision of the queue, its totals,
//! and its recent refusals. The live view shows it after Enter, and `tollgate doctor --key` prints it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::view::shown;
use crate::colours::{BOLD, DIM, GREEN, PLAIN, RED, YELLOW, without_colours};
use crate::terminal_text::{self, cut};

/// The column of the second line of a rule: after its name.
const RULE_INDENT: usize = 21;
/// The column of the second line of the queue.
const QUEUE_INDENT: usize = 4;
/// The column of the second line of a refusal: after its time and count.
const REFUSAL_INDENT: usize = 30;

/// The page, in lines of at most `width` columns. `detail` is the answer of `/api/v1/key`, if it has arrived.
pub(super) fn lines(key: &str, class: &str, detail: Option<&Value>, width: usize) -> Vec<String> {
    let mut lines = vec![
        format!("{BOLD}{}{PLAIN}  {DIM}{}{PLAIN}", terminal_text::escape(key), terminal_text::escape(class)),
        String::new(),
    ];
    if let Some(detail) = detail {
        if let Some(until) = detail["exempt_until"].as_str() {
            lines.push(format!("exempt until {}", terminal_text::escape(until)));
        }
        lines.extend(rules(detail, width));
        lines.extend(queue(&detail["queue"], width));
        lines.extend(totals(detail));
        lines.push(String::new());
        lines.extend(refusals(key, detail, width));
    }
    lines.into_iter().map(|line| cut(&line, width)).collect()
}

/// The page without colours, for `--key`.
pub(super) fn text(key: &str, class: &str, detail: &Value) -> String {
    without_colours(lines(key, class, Some(detail), usize::MAX))
}

/// The decision about the next request, and the state, of each rule whose key follows from this one, regardless of
/// `when` and `unless`. For an address, these include the rules of its networks. A rule has a second line if the
/// terminal is narrow.
///
/// `left` is the remaining quota: requests, or milliseconds of CPU time for a budget. `level` is the escalation level.
/// `next` is the time until one more request fits, `full` the time until the whole quota is available.
fn rules(detail: &Value, width: usize) -> Vec<String> {
    let rules = detail["rules"].as_array().map_or(&[][..], Vec::as_slice);
    if rules.is_empty() {
        return vec![format!("no rule depends on this key alone; {}", without_rules(detail))];
    }
    let line = |rule: &Value| {
        let text = |name: &str| terminal_text::escape(rule[name].as_str().unwrap_or("-"));
        let decision = text("decision");
        let colour = match &*decision {
            "admit" => GREEN,
            "hold" => YELLOW,
            _ => RED,
        };
        let state = format!(
            "{:<20} {colour}{decision:<7}{PLAIN} {:<13} left {:>6}  level {}",
            text("rule"),
            text("reason"),
            shown(&rule["remaining"]),
            shown(&rule["level"]),
        );
        let times = format!("next in {} ms, full in {} ms", shown(&rule["reset_ms"]), shown(&rule["clear_ms"]));
        one_or_two_lines(&format!("{state} "), &times, RULE_INDENT, width)
    };
    rules.iter().flat_map(line).collect()
}

/// The explanation if the key of no rule follows from this one: which rules have refused the client.
fn without_rules(detail: &Value) -> String {
    let refusals = detail["refusals"].as_array().into_iter().flatten();
    let rules =
        refusals.filter(|refusal| refusal["decision"] == "refuse").filter_map(|refusal| refusal["rule"].as_str());
    let names: BTreeSet<_> = rules.map(terminal_text::escape).collect();
    if names.is_empty() {
        return "the fair queue applies, and rules of other classes if there are any".to_owned();
    }
    format!("other rules that have refused it: {}", names.into_iter().collect::<Vec<_>>().join(", "))
}

/// The decision of the fair queue about the next request of an address; nothing for other keys.
fn queue(queue: &Value, width: usize) -> Vec<String> {
    let Some(decision) = queue["decision"].as_str() else { return Vec::new() };
    let share = if queue["is_ahead"] == true { "ahead of its share" } else { "within its share" };
    if decision == "admit" {
        return vec![format!("the queue would admit the next request at once: {share}")];
    }
    let decision = terminal_text::escape(decision);
    let why = format!("the queue would {decision} the next request: {},", shown(&queue["reason"]));
    let (position, wait) = (shown(&queue["position"]), shown(&queue["wait_ms"]));
    let standing = format!("position {position}, estimated wait {wait} ms, {share}");
    let observing = (queue["in_force"] == false).then(|| "observe mode: the queue lets it go at once".to_owned());
    one_or_two_lines(&why, &standing, QUEUE_INDENT, width).into_iter().chain(observing).collect()
}

/// The counts of the key since it was first seen.
fn totals(detail: &Value) -> Vec<String> {
    let totals = &detail["bucket"];
    if !totals.is_object() {
        return vec![String::new(), "not seen: the gate has no record of requests with this key".to_owned()];
    }
    let rows = [
        ("requests", "requests"),
        ("held", "held"),
        ("refused", "refused"),
        ("CPU time [ms]", "cpu_ms"),
        ("first seen", "first_seen"),
        ("last seen", "last_seen"),
    ];
    // Counted only by a gate or a rule in observe mode.
    let observed = [("would be held", "would_hold"), ("would be refused", "would_refuse")];
    let observed = observed.into_iter().filter(|(_, name)| totals[*name].as_u64().unwrap_or(0) > 0);
    let (counts, rest) = rows.split_at(3);
    let rows = counts.iter().copied().chain(observed).chain(rest.iter().copied());
    let rows = rows.map(|(label, name)| format!("{label:>16}  {}", shown(&totals[name])));
    std::iter::once(String::new()).chain(rows).collect()
}

/// The recorded refusals of the last 24 hours. The gate keeps a limited number of them, in memory. `page_key` is the
/// key of the page.
fn refusals(page_key: &str, detail: &Value, width: usize) -> Vec<String> {
    let refusals = detail["refusals"].as_array().map_or(&[][..], Vec::as_slice);
    if refusals.is_empty() {
        return vec!["no recorded refusal in the last 24 hours".to_owned()];
    }
    let line = |refusal: &Value| {
        let by = refusal["rule"]
            .as_str()
            .map_or("the queue".to_owned(), |rule| format!("rule {}", terminal_text::escape(rule)));
        // A rule in observe mode gives the decision itself as the reason; it would only be repeated.
        let reason = match (refusal["decision"].as_str(), refusal["reason"].as_str()) {
            (Some("would-refuse"), Some("would-refuse")) => "only observed".to_owned(),
            (Some("would-refuse"), _) => format!("{} (only observed)", shown(&refusal["reason"])),
            _ => shown(&refusal["reason"]),
        };
        // The page of a network lists the refusals of its addresses, and that of an address also those under other
        // keys of the client.
        let of = match refusal["key"].as_str() {
            Some(key) if key != page_key => format!("{}, ", terminal_text::escape(key)),
            _ => String::new(),
        };
        // Without fractions of a second.
        let last_at: String = shown(&refusal["last_at"]).chars().take(19).collect();
        let event = format!("{last_at}  {:>5} x  {of}{by}: {reason},", shown(&refusal["count"]));
        let limit = format!("{}, retry after {} ms", usage(refusal), shown(&refusal["retry_after_ms"]));
        one_or_two_lines(&event, &limit, REFUSAL_INDENT, width)
    };
    std::iter::once(format!("{DIM}recent refusals, the latest first (UTC){PLAIN}"))
        .chain(refusals.iter().flat_map(line))
        .collect()
}

/// Both parts on one line, or the second one indented on a line of its own if the terminal is too narrow.
fn one_or_two_lines(first: &str, second: &str, indent: usize, width: usize) -> Vec<String> {
    if terminal_text::width(first) + 1 + terminal_text::width(second) <= width {
        return vec![format!("{first} {second}")];
    }
    vec![first.to_owned(), format!("{:indent$}{second}", "")]
}

/// The usage that was refused, and its limit. The reasons of the queue have units of their own: see docs/log.md.
fn usage(refusal: &Value) -> String {
    let (observed, allowed) = (shown(&refusal["observed"]), shown(&refusal["allowed"]));
    match refusal["reason"].as_str() {
        Some("wait-too-long") => format!("a wait of {observed} ms, at most {allowed} ms"),
        Some("queue-full") => format!("{observed} waiting, at most {allowed}"),
        _ => format!("{observed} of {allowed}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn past_refusals_are_listed_with_time_count_and_cause() {
        let refusal = |rule: Value, decision: &str| {
            json!({
                "decision": decision, "rule": rule, "reason": "over-limit", "observed": 11, "allowed": 10, "retry_after_ms": 1500,
                "count": 3, "first_at": "2026-11-16T10:00:00.5Z", "last_at": "2026-11-16T10:00:09.5Z",
            })
        };
        let detail = json!({ "rules": [], "refusals": [refusal(json!("login"), "refuse"), refusal(Value::Null, "would-refuse")] });
        let text = text("203.0.113.7/32", "ip/32", &detail);
        let last: Vec<_> = text.lines().rev().take(3).collect();
        assert_eq!(
            last,
            [
                "2026-11-16T10:00:09      3 x  the queue: over-limit (only observed), 11 of 10, retry after 1500 ms",
                "2026-11-16T10:00:09      3 x  rule login: over-limit, 11 of 10, retry after 1500 ms",
                "recent refusals, the latest first (UTC)",
            ]
        );
        assert!(!text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn nothing_is_cut_off_at_80_columns() {
        let detail = json!({
            "rules": [{
                "rule": "login", "decision": "refuse", "reason": "over-limit", "remaining": 0, "level": 0, "reset_ms": 11_400,
                "clear_ms": 480_000,
            }],
            "refusals": [{
                "decision": "would-refuse", "rule": "login", "reason": "would-refuse", "observed": 41, "allowed": 40,
                "retry_after_ms": 11_400, "count": 17, "last_at": "2026-11-16T10:02:40.561Z",
            }],
        });
        let lines = |width| lines("203.0.113.7/32", "ip/32", Some(&detail), width).join("\n");
        let narrow = lines(80);
        assert!(narrow.contains("\n                     next in 11400 ms, full in 480000 ms\n"), "{narrow}");
        let second = "\n                              41 of 40, retry after 11400 ms";
        assert!(narrow.ends_with(&format!("17 x  rule login: only observed,{second}")), "{narrow}");
        let wide = lines(140);
        assert!(wide.contains("level 0  next in 11400 ms, full in 480000 ms"), "{wide}");
        assert!(wide.ends_with("rule login: only observed, 41 of 40, retry after 11400 ms"), "{wide}");
    }

    #[test]
    fn a_network_lists_its_addresses_and_the_queue_has_units() {
        let refusal = |reason: &str| {
            json!({
                "decision": "refuse", "rule": null, "key": "203.0.113.7/32", "reason": reason, "observed": 14383, "allowed": 10000,
                "retry_after_ms": 1500, "count": 3, "last_at": "2026-11-16T10:00:09.5Z",
            })
        };
        let detail = json!({ "rules": [], "refusals": [refusal("wait-too-long"), refusal("queue-full")] });
        let text = text("203.0.113.0/24", "ip/24", &detail);
        let lines = [
            "3 x  203.0.113.7/32, the queue: wait-too-long, a wait of 14383 ms, at most 10000 ms, retry after 1500 ms",
            "3 x  203.0.113.7/32, the queue: queue-full, 14383 waiting, at most 10000, retry after 1500 ms",
        ];
        assert!(lines.iter().all(|line| text.contains(line)), "{text}");
    }

    #[test]
    fn rules_of_other_classes_are_named_if_they_have_refused_the_client() {
        let refusal =
            |rule: Value, decision: &str| json!({ "decision": decision, "rule": rule, "reason": "over-limit" });
        let page = |refusals: &[Value]| text("a", "ip/32", &json!({ "rules": [], "refusals": refusals }));
        let refused = page(&[
            refusal(json!("crawlers"), "refuse"),
            refusal(Value::Null, "refuse"),
            refusal(json!("crawlers"), "refuse"),
            refusal(json!("trial"), "would-refuse"),
        ]);
        assert!(
            refused.contains("\nno rule depends on this key alone; other rules that have refused it: crawlers\n"),
            "{refused}"
        );
        let others = "\nno rule depends on this key alone; the fair queue applies, and rules of other classes if there \
                      are any\n";
        for refusals in [&[][..], &[refusal(json!("trial"), "would-refuse")]] {
            assert!(page(refusals).contains(others), "{}", page(refusals));
        }
    }

    #[test]
    fn the_page_of_an_address_has_its_standing_in_the_queue() {
        let page = |queue: Value| text("203.0.113.7/32", "ip/32", &json!({ "rules": [], "queue": queue }));
        let queue = |decision: &str, in_force: bool| {
            json!({
                "decision": decision, "reason": "wait-too-long", "is_ahead": true, "position": 7, "wait_ms": 14383, "in_force": in_force,
            })
        };
        let refused = page(queue("refuse", true));
        let line = "\nthe queue would refuse the next request: wait-too-long, position 7, estimated wait 14383 ms, \
                    ahead of its share";
        assert!(refused.contains(&format!("{line}\n")), "{refused}");
        let observed = page(queue("refuse", false));
        assert!(observed.contains(&format!("{line}\nobserve mode: the queue lets it go at once\n")), "{observed}");
        let admitted = page(json!({ "decision": "admit", "is_ahead": false, "position": 1, "wait_ms": 0 }));
        assert!(
            admitted.contains("\nthe queue would admit the next request at once: within its share\n"),
            "{admitted}"
        );
        assert!(!page(Value::Null).contains("the queue would"));
        let detail = json!({ "rules": [], "queue": queue("hold", true) });
        let narrow = lines("203.0.113.7/32", "ip/32", Some(&detail), 80).join("\n");
        assert!(narrow.contains(",\n    position 7, estimated wait 14383 ms, ahead of its share\n"), "{narrow}");
    }

    #[test]
    fn a_key_without_a_record_is_reported_as_not_seen() {
        let page =
            |bucket: Value| text("9.9.9.9/32", "ip/32", &json!({ "bucket": bucket, "rules": [], "refusals": [] }));
        assert!(page(Value::Null).contains("\nnot seen: "), "{}", page(Value::Null));
        assert!(!page(json!({ "requests": 1 })).contains("not seen"));
    }

    #[test]
    fn the_totals_of_an_observing_gate_have_what_it_would_have_done() {
        let page = |would_hold: u64| {
            text("a", "ip/32", &json!({ "bucket": { "requests": 9, "would_hold": would_hold, "would_refuse": 0 } }))
        };
        assert!(page(4).contains("   would be held  4\n") && !page(4).contains("would be refused"), "{}", page(4));
        assert!(!page(0).contains("would be"), "{}", page(0));
    }
}
