//! The accounting address of the master, over ZeroMQ's protocol: gates report requests here.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_wire::zmtp::{Connection, Event, ZmtpError};

use super::Shared;
use super::listener::ConnectionSlot;

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// The timeout of a handshake, at both addresses of the master.
pub(super) const HANDSHAKE_MAX: Duration = Duration::from_secs(5);

/// Reads the reports of a gate until it disconnects or sends an invalid message.
pub(super) async fn read_reports(
    mut stream: TcpStream,
    mut connection: Connection,
    _slot: ConnectionSlot,
    state: Shared,
) {
    let introduced = tokio::time::timeout(HANDSHAKE_MAX, introduce(&mut stream, &mut connection)).await;
    if let Err(fault) = introduced.unwrap_or(Err("handshake")) {
        return state.borrow_mut().counts.fault(fault);
    }
    loop {
        let output = std::mem::take(connection.output());
        if !output.is_empty() && stream.write_all(&output).await.is_err() {
            return;
        }
        if let Err(fault) = take_in(&mut connection, &state) {
            return state.borrow_mut().counts.fault(fault.as_str());
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
    let reading = state.clock.read();
    while let Some(event) = connection.poll()? {
        if let Event::Message(frames) = event {
            state.take_in(frames.bodies(), reading);
        }
    }
    state.announce();
    Ok(())
}
