//! The accounting address: gates report admitted requests here.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate_wire::zmtp::{Connection, Event, SocketKind, ZmtpError};

use super::Shared;
use super::listener::{self, ConnectionSlot, GateAccess};

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// The timeout of a handshake.
pub(super) const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

pub(super) async fn serve(listener: TcpListener, state: Shared, access: GateAccess) {
    listener::accept(listener, |stream, peer, slot| match access.begin(SocketKind::Sub, peer) {
        Ok(connection) => drop(tokio::task::spawn_local(read_reports(stream, connection, slot, state.clone()))),
        Err(fault) => state.borrow_mut().note_fault(fault),
    })
    .await;
}

async fn read_reports(mut stream: TcpStream, mut connection: Connection, _seat: ConnectionSlot, state: Shared) {
    let introduced = tokio::time::timeout(HANDSHAKE_MAX, introduce(&mut stream, &mut connection)).await;
    if let Err(fault) = introduced.unwrap_or(Err("handshake")) {
        return state.borrow_mut().note_fault(fault);
    }
    loop {
        let output = std::mem::take(connection.output());
        if !output.is_empty() && stream.write_all(&output).await.is_err() {
            return;
        }
        match take_in(&mut connection, &state) {
            Ok(()) => {}
            Err(fault) => return state.borrow_mut().note_fault(fault.as_str()),
        }
        let input = connection.input();
        input.reserve(READ_BYTES);
        match stream.read_buf(input).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// Exchanges greetings and subscribes to all topics.
async fn introduce(stream: &mut TcpStream, connection: &mut Connection) -> Result<(), &'static str> {
    let left = |_: io::Error| "handshake";
    loop {
        let is_ready = connection.poll().map_err(ZmtpError::as_str)?.is_some();
        let output = std::mem::take(connection.output());
        stream.write_all(&output).await.map_err(left)?;
        if is_ready {
            connection.subscribe(b"");
            return Ok(());
        }
        if stream.read_buf(connection.input()).await.map_err(left)? == 0 {
            return Err("handshake");
        }
    }
}

/// Applies all received reports to the state at once, and sends the resulting orders.
fn take_in(connection: &mut Connection, state: &Shared) -> Result<(), ZmtpError> {
    let mut state = state.borrow_mut();
    let reading = state.read_clock();
    while let Some(event) = connection.poll()? {
        if let Event::Message(frames) = event {
            state.take_in(frames.bodies(), reading);
        }
    }
    state.announce();
    Ok(())
}
