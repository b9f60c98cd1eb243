//! The accounting connection of the link to a master, on which reports are sent. This side publishes (a ZeroMQ PUB
//! socket). The topic of a report starts with the name of its domain, so the master subscribes to the domains that it
//! wants.

use std::io;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval};
use tollgate_wire::zmtp::{Connection, Event, SocketKind};

use super::connect::{PING_EVERY, SILENCE_MAX, serve_forever, violation};
use super::dispatcher::{Dispatcher, Master};

/// The maximum number of topics that a master may subscribe to, which bounds the memory. A master usually has one: the
/// empty topic, which matches everything.
const TOPICS_MAX: usize = 256;
/// The maximum length of a topic, in bytes.
const TOPIC_BYTES_MAX: usize = 512;

/// Sends reports to a master, reconnecting forever. `place` is the index of the master.
pub(super) async fn run(dispatcher: Rc<Dispatcher>, place: usize) {
    let master = &dispatcher.masters[place];
    let (endpoint, is_up) = ((&master.settings.accounting, SocketKind::Pub), &master.metrics.accounting_up);
    serve_forever(master, endpoint, is_up, async |stream, connection| {
        let ended = report(stream, connection, &dispatcher, master).await;
        // Neither subscriptions nor unsent reports are kept for the next connection.
        master.outbox.borrow_mut().clear();
        ended
    })
    .await;
}

/// Sends the outbox until the master disconnects, is silent, violates ZMTP, or subscribes to too many or too long
/// topics.
async fn report(
    mut stream: TcpStream,
    mut connection: Connection,
    dispatcher: &Dispatcher,
    master: &Master,
) -> io::Result<()> {
    let (mut reader, mut writer) = stream.split();
    // Encoded frames, and the number of their bytes that are written.
    let mut sending: Vec<u8> = Vec::new();
    let mut sent = 0;
    let mut pings = interval(PING_EVERY);
    let mut heard_at = Instant::now();
    loop {
        while let Some(event) = connection.poll().map_err(violation)? {
            note(event, master)?;
        }
        // Reports stay in the outbox, whose size is bounded, until the connection has written the previous ones.
        if sent == sending.len() {
            sending.clear();
            sent = 0;
            let posted = &mut master.outbox.borrow_mut().bytes;
            if !posted.is_empty() {
                connection.send(posted);
                posted.clear();
                // The outbox has room again.
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
                // A peer whose version does not answer pings may be silent.
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
        // A ZeroMQ proxy with `ZMQ_XPUB_VERBOSE` repeats the topic for each master behind it. It cancels the topic
        // once, when the last of them has.
        Event::Subscribe(topic) if topics.iter().any(|known| **known == *topic) => {}
        Event::Subscribe(topic) if topic.len() > TOPIC_BYTES_MAX || topics.len() >= TOPICS_MAX => {
            return Err(io::Error::other("too many topics, or too long ones"));
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
