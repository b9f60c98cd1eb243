//! Delays responses to wrong tokens at the admin address, to slow down guessing.
//!
//! A valid token is accepted at once, from any address and after any number of wrong ones, so guesses cannot be
//! rejected before they are checked. They are slowed down instead: [`super::guard`] delays the response to a wrong
//! token and closes the connection.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::Semaphore;

/// Delay of the response to a wrong token.
const DELAY: Duration = Duration::from_secs(1);
/// Responses delayed at once. Each occupies a connection, and the connections of one network have to suffice for these
/// and for its operators. Further responses are sent at once; a guess then costs a connection.
const DELAYED_MAX: usize = super::connections::PER_NETWORK_MAX / 4;

/// An extension of a response that marks it as the response to a wrong token.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrongToken;

/// Counts wrong tokens and delays the responses to them.
pub(super) struct WrongTokens {
    /// The metric `tollgate_admin_wrong_tokens`.
    pub(super) count: Counter,
    /// Permits for delayed responses.
    delayed: Semaphore,
}

impl Default for WrongTokens {
    fn default() -> Self {
        Self { count: Counter::default(), delayed: Semaphore::new(DELAYED_MAX) }
    }
}

impl WrongTokens {
    /// Waits for [`DELAY`], unless too many responses are being delayed.
    pub(super) async fn delay(&self) {
        if let Ok(_permit) = self.delayed.try_acquire() {
            tokio::time::sleep(DELAY).await;
        }
    }
}
