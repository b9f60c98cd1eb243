//! Sharkey's legacy limits of `max` with `minInterval`, with and without its behaviour, in the virtual time of a
//! replay.

use std::path::Path;

use serde_json::Value;

use crate::program::{Scratch, root, tollgate};

/// Requests of one client: how many, and when, in milliseconds.
type Calls<'a> = &'a [(usize, u64)];

/// The decision for each of these requests by Sharkey's `{max: 10, duration: 5000, minInterval: 1000}`.
fn decisions(name: &str, more: &str, calls: Calls<'_>) -> Vec<Value> {
    let config = format!(
        "[[rule]]\nname = \"r\"\nclass = \"ip/32\"\nlegacy = {{ max = 10, duration = \"5s\", min_interval = \"1s\"{more}\n"
    );
    let config = Scratch::new(&format!("sharkey-{name}"), config.as_bytes());
    let trace: String = calls
        .iter()
        .flat_map(|(count, at_ms)| {
            (0..*count).map(move |_| format!("{{\"at_ms\": {at_ms}, \"client\": \"203.0.113.7\"}}\n"))
        })
        .collect();
    let log = Scratch::new(&format!("sharkey-trace-{name}"), trace.as_bytes());
    let arguments = ["replay", "--decisions", "--format", "trace", "--config"].map(Path::new);
    let run = tollgate(arguments.into_iter().chain([config.file.as_path(), log.file.as_path()]));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

const LIKE_SHARKEY: &str = ", enforce_interval = false }";
const SPACED: &str = " }";

fn is_blocked(decision: &Value) -> bool {
    decision["decision"] != "admit"
}

/// The outcome of a request in Sharkey's own tests; each test there looks at some of these values only.
struct Outcome {
    is_blocked: Option<bool>,
    remaining: Option<u64>,
    reset_ms: Option<u64>,
    full_reset_ms: Option<u64>,
}

const fn blocked(is_blocked: bool) -> Outcome {
    Outcome { is_blocked: Some(is_blocked), remaining: None, reset_ms: None, full_reset_ms: None }
}

const fn info(is_blocked: bool, remaining: u64, reset_ms: u64, full_reset_ms: u64) -> Outcome {
    Outcome {
        is_blocked: Some(is_blocked),
        remaining: Some(remaining),
        reset_ms: Some(reset_ms),
        full_reset_ms: Some(full_reset_ms),
    }
}

impl Outcome {
    /// The number of values that agree, after a panic for one that does not.
    fn check(&self, decision: &Value, case: &str) -> usize {
        let values = [
            self.is_blocked.map(|expected| (Value::from(expected), Value::from(is_blocked(decision)))),
            self.remaining.map(|expected| (expected.into(), decision["remaining"].clone())),
            self.reset_ms.map(|expected| (expected.into(), decision["reset_ms"].clone())),
            self.full_reset_ms.map(|expected| (expected.into(), decision["clear_ms"].clone())),
        ];
        let values = values.into_iter().flatten();
        values.inspect(|(expected, actual)| assert_eq!(actual, expected, "{case}: {decision}")).count()
    }
}

/// The requests before, and the outcomes of those that Sharkey's tests look at, which come last.
#[test]
fn sharkeys_outcomes_of_a_quota_with_an_interval_are_offered() {
    let cases: [(&str, Calls<'_>, &[Outcome]); 8] = [
        ("the first", &[(1, 0)], &[info(false, 9, 0, 1000)]),
        ("a full bucket", &[(10, 0), (1, 0)], &[info(true, 0, 1000, 5000)]),
        ("the last that fits", &[(9, 0), (1, 0)], &[info(false, 0, 1000, 5000)]),
        ("half full, after an interval", &[(5, 0), (1, 1000)], &[blocked(false)]),
        ("two come back with each interval", &[(10, 0), (3, 1000)], &[blocked(false), blocked(false), blocked(true)]),
        ("after the whole duration", &[(1, 0), (1, 5000)], &[info(false, 9, 0, 1000)]),
        (
            "a blocked request does not count",
            &[(10, 0), (1, 100), (3, 1000)],
            &[info(true, 0, 900, 4900), blocked(false), blocked(false), blocked(true)],
        ),
        ("nor does it move the drip", &[(10, 0), (5, 999), (1, 1000)], &[blocked(true), blocked(false)]),
    ];
    let mut values = 0;
    for (number, (case, calls, outcomes)) in cases.iter().enumerate() {
        let decisions = decisions(&format!("outcomes-{number}"), LIKE_SHARKEY, calls);
        let last = &decisions[decisions.len() - outcomes.len()..];
        values += outcomes.iter().zip(last).map(|(outcome, decision)| outcome.check(decision, case)).sum::<usize>();
    }
    assert_eq!(values, 29);
    // A role with the factor 0.5: twice the size, twice the rate.
    let half = decisions("outcomes-factor", &format!("{LIKE_SHARKEY}\nfactor = 0.5"), &[(19, 0), (2, 0), (1, 500)]);
    assert_eq!(half[19..].iter().map(is_blocked).collect::<Vec<_>>(), [false, true, false]);
}

#[test]
fn an_enforced_interval_admits_one_request_of_each_interval() {
    let decisions = decisions("spaced", SPACED, &[(10, 0), (1, 999), (3, 1000)]);
    let admitted: Vec<_> = (0..decisions.len()).filter(|place| !is_blocked(&decisions[*place])).collect();
    assert_eq!(admitted, [0, 11]);
    assert_eq!((&decisions[1]["remaining"], &decisions[1]["reset_ms"]), (&0.into(), &1000.into()));
    assert_eq!(decisions[10]["reset_ms"], 1, "the time until the interval is over");
}

/// The table of the page that compares both.
#[test]
fn the_documented_comparison_of_both_behaviours_is_that_of_the_program() {
    let page = std::fs::read_to_string(root().join("docs/coming-from/sharkey.md")).unwrap();
    let (_, table) = page.split_once("| requests | Sharkey, and `enforce_interval = false` | enforced |\n").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|row| row.split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 4);
    for (number, row) in rows.iter().enumerate() {
        // "10 at 0 s, 3 at 1 s" or "20, 200 ms apart".
        let calls: Vec<(usize, u64)> = match row[1].strip_suffix(" ms apart") {
            Some(text) => {
                let (count, apart) = text.split_once(", ").unwrap();
                let apart: u64 = apart.parse().unwrap();
                (0..count.parse().unwrap()).map(|place| (1, place * apart)).collect()
            }
            None => row[1]
                .split(", ")
                .map(|part| {
                    let (count, at) = part.strip_suffix(" s").unwrap().split_once(" at ").unwrap();
                    (count.parse().unwrap(), at.parse::<u64>().unwrap() * 1000)
                })
                .collect(),
        };
        for (column, more) in [(2, LIKE_SHARKEY), (3, SPACED)] {
            let decisions = decisions(&format!("page-{number}-{column}"), more, &calls);
            let admitted = decisions.iter().filter(|decision| !is_blocked(decision)).count();
            assert_eq!(admitted.to_string(), row[column], "{row:?}");
        }
    }
}
