//! `tollgate doctor` and `tollgate flags` on a terminal.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Output};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Gate, ask, eventually};
use crate::terminal::{Terminal, plain};

const TOKEN: &str = "an-operators-token-of-some-length";
const RULE: &str = "trusted_proxies = [\"127.0.0.1\"]\n\
    [[rule]]\nname = \"api\"\nclass = \"ip/32\"\nbucket = { size = 2, drip = 1, every = \"1h\" }\n";
const OFFENDER: &str = "203.0.113.7";

/// The program with these arguments and this admin address.
fn tollgate(arguments: &[&str], admin: SocketAddr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).args(["--admin", &format!("http://{admin}")]).env_remove("TOLLGATE_TOKEN");
    command
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Sends requests of two clients, one of which is refused three times, and waits until both are listed.
fn callers(gate: &Gate) {
    for client in [OFFENDER, OFFENDER, OFFENDER, OFFENDER, OFFENDER, "198.51.100.1"] {
        gate.request("/", &[("X-Forwarded-For", client), ("User-Agent", "tester")]);
    }
    let token = format!("Bearer {TOKEN}");
    for (class, requests) in [("ip/32", [5, 1]), ("ip/24", [5, 1]), ("ip/16", [5, 1]), ("user-agent", [6, 0])] {
        eventually("both are seen", || {
            let path = format!("/api/v1/buckets?class={class}");
            let seen = ask(gate.admin, "GET", &path, &[("Authorization", &token)], "").json();
            let mut counts: Vec<_> =
                seen["buckets"].as_array().unwrap().iter().map(|one| one["requests"].as_u64().unwrap_or(0)).collect();
            counts.resize(2, 0);
            counts.sort_unstable_by(|a, b| b.cmp(a));
            counts == requests
        });
    }
}

fn guarded() -> Gate {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), format!("{TOKEN}\n")).unwrap();
    Gate::start_in(folder, &format!("{RULE}[admin]\ntoken_file = \"FOLDER/token\"\n"))
}

#[test]
fn the_table_is_printed_once_with_a_valid_token() {
    let gate = guarded();
    callers(&gate);
    let (code, table, errors) = said(&tollgate(&["doctor", "--once"], gate.admin).output().unwrap());
    assert_eq!((code, &*table), (Some(1), ""), "{errors}");
    assert!(errors.contains("requires a token") && errors.contains("--token-file"), "{errors}");

    let file = gate.path().join("token").display().to_string();
    let with_file = tollgate(&["doctor", "--once", "--token-file", &file], gate.admin).output().unwrap();
    let (code, table, errors) = said(&with_file);
    assert_eq!((code, &*errors), (Some(0), ""));
    assert!(table.starts_with("Class: ip/32\n+---------+"), "{table}");
    assert!(table.contains("| Wait[s] | Cpu[s] | Req/s | Last[s] | Share[%] | Held | Refused | "), "{table}");
    let row = table.lines().find(|line| line.contains("203.0.113.7/32")).unwrap();
    let cells: Vec<_> = row.split('|').map(str::trim).collect();
    assert_eq!((cells[7], cells[8]), ("3", "203.0.113.7/32"), "{row}");
    assert_eq!(table.lines().count(), 4 + 2 + 1, "{table}");

    // The names of Tempomat's doctor.
    for (bucket, class, key) in [
        ("Slash32", "ip/32", "203.0.113.7/32"),
        ("Slash24", "ip/24", "203.0.113.0/24"),
        ("Slash16", "ip/16", "203.0.0.0/16"),
        ("UserAgent", "user-agent", "tester"),
    ] {
        let mut doctor = tollgate(&["doctor", "--once", "--bucket", bucket], gate.admin);
        let (code, table, _) = said(&doctor.env("TOLLGATE_TOKEN", TOKEN).output().unwrap());
        assert_eq!(code, Some(0), "{bucket}");
        assert!(table.starts_with(&format!("Class: {class}\n")) && table.contains(&format!(" {key} ")), "{table}");
    }
    let wrong = tollgate(&["doctor", "--once"], gate.admin).env("TOLLGATE_TOKEN", "wrong").output().unwrap();
    assert_eq!(said(&wrong).0, Some(1));
    let absent = tollgate(&["doctor", "--once", "--token-file", "/nowhere/token"], gate.admin).output().unwrap();
    assert_eq!(said(&absent).0, Some(2), "an argument is wrong, not the gate");
}

#[test]
fn all_data_are_printed_as_json() {
    let gate = Gate::start(RULE);
    callers(&gate);
    let asked = tollgate(&["doctor", "--json", "--class", "user-agent", "--top", "1"], gate.admin).output().unwrap();
    let (code, text, errors) = said(&asked);
    assert_eq!((code, &*errors), (Some(0), ""));
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&told["status"]["role"], &told["status"]["requests"]["total"]), (&json!("gate"), &json!(6)));
    assert_eq!((&told["class"], &told["buckets"][0]["key"]), (&json!("user-agent"), &json!("tester")));
    let (code, _, errors) = said(&tollgate(&["doctor", "--json", "--class", "x"], gate.admin).output().unwrap());
    assert_eq!(code, Some(1));
    assert!(errors.contains("classes are ip/32"), "{errors}");
    let nowhere = tollgate(&["doctor", "--json"], ([127, 0, 0, 1], 1).into()).output().unwrap();
    assert!(said(&nowhere).2.contains("is a gate running there?"));
    assert_eq!(said(&nowhere).0, Some(1));
}

#[test]
fn flags_are_listed_and_cleared_with_a_note() {
    let gate = guarded();
    let run =
        |arguments: &[&str]| said(&tollgate(arguments, gate.admin).env("TOLLGATE_TOKEN", TOKEN).output().unwrap());
    assert_eq!(run(&["flags", "list"]).1, "no account is flagged\n");
    let account = "a/b \u{1b}[2J?c";
    let report = json!({ "id": "r1", "entries": [{ "class": "user", "key": account, "rejected": 1000 }] });
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("Authorization", &*bearer)];
    let taken = ask(gate.admin, "POST", "/api/v1/rejections", &headers, &report.to_string());
    assert_eq!(taken.status, 202);

    let (code, text, _) = run(&["flags", "list"]);
    assert_eq!(code, Some(0));
    assert!(text.starts_with("a/b \\x1b[2J?c  flagged 2") && text.ends_with("  refused 1000\n"), "{text:?}");
    let told: Value = serde_json::from_str(&run(&["flags", "list", "--json"]).1).unwrap();
    assert_eq!(told["flags"][0]["account"], account);
    assert_eq!(run(&["flags", "clear", account]).0, Some(2), "a note is required");
    let (code, text, errors) = run(&["flags", "clear", account, "--note", "a load test", "--name", "Ann"]);
    assert_eq!((code, &*text, &*errors), (Some(0), "cleared the flag of a/b \\x1b[2J?c\n", ""));
    assert_eq!(run(&["flags", "list"]).1, "no account is flagged\n");
    assert!(run(&["flags", "list", "--history"]).1.ends_with(" by Ann: a load test\n"));
    let (code, _, errors) = run(&["flags", "clear", account, "--note", "again"]);
    assert_eq!((code, &*errors), (Some(1), "that account is not flagged\n"));
    let no_token = tollgate(&["flags", "list"], gate.admin).output().unwrap();
    assert_eq!(said(&no_token).0, Some(1));
}

fn has(screen: &[String], text: &str) -> bool {
    screen.iter().any(|line| line.contains(text))
}

/// Whether a screen is filled and no line is too wide, which would wrap and move all others.
fn fits(screen: &[String], columns: u16, rows: u16) -> bool {
    screen.len() == usize::from(rows) && screen.iter().all(|line| line.chars().count() <= columns.into())
}

#[test]
fn the_live_view_fits_every_terminal_while_it_is_resized() {
    let gate = Gate::start(RULE);
    callers(&gate);
    let terminal = Terminal::start(&mut tollgate(&["doctor"], gate.admin), 80, 24);
    let is_live = |screen: &[String]| has(screen, "q quit") && has(screen, "203.0.113.7/32");
    terminal.shows("all of it", |screen| fits(screen, 80, 24) && is_live(screen) && has(screen, "admitted"));
    for (columns, rows) in [(20, 5), (200, 60), (40, 12), (80, 24), (20, 5)] {
        terminal.resize(columns, rows);
        let screen = terminal.shows("a frame of the new size", |screen| screen.len() == usize::from(rows));
        assert!(fits(&screen, columns, rows) && has(&screen, "q quit"), "{columns}x{rows}: {screen:#?}");
        let all_heads = screen.iter().any(|line| line.contains("refused last[s]"));
        assert_eq!(all_heads, columns >= 80, "{columns}x{rows}: {screen:#?}");
    }
    // The page of a client, on the smallest terminal and then on a large one.
    terminal.press("\r");
    let screen = terminal.shows("a page", |screen| has(screen, "esc back"));
    assert!(fits(&screen, 20, 5), "{screen:#?}");
    terminal.resize(200, 60);
    let screen = terminal.shows("a large page", |screen| screen.len() == 60 && has(screen, "first seen"));
    assert!(fits(&screen, 200, 60), "{screen:#?}");
    // The page of a client without rules has a text that is wider than this.
    terminal.press("\x1b\t");
    terminal.shows("another class", |screen| has(screen, "203.0.113.0/24"));
    terminal.resize(40, 24);
    terminal.press("\r");
    let is_narrow = |screen: &[String]| screen.len() == 24 && has(screen, "no rule depends on this key alone");
    let screen = terminal.shows("a narrow page", is_narrow);
    assert!(fits(&screen, 40, 24), "{screen:#?}");
}

#[test]
fn a_client_is_searched_opened_and_closed_by_key_presses() {
    let gate = Gate::start(RULE);
    callers(&gate);
    let mut terminal = Terminal::start(&mut tollgate(&["doctor"], gate.admin), 100, 30);
    terminal.shows("both callers", |screen| has(screen, "203.0.113.7/32") && has(screen, "198.51.100.1/32"));
    terminal.press("x");
    terminal.shows("another order", |screen| has(screen, "sort (refused)"));
    terminal.press("/203");
    terminal.shows("one caller", |screen| has(screen, "search: 203_") && !has(screen, "198.51.100.1/32"));
    terminal.press("\r");
    terminal.shows("the search is kept", |screen| has(screen, "[203]"));
    terminal.press("\r");
    let screen = terminal.shows("its page", |screen| has(screen, "esc back") && has(screen, "over-limit"));
    let rule = screen.iter().find(|line| line.starts_with("api ")).unwrap();
    assert!(rule.contains("refuse ") && rule.contains("left      0"), "{rule}");
    assert!(has(&screen, "requests  5") && has(&screen, "refused  3"), "{screen:#?}");
    let past = screen.iter().find(|line| line.contains(" x  ")).unwrap();
    assert!(past.contains("    3 x  rule api: over-limit, 3 of 2, retry after "), "{past}");
    terminal.press("\x1b");
    terminal.shows("everybody again", |screen| has(screen, "198.51.100.1/32"));
    terminal.press("\t");
    terminal.shows("another class", |screen| has(screen, "203.0.113.0/24"));
    assert!(!terminal.is_as_it_was(), "every key is seen at once");
    terminal.press("q");
    assert_eq!(terminal.ends(), Some(0));
    assert!(terminal.is_as_it_was());
    eventually("the screen is given back", || terminal.written().ends_with(b"\x1b[?25h\x1b[?1049l"));
}

#[test]
fn the_page_of_one_caller_is_printed_once() {
    let gate = Gate::start(RULE);
    callers(&gate);
    let run = |words: &[&str]| said(&tollgate(words, gate.admin).output().unwrap());
    let (code, page, errors) = run(&["doctor", "--key", OFFENDER]);
    assert_eq!((code, &*errors), (Some(0), ""));
    assert!(
        page.starts_with("203.0.113.7/32  ip/32\n\napi ") && page.contains(" 3 x  rule api: over-limit, "),
        "{page}"
    );
    let (_, other, _) = run(&["doctor", "--key", "198.51.100.1"]);
    assert!(other.ends_with("\nno recorded refusal in the last 24 hours\n"), "{other}");
    let (_, unseen, _) = run(&["doctor", "--key", "9.9.9.9"]);
    assert!(unseen.contains("\nnot seen: ") && !other.contains("not seen"), "{unseen}{other}");
    let (code, page, errors) = run(&["doctor", "--key", "tester"]);
    assert!(code != Some(0) && page.is_empty() && errors.contains("--class user-agent"), "{code:?} {page}{errors}");
    let (code, agent, _) = run(&["doctor", "--key", "tester", "--class", "user-agent"]);
    assert!(
        code == Some(0) && agent.starts_with("tester  user-agent\n\nno rule depends on this key alone; "),
        "{agent}"
    );
    let (code, network, _) = run(&["doctor", "--key", "203.0.113.0/24", "--class", "ip/24", "--json"]);
    let network: Value = serde_json::from_str(&network).unwrap();
    assert_eq!((code, &network["refusals"][0]["count"]), (Some(0), &json!(3)));
    assert_eq!(run(&["doctor", "--key", OFFENDER, "--top", "3"]).0, Some(2));
}

#[test]
fn a_gate_that_stops_is_reported_on_the_screen() {
    let gate = Gate::start(RULE);
    callers(&gate);
    let mut terminal = Terminal::start(&mut tollgate(&["doctor"], gate.admin), 100, 30);
    terminal.shows("callers", |screen| has(screen, "203.0.113.7/32"));
    drop(gate);
    terminal.shows("trouble, and the last figures", |screen| {
        has(screen, "is a gate running there?") && has(screen, "203.0.113.7/32")
    });
    // Ctrl-C, which a program in raw mode receives as a byte.
    terminal.press("\x03");
    assert_eq!(terminal.ends(), Some(0));
    assert!(terminal.is_as_it_was());
}

#[test]
fn a_signal_ends_the_doctor_and_leaves_the_terminal_as_it_was() {
    let gate = Gate::start("");
    for signal in [Signal::TERM, Signal::HUP] {
        let mut terminal = Terminal::start(&mut tollgate(&["doctor"], gate.admin), 80, 24);
        terminal.shows("its keys", |screen| has(screen, "search"));
        assert!(!terminal.is_as_it_was());
        terminal.tell(signal);
        assert_eq!(terminal.ends(), Some(0), "{signal:?}");
        assert!(terminal.is_as_it_was(), "{signal:?}");
        eventually("the screen is given back", || terminal.written().ends_with(b"\x1b[?25h\x1b[?1049l"));
    }
}

/// A server that returns keys with this text. A gate escapes such keys, but the server may not be a gate.
fn hostile(name: &str) -> SocketAddr {
    let rule = json!({ "rule": name, "decision": name, "reason": name, "remaining": 1, "class": name });
    let bucket = json!({ "key": name, "cpu_per_second": 1.0, "first_seen": name, "last_seen": name, "rules": [rule] });
    let flag = json!({ "account": name, "flagged_at": name, "rejected": 1, "cleared_at": name, "cleared_by": name, "note": name });
    let all = json!({
        "classes": ["ip/32", name], "buckets": [bucket], "bucket": bucket, "rules": [rule], "exempt_until": name,
        "band": { "name": name }, "requests": {}, "watch": {}, "samples": [{ "band": name, "waiting": name }],
        "flags": [flag], "host": name, "key": name, "refusals": [{ "rule": name, "reason": name, "last_at": name, "count": name }],
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let body = all.to_string();
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    address
}

#[test]
fn no_key_can_control_the_terminal() {
    let name = "\u{1b}[31mred\u{1b}]0;title\u{7}\r\n\u{9b}2J\u{202e}end";
    let admin = hostile(name);
    let shown = "\\x1b[31mred\\x1b]0;title\\x07\\r\\n\\u{9b}2J\\u{202e}end";
    let table = said(&tollgate(&["doctor", "--once"], admin).output().unwrap()).1;
    assert!(table.contains(shown), "{table}");
    let page = said(&tollgate(&["doctor", "--class", "user-agent", "--key", "x"], admin).output().unwrap()).1;
    assert!(page.contains(&format!("rule {shown}: {shown}")), "{page}");
    let list = said(&tollgate(&["flags", "list", "--history"], admin).output().unwrap()).1;
    assert_eq!(list.matches(shown).count(), 5, "{list}");
    for text in [table, page, list] {
        text.lines().for_each(|line| assert_eq!(plain(line), line));
        assert!(!text.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\r']), "{text:?}");
    }
    let terminal = Terminal::start(&mut tollgate(&["doctor"], admin), 120, 40);
    // `shows` also asserts that lines contain no control sequences but colours.
    terminal.shows("the name", |screen| has(screen, shown) && has(screen, "q quit"));
    terminal.press("\r");
    let screen = terminal.shows("its page", |screen| has(screen, "esc back") && has(screen, "first seen"));
    assert!(fits(&screen, 120, 40) && has(&screen, shown), "{screen:#?}");
    assert!(!String::from_utf8_lossy(&terminal.written()).contains(['\u{9b}', '\u{202e}', '\u{7}']));
}

#[test]
fn the_response_of_another_server_is_an_error() {
    let gate = Gate::start("");
    let client_port = format!("http://{}", gate.address);
    for words in [
        &["flags", "list"][..],
        &["flags", "list", "--json"],
        &["flags", "clear", "u1", "--note", "x"],
        &["doctor", "--once"],
        &["doctor", "--once", "--json"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = command.args(words).args(["--admin", &client_port]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("did not respond like Tollgate"), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
}

#[test]
fn the_doctor_reports_a_backend_that_is_down_and_a_reload_that_failed() {
    let gate = Gate::start("");
    let file = gate.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let reload = |text: &str, is_ok: bool| {
        std::fs::write(&file, text).unwrap();
        assert!(Command::new("kill").args(["-HUP", &gate.id().to_string()]).status().unwrap().success());
        eventually("the reload", || gate.json("/api/v1/status")["reload"]["ok"] == is_ok);
    };
    let moved: String =
        text.lines()
            .map(|line| {
                if line.starts_with("backend") {
                    format!("backend = \"http://{unused}\"\n")
                } else {
                    format!("{line}\n")
                }
            })
            .collect();
    assert_ne!(moved, text);
    reload(&moved, true);
    reload(&format!("{moved}nonsense = 1\n"), false);
    eventually("the backend is down", || gate.request("/", &[]).status == 503);
    let once = || said(&tollgate(&["doctor", "--once"], gate.admin).output().unwrap()).1;
    let table = once();
    assert!(
        table.contains(&format!("Notice: backend http://{unused} is down: all requests are answered with 503\n")),
        "{table}"
    );
    assert!(table.contains("Notice: settings not reloaded: ") && table.contains("nonsense"), "{table}");
    let shown = said(&tollgate(&["doctor", "--json"], gate.admin).output().unwrap()).1;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let notices = shown["status"]["notices"].as_array().unwrap();
    let names: Vec<_> = notices.iter().map(|notice| notice["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["reload-failed", "backend-down"]);
    let terminal = Terminal::start(&mut tollgate(&["doctor"], gate.admin), 120, 30);
    terminal.shows("both notices", |lines| {
        let screen: String = lines.join(" ");
        screen.contains("is down: all requests are answered with 503") && screen.contains("settings not reloaded")
    });
    terminal.press("q");
    reload(&text, true);
    eventually("no notice is left", || !once().contains("Notice:"));
}
