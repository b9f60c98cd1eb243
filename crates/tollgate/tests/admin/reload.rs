//! Effects of a reload on the admin address and the watch.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::{Gate, PATIENCE, ask, eventually};
use tollgate_test_support::free_addresses;

/// Replaces the settings after the gate's own lines and reloads.
fn reload(gate: &Gate, config: &str) -> Value {
    let file = gate.path().join("tollgate.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let own: String = text.lines().take(3).map(|line| format!("{line}\n")).collect();
    let config = config.replace("FOLDER", &gate.path().display().to_string());
    std::fs::write(&file, format!("{own}{config}")).unwrap();
    hang_up(gate, &[])
}

/// The next connection, within a timeout.
fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let mut accepted = None;
    eventually("somebody connects", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let (stream, _) = accepted.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends SIGHUP and returns the outcome.
fn hang_up(gate: &Gate, headers: &[(&str, &str)]) -> Value {
    let last = || ask(gate.admin, "GET", "/api/v1/status", headers, "").json()["reload"].clone();
    let before = last();
    assert!(Command::new("kill").args(["-HUP", &gate.id().to_string()]).status().unwrap().success());
    eventually("the reload is told", || last() != before);
    last()
}

fn rejections(gate: &Gate, id: &str, class: &str, key: &str, rejected: u64) -> Value {
    let report = json!({ "id": id, "entries": [{ "class": class, "key": key, "rejected": rejected }] });
    let answer = gate.post("/api/v1/rejections", &report);
    assert_eq!(answer.status, 202, "{}", answer.body);
    answer.json()["flagged"].clone()
}

/// Pipes without a writer stand in for files on a disk that hangs.
#[test]
fn a_reload_that_hangs_blocks_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let token = "an-operators-token-of-some-length";
    std::fs::write(folder.path().join("token"), token).unwrap();
    let gate = Gate::start_in(folder, "[admin]\ntoken_file = \"FOLDER/token\"\n");
    let bearer = format!("Bearer {token}");
    let authorization = [("Authorization", &*bearer)];
    let replace_by_pipe = |name: &str| {
        std::fs::remove_file(gate.path().join(name)).unwrap();
        assert!(Command::new("mkfifo").arg(gate.path().join(name)).status().unwrap().success());
    };
    replace_by_pipe("token");
    let told = hang_up(&gate, &authorization);
    assert!(told["faults"].as_str().unwrap().contains("is not a regular file"), "{told}");
    replace_by_pipe("tollgate.toml");
    let before = ask(gate.admin, "GET", "/api/v1/status", &authorization, "").json()["reload"].clone();
    assert!(Command::new("kill").args(["-HUP", &gate.id().to_string()]).status().unwrap().success());
    let (mut last, mut slowest) = (before.clone(), Duration::ZERO);
    eventually("the reload fails", || {
        let began = Instant::now();
        assert_eq!(gate.get("/healthz").status, 200);
        last = ask(gate.admin, "GET", "/api/v1/status", &authorization, "").json()["reload"].clone();
        slowest = slowest.max(began.elapsed());
        last != before
    });
    assert!(last["faults"].as_str().unwrap().contains("the disk may hang"), "{last}");
    assert!(slowest < Duration::from_secs(4), "{slowest:?}");
    assert!(Command::new("kill").args(["-TERM", &gate.id().to_string()]).status().unwrap().success());
    gate.logged("stopping");
}

#[test]
fn a_reload_changes_the_conditions_for_flags_and_keeps_counts() {
    let gate = Gate::start("");
    assert_eq!(rejections(&gate, "r1", "user", "u1", 400), json!([]));
    assert_eq!(reload(&gate, "[watch]\nflag_threshold = 500\nflag_window = \"30min\"\n")["ok"], true);
    assert_eq!(rejections(&gate, "r2", "user", "u1", 100), json!(["u1"]));
    let rule = "[[rule]]\nname = \"login\"\nclass = \"ip/32\"\nbucket = { size = 1, drip = 1, every = \"1h\" }\nwhen = { flagged = true }\n";
    let watch = "[watch]\naccount_class = \"header:x-api-key\"\nflag_threshold = 500\n";
    assert_eq!(reload(&gate, &format!("{rule}{watch}"))["ok"], true);
    assert_eq!(rejections(&gate, "r3", "user", "u2", 5000), json!([]), "those are no accounts any more");
    assert_eq!(rejections(&gate, "r4", "header:x-api-key", "k1", 500), json!(["k1"]));
    // Rules and the watch use the same account class.
    let asked: Vec<_> = (0..3).map(|_| gate.request("/", &[("X-Api-Key", "k1")]).status).collect();
    assert_eq!((asked[0], asked[2]), (200, 429), "{asked:?}");
}

#[test]
fn a_reload_changes_where_flags_are_announced() {
    let take = |listener: &TcpListener| {
        let mut stream = accept(listener);
        let (mut text, mut bytes) = (String::new(), [0; 4096]);
        while !text.ends_with('}') {
            let read = stream.read(&mut bytes).unwrap();
            assert_ne!(read, 0, "{text}");
            text += std::str::from_utf8(&bytes[..read]).unwrap();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
        serde_json::from_str::<Value>(text.split_once("\r\n\r\n").unwrap().1).unwrap()["account"].clone()
    };
    let gate = Gate::start("");
    assert_eq!(rejections(&gate, "r1", "user", "nobody wants to know", 1000).as_array().unwrap().len(), 1);
    std::fs::write(gate.path().join("secret"), "a secret of both\n").unwrap();
    for (id, account) in [("r2", "u2"), ("r3", "u3")] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let webhook = format!("[watch]\nwebhook = \"http://{address}/\"\nwebhook_secret_file = \"FOLDER/secret\"\n");
        assert_eq!(reload(&gate, &webhook)["ok"], true);
        rejections(&gate, id, "user", account, 1000);
        assert_eq!(take(&listener), account);
    }
    // An unreadable secret is an error in the settings: the old webhook stays.
    let webhook = "[watch]\nwebhook = \"http://127.0.0.1:9/\"\nwebhook_secret_file = \"FOLDER/none\"\n";
    let told = reload(&gate, webhook);
    assert_eq!(told["ok"], false);
    assert!(told["faults"].as_str().unwrap().contains("secret file"), "{told}");
}

#[test]
fn a_reload_replaces_tokens_and_ends_sessions_and_streams_of_the_old_ones() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = ["first-token-of-all-tokens", "second-token-of-all-tokens"];
    let write = |token: &str| std::fs::write(folder.path().join("token"), token).unwrap();
    write(tokens[0]);
    let path = folder.path().join("token");
    let gate = Gate::start(&format!("[admin]\ntoken_file = \"{}\"\n", path.display()));
    let status = |headers: &[(&str, &str)]| ask(gate.admin, "GET", "/api/v1/status", headers, "").status;
    let bearers = tokens.map(|token| format!("Bearer {token}"));
    let [first, second] = [0, 1].map(|index| [("Authorization", &*bearers[index])]);
    let form = format!("token={}&name=ann", tokens[0]);
    let login = ask(gate.admin, "POST", "/login", &[("Content-Type", "application/x-www-form-urlencoded")], &form);
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    assert_eq!((status(&first), status(&second), status(&[("Cookie", &cookie)])), (200, 401, 200));
    assert_eq!(hang_up(&gate, &first)["ok"], true);
    assert_eq!(status(&[("Cookie", &cookie)]), 200, "the same token is no news");
    // An event stream that was opened with the old token.
    let look = |header: &str| {
        let mut stream = TcpStream::connect(gate.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n").unwrap();
        let mut seen = String::new();
        let mut bytes = [0; 4096];
        while !seen.contains("event: status") {
            let read = stream.read(&mut bytes).unwrap();
            assert_ne!(read, 0, "{seen}");
            seen += &String::from_utf8_lossy(&bytes[..read]);
        }
        stream
    };
    let mut looking =
        [format!("Authorization: {}", bearers[0]), format!("Cookie: {cookie}")].map(|header| look(&header));
    let last = b"0\r\n\r\n";
    let mut end_of = |stream: &mut TcpStream| {
        let (mut seen, mut bytes) = (Vec::new(), [0; 4096]);
        eventually("the stream ends", || {
            let read = stream.read(&mut bytes).unwrap();
            seen.extend_from_slice(&bytes[..read]);
            read == 0 || seen.ends_with(last)
        });
    };
    write(tokens[1]);
    assert!(Command::new("kill").args(["-HUP", &gate.id().to_string()]).status().unwrap().success());
    eventually("the new token is asked for", || status(&second) == 200);
    assert_eq!((status(&first), status(&[("Cookie", &cookie)])), (401, 401));
    looking.iter_mut().for_each(&mut end_of);
    // A stream ends with its session.
    let form = format!("token={}&name=ann", tokens[1]);
    let login = ask(gate.admin, "POST", "/login", &[("Content-Type", "application/x-www-form-urlencoded")], &form);
    let cookie = login.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let mut looking = look(&format!("Cookie: {cookie}"));
    let csrf = ask(gate.admin, "GET", "/api/v1/session", &[("Cookie", &cookie)], "").json()["csrf"].clone();
    let logout = [("Cookie", &*cookie), ("X-Tollgate-Csrf", csrf.as_str().unwrap())];
    assert!(ask(gate.admin, "POST", "/logout", &logout, "").status < 400);
    end_of(&mut looking);
}

#[test]
fn settings_that_need_a_restart_are_reported_and_shown_with_the_value_in_force() {
    let gate = Gate::start("[telemetry]\notlp = \"http://127.0.0.1:9\"\n");
    let waiting = |told: &Value| -> Vec<String> {
        let keys = told["needs_new_start"].as_array().unwrap().iter();
        keys.map(|key| key.as_str().unwrap().to_owned()).collect()
    };
    let shown = |table: &str, key: &str| {
        let config = gate.json("/api/v1/config");
        let table = config["tables"].as_array().unwrap().iter().find(|one| one["table"] == table).cloned();
        table.and_then(|table| table["keys"].as_array().unwrap().iter().find(|one| one["key"] == key).cloned())
    };
    assert!(waiting(&reload(&gate, "[telemetry]\notlp = \"http://127.0.0.1:9\"\n")).is_empty());
    let file = gate.path().join("tollgate.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, before.replace("workers = 1", "workers = 3")).unwrap();
    let changed = "[watch]\nstate_dir = \"FOLDER/state\"\nflag_threshold = 77\n";
    for _ in 0..2 {
        // A second reload without changes still reports them.
        let told = reload(&gate, changed);
        assert_eq!(told["ok"], true);
        assert_eq!(waiting(&told), ["gate.workers", "watch.state_dir", "telemetry"]);
        let workers = shown("[gate]", "workers").unwrap();
        assert_eq!((&workers["value"], &workers["file_says"]), (&json!("1"), &json!("3")));
        assert_eq!(shown("[watch]", "flag_threshold").unwrap()["value"], "77");
        assert_eq!(shown("[watch]", "state_dir").unwrap()["value"], Value::Null);
        assert_eq!(shown("[telemetry]", "otlp").unwrap()["value"], "\"http://127.0.0.1:9\"");
        assert!(gate.get("/metrics").body.contains("\ntollgate_settings_waiting 3\n"));
    }
    let said = gate.logged("take effect only after a restart");
    assert!(said.contains("gate.workers, watch.state_dir, telemetry"), "{said}");
    assert!(!gate.path().join("state").exists());
    std::fs::write(&file, before).unwrap();
    assert!(waiting(&hang_up(&gate, &[])).is_empty());
    assert!(gate.get("/metrics").body.contains("\ntollgate_settings_waiting 0\n"));
}

#[test]
fn a_reload_starts_and_stops_sending_metrics_to_graphite() {
    let gate = Gate::start("");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let graphite = format!(
        "[metrics]\ngraphite = \"{}\"\ngraphite_prefix = \"reloaded\"\ngraphite_every = \"100ms\"\n",
        listener.local_addr().unwrap()
    );
    let told = reload(&gate, &graphite);
    assert_eq!((&told["ok"], &told["needs_new_start"]), (&json!(true), &json!([])), "{told}");
    let mut stream = accept(&listener);
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"reloaded");
    reload(&gate, "");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
}

#[test]
fn a_master_reports_reloads() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tollgate.toml");
    let [accounting, control, admin, other] = free_addresses();
    let write = |accounting: std::net::SocketAddr, rest: &str| {
        let text = format!("[master]\naccounting = \"{accounting}\"\ncontrol = \"{control}\"\n{rest}");
        std::fs::write(&file, text).unwrap();
    };
    write(accounting, "");
    let mut master = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["master", "--config", &file.display().to_string(), "--admin", &admin.to_string()])
        .env("XDG_STATE_HOME", folder.path())
        .env_remove("STATE_DIRECTORY")
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let outcome = std::panic::catch_unwind(|| {
        eventually("the master is up", || TcpStream::connect(admin).is_ok());
        let last = || ask(admin, "GET", "/api/v1/status", &[], "").json()["reload"].clone();
        assert_eq!(last(), Value::Null);
        let reload = || {
            let before = last();
            assert!(Command::new("kill").args(["-HUP", &master.id().to_string()]).status().unwrap().success());
            eventually("the reload is told", || last() != before);
            last()
        };
        let told = reload();
        assert_eq!((&told["ok"], &told["needs_new_start"]), (&json!(true), &json!([])));
        write(other, "");
        assert_eq!(reload()["needs_new_start"], json!(["master.accounting"]));
        let config = ask(admin, "GET", "/api/v1/config", &[], "").json();
        assert!(config["tables"][0]["keys"].to_string().contains(&format!("{accounting}")), "{config}");
        write(accounting, "nonsense = 1\n");
        let told = reload();
        assert_eq!(told["ok"], false);
        assert!(told["faults"].as_str().unwrap().contains("nonsense"), "{told}");
    });
    let _ = master.kill();
    let _ = master.wait();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}
