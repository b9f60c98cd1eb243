//! One thread of the doors: its own runtime, listeners and connections.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connections::{DoorConnection, DoorConnections};
use super::log::BoundLog;
use super::metrics::Count;
use super::station::Station;
use super::{Protocol, grpc, http, resp};

/// Interval between two checks for expired tickets.
const TICK: Duration = Duration::from_millis(200);
/// Pause before the next attempt after a failed accept, such as one without a free file descriptor.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves until `drains` becomes true, and then until the last call has its response.
pub(super) fn run(
    station: Rc<Station>,
    listeners: Vec<(Protocol, TcpListener)>,
    connections_max: usize,
    log: Option<BoundLog>,
    drains: watch::Receiver<bool>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    runtime.block_on(serve(station, listeners, connections_max, log, drains))
}

async fn serve(
    station: Rc<Station>,
    listeners: Vec<(Protocol, TcpListener)>,
    connections_max: usize,
    log: Option<BoundLog>,
    mut drains: watch::Receiver<bool>,
) -> io::Result<()> {
    let connections = DoorConnections::new(connections_max);
    let mut accepting = JoinSet::new();
    for (protocol, listener) in listeners {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        accepting.spawn_local(accept(listener, protocol, station.clone(), connections.clone(), drains.clone()));
    }
    if let Some(log) = log {
        log.read(&station)?;
    }
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = tick.tick() => {
                station.tick();
                station.connections(connections.count());
            }
            _ = drains.wait_for(|is_draining| *is_draining) => break,
        }
    }
    accepting.shutdown().await;
    while connections.count() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

async fn accept(
    listener: tokio::net::TcpListener,
    protocol: Protocol,
    station: Rc<Station>,
    connections: Rc<DoorConnections>,
    drains: watch::Receiver<bool>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                station.count(Count::ConnectionAccepted);
                let Some((connection, replaces)) = connections.enter() else { continue };
                if replaces {
                    station.count(Count::ConnectionClosedForAnother);
                }
                let _ = stream.set_nodelay(true);
                tokio::task::spawn_local(converse(stream, peer, protocol, station.clone(), connection, drains.clone()));
            }
            Err(error) => {
                tracing::debug!(%error, "a door cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(
    stream: TcpStream,
    peer: SocketAddr,
    protocol: Protocol,
    station: Rc<Station>,
    connection: DoorConnection,
    drains: watch::Receiver<bool>,
) {
    let usage = connection.usage.clone();
    let served = async {
        match protocol {
            Protocol::Grpc => grpc::converse(stream, station, usage.clone(), drains).await,
            Protocol::Resp => resp::converse(stream, station, usage.clone(), drains).await,
            Protocol::Http => http::converse(stream, peer, station, usage.clone(), drains).await,
        }
    };
    tokio::select! {
        () = served => {}
        () = connection.usage.replaced() => {}
    }
}
