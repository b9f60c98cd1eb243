//! The pages that are made from the declarations are the pages that are committed.

use crate::program::{root, tollgate};

fn committed(command: &str, page: &str) {
    let run = tollgate([command]);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    let committed = std::fs::read_to_string(root().join(page)).unwrap();
    assert!(run.stdout == committed, "{page} is out of date: cargo run -- {command} > {page}");
}

#[test]
fn the_reference_page_is_made_from_the_declarations() {
    committed("reference", "docs/reference.md");
}

#[test]
fn the_schema_is_made_from_the_declarations() {
    committed("schema", "docs/tollgate.schema.json");
}

#[test]
fn the_schema_refers_to_nothing_that_is_not_in_it() {
    let schema: serde_json::Value = serde_json::from_str(&tollgate(["schema"]).stdout).unwrap();
    fn references(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(object) => {
                found.extend(object.get("$ref").and_then(|target| target.as_str()).map(str::to_string));
                object.values().for_each(|value| references(value, found));
            }
            serde_json::Value::Array(array) => array.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    references(&schema, &mut found);
    assert!(found.len() > 10);
    for target in found {
        assert!(schema.pointer(target.trim_start_matches('#')).is_some(), "{target}");
    }
}
