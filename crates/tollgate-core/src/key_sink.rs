//! Receivers of keys: the limiter hashes a key, and messages and logs contain it as text.

use crate::network::Network;

/// Receives a key part by part, so that the key need not be built in memory. Each part is either one network or any
/// number of pieces of text.
pub trait KeySink {
    /// The current part is the client's network.
    fn network(&mut self, _network: Network) {}
    /// The next piece of the current part.
    fn write(&mut self, bytes: &[u8]);
    /// Ends the current part.
    fn end_part(&mut self) {}
}

/// Collects the bytes of a key, for tests.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct CollectedKey(pub(crate) alloc::vec::Vec<u8>);

#[cfg(test)]
impl KeySink for CollectedKey {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}
