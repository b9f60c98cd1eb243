//! `tollgate replay`: decisions in virtual time, and the page that summarises them.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::{Compression, write::GzEncoder};
use serde_json::Value;

use crate::program::{Run, root, tollgate};

#[path = "../../examples/make-log/day.rs"]
mod day;

/// Files in a temporary directory.
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    /// `test` makes the directory of each test unique.
    pub(crate) fn new(test: &str) -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("replay-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_string()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Decisions of rules about a trace.
pub(crate) fn decisions(test: &str, rules: &str, trace: &str) -> Vec<Value> {
    let files = Files::new(test);
    let (config, trace) = (files.write("rules.toml", rules), files.write("trace.jsonl", trace));
    let run = tollgate(["replay", "--config", &config, "--decisions", &trace]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    run.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn field<'a>(decisions: &'a [Value], name: &str) -> Vec<&'a Value> {
    decisions.iter().map(|decision| &decision[name]).collect()
}

fn words(decisions: &[Value]) -> Vec<&str> {
    field(decisions, "decision").into_iter().map(|word| word.as_str().unwrap()).collect()
}

/// Requests of one client at these times.
fn requests(client: &str, times_ms: &[u64]) -> String {
    times_ms.iter().map(|at_ms| format!("{{\"at_ms\": {at_ms}, \"client\": \"{client}\"}}\n")).collect()
}

pub(crate) fn with_input(arguments: &[&str], input: &[u8]) -> Run {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let _ = writer.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

const BUCKET: &str = "[[rule]]\nname = \"api\"\nclass = \"ip/32\"\nbucket = { size = 2, drip = 1, every = \"1s\" }\n";

#[test]
fn decisions_are_lines_of_json() {
    let files = Files::new("letter");
    let config = files.write("rules.toml", BUCKET);
    let trace = files.write("trace.jsonl", requests("203.0.113.7", &[1000, 1000, 1000, 2000]));
    let run = tollgate(["replay", "--config", &config, "--decisions", &trace]);
    let expect = concat!(
        r#"{"at_ms": 1000, "decision": "admit", "rule": "api", "reason": "within-limit", "hold_ms": 0, "retry_after_ms": 0, "remaining": 1, "reset_ms": 0, "clear_ms": 1000, "level": 0, "band": "normal"}"#,
        "\n",
        r#"{"at_ms": 1000, "decision": "admit", "rule": "api", "reason": "within-limit", "hold_ms": 0, "retry_after_ms": 0, "remaining": 0, "reset_ms": 1000, "clear_ms": 2000, "level": 0, "band": "normal"}"#,
        "\n",
        r#"{"at_ms": 1000, "decision": "refuse", "rule": "api", "reason": "over-limit", "hold_ms": 0, "retry_after_ms": 1000, "remaining": 0, "reset_ms": 1000, "clear_ms": 2000, "level": 0, "band": "normal"}"#,
        "\n",
        r#"{"at_ms": 2000, "decision": "admit", "rule": "api", "reason": "within-limit", "hold_ms": 0, "retry_after_ms": 0, "remaining": 0, "reset_ms": 1000, "clear_ms": 2000, "level": 0, "band": "normal"}"#,
        "\n",
    );
    assert_eq!((run.code, run.stderr.as_str(), run.stdout.as_str()), (Some(0), "", expect));
}

#[test]
fn the_strictest_of_several_rules_is_shown_and_a_refusal_charges_none() {
    let rules = format!(
        "{BUCKET}\n[[rule]]\nname = \"all\"\nclass = \"ip/16\"\nbucket = {{ size = 3, drip = 1, every = \"1h\" }}\n"
    );
    let trace = requests("203.0.113.7", &[0, 0, 0, 0]) + &requests("203.0.200.1", &[1, 1]);
    let decisions = decisions("strictest", &rules, &trace);
    assert_eq!(words(&decisions), ["admit", "admit", "refuse", "refuse", "admit", "refuse"]);
    assert_eq!(field(&decisions, "rule"), ["api", "api", "api", "api", "all", "all"]);
    assert_eq!(field(&decisions, "remaining"), [1, 0, 0, 0, 0, 0]);
}

#[test]
fn a_request_without_a_rule_has_the_reason_no_rule() {
    let rules = BUCKET.replace("class", "when = { method = \"POST\" }\nclass");
    let decisions = decisions("norule", &rules, &requests("203.0.113.7", &[0]));
    assert_eq!((&decisions[0]["rule"], &decisions[0]["reason"]), (&Value::Null, &Value::from("no-rule")));
}

#[test]
fn rules_see_method_path_headers_cookies_and_attributes() {
    let rule = |name: &str, when: &str, class: &str| {
        format!(
            "[[rule]]\nname = \"{name}\"\n{when}\nclass = \"{class}\"\nbucket = {{ size = 1, drip = 1, every = \"1h\" }}\n"
        )
    };
    let rules = [
        rule("login", "when = { method = \"POST\", path = \"/login\" }", "ip/32"),
        rule("key", "", "header:x-api-key"),
        rule("session", "", "cookie:sid"),
        rule("user", "", "descriptor:user"),
        rule("socket", "when = { upgrade = \"websocket\" }", "header:x-device-id"),
    ];
    let trace = [
        r#"{"at_ms": 0, "client": "192.0.2.1", "method": "POST", "path": "/login?next=/"}"#,
        r#"{"at_ms": 0, "client": "192.0.2.1", "headers": {"X-Api-Key": "k"}}"#,
        r#"{"at_ms": 0, "client": "192.0.2.1", "headers": {"cookie": "a=b; sid=7"}}"#,
        r#"{"at_ms": 0, "client": "192.0.2.1", "attributes": {"user": "u1"}}"#,
        r#"{"at_ms": 0, "client": "192.0.2.1", "headers": {"Upgrade": "WebSocket", "x-device-id": "d"}}"#,
    ];
    let trace: String = trace.iter().flat_map(|line| [*line, "\n", *line, "\n"]).collect();
    let decisions = decisions("classes", &rules.join("\n"), &trace);
    assert_eq!(words(&decisions), ["admit", "refuse"].repeat(5));
    let rules: Vec<_> =
        ["login", "key", "session", "user", "socket"].into_iter().flat_map(|rule| [rule, rule]).collect();
    assert_eq!(field(&decisions, "rule"), rules);
}

#[test]
fn warm_up_begins_with_the_first_line_and_bands_multiply_the_backoff() {
    let rules = r#"
        [[rule]]
        name = "reconnect"
        class = "identifier"
        window = { max = 1, per = "10s", ceiling = 3 }
        escalation = { backoff = "1s", backoff_max = "5min", levels = 10, release = "5min", elevated = 2, critical = 4 }
        warmup = "30s"
    "#;
    // Years after 1970: only the time since the first line counts.
    let begin_ms = 1_794_441_600_000;
    let at =
        |offsets: &[u64]| requests("device-7", &offsets.iter().map(|offset| begin_ms + offset).collect::<Vec<_>>());
    let band = format!("{{\"at_ms\": {}, \"band\": \"critical\"}}\n", begin_ms + 50_000);
    let trace = at(&[0, 1, 2, 3, 40_000, 40_001]) + &band + &at(&[60_000, 60_001]);
    let decisions = decisions("warmup", rules, &trace);
    assert_eq!(words(&decisions), ["admit", "admit", "admit", "refuse", "admit", "refuse", "admit", "refuse"]);
    let reasons =
        ["within-limit", "warm-up", "warm-up", "ceiling", "within-limit", "over-limit", "within-limit", "over-limit"];
    assert_eq!(field(&decisions, "reason"), reasons);
    assert_eq!(field(&decisions, "level"), [0, 0, 0, 1, 1, 2, 2, 3]);
    assert_eq!(field(&decisions, "band")[5..], ["normal", "critical", "critical"]);
    // The window has room 10 s after its last entry. That is doubled twice, and four times that is the block.
    assert_eq!(decisions[7]["retry_after_ms"], 4 * 4 * 9_999);
}

#[test]
fn time_never_runs_backwards() {
    let trace = requests("203.0.113.7", &[10_000, 10_000, 0, 10_999, 11_000]);
    let decisions = decisions("backwards", BUCKET, &trace);
    assert_eq!(words(&decisions), ["admit", "admit", "refuse", "refuse", "admit"]);
    assert_eq!(field(&decisions, "at_ms"), [10_000, 10_000, 0, 10_999, 11_000]);
    assert_eq!(field(&decisions, "retry_after_ms"), [0, 0, 1000, 1, 0]);
}

#[test]
fn a_request_is_in_flight_for_the_time_that_it_costs() {
    let rules = "[[rule]]\nname = \"one\"\nclass = \"ip/32\"\nin_flight = 1\n";
    let line = |at_ms: u64, cost_ms: u64| {
        format!("{{\"at_ms\": {at_ms}, \"client\": \"203.0.113.7\", \"cost_ms\": {cost_ms}}}\n")
    };
    let trace = line(0, 100) + &line(50, 100) + &line(99, 100) + &line(100, 0) + &line(100, 10) + &line(105, 1);
    let decisions = decisions("inflight", rules, &trace);
    assert_eq!(words(&decisions), ["admit", "refuse", "refuse", "admit", "admit", "refuse"]);
    assert_eq!(decisions[1]["reason"], "busy");
}

#[test]
fn a_request_in_the_log_of_a_gate_is_in_flight_for_its_duration() {
    let rules = "[[rule]]\nname = \"one\"\nclass = \"ip/32\"\nin_flight = 1\n";
    let json = |second: u8| {
        format!(
            "{{\"time\":\"2026-11-12T00:00:0{second}Z\",\"client\":\"203.0.113.7\",\"duration_ms\":3000,\"cost_ms\":10}}\n"
        )
    };
    let combined = |second: u8| {
        format!(
            "203.0.113.7 - - [12/Nov/2026:00:00:0{second} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"x\" rt=3.000 cost=0.010\n"
        )
    };
    for log in [[0, 2, 3].map(json), [0, 2, 3].map(combined)] {
        assert_eq!(words(&decisions("gate-log", rules, &log.concat())), ["admit", "refuse", "admit"]);
    }
}

#[test]
fn a_budget_is_charged_the_cost_and_holds_clients_in_debt() {
    let rules =
        "[gate]\ncores = 2\n[[rule]]\nname = \"cpu\"\nclass = \"ip/24\"\nbudget = { share = 0.5, burst = \"1s\" }\n";
    let line =
        |at_ms: u64| format!("{{\"at_ms\": {at_ms}, \"client\": \"203.0.113.{}\", \"cost_ms\": 1500}}\n", at_ms % 200);
    let decisions = decisions("budget", rules, &[0, 1, 2, 3, 4, 5].map(line).concat());
    assert_eq!(words(&decisions), ["admit", "hold", "hold", "hold", "hold", "refuse"]);
    assert_eq!(field(&decisions, "hold_ms"), [0, 499, 1998, 3497, 4996, 0]);
    assert_eq!(decisions[5]["retry_after_ms"], 6495);
}

#[test]
fn decisions_do_not_depend_on_how_the_lines_arrive() {
    let files = Files::new("ways");
    let config = files.write("rules.toml", BUCKET);
    let trace = requests("203.0.113.7", &[1_794_441_600_000, 1_794_441_600_000, 1_794_441_600_000, 1_794_441_601_000]);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(trace.as_bytes()).unwrap();
    let packed = encoder.finish().unwrap();
    let second = |second: u64| {
        format!("203.0.113.7 - - [12/Nov/2026:00:00:0{second} +0000] \"GET / HTTP/1.1\" 200 5 \"-\" \"x\" 0.001\n")
    };
    let json = |second: u64| {
        format!(
            "{{\"time\": \"2026-11-12T01:00:0{second}+01:00\", \"remote_addr\": \"203.0.113.7\", \"status\": 200}}\n"
        )
    };
    let combined: String = [0, 0, 0, 1].map(second).concat();
    let ways = [
        files.write("plain", &trace),
        files.write("packed.gz", &packed),
        files.write("access.log", &combined),
        files.write("marked.log", format!("\u{feff}{}", combined.replace('\n', "\r\n"))),
        files.write("access.json", [0, 0, 0, 1].map(json).concat()),
    ];
    let expect = tollgate(["replay", "--config", &config, "--decisions", &ways[0]]).stdout;
    assert_eq!(expect.lines().count(), 4);
    for way in &ways {
        assert_eq!(tollgate(["replay", "--config", &config, "--decisions", way]).stdout, expect, "{way}");
    }
    for input in [trace.as_bytes(), &packed, combined.as_bytes()] {
        assert_eq!(with_input(&["replay", "--config", &config, "--decisions", "-"], input).stdout, expect);
    }
    let named = tollgate(["replay", "--config", &config, "--decisions", "--format", "combined", &ways[2]]);
    assert_eq!(named.stdout, expect);
}

#[test]
fn an_invalid_line_is_counted_and_shown_and_does_not_stop_the_run() {
    let files = Files::new("unreadable");
    let trace = requests("203.0.113.7", &[0, 1]) + "{\"at_ms\": true}\n\nnonsense\n" + &requests("203.0.113.7", &[2]);
    let trace = files.write("trace.jsonl", trace);
    let page = tollgate(["replay", &trace]);
    assert_eq!(page.code, Some(0));
    assert!(page.stdout.contains("2 of 6 lines could not be parsed"), "{}", page.stdout);
    assert!(page.stdout.contains("line 3, column 11: expected at_ms, a number of milliseconds"), "{}", page.stdout);
    assert!(page.stdout.contains("line 5, column 1: expected a JSON object"), "{}", page.stdout);
    let decisions = tollgate(["replay", "--decisions", &trace]);
    assert_eq!((decisions.code, decisions.stdout.lines().count()), (Some(0), 3));
    assert!(
        decisions.stderr.contains("line 3, column 11") && decisions.stderr.contains("2 of 6 lines"),
        "{}",
        decisions.stderr
    );
    let strict = tollgate(["replay", "--strict", "--decisions", &trace]);
    assert_eq!((strict.code, strict.stdout.lines().count()), (Some(1), 2));
    assert!(strict.stderr.contains("line 3, column 11: expected at_ms"), "{}", strict.stderr);
}

#[test]
fn hostile_lines_neither_stop_the_run_nor_reach_the_terminal() {
    let files = Files::new("hostile");
    let mut trace = b"{\"at_ms\": 0, \"client\": \"203.0.113.7\"}\n".to_vec();
    trace.extend_from_slice(b"{\"at_ms\": 1, \"client\": \"\xff\xfe\", \"headers\": {\"user-agent\": \"\\u001b[2J\\u0007\\r\\n\\u202eevil\"}}\n");
    trace.extend_from_slice(&[b"{\"at_ms\": 2, \"client\": \"", &vec![b'x'; 10_000_000][..], b"\"}\n"].concat());
    trace.extend_from_slice(b"\0\0\0\n\r\r\n");
    trace.extend_from_slice(&[&vec![b'['; 200_000][..], b"\n"].concat());
    trace.extend_from_slice(b"{\"at_ms\": 3, \"client\": \"203.0.113.7\", \"cost_ms\": 1e14}\n{\"at_ms\": 18446744073709, \"client\": \"::1\", \"cost_ms\": 18446744073709}");
    let trace = files.write("trace.jsonl", trace);
    for extra in [&[][..], &["--json"], &["--decisions"]] {
        let run = tollgate([&["replay", "--format", "trace"], extra, &[trace.as_str()]].concat());
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let text = run.stdout + &run.stderr;
        assert!(!text.chars().any(|symbol| symbol.is_control() && symbol != '\n' || symbol == '\u{202e}'), "{text}");
        assert!(text.contains("a line of at most 256 KiB"), "{text}");
    }
    let page = tollgate(["replay", "--format", "trace", &trace]).stdout;
    assert!(page.contains(r"\x1b[2J\x07\r\n\u{202e}evil") && page.contains(r"\xff\xfe"), "{page}");
}

#[test]
fn wrong_arguments_and_configurations_exit_2() {
    let files = Files::new("wrong");
    let trace = files.write("trace.jsonl", requests("203.0.113.7", &[0]));
    let bad = files.write("bad.toml", "[[rule]]\nname = \"x\"\nclas = \"ip/32\"\n");
    let good = files.write("good.toml", BUCKET);
    let packed = files.write("packed.zst", b"\x28\xb5\x2f\xfdxxxx");
    let directory = files.0.to_str().unwrap();
    for (arguments, says) in [
        (vec!["replay"], "FILE"),
        (vec!["replay", "--format", "xml", &trace], "xml"),
        (vec!["replay", "--json", "--decisions", &trace], "--decisions"),
        (vec!["replay", "--config", &bad, &trace], "bad.toml:3:1"),
        (vec!["replay", "--config", "missing.toml", &trace], "missing.toml"),
        (vec!["replay", "--config", &good, "--domain", "uploads", &trace], "default"),
        (vec!["replay", "missing.jsonl"], "missing.jsonl"),
        (vec!["replay", directory], "directory"),
        (vec!["replay", &packed], "zstd -dc"),
    ] {
        let run = tollgate(&arguments);
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(run.stderr.to_lowercase().contains(&says.to_lowercase()), "{arguments:?}: {}", run.stderr);
    }
}

#[test]
fn a_file_of_another_format_fails_with_a_reason() {
    let files = Files::new("none");
    let poem = files.write("poem.txt", "roses are red\nviolets are blue\n");
    let run = tollgate(["replay", &poem]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("its format cannot be detected"), "{}", run.stderr);
    let run = tollgate(["replay", "--format", "combined", &poem]);
    assert_eq!(run.code, Some(1));
    assert!(run.stdout.contains("line 1, column 14: expected the time in brackets"), "{}", run.stdout);
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(requests("203.0.113.7", &vec![0; 100_000]).as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let broken = files.write("broken.gz", &packed[..packed.len() / 2]);
    let run = tollgate(["replay", &broken]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("broken.gz"), "{}", run.stderr);
}

#[test]
fn an_empty_recording_is_reported_as_such() {
    for input in [&b""[..], b"\n\r\n", b"\xef\xbb\xbf"] {
        let run = with_input(&["replay", "-"], input);
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
        assert!(run.stdout.contains("contains no request"), "{}", run.stdout);
        assert_eq!(with_input(&["replay", "--decisions", "-"], input).stdout, "");
        let json: Value = serde_json::from_str(&with_input(&["replay", "--json", "-"], input).stdout).unwrap();
        assert_eq!(json["requests"], 0);
    }
}

#[test]
fn a_closed_pipe_ends_the_run_quietly() {
    let files = Files::new("pipe");
    let trace = files.write("trace.jsonl", requests("203.0.113.7", &(0..200_000).collect::<Vec<_>>()));
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["replay", "--decisions", &trace])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr), (Some(0), Vec::new()));
}

#[test]
fn other_domains_have_their_own_rules() {
    let files = Files::new("domain");
    let rules = "[[domain]]\nname = \"uploads\"\n[[domain.rule]]\nname = \"per-client\"\nclass = \"identifier\"\nrate = { rate = \"1/s\", burst = 1 }\nhold = \"0s\"\n";
    let (config, trace) = (files.write("rules.toml", rules), files.write("trace.jsonl", requests("client-7", &[0, 1])));
    let run = tollgate(["replay", "--config", &config, "--domain", "uploads", "--decisions", &trace]);
    assert!(
        run.stdout.lines().nth(1).unwrap().contains("\"decision\": \"refuse\", \"rule\": \"per-client\""),
        "{}",
        run.stdout
    );
}

#[test]
fn a_rule_in_observe_mode_counts_and_admits() {
    let files = Files::new("observe");
    let config = files.write("rules.toml", format!("{BUCKET}mode = \"observe\"\n"));
    let trace = files.write("trace.jsonl", requests("203.0.113.7", &[0, 0, 0]));
    let page = tollgate(["replay", "--config", &config, &trace]).stdout;
    assert!(page.contains("would have held 0 and refused 1"), "{page}");
    assert!(page.contains("in observe mode: it would have held and refused these"), "{page}");
}

#[test]
fn an_account_that_is_refused_often_is_flagged() {
    let files = Files::new("flags");
    let rules = "[watch]\nflag_threshold = 20\naccount_class = \"header:x-user\"\n[[rule]]\nname = \"user\"\nclass = \"header:x-user\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";
    let line = |at_ms| format!("{{\"at_ms\": {at_ms}, \"client\": \"::1\", \"headers\": {{\"x-user\": \"u1\"}}}}\n");
    let trace: String = (0..60).map(|second| line(second * 1000)).collect();
    let (config, trace) = (files.write("rules.toml", rules), files.write("trace.jsonl", trace));
    let page = tollgate(["replay", "--config", &config, &trace]).stdout;
    assert!(page.contains("00:00:20  u1") && page.contains("after 20 refusals"), "{page}");
    let json: Value =
        serde_json::from_str(&tollgate(["replay", "--json", "--config", &config, &trace]).stdout).unwrap();
    assert_eq!(json["flags"], serde_json::json!([{"account": "u1", "at_ms": 20_000, "refused": 20}]));
    assert_eq!(json["throttled"][0]["episodes"], 1);
}

/// Accounts are flagged during a replay as a gate would flag them, and rules with `flagged` see it.
#[test]
fn a_rule_sees_flags_that_follow_from_the_recording() {
    let rules = "[watch]\nflag_threshold = 20\naccount_class = \"header:x-user\"\n\
        [[rule]]\nname = \"user\"\nunless = { flagged = true }\nclass = \"header:x-user\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n\
        [[rule]]\nname = \"flagged\"\nwhen = { flagged = true }\nclass = \"ip/32\"\nbucket = { size = 5, drip = 1, every = \"1h\" }\n";
    let line = |second: u64, user: &str| {
        format!(
            "{{\"at_ms\": {}, \"client\": \"203.0.113.7\", \"headers\": {{\"x-user\": \"{user}\"}}}}\n",
            second * 1000
        )
    };
    let trace: String = (0..40).map(|second| line(second, "u1")).chain([line(40, "u2"), line(41, "u2")]).collect();
    let decisions = decisions("flagged", rules, &trace);
    let by: Vec<_> = field(&decisions, "rule").into_iter().map(|rule| rule.as_str().unwrap()).collect();
    let flagged_at = by.iter().position(|rule| *rule == "flagged").unwrap();
    // Twenty refusals, the first one at second 1, counted at most a second later.
    assert!((21..=23).contains(&flagged_at), "{by:?}");
    assert!(by[..flagged_at].iter().chain(&by[40..]).all(|rule| *rule == "user"), "{by:?}");
    assert!(by[flagged_at..40].iter().all(|rule| *rule == "flagged"), "{by:?}");
    let words = words(&decisions);
    assert!(words[flagged_at..flagged_at + 5].iter().all(|word| *word == "admit"));
    assert!(words[flagged_at + 5..40].iter().all(|word| *word == "refuse"));
    assert_eq!(words[40..], ["admit", "refuse"]);
}

const EXAMPLE: [&str; 4] = ["replay", "--config", "examples/site.toml", "examples/access.log.gz"];

#[test]
fn the_example_log_is_what_its_script_generates() {
    let packed = std::fs::read(root().join("examples/access.log.gz")).unwrap();
    assert!(packed.len() < 1_000_000);
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
    let made = day::lines();
    assert_eq!(text.lines().count(), made.len());
    assert!(text.lines().eq(made.iter().map(String::as_str)));
}

#[test]
fn the_page_of_the_example_fits_and_is_stable() {
    let page = tollgate(EXAMPLE);
    assert_eq!((page.code, page.stderr.as_str()), (Some(0), ""));
    for says in ["Effect of the rules", "GreedyBot/2.1", "100.64.31.7", "passed", "held", "refused", "█", "2026-11-12"]
    {
        assert!(page.stdout.contains(says), "{says} is missing:\n{}", page.stdout);
    }
    for run in [&page, &tollgate(["replay", "examples/access.log.gz"])] {
        for line in run.stdout.lines() {
            assert!(line.chars().count() <= 80, "too wide: {line}");
            assert!(!line.contains('\x1b') && !line.ends_with(' '), "{line:?}");
        }
    }
    assert_eq!(tollgate(EXAMPLE).stdout, page.stdout, "a replay is the same every time");
}

#[test]
fn the_summary_as_data_agrees_with_the_decisions() {
    let json: Value = serde_json::from_str(&tollgate(EXAMPLE.iter().chain(&["--json"])).stdout).unwrap();
    let decisions = tollgate(EXAMPLE.iter().chain(&["--decisions"])).stdout;
    let count =
        |word: &str| decisions.lines().filter(|line| line.contains(&format!("\"decision\": \"{word}\""))).count();
    assert_eq!(json["requests"], decisions.lines().count());
    for (field, word) in [("admitted", "admit"), ("held", "hold"), ("refused", "refuse")] {
        assert_eq!(json["decisions"][field], count(word), "{word}");
    }
    let sum = |list: &Value, field: &str| {
        list.as_array().unwrap().iter().map(|item| item[field].as_u64().unwrap()).sum::<u64>()
    };
    for field in ["held", "refused"] {
        assert_eq!(json["decisions"][field], sum(&json["rules"], field));
        assert_eq!(json["decisions"][field], sum(&json["throttled"], field));
        assert_eq!(json["decisions"][field], sum(&json["timeline"]["columns"], field));
    }
    assert_eq!(json["requests"], sum(&json["timeline"]["columns"], "requests"));
    assert_eq!(json["decisions"]["cost_saved_ms"], sum(&json["rules"], "cost_saved_ms"));
}

#[test]
fn the_suggested_rule_is_valid_and_holds_only_the_crawler() {
    let json: Value = serde_json::from_str(&tollgate(["replay", "--json", "examples/access.log.gz"]).stdout).unwrap();
    let suggestion = &json["suggestion"];
    assert_eq!(suggestion["outliers"][0]["key"], "203.0.113.0/24");
    let files = Files::new("suggestion");
    let config = files.write("rules.toml", suggestion["toml"].as_str().unwrap());
    let run = tollgate(["replay", "--json", "--config", &config, "examples/access.log.gz"]);
    let json: Value = serde_json::from_str(&run.stdout).unwrap();
    let throttled = json["throttled"].as_array().unwrap();
    assert_eq!(throttled.len(), 1, "{throttled:?}");
    assert_eq!(throttled[0]["key"], "203.0.113.0/24");
    let had_ms = suggestion["outliers"][0]["spent"].as_u64().unwrap() - throttled[0]["cost_saved_ms"].as_u64().unwrap();
    // A held request is charged before it is forwarded, so the excess is at most one hold.
    assert!(had_ms <= suggestion["outliers"][0]["allowed"].as_u64().unwrap() + 10_000, "{had_ms}");
    assert_eq!(json["suggestion"], Value::Null);
}

#[test]
fn a_path_is_matched_in_any_spelling() {
    let rules =
        "[[rule]]\nname = 'login'\nwhen = { path = '/login' }\nclass = 'ip/32'\nwindow = { max = 1, per = '1h' }\n";
    let paths =
        ["/login", "/%6cogin", "//login", "/login/", "/login;x?y", "/x/../login", "http://a/./login", "/logout"];
    let line = |path: &&str| format!("{{\"at_ms\": 1, \"client\": \"192.0.2.1\", \"path\": \"{path}\"}}\n");
    let decisions = decisions("spellings", rules, &paths.iter().map(line).collect::<String>());
    let (first, rest) = (["admit"], ["refuse"; 6]);
    assert_eq!(words(&decisions), [&first[..], &rest, &first].concat());
}

#[test]
fn lines_of_one_header_are_joined_in_a_trace() {
    let rules = "[[rule]]\nname = 'each'\nclass = 'cookie:sid'\nwindow = { max = 1, per = '1h' }\n\
                 [[rule]]\nname = 'bots'\nclass = 'header:x-key'\nwindow = { max = 1, per = '1h' }\n";
    let headers = [
        r#""cookie": "sid=1""#,
        r#""cookie": ["a=b", "sid=1"]"#,
        r#""X-Key": ["a", "b"]"#,
        r#""x-key": "a, b""#,
        r#""x-key": "a""#,
    ];
    let line = |headers: &&str| format!("{{\"at_ms\": 1, \"client\": \"192.0.2.1\", \"headers\": {{{headers}}}}}\n");
    let decisions = decisions("joined", rules, &headers.iter().map(line).collect::<String>());
    assert_eq!(words(&decisions), ["admit", "refuse", "admit", "refuse", "admit"]);
}

/// A device that reconnects after each of `gaps_ms` in turn until it is refused, then waits as announced and goes on.
/// Returns the announced waits in seconds, rounded up, with the rules that decided.
fn waits_of_a_device(test: &str, band: &str, gaps_ms: &[u64], refusals: usize) -> Vec<(u64, String)> {
    let page = std::fs::read_to_string(root().join("docs/coming-from/screentinker.md")).unwrap();
    let rules = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap().to_owned();
    let connect = |at_ms: u64, device: &str| {
        format!(
            "{{\"at_ms\": {at_ms}, \"client\": \"192.0.2.1\", \"headers\": {{\"upgrade\": \"websocket\", \"x-device-id\": \"{device}\"}}}}\n"
        )
    };
    // Another device starts the clock, so that the warm-up is over.
    let mut trace = connect(0, "first") + &format!("{{\"at_ms\": 60000, \"band\": \"{band}\"}}\n");
    let (mut at_ms, mut waits, mut gaps_ms) = (60_000, Vec::new(), gaps_ms.iter().cycle());
    while waits.len() < refusals {
        trace += &connect(at_ms, "broken");
        let last = decisions(test, &rules, &trace).pop().unwrap();
        match last["decision"].as_str().unwrap() {
            "refuse" => {
                let wait_ms = last["retry_after_ms"].as_u64().unwrap();
                waits.push((wait_ms.div_ceil(1000), last["rule"].as_str().unwrap().to_owned()));
                at_ms += wait_ms;
            }
            _ => at_ms += gaps_ms.next().unwrap(),
        }
    }
    waits
}

#[test]
fn a_device_of_screentinker_waits_as_its_page_shows() {
    for (band, expect) in
        [("normal", &[10, 20, 40, 60, 60, 60][..]), ("elevated", &[20, 40, 60, 60]), ("critical", &[40, 60, 60])]
    {
        // Some attempts take longer than others, as those of a real device do.
        for gaps_ms in [&[1][..], &[0, 40, 3]] {
            let waits = waits_of_a_device("screentinker", band, gaps_ms, expect.len());
            assert_eq!(waits.iter().map(|wait| wait.0).collect::<Vec<_>>(), expect, "{band}: {waits:?}");
        }
    }
}

/// The decisions on a device that connects at these times, by the rule `reconnect` of ScreenTinker's page.
fn reconnects(test: &str, band: &str, times_ms: &[u64]) -> Vec<Value> {
    let page = std::fs::read_to_string(root().join("docs/coming-from/screentinker.md")).unwrap();
    let rule = page.split("[[rule]]").nth(1).unwrap();
    assert!(rule.contains("name       = \"reconnect\""), "{rule}");
    let connect = |at_ms: &u64| {
        format!(
            "{{\"at_ms\": {at_ms}, \"client\": \"192.0.2.1\", \"headers\": {{\"upgrade\": \"websocket\", \"x-device-id\": \"broken\"}}}}\n"
        )
    };
    // The first line starts the clock of the warm-up.
    let clock = format!("{{\"at_ms\": 0, \"client\": \"192.0.2.2\"}}\n{{\"at_ms\": 0, \"band\": \"{band}\"}}\n");
    let trace = clock + &times_ms.iter().map(connect).collect::<String>();
    decisions(test, &format!("[[rule]]{rule}"), &trace).split_off(1)
}

/// The sixth connect comes 300 ms before the window has room, so only the backoff decides how long the wait is.
const BARELY_TOO_FAST_MS: [u64; 6] = [0, 2400, 4800, 7200, 9600, 9700];

/// RECONNECT_BASE_BACKOFF_MS, RECONNECT_MAX_BACKOFF_MS, RECONNECT_MAX_LEVEL and RECONNECT_BAND_*_MULT: the backoff is
/// 1 s, twice as long with each level up to 60 s, and twice or four times as long in the other bands.
#[test]
fn the_backoff_of_screentinkers_page_is_its_formula_in_every_band() {
    for (band, multiplier) in [("normal", 1), ("elevated", 2), ("critical", 4)] {
        let (mut times_ms, mut begin_ms) = (Vec::new(), 60_000);
        for violation in 1..=12 {
            times_ms.extend(BARELY_TOO_FAST_MS.map(|offset_ms| begin_ms + offset_ms));
            let decisions = reconnects(&format!("screentinker-formula-{band}"), band, &times_ms);
            let (refused, admitted) = decisions[decisions.len() - 6..].split_last().unwrap();
            assert_eq!(words(admitted), ["admit"; 5], "{band}, violation {violation}");
            let level = violation.min(10);
            let wait_ms = ((1000 * multiplier) << (level - 1)).min(60_000);
            let got = ["reason", "level", "retry_after_ms"].map(|name| refused[name].clone());
            let expect = [Value::from("over-limit"), level.into(), wait_ms.into()];
            assert_eq!(got, expect, "{band}, violation {violation}");
            begin_ms += BARELY_TOO_FAST_MS[5] + wait_ms;
        }
    }
}

/// RECONNECT_RELEASE_MS: 30 s after the end of a block, the next one is as short as the first.
#[test]
fn a_device_of_screentinker_is_forgiven_after_the_release_time() {
    // The first block begins at 69.7 s and ends at 70.7 s.
    for (violation_ms, wait_ms) in [(100_699, 2000), (100_700, 1000)] {
        let again_ms = BARELY_TOO_FAST_MS.map(|offset_ms| violation_ms - BARELY_TOO_FAST_MS[5] + offset_ms);
        let times_ms = [BARELY_TOO_FAST_MS.map(|offset_ms| 60_000 + offset_ms), again_ms].concat();
        let last = reconnects("screentinker-release", "normal", &times_ms).pop().unwrap();
        assert_eq!((&last["decision"], &last["retry_after_ms"]), (&"refuse".into(), &wait_ms.into()), "{violation_ms}");
    }
}

/// RECONNECT_WINDOW_MS, RECONNECT_BASE_MAX, RECONNECT_HARD_CEILING and RECONNECT_WARMUP_MS, each at its boundary.
#[test]
fn the_window_the_ceiling_and_the_warm_up_of_screentinkers_page_end_exactly() {
    let last = |test: &str, times_ms: &[u64]| {
        let last = reconnects(test, "critical", times_ms).pop().unwrap();
        ["decision", "reason", "retry_after_ms"].map(|name| last[name].to_string().replace('"', ""))
    };
    assert_eq!(last("screentinker-max", &[60_000; 5]), ["admit", "within-limit", "0"]);
    assert_eq!(last("screentinker-window", &[60_000; 6]), ["refuse", "over-limit", "40000"]);
    let sixth_at = |at_ms| [[60_000; 5].as_slice(), &[at_ms]].concat();
    assert_eq!(last("screentinker-in-window", &sixth_at(69_999)), ["refuse", "over-limit", "4000"]);
    assert_eq!(last("screentinker-after-window", &sixth_at(70_000)), ["admit", "within-limit", "0"]);
    assert_eq!(last("screentinker-warm-up", &[29_999; 20]), ["admit", "warm-up", "0"]);
    // No band counts during the warm-up.
    assert_eq!(last("screentinker-ceiling", &[29_999; 21]), ["refuse", "ceiling", "10000"]);
    assert_eq!(last("screentinker-warm", &[30_000; 6]), ["refuse", "over-limit", "40000"]);
}

/// Below five connects in ten seconds, but more than twenty in five minutes.
#[test]
fn a_device_of_screentinker_that_flaps_is_blocked_for_the_cooldown_first() {
    let waits = waits_of_a_device("screentinker-flap", "normal", &[3000], 6);
    let expect = [60, 120, 240, 480, 960, 1800].map(|wait_s| (wait_s, "flap".to_owned()));
    assert_eq!(waits, expect);
}

/// docs/coming-from/fail2ban.md: each ban is twice as long as the one before, up to a day.
#[test]
fn an_address_that_returns_after_each_ban_is_refused_twice_as_long() {
    let page = std::fs::read_to_string(root().join("docs/coming-from/fail2ban.md")).unwrap();
    let rules = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let login = |at_ms: u64| {
        format!("{{\"at_ms\": {at_ms}, \"client\": \"203.0.113.7\", \"method\": \"POST\", \"path\": \"/login\"}}\n")
    };
    let (mut trace, mut at_ms, mut bans_min) = (String::new(), 0, Vec::new());
    while bans_min.len() < 9 {
        (0..6).for_each(|attempt| trace += &login(at_ms + attempt));
        let decisions = decisions("fail2ban", rules, &trace);
        let (refused, admitted) = decisions[decisions.len() - 6..].split_last().unwrap();
        assert!(admitted.iter().all(|decision| decision["decision"] == "admit"), "maxretry = 5: {admitted:?}");
        let wait_ms = refused["retry_after_ms"].as_u64().unwrap();
        bans_min.push(wait_ms.div_ceil(60_000));
        at_ms += 5 + wait_ms;
    }
    assert_eq!(bans_min, [10, 20, 40, 80, 160, 320, 640, 1280, 1440]);
    let own: String = (0..20).map(|at_ms| login(at_ms).replace("203.0.113.7", "10.1.2.3")).collect();
    assert_eq!(words(&decisions("fail2ban-own", rules, &own)), ["admit"; 20], "ignoreip");
}
