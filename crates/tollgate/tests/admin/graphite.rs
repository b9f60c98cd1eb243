//! Metrics in Graphite's format, received by carbon.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::metrics::{busy_gate, python};
use crate::support::{Gate, eventually};
use tollgate_test_support::free_addresses;

/// A running carbon; killed when the test ends.
struct Carbon {
    child: Child,
    port: u64,
    /// Last value of each name, and its time in seconds.
    taken: Arc<Mutex<BTreeMap<String, (f64, f64)>>>,
    invalid: Arc<Mutex<Vec<Value>>>,
}

impl Carbon {
    /// Starts carbon on a port that stays reserved for it.
    fn start() -> Self {
        let [address] = free_addresses();
        Self::start_on(address.port().into())
    }

    fn start_on(port: u64) -> Self {
        let python = python("carbon", &["carbon==1.1.*"], "carbon.protocols");
        let mut child = Command::new(python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/admin/graphite.py"))
            .arg(port.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut said = lines.map(|line| serde_json::from_str::<Value>(&line).unwrap());
        let port = said.next().expect("carbon starts")["port"].as_u64().unwrap();
        let (taken, invalid) = (Arc::<Mutex<BTreeMap<_, _>>>::default(), Arc::<Mutex<Vec<_>>>::default());
        let (taken_here, invalid_here) = (taken.clone(), invalid.clone());
        std::thread::spawn(move || {
            for one in said {
                match one["name"].as_str() {
                    Some(name) => {
                        let point = (one["value"].as_f64().unwrap(), one["secs"].as_f64().unwrap());
                        taken_here.lock().unwrap().insert(name.to_owned(), point);
                    }
                    None => invalid_here.lock().unwrap().push(one),
                }
            }
        });
        Self { child, port, taken, invalid }
    }

    /// Waits until carbon has received this value.
    fn takes(&self, name: &str, value: f64) {
        eventually(&format!("{name} is {value}"), || {
            self.taken.lock().unwrap().get(name).is_some_and(|(taken, _)| *taken == value)
        });
    }

    /// Names received, without the prefix.
    fn names(&self, prefix: &str) -> Vec<String> {
        let taken = self.taken.lock().unwrap();
        taken.keys().map(|name| name.strip_prefix(prefix).unwrap_or_else(|| panic!("{name}")).to_owned()).collect()
    }
}

impl Drop for Carbon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Host name as a part of a Graphite name, from `/proc`.
fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    name.trim().chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
}

#[test]
fn carbon_receives_tempomats_metrics_and_further_ones() {
    let carbon = Carbon::start();
    let settings = format!("[metrics]\ngraphite = \"127.0.0.1:{}\"\ngraphite_every = \"1s\"\n", carbon.port);
    let gate = busy_gate(&settings);
    let report = json!({ "id": "r1", "entries": [{ "class": "user", "key": "u1", "rejected": 1000 }] });
    assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
    let prefix = format!("tollgate.{}.", hostname());
    for (name, value) in [("requests", 6.0), ("refused", 3.0), ("flags", 1.0), ("band", 0.0), ("Slash32", 0.0)] {
        carbon.takes(&format!("{prefix}{name}"), value);
    }
    let names = carbon.names(&prefix);
    for name in ["Slash32", "Slash24", "Slash16", "UserAgent", "held", "waiting", "in_flight", "toll_seconds"] {
        assert!(names.iter().any(|known| known == name), "{name} in {names:?}");
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let taken = carbon.taken.lock().unwrap().clone();
    assert!(taken.values().all(|(_, secs)| (now - secs).abs() < 3600.0), "{now}: {taken:?}");
    assert_eq!(*carbon.invalid.lock().unwrap(), Vec::<Value>::new());
}

/// Tempomat's `delayThresholdSec`.
#[test]
fn callers_count_as_waiting_from_the_configured_delay_on() {
    for (threshold, waiting) in [("1ms", 1.0), ("3s", 0.0)] {
        let carbon = Carbon::start();
        let settings = format!(
            "[[rule]]\nname = \"each\"\nclass = \"ip/32\"\nrate = {{ rate = \"5/s\", burst = 1 }}\nhold = \"5s\"\n\
             [metrics]\ngraphite = \"tcp://127.0.0.1:{}\"\ngraphite_prefix = \"p\"\ngraphite_every = \"1s\"\n\
             graphite_delay_threshold = \"{threshold}\"\n",
            carbon.port
        );
        let gate = Gate::start(&settings);
        // Each of them but the first is held for 200 ms.
        (0..8).for_each(|_| assert_eq!(gate.request("/", &[]).status, 200));
        carbon.takes("p.requests", 8.0);
        carbon.takes("p.Slash32", waiting);
    }
}

#[test]
fn metrics_are_sent_again_after_carbon_restarts() {
    let carbon = Carbon::start();
    let settings = format!(
        "[metrics]\ngraphite = \"127.0.0.1:{}\"\ngraphite_prefix = \"some.place\"\ngraphite_every = \"1s\"\n",
        carbon.port
    );
    let gate = busy_gate(&settings);
    carbon.takes("some.place.requests", 6.0);
    let port = carbon.port;
    drop(carbon);
    gate.logged("cannot send metrics to Graphite");
    assert_eq!(gate.request("/", &[("X-Api-Key", "another")]).status, 200);
    let carbon = Carbon::start_on(port);
    carbon.takes("some.place.requests", 7.0);
    assert!(!carbon.names("some.place.").is_empty());
    assert_eq!(*carbon.invalid.lock().unwrap(), Vec::<Value>::new());
}
