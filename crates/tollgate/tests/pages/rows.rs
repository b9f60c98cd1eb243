//! The tables "there, here" of docs/coming-from: every setting, command, metric and call that they name exists.
//!
//! Texts of the columns for Tollgate that are code are recognised by their form. All other texts, such as field names
//! and values, are left to the tests of their subjects.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tollgate_test_support::doors::Doors;
use tollgate_test_support::{Backend, binary, free_addresses, root};

use crate::{page, pages};

/// The texts in backticks of all columns but the first, of all tables about moving from somewhere.
fn texts_of_the_tables() -> Vec<(String, String)> {
    let mut texts = Vec::new();
    for name in pages().into_iter().filter(|name| name.starts_with("coming-from/")) {
        for line in page(&name).lines().filter(|line| line.starts_with('|')) {
            let line = line.replace("\\|", " ");
            // Commands and metrics of Smockron's page are in the first column, because they have no counterpart there.
            let skipped = if name.ends_with("smockron.md") && line.starts_with("| `tollgate") { 1 } else { 2 };
            for cell in line.split('|').skip(skipped) {
                texts.extend(cell.split('`').skip(1).step_by(2).map(|text| (name.clone(), text.to_owned())));
            }
        }
    }
    texts
}

fn json(path: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(root().join(path)).unwrap()).unwrap()
}

/// The definition that a schema refers to, directly, as the element of a list, or as one of several forms.
fn resolved<'a>(all: &'a Value, schema: &'a Value) -> Vec<&'a Value> {
    let name = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
    let mut found = vec![schema];
    found.extend(name.map(|name| &all["$defs"][name]));
    for forms in ["anyOf", "oneOf"] {
        found.extend(schema[forms].as_array().into_iter().flatten().flat_map(|form| resolved(all, form)));
    }
    if schema["items"].is_object() {
        found.extend(resolved(all, &schema["items"]));
    }
    found
}

/// Whether the schema has this key. A key of a rule or of the gate may be written without its table.
fn is_setting(all: &Value, path: &str) -> bool {
    let has = |from: &Value| {
        let mut level = vec![from];
        for key in path.split('.') {
            level = level
                .into_iter()
                .flat_map(|schema| resolved(all, schema))
                .map(|schema| &schema["properties"][key])
                .filter(|schema| schema.is_object())
                .collect();
        }
        !level.is_empty()
    };
    has(all) || ["rule", "gate"].iter().any(|table| has(&all["$defs"][table]))
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
}

#[test]
fn every_setting_in_the_tables_exists() {
    let schema = json("docs/tollgate.schema.json");
    let mut checked = BTreeSet::new();
    for (name, text) in texts_of_the_tables() {
        let key = text.split(" = ").next().unwrap();
        let is_path = key.contains('.') && key.split('.').all(is_identifier);
        // Fields of the status and names for statsd have dots too.
        if is_path && !key.starts_with("band.") && !key.starts_with("request.") {
            assert!(is_setting(&schema, key), "docs/{name} names {text}, which is no setting");
            checked.insert(key.to_owned());
        }
    }
    assert!(checked.len() > 35, "{checked:?}");
    assert!(!is_setting(&schema, "bucket.drips") && !is_setting(&schema, "gate.hold.least"));
}

/// A settings file with this line in a place where it belongs, without the limit that the line replaces.
fn files_with(line: &str) -> Vec<String> {
    let gate = "[gate]\nbackend = \"http://127.0.0.1:8080\"\n";
    let key = line.split(" = ").next().unwrap();
    let class = if key == "class" { "" } else { "class = \"ip/32\"\n" };
    let limit = match key {
        "rate" | "window" | "bucket" | "in_flight" | "budget" | "legacy" => "",
        "escalation" => "window = { max = 3, per = \"60s\" }\n",
        _ => "rate = { rate = \"1/s\", burst = 1 }\n",
    };
    let rest = "[redis]\nurl = \"redis://127.0.0.1\"\n[[link.master]]\naccounting = \"127.0.0.1:10004\"\n";
    vec![
        format!("{gate}{rest}[watch]\naccount_class = \"ip/32\"\n[[rule]]\nname = \"r\"\n{class}{limit}{line}\n"),
        format!("{gate}{rest}[[rule]]\nname = \"r\"\nclass = \"ip/32\"\nrate = {{ {line}, burst = 1 }}\n"),
        format!("{gate}{rest}[[rule]]\nname = \"r\"\nclass = \"ip/32\"\nrate = {{ rate = \"1/s\", {line} }}\n"),
        format!(
            "{gate}{rest}[[rule]]\nname = \"r\"\nclass = \"ip/32\"\nlegacy = {{ max = 9, duration = \"9s\", min_interval = \"1s\", {line} }}\n"
        ),
        format!("{gate}{rest}[[rule]]\nname = \"r\"\nclass = \"ip/32\"\nbudget = {{ share = 0.1, {line} }}\n"),
        format!("{gate}{line}\n"),
        format!("[doors]\nhttp = \"127.0.0.1:0\"\nratelimit = \"limits.yaml\"\n{line}\n{rest}"),
        format!("{gate}[[link.master]]\n{line}\n"),
        format!("{gate}[watch]\n{line}\n"),
        format!(
            "{gate}{}\n[[link.master]]\naccounting = \"127.0.0.1:10004\"\n",
            line.replacen('.', "]\n", 1).replacen("", "[", 1)
        ),
    ]
}

fn is_accepted(file: &str, folder: &Path) -> bool {
    let path = folder.join("tollgate.toml");
    std::fs::write(&path, file).unwrap();
    std::fs::write(folder.join("limits.yaml"), "domain: api\n").unwrap();
    Command::new(binary()).arg("check").arg(&path).output().unwrap().status.success()
}

#[test]
fn every_line_of_settings_in_the_tables_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let mut checked = BTreeSet::new();
    for (name, text) in texts_of_the_tables() {
        let Some((key, value)) = text.split_once(" = ") else { continue };
        // Placeholders: a number N, a duration d, a list of the reader's, and tables with keys but without values.
        let value = value.replace("N + 1", "6").replace("M + 1", "4").replace('N', "5").replace("1 per ns", "1 per 2s");
        let value =
            value.replace("1 per d", "1 per 2s").replace("\"n/s\"", "\"7/s\"").replace("burst = n", "burst = 7");
        let value = if value == "n" { "7".to_owned() } else { value };
        let addresses = if key == "unless" { "[\"10.0.0.0/8\"]" } else { "[\"GET\"]" };
        let value = value.replace("[...]", addresses).replace("{ rate, burst }", "{ rate = \"1/s\", burst = 1 }");
        let value = value.replace("{ max, per }", "{ max = 5, per = \"10min\" }").replace("{ share,", "{ share = 0.1,");
        let line = match key.split_once('.') {
            // A key of a rule's own table, such as `window.max = 5`.
            Some((table @ ("window" | "escalation"), key)) => {
                let others = match (table, key) {
                    ("window", "max") => ", per = \"10s\"",
                    ("window", "per") => ", max = 5",
                    ("window", _) => ", max = 5, per = \"10s\"",
                    (_, "backoff") => ", backoff_max = \"60s\"",
                    (_, "backoff_max") => ", backoff = \"1s\"",
                    _ => ", backoff = \"1s\", backoff_max = \"60s\"",
                };
                format!("{table} = {{ {key} = {value}{others} }}")
            }
            _ => format!("{key} = {value}"),
        };
        assert!(
            files_with(&line).iter().any(|file| is_accepted(file, folder.path())),
            "docs/{name} has {text}, which no table accepts: {line}"
        );
        checked.insert(line);
    }
    assert!(checked.len() > 35, "{checked:?}");
    for wrong in ["mode = \"watch\"", "rate = \"1/fortnight\"", "headers = 1", "window = { max = 5, par = \"10s\" }"] {
        assert!(!files_with(wrong).iter().any(|file| is_accepted(file, folder.path())), "{wrong}");
    }
}

#[test]
fn every_command_in_the_tables_exists_with_its_options() {
    let mut checked = 0;
    for (name, text) in texts_of_the_tables() {
        let Some(words) = text.strip_prefix("tollgate ") else { continue };
        let words: Vec<_> = words.split(' ').collect();
        let commands = words.iter().take_while(|word| is_identifier(word));
        let output = Command::new(binary()).args(commands).arg("--help").output().unwrap();
        let help = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "docs/{name}: {text}");
        for option in words.iter().filter_map(|word| word.strip_prefix("--")) {
            let option = option.split('=').next().unwrap();
            assert!(help.contains(&format!("--{option}")), "docs/{name}: {text} in {help}");
        }
        checked += 1;
    }
    assert!(checked >= 8, "{checked}");
}

#[test]
fn every_metric_and_call_in_the_tables_exists() {
    let backend = Backend::saying("ok");
    let [accounting, control] = free_addresses();
    let doors = Doors::start(&format!(
        "[gate]\nlisten = \"127.0.0.1:0\"\nbackend = \"{}\"\n[doors]\nhttp = \"127.0.0.1:0\"\n\
         [master]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\n\
         [[link.master]]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\n\
         [[rule]]\nname = \"each\"\nclass = \"ip/32\"\nrate = {{ rate = \"9/s\", burst = 9 }}\nstate = \"master\"\n",
        backend.url()
    ));
    let metrics = doors.admin("/metrics");
    let calls = json("crates/tollgate/src/admin/openapi.json");
    let (mut metrics_checked, mut calls_checked) = (0, 0);
    for (name, text) in texts_of_the_tables() {
        if text.starts_with("tollgate_") {
            let family = text.split('{').next().unwrap().trim_end_matches("_total");
            let family = format!("# TYPE {family} ");
            assert!(metrics.lines().any(|line| line.starts_with(&family)), "docs/{name}: {text} in {metrics}");
            metrics_checked += 1;
        } else if let Some((method @ ("GET" | "POST" | "DELETE"), path)) = text.split_once(' ') {
            let path = path.replace("ACCOUNT", "{account}");
            let operation = &calls["paths"][&path][method.to_lowercase()];
            assert!(operation.is_object(), "docs/{name}: {text}");
            calls_checked += 1;
        }
    }
    assert!(metrics_checked >= 6 && calls_checked >= 6, "{metrics_checked} {calls_checked}");
}
