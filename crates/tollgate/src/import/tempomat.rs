//! Translates the configuration of Tempomat, `/etc/tempomat.json`. Tempomat is a reverse proxy that limits the share of
//! CPU time of addresses, networks and user agents.

use std::cell::RefCell;
use std::fmt::Write;

use serde_json::{Map, Value};

use super::{Imported, decimal, quoted};

/// Tempomat's keys for shares of the backend. Each becomes a rule with a budget: the key, the name of the rule, its
/// class, and its burst in seconds, which is a constant in Tempomat.
const SHARES: [(&str, &str, &str, u32); 4] = [
    ("slash32Share", "slash32", "ip/32", 30),
    ("slash24Share", "slash24", "ip/24", 30),
    ("slash16Share", "slash16", "ip/16", 30),
    ("userAgentShare", "user-agent", "user-agent", 120),
];

/// Keys of Tempomat that no setting replaces directly, each with the note that the operator gets if the file has it.
const WITHOUT_COUNTERPART: [(&str, &str); 2] = [
    ("debug", "`debug` is not a setting: start the gate with TOLLGATE_LOG=debug"),
    ("hashMaxLen", "`hashMaxLen` is replaced by `memory` in [gate], which bounds the state of all rules in bytes"),
];

/// Keys of older versions of Tempomat that only configure logs.
const OLD_LOG_KEYS: [&str; 3] = ["logFile", "statsFile", "syslogStats"];

/// Translates the text of a configuration, or returns all its errors.
pub(super) fn translate(text: &str) -> Result<Imported, Vec<String>> {
    let keys = match serde_json::from_str(text) {
        Ok(Value::Object(keys)) => keys,
        Ok(_) => return Err(vec!["is not a JSON object".to_owned()]),
        Err(error) => return Err(vec![format!("is not JSON: {error}")]),
    };
    let source = TempomatKeys { keys: &keys, errors: RefCell::default() };
    let mut imported = Imported::default();
    gate(&source, &mut imported);
    rules(&source, &mut imported);
    graphite(&source, &mut imported);
    imported.notes.extend(notes(&keys));
    let errors = source.errors.into_inner();
    if errors.is_empty() { Ok(imported) } else { Err(errors) }
}

/// The keys of the file, and the errors in their values.
struct TempomatKeys<'a> {
    keys: &'a Map<String, Value>,
    /// The errors found so far.
    errors: RefCell<Vec<String>>,
}

impl TempomatKeys<'_> {
    fn report(&self, error: String) {
        self.errors.borrow_mut().push(error);
    }

    /// A string; `None` if it is absent or empty.
    fn text(&self, key: &str) -> Option<&str> {
        match self.keys.get(key) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.as_str()).filter(|text| !text.is_empty()),
            Some(other) => {
                self.report(format!("`{key}` is not a string: {other}"));
                None
            }
        }
    }

    /// A number that is not negative; 0 if it is absent.
    fn number(&self, key: &str) -> f64 {
        let Some(value) = self.keys.get(key).filter(|value| !value.is_null()) else { return 0.0 };
        value.as_f64().filter(|number| *number >= 0.0).unwrap_or_else(|| {
            self.report(format!("`{key}` is not a number of at least 0: {value}"));
            0.0
        })
    }
}

/// Writes the table `[gate]`. Absent keys have Tempomat's defaults.
fn gate(source: &TempomatKeys<'_>, imported: &mut Imported) {
    let port = match source.number("listenPort") {
        0.0 => 8888.0,
        port => port,
    };
    let toml = &mut imported.toml;
    toml.push_str("# Translated from a configuration of Tempomat by `tollgate import tempomat`.\n[gate]\n");
    let _ = writeln!(toml, "listen  = {}", quoted(&format!("0.0.0.0:{}", decimal(port, 0))));
    let _ = writeln!(toml, "backend = {}", quoted(source.text("backend").unwrap_or("http://localhost:80")));
    let proxies = source.text("trustedProxies").unwrap_or_default().split(',').map(str::trim);
    let proxies: Vec<_> = proxies.filter(|proxy| !proxy.is_empty()).map(quoted).collect();
    if !proxies.is_empty() {
        let _ = writeln!(toml, "trusted_proxies = [{}]", proxies.join(", "));
    }
    let cores = source.number("cpuCount");
    if cores > 0.0 {
        let _ = writeln!(toml, "cores   = {}", decimal(cores, 3));
    }
}

/// Writes a rule for each share below 1.
fn rules(source: &TempomatKeys<'_>, imported: &mut Imported) {
    for (key, name, class, burst) in SHARES {
        let share = source.number(key);
        if share >= 1.0 || share == 0.0 {
            if share > 0.0 {
                imported.notes.push(format!("`{key}` allows all cores, so there is no rule for it"));
            }
            continue;
        }
        let toml = &mut imported.toml;
        let _ = write!(
            toml,
            "\n# {key}: a cap, also while the backend is idle. Without the rule, the fair queue shares the backend when it is overloaded.\n\
             [[rule]]\nname   = {}\nclass  = {}\nbudget = {{ share = {}, burst = \"{burst}s\" }}\n",
            quoted(name),
            quoted(class),
            decimal(share, 6)
        );
        if class == "user-agent" {
            imported.notes.push(
                "all users of one browser version share the budget of `userAgentShare`: add a `when` for crawlers, as in \
                 docs/recipes.md"
                    .to_owned(),
            );
        }
    }
}

/// Writes the table `[metrics]`, with the interval and the default threshold of Tempomat: 1 s and 3 s.
fn graphite(source: &TempomatKeys<'_>, imported: &mut Imported) {
    let Some(address) = source.text("graphite") else {
        for key in ["graphitePrefix", "delayThresholdSec"].into_iter().filter(|key| source.keys.contains_key(*key)) {
            imported.notes.push(format!("`{key}` has no effect without `graphite`"));
        }
        return;
    };
    let Some(prefix) = source.text("graphitePrefix") else {
        return source.report("`graphite` needs `graphitePrefix`, in Tempomat too".to_owned());
    };
    let threshold = match source.number("delayThresholdSec") {
        0.0 => 3.0,
        threshold => threshold,
    };
    let _ = write!(
        imported.toml,
        "\n[metrics]\ngraphite                 = {}\ngraphite_prefix          = {}\ngraphite_every           = \"1s\"\n\
         graphite_delay_threshold = \"{}s\"   # delayThresholdSec\n",
        quoted(address),
        quoted(prefix),
        decimal(threshold, 3)
    );
}

/// The notes about keys that are not translated.
fn notes(keys: &Map<String, Value>) -> Vec<String> {
    let known = |key: &str| {
        let read =
            ["delayThresholdSec", "backend", "listenPort", "graphite", "graphitePrefix", "trustedProxies", "cpuCount"];
        read.contains(&key)
            || SHARES.iter().any(|share| share.0 == key)
            || WITHOUT_COUNTERPART.iter().any(|one| one.0 == key)
    };
    let without =
        WITHOUT_COUNTERPART.iter().filter(|(key, _)| keys.contains_key(*key)).map(|(_, why)| (*why).to_owned());
    let unknown = keys.keys().filter(|key| !known(key)).map(|key| match OLD_LOG_KEYS.contains(&key.as_str()) {
        true => format!(
            "`{key}` is not translated: the gate logs to standard error, and [gate.access_log] is its access log"
        ),
        false => format!("`{key}` is not a key of Tempomat and was ignored"),
    });
    without.chain(unknown).collect()
}

#[cfg(test)]
mod tests {
    use tollgate_core::class::Class;
    use tollgate_core::limit::{Budget, Limit};
    use tollgate_core::time::Span;

    use super::super::tests::translation;
    use super::*;

    /// The sample in Tempomat's documentation.
    const SAMPLE: &str = r#"{ "debug": false, "delayThresholdSec": 0.1, "backend": "http://localhost:80", "listenPort": 8888,
        "graphite": "localhost:2003", "graphitePrefix": "some.place.prepend.{hostname}", "trustedProxies": "127.0.0.1, 10.0.0.1",
        "cpuCount": 4.0, "slash32Share": 0.1, "slash24Share": 0.25, "slash16Share": 0.5, "userAgentShare": 0.1, "hashMaxLen": 100 }"#;

    #[test]
    fn every_key_of_the_sample_is_translated_or_noted() {
        let (settings, imported) = translation(SAMPLE, translate);
        let gate = settings.gate.unwrap();
        assert_eq!(gate.listen[0].to_string(), "0.0.0.0:8888");
        for proxy in ["127.0.0.1", "10.0.0.1"] {
            assert!(gate.trusted_proxies.contains(proxy.parse().unwrap()));
        }
        let rules = &settings.domains[0].rules;
        let limits: Vec<_> = rules.iter().map(|rule| (rule.rule.class.to_string(), rule.rule.limit)).collect();
        let budget = |millionths, burst| Limit::Budget(Budget::new(millionths, Span::from_secs(burst)).unwrap());
        let class = |name: &str| Class::parse(name).unwrap().to_string();
        let expected = [
            (class("ip/32"), budget(400_000, 30)),
            (class("ip/24"), budget(1_000_000, 30)),
            (class("ip/16"), budget(2_000_000, 30)),
            (class("user-agent"), budget(400_000, 120)),
        ];
        assert_eq!(limits, expected);
        let graphite = settings.graphite.unwrap();
        assert_eq!(
            (graphite.address.as_deref(), graphite.delay_threshold),
            (Some("localhost:2003"), Span::from_millis(100))
        );
        let notes = imported.notes.join("\n");
        for key in ["`debug`", "`hashMaxLen`", "`userAgentShare`"] {
            assert!(notes.contains(key), "{notes}");
        }
    }

    #[test]
    fn defaults_are_those_of_tempomat() {
        let (settings, imported) = translation("{}", translate);
        assert_eq!(settings.gate.unwrap().listen[0].port(), 8888);
        assert!(
            imported.toml.contains("http://localhost:80") && settings.graphite.is_none() && imported.notes.is_empty()
        );
        assert_eq!(settings.domains.iter().map(|domain| domain.rules.len()).sum::<usize>(), 0);
    }

    #[test]
    fn wrong_files_are_rejected_with_the_reason() {
        for (text, reason) in [
            ("[]", "not a JSON object"),
            ("{", "not JSON"),
            (r#"{ "slash32Share": "a lot" }"#, "`slash32Share` is not a number"),
            (r#"{ "slash32Share": -1 }"#, "`slash32Share` is not a number"),
            (r#"{ "backend": 80 }"#, "`backend` is not a string"),
            (r#"{ "graphite": "localhost:2003" }"#, "needs `graphitePrefix`"),
        ] {
            let errors = translate(text).unwrap_err();
            assert!(errors.len() == 1 && errors[0].contains(reason), "{errors:?}");
        }
        let all = r#"{ "cpuCount": -1, "slash32Share": "a lot", "graphite": "localhost:2003" }"#;
        assert_eq!(translate(all).unwrap_err().len(), 3);
        let unused = translate(r#"{ "delayThresholdSec": 1.5, "graphitePrefix": "x" }"#).unwrap().notes;
        assert_eq!(unused.len(), 2, "{unused:?}");
        let notes = translate(r#"{ "slashShare": 1, "statsFile": "x", "slash32Share": 1.5 }"#).unwrap().notes;
        assert_eq!(notes.len(), 3, "{notes:?}");
    }
}
