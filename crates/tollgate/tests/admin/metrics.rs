//! Metrics, parsed by Prometheus' own parser.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::support::Gate;

/// A Python with these packages, installed into the target directory if missing.
pub(crate) fn python(name: &str, packages: &[&str], module: &str) -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let home = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let python = home.join("bin/python");
    let has_it = || {
        let import = Command::new(&python).args(["-c", &format!("import {module}")]).stderr(Stdio::null()).status();
        import.is_ok_and(|status| status.success())
    };
    if !has_it() {
        let run = |command: &mut Command| {
            assert!(
                command.status().is_ok_and(|status| status.success()),
                "{command:?} failed: python3 with venv and pip is needed (Debian: python3-venv)"
            );
        };
        run(Command::new("python3").arg("-m").arg("venv").arg(&home));
        run(Command::new(home.join("bin/pip")).args(["install", "-q"]).args(packages));
        assert!(has_it(), "{module} is not there after it was installed");
    }
    python
}

const RULE: &str =
    "[[rule]]\nname = \"api\"\nclass = \"header:x-api-key\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\n";

/// A gate that has answered six requests of three clients, and refused three of them.
pub(crate) fn busy_gate(more: &str) -> Gate {
    let gate = Gate::start(&format!("{RULE}{more}"));
    for number in 0..6 {
        gate.request("/", &[("X-Api-Key", &format!("secret-key-{}", number % 3))]);
    }
    gate
}

#[test]
fn prometheus_parses_the_metrics_and_they_contain_no_key() {
    let gate = busy_gate("");
    let text = gate.get("/metrics").body;
    assert!(!text.contains("secret-key"), "a key is a label: there is no end of those");
    let script = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families as read\n\
        for family in read(sys.stdin.read()):\n  print(family.type, family.name, len(family.samples))\n";
    let mut child = Command::new(python("prometheus", &["prometheus-client==0.23.*"], "prometheus_client"))
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let read = String::from_utf8(output.stdout).unwrap();
    for family in [
        "counter tollgate_requests 1",
        "gauge tollgate_band 1",
        "histogram tollgate_answer_seconds",
        "histogram tollgate_wait_seconds",
        "histogram tollgate_request_toll_seconds",
        "histogram tollgate_backend_seconds",
        "counter tollgate_watch_reports 1",
    ] {
        assert!(read.contains(family), "{family} in {read}");
    }
}

#[test]
fn an_unreachable_graphite_affects_no_request() {
    let gate = busy_gate("[metrics]\ngraphite = \"127.0.0.1:1\"\ngraphite_every = \"1s\"\n");
    gate.logged("cannot send metrics to Graphite");
    let metrics = gate.get("/metrics").body;
    let count = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{metrics}"));
        line.trim().parse::<u64>().unwrap()
    };
    assert!(count("tollgate_graphite_failures_total") > 0);
    assert_eq!(count("tollgate_graphite_batches_total"), 0);
    assert_eq!(gate.request("/", &[]).status, 200);
}
