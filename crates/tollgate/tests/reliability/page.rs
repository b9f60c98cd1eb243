//! docs/reliability.md: generated from the faults, from the names of the tests, and from the recorded results of long
//! runs. `TOLLGATE_BLESS=1 cargo test -p tollgate --test reliability` writes it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::faults::FAULTS;

/// The number of faults that the project distinguishes.
const FAULT_COUNT: u32 = 46;

const INTRODUCTION: &str = "\
# Reliability: faults and their tests

This page is for operators and developers who want to know how Tollgate behaves when something goes wrong. A *fault* is a hostile input or a
failure. The table lists each fault with the promise of Tollgate and the tests that check it, which are functions in `crates`. The page is
generated: a test fails if a fault has no test or the page is out of date. `TOLLGATE_BLESS=1 cargo test -p tollgate --test reliability` writes it.

All tests named here are part of `./test`, most of them with the built binary over sockets. Longer checks have commands of their own, and
their last recorded results are [below](#long-runs).

| | input or failure | promise | tests |
|---|---|---|---|
";

/// Commands that run for longer than `./test` may, and the files with their recorded results.
const LONG_RUNS: [(&str, &str, &str); 4] = [
    (
        "chaos",
        "./test chaos [SEED [SECONDS]]",
        "Three gates, two masters, a Redis Cluster and backends in network namespaces, under load, with random kills, \
         partitions, pauses, clock steps, full disks and reloads from one seed. It must fail with each of three deliberate \
         defects, and did with seed 7 in 75 s: 122 requests below their limits were refused when a gate did not decide \
         alone without Redis, 61 acknowledged flags were lost when the journal was not synced, and 20 instead of 39 \
         requests were left when unused leases were not returned. In the results, *admitted* counts the requests of a \
         client that exceeds its limit. The rule of `/shared` has its state on Redis, those of `/fleet0` and `/fleet1` at \
         the two masters, and that of `/local` in the memory of each gate. *At most* is the documented bound, given the \
         faults of the run.",
    ),
    (
        "soak",
        "./test soak [SECONDS [KEYS]]",
        "One gate at 80 % of the request rate that it reaches on its core, with 50 million distinct keys: memory and p99 \
         must stay constant.",
    ),
    (
        "fuzzing",
        "fuzz/run SECONDS [TARGET...]",
        "Random inputs for every parser of untrusted input, for this many seconds each; `./test full` replays the seeds \
         and runs a minute each. [fuzz/README.md](../fuzz/README.md) lists the targets.",
    ),
    (
        "suites",
        "./test suites [DIRECTORY]",
        "Conformance suites of other projects, from package registries or from a directory.",
    ),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The text of all Rust sources of the workspace.
fn sources() -> String {
    fn walk(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                *text += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    let mut text = String::new();
    walk(&root().join("crates"), &mut text);
    text
}

/// The names of all functions in the sources, in the order of the files.
fn functions(sources: &str) -> Vec<&str> {
    sources.split("fn ").skip(1).filter_map(|start| start.split_once(['(', '<'])).map(|(name, _)| name).collect()
}

/// The page, or all reasons why it cannot be written.
fn page() -> Result<String, Vec<String>> {
    let sources = sources();
    let functions = functions(&sources);
    let (mut page, mut missing) = (INTRODUCTION.to_owned(), Vec::new());
    let numbers: Vec<_> = FAULTS.iter().map(|fault| fault.number).collect();
    if numbers != (1..=FAULT_COUNT).collect::<Vec<_>>() {
        missing.push(format!("the faults are not numbered from 1 to {FAULT_COUNT}: {numbers:?}"));
    }
    for fault in FAULTS {
        let prefix = format!("fault_{}_", fault.number);
        let mut tests: Vec<_> = functions.iter().copied().filter(|name| name.starts_with(&prefix)).collect();
        tests.sort_unstable();
        if tests.is_empty() {
            missing.push(format!("fault {} has no test: a name starts with {prefix}", fault.number));
        }
        for name in fault.also {
            if !functions.contains(name) {
                missing.push(format!("fault {} names {name}, which is no test", fault.number));
            }
        }
        let tests: Vec<_> = tests.iter().chain(fault.also).map(|name| format!("`{name}`")).collect();
        writeln!(page, "| {} | {} | {} | {} |", fault.number, fault.input, fault.promise, tests.join(", ")).unwrap();
    }
    let strays = functions.iter().filter(|name| has_unknown_number(name));
    missing.extend(strays.map(|name| format!("{name} has no number of a fault")));
    page += "\n## Long runs\n";
    for (name, command, description) in LONG_RUNS {
        let file = root().join(format!("crates/tollgate/tests/reliability/results/{name}.md"));
        let result = std::fs::read_to_string(&file).unwrap_or_else(|_| "No result is recorded.\n".to_owned());
        write!(page, "\n### `{command}`\n\n{description}\n\n{result}").unwrap();
    }
    if missing.is_empty() { Ok(page) } else { Err(missing) }
}

fn has_unknown_number(name: &str) -> bool {
    let number = name.strip_prefix("fault_").and_then(|rest| rest.split('_').next()?.parse::<u32>().ok());
    number.is_some_and(|number| !(1..=FAULT_COUNT).contains(&number))
}

#[test]
fn every_fault_has_a_test_and_the_page_is_up_to_date() {
    let page = page().unwrap_or_else(|missing| panic!("{}", missing.join("\n")));
    let file = root().join("docs/reliability.md");
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        written == page,
        "docs/reliability.md is out of date: TOLLGATE_BLESS=1 cargo test -p tollgate --test reliability writes it"
    );
}
