//! The RESP door: `CL.THROTTLE` and `THROTTLE` for Redis clients.
//!
//! `CL.THROTTLE` has the arguments and replies of redis-cell; its limits come with each call. `THROTTLE` with the name
//! of a rule uses that rule. The commands of a pipeline are executed in order, and their replies are sent together.

mod commands;
mod session;
mod throttle;

use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tollgate_wire::resp::{COMMAND_BYTES_MAX, Command, Replies};

use super::connections::Usage;
use super::metrics::Count;
use super::station::Station;
use session::{Next, RespSession};

/// Minimum size of a read, in bytes.
const READ_BYTES: usize = 4 << 10;
/// Maximum size of unsent replies, in bytes. Beyond it, no command is read until the client has read replies.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// Timeout for a client to read its replies.
const WRITE_MAX: Duration = Duration::from_secs(30);
/// Timeout of an idle connection. Clients keep connections in pools.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// Timeout for the rest of a command.
const COMMAND_MAX: Duration = Duration::from_secs(10);

/// Serves one connection until it ends.
pub(super) async fn converse(
    mut stream: TcpStream,
    station: Rc<Station>,
    usage: Rc<Usage>,
    mut drains: watch::Receiver<bool>,
) {
    let mut session = RespSession::new(station.clone());
    let mut buffer = CommandBuffer::default();
    loop {
        let patience = if buffer.bytes.is_empty() { IDLE_MAX } else { COMMAND_MAX };
        let read = tokio::select! {
            read = tokio::time::timeout(patience, buffer.read(&mut stream)) => read,
            _ = drains.wait_for(|is_draining| *is_draining) => return,
        };
        if !matches!(read, Ok(Ok(1..))) {
            return;
        }
        usage.set_serving(true);
        let goes_on = answer_all(&mut stream, &mut session, &mut buffer, &usage).await;
        usage.set_serving(false);
        if !goes_on.unwrap_or(false) {
            return;
        }
    }
}

/// Replies to the complete commands in the buffer. Returns whether the connection stays open.
async fn answer_all(
    stream: &mut TcpStream,
    session: &mut RespSession,
    buffer: &mut CommandBuffer,
    usage: &Usage,
) -> io::Result<bool> {
    let (mut out, mut command, mut at) = (Vec::new(), Command::default(), 0);
    let goes_on = loop {
        let bytes = &buffer.bytes[at..];
        match command.read(bytes) {
            Ok(None) => break true,
            Ok(Some(length)) => {
                let next = session.answer(&command, bytes, &mut out).await;
                at += length;
                if session.is_let_in() {
                    usage.is_of_use();
                }
                if next == Next::Close {
                    break false;
                }
            }
            Err(error) => {
                session.station().count(Count::Malformed);
                Replies::new(&mut out, session.version()).error(&format!("ERR Protocol error: {error}"));
                break false;
            }
        }
        if out.len() >= REPLY_BYTES_MAX {
            send(stream, &mut out).await?;
        }
    };
    buffer.consume(at);
    send(stream, &mut out).await?;
    Ok(goes_on)
}

async fn send(stream: &mut TcpStream, out: &mut Vec<u8>) -> io::Result<()> {
    let sent = tokio::time::timeout(WRITE_MAX, stream.write_all(out)).await;
    out.clear();
    sent.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Received bytes that are not processed yet.
#[derive(Default)]
struct CommandBuffer {
    bytes: Vec<u8>,
}

impl CommandBuffer {
    /// Reads more bytes. The buffer never exceeds one command and the bytes that arrived with its end.
    async fn read(&mut self, stream: &mut TcpStream) -> io::Result<usize> {
        let room = self.bytes.len().clamp(READ_BYTES, COMMAND_BYTES_MAX);
        self.bytes.reserve(room);
        stream.read_buf(&mut self.bytes).await
    }

    fn consume(&mut self, count: usize) {
        self.bytes.drain(..count);
        if self.bytes.is_empty() && self.bytes.capacity() > 4 * READ_BYTES {
            self.bytes = Vec::new();
        }
    }
}
