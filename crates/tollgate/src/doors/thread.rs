//! One thread of the doors: accepts connections to all doors and serves them with the module of their protocol.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connections::{DoorConnection, DoorConnections, Usage};
use super::log::BoundLog;
use super::metrics::Count;
use super::station::Station;
use super::tls::DoorCertificates;
use super::{BoundListener, Protocol, grpc, http, resp};

/// Interval of [`Station::tick`], which expires tickets.
const TICK: Duration = Duration::from_millis(200);
/// Pause before the next attempt after a failed accept, such as one without a free file descriptor.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves until `drains` becomes true, and then until all connections have ended. One thread gets the `log`.
pub(super) async fn serve(
    station: Rc<Station>,
    listeners: Vec<BoundListener>,
    connections_max: usize,
    log: Option<BoundLog>,
    mut drains: watch::Receiver<bool>,
) -> io::Result<()> {
    let connections = DoorConnections::new(connections_max);
    let mut accepting = JoinSet::new();
    for BoundListener { protocol, listener, tls } in listeners {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let door = Rc::new(Door { protocol, tls, station: station.clone(), drains: drains.clone() });
        accepting.spawn_local(accept(listener, door, connections.clone()));
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
                station.set_connections(connections.count());
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

/// One door, as its thread serves it.
struct Door {
    protocol: Protocol,
    tls: Option<Arc<DoorCertificates>>,
    station: Rc<Station>,
    drains: watch::Receiver<bool>,
}

/// The client of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoorPeer {
    pub(super) address: SocketAddr,
    /// Whether it has authenticated with a certificate, and so needs no token.
    pub(super) has_certificate: bool,
}

async fn accept(listener: tokio::net::TcpListener, door: Rc<Door>, connections: Rc<DoorConnections>) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                door.station.count(Count::ConnectionAccepted);
                let Some((connection, replaces)) = connections.enter() else { continue };
                if replaces {
                    door.station.count(Count::ConnectionClosedForAnother);
                }
                let _ = stream.set_nodelay(true);
                let usage = connection.usage.clone();
                let task = tokio::task::spawn_local(serve_connection(stream, address, door.clone(), connection));
                let _ = usage.task.set(task.abort_handle());
            }
            Err(error) => {
                tracing::debug!(%error, "a door cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, address: SocketAddr, door: Rc<Door>, connection: DoorConnection) {
    match &door.tls {
        None => door.converse(stream, DoorPeer { address, has_certificate: false }, &connection.usage).await,
        Some(tls) => match tls.accept(stream).await {
            Ok(stream) => {
                let peer = DoorPeer { address, has_certificate: tls.asks_for_certificate };
                // In a box, so that connections without TLS do not carry the memory for it.
                Box::pin(door.converse(stream, peer, &connection.usage)).await;
            }
            Err(error) => {
                door.station.count(Count::HandshakeFailed);
                tracing::debug!(%address, %error, "a TLS handshake with a door failed");
            }
        },
    }
}

impl Door {
    async fn converse<S>(&self, stream: S, peer: DoorPeer, usage: &Rc<Usage>)
    where
        S: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let (station, usage, drains) = (self.station.clone(), usage.clone(), self.drains.clone());
        match self.protocol {
            Protocol::Grpc => grpc::converse(stream, peer, station, usage, drains).await,
            Protocol::Resp => resp::converse(stream, peer, station, usage, drains).await,
            Protocol::Http => http::converse(stream, peer, station, usage, drains).await,
        }
    }
}
