//! Accepts connections, within a bound.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use socket2::TcpKeepalive;
use tokio::net::{TcpListener, TcpStream};
use tollgate_gatekeeper::link::draw_entropy;
use tollgate_wire::zmtp::{Connection, Identity, SocketKind};

/// Counts one connection against the bound until it is dropped.
pub(super) struct ConnectionSlot(Rc<Cell<usize>>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// The maximum number of connections at one address. Each gate needs one.
const CONNECTIONS_MAX: usize = 1024;
/// The pause after a failed accept.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Creates the codec of a new connection for this kind of socket, authenticated if there is an `identity`.
pub(super) fn begin(kind: SocketKind, identity: Option<&Identity>) -> Result<Connection, &'static str> {
    match identity {
        None => Ok(Connection::new(kind)),
        Some(identity) => {
            let entropy = draw_entropy().map_err(|_| "no-entropy")?;
            Ok(Connection::secured(kind, identity.clone(), entropy))
        }
    }
}

/// Passes every connection to `welcome`. Closes connections beyond the bound.
pub(super) async fn accept(listener: TcpListener, welcome: impl Fn(TcpStream, ConnectionSlot)) {
    let taken = Rc::new(Cell::new(0));
    loop {
        match listener.accept().await {
            Ok((stream, _)) if taken.get() < CONNECTIONS_MAX => {
                taken.set(taken.get() + 1);
                // Orders are small and urgent.
                let _ = stream.set_nodelay(true);
                // Keep-alive detects gates that vanished, so that their connections do not count for longer.
                let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive());
                welcome(stream, ConnectionSlot(taken.clone()));
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
