//! A real Envoy asks the door, with its rate limit filter and its rate limit quota filter.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::{CONFIG, LIMITS, start_with, tools};
use crate::support::{Answer, Doors, call, eventually};

/// A running Envoy. Ends with the test.
struct Envoy {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Envoy {
    /// An Envoy with this configuration, in which `LISTEN`, `DOOR` and `SITE` are ports.
    fn start(doors: &Doors, door: SocketAddr, config: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let file = doors.folder.path().join("envoy.yaml");
        let text = config.replace("LISTEN", &port.to_string()).replace("DOOR", &door.port().to_string());
        let text = text.replace("SITE", &site().to_string());
        std::fs::write(&file, text).unwrap();
        let log = doors.folder.path().join("envoy.log");
        let mut command = Command::new(tools().join("bin/envoy"));
        command.args(["--concurrency", "1", "--use-dynamic-base-id", "-l", "warning", "-c"]).arg(&file);
        command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        let mut envoy = Self { child: command.spawn().unwrap(), address: ([127, 0, 0, 1], port).into(), log };
        eventually("Envoy listens", || {
            assert!(envoy.child.try_wait().unwrap().is_none(), "{}", envoy.logged());
            TcpStream::connect(envoy.address).is_ok()
        });
        envoy
    }

    fn logged(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn get(&self, headers: &[(&str, &str)]) -> Answer {
        call(self.address, "GET", "/", headers, "")
    }

    /// The statuses of several requests with these headers.
    fn statuses(&self, count: usize, headers: &[(&str, &str)]) -> Vec<u16> {
        (0..count).map(|_| self.get(headers).status).collect()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the log of Envoy: {}", self.logged());
        }
    }
}

/// The port of a site that answers every request with 200, for as long as the tests run.
fn site() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while stream.read(&mut bytes).is_ok_and(|read| read > 0) {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
                }
            });
        }
    });
    port
}

fn documented() -> String {
    crate::clients::blocks("docs/door-envoy.md", "yaml")[1].clone()
}

#[test]
fn the_documented_configuration_limits_requests_of_envoy() {
    let config = crate::clients::blocks("docs/door-envoy.md", "toml")[0]
        .replace("127.0.0.1:8081", "127.0.0.1:0")
        .replace("/etc/tollgate/limits.yaml", "FOLDER/limits.yaml");
    let limits = crate::clients::blocks("docs/door-envoy.md", "yaml")[0].clone();
    let mut doors = start_with(&limits, &config);
    let door = doors.door("grpc");
    let envoy = documented()
        .replace("port_value: 10000", "port_value: LISTEN")
        .replace("port_value: 8081", "port_value: DOOR")
        .replace("port_value: 8080", "port_value: SITE");
    let envoy = Envoy::start(&doors, door, &envoy);
    assert_eq!(envoy.statuses(3, &[("x-api-key", "k1")]), [200, 200, 429]);
    assert_eq!(envoy.statuses(1, &[("x-api-key", "k2")]), [200]);
    let refused = envoy.get(&[("x-api-key", "k1")]);
    assert_eq!(refused.header("ratelimit-policy"), Some("\"api_key\";q=2;w=60"));
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait));
}

/// One descriptor for each header, and two for pairs of headers.
const SHOP: &str = include_str!("envoy.yaml");

#[test]
fn envoy_is_limited_by_every_feature_of_the_format() {
    let mut doors = start_with(LIMITS, CONFIG);
    let door = doors.door("grpc");
    let envoy = Envoy::start(&doors, door, SHOP);
    // Per key.
    assert_eq!(envoy.statuses(3, &[("x-client", "alice")]), [200, 200, 429]);
    assert_eq!(envoy.statuses(1, &[("x-client", "bob")]), [200]);
    // Nested: the second login is refused, and takes nothing of the client's own limit.
    assert_eq!(envoy.statuses(2, &[("x-client", "carol"), ("x-path", "/login")]), [200, 429]);
    assert_eq!(envoy.statuses(2, &[("x-client", "carol")]), [200, 429]);
    // Wildcards.
    assert_eq!(envoy.statuses(2, &[("x-file", "abc")]), [200, 429]);
    assert_eq!(envoy.statuses(1, &[("x-file", "abd")]), [200]);
    let shared: Vec<u16> =
        ["b1.txt", "b2.txt", "b3.txt"].iter().map(|file| envoy.get(&[("x-file", file)]).status).collect();
    assert_eq!(shared, [200, 200, 429]);
    // Shadow mode.
    assert_eq!(envoy.statuses(3, &[("x-tier", "trial")]), [200; 3]);
    // Replaces.
    assert_eq!(envoy.statuses(4, &[("x-base", "u"), ("x-vip", "u")]), [200, 200, 200, 429]);
    assert_eq!(envoy.statuses(2, &[("x-base", "u")]), [200, 429]);
    // Unlimited, and a limit of 0.
    assert_eq!(envoy.statuses(5, &[("x-free", "u")]), [200; 5]);
    assert_eq!(envoy.statuses(1, &[("x-banned", "u")]), [429]);
    // Quota mode: refused when both are used up.
    assert_eq!(envoy.statuses(3, &[("x-region-a", "east"), ("x-region-b", "west")]), [200, 200, 429]);
    // Envoy's own header fields come from the statuses.
    let answer = envoy.get(&[("x-client", "dave")]);
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("1"), "{answer:?}");
    assert_eq!(doors.metric("tollgate_door_malformed_total"), 0);
}

#[test]
fn envoys_quota_filter_decides_by_assignments() {
    let limits = "domain: quotas\ndescriptors:\n- {key: name, value: small, rate_limit: {unit: hour, requests_per_unit: 3}}\n\
                  - {key: name, value: none, rate_limit: {unit: hour, requests_per_unit: 0}}\n";
    let mut doors = start_with(limits, CONFIG);
    let door = doors.door("grpc");
    let envoy = Envoy::start(&doors, door, include_str!("envoy-quota.yaml"));
    // Envoy lets requests pass until it has an assignment. Then the requests so far are reported, and count.
    eventually("Envoy refuses", || envoy.get(&[("x-name", "small")]).status == 429);
    eventually("Envoy refuses", || envoy.get(&[("x-name", "none")]).status == 429);
    assert_eq!(envoy.statuses(3, &[("x-name", "unknown")]), [200; 3]);
}
