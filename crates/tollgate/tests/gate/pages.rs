//! The built-in and the custom pages for refusals and errors.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::backend::respond;
use crate::support::client::connect_from;
use crate::support::{Backend, Gate, Response, closed, eventually, roundtrip};

const LIMIT: &str = "[[rule]]\nname = \"one\"\nclass = \"ip/32\"\nwindow = { max = 1, per = \"60s\" }\n";

fn ask(gate: &Gate, method: &str, accept: &str) -> Response {
    let head = format!("{method} / HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    roundtrip(gate.connect(), head.as_bytes())
}

#[test]
fn when_the_backend_is_down_a_browser_gets_a_page_and_a_program_problem_json() {
    let (_taken, address) = closed();
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"http://{address}\"\n"));
    for _ in 0..5 {
        let page = ask(&gate, "GET", "text/html,*/*;q=0.8");
        assert!(matches!(page.status, 502 | 503), "{}", page.status);
        assert_eq!(page.field("content-type"), Some("text/html; charset=utf-8"));
        let retry = page.field("retry-after").unwrap();
        assert!(page.text().contains(&format!("content=\"{retry}\"")), "{}", page.text());
        let problem = ask(&gate, "GET", "*/*");
        assert_eq!(problem.field("content-type"), Some("application/problem+json"));
    }
    assert!(ask(&gate, "POST", "text/html").text().contains("send it again"));
}

#[test]
fn custom_pages_are_used_and_reloaded() {
    let (backend, folder) = (Backend::saying("hello"), tempfile::tempdir().unwrap());
    let page = folder.path().join("429.html");
    let config = format!(
        "[gate]\nworkers = 1\nbackend = \"{}\"\n[gate.pages]\n429 = \"{}\"\n{LIMIT}",
        backend.url(),
        page.display()
    );
    std::fs::write(&page, "<p>Ours: {{status}}, {{retry_after}} s. {{detail}}</p>").unwrap();
    let gate = Gate::start(&config);
    assert_eq!(ask(&gate, "GET", "text/html").status, 200);
    let ours = ask(&gate, "GET", "text/html");
    let retry = ours.field("retry-after").unwrap();
    assert!(ours.text().starts_with(&format!("<p>Ours: 429, {retry} s. More requests")), "{}", ours.text());
    assert_eq!(ask(&gate, "GET", "*/*").field("content-type"), Some("application/problem+json"));
    std::fs::write(&page, "<p>{{retry}}</p>").unwrap();
    gate.signal("HUP");
    assert!(gate.logged("settings not reloaded").contains("429.html:1: unknown placeholder `retry`"));
    assert!(ask(&gate, "GET", "text/html").text().starts_with("<p>Ours"));
    std::fs::write(&page, "<p>Newer</p>").unwrap();
    gate.signal("HUP");
    eventually("the newer page", || ask(&gate, "GET", "text/html").text() == "<p>Newer</p>");
}

/// The answers to a browser and a program at `client` while a request of the first of the others is in flight, and
/// those of the other two fill the room for waiting requests.
fn answers_at_a_full_room(others: [u8; 3], client: u8) -> [Response; 2] {
    let is_open = Arc::new(AtomicBool::new(false));
    let opened = is_open.clone();
    let backend = Backend::answering(move |_, stream| {
        while !opened.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        respond(stream, "ok")
    });
    let room = "in_flight = 1\nhold = { max = '60s', total = 2 }\n";
    let gate = Gate::start(&format!("[gate]\nworkers = 1\nbackend = \"{}\"\n{room}", backend.url()));
    let from = |network: u8| connect_from([127, 60, network, 1].into(), gate.address);
    let send = |(count, network): (usize, u8)| -> TcpStream {
        let mut stream = from(network);
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
        eventually("it is taken", || gate.metric("tollgate_requests_total") == count as u64 + 1);
        stream
    };
    let _others: Vec<_> = others.into_iter().enumerate().map(send).collect();
    eventually("two wait", || gate.metric("tollgate_requests_waiting") == 2);
    let answers = ["text/html", "*/*"].map(|accept| {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
        roundtrip(from(client), head.as_bytes())
    });
    is_open.store(true, Ordering::Relaxed);
    answers
}

#[test]
fn a_refusal_states_whether_the_client_or_others_are_the_reason() {
    let own = "Too many requests from you or your network are waiting or were served just now. The estimated wait is ";
    let busy = "The site is busy: other requests come before yours. The estimated wait is ";
    for (others, client, status, title, detail) in
        [([1, 1, 1], 1, 429, "Too many requests", own), ([1, 2, 3], 4, 503, "The site is busy", busy)]
    {
        let [page, problem] = answers_at_a_full_room(others, client);
        assert_eq!((page.status, problem.status), (status, status), "{}", problem.text());
        assert!(page.text().contains(&format!("<h1>{title}</h1><p>{detail}")), "{}", page.text());
        let problem: serde_json::Value = serde_json::from_slice(&problem.body).unwrap();
        assert!(problem["detail"].as_str().unwrap().starts_with(detail), "{problem}");
        assert_eq!(problem["status"], status);
    }
}

const PAGE: &str = include_str!("../../../../docs/pages.md");

/// The first block with this fence on the page.
fn documented(fence: &str) -> &'static str {
    PAGE.split_once(&format!("```{fence}\n")).unwrap().1.split_once("```").unwrap().0
}

#[test]
fn the_documented_pages_are_found_beside_the_settings_file_from_any_working_directory() {
    let (backend, folder) = (Backend::saying("hello"), tempfile::tempdir().unwrap());
    let file = folder.path().join("tollgate.toml");
    let config = format!("[gate]\nbackend = \"{}\"\n{}{LIMIT}", backend.url(), documented("text"));
    std::fs::write(&file, config).unwrap();
    std::fs::create_dir(folder.path().join("pages")).unwrap();
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.arg("check").arg(&file).current_dir("/").output().unwrap()
    };
    let missing = String::from_utf8(check().stderr).unwrap();
    let busy = folder.path().join("pages/busy.html");
    assert!(missing.contains(&format!("{} cannot be read", busy.display())), "{missing}");
    for name in ["busy.html", "down.html"] {
        std::fs::write(folder.path().join("pages").join(name), documented("html")).unwrap();
    }
    assert!(check().status.success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("gate").arg("--config").arg(&file).args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.current_dir("/");
    let gate = Gate::spawn(command, folder);
    assert_eq!(ask(&gate, "GET", "text/html").status, 200);
    let page = ask(&gate, "GET", "text/html");
    assert_eq!(page.status, 429);
    assert!(page.text().starts_with("<!doctype html>\n<title>") && page.text().contains("<p>"), "{}", page.text());
    gate.signal("HUP");
    gate.logged("settings reloaded");
    assert_eq!(ask(&gate, "GET", "text/html").text(), page.text(), "a reload finds them too");
}
