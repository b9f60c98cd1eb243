//! The connection on which a master says whom to delay.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, sleep, timeout};
use tollgate_wire::smockron;
use tollgate_wire::zmtp::{Connection, Event, SocketKind};

use super::connect::{NoConnection, PING_EVERY, Pauses, SILENCE_MAX, connect};
use super::desk::Desk;
use super::figures::MasterFigures;

/// How much is read at once.
const READ_BYTES: usize = 64 * 1024;

/// Listens to the master, again and again.
pub(super) async fn run(desk: Rc<Desk>, place: usize) {
    let master = &desk.masters[place];
    let mut pauses = Pauses::default();
    loop {
        match connect(&master.settings.control, SocketKind::Sub, master.identity.as_ref()).await {
            Ok((stream, connection)) => {
                MasterFigures::count(&master.figures.connections);
                master.figures.control_up.store(true, Relaxed);
                pauses.reset();
                if listen(stream, connection, &desk, place).await.is_err() {
                    MasterFigures::count(&master.figures.failures);
                }
                master.figures.control_up.store(false, Relaxed);
                master.lose_sight();
            }
            Err(_) => MasterFigures::count(&master.figures.failures),
        }
        sleep(pauses.next()).await;
    }
}

/// Until the master leaves, falls silent, or says something that is not ZMTP.
async fn listen(
    mut stream: TcpStream,
    mut connection: Connection,
    desk: &Desk,
    place: usize,
) -> Result<(), NoConnection> {
    let master = &desk.masters[place];
    connection.subscribe(&smockron::tollgate_topic(&[]));
    for linked in &master.settings.rules {
        connection.subscribe(&smockron::tollgate_topic(linked.domain.as_bytes()));
        connection.subscribe(&smockron::topic(linked.domain.as_bytes()));
    }
    let mut hears_originals = true;
    let mut pings = interval(PING_EVERY);
    let mut heard = Instant::now();
    loop {
        while let Some(event) = connection.poll().map_err(|fault| NoConnection::Wrong(fault.as_str()))? {
            if let Event::Message(frames) = event {
                desk.hear(place, frames.bodies());
            }
        }
        if hears_originals && master.is_own() {
            // It says the same on its own clock.
            hears_originals = false;
            master
                .settings
                .rules
                .iter()
                .for_each(|linked| connection.cancel(&smockron::topic(linked.domain.as_bytes())));
        }
        let output = core::mem::take(connection.output());
        let written = timeout(PING_EVERY, stream.write_all(&output)).await;
        written.map_err(|_| NoConnection::Wrong("unread"))?.map_err(NoConnection::Away)?;
        let input = connection.input();
        input.reserve(READ_BYTES);
        tokio::select! {
            read = stream.read_buf(input) => match read.map_err(NoConnection::Away)? {
                0 => return Ok(()),
                _ => heard = Instant::now(),
            },
            _ = pings.tick() => {
                if connection.ping() && heard.elapsed() > SILENCE_MAX {
                    return Ok(());
                }
            }
        }
    }
}
