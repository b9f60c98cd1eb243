//! The accounting connection of the link, on which reports are sent to a master. This side publishes (a ZeroMQ PUB
//! socket), so the master subscribes to the domains that it wants.

use std::io;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval};
use tollgate_wire::zmtp::{Connection, Event, SocketKind};

use super::connect::{PING_EVERY, SILENCE_MAX, serve_forever, violation};
use super::dispatcher::{Dispatcher, Master};

/// The maximum number of topics that a master may subscribe to. Masters usually have one, which matches everything.
const TOPICS_MAX: usize = 256;
/// The maximum length of a topic in bytes.
const TOPIC_BYTES_MAX: usize = 512;

/// Reports to a master, reconnecting forever.
pub(super) async fn run(dispatcher: Rc<Dispatcher>, place: usize) {
    let master = &dispatcher.masters[place];
    let (accounting, is_up) = ((&master.settings.accounting, SocketKind::Pub), &master.metrics.accounting_up);
    serve_forever(master, accounting, is_up, async |stream, connection| {
        let ended = report(stream, connection, &dispatcher, master).await;
        // Unsent reports are not kept for the next connection.
        master.outbox.borrow_mut().clear();
        ended
    })
    .await;
}

/// Sends the outbox until the master disconnects, is silent, or violates ZMTP.
async fn report(
    mut stream: TcpStream,
    mut connection: Connection,
    dispatcher: &Dispatcher,
    master: &Master,
) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    let mut sending: Vec<u8> = Vec::new();
    let mut sent = 0;
    let mut pings = interval(PING_EVERY);
    let mut heard_at = Instant::now();
    loop {
        while let Some(event) = connection.poll().map_err(violation)? {
            note(event, master)?;
        }
        if sent == sending.len() {
            sending.clear();
            sent = 0;
            let posted = &mut master.outbox.borrow_mut().bytes;
            if !posted.is_empty() {
                connection.send(posted);
                posted.clear();
                dispatcher.wake.notify_one();
            }
            core::mem::swap(&mut sending, connection.output());
        }
        tokio::select! {
            written = writer.write(&sending[sent..]), if sent < sending.len() => match written? {
                0 => return Ok(()),
                count => sent += count,
            },
            read = reader.read_buf(connection.input()) => match read? {
                0 => return Ok(()),
                _ => heard_at = Instant::now(),
            },
            () = master.posted.notified(), if sent == sending.len() => {}
            _ = pings.tick() => {
                if connection.ping() && heard_at.elapsed() > SILENCE_MAX {
                    return Ok(());
                }
            }
        }
    }
}

/// Records the master's subscriptions.
fn note(event: Event<'_>, master: &Master) -> io::Result<()> {
    let topics = &mut master.outbox.borrow_mut().topics;
    match event {
        // Another master behind the same proxy.
        Event::Subscribe(topic) if topics.iter().any(|known| **known == *topic) => {}
        Event::Subscribe(topic) if topic.len() > TOPIC_BYTES_MAX || topics.len() >= TOPICS_MAX => {
            return Err(io::Error::other("topics"));
        }
        Event::Subscribe(topic) => topics.push(topic.into()),
        Event::Cancel(topic) => {
            if let Some(place) = topics.iter().position(|known| **known == *topic) {
                topics.swap_remove(place);
            }
        }
        Event::Ready | Event::Message(_) => {}
    }
    Ok(())
}
