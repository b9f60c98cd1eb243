//! Tunnels: after an upgrade, such as to a WebSocket, bytes are copied in both directions between a client and a
//! backend that speaks HTTP/1.1. A tunnel ends when both sides have closed, one of them fails, or neither sends
//! anything for `idle_max` (`timeouts.upgraded_idle`).

use std::cell::Cell;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use super::backend::BackendSlot;
use super::backend::h1::H1Connection;
use super::body::{PeerError, Piece, Rest, Sink, Source};
use crate::gate::net::buffer::ReadBuffer;
use crate::gate::net::socket::Socket;
use crate::gate::net::timer::Way;

/// The tunnel of a client's HTTP/1.1 connection. `client_bytes` were received from the client already, and are sent
/// first. `_slot` counts the tunnel as a request in flight at its backend.
pub(crate) async fn run(
    client: &Socket,
    mut client_bytes: ReadBuffer,
    backend: H1Connection,
    _slot: BackendSlot,
    idle_max: Duration,
) {
    let H1Connection { socket: backend, buffer: mut backend_bytes, .. } = backend;
    let moved = Cell::new(0u64);
    let there = copy(client, &mut client_bytes, &moved, idle_max, async |data| send(&backend, data, idle_max).await);
    let back = copy(&backend, &mut backend_bytes, &moved, idle_max, async |data| send(client, data, idle_max).await);
    both(there, back).await;
}

/// The tunnel of a stream of a client's HTTP/2 connection: `client` is the client's half of it, `reply` the gate's.
pub(crate) async fn run_stream(
    client: &mut impl Source,
    reply: &mut impl Sink,
    backend: H1Connection,
    _slot: BackendSlot,
    idle_max: Duration,
) {
    let H1Connection { socket: backend, mut buffer, .. } = backend;
    let moved = Cell::new(0u64);
    let there = async {
        loop {
            let before = moved.get();
            match client.next().await {
                Ok(Piece::Data(data, _)) => {
                    moved.set(moved.get() + 1);
                    send(&backend, Some(data), idle_max).await?;
                }
                Ok(Piece::End(_)) => return send(&backend, None, idle_max).await,
                Err(PeerError::Slow) if moved.get() != before => {}
                Err(broken) => return Err(broken),
            }
        }
    };
    let back = copy(&backend, &mut buffer, &moved, idle_max, async |data| match data {
        Some(data) => reply.send(data, Rest::ToCome).await,
        None => reply.end(None).await,
    });
    both(there, back).await;
}

/// Waits until both directions have ended; an error in one ends the other.
async fn both(there: impl Future<Output = Result<(), PeerError>>, back: impl Future<Output = Result<(), PeerError>>) {
    let (mut there, mut back) = (pin!(there), pin!(back));
    let (mut there_ended, mut back_ended) = (false, false);
    poll_fn(|cx| {
        if !there_ended && let Poll::Ready(copied) = there.as_mut().poll(cx) {
            there_ended = true;
            back_ended |= copied.is_err();
        }
        if !back_ended && let Poll::Ready(copied) = back.as_mut().poll(cx) {
            back_ended = true;
            there_ended |= copied.is_err();
        }
        if there_ended && back_ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Sends bytes to a connection; without bytes, closes it for writing.
async fn send(to: &Socket, data: Option<&[u8]>, idle_max: Duration) -> Result<(), PeerError> {
    match data {
        Some(data) => to.write_all(&mut [IoSlice::new(data)], idle_max).await?,
        None => {
            to.timer.set(Way::Out, idle_max);
            to.shutdown().await?;
        }
    }
    Ok(())
}

/// Copies bytes in one direction until they end. `moved` counts the pieces of both directions: a timeout counts only if
/// the other direction is idle too.
async fn copy(
    from: &Socket,
    buffer: &mut ReadBuffer,
    moved: &Cell<u64>,
    idle_max: Duration,
    mut send: impl AsyncFnMut(Option<&[u8]>) -> Result<(), PeerError>,
) -> Result<(), PeerError> {
    loop {
        if !buffer.is_empty() {
            send(Some(buffer.bytes())).await?;
            let length = buffer.bytes().len();
            buffer.consume(length);
        }
        let before = moved.get();
        from.timer.set(Way::In, idle_max);
        match from.read(buffer).await {
            Ok(0) => return send(None).await,
            Ok(_) => moved.set(moved.get() + 1),
            Err(error) if error.kind() == io::ErrorKind::TimedOut && moved.get() != before => {}
            Err(error) => return Err(error.into()),
        }
    }
}
