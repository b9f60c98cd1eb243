//! The watch without a gate, as docs/watch-alone.md shows it.

use std::process::Command;

use serde_json::{Value, json};

use crate::clients::blocks;
use crate::support::{Doors, eventually};

const PAGE: &str = "docs/watch-alone.md";

#[test]
fn the_watch_alone_accepts_reports_and_flags_accounts_as_documented() {
    let config = blocks(PAGE, "toml")[0].replace("127.0.0.1:8889", "127.0.0.1:0");
    let doors = Doors::start(&config);
    let admin = doors.admin;
    assert_eq!(doors.admin("/readyz"), "ready\n");
    let curl = blocks(PAGE, "sh")[0].replace("127.0.0.1:8889", &admin.to_string());
    // The same report twice counts once.
    for _ in 0..2 {
        let output = Command::new("sh").args(["-c", &curl]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    let file = doors.folder.path().join("reporter.go");
    std::fs::write(&file, &blocks(PAGE, "go")[0]).unwrap();
    let mut go = Command::new("go");
    go.arg("run").arg(&file).arg("gateway-2").env("TOLLGATE_ADMIN", format!("http://{admin}"));
    let output = go.env("HOME", doors.folder.path()).env("GOCACHE", doors.folder.path().join("go")).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "<nil>\n", "{output:?}");
    let flags = || {
        let flags: Value = serde_json::from_str(&doors.admin("/api/v1/flags")).unwrap();
        let mut all: Vec<_> = flags["flags"].as_array().unwrap().iter().map(|flag| flag["account"].clone()).collect();
        all.sort_by_key(Value::to_string);
        all
    };
    eventually("two accounts are flagged", || flags().len() == 2);
    assert_eq!(flags(), [json!("u1"), json!("u2")]);
    let episodes: Value = serde_json::from_str(&doors.admin("/api/v1/episodes")).unwrap();
    let of =
        |user: &str| episodes["episodes"].as_array().unwrap().iter().find(|episode| episode["key"] == user).cloned();
    assert_eq!(of("u1").unwrap()["rejected"], 12);
    assert!(doors.admin("/").contains("<html"));
    doors.rewrite(&config.replace("flag_threshold = 3", "flag_threshold = 1"));
    doors.signal("HUP");
    doors.logged("settings reloaded");
    doors.signal("TERM");
    assert_eq!(doors.wait(), Some(0));
}

#[test]
fn ratewatchs_defaults_flag_the_thousandth_refusal() {
    let config = blocks("docs/coming-from/ratewatch.md", "toml")[0].replace("127.0.0.1:8889", "127.0.0.1:0");
    let doors = Doors::start(&config.replace("/var/lib/tollgate", "FOLDER/state"));
    let report = |id: &str, rejected: u32| {
        let entry = json!({ "class": "user", "key": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "rejected": rejected });
        let body = json!({ "id": id, "entries": [entry] }).to_string();
        let url = format!("http://{}/api/v1/rejections", doors.admin);
        let output = Command::new("curl").args(["-fsS", &url, "-d", &body]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["flagged"].clone()
    };
    assert_eq!(report("r1", 999), json!([]));
    assert_eq!(report("r2", 1), json!(["6ba7b810-9dad-11d1-80b4-00c04fd430c8"]));
}
