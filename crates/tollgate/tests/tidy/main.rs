//! Checks of the source and the documentation that the compiler does not make: layers, links, names, file sizes.
#![allow(clippy::unwrap_used)]

mod first_pages;
mod imports;
mod pages;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use imports::{Imports, cycle};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file of the project with one of these endings, as a path from the root and its text.
fn files(endings: &[&str]) -> Vec<(String, String)> {
    fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "corpus" && name != "artifacts" {
                    walk(&path, found);
                }
            } else {
                found.push(path);
            }
        }
    }
    let root = root();
    let mut found = Vec::new();
    walk(&root, &mut found);
    found
        .into_iter()
        .filter(|path| endings.iter().any(|ending| path.to_string_lossy().ends_with(ending)))
        .map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            (path.strip_prefix(&root).unwrap().to_string_lossy().into_owned(), text)
        })
        .collect()
}

/// The pieces of `text` between `open` and `close`.
fn between<'a>(text: &'a str, open: &str, close: &str) -> Vec<&'a str> {
    text.split(open).skip(1).filter_map(|rest| rest.split_once(close)).map(|(inside, _)| inside).collect()
}

#[test]
fn every_path_that_the_architecture_names_exists() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let prose = page.lines().filter(|line| !line.starts_with("```"));
    let paths: Vec<_> = prose
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|word| word.contains('/') && !word.contains(' ') && !word.starts_with('/') && !word.contains("://"))
        .collect();
    assert!(paths.len() > 10, "ARCHITECTURE.md names too few paths");
    let missing: Vec<_> = paths.into_iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names missing paths: {missing:?}");
}

/// By default a gate and a master keep their state in the home directory of the user.
#[test]
fn no_test_writes_to_the_home_directory() {
    let starts = |text: &str| {
        ["gate", "master", "run"].iter().any(|role| {
            [format!("arg(\"{role}\")"), format!("[\"{role}\""), format!("{{}} {role} --")]
                .iter()
                .any(|start| text.contains(start))
        })
    };
    let ours = concat!("CARGO_BIN_EXE", "_tollgate");
    let launchers: Vec<_> =
        files(&[".rs"]).into_iter().filter(|(_, text)| text.contains(ours) && starts(text)).collect();
    assert!(launchers.len() > 8, "{}", launchers.len());
    for (path, text) in launchers {
        let has_own_home =
            text.contains(r#".env("XDG_STATE_HOME""#) && text.contains(r#".env_remove("STATE_DIRECTORY")"#);
        assert!(
            has_own_home || text.contains("Gate::spawn("),
            "{path} starts a process that may write to the home directory"
        );
    }
}

#[test]
fn every_link_between_pages_has_a_target() {
    for (page, text) in files(&[".md"]) {
        let folder = root().join(&page).parent().unwrap().to_path_buf();
        for target in between(&text, "](", ")") {
            let file = target.split('#').next().unwrap();
            if !file.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
                assert!(folder.join(file).exists(), "{page} links to {target}, which does not exist");
            }
        }
    }
}

#[test]
fn the_minimum_rust_version_is_the_same_everywhere() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let minimum = between(&manifest, "\nrust-version = \"", "\"")[0];
    for (file, text) in [
        ("docs/install.md", format!("Rust {minimum} or later")),
        ("CONTRIBUTING.md", format!("Rust {minimum} or later")),
        ("contrib/docker/Dockerfile", format!("FROM rust:{minimum}-")),
    ] {
        assert!(fs::read_to_string(root().join(file)).unwrap().contains(&text), "{file} does not contain {text}");
    }
}

#[test]
fn every_decision_is_found_from_the_architecture() {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for (decision, _) in files(&[".md"]).into_iter().filter(|(path, _)| path.starts_with("docs/decisions/")) {
        assert!(page.contains(&decision), "ARCHITECTURE.md does not name {decision}");
    }
}

#[test]
fn no_file_has_more_than_700_lines() {
    for (path, text) in files(&[".rs"]) {
        let lines = text.lines().count();
        assert!(lines <= 700, "{path} has {lines} lines: split it by subject");
    }
}

#[test]
fn no_unfinished_code_is_left() {
    // In parts, so that this file does not contain them.
    let marks =
        [["#[ig", "nore"].concat(), ["tod", "o!("].concat(), ["unimple", "mented!("].concat(), ["db", "g!("].concat()];
    for (path, text) in files(&[".rs"]) {
        for mark in &marks {
            assert!(!text.contains(mark), "{path} has {mark}");
        }
    }
}

#[test]
fn the_core_has_no_dependency_no_std_and_no_unsafe_code() {
    let manifest = fs::read_to_string(root().join("crates/tollgate-core/Cargo.toml")).unwrap();
    assert!(!manifest.contains("\n[dependencies]"));
    let library = fs::read_to_string(root().join("crates/tollgate-core/src/lib.rs")).unwrap();
    assert!(library.contains("#![no_std]") && library.contains("#![forbid(unsafe_code)]"));
}

#[test]
fn dependencies_point_one_way() {
    let order = ["tollgate-core", "tollgate-wire", "tollgate-gatekeeper", "tollgate"];
    for (place, name) in order.iter().enumerate() {
        let manifest = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("[dev-dependencies]").next().unwrap();
        for later in &order[place + 1..] {
            assert!(!dependencies.contains(&format!("\n{later}.workspace")), "{name} depends on {later}");
        }
    }
}

fn source_of(name: &str) -> PathBuf {
    root().join("crates").join(name).join("src")
}

#[test]
fn roles_of_the_binary_never_import_each_other() {
    let roles = ["gate", "master", "doors", "admin", "doctor", "replay", "demo"];
    for (module, imported) in Imports::of_crate(&source_of("tollgate")).below(&[], 1) {
        // Doors decide with the gate's rules and queue.
        let is_allowed = |other: &str| module == "doors" && other == "gate";
        for other in imported.iter().filter(|other| roles.contains(&other.as_str()) && !is_allowed(other)) {
            assert!(!roles.contains(&module.as_str()), "{module} imports the role {other}: main assembles roles");
        }
    }
}

/// The layers of the gate, from the top down. `crates/tollgate/src/gate/mod.rs` describes them.
const GATE_LAYERS: [&str; 6] = ["inspect", "serve", "http", "decide", "observe", "net"];

#[test]
fn a_layer_of_the_gate_imports_only_from_lower_layers() {
    let imports = Imports::of_crate(&source_of("tollgate"));
    let graph = imports.below(&["gate"], 2);
    let layer = |module: &str| GATE_LAYERS.iter().position(|layer| module.split("::").next() == Some(layer));
    assert!(graph.len() > 50, "{} modules", graph.len());
    for (module, imported) in &graph {
        let own = layer(module).unwrap_or_else(|| panic!("gate::{module} is in no layer"));
        for other in imported {
            let imports_down = layer(other).is_some_and(|other| other >= own);
            assert!(imports_down, "gate::{module} imports gate::{other}, which is not in its layer or a lower one");
        }
    }
    assert_eq!(cycle(&graph), None, "modules of the gate import each other");
}

#[test]
fn modules_of_the_core_do_not_import_each_other_in_a_cycle() {
    let graph = Imports::of_crate(&source_of("tollgate-core")).below(&[], 1);
    assert!(graph.len() > 10, "{} modules", graph.len());
    assert_eq!(cycle(&graph), None);
}

/// Type names that are defined twice in a crate, and why.
const NAMES_DEFINED_TWICE: [(&str, &str); 3] = [
    ("Answer", "test clients of two protocols, each in a module that tests import by name"),
    ("Gate", "the gate of the admin tests wraps that of all tests"),
    ("Request", "the request of the queue, and the trait of requests that rules see"),
];

#[test]
fn a_type_name_is_defined_once_in_a_crate() {
    let mut defined: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for (path, text) in files(&[".rs"]) {
        let Some((of_crate, _)) = path.strip_prefix("crates/").and_then(|path| path.split_once("/src/")) else {
            continue;
        };
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().filter(|word| !word.starts_with("pub")).collect();
            if let ["struct" | "enum" | "trait", name, ..] = words[..] {
                let name: String = name.chars().take_while(|letter| letter.is_alphanumeric()).collect();
                // A macro that defines types has no name for them.
                if !name.is_empty() {
                    defined.entry((of_crate.to_owned(), name)).or_default().push(path.clone());
                }
            }
        }
    }
    assert!(defined.len() > 500, "{} types", defined.len());
    for ((_, name), paths) in defined.iter().filter(|(_, paths)| paths.len() > 1) {
        let is_known = NAMES_DEFINED_TWICE.iter().any(|(known, _)| known == name);
        assert!(is_known, "{name} is defined in {paths:?}: rename one by what it is");
    }
}

#[test]
fn text_files_are_clean() {
    for (path, text) in files(&[".rs", ".md", ".toml", ".lua"]) {
        assert!(!text.contains('\r') && !text.contains('\t'), "{path} has tabs or carriage returns");
        assert!(text.ends_with('\n') || text.is_empty(), "{path} does not end with a line end");
        for (number, line) in text.lines().enumerate() {
            assert!(!line.ends_with(' '), "{path}:{} ends with a space", number + 1);
        }
    }
}
