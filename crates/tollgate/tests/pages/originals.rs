//! Configurations of other programs on the pages: those programs accept them.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tollgate_test_support::backend::respond;
use tollgate_test_support::doors::Doors;
use tollgate_test_support::simple_http::ask;
use tollgate_test_support::{Backend, Gate, eventually, free_addresses, root};

use crate::{blocks, path_with_tollgate};

fn accepts(program: &str, arguments: &[&str], file: &Path) {
    let run = Command::new(program).args(arguments).arg(file).output();
    let output = run.unwrap_or_else(|error| panic!("{program}: {error}; ./test installs it"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn nginx_accepts_the_limits_that_the_page_translates() {
    let limits = blocks("coming-from/nginx.md", "nginx");
    assert_eq!(limits.len(), 2);
    for limits in limits {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().display();
        let config = format!(
            "pid {path}/pid;\nerror_log {path}/error.log;\nevents {{}}\nhttp {{\naccess_log off;\nclient_body_temp_path {path}/1;\n\
             proxy_temp_path {path}/2;\nfastcgi_temp_path {path}/3;\nuwsgi_temp_path {path}/4;\nscgi_temp_path {path}/5;\n{limits}\n}}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), config.replace("server {", "server { listen 127.0.0.1:1;"))
            .unwrap();
        accepts("nginx", &["-t", "-e", "stderr", "-c"], &folder.path().join("nginx.conf"));
    }
}

/// The statuses of requests that are sent at once, sorted.
fn statuses_at_once(address: SocketAddr, path: &str, count: usize) -> Vec<u16> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(|| ask(address, "GET", path, &[], "").status)).collect();
        let mut statuses: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        statuses.sort_unstable();
        statuses
    })
}

/// nginx with its limits and a gate with the translation, in front of the same backend.
#[test]
fn nginx_and_the_translation_of_its_limits_refuse_the_same_requests() {
    let backend = Backend::answering(|request, stream| {
        if request.path() == "/export" {
            std::thread::sleep(Duration::from_secs(1));
        }
        respond(stream, "ok")
    });
    let (folder, [address]) = (tempfile::tempdir().unwrap(), free_addresses());
    let path = folder.path().display();
    let limits = blocks("coming-from/nginx.md", "nginx")[0]
        .replace("server {", &format!("server {{ listen {address};"))
        .replace("; }", &format!("; proxy_pass {}; }}", backend.url()));
    let config = format!(
        "daemon off; master_process off; pid {path}/pid; error_log {path}/error.log;\nevents {{}}\nhttp {{\naccess_log off;\nclient_body_temp_path {path}/1;\n\
         proxy_temp_path {path}/2;\nfastcgi_temp_path {path}/3;\nuwsgi_temp_path {path}/4;\nscgi_temp_path {path}/5;\n{limits}\n}}\n"
    );
    std::fs::write(folder.path().join("nginx.conf"), config).unwrap();
    let mut command = Command::new("nginx");
    command.arg("-e").arg(folder.path().join("error.log")).arg("-c").arg(folder.path().join("nginx.conf"));
    let _nginx = Other(command.spawn().expect("./test installs nginx"));
    eventually("nginx listens", || std::net::TcpStream::connect(address).is_ok());
    let gate = Gate::start(&blocks("coming-from/nginx.md", "toml")[0].replace("http://127.0.0.1:8080", &backend.url()));
    for (path, count, refused) in [("/login", 15, 429), ("/search?q=x", 30, 503), ("/export", 4, 503)] {
        let [original, translated] = [address, gate.address].map(|address| statuses_at_once(address, path, count));
        let passed = |statuses: &[u16]| statuses.iter().filter(|status| **status == 200).count();
        assert!(original.iter().chain(&translated).all(|status| [200, refused].contains(status)), "{path}");
        // On a busy machine the requests do not all come at once, and one more fits every tenth of a second.
        let difference = passed(&original).abs_diff(passed(&translated));
        let may_differ = if path.starts_with("/search") { 3 } else { 0 };
        assert!(difference <= may_differ, "{path}: nginx {original:?}, Tollgate {translated:?}");
        assert!(passed(&translated) < count, "{path}: nothing was refused");
    }
}

/// CrowdSec reads the log of the documented gate with its parser for nginx, and recognises a scanner by it.
#[test]
fn crowdsec_finds_a_scanner_in_the_documented_log() {
    const PAGE: &str = "coming-from/anubis-and-crowdsec.md";
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let log = path("access.log");
    let backend =
        Backend::answering(|_, stream| stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"));
    let gate = Gate::start(
        &blocks(PAGE, "toml")[0]
            .replace("127.0.0.1:8888", "127.0.0.1:0")
            .replace("http://127.0.0.1:8080", &backend.url())
            .replace("/var/log/tollgate/access.log", &log.display().to_string()),
    );
    for page in 0..15 {
        let client = [("X-Forwarded-For", "203.0.113.7"), ("User-Agent", "Mozilla/5.0")];
        assert_eq!(ask(gate.address, "GET", &format!("/wp-{page}.php"), &client, "").status, 404);
    }
    eventually("fifteen lines", || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 15));

    let unpacked = root().join("target/crowdsec");
    let installed = if unpacked.join("usr/bin/crowdsec").exists() { unpacked } else { "/".into() };
    let hub = installed.join("usr/share/crowdsec/hub");
    for (from, to) in [
        ("parsers/s00-raw/crowdsecurity/syslog-logs.yaml", "parsers/s00-raw"),
        ("parsers/s01-parse/crowdsecurity/nginx-logs.yaml", "parsers/s01-parse"),
        ("parsers/s02-enrich/crowdsecurity/dateparse-enrich.yaml", "parsers/s02-enrich"),
        ("parsers/s02-enrich/crowdsecurity/http-logs.yaml", "parsers/s02-enrich"),
        ("scenarios/crowdsecurity/http-probing.yaml", "scenarios"),
        (".index.json", "hub"),
    ] {
        let to = path(to);
        std::fs::create_dir_all(&to).unwrap();
        let from = hub.join(from);
        std::fs::copy(&from, to.join(from.file_name().unwrap())).unwrap_or_else(|error| panic!("{from:?}: {error}"));
    }
    std::os::unix::fs::symlink(installed.join("etc/crowdsec/patterns"), path("patterns")).unwrap();
    std::fs::create_dir(path("data")).unwrap();
    // The address to which CrowdSec reports. It accepts every login.
    let reports = Backend::answering(|_, stream| {
        let body = r#"{"code": 200, "expire": "2100-01-01T00:00:00Z", "token": "x"}"#;
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    });
    std::fs::write(path("simulation.yaml"), "simulation: off\n").unwrap();
    std::fs::write(path("credentials.yaml"), format!("url: {}\nlogin: a\npassword: b\n", reports.url())).unwrap();
    let config = "common: {daemonize: false, log_media: stdout, log_level: info}\n\
        config_paths: {config_dir: FOLDER, data_dir: FOLDER/data, simulation_path: FOLDER/simulation.yaml, \
        hub_dir: FOLDER/hub, index_path: FOLDER/hub/.index.json}\n\
        crowdsec_service: {acquisition_path: FOLDER/acquis.yaml, parser_routines: 1}\n\
        db_config: {type: sqlite, db_path: FOLDER/data/crowdsec.db}\n\
        api: {client: {credentials_path: FOLDER/credentials.yaml}}\nprometheus: {enabled: false}\n";
    std::fs::write(path("config.yaml"), config.replace("FOLDER", &folder.path().display().to_string())).unwrap();

    // The label of the acquisition selects the parser.
    let acquisition = blocks(PAGE, "yaml")[0].replace("/var/log/tollgate/access.log", &log.display().to_string());
    std::fs::write(path("acquis.yaml"), &acquisition).unwrap();
    let (_, label) = acquisition.split_once("labels: { type: ").unwrap();
    let label = label.split_once(' ').unwrap().0;
    let mut crowdsec = Command::new(installed.join("usr/bin/crowdsec"));
    crowdsec.arg("-c").arg(path("config.yaml")).args(["-no-api", "-type", label, "-dsn"]);
    let output = crowdsec.arg(format!("file://{}", log.display())).output().expect("./test installs CrowdSec");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(text.contains("Ip 203.0.113.7 performed 'crowdsecurity/http-probing'"), "{text}");
}

#[test]
fn haproxy_accepts_the_limits_that_the_page_translates() {
    let folder = tempfile::tempdir().unwrap();
    let limits = &blocks("coming-from/haproxy.md", "haproxy")[0];
    let head = "defaults\n    mode http\n    timeout client 5s\n    timeout server 5s\n    timeout connect 5s\n";
    let limits = limits.replace("frontend web\n", "frontend web\n    bind 127.0.0.1:1\n    default_backend app\n");
    std::fs::write(folder.path().join("haproxy.cfg"), format!("{head}{limits}")).unwrap();
    accepts("haproxy", &["-c", "-f"], &folder.path().join("haproxy.cfg"));
}

#[test]
fn prometheus_accepts_the_scrape_configuration() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "x\n").unwrap();
    let token = folder.path().join("token").display().to_string();
    let config = blocks("metrics.md", "yaml")[0].replace("/etc/prometheus/tollgate-viewer-token", &token);
    std::fs::write(folder.path().join("prometheus.yml"), config).unwrap();
    let unpacked = root().join("target/prometheus/usr/bin/promtool");
    let promtool = if unpacked.exists() { unpacked.display().to_string() } else { "promtool".to_owned() };
    accepts(&promtool, &["check", "config"], &folder.path().join("prometheus.yml"));
}

/// nginx writes a log in the format of docs/replay.md, and replay finds the cost of its requests.
#[test]
fn replay_reads_a_log_in_the_documented_format_of_nginx() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let format = &blocks("replay.md", "nginx")[0];
    let config = format!(
        "daemon off;\nmaster_process off;\npid {path}/pid;\nerror_log {path}/error.log;\nevents {{}}\nhttp {{\n{format}\n\
         client_body_temp_path {path}/1;\nproxy_temp_path {path}/2;\nfastcgi_temp_path {path}/3;\nuwsgi_temp_path {path}/4;\n\
         scgi_temp_path {path}/5;\naccess_log {path}/access.log timed;\n\
         server {{ listen 127.0.0.1:{port}; location / {{ return 200 ok; }} }}\n}}\n"
    );
    std::fs::write(folder.path().join("nginx.conf"), config).unwrap();
    let mut command = Command::new("nginx");
    command.args(["-e", "stderr", "-c"]).arg(folder.path().join("nginx.conf")).stderr(Stdio::null());
    let nginx = Other(command.spawn().expect("nginx is installed"));
    eventually("nginx listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    let address = ([127, 0, 0, 1], port).into();
    for _ in 0..3 {
        assert_eq!(ask(address, "GET", "/page", &[], "").status, 200);
    }
    let log = folder.path().join("access.log");
    eventually("three lines", || std::fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 3));
    drop(nginx);
    let output = Command::new("sh")
        .args(["-c", "tollgate replay --json --strict access.log"])
        .current_dir(folder.path())
        .env("PATH", path_with_tollgate())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["pricing"]["source"], "durations", "{summary}");
}

/// logrotate renames the access log, and the gate continues in a new file. Its unit is the process of the test.
#[test]
fn logrotate_rotates_the_access_log_as_documented() {
    let (backend, folder) = (Backend::saying("ok"), tempfile::tempdir().unwrap());
    let log = folder.path().join("access.log");
    let gate = Gate::start(&format!(
        "[gate]\nworkers = 1\nbackend = \"{}\"\naccess_log = {{ output = \"{}\" }}\n",
        backend.url(),
        log.display()
    ));
    let lines = |path: &Path| std::fs::read_to_string(path).unwrap_or_default().lines().count();
    assert_eq!(gate.get("/before").status, 200);
    eventually("a line", || lines(&log) == 1);
    let signal = "systemctl kill --signal=USR1 --kill-whom=main tollgate.service";
    let config = blocks("log.md", "logrotate")[0].replace("/var/log/tollgate/access.log", &log.display().to_string());
    assert!(config.contains(signal), "{config}");
    std::fs::write(folder.path().join("rotate"), config.replace(signal, &format!("kill -USR1 {}", gate.id()))).unwrap();
    let state = folder.path().join("state").display().to_string();
    accepts("logrotate", &["--force", "--state", &state], &folder.path().join("rotate"));
    eventually("a line in the new file", || gate.get("/after").status == 200 && lines(&log) > 0);
    assert!(!std::fs::read_to_string(&log).unwrap().contains("/before"));
    assert!(std::fs::read_to_string(folder.path().join("access.log.1")).unwrap().contains("/before"));
}

/// Caddy in front of an application, with the forward-auth of the page: a refusal of the door is the client's response.
#[test]
fn caddy_calls_the_door_as_documented() {
    let mut doors = Doors::start(&blocks("door-forward-auth.md", "toml")[0].replace("127.0.0.1:8890", "127.0.0.1:0"));
    let (door, backend, [address]) = (doors.door("http"), Backend::saying("ok"), free_addresses());
    let site = blocks("door-forward-auth.md", "caddyfile")[0]
        .replace("example.com {", &format!("http://{address} {{"))
        .replace("127.0.0.1:8890", &door.to_string())
        .replace("127.0.0.1:8080", backend.url().trim_start_matches("http://"));
    let folder = doors.folder.path();
    std::fs::write(folder.join("Caddyfile"), format!("{{\n    admin off\n}}\n{site}")).unwrap();
    let unpacked = root().join("target/caddy/usr/bin/caddy");
    let mut command = Command::new(if unpacked.exists() { unpacked } else { "caddy".into() });
    command.args("run --adapter caddyfile --config Caddyfile".split(' ')).current_dir(folder);
    command.env("HOME", folder).env("XDG_DATA_HOME", folder).env("XDG_CONFIG_HOME", folder);
    let _caddy = Other(command.stderr(Stdio::null()).spawn().expect("./test installs Caddy"));
    eventually("Caddy listens", || std::net::TcpStream::connect(address).is_ok());
    let statuses: Vec<_> = (0..12).map(|_| ask(address, "POST", "/login", &[], "")).collect();
    assert_eq!((statuses[0].status, statuses[0].body.as_str()), (200, "ok"));
    let refused = statuses.iter().find(|answer| answer.status != 200).expect("the rule of the page refuses");
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
}

/// Another program, killed at the end of the test.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A line that Apache writes with the `LogFormat` of the page: `%D` is in microseconds.
#[test]
fn replay_reads_a_line_in_the_documented_format_of_apache() {
    let format = &blocks("replay.md", "apache")[0];
    assert!(format.contains("\\\"%{User-Agent}i\\\" %D"), "{format}");
    let folder = tempfile::tempdir().unwrap();
    let line =
        "203.0.113.7 - - [16/Nov/2026:10:49:47 +0000] \"GET /a HTTP/1.1\" 200 512 \"-\" \"Mozilla/5.0\" 250000\n";
    std::fs::write(folder.path().join("access.log"), line).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["replay", "--json", "--strict", "access.log"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["pricing"]["source"], "durations", "{summary}");
}
