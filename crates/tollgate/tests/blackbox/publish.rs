//! The crates can be published: their metadata is complete, and their packages contain all that they are built from.
//!
//! `cargo publish --dry-run` asks the registry. This is the part of it that needs no network.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::program::root;

fn cargo(arguments: &[&str]) -> Vec<u8> {
    let output = Command::new(env!("CARGO")).args(arguments).arg("--offline").current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The packages of the workspace that are published.
fn packages() -> Vec<Value> {
    let metadata: Value = serde_json::from_slice(&cargo(&["metadata", "--no-deps", "--format-version=1"])).unwrap();
    let all = metadata["packages"].as_array().unwrap().clone();
    all.into_iter().filter(|package| package["publish"] != serde_json::json!([])).collect()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap()
}

#[test]
fn every_published_crate_describes_itself() {
    let packages = packages();
    let mut names: Vec<_> = packages.iter().map(name).collect();
    names.sort_unstable();
    assert_eq!(names, ["tollgate", "tollgate-core", "tollgate-gatekeeper", "tollgate-storm", "tollgate-wire"]);
    for package in &packages {
        for field in ["description", "license", "repository", "documentation", "readme", "rust_version"] {
            assert!(package[field].as_str().is_some_and(|text| !text.is_empty()), "{} has no {field}", name(package));
        }
        for (field, most) in [("keywords", 5), ("categories", 5)] {
            let count = package[field].as_array().unwrap().len();
            assert!((1..=most).contains(&count), "{} has {count} {field}", name(package));
        }
        let front_page = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        let front_page = std::fs::read_to_string(front_page.join(package["readme"].as_str().unwrap())).unwrap();
        assert!(front_page.contains("```"), "the front page of {} has no example", name(package));
        // A dependency on another crate of the workspace needs a version. Those for tests are left out of the package.
        for dependency in package["dependencies"].as_array().unwrap() {
            let is_needed = dependency["kind"].is_null() && !dependency["path"].is_null();
            assert!(!is_needed || dependency["req"] != "*", "{}: {}", name(package), dependency["name"]);
        }
    }
}

/// The Rust files below a directory.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn a_package_has_every_file_that_its_code_includes() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    let mut arguments =
        vec!["package", "--no-verify", "--allow-dirty", "--quiet", "--target-dir", target.to_str().unwrap()];
    let packages = packages();
    arguments.extend(packages.iter().flat_map(|package| ["-p", name(package)]));
    cargo(&arguments);
    for package in &packages {
        let full_name = format!("{}-{}", name(package), package["version"].as_str().unwrap());
        let archive = target.join("package").join(format!("{full_name}.crate"));
        let unpacked = Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(folder.path()).status().unwrap();
        assert!(unpacked.success(), "{}", archive.display());
        let unpacked = folder.path().join(&full_name);
        for file in ["Cargo.toml", "Cargo.lock", "README.md"] {
            assert!(unpacked.join(file).exists(), "{full_name} has no {file}");
        }
        let mut files = Vec::new();
        sources(&unpacked.join("src"), &mut files);
        assert!(!files.is_empty());
        for file in files.iter().filter(|file| !file.components().any(|part| part.as_os_str() == "tests")) {
            let text = std::fs::read_to_string(file).unwrap();
            // Tests are built in this repository only.
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let included = ["include_str!(\"", "include_bytes!(\"", "#[path = \""].into_iter();
            for path in included.flat_map(|open| code.split(open).skip(1)).map(|rest| rest.split('"').next().unwrap()) {
                let path = file.parent().unwrap().join(path);
                assert!(path.exists(), "{} needs {}, which is not in the package", file.display(), path.display());
            }
        }
    }
}
