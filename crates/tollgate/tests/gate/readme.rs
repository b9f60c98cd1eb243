//! Runs every command of README.md.
//!
//! With two changes: `tollgate` is the binary of this build, and a gate gets free ports and the backend of the test.

use std::path::Path;
use std::process::{Command, Output};

use crate::recipes::readme_config;
use crate::support::{Backend, Gate};

const README: &str = include_str!("../../../../README.md");

/// The commands of all `sh` blocks of a page, without comments.
pub(crate) fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).map(|block| block.split_once("```").unwrap().0);
    let without_comment = |line: &str| line.split(" # ").next().unwrap().trim().to_owned();
    blocks.flat_map(str::lines).map(without_comment).filter(|line| !line.is_empty()).collect()
}

/// A command, which must be on the page.
pub(crate) fn tollgate(page: &str, line: &str, folder: &Path) -> Command {
    assert!(commands(page).iter().any(|command| command == line), "the page has no {line}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(line.split_whitespace().skip(1)).current_dir(folder);
    command
}

/// The output of a command of the page, which must succeed.
pub(crate) fn output_of(page: &str, line: &str, folder: &Path) -> String {
    let Output { status, stdout, stderr } = tollgate(page, line, folder).output().unwrap();
    assert!(status.success(), "{line}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[test]
fn every_command_is_run_by_a_test() {
    let run_here = [
        "tollgate gate --backend http://127.0.0.1:8080",
        "tollgate check tollgate.toml",
        "tollgate replay --config tollgate.toml access.log",
        "tollgate gate --config tollgate.toml",
    ];
    // The package tests build from source, which takes minutes.
    let run_elsewhere = ["cargo install --locked --path crates/tollgate"];
    for command in commands(README) {
        let is_run = run_here.contains(&&*command) || run_elsewhere.contains(&&*command);
        assert!(is_run, "no test runs {command}");
    }
}

#[test]
fn the_rule_is_checked_replayed_and_enforced_as_documented() {
    let backend = Backend::saying("ok");
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::write(folder.path().join("tollgate.toml"), readme_config(&backend)).unwrap();
    std::fs::copy(root.join("examples/access.log.gz"), folder.path().join("access.log")).unwrap();
    output_of(README, "tollgate check tollgate.toml", folder.path());
    let replayed = output_of(README, "tollgate replay --config tollgate.toml access.log", folder.path());
    assert!(replayed.contains("crawlers"), "{replayed}");
    let mut command = tollgate(README, "tollgate gate --config tollgate.toml", folder.path());
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    assert_eq!(Gate::spawn(command, folder).get("/").text(), "ok");
}

#[test]
fn a_gate_without_a_file_serves_the_backend_and_has_a_console() {
    let backend = Backend::saying("ok");
    let folder = tempfile::tempdir().unwrap();
    let line = "tollgate gate --backend http://127.0.0.1:8080";
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let known = tollgate(README, line, folder.path());
    command.args(known.get_args().map(|word| word.to_str().unwrap().replace("http://127.0.0.1:8080", &backend.url())));
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let gate = Gate::spawn(command, folder);
    assert_eq!(gate.get("/").text(), "ok");
    assert!(gate.admin("/").text().contains("<title>"));
}

#[test]
fn the_rust_version_of_the_page_is_that_of_the_build() {
    let manifest = include_str!("../../../../Cargo.toml");
    let version = manifest.split("rust-version = \"").nth(1).unwrap().split('"').next().unwrap();
    assert!(README.contains(&format!("Rust {version} or newer")), "README.md does not ask for Rust {version}");
}

#[test]
fn the_page_fits_one_screen() {
    let lines = README.lines().count();
    assert!(lines <= 90, "{lines} lines");
}

#[test]
fn cargo_run_has_one_program_to_start() {
    let mut command = Command::new(env!("CARGO"));
    command.args(["metadata", "--no-deps", "--offline", "--format-version=1"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let metadata: serde_json::Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let defaults = metadata["workspace_default_members"].as_array().unwrap();
    let packages = metadata["packages"].as_array().unwrap().iter().filter(|package| defaults.contains(&package["id"]));
    let targets = packages.flat_map(|package| package["targets"].as_array().unwrap());
    let programs: Vec<_> = targets.filter(|target| target["kind"][0] == "bin").map(|target| &target["name"]).collect();
    assert_eq!(programs, ["tollgate"]);
}
