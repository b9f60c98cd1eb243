//! Faults 27 and 30: numbers that make no limit, and quantities that make no sense.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::json;

use crate::doors::{Doors, call, check};

const RULE: &str = "[[rule]]\nname = 'one'\nclass = 'identifier'\n";

/// The exit code and the messages of a gate that is started with this file.
fn start(file: &std::path::Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.env("XDG_STATE_HOME", file.parent().unwrap()).env_remove("STATE_DIRECTORY");
    let output = command.args(["run", "--config"]).arg(file).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn fault_27_numbers_that_make_no_limit_prevent_the_start_with_their_line_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    let rates = ["0/s", "-1/s", "nan/s", "inf/s", "1e308/s", "1e-300/s", "5/0s", "9223372036854775808/s"];
    let mut lines: Vec<_> = rates.iter().map(|rate| format!("rate = {{ rate = '{rate}', burst = 1 }}")).collect();
    for burst in ["0", "-1", "nan", "1e308", "0.5", "9223372036854775808", "18446744073709551616"] {
        lines.push(format!("rate = {{ rate = '1/s', burst = {burst} }}"));
        lines.push(format!("bucket = {{ size = {burst}, drip = 1, every = '1s' }}"));
        lines.push(format!("window = {{ max = {burst}, per = '1s' }}"));
    }
    lines.push("bucket = { size = 1, drip = 1, every = '0s' }".to_owned());
    lines.push("budget = { share = nan, burst = '1s' }".to_owned());
    // Less than one request costs at least.
    lines.push("budget = { share = 0.1, burst = '999us' }".to_owned());
    // All in one file: each line is reported, not only the first.
    let mut text = "[gate]\nlisten = '127.0.0.1:0'\nbackend = 'http://127.0.0.1:1'\n".to_owned();
    let mut expected = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        text += &format!("[[rule]]\nname = 'rule {number}'\nclass = 'identifier'\n{line}\n");
        expected.push((text.lines().count(), line));
    }
    // The parser of TOML rejects a file with a number beyond 64 bits as a whole, so these have a file of their own.
    let too_large = |line: &str| line.contains("18446744073709551616") || line.contains("= 9223372036854775808");
    let (huge, others): (Vec<_>, Vec<_>) = expected.into_iter().partition(|(_, line)| too_large(line));
    let mut without_huge: Vec<_> = text.lines().map(str::to_owned).collect();
    huge.iter().for_each(|(line, _)| without_huge[line - 1] = "in_flight = 1".to_owned());
    std::fs::write(&file, without_huge.join("\n")).unwrap();
    let (code, messages) = start(&file);
    assert_eq!(code, Some(2), "{messages}");
    for (number, line) in others {
        let place = format!("{}:{number}:", file.display());
        assert!(messages.lines().any(|message| message.starts_with(&place)), "{line} is not reported:\n{messages}");
    }
    for (_, line) in huge {
        std::fs::write(&file, format!("{RULE}{line}\n")).unwrap();
        let (code, messages) = start(&file);
        let first = messages.lines().next().unwrap_or_default();
        assert!(code == Some(2) && first.starts_with(&format!("{}:4:", file.display())), "{line}: {messages}");
    }
}

#[test]
fn fault_30_a_quantity_of_zero_reads_and_one_that_never_fits_has_no_retry_time() {
    let mut doors = Doors::start(&format!(
        "[doors]\nhttp = '127.0.0.1:0'\n{RULE}bucket = {{ size = 5, drip = 1, every = '1h' }}\n"
    ));
    let door = doors.door("http");
    let ask = |toll: u64| check(door, &json!({"rule": "one", "key": "u1", "toll": toll}));
    for _ in 0..3 {
        assert_eq!((&ask(0)["decision"], &ask(0)["remaining"]), (&json!("admit"), &json!(5)));
    }
    let never = call(door, "POST", "/v1/check", &[], r#"{"rule": "one", "key": "u1", "toll": 6}"#);
    assert_eq!(never.json()["decision"], "refuse", "{never:?}");
    assert_eq!(never.header("retry-after"), None, "no wait makes six fit into five: {never:?}");
    assert!(!never.body.contains("18446744073709551615"), "{never:?}");
    assert_eq!(ask(0)["remaining"], 5, "a refusal costs nothing");
    assert_eq!(ask(5)["remaining"], 0);
    // One that fits later has a retry time, and reading at an empty bucket is no violation.
    let later = call(door, "POST", "/v1/check", &[], r#"{"rule": "one", "key": "u1"}"#);
    assert!(later.header("retry-after").is_some(), "{later:?}");
    for toll in ["18446744073709551615", "9223372036854775808", "18446744073709551616", "-1", "1.5", "1e300"] {
        let answer =
            call(door, "POST", "/v1/check", &[], &format!(r#"{{"rule": "one", "key": "u2", "toll": {toll}}}"#));
        assert_eq!(answer.status, 400, "{toll}: {answer:?}");
    }
    assert_eq!(check(door, &json!({"rule": "one", "key": "u2", "toll": 0}))["remaining"], 5);
}

#[test]
fn fault_30_redis_clients_get_the_same_answers() {
    let mut doors = Doors::start("[doors]\nresp = '127.0.0.1:0'\n");
    let door = doors.door("resp");
    for (quantity, expected) in [
        ("0", "0 5 5 -1 0"),
        ("6", "1 5 5 -1 0"),
        ("9223372036854775807", "1 5 5 -1 0"),
        ("5", "0 5 0 -1 300"),
        ("0", "0 5 0 -1 300"),
        ("18446744073709551615", "-Cell error: Store error: Couldn't parse as integer: 18446744073709551615"),
    ] {
        assert_eq!(throttle(door, quantity), expected, "{quantity}");
    }
}

/// The reply to `CL.THROTTLE` with a burst of five and one per minute: five integers, or an error.
fn throttle(door: SocketAddr, quantity: &str) -> String {
    let mut stream = TcpStream::connect(door).unwrap();
    stream.set_read_timeout(Some(crate::doors::PATIENCE)).unwrap();
    stream.write_all(format!("CL.THROTTLE key 4 1 60 {quantity}\r\n").as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    match lines.next().unwrap() {
        first if first == "*5" => {
            lines.take(5).map(|line| line.trim_start_matches(':').to_owned()).collect::<Vec<_>>().join(" ")
        }
        first => first,
    }
}
