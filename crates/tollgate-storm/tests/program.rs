//! The program `tollgate-storm`, as its users run it.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use tollgate_storm::results::{FORMAT, Results};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tollgate-storm"))
}

/// A running site, killed at the end of the test.
struct Site {
    child: Child,
    address: String,
}

impl Site {
    fn start() -> Self {
        let mut child = program()
            .args(["site", "--listen", "127.0.0.1:0", "--article", "1000+0", "--archive", "20000+0"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("site on http://").unwrap().to_string();
        Self { child, address }
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(arguments: &[&str]) -> Output {
    program().args(std::iter::once("run").chain(arguments.iter().copied())).output().unwrap()
}

#[test]
fn a_storm_against_the_site_writes_results_and_a_picture() {
    let site = Site::start();
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("storm-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (json, svg) = (directory.join("results.json"), directory.join("results.svg"));
    let url = format!("http://{}", site.address);
    let output = run(&[
        "--target",
        &url,
        "--site",
        &site.address,
        "--name",
        "nothing in between",
        "--seed",
        "7",
        "--networks",
        "12",
        "--connections",
        "24",
        "--calm",
        "1",
        "--storm",
        "2",
        "--recovery",
        "1",
        "--json",
        json.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
    ]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("storm      people") && table.contains("The crawler received"), "{table}");
    let results: Results = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!((results.format, results.storm.seed, results.storm.networks), (FORMAT, 7, 12));
    assert_eq!(
        results.phases.iter().map(|phase| phase.name.as_str()).collect::<Vec<_>>(),
        ["calm", "storm", "recovery"]
    );
    assert!(results.phases.iter().map(|phase| phase.people.views + phase.office.views).sum::<u64>() > 5, "{table}");
    assert!(results.phase("storm").unwrap().crawler.answered > 5, "{table}");
    assert!(results.site.unwrap().crawler_s > 0.1, "{:?}", results.site);
    assert_eq!(results.seconds.len(), 4);
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.contains("nothing in between") && picture.ends_with("</svg>\n"));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn wrong_arguments_exit_2_and_an_unreachable_target_1() {
    for arguments in [
        &["--target", "127.0.0.1:1"][..],
        &["--target", "https://127.0.0.1:1"],
        &["--target", "http://192.0.2.1:80"],
        &["--target", "http://127.0.0.1:1", "--networks", "0"],
        &["--target", "http://127.0.0.1:1", "--networks", "5889"],
        &["--target", "http://127.0.0.1:1", "--random", "--networks", "3"],
        &["--target", "http://127.0.0.1:1", "--article-path", "/a b", "--archive-path", "/c", "--asset-path", "/d"],
        &["--target", "http://127.0.0.1:1", "--article-path", "/a"],
        &[],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
    assert_eq!(run(&["--target", "http://127.0.0.1:1"]).status.code(), Some(1));
}
