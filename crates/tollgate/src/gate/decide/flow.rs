//! Whether the rest of a request comes as fast as a backend could take it.
//!
//! An upload's place at the backend is for others while its client keeps the backend waiting (see [`super::uploads`]). A pause alone does not
//! tell: who sends a byte every few milliseconds never makes one, and would keep its place for as long as it likes. So it is told by what
//! comes for the waiting: an upload keeps its place if each [`KEEPS`] of it are here before they have been waited for longer than
//! [`PAUSE_MAX`], all waits together, and has it again when [`REGAINS`] are. The backend's own waits are no waits for the client.

use std::time::Duration;

use crate::gate::http::conversation::PAUSE_MAX;

/// So much has to come: 13 Mbit/s.
const KEEPS: usize = 8 * 1024;
/// The same where it was waited for in vain. More, so that who sends in bursts does not take a place with each.
const REGAINS: usize = 64 * 1024;

/// How the rest of one request comes.
#[derive(Debug)]
pub(crate) struct Flow {
    starved: bool,
    /// What has come of the part that is on its way, and how long it may still be waited for.
    bytes: usize,
    patience: Duration,
}

impl Flow {
    /// A request that has come quickly so far.
    pub(crate) const fn new() -> Self {
        Self { starved: false, bytes: 0, patience: PAUSE_MAX }
    }

    /// How long more may be waited for before it starves.
    pub(crate) const fn patience(&self) -> Duration {
        self.patience
    }

    /// Something has come after a wait of so long.
    pub(crate) fn waited(&mut self, wait: Duration) {
        self.patience = self.patience.saturating_sub(wait);
    }

    /// Nothing has come for as long as may be waited. Says whether that is news.
    pub(crate) fn starve(&mut self) -> bool {
        let was_starved = self.starved;
        *self = Self { starved: true, ..Self::new() };
        !was_starved
    }

    /// So many bytes have come. Says whether it flows again.
    pub(crate) fn feed(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        if self.bytes < if self.starved { REGAINS } else { KEEPS } {
            return false;
        }
        let was_starved = self.starved;
        *self = Self::new();
        was_starved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of so many bytes, each after a wait; says whether it starves on the way and whether it flows in the end.
    fn send(flow: &mut Flow, pieces: usize, bytes: usize, wait: Duration) -> (bool, bool) {
        let mut starved = false;
        for _ in 0..pieces {
            if wait > flow.patience() {
                starved |= flow.starve();
            } else {
                flow.waited(wait);
            }
            flow.feed(bytes);
        }
        (starved, !flow.starved)
    }

    #[test]
    fn bytes_that_trickle_starve_it_however_short_their_pauses_are() {
        for wait_us in [1, 100, 1000, 4999] {
            let mut flow = Flow::new();
            let pieces = 2 * PAUSE_MAX.as_micros() as usize / wait_us + 2;
            assert_eq!(send(&mut flow, pieces, 1, Duration::from_micros(wait_us as u64)), (true, false), "{wait_us}");
        }
    }

    #[test]
    fn what_comes_quickly_never_starves_it_however_long_it_goes_on() {
        let mut flow = Flow::new();
        assert_eq!(send(&mut flow, 100_000, 1448, Duration::from_micros(100)), (false, true));
        assert_eq!(send(&mut flow, 1_000_000, 1, Duration::ZERO), (false, true), "nobody waited");
    }

    #[test]
    fn it_flows_again_when_enough_has_come_without_a_long_wait() {
        let mut flow = Flow::new();
        assert!(flow.starve());
        assert!(!flow.starve(), "it did already");
        assert!(!flow.feed(REGAINS - 1));
        assert!(!flow.starve(), "all of that has to come again");
        assert!(!flow.feed(REGAINS - 1));
        assert!(flow.feed(1));
        assert!(!flow.feed(REGAINS), "it does already");
    }
}
