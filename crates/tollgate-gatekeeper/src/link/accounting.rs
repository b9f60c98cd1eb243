//! The connection on which a master hears what was let through.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, sleep};
use tollgate_wire::zmtp::{Connection, Event, SocketKind};

use super::connect::{NoConnection, PING_EVERY, Pauses, SILENCE_MAX, connect};
use super::desk::{Desk, Master};
use super::figures::MasterFigures;

/// How many topics a master may ask for, and how long one may be. Masters ask for everything.
const TOPICS_MAX: usize = 256;
const TOPIC_BYTES_MAX: usize = 512;

/// Reports to the master, again and again.
pub(super) async fn run(desk: Rc<Desk>, place: usize) {
    let master = &desk.masters[place];
    let mut pauses = Pauses::default();
    loop {
        match connect(&master.settings.accounting, SocketKind::Pub, master.identity.as_ref()).await {
            Ok((stream, connection)) => {
                MasterFigures::count(&master.figures.connections);
                master.figures.accounting_up.store(true, Relaxed);
                pauses.reset();
                if report(stream, connection, &desk, master).await.is_err() {
                    MasterFigures::count(&master.figures.failures);
                }
                master.figures.accounting_up.store(false, Relaxed);
                // What was not sent is not kept for who comes next.
                master.outbox.borrow_mut().clear();
            }
            Err(_) => MasterFigures::count(&master.figures.failures),
        }
        sleep(pauses.next()).await;
    }
}

/// Until the master leaves, falls silent, or says something that is not ZMTP.
async fn report(
    mut stream: TcpStream,
    mut connection: Connection,
    desk: &Desk,
    master: &Master,
) -> Result<(), NoConnection> {
    let (mut reader, mut writer) = stream.split();
    let mut sending: Vec<u8> = Vec::new();
    let mut sent = 0;
    let mut pings = interval(PING_EVERY);
    let mut heard = Instant::now();
    loop {
        while let Some(event) = connection.poll().map_err(|fault| NoConnection::Wrong(fault.as_str()))? {
            note(event, master)?;
        }
        if sent == sending.len() {
            sending.clear();
            sent = 0;
            let posted = &mut master.outbox.borrow_mut().bytes;
            if !posted.is_empty() {
                connection.send(posted);
                posted.clear();
                desk.room_again();
            }
            core::mem::swap(&mut sending, connection.output());
        }
        tokio::select! {
            written = writer.write(&sending[sent..]), if sent < sending.len() => match written.map_err(NoConnection::Away)? {
                0 => return Ok(()),
                count => sent += count,
            },
            read = reader.read_buf(connection.input()) => match read.map_err(NoConnection::Away)? {
                0 => return Ok(()),
                _ => heard = Instant::now(),
            },
            () = master.posted.notified(), if sent == sending.len() => {}
            _ = pings.tick() => {
                if connection.ping() && heard.elapsed() > SILENCE_MAX {
                    return Ok(());
                }
            }
        }
    }
}

/// Remembers what the master wants to hear.
fn note(event: Event<'_>, master: &Master) -> Result<(), NoConnection> {
    let topics = &mut master.outbox.borrow_mut().topics;
    match event {
        // One more master behind a proxy.
        Event::Subscribe(topic) if topics.iter().any(|known| **known == *topic) => {}
        Event::Subscribe(topic) if topic.len() > TOPIC_BYTES_MAX || topics.len() >= TOPICS_MAX => {
            return Err(NoConnection::Wrong("topics"));
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
