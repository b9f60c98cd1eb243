//! The dashboard and the alerts in `contrib`: promtool accepts them, and their metrics and labels exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Gate, ask, eventually};
use tollgate_test_support::master::Master;
use tollgate_test_support::redis_server::RedisServer;

const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib");
const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/prometheus/tollgate-alerts.yml");

/// Runs promtool in a folder; panics with its output if it fails.
fn promtool(folder: &Path, arguments: &[&str]) {
    let unpacked = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/prometheus/usr/bin/promtool"));
    let program = if unpacked.exists() { unpacked.canonicalize().unwrap() } else { "promtool".into() };
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.expect("promtool is installed by ./test");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", said(&output.stdout), said(&output.stderr));
}

/// Metrics of a gate with Redis and a master, and of that master: all series, and the labels of each name.
struct Shown {
    series: BTreeSet<String>,
    labels: BTreeMap<String, BTreeSet<String>>,
}

impl Shown {
    fn by_a_gate_and_its_master() -> Self {
        let by_master = "[[rule]]\nname = \"each\"\nclass = \"header:x-key\"\nrate = { rate = \"10/s\", burst = 10 }\nstate = \"master\"\n";
        let by_redis = "[[rule]]\nname = \"shared\"\nclass = \"ip/32\"\nbucket = { size = 9, drip = 9, every = \"1s\" }\nstate = \"redis\"\n";
        let (master, redis) = (Master::start_with("charts", by_master), RedisServer::start(&[]));
        let gate = Gate::start(&format!(
            "{by_master}{by_redis}[[link.master]]\naccounting = \"{}\"\ncontrol = \"{}\"\n[redis]\nurl = \"redis://127.0.0.1:{}\"\ndeadline = \"1s\"\n",
            master.accounting,
            master.control,
            redis.port()
        ));
        let mut text = String::new();
        eventually("all of them are there", || {
            gate.request("/", &[("X-Key", "somebody")]);
            text = gate.get("/metrics").body;
            text.lines().any(|line| line.starts_with("tollgate_redis_decisions_total") && !line.ends_with(" 0"))
        });
        text += &ask(master.admin, "GET", "/metrics", &[], "").body;
        let mut shown = Self { series: BTreeSet::new(), labels: BTreeMap::new() };
        for line in text.lines().filter(|line| line.starts_with("tollgate_")) {
            let series = line.rsplit_once(' ').unwrap().0;
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let names = labels.split("=\"").filter_map(|part| part.rsplit([',', '"', '{']).next());
            let names = names.filter(|name| *name != "}" && !name.is_empty()).map(str::to_owned);
            shown.labels.entry(name.to_owned()).or_default().extend(names.chain(["instance".to_owned()]));
            shown.series.insert(format!("{name}{{instance=\"g\"{}{labels}", if labels == "}" { "" } else { "," }));
        }
        shown
    }

    /// Asserts that all names in an expression exist, and that all labels in it or in its text belong to one of them.
    fn has_all_of(&self, expression: &str, written: &str) {
        let names = words(expression).filter(|word| word.starts_with("tollgate_"));
        let known = names.flat_map(|name| self.labels.get(name).unwrap_or_else(|| panic!("{name} does not exist")));
        let known: BTreeSet<_> = known.map(String::as_str).collect();
        let by = expression.split(" by (").skip(1).flat_map(|rest| words(rest.split(')').next().unwrap()));
        let said = written.split("$labels.").skip(1).filter_map(|rest| words(rest).next());
        let legend = written.split("{{").skip(1).filter(|rest| !rest.contains('$'));
        let legend = legend.flat_map(|rest| words(rest.split("}}").next().unwrap()));
        for label in by.chain(said).chain(legend) {
            assert!(known.contains(label), "{label} is not a label of {expression}: {known:?}");
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Expressions of the dashboard, with their legends.
fn drawn(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let text = |target: &Value, name: &str| target[name].as_str().unwrap().to_owned();
    targets.map(|target| (text(target, "expr"), text(target, "legendFormat"))).collect()
}

/// An expression as Grafana sends it.
fn sent(expression: &str) -> String {
    let sent = expression.replace("$instance", ".*").replace("$__rate_interval", "5m");
    assert!(!sent.contains('$'), "{sent}");
    sent
}

#[test]
fn all_metrics_of_the_dashboard_exist() {
    let shown = Shown::by_a_gate_and_its_master();
    let text = std::fs::read_to_string(format!("{CONTRIB}/grafana/tollgate.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let drawn = drawn(&dashboard);
    assert!(drawn.len() >= 30, "{}", drawn.len());
    for (expression, legend) in &drawn {
        shown.has_all_of(expression, legend);
    }
    let ids: BTreeSet<_> = dashboard["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), dashboard["panels"].as_array().unwrap().len(), "two panels with one id");
    // Every expression has a value for the existing series.
    let series = shown.series.iter().map(|series| json!({ "series": series, "values": "1+1x20" }));
    let tests = drawn.iter().map(|(expression, _)| {
        let expression = format!("count({}) > bool 0", sent(expression));
        json!({ "expr": expression, "eval_time": "15m", "exp_samples": [{ "labels": "{}", "value": 1 }] })
    });
    let (series, tests): (Vec<_>, Vec<_>) = (series.collect(), tests.collect());
    let folder = tempfile::tempdir().unwrap();
    // JSON is YAML.
    let file = json!({ "tests": [{ "interval": "1m", "input_series": series, "promql_expr_test": tests }] });
    std::fs::write(folder.path().join("drawn.yml"), file.to_string()).unwrap();
    promtool(folder.path(), &["test", "rules", "drawn.yml"]);
}

#[test]
fn the_alerts_are_raised_when_they_are_due() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(ALERTS, folder.path().join("tollgate-alerts.yml")).unwrap();
    let tests = include_str!("alerts.yml");
    std::fs::write(folder.path().join("alerts.yml"), tests).unwrap();
    promtool(folder.path(), &["check", "rules", "tollgate-alerts.yml"]);
    promtool(folder.path(), &["test", "rules", "alerts.yml"]);
    let text = std::fs::read_to_string(ALERTS).unwrap();
    let shown = Shown::by_a_gate_and_its_master();
    let alerts: Vec<_> = text.split("- alert: ").skip(1).collect();
    assert!(alerts.len() >= 11);
    for alert in alerts {
        let (name, rest) = alert.split_once('\n').unwrap();
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "{name} is not tested");
        let expression = rest.lines().find_map(|line| line.trim().strip_prefix("expr: ")).unwrap();
        shown.has_all_of(expression, rest);
    }
    // All series that the tests assume must exist.
    for series in tests.split("series: '").skip(1).filter_map(|rest| rest.split('\'').next()) {
        let (name, labels) = series.split_once('{').unwrap();
        for label in
            labels.split('=').filter_map(|part| words(part).last()).filter(|word| labels.contains(&format!("{word}=")))
        {
            assert!(shown.labels[name].contains(label), "{label} in {series}");
        }
    }
}
