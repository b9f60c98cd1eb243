//! Listening sockets, and the loop that accepts connections within the limits of
//! [`Caps`](crate::gate::net::caps::Caps).

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;

use super::connection;
use crate::gate::http::worker::{TotalGuard, Worker};
use crate::gate::net::timer::CLOSED_AT_ONCE;
use crate::gate::observe::counters::WorkerCounter;

/// The number of connections that the system may complete before they are accepted.
const BACKLOG: i32 = 4096;
/// Ports below this one need root or `CAP_NET_BIND_SERVICE`, unless the system is configured otherwise.
const PRIVILEGED_PORTS_END: u16 = 1024;
/// The pause of the accept loop when the process is out of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Binds a socket on each of these addresses for each of `workers`. Port 0 is any free port, the same for all workers.
pub(crate) fn bind_all(addresses: &[SocketAddr], workers: usize) -> io::Result<Vec<Vec<TcpListener>>> {
    let named = |address, error: io::Error| io::Error::new(error.kind(), bind_failure(address, &error));
    for address in addresses.iter().filter(|address| address.port() != 0) {
        bind_alone(*address).map_err(|error| named(*address, error))?;
    }
    let bind = |address| bind(address).map_err(|error| named(address, error));
    let mut all = vec![addresses.iter().copied().map(bind).collect::<io::Result<Vec<_>>>()?];
    let chosen = all[0].iter().map(TcpListener::local_addr).collect::<io::Result<Vec<_>>>()?;
    for _ in 1..workers {
        all.push(chosen.iter().copied().map(bind).collect::<io::Result<_>>()?);
    }
    Ok(all)
}

/// The error message for an address that cannot be bound. For a privileged port it names the ways to get the privilege.
fn bind_failure(address: SocketAddr, error: &io::Error) -> String {
    let failure = format!("cannot listen on {address}: {error}");
    if error.kind() != io::ErrorKind::PermissionDenied || address.port() >= PRIVILEGED_PORTS_END {
        return failure;
    }
    let program = std::env::current_exe().map_or_else(|_| "tollgate".to_owned(), |path| path.display().to_string());
    format!(
        "{failure}; ports below {PRIVILEGED_PORTS_END} need a privilege: run `sudo setcap cap_net_bind_service=+ep \
         {program}`, or start it from a systemd unit with AmbientCapabilities=CAP_NET_BIND_SERVICE or a socket unit"
    )
}

/// Gives each of `workers` a copy of the same sockets, which systemd has passed. All workers accept from one queue
/// then.
pub(crate) fn share(listeners: &[TcpListener], workers: usize) -> io::Result<Vec<Vec<TcpListener>>> {
    for listener in listeners {
        listener.set_nonblocking(true)?;
    }
    (0..workers).map(|_| listeners.iter().map(TcpListener::try_clone).collect()).collect()
}

/// A socket that is not bound yet. Unclosed connections of an earlier process do not prevent binding it.
fn unbound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    Ok(socket)
}

/// Fails if another process listens on the address. With `SO_REUSEPORT` alone a second gate of the same user would
/// start without an error and take a part of the connections.
fn bind_alone(address: SocketAddr) -> io::Result<()> {
    unbound(address)?.bind(&address.into())
}

/// A socket for one worker. All workers bind the same address, and the system distributes connections among them.
fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = unbound(address)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Accepts connections until the task is aborted.
pub(crate) async fn accept(listener: tokio::net::TcpListener, worker: Rc<Worker>) {
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                failing = false;
                welcome(stream, address, &worker);
            }
            Err(error) if is_one_connections_fault(&error) => worker.counters.count(WorkerCounter::AcceptFailed),
            Err(error) => {
                worker.counters.count(WorkerCounter::AcceptFailed);
                // Out of file descriptors or memory: close idle connections, then wait.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "cannot accept connections; closing idle ones");
                }
                if worker.timers.close_idle(CLOSED_AT_ONCE) == 0 {
                    worker.shared.caps.evict(CLOSED_AT_ONCE, 1, worker.timers.now_ms());
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Errors that concern only the connection that was being accepted.
fn is_one_connections_fault(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// Serves a new connection, or closes it if a limit is reached.
fn welcome(stream: TcpStream, address: SocketAddr, worker: &Rc<Worker>) {
    worker.counters.count(WorkerCounter::Accepted);
    // This comes first, so that an address at its limit does not cause other connections to be closed.
    let Some(counted) = connection::count(address.ip(), worker, &worker.settings()) else {
        return worker.counters.count(WorkerCounter::TurnedAway);
    };
    let total = worker.shared.caps.enter().then(|| TotalGuard(worker.clone()));
    // This is also done for a connection that is rejected: after a reload, there may be far more than the new limit.
    let has_room = make_room(worker, counted.connections_of_address());
    let (Some(total), true) = (total, has_room) else {
        return worker.counters.count(WorkerCounter::TurnedAway);
    };
    // A future that awaits another one as its last step would contain it twice.
    tokio::task::spawn_local(connection::serve(stream, address, (counted, total), worker.clone()));
}

/// Makes room for a connection that has been counted, and whose address has `own` connections. Returns whether there is
/// room.
///
/// Connections that have never sent a request are closed first, then those that have been idle longest, and then
/// connections of the address with the most. Only the excess is closed, and connections that are closing already count:
/// a burst of new connections does not close all others.
fn make_room(worker: &Worker, own: usize) -> bool {
    let caps = &worker.shared.caps;
    let needed = caps.excess().saturating_sub(worker.timers.closing() + caps.evicting()).min(CLOSED_AT_ONCE);
    if needed == 0 {
        return true;
    }
    let closed = worker.timers.close_idle(needed);
    let evicted = caps.evict(needed - closed, own.max(1), worker.timers.now_ms());
    closed + evicted > 0
}
