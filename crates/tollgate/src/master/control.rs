//! The control address of the master, over ZeroMQ's protocol: gates subscribe here to topics, and receive the orders of
//! these topics. A topic is a prefix of the first part of a message, which names the domain.

use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_wire::zmtp::{Connection, Event};

use super::Shared;
use super::accounting::HANDSHAKE_MAX;
use super::listener::ConnectionSlot;
use super::state::Subscriber;

/// The maximum length of a topic, in bytes.
const TOPIC_BYTES_MAX: usize = 512;
/// The maximum number of topics of one subscriber.
const TOPICS_MAX: usize = 256;

/// Adds the gate of a new connection to the subscribers, and serves it until the connection ends.
pub(super) async fn send_orders(stream: TcpStream, connection: Connection, _slot: ConnectionSlot, state: Shared) {
    let subscriber = Rc::new(Subscriber::default());
    state.borrow_mut().subscribers.push(subscriber.clone());
    let outcome = serve_subscriber(stream, connection, &subscriber, &state).await;
    let mut state = state.borrow_mut();
    state.subscribers.retain(|other| !Rc::ptr_eq(other, &subscriber));
    if let Err(fault) = outcome {
        state.counts.fault(fault);
    }
}

/// Serves a subscriber until it disconnects or sends an invalid message.
async fn serve_subscriber(
    mut stream: TcpStream,
    mut connection: Connection,
    subscriber: &Subscriber,
    state: &Shared,
) -> Result<(), &'static str> {
    let introduction = tokio::time::sleep(HANDSHAKE_MAX);
    tokio::pin!(introduction);
    let (mut reader, mut writer) = stream.split();
    // The bytes being written, and how many of them are written.
    let mut sending = Vec::new();
    let mut sent = 0;
    loop {
        while let Some(event) = connection.poll().map_err(|fault| fault.as_str())? {
            match event {
                Event::Subscribe(topic) if topic.len() > TOPIC_BYTES_MAX => return Err("topic"),
                Event::Subscribe(topic) => subscriber.subscribe(topic, TOPICS_MAX).then_some(()).ok_or("topics")?,
                Event::Cancel(topic) => subscriber.cancel(topic),
                Event::Ready | Event::Message(_) => {}
            }
        }
        if sent == sending.len() {
            sending.clear();
            sent = 0;
            if connection.is_ready() {
                state.borrow().catch_up(subscriber);
                subscriber.take_into(&mut connection);
            }
            std::mem::swap(&mut sending, connection.output());
        }
        tokio::select! {
            written = writer.write(&sending[sent..]), if sent < sending.len() => match written {
                Ok(0) | Err(_) => return Ok(()),
                Ok(count) => sent += count,
            },
            read = reader.read_buf(connection.input()) => match read {
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            },
            () = subscriber.woken.notified(), if sent == sending.len() => {}
            () = &mut introduction, if !connection.is_ready() => return Err("handshake"),
        }
    }
}
