//! The configurations of docs/behind-a-proxy.md: the gate behind real proxies, and with the headers of proxies that are
//! not installed here.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::client::connect_from;
use crate::support::{Backend, Gate, Response, eventually, roundtrip};

const PAGE: &str = include_str!("../../../../docs/behind-a-proxy.md");

/// The code blocks of a section in this language.
fn blocks(heading: &str, language: &str) -> Vec<&'static str> {
    let section = PAGE.split("\n## ").find(|section| section.lines().next() == Some(heading));
    let section = section.unwrap_or_else(|| panic!("no section {heading}"));
    let fence = format!("```{language}\n");
    section.split(&*fence).skip(1).map(|block| block.split_once("```").unwrap().0).collect()
}

fn block(heading: &str, language: &str) -> &'static str {
    blocks(heading, language)[0]
}

/// A gate with a configuration of the page. Each response contains the remaining requests of its client.
fn gate(config: &str, backend: &Backend) -> Gate {
    let config = config.replace("http://127.0.0.1:8080", &backend.url());
    Gate::start(&format!("{config}\n[[rule]]\nname = 'each'\nclass = 'ip/32'\nwindow = {{ max = 100, per = '1h' }}\n"))
}

/// An address without a listener.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A proxy in front of a gate. It is stopped when this is dropped.
struct Proxy {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Proxy {
    /// Starts `program` with the configuration file that `config` returns for an address. `{folder}` is replaced by a
    /// temporary directory. Another test may take a free port, so this retries with another one.
    fn start(program: &Path, arguments: &str, file: &str, config: impl Fn(SocketAddr) -> String) -> Self {
        (0..10).find_map(|_| Self::try_start(program, arguments, file, &config)).expect("the proxy ends at once")
    }

    fn try_start(program: &Path, arguments: &str, file: &str, config: impl Fn(SocketAddr) -> String) -> Option<Self> {
        let (folder, address) = (tempfile::tempdir().unwrap(), free_address());
        let path = folder.path().join(file);
        std::fs::write(&path, config(address).replace("{folder}", folder.path().to_str().unwrap())).unwrap();
        let mut command = Command::new(program);
        command
            .args(arguments.split(' '))
            .arg(&path)
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.env("HOME", folder.path()).env("XDG_DATA_HOME", folder.path()).env("XDG_CONFIG_HOME", folder.path());
        let child =
            command.spawn().unwrap_or_else(|error| panic!("{}: {error}; ./test installs it", program.display()));
        let mut proxy = Self { child, address, _folder: folder };
        let mut has_ended = false;
        eventually("the proxy listens", || {
            has_ended = proxy.child.try_wait().unwrap().is_some();
            has_ended || TcpStream::connect(address).is_ok()
        });
        (!has_ended).then_some(proxy)
    }

    fn nginx(site: &str, gate: &Gate) -> Self {
        let site = site.replace("127.0.0.1:8888", &gate.address.to_string());
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {{folder}}/{kind};\n"))
            .concat();
        Self::start(&program("nginx"), "-e stderr -c", "nginx.conf", |address| {
            let site = site.replace("listen 80;", &format!("listen {address};"));
            format!(
                "user root;\ndaemon off;\nmaster_process off;\npid {{folder}}/pid;\nerror_log {{folder}}/log;\n\
                 events {{}}\n\
                 http {{\naccess_log off;\n{temporary}{site}}}\n"
            )
        })
    }

    fn caddy(site: &str, gate: &Gate) -> Self {
        let site = site.replace("127.0.0.1:8888", &gate.address.to_string());
        Self::start(&program("caddy"), "run --adapter caddyfile --config", "Caddyfile", |address| {
            // There is no certificate for example.com.
            let site = site.replace("example.com {", &format!("http://example.com:{} {{", address.port()));
            format!("{{\n    admin off\n}}\n{site}")
        })
    }

    fn haproxy(config: &str, gate: &Gate) -> Self {
        let config = config.replace("127.0.0.1:8888", &gate.address.to_string());
        Self::start(&program("haproxy"), "-db -f", "haproxy.cfg", |address| {
            config.replace("bind :80", &format!("bind {address}"))
        })
    }
}

/// A program that `./test` installs, or unpacks in the target directory.
fn program(name: &str) -> PathBuf {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../target/{name}/usr/bin/{name}"));
    let installed = Path::new("/usr/sbin").join(name);
    match (unpacked.canonicalize(), installed.exists()) {
        (Ok(unpacked), _) => unpacked,
        (Err(_), true) => installed,
        (Err(_), false) => name.into(),
    }
}

fn ask(from: [u8; 4], to: SocketAddr, fields: &str) -> Response {
    let stream = connect_from(IpAddr::from(from), to);
    roundtrip(stream, format!("GET / HTTP/1.1\r\nHost: example.com\r\n{fields}Connection: close\r\n\r\n").as_bytes())
}

/// The remaining requests of the client at this address, after one more.
fn left(from: [u8; 4], to: SocketAddr, fields: &str) -> u32 {
    let response = ask(from, to, fields);
    assert_eq!(response.status, 200, "{}", response.text());
    response.field("x-ratelimit-remaining").expect("the gate's rule").parse().unwrap()
}

const ONE: [u8; 4] = [127, 50, 1, 1];
const OTHER: [u8; 4] = [127, 50, 2, 1];
const FORGED: &str = "X-Forwarded-For: 127.50.2.1\r\nForwarded: for=127.50.2.1\r\nX-Real-IP: 127.50.2.1\r\n\
                      CF-Connecting-IP: 127.50.2.1\r\n";

/// Asserts that the gate distinguishes two clients behind a proxy, and that neither can impersonate the other.
fn tells_clients_apart(address: SocketAddr) {
    assert_eq!(left(ONE, address, ""), 99);
    assert_eq!(left(ONE, address, ""), 98);
    assert_eq!(left(ONE, address, FORGED), 97, "a forged header is another client");
    assert_eq!(left(OTHER, address, ""), 99);
}

/// The output of the page's command that lists the clients.
fn doctor(gate: &Gate) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(block("Check it", "sh").split_whitespace().skip(1));
    command.args(["--admin", &format!("http://{}", gate.admin)]);
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// The final check of the page.
fn doctor_shows_both(gate: &Gate) {
    let mut list = String::new();
    eventually("both clients in the list of the doctor", || {
        list = doctor(gate);
        list.contains("127.50.1.1") && list.contains("127.50.2.1")
    });
    assert!(!list.contains("127.0.0.1"), "{list}");
}

#[test]
fn behind_nginx_clients_are_distinguished_and_websockets_work() {
    let backend = Backend::saying("ok");
    let gate = gate(block("The gate", "toml"), &backend);
    let nginx = Proxy::nginx(block("nginx", "nginx"), &gate);
    tells_clients_apart(nginx.address);
    let request = backend.requests().pop().unwrap();
    assert_eq!(request.field("host"), Some("example.com"));
    assert_eq!(request.field("x-forwarded-for"), Some("127.50.2.1, 127.0.0.1"));
    doctor_shows_both(&gate);
    let upgrade = "GET /ws HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n";
    roundtrip(connect_from(ONE.into(), nginx.address), upgrade.as_bytes());
    let request = backend.requests().pop().unwrap();
    assert_eq!((request.path(), request.field("upgrade")), ("/ws", Some("websocket")));
}

#[test]
fn on_the_server_itself_curl_can_be_any_client() {
    let backend = Backend::saying("ok");
    let gate = gate(block("The gate", "toml"), &backend);
    assert_eq!(curl(&gate, &["-H", "X-Forwarded-For: 203.0.113.7"]).as_deref(), Some("ok"));
    eventually("the client is in the list of the doctor", || doctor(&gate).contains("203.0.113.7/32"));
}

#[test]
fn the_command_that_changes_the_backend_works_with_the_settings_of_this_page() {
    let install = include_str!("../../../../docs/install.md");
    let line = install.lines().find(|line| line.starts_with("sudo sed -i")).unwrap();
    let settings = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&settings, block("The gate", "toml")).unwrap();
    let path = settings.path().to_str().unwrap();
    let script = line.trim_start_matches("sudo ").replace("/etc/tollgate/tollgate.toml", path);
    assert!(Command::new("bash").args(["-c", &script]).status().unwrap().success());
    let changed = std::fs::read_to_string(path).unwrap();
    assert!(changed.contains("\nbackend = \"http://127.0.0.1:3000\"\n") && !changed.contains("8080"), "{changed}");
}

#[test]
fn behind_an_untrusted_proxy_all_clients_are_one() {
    let backend = Backend::saying("ok");
    let config = block("The gate", "toml");
    let config: String =
        config.lines().filter(|line| !line.contains("trusted")).map(|line| line.to_owned() + "\n").collect();
    let nginx_gate = gate(&config, &backend);
    let nginx = Proxy::nginx(block("nginx", "nginx"), &nginx_gate);
    assert_eq!([left(ONE, nginx.address, ""), left(OTHER, nginx.address, "")], [99, 98]);
}

#[test]
fn behind_caddy_clients_are_distinguished() {
    let backend = Backend::saying("ok");
    let gate = gate(block("The gate", "toml"), &backend);
    let caddy = Proxy::caddy(block("Caddy", "caddyfile"), &gate);
    tells_clients_apart(caddy.address);
    let request = backend.requests().pop().unwrap();
    assert_eq!(request.field("host"), Some("example.com"));
    assert_eq!(request.field("x-forwarded-proto"), Some("http"));
}

#[test]
fn behind_haproxy_with_the_proxy_protocol_clients_are_distinguished() {
    let backend = Backend::saying("ok");
    let gate = gate(block("HAProxy", "toml"), &backend);
    let haproxy = Proxy::haproxy(block("HAProxy", "haproxy"), &gate);
    tells_clients_apart(haproxy.address);
    // The health checks of HAProxy have no client. They are not errors, and the server stays in use.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(left(ONE, haproxy.address, ""), 96);
    assert_eq!(curl(&gate, &[]), None, "a connection without a PROXY header is closed");
    assert_eq!(curl(&gate, &["--haproxy-protocol"]).as_deref(), Some("ok"));
}

/// The body that curl receives from the gate itself, if it succeeds.
fn curl(gate: &Gate, options: &[&str]) -> Option<String> {
    let mut command = Command::new("curl");
    command.args(["-sS", "--max-time", "20"]).args(options).arg(format!("http://{}", gate.address));
    let output = command.output().expect("./test installs curl");
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// Traefik 3 removes the forwarding headers of an untrusted client, and then adds these.
#[test]
fn behind_the_headers_of_traefik_clients_are_distinguished() {
    assert!(block("Traefik", "yaml").contains("- url: http://127.0.0.1:8888\n"));
    let backend = Backend::saying("ok");
    let gate = gate(block("The gate", "toml"), &backend);
    let through = |client: &str| {
        let fields = format!(
            "Accept-Encoding: gzip\r\nX-Forwarded-For: {client}\r\nX-Forwarded-Host: example.com\r\n\
             X-Forwarded-Port: 80\r\n\
             X-Forwarded-Proto: http\r\nX-Forwarded-Server: traefik-1\r\nX-Real-Ip: {client}\r\n"
        );
        left([127, 0, 0, 1], gate.address, &fields)
    };
    assert_eq!(["192.0.2.1", "192.0.2.1", "192.0.2.2"].map(through), [99, 98, 99]);
    let request = backend.requests().pop().unwrap();
    assert_eq!(request.field("x-real-ip"), Some("192.0.2.2"));
    assert_eq!(request.field("x-forwarded-for"), Some("192.0.2.2, 127.0.0.1"));
}

/// The fields from Cloudflare for a client that has sent this `X-Forwarded-For`.
fn of_cloudflare(client: &str, forged: &str) -> String {
    let separator = if forged.is_empty() { "" } else { "," };
    format!(
        "Accept-Encoding: gzip, br\r\nCF-RAY: 230b030023ae2822-SJC\r\nCF-Visitor: {{\"scheme\":\"https\"}}\r\n\
         CF-IPCountry: US\r\n\
         CDN-Loop: cloudflare; loops=1\r\nX-Forwarded-Proto: https\r\nCF-Connecting-IP: {client}\r\n\
         X-Forwarded-For: {forged}{separator}{client}\r\n"
    )
}

/// A server of Cloudflare, at a local address.
const EDGE: [u8; 4] = [127, 173, 48, 7];

#[test]
fn behind_the_headers_of_cloudflare_clients_are_distinguished() {
    let backend = Backend::saying("ok");
    let config = block("Cloudflare and other CDNs", "toml");
    let gate = gate(&config.replace("173.245.48.0/20", "127.173.48.0/20"), &backend);
    let through = |(client, forged)| left(EDGE, gate.address, &of_cloudflare(client, forged));
    let clients = [("192.0.2.1", ""), ("192.0.2.1", "192.0.2.2"), ("192.0.2.2", ""), ("2001:db8::1", "")];
    assert_eq!(clients.map(through), [99, 98, 99, 99]);
    // Without the CDN, the client is the peer address.
    assert_eq!(left(ONE, gate.address, &of_cloudflare("192.0.2.2", "")), 99);
}

#[test]
fn behind_nginx_behind_the_headers_of_cloudflare_clients_are_distinguished() {
    let backend = Backend::saying("ok");
    let gate = gate(block("The gate", "toml"), &backend);
    let real_ip = block("Cloudflare and other CDNs", "nginx").replace("173.245.48.0/20", "127.173.48.0/20");
    let nginx = Proxy::nginx(&format!("{real_ip}{}", block("nginx", "nginx")), &gate);
    let through = |(client, forged)| left(EDGE, nginx.address, &of_cloudflare(client, forged));
    let clients = [("192.0.2.1", ""), ("192.0.2.1", "192.0.2.2"), ("192.0.2.2", "")];
    assert_eq!(clients.map(through), [99, 98, 99]);
    assert_eq!(left(ONE, nginx.address, &of_cloudflare("192.0.2.2", "")), 99);
    assert_eq!(left(ONE, nginx.address, ""), 98);
}

#[test]
fn every_configuration_of_the_page_is_tested() {
    let fences: Vec<_> = PAGE.lines().filter(|line| line.starts_with("```") && *line != "```").collect();
    let tested = [
        "```text",
        // The Debian package's test runs these commands.
        "```sh",
        "```toml",
        "```nginx",
        "```caddyfile",
        "```haproxy",
        "```toml",
        "```yaml",
        "```toml",
        "```nginx",
        "```sh",
    ];
    assert_eq!(fences, tested);
}
