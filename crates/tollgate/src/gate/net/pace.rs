//! The minimum rate at which a peer, a client or a backend, must send a body or read one.
//!
//! A deadline for each read alone would not stop a client that sends one byte shortly before each deadline.

use std::time::Duration;

/// The slowest permitted rate of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The longest permitted wait for the next bytes.
    pub(crate) idle_max: Duration,
    /// The minimum average rate. The first `idle_max` of waiting is free. None if only single waits are bounded.
    pub(crate) bytes_per_sec_min: Option<u64>,
}

impl Pace {
    /// A peer that may pause for up to `idle_max`, as often as it likes.
    pub(crate) const fn without_rate(idle_max: Duration) -> Self {
        Self { idle_max, bytes_per_sec_min: None }
    }
}

/// Compares a peer with its [`Pace`]. Only time spent waiting for the peer counts: while the gate waits for something
/// else, the peer is not late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaceMeter {
    pace: Pace,
    /// The time for which the gate has waited for the peer.
    waited_ms: u64,
    /// Bytes that the peer has sent or read.
    pub(crate) bytes: u64,
}

impl PaceMeter {
    pub(crate) const fn new(pace: Pace) -> Self {
        Self { pace, waited_ms: 0, bytes: 0 }
    }

    /// Starts again, for the next message.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.pace);
    }

    /// The longest permitted wait for the next bytes. With a minimum rate, the peer has `idle_max` of waiting time in
    /// total, and earns a second more with each `bytes_per_sec_min` bytes.
    pub(crate) fn patience(&self) -> Duration {
        let Pace { idle_max, bytes_per_sec_min } = self.pace;
        match bytes_per_sec_min {
            Some(rate) if self.waited_ms > 0 => {
                let earned = Duration::from_millis(self.bytes.saturating_mul(1000) / rate.max(1));
                idle_max.min((idle_max + earned).saturating_sub(Duration::from_millis(self.waited_ms)))
            }
            _ => idle_max,
        }
    }

    /// The peer moved this many bytes, and the gate waited this long for it.
    pub(crate) fn moved(&mut self, bytes: u64, waited_ms: u64) {
        self.bytes += bytes;
        self.waited_ms += waited_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_peer_has_less_and_less_time_and_one_that_is_never_waited_for_keeps_all_of_it() {
        let idle_max = Duration::from_secs(30);
        let pace = Pace { idle_max, bytes_per_sec_min: Some(100) };
        let mut meter = PaceMeter::new(pace);
        meter.moved(1, 0);
        assert_eq!(meter.patience(), idle_max);
        // One byte shortly before each deadline.
        meter.moved(1, 29_000);
        assert_eq!(meter.patience(), Duration::from_millis(1_020));
        meter.moved(1, 29_000);
        assert_eq!(meter.patience(), Duration::ZERO);
        // More bytes restore the time, up to the longest permitted wait.
        meter.moved(10_000, 0);
        assert_eq!(meter.patience(), idle_max);
        let mut without_rate = PaceMeter::new(Pace::without_rate(idle_max));
        without_rate.moved(1, 1_000_000);
        assert_eq!(without_rate.patience(), idle_max);
    }
}
