//! Detects an upload that stalls.
//!
//! While an upload stalls, its permit is released for other requests (see [`super::uploads`]). The length of a single
//! pause is not enough to detect that: a client that sends one byte every few milliseconds never pauses for long, and
//! would keep its permit as long as it likes. So the detector compares bytes with waiting time. An upload keeps its
//! permit if each [`BYTES_TO_KEEP_PERMIT`] arrive before the waits for them add up to [`PAUSE_MAX`], and regains it
//! after [`BYTES_TO_REGAIN_PERMIT`] at that rate. Time in which the backend does not read does not count.

use std::time::Duration;

/// The longest wait for the client, in total for one step of the upload: the next [`BYTES_TO_KEEP_PERMIT`] or
/// [`BYTES_TO_REGAIN_PERMIT`]. Packets of a client that sends steadily are closer together.
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(5);
/// One step of an upload that flows: 8 KiB in 5 ms are 13 Mbit/s.
const BYTES_TO_KEEP_PERMIT: usize = 8 * 1024;
/// One step of an upload that stalls. It is larger, so that a client that sends in bursts does not regain a permit with
/// each burst.
const BYTES_TO_REGAIN_PERMIT: usize = 64 * 1024;

/// The progress of one upload.
#[derive(Debug)]
pub(crate) struct Flow {
    is_stalled: bool,
    /// The bytes of the current step that have arrived.
    bytes: usize,
    /// The time that is left to wait for the rest of the step.
    patience: Duration,
}

impl Flow {
    /// An upload that flows.
    pub(crate) const fn new() -> Self {
        Self { is_stalled: false, bytes: 0, patience: PAUSE_MAX }
    }

    /// The longest wait for the next bytes before the upload stalls.
    pub(crate) const fn patience(&self) -> Duration {
        self.patience
    }

    /// More bytes came after this wait.
    pub(crate) fn waited(&mut self, wait: Duration) {
        self.patience = self.patience.saturating_sub(wait);
    }

    /// Nothing came within [`Self::patience`]: the upload stalls. Returns whether it flowed before.
    pub(crate) fn stall(&mut self) -> bool {
        let was_stalled = self.is_stalled;
        *self = Self { is_stalled: true, ..Self::new() };
        !was_stalled
    }

    /// Adds received bytes. Returns whether the upload flows again.
    pub(crate) fn feed(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        if self.bytes < if self.is_stalled { BYTES_TO_REGAIN_PERMIT } else { BYTES_TO_KEEP_PERMIT } {
            return false;
        }
        let was_stalled = self.is_stalled;
        *self = Self::new();
        was_stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends pieces of this many bytes, each after a wait. Returns whether the upload stalled in between, and whether
    /// it flows in the end.
    fn send(flow: &mut Flow, pieces: usize, bytes: usize, wait: Duration) -> (bool, bool) {
        let mut stalled = false;
        for _ in 0..pieces {
            if wait > flow.patience() {
                stalled |= flow.stall();
            } else {
                flow.waited(wait);
            }
            flow.feed(bytes);
        }
        (stalled, !flow.is_stalled)
    }

    #[test]
    fn a_trickle_stalls_however_short_its_pauses_are() {
        for wait_us in [1, 100, 1000, 4999] {
            let mut flow = Flow::new();
            let pieces = 2 * PAUSE_MAX.as_micros() as usize / wait_us + 2;
            assert_eq!(send(&mut flow, pieces, 1, Duration::from_micros(wait_us as u64)), (true, false), "{wait_us}");
        }
    }

    #[test]
    fn a_fast_upload_never_stalls_however_long_it_takes() {
        let mut flow = Flow::new();
        assert_eq!(send(&mut flow, 100_000, 1448, Duration::from_micros(100)), (false, true));
        assert_eq!(send(&mut flow, 1_000_000, 1, Duration::ZERO), (false, true), "the gate never waited");
    }

    #[test]
    fn an_upload_flows_again_after_enough_bytes_without_a_long_wait() {
        let mut flow = Flow::new();
        assert!(flow.stall());
        assert!(!flow.stall(), "it stalls already");
        assert!(!flow.feed(BYTES_TO_REGAIN_PERMIT - 1));
        assert!(!flow.stall(), "the step begins again");
        assert!(!flow.feed(BYTES_TO_REGAIN_PERMIT - 1));
        assert!(flow.feed(1));
        assert!(!flow.feed(BYTES_TO_REGAIN_PERMIT), "it flows already");
    }
}
