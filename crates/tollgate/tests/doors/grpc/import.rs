//! `tollgate import ratelimit`: rules that decide as the file does.

use std::process::Command;

use serde_json::{Value, json};

use super::start_with;
use crate::support::{Doors, call};

fn import(text: &str) -> (Option<i32>, String, String) {
    import_named("limits.yaml", text)
}

fn import_named(name: &str, text: &str) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    std::fs::write(&file, text).unwrap();
    let output =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["import", "ratelimit"]).arg(&file).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Limits that rules can express.
const LIMITS: &str = "domain: shop
descriptors:
- key: client
  rate_limit: {unit: minute, requests_per_unit: 2}
  descriptors:
  - {key: path, value: /login, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: path, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: client, value: root, rate_limit: {unlimited: true}}
- {key: file, value: a.txt, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: file, value: 'a*', rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: file, value: 'ab*', rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: file, value: 'b*.txt', share_threshold: true, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: method, value: POST, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: tier, value: trial, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
";

#[test]
fn imported_rules_decide_as_the_file_does() {
    let (code, rules, errors) = import(LIMITS);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    let mut by_file = start_with(LIMITS, "[doors]\nhttp = '127.0.0.1:0'\nratelimit = 'FOLDER/limits.yaml'\n");
    let mut by_rules = Doors::start(&rules.replace("grpc = \"127.0.0.1:8081\"", "http = '127.0.0.1:0'"));
    let (file, rules) = (by_file.door("http"), by_rules.door("http"));
    let questions: [&[(&str, &str)]; 16] = [
        &[("client", "alice")],
        &[("client", "bob")],
        &[("client", "root")],
        &[("client", "alice"), ("path", "/login")],
        &[("client", "alice"), ("path", "/")],
        &[("client", "root"), ("path", "/")],
        &[("path", "/login")],
        &[("file", "a.txt")],
        &[("file", "ab")],
        &[("file", "ac")],
        &[("file", "b1.txt")],
        &[("file", "b2.txt")],
        &[("method", "POST")],
        &[("method", "PUT")],
        &[("tier", "trial")],
        &[("tier", "other")],
    ];
    let mut refused = 0;
    for round in 0..5 {
        for entries in questions {
            let entries: Vec<Value> = entries.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
            let body = json!({"domain": "shop", "descriptors": [{"entries": entries}]}).to_string();
            let ask = |door| {
                let answer = call(door, "POST", "/json", &[], &body);
                let status = &answer.json()["statuses"][0];
                (answer.status, status["limitRemaining"].clone(), status["currentLimit"]["unit"].clone())
            };
            let (by_file, by_rules) = (ask(file), ask(rules));
            // An unlimited limit has no rule, so the answers have no common figures.
            if by_file.1 != json!(u32::MAX) {
                assert_eq!(by_file, by_rules, "round {round}: {body}");
            }
            refused += usize::from(by_rules.0 == 429);
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn imported_rules_are_a_settings_file_of_one_domain() {
    let (_, rules, _) = import(LIMITS);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, rules).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("check").arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("ok, 9 rules\n") && text.contains("door: grpc"), "{text}");
}

#[test]
fn limits_that_rules_cannot_express_are_named_with_their_lines() {
    let (code, rules, errors) = import(super::LIMITS);
    assert_eq!((code, rules.as_str()), (Some(2), ""));
    for line in ["44:1: rules do not replace", "53:1: rules have no limit of 0", "58:1: rules have no quota mode"] {
        assert!(errors.contains(&format!("limits.yaml:{line}")), "{line} in {errors}");
    }
    let per_hour = "rate_limit: {unit: hour, requests_per_unit: 2}";
    for (descriptors, message) in [
        (
            format!("- {{key: method, value: 'P*', share_threshold: true, {per_hour}}}\n"),
            "3:1: rules cannot count the values of the key `method` together",
        ),
        (
            format!(
                "- key: a\n  descriptors: [{{key: b, {per_hour}}}]\n\
                 - key: b\n  descriptors: [{{key: a, rate_limit: {{unlimited: true}}}}]\n"
            ),
            "6:1: another limit has the same keys in another order",
        ),
    ] {
        let (code, rules, errors) = import(&format!("domain: a\ndescriptors:\n{descriptors}"));
        assert_eq!((code, rules.as_str()), (Some(2), ""), "{descriptors}");
        assert!(errors.contains(&format!("limits.yaml:{message}")), "{errors}");
    }
    let (code, _, errors) = import("domain: a\ndescriptors: [{}]\n");
    assert_eq!(code, Some(2));
    assert!(errors.contains("limits.yaml:2:15: the descriptor has no key"), "{errors}");
}

#[test]
fn a_wrong_file_is_refused_with_all_errors_by_check_and_run() {
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits");
    std::fs::create_dir(&limits).unwrap();
    std::fs::write(limits.join("a.yaml"), "domain: a\ndescriptors:\n- key: x\n  rate_limit: {unit: moon}\n").unwrap();
    std::fs::write(limits.join("b.yml"), "domain: b\nrules: []\n").unwrap();
    std::fs::write(limits.join("c.yaml"), "domain: plain\n").unwrap();
    std::fs::write(limits.join("notes.txt"), "not read").unwrap();
    let config = folder.path().join("tollgate.toml");
    let text = format!("[doors]\ngrpc = 8081\nratelimit = '{}'\n[[domain]]\nname = 'plain'\n", limits.display());
    std::fs::write(&config, text).unwrap();
    for command in [&["check"][..], &["run", "--config"]] {
        let mut tollgate = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        tollgate.env("XDG_STATE_HOME", folder.path()).env_remove("STATE_DIRECTORY");
        let output = tollgate.args(command).arg(&config).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        for part in ["a.yaml:4:22: this is no unit", "b.yml:2:1: `rules` is no key", "c.yaml:1:1: the settings have"] {
            assert!(errors.contains(part), "{part} in {errors}");
        }
    }
}

#[test]
fn check_names_the_door_and_the_keys_without_effect() {
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.yaml");
    std::fs::write(&limits, "domain: a\ndescriptors:\n- {key: x, detailed_metric: true, rate_limit: {unit: day}}\n")
        .unwrap();
    let config = folder.path().join("tollgate.toml");
    std::fs::write(&config, format!("[doors]\ngrpc = 8081\nratelimit = '{}'\n", limits.display())).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("check").arg(&config).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("door: grpc will be open on 127.0.0.1:8081, and asks for no token"), "{text}");
    assert!(text.contains("limits.yaml:3:29: `detailed_metric` has no effect"), "{text}");
}

#[test]
fn control_characters_in_names_add_no_settings() {
    let limits = "domain: \"a\\u007fb\"\ndescriptors:\n\
        - {key: \"k\\u007f\", rate_limit: {unit: minute, requests_per_unit: 2}}\n\
        - {key: \"x\\n[doors]\", rate_limit: {unlimited: true}}\n";
    let (code, rules, errors) = import_named("a\n[doors]\nhttp = 9\r#.yaml", limits);
    assert_eq!((code, errors.as_str()), (Some(0), ""));
    assert!(!rules.contains(['\u{7f}', '\r']), "{rules}");
    let tables: Vec<&str> = rules.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(tables, ["[doors]", "[[domain]]", "[[domain.rule]]"]);
    assert!(rules.contains("name = \"a\\u007fb\""), "{rules}");
}
