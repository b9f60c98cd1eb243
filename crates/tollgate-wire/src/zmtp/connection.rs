//! One ZMTP connection of a PUB or SUB socket, without I/O. Gates and masters each have one per peer and socket.
//!
//! Both sides send a greeting, then handshake commands, then messages and commands. The caller appends received bytes
//! to [`Connection::input`], processes the events of [`Connection::poll`], and sends the bytes of
//! [`Connection::output`].

use core::ops::Range;

use super::curve::{Curve, Entropy, INNER_COMMAND, INNER_MORE, Identity};
use super::frame::{self, Frames};
use super::{MESSAGE_BYTES_MAX, ZmtpError};

/// The socket type of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// A publisher.
    Pub,
    /// A subscriber.
    Sub,
}

/// An event from the peer.
#[expect(
    clippy::large_enum_variant,
    reason = "an event lives for one iteration of a loop, and a box would be an allocation per message"
)]
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The handshake is complete: messages may be sent.
    Ready,
    /// The peer subscribes to messages whose first frame starts with this.
    Subscribe(&'a [u8]),
    /// The peer cancels a subscription.
    Cancel(&'a [u8]),
    /// A message.
    Message(Frames<'a>),
}

/// The state of a connection from its greeting on.
#[derive(Debug)]
pub struct Connection {
    kind: SocketKind,
    stage: ConnectionStage,
    /// Received bytes; those before `consumed` are processed.
    input: Vec<u8>,
    consumed: usize,
    output: Vec<u8>,
    /// The minor version of the peer's ZMTP 3: 0 has neither pings nor commands for subscriptions.
    peer_minor: u8,
    /// Encryption state of an authenticated connection.
    curve: Option<Box<Curve>>,
    /// The decrypted frames of the current message, encoded as plain frames.
    decrypted: Vec<u8>,
    /// Whether `decrypted` is a complete message that [`poll`](Self::poll) has returned, and can be cleared.
    is_message_returned: bool,
    /// Reused buffer for encryption.
    encrypted: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    /// The peer's greeting is incomplete. Next: `Handshake`.
    Greeting,
    /// The peer's handshake is incomplete. Next: `Traffic`.
    Handshake,
    /// Messages may be sent and received.
    Traffic,
}

const GREETING_BYTES: usize = 64;
const MAJOR: u8 = 3;
const MINOR: u8 = 1;
// Positions in a greeting: the last byte of the signature, the versions, the mechanism, and the flag of a CURVE server.
const SIGNATURE_END: usize = 9;
const MAJOR_AT: usize = 10;
const MINOR_AT: usize = 11;
const MECHANISM: Range<usize> = 12..32;
const AS_SERVER_AT: usize = 32;
/// The mechanism without authentication.
const NULL: [u8; 20] = *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// The mechanism of [`Curve`].
const CURVE: [u8; 20] = *b"CURVE\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

const READY: &[u8] = b"READY";
const ERROR: &[u8] = b"ERROR";
const SUBSCRIBE: &[u8] = b"SUBSCRIBE";
const CANCEL: &[u8] = b"CANCEL";
const PING: &[u8] = b"PING";
const PONG: &[u8] = b"PONG";
/// The length of a ping's time-to-live field, which is not part of the answer.
const PING_TTL_BYTES: usize = 2;
/// The maximum length of the text of a ping that is answered, in bytes.
const PING_TEXT_BYTES_MAX: usize = 16;
/// Pings are not answered while more output than this is unsent, in bytes, so that a peer that does not read cannot
/// grow the buffer.
const PONG_OUTPUT_MAX: usize = 4096;

impl SocketKind {
    fn socket_type(self) -> &'static [u8] {
        match self {
            Self::Pub => b"PUB",
            Self::Sub => b"SUB",
        }
    }

    /// Whether a peer with this socket type can be connected to this side.
    fn is_compatible(self, socket_type: &[u8]) -> bool {
        match self {
            Self::Pub => matches!(socket_type, b"SUB" | b"XSUB"),
            Self::Sub => matches!(socket_type, b"PUB" | b"XPUB"),
        }
    }
}

impl Connection {
    /// A new connection. Its greeting is already in [`output`](Self::output), because a peer may wait for it
    /// before it sends its own.
    pub fn new(kind: SocketKind) -> Self {
        Self::with_version(kind, MINOR, None)
    }

    /// An authenticated and encrypted connection. `entropy` must be used only once.
    pub fn secured(kind: SocketKind, identity: Identity, entropy: Entropy) -> Self {
        Self::with_version(kind, MINOR, Some(Box::new(Curve::new(identity, entropy))))
    }

    /// A connection that announces ZMTP 3.`minor`. Only tests use a minor version other than [`MINOR`].
    fn with_version(kind: SocketKind, minor: u8, curve: Option<Box<Curve>>) -> Self {
        let mut greeting = [0; GREETING_BYTES];
        greeting[0] = 0xff;
        greeting[SIGNATURE_END - 1] = 1;
        greeting[SIGNATURE_END] = 0x7f;
        greeting[MAJOR_AT] = MAJOR;
        greeting[MINOR_AT] = minor;
        greeting[MECHANISM].copy_from_slice(if curve.is_some() { &CURVE } else { &NULL });
        greeting[AS_SERVER_AT] = curve.as_ref().is_some_and(|curve| curve.is_server()).into();
        Self {
            kind,
            stage: ConnectionStage::Greeting,
            input: Vec::new(),
            consumed: 0,
            output: greeting.to_vec(),
            peer_minor: 0,
            curve,
            decrypted: Vec::new(),
            is_message_returned: false,
            encrypted: Vec::new(),
        }
    }

    /// The buffer for received bytes. The caller must [`poll`](Self::poll) until there is no event before it
    /// appends more; the buffer then never holds more than one incomplete message.
    pub fn input(&mut self) -> &mut Vec<u8> {
        self.input.drain(..self.consumed);
        self.consumed = 0;
        &mut self.input
    }

    /// The bytes to send. The caller removes the bytes that it has sent.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Whether messages may be sent.
    pub fn is_ready(&self) -> bool {
        self.stage == ConnectionStage::Traffic
    }

    /// The next event, if enough bytes have arrived. After an error the connection is unusable.
    pub fn poll(&mut self) -> Result<Option<Event<'_>>, ZmtpError> {
        if self.stage == ConnectionStage::Greeting && !self.greet()? {
            return Ok(None);
        }
        if self.stage == ConnectionStage::Handshake {
            return Ok(self.handshake()?.then_some(Event::Ready));
        }
        if self.curve.is_some() { self.poll_encrypted() } else { self.poll_plain() }
    }

    fn poll_plain(&mut self) -> Result<Option<Event<'_>>, ZmtpError> {
        while let Some(&flags) = self.input.get(self.consumed) {
            if flags & frame::COMMAND == 0 {
                let Some((frames, end)) = frame::message(&self.input, self.consumed)? else { return Ok(None) };
                self.consumed = end;
                return event(self.kind, frames).map(Some);
            }
            let Some(header) = frame::header(&self.input, self.consumed)? else { return Ok(None) };
            self.consumed = header.end;
            if let Some((is_new, topic)) = self.execute(header.start..header.end)? {
                return Ok(Some(subscription(is_new, &self.input[topic])));
            }
        }
        Ok(None)
    }

    fn poll_encrypted(&mut self) -> Result<Option<Event<'_>>, ZmtpError> {
        if core::mem::take(&mut self.is_message_returned) {
            self.decrypted.clear();
        }
        while let Some(header) = frame::header(&self.input, self.consumed)? {
            self.consumed = header.end;
            let curve = self.curve.as_mut().ok_or(ZmtpError::Frame)?;
            let (flags, at) = curve.open_message(&mut self.input[header.start..header.end])?;
            let inside = header.start + at..header.end;
            // The outer flags are not authenticated, so none may be set.
            if header.more || header.command || flags & !(INNER_MORE | INNER_COMMAND) != 0 {
                return Err(ZmtpError::Frame);
            }
            if flags & INNER_COMMAND != 0 {
                if let Some((is_new, topic)) = self.execute(inside)? {
                    return Ok(Some(subscription(is_new, &self.input[topic])));
                }
                continue;
            }
            frame::put(&mut self.decrypted, flags & INNER_MORE != 0, &self.input[inside]);
            if self.decrypted.len() > MESSAGE_BYTES_MAX {
                return Err(ZmtpError::TooLong);
            }
            if flags & INNER_MORE == 0 {
                self.is_message_returned = true;
                let (frames, _) = frame::message(&self.decrypted, 0)?.ok_or(ZmtpError::Frame)?;
                return event(self.kind, frames).map(Some);
            }
        }
        Ok(None)
    }

    /// Executes a command. Returns whether it is a subscription or a cancellation and the position of its topic, if it
    /// is one of them.
    fn execute(&mut self, body: Range<usize>) -> Result<Option<(bool, Range<usize>)>, ZmtpError> {
        let (name, data) = command(&self.input[body.clone()])?;
        let data = body.start + data..body.end;
        Ok(match name {
            SUBSCRIBE if self.kind == SocketKind::Pub => Some((true, data)),
            CANCEL if self.kind == SocketKind::Pub => Some((false, data)),
            PING => {
                self.answer_ping(data);
                None
            }
            // Later protocol versions may have further commands.
            _ => None,
        })
    }

    /// Subscribes to messages whose first frame starts with `topic`, in the form of the peer's version.
    pub fn subscribe(&mut self, topic: &[u8]) {
        self.change_subscription(1, SUBSCRIBE, topic);
    }

    /// Cancels the subscription to `topic`.
    pub fn cancel(&mut self, topic: &[u8]) {
        self.change_subscription(0, CANCEL, topic);
    }

    /// Sends a message that begins with `flag` to a peer of version 3.0, a command to a later one.
    fn change_subscription(&mut self, flag: u8, name: &[u8], topic: &[u8]) {
        match self.peer_minor {
            0 => self.put(false, &[&[flag], topic].concat()),
            _ => self.put_command(name, topic),
        }
    }

    /// Sends a ping if the peer's version can answer it. Returns whether it can.
    pub fn ping(&mut self) -> bool {
        let can_answer = self.peer_minor > 0 && self.is_ready();
        if can_answer {
            self.put_command(PING, &[0; PING_TTL_BYTES]);
        }
        can_answer
    }

    /// Sends messages that were encoded as plain frames, such as with [`frame::put_message`].
    pub fn send(&mut self, messages: &[u8]) {
        if self.curve.is_none() {
            return self.output.extend_from_slice(messages);
        }
        let mut at = 0;
        while let Ok(Some(header)) = frame::header(messages, at) {
            self.put(header.more, &messages[header.start..header.end]);
            at = header.end;
        }
    }

    /// Whether messages are sent unencrypted. Encoded messages are then the bytes to send: a caller may move them to
    /// [`output`](Self::output) instead of copying them with [`send`](Self::send).
    pub fn is_plain(&self) -> bool {
        self.curve.is_none()
    }

    fn put(&mut self, more: bool, body: &[u8]) {
        match &self.curve {
            None => frame::put(&mut self.output, more, body),
            Some(_) => self.put_encrypted(if more { INNER_MORE } else { 0 }, body),
        }
    }

    fn put_command(&mut self, name: &[u8], data: &[u8]) {
        match &self.curve {
            None => frame::put_command(&mut self.output, name, data),
            Some(_) => self.put_encrypted(INNER_COMMAND, &[&[name.len() as u8], name, data].concat()),
        }
    }

    fn put_encrypted(&mut self, flags: u8, body: &[u8]) {
        let Some(curve) = &mut self.curve else { return };
        self.encrypted.clear();
        curve.put_message(&mut self.encrypted, flags, body);
        frame::put(&mut self.output, false, &self.encrypted);
    }

    /// Checks the received part of the peer's greeting. When it is complete, starts the handshake and returns true.
    fn greet(&mut self) -> Result<bool, ZmtpError> {
        let greeting = &self.input[self.consumed..];
        let is = |at: usize, expected: u8| greeting.get(at).is_none_or(|&byte| byte == expected);
        let major_is_known = greeting.get(MAJOR_AT).is_none_or(|&major| major >= MAJOR);
        if !is(0, 0xff) || !is(SIGNATURE_END, 0x7f) || !major_is_known {
            return Err(ZmtpError::Greeting);
        }
        if greeting.len() < GREETING_BYTES {
            return Ok(false);
        }
        // The peer's as-server flag is ignored, because libzmq's servers do not set it.
        if greeting[MECHANISM] != if self.curve.is_some() { CURVE } else { NULL } {
            return Err(ZmtpError::Mechanism);
        }
        self.peer_minor = if greeting[MAJOR_AT] == MAJOR { greeting[MINOR_AT] } else { MINOR };
        self.consumed += GREETING_BYTES;
        let first = match &mut self.curve {
            None => Some((READY, self.metadata())),
            Some(curve) => curve.begin(),
        };
        if let Some((name, data)) = first {
            frame::put_command(&mut self.output, name, &data);
        }
        self.stage = ConnectionStage::Handshake;
        Ok(true)
    }

    /// The metadata of this side for the handshake: its socket type.
    fn metadata(&self) -> Vec<u8> {
        put_property(b"Socket-Type", self.kind.socket_type())
    }

    /// Processes the received part of the handshake. Returns whether it is complete.
    fn handshake(&mut self) -> Result<bool, ZmtpError> {
        let metadata = self.metadata();
        while let Some(header) = frame::header(&self.input, self.consumed)? {
            self.consumed = header.end;
            if !header.command {
                return Err(ZmtpError::Handshake);
            }
            let body = &self.input[header.start..header.end];
            let (name, data) = command(body)?;
            let theirs = match (name, &mut self.curve) {
                (ERROR, _) => return Err(ZmtpError::Refused),
                (name, Some(curve)) => {
                    let answer = curve.handshake(name, &body[data..], &metadata)?;
                    if let Some((name, data)) = answer.command {
                        frame::put_command(&mut self.output, name, &data);
                    }
                    answer.metadata
                }
                (READY, None) => Some(body[data..].to_vec()),
                _ => return Err(ZmtpError::Handshake),
            };
            let Some(theirs) = theirs else { continue };
            let socket_type = property(&theirs, b"socket-type").ok_or(ZmtpError::Handshake)?;
            if !self.kind.is_compatible(socket_type) {
                return Err(ZmtpError::SocketType);
            }
            self.stage = ConnectionStage::Traffic;
            return Ok(true);
        }
        Ok(false)
    }

    fn answer_ping(&mut self, data: Range<usize>) {
        let text = data.start.saturating_add(PING_TTL_BYTES)..data.end;
        if text.len() <= PING_TEXT_BYTES_MAX && self.output.len() <= PONG_OUTPUT_MAX {
            let text = self.input.get(text).unwrap_or_default().to_vec();
            self.put_command(PONG, &text);
        }
    }
}

/// The event of a new subscription or of a cancellation.
fn subscription(is_new: bool, topic: &[u8]) -> Event<'_> {
    if is_new { Event::Subscribe(topic) } else { Event::Cancel(topic) }
}

/// The event of a message. Messages to a publisher are subscriptions.
fn event(kind: SocketKind, frames: Frames<'_>) -> Result<Event<'_>, ZmtpError> {
    Ok(match (kind, frames.bodies()) {
        (SocketKind::Sub, _) => Event::Message(frames),
        // ZMTP 3.0: a message with one frame that starts with 1 or 0.
        (SocketKind::Pub, &[[1, topic @ ..]]) => Event::Subscribe(topic),
        (SocketKind::Pub, &[[0, topic @ ..]]) => Event::Cancel(topic),
        (SocketKind::Pub, _) => return Err(ZmtpError::Frame),
    })
}

/// The name of the command in `body`, and the position of its data.
fn command(body: &[u8]) -> Result<(&[u8], usize), ZmtpError> {
    let (&length, rest) = body.split_first().ok_or(ZmtpError::Frame)?;
    let name = rest.get(..usize::from(length)).ok_or(ZmtpError::Frame)?;
    Ok((name, 1 + name.len()))
}

fn put_property(name: &[u8], value: &[u8]) -> Vec<u8> {
    let length = (value.len() as u32).to_be_bytes();
    [&[name.len() as u8], name, &length, value].concat()
}

/// The value of the property `name` in a list of properties, ignoring case.
fn property<'a>(mut list: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    while let Some((&length, rest)) = list.split_first() {
        let (found, rest) = rest.split_at_checked(usize::from(length))?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if found.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        list = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Transfers all bytes from one side to the other, `step` bytes at a time, and returns the events.
    fn transfer(from: &mut Connection, to: &mut Connection, step: usize) -> Result<Vec<String>, ZmtpError> {
        let bytes = core::mem::take(from.output());
        let mut events = Vec::new();
        for chunk in bytes.chunks(step) {
            to.input().extend_from_slice(chunk);
            while let Some(event) = to.poll()? {
                events.push(match event {
                    Event::Ready => "ready".into(),
                    Event::Subscribe(topic) => format!("subscribe {}", topic.escape_ascii()),
                    Event::Cancel(topic) => format!("cancel {}", topic.escape_ascii()),
                    Event::Message(frames) => {
                        frames.bodies().iter().map(|body| body.escape_ascii().to_string()).collect::<Vec<_>>().join("|")
                    }
                });
            }
        }
        Ok(events)
    }

    fn connect(publisher: &mut Connection, subscriber: &mut Connection, step: usize) {
        // Two rounds: greetings, then handshakes.
        for _ in 0..2 {
            transfer(publisher, subscriber, step).unwrap();
            transfer(subscriber, publisher, step).unwrap();
        }
        assert!(publisher.is_ready() && subscriber.is_ready());
    }

    #[test]
    fn greeting_and_ready_command_are_libzmqs_byte_for_byte() {
        let mut ours = Connection::new(SocketKind::Sub);
        let mut greeting = hex("ff00000000000000017f0301");
        greeting.extend_from_slice(&hex("4e554c4c"));
        greeting.resize(GREETING_BYTES, 0);
        assert_eq!(*ours.output(), greeting);
        ours.output().clear();
        ours.input().extend_from_slice(&greeting);
        assert!(ours.poll().unwrap().is_none());
        assert_eq!(*ours.output(), hex("0419055245414459 0b536f636b65742d54797065 00000003 535542"));
    }

    #[test]
    fn subscriptions_are_libzmqs_byte_for_byte_in_both_versions() {
        for (minor, topic, expected) in [
            (1, &b"default\0"[..], "0412095355425343524942 45 64656661756c7400"),
            (1, b"", "040a09535542534352494245"),
            (0, b"default\0", "00090164656661756c7400"),
            (0, b"", "000101"),
        ] {
            let (mut publisher, mut subscriber) =
                (Connection::with_version(SocketKind::Pub, minor, None), Connection::new(SocketKind::Sub));
            connect(&mut publisher, &mut subscriber, 1000);
            subscriber.subscribe(topic);
            assert_eq!(*subscriber.output(), hex(expected));
            let expected = format!("subscribe {}", topic.escape_ascii());
            assert_eq!(transfer(&mut subscriber, &mut publisher, 1000).unwrap(), [expected]);
        }
    }

    #[test]
    fn a_cancellation_is_understood_in_both_forms() {
        let (mut publisher, mut subscriber) = (Connection::new(SocketKind::Pub), Connection::new(SocketKind::Sub));
        connect(&mut publisher, &mut subscriber, 1000);
        frame::put_command(subscriber.output(), CANCEL, b"a");
        frame::put(subscriber.output(), false, b"\0b");
        assert_eq!(transfer(&mut subscriber, &mut publisher, 1000).unwrap(), ["cancel a", "cancel b"]);
    }

    #[test]
    fn a_ping_is_answered_with_its_text_and_an_unknown_command_is_ignored() {
        let (mut publisher, mut subscriber) = (Connection::new(SocketKind::Pub), Connection::new(SocketKind::Sub));
        connect(&mut publisher, &mut subscriber, 1000);
        frame::put_command(publisher.output(), b"FUTURE", b"x");
        frame::put_command(publisher.output(), PING, b"\0\x0ahi");
        assert!(transfer(&mut publisher, &mut subscriber, 1000).unwrap().is_empty());
        assert_eq!(*subscriber.output(), hex("0407 04504f4e47 6869"));
    }

    #[test]
    fn a_peer_that_pings_without_reading_gets_a_bounded_number_of_answers() {
        let (mut publisher, mut subscriber) = (Connection::new(SocketKind::Pub), Connection::new(SocketKind::Sub));
        connect(&mut publisher, &mut subscriber, 1000);
        for _ in 0..10_000 {
            frame::put_command(publisher.output(), PING, b"\0\0sixteen letters!");
        }
        transfer(&mut publisher, &mut subscriber, 60_000).unwrap();
        assert!(subscriber.output().len() < 2 * PONG_OUTPUT_MAX);
    }

    #[test]
    fn invalid_peers_are_disconnected_at_the_first_wrong_byte() {
        for (bytes, fault) in [
            (&b"GET / HTTP/1.1\r\n"[..], ZmtpError::Greeting),
            (&hex("ff000000000000000100"), ZmtpError::Greeting),
            // ZMTP 2.0, which libzmq used in 2012, has the version number 1.
            (&hex("ff00000000000000017f0100"), ZmtpError::Greeting),
            (&[&hex("ff00000000000000017f0301")[..], b"PLAIN", &[0; 47]].concat(), ZmtpError::Mechanism),
        ] {
            let mut ours = Connection::new(SocketKind::Sub);
            ours.input().extend_from_slice(bytes);
            assert_eq!(ours.poll().unwrap_err(), fault, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn an_incompatible_socket_type_is_disconnected() {
        let (mut one, mut other) = (Connection::new(SocketKind::Sub), Connection::new(SocketKind::Sub));
        transfer(&mut one, &mut other, 1000).unwrap();
        assert_eq!(transfer(&mut other, &mut one, 1000).unwrap_err(), ZmtpError::SocketType);
    }

    proptest! {
        #[test]
        fn messages_arrive_complete_for_any_segmentation(
            messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8), 1..5),
            step in 1_usize..400,
        ) {
            let (mut publisher, mut subscriber) = (Connection::new(SocketKind::Pub), Connection::new(SocketKind::Sub));
            connect(&mut publisher, &mut subscriber, step);
            let mut expected = Vec::new();
            for message in &messages {
                let bodies: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
                let mut wire = Vec::new();
                frame::put_message(&mut wire, &bodies);
                publisher.send(&wire);
                expected.push(bodies.iter().map(|body| body.escape_ascii().to_string()).collect::<Vec<_>>().join("|"));
            }
            prop_assert_eq!(transfer(&mut publisher, &mut subscriber, step).unwrap(), expected);
        }

        #[test]
        fn no_bytes_make_a_connection_panic_or_hold_more_than_a_message(
            kind in prop_oneof![Just(SocketKind::Pub), Just(SocketKind::Sub)],
            begun in any::<bool>(),
            chunks in prop::collection::vec(prop::collection::vec(prop_oneof![0_u8..8, any::<u8>()], 0..64), 0..64),
        ) {
            let mut ours = Connection::new(kind);
            if begun {
                let peer = if kind == SocketKind::Pub { SocketKind::Sub } else { SocketKind::Pub };
                transfer(&mut Connection::new(peer), &mut ours, 1000).unwrap();
                frame::put_command(ours.input(), READY, &put_property(b"Socket-Type", peer.socket_type()));
                prop_assert!(matches!(ours.poll(), Ok(Some(Event::Ready))));
            }
            for chunk in chunks {
                ours.input().extend_from_slice(&chunk);
                let fault = loop {
                    match ours.poll() {
                        Ok(Some(_)) => {}
                        Ok(None) => break false,
                        Err(_) => break true,
                    }
                };
                if fault {
                    break;
                }
                prop_assert!(ours.input().len() <= MESSAGE_BYTES_MAX + 64);
            }
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        digits.chunks(2).map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    }
}
