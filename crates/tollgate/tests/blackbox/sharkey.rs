//! The outcomes of the tests of Sharkey's service, in the virtual time of a replay, and its limits of `max` with
//! `minInterval` with and without its behaviour.

use std::path::Path;

use serde_json::Value;

use crate::program::{Scratch, root, tollgate};

/// Requests of one client: how many, and when, in milliseconds.
type Calls<'a> = &'a [(usize, u64)];

/// The decision for each of these requests by a rule with this limit.
fn decisions(name: &str, limit: &str, calls: Calls<'_>) -> Vec<Value> {
    let config = format!("[[rule]]\nname = \"r\"\nclass = \"ip/32\"\nhold = \"0s\"\n{limit}\n");
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

/// Sharkey's `{max: 10, duration: 5000, minInterval: 1000}`, with its behaviour and with an enforced interval.
const LIKE_SHARKEY: &str = r#"legacy = { max = 10, duration = "5s", min_interval = "1s", enforce_interval = false }"#;
const SPACED: &str = r#"legacy = { max = 10, duration = "5s", min_interval = "1s" }"#;

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

/// A limit, with the requests of each case and the outcomes of the last ones, which Sharkey's tests look at.
type Group<'a> = (&'a str, &'a [(&'a str, Calls<'a>, &'a [Outcome])]);

/// The cases and outcomes of the tests of Sharkey's service. Its tests set the counter; here requests before the case
/// do. Not among them: expiry times on Redis, and a counter above the limit, which cannot occur here.
const GROUPS: [Group<'_>; 14] = [
    (
        "bucket = { size = 1 }",
        &[
            ("the first", &[(1, 0)], &[blocked(false)]),
            ("full", &[(2, 0)], &[info(true, 0, 1000, 1000)]),
            ("full, and one comes back", &[(1, 0), (1, 1000)], &[blocked(false)]),
            ("a blocked request does not count", &[(1, 0), (1, 100), (1, 1000)], &[blocked(true), blocked(false)]),
        ],
    ),
    (
        "bucket = { size = 2 }",
        &[
            ("the last that fits", &[(2, 0)], &[info(false, 0, 1000, 2000)]),
            ("two come back in two periods", &[(2, 0), (1, 2000)], &[info(false, 1, 0, 1000)]),
        ],
    ),
    (
        "bucket = { size = 2, drip = 2 }",
        &[("two come back in one period", &[(2, 0), (1, 1000)], &[info(false, 1, 0, 1000)])],
    ),
    ("bucket = { size = 5 }", &[("calls over time", &[(1, 0), (3, 1000), (1, 3000)], &[info(false, 3, 0, 2000)])]),
    (
        "bucket = { size = 1 }\nfactor = 0.5",
        &[("half the factor", &[(3, 0), (1, 500)], &[blocked(false), blocked(true), blocked(false)])],
    ),
    (
        "legacy = { min_interval = \"1s\" }",
        &[
            ("the first", &[(1, 0)], &[info(false, 0, 1000, 1000)]),
            ("too early", &[(2, 0)], &[info(true, 0, 1000, 1000)]),
            ("after the interval", &[(1, 0), (1, 1000)], &[blocked(false)]),
            ("calls over time", &[(1, 0), (3, 1000), (1, 3000)], &[info(false, 0, 1000, 1000)]),
            ("a blocked request does not count", &[(1, 0), (1, 100), (1, 1000)], &[blocked(true), blocked(false)]),
        ],
    ),
    (
        "legacy = { min_interval = \"1s\" }\nfactor = 0.5",
        &[("half the factor", &[(3, 0), (1, 500)], &[blocked(false), blocked(true), blocked(false)])],
    ),
    (
        "legacy = { max = 1, duration = \"1s\" }",
        &[
            ("the first", &[(1, 0)], &[blocked(false)]),
            ("a blocked request does not count", &[(1, 0), (1, 100), (1, 1000)], &[blocked(true), blocked(false)]),
        ],
    ),
    (
        "legacy = { max = 1, duration = \"1s\" }\nfactor = 0.5",
        &[("half the factor", &[(3, 0), (1, 500)], &[blocked(false), blocked(true), blocked(false)])],
    ),
    (
        "legacy = { max = 10, duration = \"10s\" }",
        &[
            (
                "the period follows from the duration",
                &[(11, 0), (1, 1000), (3, 3000), (1, 5000)],
                &[blocked(true), blocked(false), blocked(false), blocked(false), blocked(true), blocked(false)],
            ),
            ("two have come back", &[(10, 0), (1, 2000)], &[info(false, 1, 0, 9000)]),
            ("full", &[(11, 0)], &[info(true, 0, 1000, 10_000)]),
        ],
    ),
    (
        "legacy = { max = 4096, duration = \"2s\" }",
        &[("two of a large quota come back in a millisecond", &[(4097, 0), (1, 1)], &[blocked(true), blocked(false)])],
    ),
    (
        LIKE_SHARKEY,
        &[
            ("the first", &[(1, 0)], &[blocked(false)]),
            ("the last that fits", &[(10, 0)], &[info(false, 0, 1000, 5000)]),
            ("full", &[(11, 0)], &[info(true, 0, 1000, 5000)]),
            ("half full, after an interval", &[(5, 0), (1, 1000)], &[blocked(false)]),
            (
                "two come back with each interval",
                &[(10, 0), (3, 1000)],
                &[blocked(false), blocked(false), blocked(true)],
            ),
            (
                "a blocked request does not count",
                &[(10, 0), (1, 100), (3, 1000)],
                &[info(true, 0, 900, 4900), blocked(false), blocked(false), blocked(true)],
            ),
            ("nothing is left of it after the duration", &[(10, 0), (1, 5000)], &[info(false, 9, 0, 1000)]),
        ],
    ),
    (
        LIKE_SHARKEY_FOR_HALF,
        &[("half the factor", &[(19, 0), (2, 0), (1, 500)], &[blocked(false), blocked(true), blocked(false)])],
    ),
    (
        "legacy = { max = 300, duration = \"1h\", min_interval = \"1s\", enforce_interval = false }",
        &[(
            "the interval does not shorten the period",
            &[(300, 0), (1, 11_999), (1, 12_000)],
            &[blocked(true), blocked(false)],
        )],
    ),
];

const LIKE_SHARKEY_FOR_HALF: &str =
    "legacy = { max = 10, duration = \"5s\", min_interval = \"1s\", enforce_interval = false }\nfactor = 0.5";

#[test]
fn the_outcomes_of_sharkeys_own_tests_are_those_of_its_limits_here() {
    let mut values = 0;
    for (number, (limit, cases)) in GROUPS.iter().enumerate() {
        for (place, (case, calls, outcomes)) in cases.iter().enumerate() {
            let decisions = decisions(&format!("outcomes-{number}-{place}"), limit, calls);
            let last = &decisions[decisions.len() - outcomes.len()..];
            let case = format!("{limit}: {case}");
            values +=
                outcomes.iter().zip(last).map(|(outcome, decision)| outcome.check(decision, &case)).sum::<usize>();
        }
    }
    assert_eq!(values, 96);
}

/// No limit in Sharkey, and a mistake here.
const NO_LIMIT: [&str; 2] = ["legacy = { max = 1, duration = \"0s\" }", "legacy = { min_interval = \"0s\" }"];

/// The limits that Sharkey rejects when it is called. Here the file is rejected.
#[test]
fn limits_that_sharkey_rejects_are_mistakes_in_the_file() {
    let wrong = [
        "bucket = { size = 0 }",
        "bucket = { size = -1 }",
        "bucket = { size = 0.5 }",
        "bucket = { size = 1, every = \"0s\" }",
        "bucket = { size = 1, every = \"-1s\" }",
        "bucket = { size = 1, drip = 0 }",
        "bucket = { size = 1, drip = -1 }",
        "bucket = { size = 1, drip = 0.5 }",
        "bucket = { size = 1 }\nfactor = -1",
        "legacy = { min_interval = \"-1s\" }",
        "legacy = { max = 0, duration = \"1s\" }",
        "legacy = { max = -1, duration = \"1s\" }",
        "legacy = { max = 1, duration = \"-1s\" }",
        NO_LIMIT[0],
        NO_LIMIT[1],
    ];
    for (number, limit) in wrong.iter().enumerate() {
        let config = format!("[[rule]]\nname = \"r\"\nclass = \"ip/32\"\n{limit}\n");
        let config = Scratch::new(&format!("sharkey-wrong-{number}"), config.as_bytes());
        let run = tollgate([Path::new("check"), &config.file]);
        let place = if limit.contains("factor") { ":5:" } else { ":4:" };
        assert!(run.code == Some(2) && run.stderr.contains(place), "{limit}: {:?} {}", run.code, run.stderr);
        let explains = run.stderr.contains("for no limit, which 0 is in Sharkey, leave the key or the rule out");
        assert_eq!(explains, NO_LIMIT.contains(limit), "{limit}: {}", run.stderr);
    }
}

#[test]
fn an_enforced_interval_admits_one_request_of_each_interval() {
    let decisions = decisions("spaced", SPACED, &[(10, 0), (1, 999), (3, 1000)]);
    let admitted: Vec<_> = (0..decisions.len()).filter(|place| !is_blocked(&decisions[*place])).collect();
    assert_eq!(admitted, [0, 11]);
    assert_eq!((&decisions[1]["remaining"], &decisions[1]["reset_ms"]), (&0.into(), &1000.into()));
    assert_eq!(decisions[10]["reset_ms"], 1, "the time until the interval is over");
}

/// Sharkey's `remaining` is 0 while a client is blocked. The window has room after 1 s, and the block lasts for 40 s.
#[test]
fn nothing_remains_in_the_backoff_of_an_escalation() {
    let limit = "window = { max = 5, per = \"1s\" }\nescalation = { backoff = \"40s\", backoff_max = \"60s\" }";
    let decisions = decisions("backoff", limit, &[(6, 0), (1, 39_999), (1, 40_000)]);
    let info = |place: usize| ["reason", "remaining", "reset_ms"].map(|name| decisions[place][name].clone());
    assert_eq!(info(5), ["over-limit".into(), Value::from(0), 40_000.into()]);
    assert_eq!(info(6), ["in-backoff".into(), Value::from(0), 1.into()]);
    assert_eq!(info(7), ["within-limit".into(), Value::from(4), 0.into()]);
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
