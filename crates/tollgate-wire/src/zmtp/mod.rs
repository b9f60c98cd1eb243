//! ZMTP 3.0 and 3.1, the protocol of ZeroMQ sockets over TCP, as far as PUB and SUB sockets need it. Gates and masters
//! exchange the messages of [`smockron`](crate::smockron) over it, also with peers that use the library libzmq.
//!
//! The library would bring its own queues: a gate of Smockron, an earlier rate limiter, stored a thousand reports
//! while its master was away and delivered all of them at its return, which punished clients for requests long paid
//! back. This module has only the protocol, as a [`Connection`] that takes bytes and returns events. Its caller sees
//! the subscriptions, and decides which messages are kept or dropped. A message has at most [`MESSAGE_BYTES_MAX`]
//! bytes and [`FRAMES_MAX`] frames, which bounds the memory that a peer can use.
//!
//! Connections beyond loopback must be authenticated: see [`Connection::secured`].

mod connection;
mod curve;
pub mod frame;
mod key;

pub use connection::{Connection, Event, SocketKind};
pub use curve::{ENTROPY_BYTES, Entropy, Identity};
pub use key::{KeyError, KeyPair, PublicKey};

/// The maximum length of a message with all its frames and headers, in bytes. A peer that sends a longer one is
/// disconnected.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The maximum number of frames in a message. A peer that sends more is disconnected.
pub const FRAMES_MAX: usize = 16;

tollgate_core::named_enum! {
    /// The reason why a peer is disconnected.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum ZmtpError {
        /// The peer does not use ZMTP 3.
        Greeting = "greeting",
        /// The peer uses another authentication mechanism.
        Mechanism = "mechanism",
        /// The handshake is invalid.
        Handshake = "handshake",
        /// The peer's socket type is incompatible.
        SocketType = "socket-type",
        /// A frame header is invalid.
        Frame = "frame",
        /// Authentication failed: the peer is unknown, or a message was forged, changed or replayed.
        Unauthenticated = "unauthenticated",
        /// The peer rejected this side.
        Refused = "refused",
        /// A message exceeds [`MESSAGE_BYTES_MAX`] or [`FRAMES_MAX`].
        TooLong = "too-long",
    }
}
