//! Accepts connections of gates to the master, if they may connect, and within a bound.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use socket2::TcpKeepalive;
use tokio::net::{TcpListener, TcpStream};
use tollgate_core::network::NetworkSet;
use tollgate_gatekeeper::link::draw_entropy;
use tollgate_wire::zmtp::{Connection, Identity, SocketKind};

use super::Shared;

/// Held by each connection of an address. The number of clones is the number of connections.
pub(super) type ConnectionSlot = Rc<()>;

/// The maximum number of connections at one address. Each gate needs one.
const CONNECTIONS_MAX: usize = 1024;
/// The pause after a failed accept.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The gates that may connect.
#[derive(Clone, Debug)]
pub(crate) struct GateAccess {
    /// The key of this master and the keys of its gates, if connections are authenticated.
    pub(crate) identity: Option<Identity>,
    /// The networks whose gates connect without keys.
    pub(crate) without_keys: NetworkSet,
}

impl GateAccess {
    /// Creates the codec of a new connection of `peer`, plain or encrypted. The error is the reason for the metrics why
    /// the peer may not connect.
    pub(super) fn begin(&self, kind: SocketKind, peer: IpAddr) -> Result<Connection, &'static str> {
        let peer = peer.to_canonical();
        match &self.identity {
            _ if self.without_keys.contains(peer) => Ok(Connection::new(kind)),
            Some(identity) => {
                let entropy = draw_entropy().map_err(|_| "no-entropy")?;
                Ok(Connection::secured(kind, identity.clone(), entropy))
            }
            None if peer.is_loopback() => Ok(Connection::new(kind)),
            None => Err("unauthenticated"),
        }
    }
}

/// Accepts gates and serves each as a task of this thread. Closes connections beyond the bound.
pub(super) async fn accept<F: Future<Output = ()> + 'static>(
    listener: TcpListener,
    kind: SocketKind,
    access: &GateAccess,
    state: &Shared,
    serve: impl Fn(TcpStream, Connection, ConnectionSlot, Shared) -> F,
) {
    let slot = ConnectionSlot::default();
    loop {
        match listener.accept().await {
            Ok((stream, peer)) if Rc::strong_count(&slot) <= CONNECTIONS_MAX => {
                // Orders are small and urgent.
                let _ = stream.set_nodelay(true);
                // Keep-alive detects gates that vanished, so that their connections do not count for longer.
                let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive());
                match access.begin(kind, peer.ip()) {
                    Ok(connection) => {
                        tokio::task::spawn_local(serve(stream, connection, slot.clone(), state.clone()));
                    }
                    Err(fault) => state.borrow_mut().counts.fault(fault),
                }
            }
            Ok(_) => tracing::warn!(limit = CONNECTIONS_MAX, "a connection was closed: the limit is reached"),
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
            }
        }
    }
}

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(Duration::from_secs(20)).with_interval(Duration::from_secs(5)).with_retries(4)
}

#[cfg(test)]
mod tests {
    use tollgate_core::network::Network;

    use super::*;

    #[test]
    fn without_keys_only_loopback_and_named_networks_connect() {
        let without_keys = Network::parse("10.0.0.0/8").into_iter().collect();
        let access = GateAccess { identity: None, without_keys };
        for (peer, is_admitted) in [
            ("10.1.2.3", true),
            ("::ffff:10.1.2.3", true),
            ("127.0.0.1", true),
            ("::1", true),
            ("192.168.0.1", false),
            ("2001:db8::1", false),
        ] {
            let begun = access.begin(SocketKind::Sub, peer.parse().unwrap());
            assert_eq!(begun.err(), (!is_admitted).then_some("unauthenticated"), "{peer}");
        }
    }
}
