//! Announces flags that are set or cleared to a webhook, an HTTP address in the settings.
//!
//! Each announcement is posted as JSON with an HMAC signature. It stays in the journal until it is accepted, so it is
//! also posted after a restart; an announcement that was accepted just before a crash may be posted twice, with the
//! same `id`. Failed posts are retried with exponential backoff for about an hour. Nothing waits for the webhook, and
//! the number of pending announcements is bounded. The console and the log show flags in any case.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ring::hmac;
use serde_json::json;
use zeroize::Zeroizing;

use super::record::Record;
use super::state::Flag;
use super::{JournaledState, Watch};
use crate::hex;
use crate::post::Poster;
use crate::settings::WebUrl;

/// Bound of pending announcements.
const PENDING_MAX: usize = 1024;
/// Attempts per announcement; with the pauses below, about an hour.
const ATTEMPTS_MAX: u32 = 64;
/// Pause after the first failed attempt; it doubles with each further one.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause between two attempts.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Address and key of the webhook.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct WebhookSettings {
    pub(crate) url: WebUrl,
    /// Key of the HMAC signature.
    pub(crate) secret: Zeroizing<Vec<u8>>,
}

impl Watch {
    /// Record that queues an announcement; `None` if no webhook is set or too many are pending. `queued_before` is the
    /// number of such records that the caller has made but not applied yet.
    pub(super) fn announcement(
        &self,
        journaled: &JournaledState,
        queued_before: usize,
        flag: &Flag,
    ) -> Option<Record<'static>> {
        self.webhook.load().as_ref()?;
        if journaled.state.announcements.len() + queued_before >= PENDING_MAX {
            self.count(&self.counts.announcements_dropped);
            return None;
        }
        let number = journaled.state.next_announcement + queued_before as u64;
        Some(Record::Announce { number, body: body(number, flag) })
    }

    /// Removes an announcement that was accepted or given up.
    fn announced(&self, number: u64, is_accepted: bool) {
        self.count(if is_accepted { &self.counts.announcements } else { &self.counts.announcements_dropped });
        let mut journaled = self.lock();
        let record = Record::Announced { number };
        journaled.has_unwritten |= self.append_records(&mut journaled, std::slice::from_ref(&record)).is_err();
        journaled.state.replay(record, self.calendar.now());
    }
}

/// The JSON of an announcement. Its `id` stays the same when it is posted again.
fn body(number: u64, flag: &Flag) -> String {
    let cleared = flag.cleared.as_ref();
    let at = cleared.map_or(flag.flagged_at, |cleared| cleared.at);
    let mut body = flag.shown();
    body["id"] = json!(format!("{:x}-{number:x}", at.as_nanos()));
    body["event"] = json!(if cleared.is_some() { "flag-cleared" } else { "flag-set" });
    body.to_string()
}

/// Sends announcements until the process ends. Without a webhook, they stay pending.
pub(crate) async fn announce_all(watch: Arc<Watch>) {
    loop {
        let oldest = |watch: &Watch| watch.lock().state.announcements.front().cloned();
        while let Some((number, body)) = watch.run_blocking(oldest).await.flatten() {
            let Some(is_accepted) = send(&watch, &body).await else { break };
            watch.run_blocking(move |watch| watch.announced(number, is_accepted)).await;
        }
        watch.announcements_ready.notified().await;
    }
}

/// Posts an announcement to the current webhook until it is accepted, at most [`ATTEMPTS_MAX`] times. Returns whether
/// it was accepted, or `None` if there is no webhook.
async fn send(watch: &Watch, body: &str) -> Option<bool> {
    let mut pause = RETRY_PAUSE_MIN;
    for attempt in 1..=ATTEMPTS_MAX {
        let settings = watch.webhook.load_full()?;
        let Err(error) = post(&settings, body).await else { return Some(true) };
        if attempt == 1 {
            tracing::warn!(to = settings.url.authority, %error, "webhook failed: retrying the announcement for an hour");
        }
        if attempt == ATTEMPTS_MAX {
            tracing::warn!(to = settings.url.authority, %error, "webhook failed for an hour: the announcement is dropped");
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_PAUSE_MAX);
    }
    Some(false)
}

async fn post(settings: &WebhookSettings, body: &str) -> io::Result<()> {
    let signature = format!("sha256={}", signature(&settings.secret, body));
    let fields = [("Content-Type", "application/json"), ("X-Tollgate-Signature", signature.as_str())];
    match Poster::new(settings.url.clone())?.post(&fields, body.as_bytes()).await? {
        200..=299 => Ok(()),
        status => Err(io::Error::other(format!("answered {status}"))),
    }
}

/// HMAC-SHA-256 of the body in hexadecimal.
fn signature(secret: &[u8], body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hex::encode(hmac::sign(&key, body.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test case 2 of RFC 4231 (section 4.3).
    #[test]
    fn the_signature_is_hmac_sha_256() {
        let expect = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(signature(b"Jefe", "what do ya want for nothing?"), expect);
    }
}
