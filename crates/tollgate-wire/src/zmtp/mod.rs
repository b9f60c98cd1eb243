//! ZMTP 3.0 and 3.1, the protocol that libzmq's sockets speak over TCP, as far as PUB and SUB need it.
//!
//! A gate that embeds a whole message queue inherits its queues: the original, while its master was away, stored a thousand reports
//! and delivered them all at its return, punishing clients for what had long been forgiven. Here is only the protocol, as a [`Connection`]
//! that eats bytes and yields events. Who drives it decides what is kept and what is dropped, sees who subscribes to what, and
//! can put a bound on everything that a peer makes it hold: see [`MESSAGE_BYTES_MAX`] and [`FRAMES_MAX`].
//!
//! Off loopback a link must be authenticated: see [`Connection::secured`].

mod connection;
mod curve;
pub mod frame;
mod key;

pub use connection::{Connection, Event, Kind};
pub use curve::{ENTROPY_BYTES, Entropy, Identity};
pub use key::{KeyPair, NoKey, PublicKey};

/// The longest message, over all of its frames and their headers. A peer that sends a longer one is cut off.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// The most frames of one message. A peer that sends more is cut off.
pub const FRAMES_MAX: usize = 16;

/// Why a peer is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It does not speak ZMTP 3.
    Greeting,
    /// It wants another way of authentication than this side.
    Mechanism,
    /// Its introduction makes no sense.
    Handshake,
    /// It is a socket of a kind that this side does not talk to.
    SocketType,
    /// A frame's header makes no sense.
    Frame,
    /// It is not who it says, or not known, or what it says was changed or said before.
    Unauthenticated,
    /// It does not let this side in.
    Refused,
    /// A message is longer than [`MESSAGE_BYTES_MAX`] or has more than [`FRAMES_MAX`] frames.
    TooLong,
}

impl Fault {
    /// The word for metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Greeting => "greeting",
            Self::Mechanism => "mechanism",
            Self::Handshake => "handshake",
            Self::SocketType => "socket-type",
            Self::Frame => "frame",
            Self::Unauthenticated => "unauthenticated",
            Self::Refused => "refused",
            Self::TooLong => "too-long",
        }
    }
}
