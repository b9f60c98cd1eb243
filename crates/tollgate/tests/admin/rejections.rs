//! Reports of refusals lead to episodes and flags.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::flood::connect;
use crate::support::{Gate, PATIENCE, ask, eventually};

fn report(gate: &Gate, id: &str, entries: &[(&str, &str, i64)]) -> u16 {
    let entries: Vec<_> = entries
        .iter()
        .map(|(class, key, rejected)| json!({ "class": class, "key": key, "rejected": rejected }))
        .collect();
    gate.post("/api/v1/rejections", &json!({ "id": id, "entries": entries })).status
}

fn flagged(gate: &Gate) -> Vec<String> {
    let flags = gate.json("/api/v1/flags");
    flags["flags"].as_array().unwrap().iter().map(|flag| flag["account"].as_str().unwrap().to_owned()).collect()
}

fn clear(gate: &Gate, account: &str, body: &Value) -> u16 {
    let json = [("Content-Type", "application/json")];
    ask(gate.admin, "DELETE", &format!("/api/v1/flags/{account}"), &json, &body.to_string()).status
}

const DURABLE: &str = "[watch]\nstate_dir = \"FOLDER/state\"\n";

#[test]
fn the_threshold_is_inclusive_and_a_report_counts_once() {
    let gate = Gate::start("");
    assert_eq!(report(&gate, "r1", &[("user", "u1", 999), ("ip/32", "203.0.113.7", 5000)]), 202);
    assert_eq!(report(&gate, "r1", &[("user", "u1", 999)]), 202);
    assert!(flagged(&gate).is_empty());
    assert_eq!(report(&gate, "r2", &[("user", "u1", 1)]), 202);
    assert_eq!(flagged(&gate), ["u1"]);
    let flags = gate.json("/api/v1/flags");
    let flag = &flags["flags"][0];
    let absent = json!({ "cleared_at": null, "cleared_by": null, "note": null, "account": "u1", "rejected": 1000,
        "flagged_at": flag["flagged_at"] });
    assert_eq!(*flag, absent);
    assert!(flag["flagged_at"].as_str().unwrap().ends_with('Z'));
    let line: Value = serde_json::from_str(&gate.logged("account flagged")).unwrap();
    assert_eq!((&line["account"], &line["rejected"]), (&json!("u1"), &json!(1000)));
    assert_eq!((&line["threshold"], &line["window_ms"]), (&json!(1000), &json!(600_000)));
    assert_eq!((&flags["threshold"], &flags["window_ms"]), (&json!(1000), &json!(600_000)));
    let episodes = gate.json("/api/v1/episodes");
    assert_eq!(episodes["total"], 2);
    assert!(gate.get("/metrics").body.contains("tollgate_watch_flags 1"));
}

#[test]
fn a_long_note_or_name_in_the_query_is_reported_as_such() {
    let gate = Gate::start("");
    assert_eq!(report(&gate, "r1", &[("user", "u1", 1000)]), 202);
    let (note, name) = ("x".repeat(1001), "x".repeat(101));
    for (query, problem) in [
        (String::new(), "`note` is missing"),
        (format!("note={note}"), "`note` is longer than 1000 characters"),
        (format!("note=x&name={name}"), "`name` is longer than 100 characters"),
    ] {
        let answer = ask(gate.admin, "DELETE", &format!("/api/v1/flags/u1?{query}"), &[], "");
        assert!(answer.status == 400 && answer.body.contains(problem), "{query}: {}", answer.body);
    }
    assert_eq!(ask(gate.admin, "DELETE", "/api/v1/flags/u1?note=x&name=me", &[], "").status, 200);
}

#[test]
fn without_flags_refusals_are_shown_and_nobody_is_flagged() {
    let gate = Gate::start("[watch]\nflags = false\n");
    for (id, count) in [("r1", 1_000_000), ("r2", i64::MAX), ("r3", i64::MAX), ("r4", i64::MAX)] {
        assert_eq!(report(&gate, id, &[("user", "u1", count)]), 202);
    }
    let flags = gate.json("/api/v1/flags");
    assert_eq!((&flags["threshold"], &flags["total"]), (&Value::Null, &json!(0)));
    assert_eq!(gate.json("/api/v1/episodes")["episodes"][0]["key"], "u1");
}

#[test]
fn recent_episodes_are_listed_by_their_last_refusal() {
    let gate = Gate::start("");
    // The one with the most refusals is the oldest.
    for (key, count) in [("oldest", 900), ("older", 5), ("newest", 1)] {
        assert_eq!(report(&gate, key, &[("user", key, count)]), 202);
        std::thread::sleep(Duration::from_millis(5));
    }
    let listed = || {
        let episodes = gate.json("/api/v1/episodes");
        let keys = episodes["episodes"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap().to_owned());
        keys.collect::<Vec<_>>()
    };
    assert_eq!(listed(), ["newest", "older", "oldest"]);
    assert_eq!(report(&gate, "again", &[("user", "oldest", 1)]), 202);
    assert_eq!(listed(), ["oldest", "newest", "older"]);
}

#[test]
fn flags_are_listed_the_latest_first() {
    let gate = Gate::start("");
    for account in ["b", "a", "c"] {
        assert_eq!(report(&gate, account, &[("user", account, 1000)]), 202);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(flagged(&gate), ["c", "a", "b"]);
}

/// A report of 16 MiB takes many times as much memory while it is parsed: 256 at once would exhaust a gate's memory.
#[test]
fn few_reports_are_processed_at_once_and_one_address_gets_half_of_the_permits() {
    let gate = Gate::start("");
    let body = json!({ "id": "r1", "entries": [{ "class": "user", "key": "u1", "rejected": 1 }] }).to_string();
    // A client that sends `Expect` receives 100 when its body is read.
    let begin = |from| {
        let mut stream = connect(&gate, from);
        let length = body.len();
        write!(stream, "POST /api/v1/rejections HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n").unwrap();
        stream
    };
    let status = |stream: &mut TcpStream, patience: Duration| {
        stream.set_read_timeout(Some(patience)).unwrap();
        let mut head = [0; 12];
        stream.read_exact(&mut head).ok().map(|()| String::from_utf8_lossy(&head[9..]).into_owned())
    };
    let mut read: Vec<_> = (0..2).map(|_| begin([127, 0, 0, 1])).collect();
    for stream in &mut read {
        assert_eq!(status(stream, PATIENCE).as_deref(), Some("100"));
    }
    let mut third = begin([127, 0, 0, 1]);
    assert_eq!(status(&mut third, Duration::from_millis(300)), None);
    let mut other = begin([127, 0, 0, 2]);
    assert_eq!(status(&mut other, PATIENCE).as_deref(), Some("100"), "another address has turns left");
    read[0].write_all(body.as_bytes()).unwrap();
    let answered = status(&mut third, PATIENCE).unwrap();
    // A report that has waited too long is rejected.
    assert!(answered == "100" || answered == "503", "{answered}");
}

#[test]
fn many_invented_accounts_do_not_prevent_a_flag() {
    let gate = Gate::start("");
    for round in 0..4 {
        let mut entries: Vec<_> = (0..30_000)
            .map(|number| json!({ "class": "user", "key": format!("sprayed-{round}-{number}"), "rejected": 1 }))
            .collect();
        entries.push(json!({ "class": "user", "key": "offender", "rejected": 250 }));
        let answer = gate.post("/api/v1/rejections", &json!({ "id": format!("r{round}"), "entries": entries }));
        assert_eq!(answer.status, 202);
        assert_eq!(answer.json()["flagged"], if round == 3 { json!(["offender"]) } else { json!([]) });
    }
    assert_eq!(flagged(&gate), ["offender"]);
    let episodes = gate.json("/api/v1/episodes?search=offender");
    assert_eq!(episodes["episodes"][0]["rejected"], 1000, "who is behind it is seen, too: {episodes}");
}

#[test]
fn a_cleared_flag_stays_cleared_and_its_history_is_kept() {
    let gate = Gate::start(DURABLE);
    report(&gate, "r1", &[("user", "a/b c", 5000)]);
    assert_eq!(clear(&gate, "a%2Fb%20c", &json!({})), 400, "a note is asked for");
    assert_eq!(clear(&gate, "a%2Fb%20c", &json!({ "name": "ann", "note": "a load test" })), 200);
    assert_eq!(clear(&gate, "a%2Fb%20c", &json!({ "name": "ann", "note": "again" })), 404);
    assert!(flagged(&gate).is_empty());
    report(&gate, "r2", &[("user", "a/b c", 999)]);
    assert!(flagged(&gate).is_empty(), "what was refused before does not count any more");
    let past = gate.json("/api/v1/flags?history=1")["flags"][0].clone();
    assert_eq!((&past["cleared_by"], &past["note"]), (&json!("ann"), &json!("a load test")));
    assert!(past["cleared_at"].is_string());
    let audit = gate.json("/api/v1/audit");
    assert!(audit["changes"][0]["what"].as_str().unwrap().contains("a load test"));
    let config = std::fs::read_to_string(gate.path().join("tollgate.toml")).unwrap();
    let again = Gate::start_in(gate.kill(), &config[config.find("[watch]").unwrap()..]);
    assert!(flagged(&again).is_empty());
    assert_eq!(again.json("/api/v1/flags?history=1")["flags"][0], past);
    report(&again, "r3", &[("user", "a/b c", 1)]);
    assert_eq!(flagged(&again), ["a/b c"]);
}

#[test]
fn acknowledged_reports_survive_a_kill() {
    let gate = Gate::start(DURABLE);
    for number in 0..20 {
        assert_eq!(report(&gate, &format!("r{number}"), &[("user", &format!("u{number}"), 999)]), 202);
    }
    assert_eq!(report(&gate, "flag", &[("user", "flagged", 1000)]), 202);
    let again = Gate::start_in(gate.kill(), DURABLE);
    assert_eq!(flagged(&again), ["flagged"]);
    assert_eq!(again.json("/api/v1/episodes")["total"], 21);
    for number in 0..20 {
        let id = format!("r{number}");
        let repeated =
            json!({ "id": id, "entries": [{ "class": "user", "key": format!("u{number}"), "rejected": 999 }] });
        assert_eq!(again.post("/api/v1/rejections", &repeated).json()["repeated"], true);
    }
    for number in 0..20 {
        report(&again, &format!("s{number}"), &[("user", &format!("u{number}"), 1)]);
    }
    assert_eq!(flagged(&again).len(), 21);
}

/// A limit on the file size acts like a full disk.
#[test]
fn a_report_that_cannot_be_written_is_rejected_and_no_acknowledged_one_is_lost() {
    let limited = ["sh", "-c", "ulimit -S -f 16; exec \"$@\"", "sh"];
    let gate = Gate::start_by(&limited, tempfile::tempdir().unwrap(), DURABLE);
    let (mut acknowledged, mut refused) = (0, 0);
    for number in 0..60 {
        let key = format!("u{number}-{}", "x".repeat(200));
        match report(&gate, &format!("r{number}"), &[("user", &key, 1000)]) {
            202 => acknowledged += 1,
            503 => refused += 1,
            status => panic!("{status}"),
        }
    }
    assert!(acknowledged > 0 && refused > 0, "{acknowledged} {refused}");
    assert_eq!(flagged(&gate).len(), acknowledged, "what is refused is not counted");
    assert_eq!(gate.json("/api/v1/status")["watch"]["kept"], false);
    assert_eq!(gate.request("/", &[]).status, 200, "requests flow");
    // Raise the limit again.
    let raised = Command::new("prlimit").args(["--fsize=unlimited", "--pid", &gate.id().to_string()]).status().unwrap();
    assert!(raised.success());
    assert_eq!(report(&gate, "r59", &[("user", "late", 1000)]), 202);
    let again = Gate::start_in(gate.kill(), DURABLE);
    assert_eq!(flagged(&again).len(), acknowledged + 1);
}

#[test]
fn a_clearing_that_cannot_be_written_has_no_effect() {
    let unharmed = ["sh", "-c", "trap '' XFSZ; exec \"$@\"", "sh"];
    let gate = Gate::start_by(&unharmed, tempfile::tempdir().unwrap(), DURABLE);
    let may_write = |bytes: &str| {
        let limit = format!("--fsize={bytes}:unlimited");
        assert!(Command::new("prlimit").args([&limit, "--pid", &gate.id().to_string()]).status().unwrap().success());
    };
    assert_eq!(report(&gate, "r1", &[("user", "u1", 1000)]), 202);
    let (before, changes) = (gate.json("/api/v1/flags?history=1"), gate.json("/api/v1/audit"));
    // Less than the current size: neither an append nor a rewrite fits.
    may_write("64");
    let note = json!({ "name": "ann", "note": "a load test" });
    for _ in 0..3 {
        assert_eq!(clear(&gate, "u1", &note), 503);
        assert_eq!(gate.json("/api/v1/flags?history=1"), before);
        assert_eq!(gate.json("/api/v1/audit"), changes);
    }
    assert_eq!(gate.request("/", &[]).status, 200, "requests flow");
    may_write("unlimited");
    assert_eq!(clear(&gate, "u1", &note), 200);
    let again = Gate::start_in(gate.kill(), DURABLE);
    assert!(flagged(&again).is_empty());
    assert_eq!(again.json("/api/v1/flags?history=1")["flags"][0]["cleared_by"], "ann");
}

/// Somebody may delete the journal, or its directory, while the gate runs.
#[test]
fn reports_acknowledged_after_the_journal_was_deleted_survive() {
    let mut gate = Gate::start(DURABLE);
    assert_eq!(report(&gate, "r1", &[("user", "before", 1000)]), 202);
    let state = gate.path().join("state");
    std::fs::remove_file(state.join("watch.journal")).unwrap();
    eventually("a report counts again", || report(&gate, "r2", &[("user", "after", 1000)]) == 202);
    assert_eq!(clear(&gate, "before", &json!({ "name": "ann", "note": "x" })), 200);
    gate = Gate::start_in(gate.kill(), DURABLE);
    assert_eq!(flagged(&gate), ["after"]);
    assert_eq!(gate.json("/api/v1/flags?history=1")["flags"].as_array().unwrap().len(), 2);

    std::fs::remove_dir_all(gate.path().join("state")).unwrap();
    let statuses = [report(&gate, "r3", &[("user", "late", 1000)]), report(&gate, "r3", &[("user", "late", 1000)])];
    assert!(statuses.iter().all(|status| [202, 503].contains(status)), "{statuses:?}");
    let acknowledged = statuses.contains(&202);
    assert_eq!(flagged(&gate).contains(&"late".to_owned()), acknowledged);
    assert_eq!(gate.request("/", &[]).status, 200, "requests flow");
    if !acknowledged {
        std::fs::create_dir(gate.path().join("state")).unwrap();
        eventually("a report counts again", || report(&gate, "r3", &[("user", "late", 1000)]) == 202);
    }
    gate = Gate::start_in(gate.kill(), DURABLE);
    let mut flags = flagged(&gate);
    flags.sort_unstable();
    assert_eq!(flags, ["after", "late"]);
}

#[test]
fn invalid_reports_are_rejected_and_invalid_entries_ignored() {
    let gate = Gate::start("");
    for body in
        ["", "nonsense", "[]", "{}", r#"{"id": "", "entries": []}"#, r#"{"id": "x", "entries": [{"class": "user"}]}"#]
    {
        let answer = ask(gate.admin, "POST", "/api/v1/rejections", &[("Content-Type", "application/json")], body);
        assert_eq!(answer.status, 400, "{body}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    let odd = [("", "k", 1), ("user", "", 1), ("user", "k", 0), ("user", "k", -5)];
    assert_eq!(report(&gate, "odd", &odd), 202);
    assert_eq!(gate.json("/api/v1/status")["watch"]["refusals_ignored"], 4);
    let large =
        format!(r#"{{"id": "x", "entries": [{{"class": "{}", "key": "k", "rejected": 1}}]}}"#, "x".repeat(17 << 20));
    assert_eq!(ask(gate.admin, "POST", "/api/v1/rejections", &[], &large).status, 413);
}

#[test]
fn refusals_of_the_gate_lead_to_an_episode_and_a_flag() {
    let rule = "[[rule]]\nname = \"api\"\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n\
        [watch]\nflag_threshold = 5\naccount_class = \"header:x-api-key\"\n";
    let gate = Gate::start(rule);
    for number in 0..6 {
        let status = gate.request("/", &[("X-Api-Key", "<script>alert(1)</script>")]).status;
        assert_eq!(status, if number == 0 { 200 } else { 429 });
    }
    eventually("a flag", || !flagged(&gate).is_empty());
    assert_eq!(flagged(&gate), ["<script>alert(1)</script>"]);
    let episodes = gate.json("/api/v1/episodes?search=SCRIPT");
    let episode = &episodes["episodes"][0];
    assert_eq!((&episode["class"], &episode["rejected"]), (&json!("header:x-api-key"), &json!(5)));
    assert_eq!(gate.json("/api/v1/episodes?search=nobody")["episodes"], json!([]));
}
