//! Accepting connections, within a bound.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use socket2::TcpKeepalive;
use tokio::net::{TcpListener, TcpStream};
use tollgate_gatekeeper::link::draw_entropy;
use tollgate_wire::zmtp::{Connection, Identity, SocketKind};

/// One of a bounded number of connections, for as long as it lives.
pub(super) struct Seat(Rc<Cell<usize>>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// How many connections there may be at one address. Gates need one each.
const CONNECTIONS_MAX: usize = 1024;
/// How long to wait when the system has no connection to give.
const PAUSE: Duration = Duration::from_millis(100);

/// What is spoken on a new connection: as a socket of this kind, and authenticated if there is an `identity`.
pub(super) fn begin(kind: SocketKind, identity: Option<&Identity>) -> Result<Connection, &'static str> {
    match identity {
        None => Ok(Connection::new(kind)),
        Some(identity) => {
            let entropy = draw_entropy().map_err(|_| "no-entropy")?;
            Ok(Connection::secured(kind, identity.clone(), entropy))
        }
    }
}

/// Hands every connection to `welcome`, as long as there are seats; who comes when there are none is turned away.
pub(super) async fn accept(listener: TcpListener, welcome: impl Fn(TcpStream, Seat)) {
    let taken = Rc::new(Cell::new(0));
    loop {
        match listener.accept().await {
            Ok((stream, _)) if taken.get() < CONNECTIONS_MAX => {
                taken.set(taken.get() + 1);
                // Orders are small and urgent.
                let _ = stream.set_nodelay(true);
                // A gate that vanished without a word gives its seat back.
                let _ = socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive());
                welcome(stream, Seat(taken.clone()));
            }
            Ok(_) => tracing::warn!(limit = CONNECTIONS_MAX, "a connection was turned away: there are too many"),
            Err(error) => {
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new().with_time(Duration::from_secs(20)).with_interval(Duration::from_secs(5)).with_retries(4)
}
