//! The commands of the pages for operators, in a shell, against a running gate.
//!
//! With these changes: `tollgate` is the binary of this build, the admin address and the door are those of the test,
//! and files of `/etc/tollgate` are in a folder of the test.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tollgate_test_support::backend::{read_head, respond};
use tollgate_test_support::doors::{Doors, check};
use tollgate_test_support::redis_server::RedisServer;
use tollgate_test_support::simple_http::ask;
use tollgate_test_support::{Backend, Gate, eventually, root};

use crate::{blocks, path_with_tollgate};

/// The output of a command, which must succeed. With `pipefail` and curl's `-f`, a refused request is a failure.
fn output_of(command: &str, folder: &Path) -> String {
    let command = command.replace("curl ", "curl -fsS ");
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &command]).current_dir(folder).env("PATH", path_with_tollgate());
    let output = shell.env("HOME", folder).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The commands of a block, without comments.
fn lines(block: &str) -> Vec<String> {
    let without_comment = |line: &str| line.split(" # ").next().unwrap().trim().to_owned();
    block.replace("\\\n", " ").lines().map(without_comment).filter(|line| !line.is_empty()).collect()
}

const RULE: &str = "[[rule]]\nname = \"login\"\nwhen = { path = \"/login\" }\nclass = \"ip/32\"\n\
                    rate = { rate = \"5/min\", burst = 5 }\nhold = \"0s\"\n";

/// A gate that has served 203.0.113.7, with an account called `ACCOUNT` that is flagged.
fn gate(backend: &Backend, more: &str) -> Doors {
    let config = format!(
        "[gate]\nlisten = \"127.0.0.1:0\"\nbackend = \"{}\"\ntrusted_proxies = [\"loopback\"]\n{RULE}{more}",
        backend.url()
    );
    let mut doors = Doors::start(&config);
    let client = [("X-Forwarded-For", "203.0.113.7")];
    (0..6).for_each(|_| drop(ask(doors.gate(), "POST", "/login", &client, "")));
    flag(doors.admin);
    doors
}

fn flag(admin: SocketAddr) {
    let report = json!({ "id": "r1", "entries": [{ "class": "user", "key": "ACCOUNT", "rejected": 1000 }] });
    assert_eq!(ask(admin, "POST", "/api/v1/rejections", &[], &report.to_string()).status, 202);
}

fn flags(admin: SocketAddr) -> usize {
    ask(admin, "GET", "/api/v1/flags", &[], "").json()["flags"].as_array().unwrap().len()
}

#[test]
fn the_commands_for_operators_show_and_clear_clients_and_flags() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, "");
    let [live, once, json, key, list, clear]: [String; 6] = lines(&blocks("admin.md", "sh")[1]).try_into().unwrap();
    let run = |command: &str| {
        let with_admin = format!("{command} --admin http://{}", gate.admin);
        output_of(&with_admin, gate.folder.path())
    };
    eventually("the doctor knows the client", || run(&live).contains("203.0.113.7/32"));
    eventually("the doctor knows its network", || run(&once).contains("203.0.113.0/24"));
    assert!(serde_json::from_str::<Value>(&run(&json)).is_ok());
    assert!(run(&key).contains("login"));
    assert!(run(&list).contains("ACCOUNT"));
    assert_eq!(flags(gate.admin), 1);
    run(&clear);
    assert_eq!(flags(gate.admin), 0);
}

/// The names of the fields in a text that is JSON with omissions.
fn field_names(text: &str) -> BTreeSet<String> {
    let pieces: Vec<_> = text.split('"').collect();
    let is_name = |place: &usize| pieces.get(place + 1).is_some_and(|after| after.trim_start().starts_with(':'));
    (1..pieces.len()).step_by(2).filter(is_name).map(|place| pieces[place].to_owned()).collect()
}

#[test]
fn a_decision_is_explained_with_the_documented_fields() {
    let backend = Backend::saying("ok");
    let gate = gate(&backend, "");
    for command in [&blocks("admin.md", "sh")[2], &blocks("troubleshooting.md", "sh")[0]] {
        let command = command.replace("127.0.0.1:8889", &gate.admin.to_string());
        let explained = output_of(&command, gate.folder.path());
        let value: Value = serde_json::from_str(&explained).unwrap();
        assert_eq!((&value["decision"], &value["rule"]), (&json!("refuse"), &json!("login")), "{explained}");
        let missing: Vec<_> =
            field_names(&blocks("admin.md", "json")[0]).difference(&field_names(&explained)).cloned().collect();
        assert!(missing.is_empty(), "{missing:?} is not in {explained}");
    }
}

#[test]
fn lines_of_the_logs_have_the_documented_fields() {
    let backend = Backend::connecting(|stream| {
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        if let Some(request) = read_head(&mut reader)
            && request.path() != "/broken"
        {
            let _ = respond(&mut { stream }, "ok");
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.log");
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\nbackend = \"{}\"\naccess_log = {{ output = \"{}\", format = \"json\" }}\n{RULE}",
        backend.url(),
        log.display()
    ));
    (0..6).for_each(|_| drop(gate.get("/login")));
    assert_eq!(gate.get("/broken").status, 502);
    eventually("all lines", || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 7));
    let refused = std::fs::read_to_string(&log).unwrap().lines().nth(5).unwrap().to_owned();
    let documented = blocks("log.md", "json");
    for (documented, line) in
        documented.iter().zip([gate.logged("refused ip/32"), gate.logged("answered 502"), refused])
    {
        let mut fields = field_names(&line);
        // The page leaves it out for brevity.
        fields.remove("timestamp");
        assert_eq!(field_names(documented), fields);
    }
    assert_eq!(documented.len(), 3);
}

#[test]
fn a_client_is_cleared_and_exempt_as_documented() {
    let backend = Backend::saying("ok");
    let mut gate = gate(&backend, "");
    let site = gate.gate();
    let login = || ask(site, "POST", "/login", &[("X-Forwarded-For", "203.0.113.7")], "").status;
    assert_eq!(login(), 429);
    let [clear, exempt]: [String; 2] = lines(&blocks("admin.md", "sh")[3]).try_into().unwrap();
    let here = |command: &str| command.replace("127.0.0.1:8889", &gate.admin.to_string());
    output_of(&here(&clear), gate.folder.path());
    assert_eq!((0..6).map(|_| login()).collect::<Vec<_>>(), [200, 200, 200, 200, 200, 429]);
    output_of(&here(&exempt), gate.folder.path());
    eventually("the client is exempt", || login() == 200);
    output_of(&here(&exempt).replace("3600000", "0"), gate.folder.path());
    eventually("the exemption has ended", || login() == 429);
}

#[test]
fn tokens_are_made_and_protect_the_admin_address_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().display().to_string();
    let commands = blocks("admin.md", "sh")[0].replace("/etc/tollgate", &here);
    // The user of the package is not on every machine.
    output_of(&commands.replace("chown tollgate", "chown $(id -u)"), folder.path());
    let config = blocks("admin.md", "toml")[0].replace("/etc/tollgate", &here).replace("0.0.0.0:8889", "127.0.0.1:0");
    let token = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap().trim().to_owned();
    let (full, viewer, reporter) = (token("token"), token("viewer-token"), token("reporter-token"));
    let gate = Doors::start_in(folder, &config);
    let status = |method: &str, path: &str, token: &str, body: &str| {
        let fields = [("Host", "gate.example"), ("Authorization", &*format!("Bearer {token}"))];
        ask(gate.admin, method, path, &fields, body).status
    };
    assert_eq!(status("GET", "/api/v1/status", "wrong", ""), 401);
    assert_eq!(status("GET", "/api/v1/status", &full, ""), 200);
    assert_eq!(status("GET", "/api/v1/status", &viewer, ""), 200);
    assert_eq!(status("GET", "/api/v1/status", &reporter, ""), 403);
    // A gateway's report, as docs/flags.md shows it.
    let command = blocks("flags.md", "sh")[1].replace("TOKEN", &reporter);
    let command = command.replace("gate.example:8889", &gate.admin.to_string());
    let answer = output_of(&command.replace("curl ", "curl -H 'Host: gate.example' "), gate.folder.path());
    assert!(answer.contains("gw1-2026-11-15T12:00"), "{answer}");
}

#[test]
fn a_flag_is_cleared_over_the_api_as_documented() {
    let doors = Doors::start("");
    flag(doors.admin);
    let command = blocks("flags.md", "sh")[0].replace("127.0.0.1:8889", &doors.admin.to_string());
    output_of(&command, doors.folder.path());
    assert_eq!(flags(doors.admin), 0);
    let history = ask(doors.admin, "GET", "/api/v1/flags?history=1", &[], "").json();
    assert_eq!(
        (&history["flags"][0]["cleared_by"], &history["flags"][0]["note"]),
        (&json!("ann"), &json!("a load test of ours"))
    );
}

/// The verification of docs/flags.md, with a request that a gate has signed.
#[test]
fn the_signature_of_a_webhook_is_verified_as_documented() {
    let backend = Backend::saying("");
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("secret"), "a secret of both\n").unwrap();
    let config = format!("[watch]\nwebhook = \"{}\"\nwebhook_secret_file = \"FOLDER/secret\"\n", backend.url());
    let doors = Doors::start_in(folder, &config);
    flag(doors.admin);
    eventually("the announcement", || backend.count() == 1);
    let request = &backend.requests()[0];
    let signature = request.field("x-tollgate-signature").unwrap();
    let body = std::str::from_utf8(&request.body).unwrap();
    for (body, is_genuine) in [(body.to_owned(), "True\n"), (format!("{body} "), "False\n")] {
        let script = format!(
            "import sys\nsecret, body = b'a secret of both', sys.argv[1].encode()\n\
             headers = {{'X-Tollgate-Signature': sys.argv[2]}}\n{}print(genuine)\n",
            blocks("flags.md", "python")[0]
        );
        let run = Command::new("python3").args(["-c", &script, &body, signature]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&run.stdout), is_genuine, "{run:?}");
    }
}

#[test]
fn a_file_of_envoy_limits_answers_over_http_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("limits.yaml"), &blocks("door-envoy.md", "yaml")[0]).unwrap();
    let config = blocks("door-envoy.md", "toml")[0].replace("127.0.0.1:8081", "127.0.0.1:0");
    let config = config.replace("/etc/tollgate/", "FOLDER/") + "http = \"127.0.0.1:0\"\n";
    let mut doors = Doors::start_in(folder, &config);
    let command = blocks("door-envoy.md", "sh")[0].replace("127.0.0.1:8890", &doors.door("http").to_string());
    for _ in 0..2 {
        assert!(output_of(&command, doors.folder.path()).contains("OK"));
    }
    let status = command.replace("curl ", "curl -s -o /dev/null -w '%{http_code}' ");
    let run = Command::new("sh").args(["-c", &status]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout), "429");
}

/// docs/choosing-state.md: a gate whose user may do nothing else decides by Redis, in all kinds of limits.
#[test]
fn a_redis_user_with_the_documented_permissions_is_enough() {
    let redis = RedisServer::start(&[]);
    let user = &blocks("choosing-state.md", "redis")[0];
    redis.command(&user.split_whitespace().collect::<Vec<_>>());
    let limits = [
        "rate = { rate = '3/h', burst = 3 }",
        "bucket = { size = 3, drip = 1, every = '1h' }",
        "window = { max = 3, per = '1h' }",
    ];
    let rules: String = limits
        .iter()
        .enumerate()
        .map(|(number, limit)| {
            format!("[[rule]]\nname = 'r{number}'\nclass = 'identifier'\n{limit}\nstate = 'redis'\nhold = '0s'\n")
        })
        .collect();
    let url = format!("redis://gate:password@127.0.0.1:{}", redis.port());
    let mut doors =
        Doors::start(&format!("[doors]\nhttp = '127.0.0.1:0'\n[redis]\nurl = '{url}'\ndeadline = '5s'\n{rules}"));
    let door = doors.door("http");
    for number in 0..limits.len() {
        let blocked = |_| check(door, &json!({ "rule": format!("r{number}"), "key": "u1" }))["blocked"].clone();
        assert_eq!((0..4).map(blocked).collect::<Vec<_>>(), [false, false, false, true]);
    }
    let metrics = doors.admin("/metrics");
    let mut fallbacks = metrics.lines().filter(|line| line.starts_with("tollgate_redis_fallbacks_total{"));
    assert!(fallbacks.all(|line| line.ends_with(" 0")), "{metrics}");
}

#[test]
fn keys_are_made_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let keys = output_of(&blocks("fleet.md", "sh")[1], folder.path());
    assert_eq!(keys.lines().map(str::len).collect::<Vec<_>>(), [40, 40], "{keys}");
    assert!(folder.path().join("master.key").exists() && folder.path().join("gate-1.key").exists());
}

/// In a network namespace, because the example has fixed ports.
#[test]
fn the_example_of_a_fleet_keeps_one_limit() {
    let line = lines(&blocks("fleet.md", "sh")[0]).remove(0);
    let script = format!("ip link set lo up && {line}");
    let mut command = Command::new("unshare");
    command.args(["--net", "--map-root-user", "bash", "-euc", &script]).current_dir(root());
    let output = command.env("TOLLGATE", env!("CARGO_BIN_EXE_tollgate")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    for part in ["all gates and the master are there", "each gate decides by itself", "one limit again"] {
        assert!(said.contains(part), "{said}");
    }
}

/// The commands of a page about moving from another limiter, up to the one that starts the result: that uses fixed
/// ports.
fn move_from(name: &str, original: &str, file: &str, start: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("config")).unwrap();
    std::fs::write(folder.path().join(file), original).unwrap();
    let mut commands = lines(&blocks(name, "sh")[0]);
    assert_eq!(commands.pop().as_deref(), Some(start));
    for command in commands {
        output_of(&command.replace("/etc/tempomat.json", "tempomat.json"), folder.path());
    }
    folder
}

#[test]
fn other_limiters_are_left_with_the_documented_commands() {
    let tempomat = &blocks("coming-from/tempomat.md", "json")[0];
    let gate = move_from("coming-from/tempomat.md", tempomat, "tempomat.json", "tollgate gate --config tollgate.toml");
    assert!(std::fs::read_to_string(gate.path().join("tollgate.toml")).unwrap().contains("[gate]"));
    let smockron = &blocks("coming-from/smockron.md", "yaml")[0];
    let start = "tollgate master --config tollgate.toml";
    let master = move_from("coming-from/smockron.md", smockron, "config/default.yaml", start);
    assert!(std::fs::read_to_string(master.path().join("tollgate.toml")).unwrap().contains("[master]"));
}

/// docs/coming-from/envoy.md: the file of envoyproxy/ratelimit, as it is and as rules.
#[test]
fn limits_of_envoyproxy_ratelimit_are_served_as_documented() {
    const PAGE: &str = "coming-from/envoy.md";
    let folder = tempfile::tempdir().unwrap();
    let limits = folder.path().join("limits.yaml");
    std::fs::write(&limits, &blocks(PAGE, "yaml")[1]).unwrap();
    let config = blocks(PAGE, "toml")[1].replace("127.0.0.1:8081", "127.0.0.1:0");
    let config =
        config.replace("/etc/tollgate/limits.yaml", &limits.display().to_string()) + "http = \"127.0.0.1:0\"\n";
    std::fs::write(folder.path().join("tollgate.toml"), &config).unwrap();
    let [check, run]: [String; 2] = lines(&blocks(PAGE, "sh")[0]).try_into().unwrap();
    assert!(output_of(&check, folder.path()).contains("2 rules"));
    assert_eq!(run, "tollgate run --config tollgate.toml");
    let rules = output_of("tollgate import ratelimit limits.yaml", folder.path());
    // The translation is a file that can be started: only the port is another one here.
    let rules = rules.replace("grpc = \"127.0.0.1:8081\"", "grpc = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"");
    for config in [config, rules] {
        let mut doors = Doors::start(&config);
        let door = doors.door("http");
        let login = |client: &str| {
            let entries =
                json!([{ "key": "generic_key", "value": "login" }, { "key": "remote_address", "value": client }]);
            let message = json!({ "domain": "edge", "descriptors": [{ "entries": entries }] });
            ask(door, "POST", "/json", &[], &message.to_string()).status
        };
        let statuses: Vec<_> = (0..6).map(|_| login("203.0.113.7")).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 200, 429], "{config}");
        assert_eq!(login("203.0.113.8"), 200);
    }
}

#[test]
fn replay_runs_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["access.log", "access.log.gz"] {
        std::fs::copy(root().join("examples/access.log.gz"), folder.path().join(name)).unwrap();
    }
    let rule = "[[rule]]\nname = \"login\"\nwhen = { path = \"/login\" }\nclass = \"ip/32\"\nrate = { rate = \"5/min\", burst = 10 }\n";
    std::fs::write(folder.path().join("site.toml"), rule).unwrap();
    let commands = lines(&blocks("replay.md", "sh")[0]);
    assert_eq!(commands.len(), 5, "{commands:?}");
    for command in commands {
        let command = if command.ends_with(" -") { format!("gunzip -c access.log.gz | {command}") } else { command };
        assert!(!output_of(&command, folder.path()).is_empty(), "{command}");
    }
    let report = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(report.contains("<svg"));
    // The documented line has exactly the fields of a decision.
    let documented = field_names(&blocks("replay.md", "json")[0]);
    let decisions = output_of("tollgate replay --config site.toml --decisions access.log", folder.path());
    assert_eq!(field_names(decisions.lines().next().unwrap()), documented);
}
