//! The control connection, on which a master sends its orders.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, interval, sleep, timeout};
use tollgate_wire::smockron;
use tollgate_wire::zmtp::{Connection, Event, SocketKind};

use super::connect::{Backoff, ConnectError, PING_EVERY, SILENCE_MAX, connect};
use super::dispatcher::Dispatcher;
use super::master_metrics::MasterMetrics;

/// The size of a read in bytes.
const READ_BYTES: usize = 64 * 1024;

/// Listens to a master, reconnecting forever.
pub(super) async fn run(dispatcher: Rc<Dispatcher>, place: usize) {
    let master = &dispatcher.masters[place];
    let mut backoff = Backoff::default();
    loop {
        match connect(&master.settings.control, SocketKind::Sub, master.identity.as_ref()).await {
            Ok((stream, connection)) => {
                MasterMetrics::count(&master.metrics.connections);
                master.metrics.control_up.store(true, Relaxed);
                dispatcher.handle_connect(place);
                backoff.reset();
                if listen(stream, connection, &dispatcher, place).await.is_err() {
                    MasterMetrics::count(&master.metrics.failures);
                }
                master.metrics.control_up.store(false, Relaxed);
                master.handle_disconnect();
            }
            Err(_) => MasterMetrics::count(&master.metrics.failures),
        }
        sleep(backoff.next()).await;
    }
}

/// Runs until the master disconnects, is silent, or violates ZMTP.
async fn listen(
    mut stream: TcpStream,
    mut connection: Connection,
    dispatcher: &Dispatcher,
    place: usize,
) -> Result<(), ConnectError> {
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
        while let Some(event) = connection.poll().map_err(|fault| ConnectError::Protocol(fault.as_str()))? {
            if let Event::Message(frames) = event {
                dispatcher.handle_message(place, frames.bodies());
            }
        }
        if has_original_topics && master.is_tollgate_master() {
            // The master sends the same orders on its own clock.
            has_original_topics = false;
            master
                .settings
                .rules
                .iter()
                .for_each(|linked| connection.cancel(&smockron::topic(linked.domain.as_bytes())));
        }
        let output = core::mem::take(connection.output());
        let written = timeout(PING_EVERY, stream.write_all(&output)).await;
        written.map_err(|_| ConnectError::Protocol("unread"))?.map_err(ConnectError::Unreachable)?;
        let input = connection.input();
        input.reserve(READ_BYTES);
        tokio::select! {
            read = stream.read_buf(input) => match read.map_err(ConnectError::Unreachable)? {
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
