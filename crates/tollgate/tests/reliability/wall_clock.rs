//! Fault 29: the wall clock steps while the gate runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::gate::{Gate, eventually};

const HOUR: i64 = 3_600;
const YEAR: i64 = 365 * 24 * HOUR;

/// A limit that a client uses up for minutes, one that is free again after two seconds, and a penalty of an hour.
const RULES: &str = "
[[rule]]
name = 'long'
class = 'header:x-key'
when = { path = '/long' }
rate = { rate = '1/min', burst = 3 }
hold = '0s'
[[rule]]
name = 'short'
class = 'header:x-key'
when = { path = '/short' }
bucket = { size = 1, drip = 1, every = '2s' }
[[rule]]
name = 'penalty'
class = 'header:x-key'
when = { path = '/penalty' }
window = { max = 1, per = '1s' }
escalation = { backoff = '1h', backoff_max = '1h', levels = 2, release = '1h' }
";

/// A wall clock that the test can step.
struct WallClock(PathBuf);

impl WallClock {
    fn step(&self, offset_s: i64) {
        use std::os::unix::fs::FileExt as _;
        std::fs::File::options().write(true).open(&self.0).unwrap().write_all_at(&offset_s.to_ne_bytes(), 0).unwrap();
    }
}

/// Starts a gate with its own wall clock.
fn start() -> (Gate, WallClock) {
    let folder = tempfile::tempdir().unwrap();
    let (library, clock) = (folder.path().join("wall_clock.so"), folder.path().join("clock"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../reliability/shim.c");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl").status();
    assert!(built.unwrap().success());
    std::fs::write(&clock, 0_i64.to_ne_bytes()).unwrap();
    let (preload, file) = (format!("LD_PRELOAD={}", library.display()), format!("TOLLGATE_CLOCK={}", clock.display()));
    (Gate::start_by(&["env", &preload, &file], folder, RULES), WallClock(clock))
}

/// The seconds after which a refused client may retry.
fn retry_after(gate: &Gate, path: &str, key: &str) -> Option<u64> {
    let answer = gate.request(path, &[("X-Key", key)]);
    assert_eq!(answer.status == 200, answer.header("retry-after").is_none(), "{answer:?}");
    answer.header("retry-after").map(|seconds| seconds.parse().unwrap())
}

/// The year of a line of the log that this call causes.
fn logged_year(gate: &Gate, account: &str) -> u32 {
    let report = json!({"id": account, "entries": [{"class": "user", "key": account, "rejected": 5000}]});
    assert_eq!(gate.post("/api/v1/rejections", &report).status, 202);
    let line: Value = serde_json::from_str(&gate.logged(account)).unwrap();
    line["timestamp"].as_str().unwrap()[..4].parse().unwrap()
}

#[test]
fn fault_29_a_step_of_the_wall_clock_neither_frees_nor_blocks_a_client() {
    let (gate, clock) = start();
    let started = Instant::now();
    while retry_after(&gate, "/long", "offender").is_none() {}
    while retry_after(&gate, "/penalty", "offender").is_none() {}
    let year = logged_year(&gate, "account-1");
    for (number, step) in [YEAR, -HOUR, 0, -YEAR, 10 * YEAR].into_iter().enumerate() {
        clock.step(step);
        let long = retry_after(&gate, "/long", "offender").expect("a step of the clock frees no offender");
        let penalty = retry_after(&gate, "/penalty", "offender").expect("a step of the clock ends no penalty");
        // The jitter of announced times is below a quarter.
        assert!(long <= 75, "step {step}: retry after {long} s");
        let left = HOUR as u64 - started.elapsed().as_secs();
        assert!((left - 10..=left * 11 / 10 + 10).contains(&penalty), "step {step}: retry after {penalty} s");
        assert_eq!(retry_after(&gate, "/long", &format!("innocent {number}")), None, "step {step}");
        // A limit that is used up during the step is free again after two seconds by the monotonic clock.
        let key = format!("short {number}");
        assert_eq!(retry_after(&gate, "/short", &key), None);
        let used_up = Instant::now();
        clock.step(-step);
        eventually("the limit is free again", || retry_after(&gate, "/short", &key).is_none());
        let waited = used_up.elapsed();
        assert!((Duration::from_millis(1_900)..Duration::from_secs(20)).contains(&waited), "step {step}: {waited:?}");
    }
    // The steps reach the gate: the times in its log change.
    clock.step(10 * YEAR);
    assert!(logged_year(&gate, "account-2") >= year + 9);
}
