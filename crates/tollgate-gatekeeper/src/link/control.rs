//! The control connection of the link, on which a master sends its orders. This side subscribes (a ZeroMQ SUB socket).

use std::io;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, timeout};
use tollgate_wire::smockron;
use tollgate_wire::zmtp::{Connection, Event, SocketKind};

use super::connect::{PING_EVERY, SILENCE_MAX, serve_forever, violation};
use super::dispatcher::Dispatcher;

/// The size of a read in bytes.
const READ_BYTES: usize = 64 * 1024;

/// Receives the orders of a master, reconnecting forever. `place` is the index of the master.
pub(super) async fn run(dispatcher: Rc<Dispatcher>, place: usize) {
    let master = &dispatcher.masters[place];
    let (control, is_up) = ((&master.settings.control, SocketKind::Sub), &master.metrics.control_up);
    serve_forever(master, control, is_up, async |stream, connection| {
        dispatcher.handle_connect(place);
        let ended = listen(stream, connection, &dispatcher, place).await;
        master.handle_disconnect();
        ended
    })
    .await;
}

/// Receives orders until the master disconnects, is silent, or violates ZMTP.
async fn listen(
    mut stream: TcpStream,
    mut connection: Connection,
    dispatcher: &Dispatcher,
    place: usize,
) -> io::Result<()> {
    let master = &dispatcher.masters[place];
    connection.subscribe(&smockron::tollgate_topic(&[]));
    for linked in &master.settings.rules {
        connection.subscribe(&smockron::tollgate_topic(linked.domain.as_bytes()));
        connection.subscribe(&smockron::topic(linked.domain.as_bytes()));
    }
    let mut has_original_topics = true;
    let mut pings = interval(PING_EVERY);
    let mut heard_at = Instant::now();
    loop {
        while let Some(event) = connection.poll().map_err(violation)? {
            if let Event::Message(frames) = event {
                dispatcher.handle_message(place, frames.bodies());
            }
        }
        if has_original_topics && master.is_tollgate_master() {
            // A Tollgate master sends the same orders on the other topics, with times on its own clock.
            has_original_topics = false;
            for linked in &master.settings.rules {
                connection.cancel(&smockron::topic(linked.domain.as_bytes()));
            }
        }
        let output = core::mem::take(connection.output());
        timeout(PING_EVERY, stream.write_all(&output)).await??;
        let input = connection.input();
        input.reserve(READ_BYTES);
        tokio::select! {
            read = stream.read_buf(input) => match read? {
                0 => return Ok(()),
                _ => heard_at = Instant::now(),
            },
            _ = pings.tick() => {
                if connection.ping() && heard_at.elapsed() > SILENCE_MAX {
                    return Ok(());
                }
            }
        }
    }
}
