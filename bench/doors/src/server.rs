//! The servers that are compared, all on one core with one thread each.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tollgate_storm::child::{Child, free_address};
use tollgate_storm::cpu;

use crate::SERVER_CORE;
use crate::load::{Call, RespLoad};

/// A generic cell rate algorithm as Redis users write it. The arguments are those of `CL.THROTTLE`, and so is the
/// reply.
const SCRIPT: &str = include_str!("gcra.lua");
/// Limits that admit nearly all calls.
const LIMITS: &str =
    "domain: bench\ndescriptors:\n- key: client\n  rate_limit: {unit: day, requests_per_unit: 4000000000}\n";
/// The rule for checks by HTTP, which admits nearly all of them, too.
const RULE: &str = "[[rule]]\nname = 'api'\nclass = 'identifier'\nrate = { rate = '1000000/s', burst = 1000000 }\n";

/// A running server and one of its addresses.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    child: std::rc::Rc<Child>,
}

impl Server {
    pub(crate) fn cpu_time(&self) -> Duration {
        self.child.cpu_time()
    }

    /// Time for which it was ready to run and other processes had its core.
    pub(crate) fn run_delay(&self) -> Duration {
        self.child.run_delay()
    }
}

/// All servers.
pub(crate) struct Servers {
    /// The doors for Redis clients, HTTP and gRPC of one process.
    tollgate: [Server; 3],
    redis: Server,
    /// The same server, under another name in the table.
    redis_reads: Server,
    /// The hash by which Redis calls [`SCRIPT`].
    script_hash: String,
    throttlecrab: Option<Server>,
    nginx: Server,
    empty: Server,
    _folder: TempDir,
}

/// The servers of one table with the call that each gets; Tollgate is first.
type Contenders<'a> = Vec<(&'a Server, Call)>;

impl Servers {
    /// Starts all servers.
    pub(crate) fn start(tollgate: &Path, throttlecrab: Option<&Path>) -> io::Result<Self> {
        cpu::pin(SERVER_CORE)?;
        let folder = tempfile::tempdir()?;
        let redis = start_redis()?;
        let port = redis.address.port().to_string();
        let loaded = Command::new("redis-cli").args(["-p", &port, "SCRIPT", "LOAD", SCRIPT]).output()?;
        let script_hash = String::from_utf8_lossy(&loaded.stdout).trim().to_owned();
        let redis_reads = Server { name: "redis-server, MGET", address: redis.address, child: redis.child.clone() };
        Ok(Self {
            tollgate: start_tollgate(tollgate, folder.path())?,
            redis,
            redis_reads,
            script_hash,
            throttlecrab: throttlecrab.map(start_throttlecrab).transpose()?,
            nginx: start_nginx(folder.path())?,
            empty: start_empty()?,
            _folder: folder,
        })
    }

    /// `CL.THROTTLE`, its equivalents, and a command of Redis that decides nothing and has a reply of five elements as
    /// well: its latency is that of the machine.
    pub(crate) fn resp(&self, load: RespLoad) -> Contenders<'_> {
        let call = |words: &[&str]| Call::resp(load, words);
        let script = ["EVALSHA", &self.script_hash, "1", "key:__rand_int__", "15", "30", "60", "1"];
        let mut contenders = vec![
            (&self.tollgate[0], call(&["CL.THROTTLE", "key:__rand_int__", "15", "30", "60", "1"])),
            (&self.redis, call(&script)),
            (&self.redis_reads, call(&["MGET", "key:__rand_int__", "15", "30", "60", "1"])),
        ];
        let throttle = call(&["THROTTLE", "key:__rand_int__", "16", "30", "60", "1"]);
        contenders.extend(self.throttlecrab.as_ref().map(|server| (server, throttle)));
        contenders
    }

    /// `POST /v1/check`, and nginx that answers a constant.
    pub(crate) fn http(&self) -> Contenders<'_> {
        vec![(&self.tollgate[1], Call::Http), (&self.nginx, Call::Http)]
    }

    /// `ShouldRateLimit`, and a service that answers a constant.
    pub(crate) fn rls(&self) -> Contenders<'_> {
        vec![(&self.tollgate[2], Call::Rls), (&self.empty, Call::Rls)]
    }
}

fn start(name: &'static str, program: &Path, args: &[&str], address: SocketAddr) -> io::Result<Server> {
    Ok(Server { name, address, child: std::rc::Rc::new(Child::start(program, args, address)?) })
}

fn start_tollgate(program: &Path, folder: &Path) -> io::Result<[Server; 3]> {
    let [resp, http, grpc, admin] = [free_address()?, free_address()?, free_address()?, free_address()?];
    let (limits, file) = (folder.join("limits.yaml"), folder.join("tollgate.toml"));
    fs::write(&limits, LIMITS)?;
    let doors = format!(
        "[doors]\nresp = '{resp}'\nhttp = '{http}'\ngrpc = '{grpc}'\nthreads = 1\nratelimit = '{}'\n",
        limits.display()
    );
    fs::write(
        &file,
        format!("{doors}{RULE}[admin]\nlisten = '{admin}'\n[watch]\nstate_dir = '{}'\n", folder.display()),
    )?;
    let server = start("Tollgate", program, &["run", "--config", &file.to_string_lossy()], resp)?;
    let other = |address| Server { name: "Tollgate", address, child: server.child.clone() };
    Ok([other(resp), other(http), other(grpc)])
}

fn start_redis() -> io::Result<Server> {
    let address = free_address()?;
    let port = address.port().to_string();
    let args = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    start("redis-server, Lua script", Path::new("redis-server"), &args, address)
}

fn start_throttlecrab(program: &Path) -> io::Result<Server> {
    let address = free_address()?;
    let port = address.port().to_string();
    let args = ["--redis", "--redis-host", "127.0.0.1", "--redis-port", &port, "--log-level", "error"];
    start("throttlecrab-server", program, &args, address)
}

/// nginx with a response as long as that of a check.
fn start_nginx(folder: &Path) -> io::Result<Server> {
    let (address, folder) = (free_address()?, folder.display());
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {folder}/{kind};\n"))
        .collect();
    let file = format!("{folder}/nginx.conf");
    let answer = "x".repeat(480);
    let text = format!(
        "daemon off;\nworker_processes 1;\npid {folder}/nginx.pid;\nerror_log {folder}/nginx.log crit;\n\
         events {{ worker_connections 4096; }}\nhttp {{\naccess_log off;\nkeepalive_requests 1000000000;\n{temporary}\
         server {{ listen {address}; location / {{ default_type application/json; return 200 '{answer}'; }} }}\n}}\n"
    );
    fs::write(&file, text)?;
    start("nginx, constant", Path::new("nginx"), &["-c", &file], address)
}

fn start_empty() -> io::Result<Server> {
    let address = free_address()?;
    start("empty tonic service", &std::env::current_exe()?, &["--serve-empty", &address.to_string()], address)
}
