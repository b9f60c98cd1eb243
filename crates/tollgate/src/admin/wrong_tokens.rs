//! Delays responses to wrong tokens.
//!
//! A valid token is accepted at once, from any address and after any number of wrong ones, so guesses cannot be
//! rejected before they are checked. They are slowed down instead: the response to a wrong token is delayed, and the
//! connection is closed.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Semaphore;

/// Delay of the response to a wrong token.
const DELAY: Duration = Duration::from_secs(1);
/// Responses delayed at once. Each occupies a connection, and the connections of one network have to suffice for these
/// and for its operators. Further responses are sent at once; a guess then costs a connection.
const DELAYED_MAX: usize = super::connections::PER_NETWORK_MAX / 4;

/// Marks the response to a wrong token.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrongToken;

/// Counter and delay of wrong tokens.
pub(super) struct WrongTokens {
    pub(super) count: Counter,
    delayed: Semaphore,
}

impl Default for WrongTokens {
    fn default() -> Self {
        Self { count: Counter::default(), delayed: Semaphore::new(DELAYED_MAX) }
    }
}

impl WrongTokens {
    /// Delays a response.
    pub(super) async fn delay(&self) {
        if let Ok(_permit) = self.delayed.try_acquire() {
            tokio::time::sleep(DELAY).await;
        }
    }
}
