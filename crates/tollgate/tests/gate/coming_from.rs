//! The configurations of docs/coming-from, each with the promise of its page.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::client::connect_from;
use crate::support::{Backend, Gate, PATIENCE, Response, eventually, roundtrip};

/// The configuration of a page with this index, in front of this backend.
fn config(page: &str, index: usize, backend: &Backend) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/coming-from/").to_owned() + page + ".md";
    let text = std::fs::read_to_string(path).unwrap();
    let block = text.split("```toml\n").nth(index + 1).unwrap().split("```").next().unwrap();
    let block = block.replace("http://127.0.0.1:8080", &backend.url()).replace("http://localhost:80", &backend.url());
    block.replace("127.0.0.1:8890", "127.0.0.1:0")
}

fn get(gate: &Gate, path: &str, fields: &str) -> Response {
    let text = format!("GET {path} HTTP/1.1\r\nHost: site\r\nConnection: close\r\n{fields}\r\n");
    roundtrip(gate.connect(), text.as_bytes())
}

fn seconds(response: &Response, field: &str) -> f64 {
    let value = response.field(field).unwrap_or_else(|| panic!("no {field} in {response:?}"));
    let (whole, decimals) = value.split_once('.').unwrap();
    assert!(decimals.len() == 3 && !whole.is_empty(), "{value} has three decimals");
    value.parse().unwrap()
}

#[test]
fn tempomats_shares_are_caps_while_the_backend_is_idle() {
    let costs_1900_ms = |_: &_, stream: &mut std::net::TcpStream| {
        std::thread::sleep(Duration::from_millis(500));
        stream.write_all(b"HTTP/1.1 200 OK\r\nServer-Timing: cpu;dur=1900\r\nContent-Length: 2\r\n\r\nok")
    };
    let backend = Backend::answering(costs_1900_ms);
    let gate = Gate::start(&config("tempomat", 0, &backend));
    let (served, is_capped) = (AtomicUsize::new(0), AtomicBool::new(false));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while !is_capped.load(Ordering::Relaxed) && started.elapsed() < PATIENCE {
                    let fields = "X-Forwarded-For: 203.0.113.7\r\nUser-Agent: greedy\r\n";
                    match get(&gate, "/expensive", fields).status {
                        200 => drop(served.fetch_add(1, Ordering::Relaxed)),
                        status => {
                            assert_eq!(status, 429);
                            is_capped.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    assert!(is_capped.load(Ordering::Relaxed), "never refused");
    // Thirty CPU-seconds at once, and a tenth of four cores after that; eight requests were in flight when the credit
    // ended.
    let (spent, secs) = (served.load(Ordering::Relaxed) as f64 * 1.9, started.elapsed().as_secs_f64());
    assert!((20.0..=30.0 + 0.4 * secs + 8.0 * 1.9).contains(&spent), "{spent} CPU-seconds in {secs} s");
    let neighbour = get(&gate, "/expensive", "X-Forwarded-For: 198.51.100.7\r\nUser-Agent: modest\r\n");
    assert_eq!(neighbour.status, 200);
    let doctor = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["doctor", "--once", "--bucket=Slash32", "--admin", &format!("http://{}", gate.admin)])
        .output()
        .unwrap();
    let table = String::from_utf8(doctor.stdout).unwrap();
    assert!(table.contains("203.0.113.7/32") && table.contains("Wait[s]") && table.contains("Title"), "{table}");
}

#[test]
fn sharkeys_limits_have_its_headers_and_admit_max_at_once() {
    let backend = Backend::saying("ok");
    let gate = Gate::start(&config("sharkey", 0, &backend));
    for (path, size, wait_max) in [("/api/notes", 10, 1.0), ("/export", 10, 1.0)] {
        let first = get(&gate, path, "");
        assert_eq!((first.status, first.field("x-ratelimit-remaining")), (200, Some("9")), "{path}");
        assert!(seconds(&first, "x-ratelimit-clear") > 0.0 && first.field("x-ratelimit-reset").is_none());
        let refused = (1..=size).map(|_| get(&gate, path, "")).find(|answer| answer.status != 200).unwrap();
        assert_eq!((refused.status, refused.field("x-ratelimit-remaining")), (429, Some("0")), "{path}");
        let (reset, clear) = (seconds(&refused, "x-ratelimit-reset"), seconds(&refused, "x-ratelimit-clear"));
        assert!(reset > 0.0 && reset <= wait_max && clear >= reset, "{path}: {reset} {clear}");
        let retry_after: f64 = refused.field("retry-after").unwrap().parse().unwrap();
        assert!(retry_after >= reset, "{retry_after} against {reset}");
    }
    let file = get(&gate, "/files/2", "");
    assert_eq!((file.status, file.field("x-ratelimit-remaining")), (200, Some("3599")));
}

#[test]
fn an_interval_beside_a_quota_is_enforced_unless_the_rule_says_otherwise() {
    let backend = Backend::saying("ok");
    let spaced = config("sharkey", 0, &backend).replace(", enforce_interval = false", "");
    let gate = Gate::start(&spaced);
    assert_eq!(get(&gate, "/export", "").status, 200);
    let refused = get(&gate, "/export", "");
    assert_eq!(refused.status, 429);
    assert!(seconds(&refused, "x-ratelimit-reset") <= 1.0);
}

fn reconnect(gate: &Gate, device: &str) -> Response {
    let fields = format!("Upgrade: websocket\r\nConnection: upgrade\r\nX-Device-Id: {device}\r\n");
    roundtrip(gate.connect(), format!("GET /ws HTTP/1.1\r\nHost: site\r\n{fields}\r\n").as_bytes())
}

#[test]
fn screentinkers_devices_wait_as_announced_in_every_band() {
    for (band, wait) in [("normal", 10.0), ("elevated", 20.0), ("critical", 40.0)] {
        let backend = Backend::saying("ok");
        let config = config("screentinker", 0, &backend).replace("warmup     = \"30s\"", "warmup     = \"1ms\"");
        let gate = Gate::start(&config.replace("bands    = {", &format!("bands    = {{ pin = \"{band}\",")));
        std::thread::sleep(Duration::from_millis(5));
        (0..5).for_each(|_| assert_eq!(reconnect(&gate, "broken").status, 200, "{band}"));
        let refused = reconnect(&gate, "broken");
        assert_eq!((refused.status, refused.field("x-ratelimit-remaining")), (429, Some("0")));
        let reset = seconds(&refused, "x-ratelimit-reset");
        assert!((wait - 2.0..=wait).contains(&reset), "{band}: {reset}");
        // Attempts during the block do not extend it, and nothing remains meanwhile.
        for _ in 0..3 {
            let again = reconnect(&gate, "broken");
            assert!(seconds(&again, "x-ratelimit-reset") <= reset);
            assert_eq!(again.field("x-ratelimit-remaining"), Some("0"));
        }
        assert_eq!(reconnect(&gate, "another").status, 200);
        let gate = gate;
        let line: serde_json::Value = serde_json::from_str(&gate.logged("by reconnect")).unwrap();
        assert_eq!((&line["reason"], &line["band"]), (&"over-limit".into(), &band.into()));
        let [observed, allowed, level] = ["observed", "allowed", "escalation_level"].map(|name| line[name].as_u64());
        assert_eq!((observed, allowed, level), (Some(6), Some(5), Some(1)));
    }
}

#[test]
fn screentinkers_fleet_is_not_throttled_while_it_warms_up() {
    let backend = Backend::saying("ok");
    let gate = Gate::start(&config("screentinker", 0, &backend));
    assert_eq!((0..30).filter(|_| reconnect(&gate, "broken").status == 200).count(), 20, "the ceiling");
    eventually("the other devices are served", || reconnect(&gate, "another").status == 200);
}

#[test]
fn screentinkers_devices_without_an_id_share_one_limit() {
    let backend = Backend::saying("ok");
    let header = config("screentinker", 0, &backend);
    // As the page describes for browsers.
    let query = header
        .replace("header:x-device-id", "query:device")
        .replace("header = { x-device-id = \"*\" }", "query = { device = \"*\" }");
    for (config, path, fields) in [
        (header, "/ws", "X-Device-Id: tv-1\r\n"),
        (query.clone(), "/ws?device=tv-1", ""),
        (query, "/ws?%64evice=tv-1", ""),
    ] {
        let gate = Gate::start(&config);
        let open = |host: usize, path: &str, fields: &str| {
            let upgrade = "Upgrade: websocket\r\nConnection: upgrade\r\n";
            let head = format!("GET {path} HTTP/1.1\r\nHost: site-{host}\r\n{upgrade}{fields}\r\n");
            roundtrip(gate.connect(), head.as_bytes()).status
        };
        // A client chooses the host, so it must not be a part of the key.
        let anonymous: Vec<_> = (0..61).map(|host| open(host, "/ws", "")).collect();
        assert_eq!(anonymous, [[200; 60].as_slice(), &[429]].concat());
        assert_eq!(open(0, path, fields), 200, "a device with an id has its own limit");
    }
}

#[test]
fn sharkeys_visitors_are_limited_by_address_and_users_by_token() {
    let backend = Backend::saying("ok");
    let gate = Gate::start(&config("sharkey", 1, &backend));
    let served = |fields: &str| (0..11).filter(|_| get(&gate, "/api/notes", fields).status == 200).count();
    assert_eq!(served(""), 10);
    assert_eq!(served("Authorization: Bearer one\r\n"), 10);
    assert_eq!(served("Authorization: Bearer two\r\n"), 10);
}

#[test]
fn nginxs_limits_pass_as_many_requests_as_in_nginx() {
    let backend = Backend::answering(|request, stream| {
        if request.path() == "/export" {
            std::thread::sleep(Duration::from_millis(700));
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let gate = Gate::start(&config("nginx", 0, &backend));
    let logins: Vec<_> = (0..12).map(|_| get(&gate, "/login", "").status).collect();
    assert_eq!(logins, [[200; 11].as_slice(), &[429]].concat(), "one and a burst of ten");
    let at_once = |path: &'static str, count: usize| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| get(&gate, path, "").status)).collect();
            let mut statuses: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            statuses.sort_unstable();
            statuses
        })
    };
    let (began, searches) = (Instant::now(), at_once("/search?q=x", 30));
    let passed = searches.iter().filter(|status| **status == 200).count();
    // One at once and twenty that are held; slow threads come when one more fits.
    assert!((21..=24).contains(&passed) && searches[passed..].iter().all(|status| *status == 503), "{searches:?}");
    assert!(began.elapsed() > Duration::from_millis(1800), "they were held");
    assert_eq!(at_once("/export", 4), [200, 200, 503, 503]);
}

#[test]
fn nginxs_exceptions_are_a_list_each_of_which_exempts() {
    let backend = Backend::saying("ok");
    let config = config("nginx", 1, &backend).replace("[gate]\n", "[gate]\ntrusted_proxies = \"loopback\"\n");
    let gate = Gate::start(&config);
    let statuses = |path: &str, client: &str, fields: &str, count: usize| -> Vec<u16> {
        let fields = format!("X-Forwarded-For: {client}\r\n{fields}");
        (0..count).map(|_| get(&gate, path, &fields).status).collect()
    };
    let passed = |statuses: &[u16]| statuses.iter().filter(|status| **status == 200).count();
    let limited = statuses("/", "203.0.113.7", "", 100);
    // One and a burst of 40, and one more for each 50 ms that the requests take.
    assert!(limited[..41].iter().all(|status| *status == 200) && limited.contains(&503), "{limited:?}");
    assert_eq!(passed(&statuses("/", "10.1.2.3", "", 100)), 100, "the own network");
    assert_eq!(passed(&statuses("/api/items", "203.0.113.7", "", 100)), 100, "a location with a limit of its own");
    let began = Instant::now();
    assert_eq!(passed(&statuses("/api/items", "203.0.113.7", "X-Api-Key: k\r\n", 10)), 10);
    assert!(began.elapsed() > Duration::from_millis(300), "the tenth was held");
}

#[test]
fn haproxys_request_rate_is_a_window() {
    let backend = Backend::saying("ok");
    let gate = Gate::start(&config("haproxy", 0, &backend));
    let statuses: Vec<_> = (0..101).map(|_| get(&gate, "/", "").status).collect();
    assert_eq!(statuses, [[200; 100].as_slice(), &[429]].concat());
}

#[test]
fn haproxys_maxconn_queues_requests_and_conn_cur_bounds_connections() {
    let (at_backend, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (at_backend.clone(), most.clone());
    let backend = Backend::answering(move |_, stream| {
        counts.1.fetch_max(counts.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(300));
        counts.0.fetch_sub(1, Ordering::SeqCst);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let gate = Gate::start(&config("haproxy", 0, &backend));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| get(&gate, "/", "").status)).collect();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 200, "queued, not refused"));
    });
    assert_eq!(most.load(Ordering::SeqCst), 8, "maxconn 8");
    let held: Vec<_> = (0..20).map(|_| gate.connect()).collect();
    eventually("all are counted", || gate.metric("tollgate_connections") == 20);
    match gate.connect().read(&mut [0]) {
        Ok(0) => {}
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("the connection was accepted: {other:?}"),
    }
    assert!(gate.metric("tollgate_connections_turned_away_total") >= 1);
    assert_eq!(ask_from(&gate, [127, 72, 0, 1]), 200, "another address");
    drop(held);
}

#[test]
fn envoys_token_bucket_is_a_bucket() {
    let backend = Backend::saying("ok");
    let gate = Gate::start(&config("envoy", 0, &backend));
    let answers: Vec<_> = (0..51).map(|_| get(&gate, "/", "")).collect();
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 50, "a client's own");
    assert_eq!(answers[0].field("ratelimit-policy"), Some("\"each\";q=50;w=10"));
    let others = (0..60).map(|_| ask_from(&gate, [127, 70, 0, 1])).filter(|status| *status == 200).count();
    assert!((50..=60).contains(&others), "{others} of another client");
    let rest = (0..40).map(|_| ask_from(&gate, [127, 71, 0, 1])).filter(|status| *status == 200).count();
    assert!(rest <= 20, "the bucket of all is empty: {rest}");
}

fn ask_from(gate: &Gate, from: [u8; 4]) -> u16 {
    let stream = connect_from(from.into(), gate.address);
    roundtrip(stream, b"GET / HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n").status
}

#[test]
fn tower_governors_quota_is_a_rate_for_each_address_of_the_proxy() {
    let backend = Backend::saying("ok");
    let gate = Gate::start(&config("governor", 0, &backend));
    let client = |number: u32| get(&gate, "/", &format!("X-Forwarded-For: 203.0.113.{number}\r\n"));
    (0..5).for_each(|_| assert_eq!(client(7).status, 200));
    let refused = client(7);
    assert_eq!(refused.status, 429);
    assert!(seconds(&refused, "x-ratelimit-reset") <= 2.0);
    assert_eq!(client(8).status, 200);
}

/// A configuration whose access log is in this folder.
fn logging_to(page: &str, folder: &tempfile::TempDir, backend: &Backend) -> (String, std::path::PathBuf) {
    let log = folder.path().join("access.log");
    let config = config(page, 0, backend).replace("/var/log/tollgate/access.log", &log.display().to_string());
    (config.replace("127.0.0.1:8888", "127.0.0.1:0"), log)
}

/// The fields that Python finds in the lines of a log by an expression.
fn found(expression: &str, log: &std::path::Path) -> String {
    let script = "import re, sys\nfor line in open(sys.argv[2]):\n  match = re.search(sys.argv[1], line)\n  print(match.group(1) if match else '-')";
    let output = std::process::Command::new("python3").args(["-c", script, expression]).arg(log).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_jail_is_a_window_with_escalation_and_fail2ban_finds_refusals_in_the_log() {
    let (backend, folder) = (Backend::saying("ok"), tempfile::tempdir().unwrap());
    let (config, log) = logging_to("fail2ban", &folder, &backend);
    let gate = Gate::start(&config);
    let login = || {
        roundtrip(
            gate.connect(),
            b"POST /login HTTP/1.1\r\nHost: site\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        )
    };
    (0..5).for_each(|_| assert_eq!(login().status, 200));
    let refused = login();
    assert_eq!(refused.status, 429);
    assert!((590.0..=600.0).contains(&seconds(&refused, "x-ratelimit-reset")), "ten minutes");
    eventually("six lines", || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 6));
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/coming-from/fail2ban.md")).unwrap();
    let (_, expression) = page.split_once("failregex = ").unwrap();
    let expression = expression.lines().next().unwrap().replace("<HOST>", r"(\S+)");
    // Two workers write in any order.
    let mut hosts: Vec<_> = found(&expression, &log).lines().map(str::to_owned).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["-", "-", "-", "-", "-", "127.0.0.1"]);
}

#[test]
fn behind_anubis_the_log_for_crowdsec_has_the_clients_address() {
    let (backend, folder) = (Backend::saying("ok"), tempfile::tempdir().unwrap());
    let (config, log) = logging_to("anubis-and-crowdsec", &folder, &backend);
    let gate = Gate::start(&config);
    assert_eq!(get(&gate, "/page?x=1", "X-Forwarded-For: 203.0.113.7\r\nUser-Agent: Mozilla/5.0\r\n").status, 200);
    eventually("a line", || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 1));
    // nginx's combined format, by its definition.
    let combined = r#"^(203\.0\.113\.7) - - \[\d{2}/\w{3}/\d{4}:\d{2}:\d{2}:\d{2} \+0000\] "GET /page\?x=1 HTTP/1\.1" 200 \d+ "-" "Mozilla/5\.0""#;
    assert_eq!(found(combined, &log), "203.0.113.7\n");
}
