//! The RESP door: `CL.THROTTLE` and `THROTTLE` for Redis clients, in the protocol of Redis (RESP).
//!
//! `CL.THROTTLE` has the arguments and replies of redis-cell, a module of Redis; its limits come with each call.
//! `THROTTLE` with the name of a rule uses that rule, and with the arguments of `CL.THROTTLE` it is the same command.
//! The other commands are those that client libraries send, such as `HELLO` and `PING`. The commands of a pipeline are
//! executed in order, and about 64 KiB of their replies are sent together.

mod commands;
mod session;
mod throttle;

use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_wire::resp::{Command, Replies};

use super::buffer::{InputBuffer, send, shut_down};
use super::connections::Usage;
use super::metrics::Count;
use super::station::Station;
use super::thread::DoorPeer;
use session::{AfterCommand, RespSession};

/// Size of unsent replies, in bytes, from which they are sent before the next command is executed. A client that reads
/// no replies therefore cannot fill the memory.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// Timeout of an idle connection. Clients keep connections in pools.
const IDLE_MAX: Duration = Duration::from_secs(600);
/// Timeout for the rest of a command whose first bytes have arrived.
const COMMAND_MAX: Duration = Duration::from_secs(10);

/// Serves one connection until the client closes it, a timeout passes, or the process drains.
pub(super) async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: DoorPeer,
    station: Rc<Station>,
    usage: Rc<Usage>,
    mut drains: watch::Receiver<bool>,
) {
    let mut session = RespSession::new(station.clone(), peer.has_certificate);
    let (mut buffer, mut replies) = (InputBuffer::default(), SessionBuffers::default());
    let mut drained = pin!(drains.wait_for(|is_draining| *is_draining));
    // The time by which the next command must be complete. The timer may end earlier: setting it for each command would
    // cost as much as the decision.
    let mut deadline = Instant::now() + IDLE_MAX;
    let mut timer = pin!(tokio::time::sleep_until(deadline));
    loop {
        let was_empty = buffer.bytes().is_empty();
        let read = tokio::select! {
            biased;
            _ = &mut drained => return,
            read = buffer.read(&mut stream) => read,
            () = &mut timer => {
                if Instant::now() >= deadline {
                    return;
                }
                timer.as_mut().reset(deadline);
                continue;
            }
        };
        if !matches!(read, Ok(1..)) {
            return;
        }
        let answered = answer_all(&mut stream, &mut session, &mut buffer, &mut replies, &usage).await;
        let now = usage.used_at.get();
        match answered {
            Ok(Answered::All) => deadline = now + IDLE_MAX,
            // A client that sends single bytes does not extend the time for its command.
            Ok(Answered::Begun { after_another }) if after_another || was_empty => {
                deadline = now + COMMAND_MAX;
                timer.as_mut().reset(deadline);
            }
            Ok(Answered::Begun { .. }) => {}
            Ok(Answered::Closes) => return shut_down(&mut stream).await,
            Err(_) => return,
        }
    }
}

/// The state of a connection after the replies to all complete commands.
enum Answered {
    /// The buffer is empty.
    All,
    /// The buffer has the beginning of a command.
    Begun {
        /// Whether a command before it was complete.
        after_another: bool,
    },
    /// The connection closes.
    Closes,
}

/// Replies to the complete commands in the buffer.
async fn answer_all(
    stream: &mut (impl AsyncWrite + Unpin),
    session: &mut RespSession,
    buffer: &mut InputBuffer,
    SessionBuffers { command, out }: &mut SessionBuffers,
    usage: &Usage,
) -> io::Result<Answered> {
    usage.set_serving(true);
    let mut at = 0;
    let stays_open = loop {
        let bytes = &buffer.bytes()[at..];
        match command.read(bytes) {
            Ok(None) => break true,
            Ok(Some(length)) => {
                let after = session.answer(command, bytes, out).await;
                at += length;
                if after == AfterCommand::Close {
                    break false;
                }
            }
            Err(error) => {
                session.station.count(Count::Malformed);
                Replies::new(out, session.version).error(&format!("ERR Protocol error: {error}"));
                break false;
            }
        }
        if out.len() >= REPLY_BYTES_MAX {
            usage.set_serving(false);
            send(stream, out).await?;
            usage.set_serving(true);
        }
    };
    buffer.consume(at);
    if at > 0 && session.is_authorized() {
        // At the maximum number of connections, those that are not useful are closed first.
        usage.is_useful.set(true);
    }
    // From here on the connection can be closed for another one, because the client may read no replies. `send` gives
    // up after 30 s.
    usage.set_serving(false);
    send(stream, out).await?;
    Ok(match stays_open {
        false => Answered::Closes,
        true if buffer.bytes().is_empty() => Answered::All,
        true => Answered::Begun { after_another: at > 0 },
    })
}

/// The parsed command and the unsent replies of a connection. Their memory is kept between reads.
#[derive(Default)]
struct SessionBuffers {
    command: Command,
    out: Vec<u8>,
}
