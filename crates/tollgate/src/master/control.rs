//! The control address: where gates are told whom to delay.

use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tollgate_wire::zmtp::{Connection, Event, Identity, SocketKind};

use super::Shared;
use super::accounting::HANDSHAKE_MAX;
use super::books::Subscriber;
use super::listener::{self, Seat};

/// The longest topic that somebody may subscribe to.
const TOPIC_BYTES_MAX: usize = 512;
/// How many topics one may subscribe to.
const TOPICS_MAX: usize = 256;

pub(super) async fn serve(listener: TcpListener, books: Shared, identity: Option<Identity>) {
    listener::accept(listener, |stream, seat| match listener::begin(SocketKind::Pub, identity.as_ref()) {
        Ok(connection) => drop(tokio::task::spawn_local(tell(stream, connection, seat, books.clone()))),
        Err(fault) => books.borrow_mut().note_fault(fault),
    })
    .await;
}

async fn tell(stream: TcpStream, connection: Connection, _seat: Seat, books: Shared) {
    let subscriber = Rc::new(Subscriber::default());
    books.borrow_mut().welcome(subscriber.clone());
    let outcome = converse(stream, connection, &subscriber, &books).await;
    let mut books = books.borrow_mut();
    books.part(&subscriber);
    if let Err(fault) = outcome {
        books.note_fault(fault);
    }
}

/// Until the peer leaves or says something that makes no sense.
async fn converse(
    mut stream: TcpStream,
    mut connection: Connection,
    subscriber: &Subscriber,
    books: &Shared,
) -> Result<(), &'static str> {
    let introduction = tokio::time::sleep(HANDSHAKE_MAX);
    tokio::pin!(introduction);
    let (mut reader, mut writer) = stream.split();
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
                books.borrow().catch_up(subscriber);
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
            () = subscriber.wait(), if sent == sending.len() => {}
            () = &mut introduction, if !connection.is_ready() => return Err("handshake"),
        }
    }
}
