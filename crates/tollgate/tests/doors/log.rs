//! Costs from the access log of a proxy: a followed file and syslog over UDP.

use std::io::Write;
use std::net::{SocketAddr, UdpSocket};

use crate::support::{Doors, call, eventually};

const BUDGET: &str = "[[rule]]\nname = 'cpu'\nclass = 'ip/32'\nbudget = { cores = 0.001, burst = '1s' }\nhold = '0s'\n";

/// Asks about a request of this client. Returns the status and the ticket.
fn ask(door: SocketAddr, client: &str) -> (u16, String) {
    let headers = [("X-Forwarded-For", client), ("X-Forwarded-Uri", "/export"), ("X-Forwarded-Method", "GET")];
    let answer = call(door, "GET", "/v1/auth", &headers, "");
    (answer.status, answer.header("x-tollgate-ticket").unwrap_or_default().to_string())
}

fn line(client: &str, seconds: &str, ticket: &str) -> String {
    format!(
        "{client} - - [10/Oct/2026:13:55:36 +0000] \"GET /export HTTP/1.1\" 200 5 \"-\" \"x\" rt={seconds} ticket={ticket}\n"
    )
}

#[test]
fn the_lines_of_a_file_settle_the_requests_of_a_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    std::fs::write(&path, "").unwrap();
    let config =
        format!("[gate]\ncores = 4\n[doors]\nhttp = '127.0.0.1:0'\n[doors.log]\nfile = '{}'\n{BUDGET}", path.display());
    let mut doors = Doors::start(&config);
    let door = doors.door("http");
    doors.logged("access log lines are read from a file");
    // The file is opened a moment after that is logged; lines before are not read.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let append = |text: &str| {
        let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    let (status, ticket) = ask(door, "203.0.113.7");
    assert_eq!(status, 200);
    let (_, cheap) = ask(door, "203.0.113.8");
    append(&(line("203.0.113.7", "30.000", &ticket) + &line("203.0.113.8", "0.010", &cheap)));
    eventually("both are settled", || doors.metric("tollgate_door_settled_total") == 2);
    assert_eq!(ask(door, "203.0.113.7").0, 429, "30 s are more than the budget");
    assert_eq!(ask(door, "203.0.113.8").0, 200);

    // Lines without a ticket that is kept: forged, settled already, damaged, without one, endless.
    let garbage = [
        line("203.0.113.9", "30.000", "0-0-0-0000000000000001"),
        line("203.0.113.7", "30.000", &ticket),
        line("203.0.113.9", "1e309", "\u{1}\u{2}"),
        "nonsense\n".to_string(),
        "{\"ticket\": [[[[[[\n".to_string(),
        "x".repeat(1_000_000) + "\n",
    ];
    append(&garbage.concat());
    eventually("they are counted", || doors.metric("tollgate_door_log_lines_ignored_total") == 5);
    assert_eq!(doors.metric("tollgate_door_settled_total"), 2);

    let (_, after) = ask(door, "203.0.113.10");
    std::fs::rename(&path, folder.path().join("access.log.1")).unwrap();
    std::fs::write(&path, line("203.0.113.10", "30.000", &after)).unwrap();
    eventually("the line of the next file is read", || doors.metric("tollgate_door_settled_total") == 3);
}

#[test]
fn syslog_messages_settle_the_requests_of_a_proxy() {
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut doors = Doors::start(&format!("[doors]\nhttp = '127.0.0.1:0'\nlog = {{ syslog = {port} }}\n{BUDGET}"));
    let door = doors.door("http");
    let (_, ticket) = ask(door, "203.0.113.7");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let send = |message: &[u8]| socket.send_to(message, ("127.0.0.1", port)).unwrap();
    for message in [&b""[..], b"\0\0\0", b"<190>", &[0xff; 60_000], b"<190>Nov 12 00:00:01 web1 nginx: garbage"] {
        send(message);
    }
    send(format!("<190>Nov 12 00:00:01 web1 nginx: {}", line("203.0.113.7", "9.000", &ticket)).as_bytes());
    eventually("it is settled", || doors.metric("tollgate_door_settled_total") == 1);
    assert_eq!(ask(door, "203.0.113.7").0, 429);
    let (_, ticket) = ask(door, "203.0.113.8");
    let json = format!(
        r#"{{"time": "2026-11-12T00:00:01Z", "client_ip": "203.0.113.8", "cost_ms": 9000, "ticket": "{ticket}"}}"#
    );
    send(json.as_bytes());
    eventually("it is settled", || doors.metric("tollgate_door_settled_total") == 2);
    assert_eq!(ask(door, "203.0.113.8").0, 429);
    let (_, ticket) = ask(door, "203.0.113.9");
    send(("x\n".repeat(1000) + &line("203.0.113.9", "9.000", &ticket)).as_bytes());
    eventually("the last of many lines is settled", || doors.metric("tollgate_door_settled_total") == 3);
}

#[test]
fn a_log_is_named_and_its_senders_are() {
    for (log, says) in [
        ("{}", "no log is named"),
        ("{ syslog = '0.0.0.0:5514' }", "name the senders in `from`"),
        ("{ syslog = 0 }", "is not a port"),
        ("{ file = '/x', from = ['nobody'] }", "nobody"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tollgate.toml");
        std::fs::write(&file, format!("[doors]\nhttp = 8890\nlog = {log}\n")).unwrap();
        let run = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("check").arg(&file).output().unwrap();
        let faults = String::from_utf8_lossy(&[run.stderr, run.stdout].concat()).into_owned();
        assert_eq!(run.status.code(), Some(2), "{log}");
        assert!(faults.contains(says), "{log}: {faults}");
    }
}
