//! From an accepted connection to the protocol it speaks.

use std::net::SocketAddr;
use std::rc::Rc;

use tokio::net::TcpStream;

use super::buffer::Buffer;
use super::h1;
use super::identify::Peer;
use super::socket::{Socket, Stream};
use super::worker::Worker;

/// Serves a connection to its end.
pub(crate) async fn serve(stream: TcpStream, address: SocketAddr, worker: Rc<Worker>) {
    let settings = worker.settings();
    let _guard = worker.count_connection();
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let peer = Peer::new(address.ip(), false, &settings);
    let per_address_max = (!peer.trusted).then_some(settings.bounds.connections_per_address_max);
    let Ok(_counted) = worker.shared.caps.count(peer.address, per_address_max) else {
        worker.tally.turned_away();
        return;
    };
    let socket = Socket::new(Stream::Plain(stream), worker.timers.timer());
    h1::serve(socket, Buffer::default(), &peer, &worker, &settings).await;
}
