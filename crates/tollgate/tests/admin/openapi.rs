//! The OpenAPI description matches the API.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::metrics::python;
use crate::support::{Gate, PATIENCE, ask, eventually};
use tollgate_test_support::master::Master;

/// The path whose response does not end.
const EVENTS: &str = "/api/v1/events";

/// All operations of the description, as `get /path`.
fn described(description: &Value) -> BTreeSet<String> {
    let paths = description["paths"].as_object().unwrap();
    let all = paths
        .iter()
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(move |method| format!("{method} {path}")));
    all.collect()
}

#[test]
fn all_described_operations_exist() {
    let gate = Gate::start("");
    let description = gate.json("/api/v1/openapi.json");
    for (path, methods) in description["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys().filter(|_| path != EVENTS) {
            let asked = path.replace("{account}", "nobody");
            let answer = ask(gate.admin, &method.to_uppercase(), &asked, &[], "");
            let statuses = methods[method]["responses"].as_object().unwrap();
            assert!(statuses.contains_key(&answer.status.to_string()), "{method} {path}: {}", answer.status);
            assert_ne!(answer.status, 405, "{method} {path}");
        }
    }
    let references = description.to_string();
    for reference in references.split("#/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(description.pointer(&format!("/{reference}")).is_some(), "{reference}");
    }
}

/// axum has no list of routes, so they are read from the source.
#[test]
fn all_routes_are_described() {
    let routes = include_str!("../../src/admin/mod.rs").split(".route(\"").skip(1);
    let written = routes.filter(|route| route.starts_with("/api/")).flat_map(|route| {
        let (path, rest) = route.split_once("\", ").unwrap();
        let methods = rest.lines().next().unwrap().split(['(', '.', ' ']);
        let methods = methods.filter(|word| matches!(*word, "get" | "post" | "put" | "patch" | "delete"));
        methods.map(move |method| format!("{method} {path}"))
    });
    let written: BTreeSet<_> = written.collect();
    assert!(written.len() >= 16, "{written:?}");
    let description: Value = serde_json::from_str(include_str!("../../src/admin/openapi.json")).unwrap();
    assert_eq!(described(&description), written);
}

#[test]
fn the_events_match_the_description() {
    let gate = Gate::start("");
    let mut stream = std::net::TcpStream::connect(gate.admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {EVENTS} HTTP/1.1\r\nHost: {}\r\n\r\n", gate.admin).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let mut head = lines.by_ref().take_while(|line| !line.is_empty());
    assert_eq!(head.next().unwrap(), "HTTP/1.1 200 OK");
    assert!(head.any(|line| line == "content-type: text/event-stream"));
    let mut event = lines.skip_while(|line| !line.starts_with("event: "));
    assert_eq!(event.next().unwrap(), "event: status");
    let status: Value = serde_json::from_str(event.next().unwrap().strip_prefix("data: ").unwrap()).unwrap();
    let description = gate.json("/api/v1/openapi.json");
    for field in description["components"]["schemas"]["Status"]["required"].as_array().unwrap() {
        assert!(status.get(field.as_str().unwrap()).is_some(), "{field} in {status}");
    }
}

/// Sends valid and invalid requests generated from the description. Each operation must succeed at least once, except
/// for `can_not_succeed`; the examples in the description match the state that these tests prepare.
fn torment(admin: SocketAddr, folder: &Path, token: Option<&str>, can_not_succeed: &[&str]) {
    let authorization = token.map(|token| format!("Bearer {token}"));
    let headers: Vec<_> = authorization.iter().map(|shown| ("Authorization", &**shown)).collect();
    let description = ask(admin, "GET", "/api/v1/openapi.json", &headers, "");
    let (file, report) = (folder.join("openapi.json"), folder.join("report.har"));
    std::fs::write(&file, &description.body).unwrap();
    let python = python("schemathesis", &["schemathesis==4.32.*"], "schemathesis");
    let mut command = Command::new(python.with_file_name("schemathesis"));
    command.arg("run").arg(&file).args(["--url", &format!("http://{admin}")]);
    command.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "8", "--generation-deterministic"]);
    // The machine may be slow.
    command.args(["--suppress-health-check", "all"]);
    // A schema cannot express which classes and keys exist.
    command.args(["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--exclude-path", EVENTS]);
    command.args(["--request-timeout", "60", "--no-color", "--report", "har", "--report-har-path"]).arg(&report);
    command.args(authorization.iter().flat_map(|shown| ["-H".to_owned(), format!("Authorization: {shown}")]));
    let output = command.env("SCHEMATHESIS_HOOKS", "").current_dir(folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));

    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let succeeded = report["log"]["entries"].as_array().unwrap().iter().filter_map(|entry| {
        let url = entry["request"]["url"].as_str()?.strip_prefix(&format!("http://{admin}"))?;
        let path = url.split('?').next()?;
        let path = if path.starts_with("/api/v1/flags/") { "/api/v1/flags/{account}" } else { path };
        let method = entry["request"]["method"].as_str()?.to_lowercase();
        (200..300).contains(&entry["response"]["status"].as_u64()?).then(|| format!("{method} {path}"))
    });
    let succeeded: BTreeSet<_> = succeeded.collect();
    let mut possible = described(&description.json());
    possible.retain(|one| !one.ends_with(EVENTS) && !can_not_succeed.contains(&&**one));
    assert_eq!(succeeded, possible, "{said}");
    assert_eq!(ask(admin, "GET", "/api/v1/status", &headers, "").status, 200);
}

const RULE: &str = "trusted_proxies = [\"127.0.0.1\"]\n\
    [[rule]]\nname = \"api\"\nclass = \"ip/32\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";

/// Sends requests of the client in the examples.
fn call(gate: &Gate) {
    for _ in 0..5 {
        gate.request("/page", &[("X-Forwarded-For", "203.0.113.7"), ("User-Agent", "crawler")]);
    }
}

/// Reports refusals that flag the account in the examples.
fn flag(admin: SocketAddr, headers: &[(&str, &str)]) {
    let report = json!({ "id": "r1", "entries": [{ "class": "user", "key": "u1", "rejected": 1000 }] });
    let answer = ask(admin, "POST", "/api/v1/rejections", headers, &report.to_string());
    assert_eq!(answer.json()["flagged"], json!(["u1"]));
}

#[test]
fn no_described_request_breaks_a_gate() {
    let gate = Gate::start(RULE);
    call(&gate);
    flag(gate.admin, &[]);
    eventually("an episode", || gate.json("/api/v1/episodes")["total"] == 2);
    torment(gate.admin, gate.path(), None, &[]);
    assert_eq!(gate.request("/", &[]).status, 200);
}

#[test]
fn no_described_request_of_an_operator_breaks_a_gate_with_tokens() {
    let token = "an-operators-token-of-some-length";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), token).unwrap();
    let gate = Gate::start_in(folder, &format!("{RULE}[admin]\ntoken_file = \"FOLDER/token\"\n"));
    call(&gate);
    flag(gate.admin, &[("Authorization", &format!("Bearer {token}"))]);
    torment(gate.admin, gate.path(), Some(token), &[]);
}

#[test]
fn no_described_request_breaks_a_master() {
    let rule =
        "[[rule]]\nname = \"each\"\nclass = \"ip/32\"\nrate = { rate = \"10/s\", burst = 10 }\nstate = \"master\"\n";
    let master = Master::start_with("openapi", rule);
    flag(master.admin, &[]);
    let folder = tempfile::tempdir().unwrap();
    // A master decides about no requests, and no gate has reported a client to it.
    let no_requests =
        ["get /api/v1/buckets", "post /api/v1/explain", "post /api/v1/key/clear", "post /api/v1/key/exempt"];
    torment(master.admin, folder.path(), None, &no_requests);
}
