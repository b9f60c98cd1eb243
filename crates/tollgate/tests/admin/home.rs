//! Flags persist by default, without a configured directory.

use serde_json::{Value, json};

use crate::support::Gate;

/// A gate whose service manager provides this state directory.
fn start_at(home: &str) -> Gate {
    let wrapper = ["env", &format!("STATE_DIRECTORY={home}")];
    Gate::start_by(&wrapper, tempfile::tempdir().unwrap(), "")
}

fn flag(gate: &Gate, account: &str) {
    let entry = json!({ "class": "user", "key": account, "rejected": 1000 });
    assert_eq!(gate.post("/api/v1/rejections", &json!({ "id": account, "entries": [entry] })).status, 202);
}

fn kept_in(gate: &Gate) -> Value {
    let watch = gate.json("/api/v1/status")["watch"].clone();
    assert_eq!(watch["kept"], true, "memory-only state counts as kept");
    watch["state_dir"].clone()
}

#[test]
fn flags_survive_a_kill_by_default_and_a_second_gate_stays_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("state").display().to_string();
    let first = start_at(&home);
    assert_eq!(kept_in(&first), json!(home));
    flag(&first, "u1");
    let second = start_at(&home);
    second.logged("flags are kept in memory only");
    assert_eq!((kept_in(&second), &second.json("/api/v1/flags")["total"]), (Value::Null, &json!(0)));
    flag(&second, "u2");
    first.kill();
    let third = start_at(&home);
    assert_eq!(third.json("/api/v1/flags")["flags"][0]["account"], "u1");
    assert_eq!(third.json("/api/v1/flags")["total"], 1);
}

#[test]
fn a_gate_without_a_writable_directory_starts_and_logs_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file");
    std::fs::write(&file, "").unwrap();
    let gate = start_at(&file.join("state").display().to_string());
    gate.logged("flags are kept in memory only");
    flag(&gate, "u1");
    assert_eq!(kept_in(&gate), Value::Null);
    assert_eq!(gate.request("/", &[]).status, 200);
}

/// A pipe as the journal, as an example of anything that is not a file: reading it would never end.
#[test]
fn a_gate_serves_although_its_journal_is_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("watch.journal");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let gate = start_at(&folder.path().display().to_string());
    assert!(gate.logged("flags are kept in memory only").contains("is not a file"));
    assert_eq!(gate.request("/", &[]).status, 200);
}

#[test]
fn a_journal_that_is_too_large_is_renamed_instead_of_copied() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("watch.journal");
    std::fs::File::create(&journal).unwrap().set_len(2 << 30).unwrap();
    let gate = start_at(&folder.path().display().to_string());
    gate.logged("moved it away");
    assert_eq!(kept_in(&gate), json!(folder.path()));
    assert_eq!(std::fs::metadata(folder.path().join("watch.damaged")).unwrap().len(), 2 << 30);
    flag(&gate, "u1");
}

/// The length of the first record is damaged, so that nothing after it can be read.
#[test]
fn a_damaged_journal_is_copied_and_logged_before_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().display().to_string();
    let [journal, aside] = ["watch.journal", "watch.damaged"].map(|name| folder.path().join(name));
    let gate = start_at(&home);
    flag(&gate, "u1");
    gate.kill();
    let mut bytes = std::fs::read(&journal).unwrap();
    let length_at = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    bytes[length_at] ^= 1;
    std::fs::write(&journal, &bytes).unwrap();
    let gate = start_at(&home);
    let line = gate.logged("a file is damaged: saved a copy");
    assert!(line.contains("watch.journal") && line.contains("watch.damaged"), "{line}");
    assert!(std::fs::read(&aside).unwrap() == bytes);
    assert_eq!(gate.json("/api/v1/flags")["total"], 0);
    flag(&gate, "u2");
}

/// Temporary gates, such as those of tests, leave no files behind.
#[test]
fn a_gate_on_port_0_persists_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let home = format!("XDG_STATE_HOME={}", folder.path().display());
    let gate = Gate::start_by(&["env", "-u", "STATE_DIRECTORY", &home], tempfile::tempdir().unwrap(), "");
    flag(&gate, "u1");
    assert_eq!(kept_in(&gate), Value::Null);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
