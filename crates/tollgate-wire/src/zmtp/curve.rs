//! CURVE: authentication and encryption of ZMTP connections, with replay protection (CurveZMQ, ZeroMQ's RFC
//! 26).
//!
//! Connections between gates and masters on different machines must use it.
//!
//! Each side has a permanent key pair, and generates another one per connection. The client knows the server's public
//! key and proves that it has its own secret key; the server accepts known clients. The handshake commands are HELLO
//! (client), WELCOME (server), INITIATE (client) and READY (server). Messages follow, each encrypted with an
//! increasing nonce. Nonces have 24 bytes: a fixed prefix, and 8 bytes of a counter (*short*) or 16 random bytes
//! (*long*).
//!
//! The protocol lets a server forget a client between HELLO and INITIATE by sending it an encrypted cookie.
//! That protects servers of datagrams. Here a connection has a slot and a deadline from its first byte, so
//! the cookie is a random number that the server keeps.
//!
//! No randomness is generated here; the caller supplies an [`Entropy`].

use std::sync::Arc;

use crypto_box::aead::AeadInPlace;
use crypto_box::{Nonce, PublicKey as Point, SalsaBox, SecretKey, Tag};

use super::ZmtpError;
use super::key::{KEY_BYTES, KeyPair, PublicKey};

/// The identity of this side on an authenticated connection, and the accepted peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A server that accepts known clients.
    Server {
        /// Its key pair.
        keys: Arc<KeyPair>,
        /// The accepted clients.
        known: Arc<[PublicKey]>,
    },
    /// A client of a known server.
    Client {
        /// Its key pair.
        keys: Arc<KeyPair>,
        /// The server's public key.
        server: PublicKey,
    },
}

/// Secret random bytes for one connection: its secret key, two long nonces and the cookie.
pub struct Entropy(pub [u8; ENTROPY_BYTES]);

/// The number of random bytes per connection.
pub const ENTROPY_BYTES: usize = KEY_BYTES + 2 * LONG_NONCE_BYTES + COOKIE_BYTES;

impl core::fmt::Debug for Entropy {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("Entropy(secret)")
    }
}

/// One side of an authenticated connection.
pub(super) struct Curve {
    identity: Identity,
    stage: CurveStage,
    /// The secret key of this side for this connection.
    own: SecretKey,
    /// See [`Entropy`].
    entropy: [u8; ENTROPY_BYTES],
    /// The shared secret of both connection keys, once both are known.
    shared: Option<SalsaBox>,
    /// The peer's public key for this connection.
    theirs: [u8; KEY_BYTES],
    /// The counter of the last nonce that this side sent.
    sent: u64,
    /// The counter of the last nonce that the peer sent.
    received: u64,
}

/// The command that this side expects next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CurveStage {
    /// First stage of a server. Next: `Initiate`.
    Hello,
    /// Second stage of a server. Next: `Traffic`.
    Initiate,
    /// First stage of a client. Next: `Ready`.
    Welcome,
    /// Second stage of a client. Next: `Traffic`.
    Ready,
    /// Messages; the handshake is complete.
    Traffic,
}

// The lengths of the parts of handshake commands, by CurveZMQ.
const LONG_NONCE_BYTES: usize = 16;
const COOKIE_BYTES: usize = 96;
const TAG_BYTES: usize = 16;
const SHORT_NONCE_BYTES: usize = 8;
const PADDING_BYTES: usize = 72;
const SIGNATURE_BYTES: usize = 64;
/// A vouch, the client's proof that it has its permanent secret key: a nonce and two encrypted keys.
const VOUCH_BYTES: usize = LONG_NONCE_BYTES + TAG_BYTES + 2 * KEY_BYTES;
const VERSION: [u8; 2] = [1, 0];
/// The prefix of an encrypted frame: the name of its command.
const MESSAGE: &[u8] = b"\x07MESSAGE";

/// The flags of a frame within its encrypted message.
pub(super) const INNER_MORE: u8 = 1;
pub(super) const INNER_COMMAND: u8 = 2;

impl core::fmt::Debug for Curve {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Curve").field("stage", &self.stage).finish_non_exhaustive()
    }
}

impl Curve {
    pub(super) fn new(identity: Identity, Entropy(entropy): Entropy) -> Self {
        let stage = if matches!(identity, Identity::Server { .. }) { CurveStage::Hello } else { CurveStage::Welcome };
        let own = SecretKey::from(core::array::from_fn(|at| entropy[at]));
        Self { identity, stage, own, entropy, shared: None, theirs: [0; KEY_BYTES], sent: 0, received: 0 }
    }

    pub(super) fn is_server(&self) -> bool {
        matches!(self.identity, Identity::Server { .. })
    }

    /// The first command of this side, with its data; none of a server, which waits for HELLO.
    pub(super) fn begin(&mut self) -> Option<(&'static [u8], Vec<u8>)> {
        let Identity::Client { server, .. } = &self.identity else { return None };
        let cipher = SalsaBox::new(&Point::from(server.0), &self.own);
        let nonce = next_nonce(&mut self.sent);
        let mut data = VERSION.to_vec();
        data.extend_from_slice(&[0; PADDING_BYTES]);
        data.extend_from_slice(self.own.public_key().as_bytes());
        data.extend_from_slice(&nonce.to_be_bytes());
        seal(&cipher, &short_nonce(b"CurveZMQHELLO---", nonce), &[&[0; SIGNATURE_BYTES]], &mut data);
        Some((b"HELLO", data))
    }

    /// Processes the peer's next handshake command. `metadata` describes this side to the peer, as encoded properties
    /// of ZMTP. The answer has the peer's metadata when the handshake is complete.
    pub(super) fn handshake(&mut self, name: &[u8], data: &[u8], metadata: &[u8]) -> Result<Answer, ZmtpError> {
        match (self.stage, name) {
            (CurveStage::Hello, b"HELLO") => self.hello(data),
            (CurveStage::Initiate, b"INITIATE") => self.initiate(data, metadata),
            (CurveStage::Welcome, b"WELCOME") => self.welcome(data, metadata),
            (CurveStage::Ready, b"READY") => self.ready(data),
            _ => Err(ZmtpError::Handshake),
        }
    }

    fn hello(&mut self, data: &[u8]) -> Result<Answer, ZmtpError> {
        let Identity::Server { keys, .. } = &self.identity else { return Err(ZmtpError::Handshake) };
        let (version, rest) = split::<2>(data)?;
        let (_, rest) = split::<PADDING_BYTES>(rest)?;
        let (theirs, rest) = split::<KEY_BYTES>(rest)?;
        let (nonce, sealed) = split::<SHORT_NONCE_BYTES>(rest)?;
        if version != VERSION {
            return Err(ZmtpError::Handshake);
        }
        let nonce = accept_nonce(&mut self.received, nonce)?;
        let cipher = SalsaBox::new(&Point::from(theirs), &keys.secret);
        let signature = open(&cipher, &short_nonce(b"CurveZMQHELLO---", nonce), sealed)?;
        if signature != [0; SIGNATURE_BYTES] {
            return Err(ZmtpError::Unauthenticated);
        }
        self.theirs = theirs;
        let nonce = self.random_nonce_bytes(0);
        let mut answer = nonce.to_vec();
        let own = self.own.public_key().to_bytes();
        seal(&cipher, &long_nonce(b"WELCOME-", &nonce), &[&own, self.cookie()], &mut answer);
        self.shared = Some(SalsaBox::new(&Point::from(theirs), &self.own));
        self.stage = CurveStage::Initiate;
        Ok(Answer { command: Some((b"WELCOME", answer)), metadata: None })
    }

    fn welcome(&mut self, data: &[u8], metadata: &[u8]) -> Result<Answer, ZmtpError> {
        let Identity::Client { keys, server } = &self.identity else { return Err(ZmtpError::Handshake) };
        let (nonce, sealed) = split::<LONG_NONCE_BYTES>(data)?;
        let cipher = SalsaBox::new(&Point::from(server.0), &self.own);
        let plain = open(&cipher, &long_nonce(b"WELCOME-", &nonce), sealed)?;
        let (theirs, cookie) = split::<KEY_BYTES>(&plain)?;
        if cookie.len() != COOKIE_BYTES {
            return Err(ZmtpError::Handshake);
        }
        let shared = SalsaBox::new(&Point::from(theirs), &self.own);
        let mut inside = keys.public().0.to_vec();
        let vouch_nonce = self.random_nonce_bytes(1);
        inside.extend_from_slice(&vouch_nonce);
        let own = self.own.public_key().to_bytes();
        let to_them = SalsaBox::new(&Point::from(theirs), &keys.secret);
        seal(&to_them, &long_nonce(b"VOUCH---", &vouch_nonce), &[&own, &server.0], &mut inside);
        let nonce = next_nonce(&mut self.sent);
        let mut answer = cookie.to_vec();
        answer.extend_from_slice(&nonce.to_be_bytes());
        seal(&shared, &short_nonce(b"CurveZMQINITIATE", nonce), &[&inside, metadata], &mut answer);
        self.shared = Some(shared);
        self.theirs = theirs;
        self.stage = CurveStage::Ready;
        Ok(Answer { command: Some((b"INITIATE", answer)), metadata: None })
    }

    fn initiate(&mut self, data: &[u8], metadata: &[u8]) -> Result<Answer, ZmtpError> {
        let (Identity::Server { keys, known }, Some(shared)) = (&self.identity, &self.shared) else {
            return Err(ZmtpError::Handshake);
        };
        let (cookie, rest) = split::<COOKIE_BYTES>(data)?;
        let (nonce, sealed) = split::<SHORT_NONCE_BYTES>(rest)?;
        if cookie != *self.cookie() {
            return Err(ZmtpError::Unauthenticated);
        }
        let nonce = accept_nonce(&mut self.received, nonce)?;
        let plain = open(shared, &short_nonce(b"CurveZMQINITIATE", nonce), sealed)?;
        let (client, rest) = split::<KEY_BYTES>(&plain)?;
        let (vouch, peer_metadata) = split::<VOUCH_BYTES>(rest)?;
        let (vouch_nonce, vouched) = split::<LONG_NONCE_BYTES>(&vouch)?;
        let from_them = SalsaBox::new(&Point::from(client), &self.own);
        let vouched = open(&from_them, &long_nonce(b"VOUCH---", &vouch_nonce), vouched)?;
        if vouched != [self.theirs, keys.public().0].concat() || !known.contains(&PublicKey(client)) {
            return Err(ZmtpError::Unauthenticated);
        }
        let nonce = next_nonce(&mut self.sent);
        let mut answer = nonce.to_be_bytes().to_vec();
        seal(shared, &short_nonce(b"CurveZMQREADY---", nonce), &[metadata], &mut answer);
        self.stage = CurveStage::Traffic;
        Ok(Answer { command: Some((b"READY", answer)), metadata: Some(peer_metadata.to_vec()) })
    }

    fn ready(&mut self, data: &[u8]) -> Result<Answer, ZmtpError> {
        let Some(shared) = &self.shared else { return Err(ZmtpError::Handshake) };
        let (nonce, sealed) = split::<SHORT_NONCE_BYTES>(data)?;
        let nonce = accept_nonce(&mut self.received, nonce)?;
        let metadata = open(shared, &short_nonce(b"CurveZMQREADY---", nonce), sealed)?;
        self.stage = CurveStage::Traffic;
        Ok(Answer { command: None, metadata: Some(metadata) })
    }

    /// Encrypts a frame with these flags and this body, and appends the result, which is the body of an outer frame.
    pub(super) fn put_message(&mut self, output: &mut Vec<u8>, flags: u8, body: &[u8]) {
        let Some(shared) = &self.shared else { return };
        let nonce = next_nonce(&mut self.sent);
        output.extend_from_slice(MESSAGE);
        output.extend_from_slice(&nonce.to_be_bytes());
        let prefix = if self.is_server() { b"CurveZMQMESSAGES" } else { b"CurveZMQMESSAGEC" };
        seal(shared, &short_nonce(prefix, nonce), &[&[flags], body], output);
    }

    /// Decrypts the body of a frame in place. Returns the flags of the inner frame and the start of its body.
    pub(super) fn open_message(&mut self, frame: &mut [u8]) -> Result<(u8, usize), ZmtpError> {
        let Some(shared) = &self.shared else { return Err(ZmtpError::Handshake) };
        let sealed = frame.strip_prefix(MESSAGE).ok_or(ZmtpError::Unauthenticated)?;
        let (nonce, sealed) = split::<SHORT_NONCE_BYTES>(sealed)?;
        let (tag, _) = split::<TAG_BYTES>(sealed)?;
        let nonce = accept_nonce(&mut self.received, nonce)?;
        let prefix = if self.is_server() { b"CurveZMQMESSAGEC" } else { b"CurveZMQMESSAGES" };
        let start = MESSAGE.len() + SHORT_NONCE_BYTES + TAG_BYTES;
        let opened =
            shared.decrypt_in_place_detached(&short_nonce(prefix, nonce), &[], &mut frame[start..], &Tag::from(tag));
        opened.map_err(|_| ZmtpError::Unauthenticated)?;
        Ok((*frame.get(start).ok_or(ZmtpError::Frame)?, start + 1))
    }

    fn cookie(&self) -> &[u8] {
        &self.entropy[ENTROPY_BYTES - COOKIE_BYTES..]
    }

    /// The random bytes of the first (0) or second (1) long nonce of this connection.
    fn random_nonce_bytes(&self, place: usize) -> [u8; LONG_NONCE_BYTES] {
        core::array::from_fn(|at| self.entropy[KEY_BYTES + place * LONG_NONCE_BYTES + at])
    }
}

/// The next command of this side, and the peer's metadata.
pub(super) struct Answer {
    pub(super) command: Option<(&'static [u8], Vec<u8>)>,
    pub(super) metadata: Option<Vec<u8>>,
}

/// The counter of the next nonce of this side.
fn next_nonce(sent: &mut u64) -> u64 {
    *sent += 1;
    *sent
}

/// The counter of the peer's nonce, which must be larger than all before. This prevents replays.
fn accept_nonce(received: &mut u64, nonce: [u8; SHORT_NONCE_BYTES]) -> Result<u64, ZmtpError> {
    let nonce = u64::from_be_bytes(nonce);
    if nonce <= *received {
        return Err(ZmtpError::Unauthenticated);
    }
    *received = nonce;
    Ok(nonce)
}

/// The first `N` bytes, and the rest.
fn split<const N: usize>(data: &[u8]) -> Result<([u8; N], &[u8]), ZmtpError> {
    data.split_first_chunk().map(|(first, rest)| (*first, rest)).ok_or(ZmtpError::Handshake)
}

/// The nonce of a prefix and a counter.
fn short_nonce(prefix: &[u8; 16], nonce: u64) -> Nonce {
    let mut whole = [0; 24];
    whole[..16].copy_from_slice(prefix);
    whole[16..].copy_from_slice(&nonce.to_be_bytes());
    Nonce::from(whole)
}

/// The nonce of a prefix and random bytes.
fn long_nonce(prefix: &[u8; 8], nonce: &[u8; LONG_NONCE_BYTES]) -> Nonce {
    let mut whole = [0; 24];
    whole[..8].copy_from_slice(prefix);
    whole[8..].copy_from_slice(nonce);
    Nonce::from(whole)
}

/// Appends these parts encrypted: the tag, then the ciphertext.
fn seal(cipher: &SalsaBox, nonce: &Nonce, parts: &[&[u8]], output: &mut Vec<u8>) {
    let tag_at = output.len();
    output.extend_from_slice(&[0; TAG_BYTES]);
    parts.iter().for_each(|part| output.extend_from_slice(part));
    let sealed = cipher.encrypt_in_place_detached(nonce, &[], &mut output[tag_at + TAG_BYTES..]);
    let tag = sealed.expect("a message is shorter than a box can hold");
    output[tag_at..tag_at + TAG_BYTES].copy_from_slice(&tag);
}

/// Decrypts the output of [`seal`].
fn open(cipher: &SalsaBox, nonce: &Nonce, sealed: &[u8]) -> Result<Vec<u8>, ZmtpError> {
    let (tag, sealed) = split::<TAG_BYTES>(sealed)?;
    let mut plain = sealed.to_vec();
    let opened = cipher.decrypt_in_place_detached(nonce, &[], &mut plain, &Tag::from(tag));
    opened.map_err(|_| ZmtpError::Unauthenticated)?;
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::super::connection::{Connection, Event, SocketKind};
    use super::super::frame;
    use super::*;
    use proptest::prelude::*;

    fn keys(number: u8) -> Arc<KeyPair> {
        Arc::new(KeyPair::from_secret([number; KEY_BYTES]))
    }

    fn entropy(number: u8) -> Entropy {
        Entropy(core::array::from_fn(|at| number.wrapping_add(at as u8)))
    }

    /// A server that accepts the client with key pair 2.
    fn server(kind: SocketKind) -> Connection {
        let identity = Identity::Server { keys: keys(1), known: [keys(2).public()].into() };
        Connection::secured(kind, identity, entropy(10))
    }

    fn client(kind: SocketKind, number: u8) -> Connection {
        Connection::secured(kind, Identity::Client { keys: keys(number), server: keys(1).public() }, entropy(20))
    }

    /// Transfers all bytes from one side to the other. Returns the messages and subscriptions that arrive.
    fn transfer(from: &mut Connection, to: &mut Connection) -> Result<Vec<Vec<u8>>, ZmtpError> {
        let bytes = core::mem::take(from.output());
        feed(to, &bytes)
    }

    fn feed(to: &mut Connection, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ZmtpError> {
        to.input().extend_from_slice(bytes);
        let mut arrived = Vec::new();
        while let Some(event) = to.poll()? {
            match event {
                Event::Ready => {}
                Event::Message(frames) => arrived.push(frames.bodies().join(&b'|')),
                Event::Subscribe(topic) | Event::Cancel(topic) => arrived.push(topic.to_vec()),
            }
        }
        Ok(arrived)
    }

    fn connect(one: &mut Connection, other: &mut Connection) -> Result<(), ZmtpError> {
        for _ in 0..4 {
            transfer(one, other)?;
            transfer(other, one)?;
        }
        assert!(one.is_ready() && other.is_ready());
        Ok(())
    }

    fn message(bodies: &[&[u8]]) -> Vec<u8> {
        let mut wire = Vec::new();
        frame::put_message(&mut wire, bodies);
        wire
    }

    #[test]
    fn handshakes_have_the_lengths_of_the_specification() {
        let (mut server, mut client) = (server(SocketKind::Pub), client(SocketKind::Sub, 2));
        for (from_client, length) in [(true, 64), (false, 64), (true, 202), (false, 170), (true, 285), (false, 51)] {
            let (from, to) = if from_client { (&mut client, &mut server) } else { (&mut server, &mut client) };
            let bytes = core::mem::take(from.output());
            // The header has two bytes, or nine if the length exceeds 255.
            assert_eq!(bytes.len(), length, "{}", bytes.escape_ascii());
            feed(to, &bytes).unwrap();
        }
        assert!(server.is_ready() && client.is_ready());
    }

    #[test]
    fn a_known_client_can_communicate_and_the_traffic_is_encrypted() {
        let (mut publisher, mut subscriber) = (client(SocketKind::Pub, 2), server(SocketKind::Sub));
        connect(&mut publisher, &mut subscriber).unwrap();
        subscriber.subscribe(b"topic");
        assert_eq!(transfer(&mut subscriber, &mut publisher).unwrap(), [b"topic"]);
        publisher.send(&message(&[b"topic", b"a secret", b""]));
        assert!(!publisher.output().windows(8).any(|bytes| bytes == b"a secret"));
        assert_eq!(transfer(&mut publisher, &mut subscriber).unwrap(), [b"topic|a secret|"]);
        assert!(publisher.ping());
        transfer(&mut publisher, &mut subscriber).unwrap();
        assert!(!subscriber.output().is_empty(), "a ping in a box is answered");
    }

    #[test]
    fn fault_33_an_unknown_client_is_rejected() {
        assert_eq!(
            connect(&mut client(SocketKind::Pub, 3), &mut server(SocketKind::Sub)),
            Err(ZmtpError::Unauthenticated)
        );
    }

    #[test]
    fn fault_33_another_server_is_rejected() {
        let identity = Identity::Server { keys: keys(9), known: [keys(2).public()].into() };
        let mut impostor = Connection::secured(SocketKind::Sub, identity, entropy(10));
        assert_eq!(connect(&mut client(SocketKind::Pub, 2), &mut impostor), Err(ZmtpError::Unauthenticated));
    }

    #[test]
    fn fault_33_plain_and_encrypted_peers_reject_each_other() {
        assert_eq!(
            connect(&mut Connection::new(SocketKind::Pub), &mut server(SocketKind::Sub)),
            Err(ZmtpError::Mechanism)
        );
        assert_eq!(
            connect(&mut client(SocketKind::Pub, 2), &mut Connection::new(SocketKind::Sub)),
            Err(ZmtpError::Mechanism)
        );
        let mut both = (client(SocketKind::Pub, 2), client(SocketKind::Sub, 2));
        assert_eq!(connect(&mut both.0, &mut both.1), Err(ZmtpError::Handshake));
    }

    /// The server's result for a client that vouches for this session key and server key.
    fn vouch_for(session: [u8; KEY_BYTES], meant: [u8; KEY_BYTES]) -> Result<(), ZmtpError> {
        let known = [keys(2).public()].into();
        let mut server = Curve::new(Identity::Server { keys: keys(1), known }, entropy(10));
        let identity = Identity::Client { keys: keys(2), server: keys(1).public() };
        let mut client = Curve::new(identity, entropy(20));
        let (name, hello) = client.begin().unwrap();
        let (_, welcome) = server.handshake(name, &hello, b"").unwrap().command.unwrap();
        let (nonce, sealed) = split::<LONG_NONCE_BYTES>(&welcome).unwrap();
        let to_server = SalsaBox::new(&Point::from(keys(1).public().0), &client.own);
        let plain = open(&to_server, &long_nonce(b"WELCOME-", &nonce), sealed).unwrap();
        let (theirs, cookie) = split::<KEY_BYTES>(&plain).unwrap();
        let mut inside = [&keys(2).public().0[..], &[7; LONG_NONCE_BYTES]].concat();
        let vouching = SalsaBox::new(&Point::from(theirs), &keys(2).secret);
        let nonce = long_nonce(b"VOUCH---", &[7; LONG_NONCE_BYTES]);
        seal(&vouching, &nonce, &[&session, &meant], &mut inside);
        let mut initiate = [cookie, &2_u64.to_be_bytes()].concat();
        let shared = SalsaBox::new(&Point::from(theirs), &client.own);
        seal(&shared, &short_nonce(b"CurveZMQINITIATE", 2), &[&inside], &mut initiate);
        server.handshake(b"INITIATE", &initiate, b"").map(|_| ())
    }

    #[test]
    fn fault_33_a_vouch_for_another_server_or_session_is_rejected() {
        let own = SecretKey::from(*entropy(20).0.first_chunk().unwrap()).public_key().to_bytes();
        assert_eq!(vouch_for(own, keys(1).public().0), Ok(()));
        assert_eq!(vouch_for(own, keys(9).public().0), Err(ZmtpError::Unauthenticated));
        assert_eq!(vouch_for(keys(9).public().0, keys(1).public().0), Err(ZmtpError::Unauthenticated));
    }

    #[test]
    fn fault_33_a_changed_handshake_is_rejected_immediately() {
        for step in 2..6 {
            let (mut one, mut other) = (client(SocketKind::Pub, 2), server(SocketKind::Sub));
            for turn in 0..=step {
                let (from, to) = if turn % 2 == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
                let mut bytes = core::mem::take(from.output());
                if turn == step {
                    *bytes.last_mut().unwrap() ^= 1;
                }
                let arrived = feed(to, &bytes);
                assert_eq!(arrived.err(), (turn == step).then_some(ZmtpError::Unauthenticated), "in step {turn}");
            }
        }
    }

    #[test]
    fn fault_33_a_changed_message_ends_the_connection() {
        // The bytes after the frame header: name, nonce and ciphertext of the first message.
        for at in 2..2 + MESSAGE.len() + SHORT_NONCE_BYTES + TAG_BYTES + 1 + b"default".len() {
            let (mut publisher, mut subscriber) = (client(SocketKind::Pub, 2), server(SocketKind::Sub));
            connect(&mut publisher, &mut subscriber).unwrap();
            publisher.send(&message(&[b"default", b"ACCEPTED"]));
            let mut bytes = core::mem::take(publisher.output());
            bytes[at] ^= 1;
            assert_eq!(feed(&mut subscriber, &bytes), Err(ZmtpError::Unauthenticated), "byte {at}");
        }
    }

    #[test]
    fn fault_33_a_replayed_message_is_rejected() {
        let (mut publisher, mut subscriber) = (client(SocketKind::Pub, 2), server(SocketKind::Sub));
        connect(&mut publisher, &mut subscriber).unwrap();
        publisher.send(&message(&[b"once"]));
        let bytes = core::mem::take(publisher.output());
        assert_eq!(feed(&mut subscriber, &bytes).unwrap(), [b"once"]);
        assert_eq!(feed(&mut subscriber, &bytes), Err(ZmtpError::Unauthenticated));
    }

    #[test]
    fn endless_encrypted_frames_are_rejected() {
        let (mut publisher, mut subscriber) = (client(SocketKind::Pub, 2), server(SocketKind::Sub));
        connect(&mut publisher, &mut subscriber).unwrap();
        let long = vec![7; 30_000];
        for _ in 0..2 {
            publisher.send(&message(&[&long, b""])[..30_009]);
        }
        assert!(transfer(&mut publisher, &mut subscriber).unwrap().is_empty());
        publisher.send(&message(&[&long, b""])[..30_009]);
        assert_eq!(transfer(&mut publisher, &mut subscriber), Err(ZmtpError::TooLong));
    }

    proptest! {
        #[test]
        fn fault_33_no_changed_byte_is_accepted(
            step in 0_usize..6,
            place in any::<prop::sample::Index>(),
            change in 1_u8..,
        ) {
            let (mut one, mut other) = (client(SocketKind::Pub, 2), server(SocketKind::Sub));
            for turn in 0..6 {
                let (from, to) = if turn % 2 == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
                let mut bytes = core::mem::take(from.output());
                if turn == step {
                    let at = place.index(bytes.len());
                    bytes[at] ^= change;
                    // Some bytes of the greeting have no meaning, and a larger length only waits for more
                    // bytes.
                    prop_assert!(feed(to, &bytes).is_err() || turn < 2 || !to.is_ready());
                    return Ok(());
                }
                feed(to, &bytes).unwrap();
            }
        }

        #[test]
        fn fault_33_no_changed_message_is_delivered(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 1..4),
            place in any::<prop::sample::Index>(),
            change in 1_u8..,
        ) {
            let (mut one, mut other) = (client(SocketKind::Pub, 2), server(SocketKind::Sub));
            connect(&mut one, &mut other).unwrap();
            let bodies: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
            one.send(&message(&bodies));
            let mut bytes = core::mem::take(one.output());
            let at = place.index(bytes.len());
            bytes[at] ^= change;
            let arrived = feed(&mut other, &bytes);
            prop_assert!(arrived.is_err() || arrived.unwrap().is_empty());
        }

        #[test]
        fn no_bytes_make_a_secured_connection_panic(
            is_server in any::<bool>(),
            turns in 0_usize..5,
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
        ) {
            let (mut one, mut other) = (client(SocketKind::Pub, 2), server(SocketKind::Sub));
            for turn in 0..turns {
                let (from, to) = if turn % 2 == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
                transfer(from, to).unwrap();
            }
            let victim = if is_server { &mut other } else { &mut one };
            for chunk in chunks {
                if feed(victim, &chunk).is_err() {
                    break;
                }
            }
        }
    }
}
