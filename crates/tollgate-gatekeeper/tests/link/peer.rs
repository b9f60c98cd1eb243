//! One end of a connection, for tests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tollgate_core::fleet::{Command, Order, Stamp};
use tollgate_core::time::Moment;
use tollgate_wire::smockron;
use tollgate_wire::zmtp::{Connection, Event, SocketKind};

/// The timeout of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The two listeners of a master.
pub(crate) struct Master {
    pub(crate) accounting: TcpListener,
    pub(crate) control: TcpListener,
}

/// A connection from a link.
pub(crate) struct Talk {
    stream: TcpStream,
    connection: Connection,
    /// The subscriptions of the other side.
    pub(crate) topics: Vec<Vec<u8>>,
}

impl Master {
    pub(crate) fn open() -> Self {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        Self { accounting: listen(), control: listen() }
    }

    /// A master with small receive buffers.
    pub(crate) fn open_narrow() -> Self {
        let master = Self::open();
        socket2::SockRef::from(&master.accounting).set_recv_buffer_size(4096).unwrap();
        master
    }

    pub(crate) fn addresses(&self) -> [SocketAddr; 2] {
        [&self.accounting, &self.control].map(|listener| listener.local_addr().unwrap())
    }

    /// The same addresses after a restart.
    pub(crate) fn open_at([accounting, control]: [SocketAddr; 2]) -> Self {
        let listen = |address: SocketAddr| {
            let until = Instant::now() + PATIENCE;
            loop {
                match TcpListener::bind(address) {
                    Ok(listener) => return listener,
                    Err(error) => assert!(Instant::now() < until, "{address}: {error}"),
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        Self { accounting: listen(accounting), control: listen(control) }
    }

    /// Accepts the accounting connection and subscribes to everything.
    pub(crate) fn hear(&self) -> Talk {
        let mut talk = Talk::meet(self.accounting.accept().unwrap().0, SocketKind::Sub);
        talk.connection.subscribe(b"");
        talk.flush();
        talk
    }

    /// Accepts the control connection and waits until the link has subscribed to `topics` topics.
    pub(crate) fn speak(&self, topics: usize) -> Talk {
        let mut talk = Talk::meet(self.control.accept().unwrap().0, SocketKind::Pub);
        while talk.topics.len() < topics {
            talk.read();
        }
        talk
    }
}

impl Talk {
    fn meet(stream: TcpStream, kind: SocketKind) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut talk = Self { stream, connection: Connection::new(kind), topics: Vec::new() };
        while !talk.connection.is_ready() {
            talk.flush();
            talk.read();
        }
        talk.flush();
        talk
    }

    /// Reads once and returns the messages.
    fn read(&mut self) -> Vec<Vec<Vec<u8>>> {
        let mut chunk = [0; 4096];
        let count = self.stream.read(&mut chunk).unwrap();
        assert!(count > 0, "the link has left");
        self.connection.input().extend_from_slice(&chunk[..count]);
        self.events()
    }

    fn events(&mut self) -> Vec<Vec<Vec<u8>>> {
        let mut messages = Vec::new();
        while let Some(event) = self.connection.poll().unwrap() {
            match event {
                Event::Subscribe(topic) => self.topics.push(topic.to_vec()),
                Event::Cancel(topic) => {
                    let topic = topic.to_vec();
                    self.topics.retain(|known| *known != topic);
                }
                Event::Message(frames) => messages.push(frames.bodies().iter().map(|body| body.to_vec()).collect()),
                Event::Ready => {}
            }
        }
        messages
    }

    fn flush(&mut self) {
        let output = std::mem::take(self.connection.output());
        self.stream.write_all(&output).unwrap();
    }

    /// The next messages, once there are any.
    pub(crate) fn messages(&mut self) -> Vec<Vec<Vec<u8>>> {
        loop {
            let messages = self.read();
            self.flush();
            if !messages.is_empty() {
                return messages;
            }
        }
    }

    /// Whether only pings arrive for this long.
    pub(crate) fn is_quiet(&mut self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while let Some(rest) = until.checked_duration_since(Instant::now()) {
            self.stream.set_read_timeout(Some(rest.max(Duration::from_millis(1)))).unwrap();
            let mut chunk = [0; 4096];
            let Ok(count) = self.stream.read(&mut chunk) else { continue };
            self.connection.input().extend_from_slice(&chunk[..count]);
            if !self.events().is_empty() {
                return false;
            }
        }
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        true
    }

    pub(crate) fn say(&mut self, frames: &[&[u8]]) {
        let mut message = Vec::new();
        tollgate_wire::zmtp::frame::put_message(&mut message, frames);
        self.connection.send(&message);
        self.flush();
    }

    /// Sends beacons of a Tollgate master.
    pub(crate) fn beacon(&mut self, since: Instant) {
        let tick = Moment::from_nanos(since.elapsed().as_nanos() as u64);
        let command = Command::Beacon { stamp: Stamp { master: 7, tick } };
        let mut message = Vec::new();
        smockron::put_order(&mut message, &Order { domain: b"", identifier: b"", command });
        self.connection.send(&message);
        self.flush();
    }

    pub(crate) fn say_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }
}
