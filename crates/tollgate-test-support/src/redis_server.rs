//! Redis servers for a test, each on a free port and in its own directory, stopped when dropped: single ones, a
//! Cluster, and a replicated one with Sentinels.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::process::signal;
use super::{eventually, free_port};

/// A running server.
pub struct RedisServer {
    process: Child,
    port: u16,
    /// A replica writes the data of its master to a file.
    _directory: TempDir,
}

impl RedisServer {
    /// Starts a server with `options` on its command line.
    pub fn start(options: &[&str]) -> Self {
        Self::start_on(free_port(), options)
    }

    /// Starts a server on this port.
    pub fn start_on(port: u16, options: &[&str]) -> Self {
        Self::run(port, tempfile::tempdir().unwrap(), &[&["--save", "", "--appendonly", "no"], options].concat())
    }

    /// Runs a server in this directory and waits until it answers.
    fn run(port: u16, directory: TempDir, options: &[&str]) -> Self {
        let process = Command::new(program())
            .args(options)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir", directory.path().to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server must be installed (Debian package redis-server)");
        let mut server = Self { process, port, _directory: directory };
        let itself = format!("process_id:{}\r", server.process.id());
        eventually(&format!("redis-server answers on port {port}"), || {
            let ended = server.process.try_wait().unwrap();
            assert!(ended.is_none(), "redis-server on port {port} has ended: {ended:?}");
            // A server with a password does not answer INFO.
            let info = server.command_or_error(&["INFO", "server"]);
            info.map_or_else(|error| error.code() == Some("NOAUTH"), |info| info.contains(&itself))
        });
        server
    }

    /// Waits until the answer to a command is as expected.
    pub fn eventually(&self, words: &[&str], is_expected: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let said = self.command(words);
            if is_expected(&said) {
                return;
            }
            assert!(Instant::now() < deadline, "{words:?} still says {said}");
            sleep(Duration::from_millis(50));
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends the process a signal by name.
    pub fn signal(&self, name: &str) {
        signal(self.process.id(), name);
    }

    /// Sends a command on a separate connection and returns the answer as text.
    pub fn command(&self, words: &[&str]) -> String {
        self.command_or_error(words).unwrap()
    }

    /// The names of all keys that match `pattern`.
    pub fn keys(&self, pattern: &str) -> Vec<String> {
        let mut connection = redis::Client::open(self.url()).unwrap().get_connection().unwrap();
        redis::cmd("KEYS").arg(pattern).query(&mut connection).unwrap()
    }

    /// As [`command`](Self::command), for a command that may fail.
    pub fn command_or_error(&self, words: &[&str]) -> redis::RedisResult<String> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        Ok(match command.query::<redis::Value>(&mut connection)? {
            redis::Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            other => format!("{other:?}"),
        })
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The server program: Redis, or the one that `TOLLGATE_TEST_SERVER` names, such as `valkey-server`.
fn program() -> std::ffi::OsString {
    std::env::var_os("TOLLGATE_TEST_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// A Redis Cluster of three masters, with optional replicas.
pub struct Cluster {
    pub nodes: Vec<RedisServer>,
}

impl Cluster {
    /// Starts three masters, each with a third of the hash slots.
    pub fn start() -> Self {
        let nodes: Vec<_> = (0..3).map(|_| start_node()).collect();
        for (node, (first, last)) in nodes.iter().zip([(0, 5_460), (5_461, 10_922), (10_923, 16_383)]) {
            node.command(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
            node.command(&["CLUSTER", "MEET", "127.0.0.1", &nodes[0].port().to_string()]);
        }
        let cluster = Self { nodes };
        eventually("the cluster forms", || {
            cluster.nodes.iter().all(|node| {
                let info = node.command(&["CLUSTER", "INFO"]);
                ["cluster_state:ok", "cluster_size:3", "cluster_known_nodes:3"].iter().all(|state| info.contains(state))
            })
        });
        cluster
    }

    /// Adds a replica of the node with this index, and waits until it is synchronized. Returns the replica's index.
    pub fn replicate(&mut self, node: usize) -> usize {
        let replica = start_node();
        replica.command(&["CLUSTER", "MEET", "127.0.0.1", &self.nodes[0].port().to_string()]);
        let id = self.nodes[node].command(&["CLUSTER", "MYID"]);
        eventually("the node becomes a replica", || replica.command_or_error(&["CLUSTER", "REPLICATE", &id]).is_ok());
        replica.eventually(&["INFO", "replication"], |info| info.contains("master_link_status:up"));
        self.nodes.push(replica);
        // All nodes must know it before one fails.
        for node in &self.nodes {
            node.eventually(&["CLUSTER", "NODES"], |nodes| nodes.contains("slave"));
        }
        self.nodes.len() - 1
    }

    pub fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }
}

/// A Redis master with a replica, and three Sentinels that replace the master if it fails.
pub struct Watched {
    master: Option<RedisServer>,
    pub replica: RedisServer,
    sentinels: Vec<RedisServer>,
}

impl Watched {
    /// Starts all of them, and waits until the Sentinels know each other and the replica, which they need to
    /// agree.
    pub fn start() -> Self {
        let master = RedisServer::start(&[]);
        let replica = RedisServer::start(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
        replica.eventually(&["INFO", "replication"], |info| info.contains("master_link_status:up"));
        let sentinels: Vec<_> = (0..3).map(|_| start_sentinel(master.port())).collect();
        for sentinel in &sentinels {
            sentinel.eventually(&["SENTINEL", "MASTER", "gatekeepers"], |master| {
                master.contains("num-other-sentinels\"'), bulk-string('\"2")
                    && master.contains("num-slaves\"'), bulk-string('\"1")
            });
        }
        Self { master: Some(master), replica, sentinels }
    }

    /// Waits until the replica is synchronized.
    pub fn replicated(&self) {
        let master = self.master.as_ref().expect("it has not been killed");
        master.eventually(&["WAIT", "1", "1000"], |acknowledged| acknowledged == "int(1)");
    }

    /// Kills the master.
    pub fn kill_master(&mut self) {
        self.master = None;
    }

    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        format!("redis+sentinel://{}/gatekeepers", hosts.join(","))
    }
}

fn start_sentinel(master: u16) -> RedisServer {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("sentinel.conf");
    let text = format!(
        "sentinel monitor gatekeepers 127.0.0.1 {master} 2\nsentinel down-after-milliseconds gatekeepers 500\n\
         sentinel failover-timeout gatekeepers 3000\n"
    );
    std::fs::write(&file, text).unwrap();
    RedisServer::run(free_port(), directory, &[file.to_str().unwrap(), "--sentinel"])
}

fn start_node() -> RedisServer {
    let options =
        ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no", "--cluster-node-timeout", "1000"];
    RedisServer::start_on(free_cluster_port(), &options)
}

/// A free port whose companion for the Cluster bus, 10,000 higher, is free, too.
fn free_cluster_port() -> u16 {
    (0..1_000)
        .map(|_| free_port())
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port + 10_000)).is_ok())
        .expect("some pair of ports is free")
}
