//! Accepting connections, within a bound.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

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

/// Hands every connection to `welcome`, as long as there are seats; who comes when there are none is turned away.
pub(super) async fn accept(listener: TcpListener, welcome: impl Fn(TcpStream, Seat)) {
    let taken = Rc::new(Cell::new(0));
    loop {
        match listener.accept().await {
            Ok((stream, _)) if taken.get() < CONNECTIONS_MAX => {
                taken.set(taken.get() + 1);
                // Orders are small and urgent.
                let _ = stream.set_nodelay(true);
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
