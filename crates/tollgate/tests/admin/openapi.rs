//! The description of the API, and the API as it is described.

use std::process::Command;

use serde_json::Value;

use crate::metrics::python;
use crate::support::{Gate, ask};

#[test]
fn everything_that_is_described_is_there() {
    let gate = Gate::start("");
    let described = gate.json("/api/v1/openapi.json");
    let paths = described["paths"].as_object().unwrap();
    assert!(paths.len() > 12);
    for (path, methods) in paths {
        for method in methods.as_object().unwrap().keys() {
            if path == "/api/v1/events" {
                continue;
            }
            let asked = path.replace("{account}", "nobody");
            let answer = ask(gate.admin, &method.to_uppercase(), &asked, &[], "");
            let statuses = methods[method]["responses"].as_object().unwrap();
            assert!(statuses.contains_key(&answer.status.to_string()), "{method} {path}: {}", answer.status);
            assert_ne!(answer.status, 405, "{method} {path}");
        }
    }
    let references = described.to_string();
    for reference in references.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert_ne!(described["components"]["schemas"][reference], Value::Null, "{reference}");
    }
}

#[test]
fn no_request_that_the_description_allows_breaks_it() {
    let gate = Gate::start("[[rule]]\nname = \"api\"\nclass = \"ip/32\"\nrate = { rate = \"1/s\", burst = 1 }\n");
    let python = python("schemathesis", &["schemathesis==4.*"], "schemathesis");
    let output = Command::new(python.with_file_name("schemathesis"))
        .args([
            "run",
            "--phases",
            "examples,coverage,fuzzing",
            "--checks",
            "not_a_server_error,response_schema_conformance",
        ])
        .args(["--max-examples", "8", "--generation-deterministic", "--exclude-path", "/api/v1/events"])
        .args(["--request-timeout", "10", "--no-color"])
        .arg(format!("http://{}/api/v1/openapi.json", gate.admin))
        .env("SCHEMATHESIS_HOOKS", "")
        .current_dir(gate.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(gate.get("/api/v1/status").status, 200);
}
