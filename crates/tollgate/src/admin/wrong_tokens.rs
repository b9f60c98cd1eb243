//! The delay of answers to wrong tokens.
//!
//! A valid token is accepted at once, from any address and however many wrong ones were shown, so guesses cannot be refused before
//! they are looked at. They are slowed down instead: the answer to a wrong token comes late, and its connection is closed.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Semaphore;

/// The delay of an answer to a wrong token.
const DELAY: Duration = Duration::from_secs(1);
/// Answers that are delayed at once. Each holds a connection, and the connections of one network have to suffice for these and for its
/// operators. Further ones are sent at once; a guess then costs a connection.
const DELAYED_MAX: usize = super::connections::PER_NETWORK_MAX / 4;

/// Marks the answer to a wrong token.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrongToken;

/// The wrong tokens that were shown.
pub(super) struct WrongTokens {
    count: Counter,
    delayed: Semaphore,
}

impl Default for WrongTokens {
    fn default() -> Self {
        Self { count: Counter::default(), delayed: Semaphore::new(DELAYED_MAX) }
    }
}

impl WrongTokens {
    /// Counts a wrong token.
    pub(super) fn note(&self) {
        self.count.inc();
    }

    /// The number of wrong tokens, as a metric.
    pub(super) fn count(&self) -> Counter {
        self.count.clone()
    }

    /// Waits before an answer.
    pub(super) async fn delay(&self) {
        if let Ok(_permit) = self.delayed.try_acquire() {
            tokio::time::sleep(DELAY).await;
        }
    }
}
