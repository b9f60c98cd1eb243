//! Forward-auth: the contract of Traefik and Caddy, and real nginx and HAProxy.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::clients::blocks;
use crate::support::{Answer, Doors, call, check, eventually, root};

const PAGE: &str = "docs/door-forward-auth.md";

/// A process with the first configuration of the page, on a free port.
fn documented(more: &str) -> (Doors, SocketAddr) {
    let config = blocks(PAGE, "toml")[0].replace("127.0.0.1:8890", "127.0.0.1:0");
    let mut doors = Doors::start(&format!("{config}\n{more}"));
    let door = doors.door("http");
    (doors, door)
}

/// A backend that responds after `pause`, and its maximum number of concurrent requests.
fn backend(pause: Duration) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, most, now) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let (seen, now) = (most.clone(), Arc::new(now));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let (seen, now) = (seen.clone(), now.clone());
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 8192]);
                seen.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(pause);
                now.fetch_sub(1, Ordering::SeqCst);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
            });
        }
    });
    (address, most)
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A proxy that is stopped at the end of the test.
struct Proxy(Child);

impl Proxy {
    fn start(command: &mut Command, address: SocketAddr) -> Self {
        let proxy = Self(command.stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap());
        eventually("the proxy listens", || TcpStream::connect(address).is_ok());
        proxy
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The master process of nginx stops its workers on SIGTERM, not on SIGKILL.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

fn nginx(folder: &Path, block: &str, door: SocketAddr, backend: SocketAddr) -> (Proxy, SocketAddr) {
    nginx_with("", folder, block, door, backend)
}

/// The same with lines for the block `http`.
fn nginx_with(http: &str, folder: &Path, block: &str, door: SocketAddr, backend: SocketAddr) -> (Proxy, SocketAddr) {
    let (address, folder_text) = (free_port(), folder.display());
    let site = block.replace("127.0.0.1:8890", &door.to_string()).replace("127.0.0.1:8080", &backend.to_string());
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {folder_text}/{kind};\n"))
        .collect();
    let config = format!(
        "daemon off; pid {folder_text}/nginx.pid; error_log {folder_text}/error.log;\nevents {{}}\n\
         http {{ access_log off;\n{http}{temporary}server {{ listen {address};\n{site}}} }}\n"
    );
    let file = folder.join("nginx.conf");
    std::fs::write(&file, config).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-e").arg(folder.join("error.log")).arg("-p").arg(folder).arg("-c").arg(&file);
    (Proxy::start(&mut command, address), address)
}

fn login(site: SocketAddr, headers: &[(&str, &str)]) -> Answer {
    call(site, "POST", "/login?next=/", headers, "")
}

#[test]
fn traefik_and_caddy_get_a_response_for_the_client() {
    let (doors, door) = documented("");
    let ask = |client: &str, uri: &str, more: &[(&str, &str)]| {
        let mut headers = vec![
            ("X-Forwarded-Method", "POST"),
            ("X-Forwarded-Proto", "https"),
            ("X-Forwarded-Host", "site.example"),
            ("X-Forwarded-Uri", uri),
            ("X-Forwarded-For", client),
        ];
        headers.extend_from_slice(more);
        call(door, "GET", "/v1/auth", &headers, "")
    };
    for _ in 0..2 {
        let admitted = ask("203.0.113.7", "/login?a=b", &[]);
        assert_eq!((admitted.status, admitted.body.as_str()), (200, ""));
        assert_eq!(admitted.header("ratelimit-policy"), Some("\"login\";q=2;w=120"));
    }
    let refused = ask("203.0.113.7", "/login?a=b", &[]);
    assert_eq!(refused.status, 429);
    assert!((60..=75).contains(&refused.header("retry-after").unwrap().parse::<u64>().unwrap()), "{refused:?}");
    assert_eq!(refused.header("content-type"), Some("application/problem+json"));
    assert_eq!(refused.json()["violated-policies"], json!(["login"]));
    let page = ask("203.0.113.7", "/login", &[("Accept", "text/html")]);
    assert!(page.body.contains("One moment"), "{page:?}");
    // Another client and another path are admitted. A forged address does not change the client.
    assert_eq!(ask("203.0.113.8", "/login", &[]).status, 200);
    assert_eq!(ask("203.0.113.7", "/", &[]).status, 200);
    assert_eq!(ask("198.51.100.1, 203.0.113.7", "/login", &[]).status, 429);
    assert_eq!(ask("203.0.113.7", "/login", &[("X-Original-URI", "/")]).status, 429);
    for spelling in ["/login#x", "http://site.example/login", "https://site.example/login?a=b#x"] {
        assert_eq!(ask("203.0.113.7", spelling, &[]).status, 429, "{spelling}");
    }
    // The credentials of the client are not the token of the door.
    assert_eq!(ask("203.0.113.9", "/login", &[("Authorization", "Bearer x")]).status, 200);
    assert_eq!(doors.metric("tollgate_door_refused_total"), 7);
    assert_eq!(call(door, "GET", "/v1/auth?domain=none", &[], "").status, 404);
}

/// The door cannot change the request that the proxy forwards, so a backend could read another value than the rule.
#[test]
fn a_second_value_of_a_header_or_cookie_does_not_evade_its_rule() {
    let limit = "bucket = { size = 2, drip = 1, every = '1h' }";
    let mut doors = Doors::start(&format!(
        "[doors]\nhttp = '127.0.0.1:0'\n[[rule]]\nname = 'key'\nclass = 'header:x-api-key'\n{limit}\n\
         [[rule]]\nname = 'session'\nclass = 'cookie:sid'\n{limit}\n"
    ));
    let door = doors.door("http");
    let ask = |path: &str, headers: &[(&str, &str)]| {
        let answer = call(door, "GET", path, headers, "");
        (answer.status, answer.header("x-tollgate-status").map(str::to_owned))
    };
    let status = |headers: &[(&str, &str)]| ask("/v1/auth", headers).0;
    assert_eq!(status(&[("X-Api-Key", "a")]), 200);
    for disguise in [
        [("X-Api-Key", "a"), ("X-Api-Key", "1")],
        [("X-Api-Key", "2"), ("x-api-key", "a")],
        [("X-Other", "3"), ("X_Api_Key", "a")],
    ] {
        assert_eq!(ask("/v1/auth", &disguise), (400, Some("400".to_owned())), "{disguise:?}");
        assert_eq!(ask("/v1/auth/nginx", &disguise), (403, Some("400".to_owned())), "{disguise:?}");
    }
    assert_eq!(status(&[("X-Api-Key", "b"), ("X-Other", "1"), ("X-Other", "2")]), 200);
    // Ambiguous cookies share one key, and each client has its own otherwise.
    let cookies = ["sid=1; sid=a", "sid=2; sid=a", "sid[]=a", "sid=3; sid=a"];
    assert_eq!(cookies.map(|cookies| status(&[("Cookie", cookies)])), [200, 200, 429, 429]);
    assert_eq!(status(&[("Cookie", "x=1; sid=a")]), 200);
    assert_eq!(status(&[("Cookie", "x=1"), ("Cookie", "sid=a"), ("Cookie", "y=2")]), 200);
    assert_eq!(status(&[("Cookie", "sid=a; sid=a")]), 429);
}

#[test]
fn a_proxy_sends_the_token_in_its_own_field_or_in_the_query() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "a-token-for-the-doors").unwrap();
    let mut doors = Doors::start_in(folder, "[doors]\nhttp = '127.0.0.1:0'\ntoken_file = 'FOLDER/token'\n");
    let door = doors.door("http");
    let status = |path: &str, headers: &[(&str, &str)]| call(door, "GET", path, headers, "").status;
    assert_eq!(status("/v1/auth", &[("Authorization", "Bearer a-token-for-the-doors")]), 401);
    assert_eq!(status("/v1/auth", &[("X-Tollgate-Token", "a-token-for-the-doors")]), 200);
    assert_eq!(status("/v1/auth?token=a-token-for-the-doors", &[]), 200);
    assert_eq!(status("/v1/auth?token=a-token-for-the-door", &[]), 401);
}

#[test]
fn nginx_turns_a_refusal_into_429_as_documented() {
    let (doors, door) = documented("");
    let (backend, _) = backend(Duration::ZERO);
    let (_proxy, site) = nginx(doors.folder.path(), &blocks(PAGE, "nginx")[0], door, backend);
    for _ in 0..2 {
        assert_eq!(login(site, &[]).status, 200);
    }
    let refused = login(site, &[]);
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 60);
    // Header fields of the client change neither the checked request nor its client.
    let disguises = [("X-Forwarded-Uri", "/"), ("X-Original-URI", "/"), ("X-Forwarded-For", "203.0.113.1")];
    assert_eq!(login(site, &disguises).status, 429);
    assert_eq!(call(site, "GET", "/login", &[], "").status, 200);
}

#[test]
fn haproxy_calls_the_door_as_documented_and_forwards_requests_without_it() {
    let (doors, door) = documented("");
    let (backend, _) = backend(Duration::ZERO);
    let site = free_port();
    let config = blocks(PAGE, "haproxy")[0]
        .replace("lua-load tollgate.lua", &format!("lua-load {}/contrib/haproxy/tollgate.lua", root().display()))
        .replace("127.0.0.1:8000", &site.to_string())
        .replace("127.0.0.1:8890", &door.to_string())
        .replace("127.0.0.1:8080", &backend.to_string());
    let file = doors.folder.path().join("haproxy.cfg");
    std::fs::write(&file, config).unwrap();
    let _proxy = Proxy::start(Command::new("haproxy").arg("-db").arg("-f").arg(&file), site);
    for _ in 0..2 {
        let admitted = login(site, &[]);
        assert_eq!((admitted.status, admitted.body.as_str()), (200, "ok"));
    }
    let refused = login(site, &[("X-Forwarded-For", "203.0.113.1"), ("X-Forwarded-Uri", "/")]);
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 60);
    assert_eq!(call(site, "GET", "/", &[], "").status, 200);
    // A client must not avoid its limit with a request that HAProxy accepts and the door does not.
    let lines = |count: usize| (0..count).map(|line| format!("X-{line}: 1\r\n")).collect::<String>();
    for head in ["Host:\r\n", "Host: a,b\r\n", "Host: a\r\nX: a\x01b\r\n", &format!("Host: a\r\n{}", lines(97))] {
        let mut stream = TcpStream::connect(site).unwrap();
        write!(stream, "POST /login HTTP/1.1\r\n{head}Content-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer:?}");
    }
    drop(doors);
    assert_eq!(login(site, &[]).status, 200);
}

#[test]
fn the_queue_behind_nginx_bounds_the_requests_at_the_backend() {
    let (doors, door) = documented("[gate]\nin_flight = 2\ncores = 1\n");
    let (backend, most) = backend(Duration::from_millis(30));
    let (_proxy, site) = nginx(doors.folder.path(), &blocks(PAGE, "nginx")[1], door, backend);
    let served: usize = std::thread::scope(|scope| {
        let get = |_: &usize| call(site, "GET", "/", &[], "").status == 200;
        let threads: Vec<_> = (0..12).map(|_| scope.spawn(move || (0..5).filter(get).count())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(served, 60);
    // All permits were released by reports, none by its deadline. A response may arrive shortly before its permit is
    // released.
    eventually("all tickets are settled", || doors.metric("tollgate_door_tickets") == 0);
    assert_eq!(doors.metric("tollgate_door_settled_total"), 60);
    let most = most.load(Ordering::SeqCst);
    assert!((1..=4).contains(&most), "{most} at once");
}

#[test]
fn a_check_with_queue_waits_for_a_report_or_the_deadline_of_the_one_before() {
    let (doors, door) = documented("[gate]\nin_flight = 1\ncores = 1\nhold = { max = '5m' }\n");
    let ask = |client: &str, deadline: u64| {
        check(door, &json!({"attributes": {"client": client, "path": "/slow"}, "queue": true, "deadline_ms": deadline}))
    };
    let first = ask("203.0.113.1", 60_000);
    assert_eq!(first["decision"], "admit");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ask("198.51.100.1", 400));
        eventually("a request waits", || doors.metric("tollgate_requests_waiting") == 1);
        let report = format!("/v1/report?ticket={}", first["ticket"].as_str().unwrap());
        assert_eq!(call(door, "GET", &report, &[], "").json(), json!({"settled": true}));
        assert_eq!(waiting.join().unwrap()["decision"], "admit");
        // The second one is never reported.
        let begun = Instant::now();
        assert_eq!(ask("203.0.113.1", 400)["decision"], "admit");
        assert!(begun.elapsed() < Duration::from_secs(8), "after {:?}", begun.elapsed());
    });
    assert_eq!(doors.metric("tollgate_door_tickets_expired_total"), 1);
    // A caller that disconnects while it waits holds no permit.
    let body = r#"{"attributes": {"client": "203.0.113.5"}, "queue": true}"#;
    let call_text = format!("POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let permit = ask("203.0.113.1", 600_000);
    let mut leaving = TcpStream::connect(door).unwrap();
    leaving.write_all(call_text.as_bytes()).unwrap();
    eventually("a request waits", || doors.metric("tollgate_requests_waiting") == 1);
    drop(leaving);
    eventually("no request waits", || doors.metric("tollgate_requests_waiting") == 0);
    let report = format!("/v1/report?ticket={}", permit["ticket"].as_str().unwrap());
    assert_eq!(call(door, "GET", &report, &[], "").json(), json!({"settled": true}));
    assert_eq!(call(door, "POST", "/v1/check", &[], r#"{"queue": true}"#).status, 400);
}

#[test]
fn the_documented_log_of_nginx_settles_requests_over_syslog_and_from_a_file() {
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let [log_format, lines] = [2, 3].map(|index| blocks(PAGE, "nginx")[index].clone());
    for (way, other) in [("access_log syslog:", "access_log /var/log"), ("access_log /var/log", "access_log syslog:")] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tollgate.log");
        std::fs::write(&file, "").unwrap();
        let here = |text: &str| {
            text.replace("127.0.0.1:8890", "127.0.0.1:0")
                .replace("/var/log/nginx/tollgate.log", &file.display().to_string())
                .replace("127.0.0.1:5514", &format!("127.0.0.1:{port}"))
        };
        // With a tiny budget, so that one logged request exceeds it.
        let config =
            here(&blocks(PAGE, "toml")[1]).replace("share = 0.25, burst = \"10s\"", "cores = 0.001, burst = \"20ms\"");
        let mut doors = Doors::start_in(folder, &format!("{config}hold = '0s'\n"));
        let door = doors.door("http");
        doors.logged("access log lines are read from a file");
        std::thread::sleep(Duration::from_millis(300));
        let (backend, _) = backend(Duration::from_millis(50));
        assert!(lines.contains(way) && lines.contains(other));
        let lines: String =
            lines.lines().filter(|line| !line.contains(other)).map(|line| format!("{line}\n")).collect();
        let lines = here(&lines);
        let site = blocks(PAGE, "nginx")[0]
            .replace("proxy_pass http://127.0.0.1:8080;", &format!("{lines}proxy_pass http://127.0.0.1:8080;"));
        let (_proxy, site) = nginx_with(&log_format, doors.folder.path(), &site, door, backend);
        assert_eq!(call(site, "GET", "/export", &[], "").status, 200, "{way}");
        eventually("the request is settled", || doors.metric("tollgate_door_settled_total") == 1);
        assert_eq!(call(site, "GET", "/export", &[], "").status, 429, "{way}: 50 ms are more than the budget");
    }
}
