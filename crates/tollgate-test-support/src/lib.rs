//! Gates, masters, backends, clients and Redis servers for the tests of this workspace.
//!
//! The program under test is the built binary `tollgate`, on real sockets. Every process ends when its value is
//! dropped. Functions panic on failure, which fails the test.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stderr, reason = "a failure here is a failure of the test")]

pub mod admin_gate;
pub mod backend;
pub mod client;
pub mod crowd;
pub mod doors;
pub mod gate;
pub mod http2;
pub mod master;
mod process;
pub mod python;
pub mod redis_server;
pub mod simple_http;
pub mod tap;

pub use backend::Backend;
pub use client::{Response, read_response, roundtrip};
pub use gate::Gate;
pub use process::TollgateProcess;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Timeout for anything that should succeed, on a machine that is busy with other tests.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds, for at most [`PATIENCE`]; `what` describes it if it does not.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The built binary, or the one that `TOLLGATE_BINARY` names.
///
/// Cargo passes the path of a binary only to tests of its own package, so this finds it beside the directory of the
/// running test.
pub fn binary() -> PathBuf {
    std::env::var_os("TOLLGATE_BINARY").map_or_else(|| profile_directory().join("tollgate"), PathBuf::from)
}

/// Directory for files that tests keep between runs, such as installed Python packages.
pub fn kept_directory() -> PathBuf {
    let directory = profile_directory().parent().unwrap().join("tmp");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// The directory of the build, such as `target/debug`. The running test is in `deps` below it.
fn profile_directory() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().to_path_buf()
}

/// The root of the project.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// An address on which nothing listens. Keep the socket, so that no other process gets its port.
pub fn closed() -> (socket2::Socket, SocketAddr) {
    let taken = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    taken.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = taken.local_addr().unwrap().as_socket().unwrap();
    (taken, address)
}

/// A free port that stays free for some time: it is returned only once in this process, and is outside of the system's
/// range for connections (from 32,768 on), which could otherwise use it before the program starts. The port 10,000
/// higher, on which a node of a Redis Cluster has its bus, is outside of that range, too. The first port depends on the
/// process id, so that test processes that run at the same time rarely try the same ports.
pub fn free_port() -> u16 {
    const FIRST: u32 = 10_240;
    const COUNT: u32 = 12_520;
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id().wrapping_mul(641);
    (0..COUNT)
        .map(|_| (FIRST + begin.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % COUNT) as u16)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .expect("some port is free")
}

/// Addresses with a [`free_port`].
pub fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    [(); N].map(|()| (Ipv4Addr::LOCALHOST, free_port()).into())
}

/// Milliseconds since 1970.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}
