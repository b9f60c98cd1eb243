//! One connection of a PUB or a SUB socket: bytes in, events and bytes out.

use super::frame::{self, Frames, Header};
use super::{Fault, MESSAGE_BYTES_MAX};

/// Which end of a stream of messages this side is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It publishes.
    Pub,
    /// It subscribes.
    Sub,
}

/// What a peer did.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives for one turn of a loop, and a box would be an allocation per message"
)]
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// It has introduced itself: messages may be sent.
    Ready,
    /// It wants messages whose first frame begins with this.
    Subscribe(&'a [u8]),
    /// It no longer wants them.
    Cancel(&'a [u8]),
    /// It sent a message.
    Message(Frames<'a>),
}

/// A connection, from the greeting on.
#[derive(Debug)]
pub struct Connection {
    kind: Kind,
    stage: Stage,
    /// What the peer sent; up to `consumed` it has been dealt with.
    input: Vec<u8>,
    consumed: usize,
    output: Vec<u8>,
    peer_minor: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Goes on to `Handshake`.
    Greeting,
    /// Goes on to `Traffic`.
    Handshake,
    Traffic,
}

const GREETING_BYTES: usize = 64;
const MAJOR: u8 = 3;
const MINOR: u8 = 1;
/// The last byte of the signature, the versions, and the mechanism, by where they stand in a greeting.
const SIGNATURE_END: usize = 9;
const MAJOR_AT: usize = 10;
const MINOR_AT: usize = 11;
const MECHANISM: core::ops::Range<usize> = 12..32;
const NULL: [u8; 20] = *b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

const READY: &[u8] = b"READY";
const SUBSCRIBE: &[u8] = b"SUBSCRIBE";
const CANCEL: &[u8] = b"CANCEL";
const PING: &[u8] = b"PING";
const PONG: &[u8] = b"PONG";
/// A ping's time to live, which is not part of the answer.
const PING_TTL_BYTES: usize = 2;
/// The longest text that a ping may ask to have back.
const PING_TEXT_BYTES_MAX: usize = 16;
/// Answers to pings wait behind no more than this: who asks without reading gets no answer.
const PONG_OUTPUT_MAX: usize = 4096;

impl Kind {
    fn socket_type(self) -> &'static [u8] {
        match self {
            Self::Pub => b"PUB",
            Self::Sub => b"SUB",
        }
    }

    fn talks_to(self, socket_type: &[u8]) -> bool {
        match self {
            Self::Pub => matches!(socket_type, b"SUB" | b"XSUB"),
            Self::Sub => matches!(socket_type, b"PUB" | b"XPUB"),
        }
    }
}

impl Connection {
    /// A connection that has just been made. Its greeting is already in [`output`](Self::output): a peer may wait for it
    /// before it sends its own.
    pub fn new(kind: Kind) -> Self {
        Self::speaking(kind, MINOR)
    }

    /// A connection that says it speaks ZMTP 3.`minor`.
    fn speaking(kind: Kind, minor: u8) -> Self {
        let mut greeting = [0; GREETING_BYTES];
        greeting[0] = 0xff;
        greeting[SIGNATURE_END - 1] = 1;
        greeting[SIGNATURE_END] = 0x7f;
        greeting[MAJOR_AT] = MAJOR;
        greeting[MINOR_AT] = minor;
        greeting[MECHANISM].copy_from_slice(&NULL);
        let output = greeting.to_vec();
        Self { kind, stage: Stage::Greeting, input: Vec::new(), consumed: 0, output, peer_minor: 0 }
    }

    /// Where to append what the peer sent. [`poll`](Self::poll) until there is nothing before appending more: then this never holds more
    /// than one incomplete message.
    pub fn input(&mut self) -> &mut Vec<u8> {
        self.input.drain(..self.consumed);
        self.consumed = 0;
        &mut self.input
    }

    /// What to send to the peer. The caller takes from the front what it has sent.
    pub fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Whether messages may be sent.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Traffic
    }

    /// What happened next, if enough of it has arrived. After a fault the connection is of no more use.
    pub fn poll(&mut self) -> Result<Option<Event<'_>>, Fault> {
        if self.stage == Stage::Greeting && !self.greet()? {
            return Ok(None);
        }
        if self.stage == Stage::Handshake {
            return Ok(self.shake_hands()?.then_some(Event::Ready));
        }
        while let Some(&flags) = self.input.get(self.consumed) {
            if flags & 4 == 0 {
                return self.message();
            }
            let Some(header) = frame::header(&self.input, self.consumed)? else { return Ok(None) };
            self.consumed = header.end;
            let (name, data) = command(&self.input, header)?;
            match name {
                SUBSCRIBE if self.kind == Kind::Pub => {
                    return Ok(Some(Event::Subscribe(&self.input[data..header.end])));
                }
                CANCEL if self.kind == Kind::Pub => return Ok(Some(Event::Cancel(&self.input[data..header.end]))),
                PING => self.answer_ping(data, header.end),
                // A later version of the protocol may say more than this one understands.
                _ => {}
            }
        }
        Ok(None)
    }

    /// Asks a publisher for messages whose first frame begins with `topic`, in the form that the peer's version understands.
    pub fn subscribe(&mut self, topic: &[u8]) {
        if self.peer_minor == 0 {
            let body: Vec<u8> = [&[1], topic].concat();
            frame::put(&mut self.output, false, &body);
        } else {
            frame::put_command(&mut self.output, SUBSCRIBE, topic);
        }
    }

    /// Tells a publisher that messages whose first frame begins with `topic` are no longer wanted.
    pub fn cancel(&mut self, topic: &[u8]) {
        if self.peer_minor == 0 {
            let body: Vec<u8> = [&[0], topic].concat();
            frame::put(&mut self.output, false, &body);
        } else {
            frame::put_command(&mut self.output, CANCEL, topic);
        }
    }

    /// Asks the peer whether it is there, and says whether its version knows how to answer.
    pub fn ping(&mut self) -> bool {
        let can_answer = self.peer_minor > 0 && self.is_ready();
        if can_answer {
            frame::put_command(&mut self.output, PING, &[0; PING_TTL_BYTES]);
        }
        can_answer
    }

    /// Sends a message that was written with [`frame::put_message`].
    pub fn send(&mut self, message: &[u8]) {
        self.output.extend_from_slice(message);
    }

    /// Checks as much of the peer's greeting as has arrived, and answers it when it is complete.
    fn greet(&mut self) -> Result<bool, Fault> {
        let greeting = &self.input[self.consumed..];
        let is = |at: usize, expected: u8| greeting.get(at).is_none_or(|&byte| byte == expected);
        let major_is_known = greeting.get(MAJOR_AT).is_none_or(|&major| major >= MAJOR);
        if !is(0, 0xff) || !is(SIGNATURE_END, 0x7f) || !major_is_known {
            return Err(Fault::Greeting);
        }
        if greeting.len() < GREETING_BYTES {
            return Ok(false);
        }
        if greeting[MECHANISM] != NULL {
            return Err(Fault::Mechanism);
        }
        self.peer_minor = if greeting[MAJOR_AT] == MAJOR { greeting[MINOR_AT] } else { MINOR };
        self.consumed += GREETING_BYTES;
        let property = put_property(b"Socket-Type", self.kind.socket_type());
        frame::put_command(&mut self.output, READY, &property);
        self.stage = Stage::Handshake;
        Ok(true)
    }

    fn shake_hands(&mut self) -> Result<bool, Fault> {
        let Some(header) = frame::header(&self.input, self.consumed)? else { return Ok(false) };
        self.consumed = header.end;
        let (name, data) = command(&self.input, header)?;
        if name != READY {
            return Err(Fault::Handshake);
        }
        let socket_type = property(&self.input[data..header.end], b"socket-type").ok_or(Fault::Handshake)?;
        if !self.kind.talks_to(socket_type) {
            return Err(Fault::SocketType);
        }
        self.stage = Stage::Traffic;
        Ok(true)
    }

    fn message(&mut self) -> Result<Option<Event<'_>>, Fault> {
        let Some((frames, end)) = frame::message(&self.input, self.consumed)? else { return Ok(None) };
        self.consumed = end;
        Ok(Some(match (self.kind, frames.bodies()) {
            (Kind::Sub, _) => Event::Message(frames),
            // The way of ZMTP 3.0: a message of one frame that begins with 1 or 0.
            (Kind::Pub, &[[1, topic @ ..]]) => Event::Subscribe(topic),
            (Kind::Pub, &[[0, topic @ ..]]) => Event::Cancel(topic),
            (Kind::Pub, _) => return Err(Fault::Frame),
        }))
    }

    fn answer_ping(&mut self, data: usize, end: usize) {
        let text = data.saturating_add(PING_TTL_BYTES)..end;
        if text.len() <= PING_TEXT_BYTES_MAX && self.output.len() <= PONG_OUTPUT_MAX {
            let text = self.input.get(text).unwrap_or_default();
            frame::put_command(&mut self.output, PONG, text);
        }
    }
}

/// A command's name, and where its data begins.
fn command(input: &[u8], header: Header) -> Result<(&[u8], usize), Fault> {
    let body = &input[header.start..header.end];
    let (&length, rest) = body.split_first().ok_or(Fault::Frame)?;
    let name = rest.get(..usize::from(length)).ok_or(Fault::Frame)?;
    if !header.command || body.len() > MESSAGE_BYTES_MAX {
        return Err(Fault::Frame);
    }
    Ok((name, header.start + 1 + name.len()))
}

fn put_property(name: &[u8], value: &[u8]) -> Vec<u8> {
    let length = (value.len() as u32).to_be_bytes();
    [&[name.len() as u8], name, &length, value].concat()
}

/// The value of the property `name`, which is given in lower case.
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

    /// Carries everything from one side to the other, `step` bytes at a time, and lists what happened there.
    fn carry(from: &mut Connection, to: &mut Connection, step: usize) -> Result<Vec<String>, Fault> {
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

    fn meet(publisher: &mut Connection, subscriber: &mut Connection, step: usize) {
        // Two rounds: greetings first, introductions after.
        for _ in 0..2 {
            carry(publisher, subscriber, step).unwrap();
            carry(subscriber, publisher, step).unwrap();
        }
        assert!(publisher.is_ready() && subscriber.is_ready());
    }

    #[test]
    fn greeting_and_introduction_are_libzmqs_byte_for_byte() {
        let mut ours = Connection::new(Kind::Sub);
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
            let (mut publisher, mut subscriber) = (Connection::speaking(Kind::Pub, minor), Connection::new(Kind::Sub));
            meet(&mut publisher, &mut subscriber, 1000);
            subscriber.subscribe(topic);
            assert_eq!(*subscriber.output(), hex(expected));
            let expected = format!("subscribe {}", topic.escape_ascii());
            assert_eq!(carry(&mut subscriber, &mut publisher, 1000).unwrap(), [expected]);
        }
    }

    #[test]
    fn a_cancellation_is_understood_in_both_forms() {
        let (mut publisher, mut subscriber) = (Connection::new(Kind::Pub), Connection::new(Kind::Sub));
        meet(&mut publisher, &mut subscriber, 1000);
        frame::put_command(subscriber.output(), CANCEL, b"a");
        frame::put(subscriber.output(), false, b"\0b");
        assert_eq!(carry(&mut subscriber, &mut publisher, 1000).unwrap(), ["cancel a", "cancel b"]);
    }

    #[test]
    fn a_ping_is_answered_with_its_text_and_an_unknown_command_is_ignored() {
        let (mut publisher, mut subscriber) = (Connection::new(Kind::Pub), Connection::new(Kind::Sub));
        meet(&mut publisher, &mut subscriber, 1000);
        frame::put_command(publisher.output(), b"FUTURE", b"x");
        frame::put_command(publisher.output(), PING, b"\0\x0ahi");
        assert!(carry(&mut publisher, &mut subscriber, 1000).unwrap().is_empty());
        assert_eq!(*subscriber.output(), hex("0407 04504f4e47 6869"));
    }

    #[test]
    fn who_asks_without_reading_is_not_answered_for_ever() {
        let (mut publisher, mut subscriber) = (Connection::new(Kind::Pub), Connection::new(Kind::Sub));
        meet(&mut publisher, &mut subscriber, 1000);
        for _ in 0..10_000 {
            frame::put_command(publisher.output(), PING, b"\0\0sixteen letters!");
        }
        carry(&mut publisher, &mut subscriber, 60_000).unwrap();
        assert!(subscriber.output().len() < 2 * PONG_OUTPUT_MAX);
    }

    #[test]
    fn strangers_are_cut_off_at_the_first_wrong_byte() {
        for (bytes, fault) in [
            (&b"GET / HTTP/1.1\r\n"[..], Fault::Greeting),
            (&hex("ff000000000000000100"), Fault::Greeting),
            // A libzmq of 2012 speaks ZMTP 2.
            (&hex("ff00000000000000017f0100"), Fault::Greeting),
            (&[&hex("ff00000000000000017f0301")[..], b"PLAIN", &[0; 47]].concat(), Fault::Mechanism),
        ] {
            let mut ours = Connection::new(Kind::Sub);
            ours.input().extend_from_slice(bytes);
            assert_eq!(ours.poll().unwrap_err(), fault, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_socket_of_the_wrong_kind_is_cut_off() {
        let (mut one, mut other) = (Connection::new(Kind::Sub), Connection::new(Kind::Sub));
        carry(&mut one, &mut other, 1000).unwrap();
        assert_eq!(carry(&mut other, &mut one, 1000).unwrap_err(), Fault::SocketType);
    }

    proptest! {
        #[test]
        fn messages_arrive_whole_however_the_bytes_are_cut(
            messages in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8), 1..5),
            step in 1_usize..400,
        ) {
            let (mut publisher, mut subscriber) = (Connection::new(Kind::Pub), Connection::new(Kind::Sub));
            meet(&mut publisher, &mut subscriber, step);
            let mut expected = Vec::new();
            for message in &messages {
                let bodies: Vec<&[u8]> = message.iter().map(Vec::as_slice).collect();
                let mut wire = Vec::new();
                frame::put_message(&mut wire, &bodies);
                publisher.send(&wire);
                expected.push(bodies.iter().map(|body| body.escape_ascii().to_string()).collect::<Vec<_>>().join("|"));
            }
            prop_assert_eq!(carry(&mut publisher, &mut subscriber, step).unwrap(), expected);
        }

        #[test]
        fn no_bytes_make_a_connection_panic_or_hold_more_than_a_message(
            kind in prop_oneof![Just(Kind::Pub), Just(Kind::Sub)],
            begun in any::<bool>(),
            chunks in prop::collection::vec(prop::collection::vec(prop_oneof![0_u8..8, any::<u8>()], 0..64), 0..64),
        ) {
            let mut ours = Connection::new(kind);
            if begun {
                let peer = if kind == Kind::Pub { Kind::Sub } else { Kind::Pub };
                carry(&mut Connection::new(peer), &mut ours, 1000).unwrap();
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
