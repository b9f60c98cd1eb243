//! Tells others that an account was flagged, or its flag cleared.
//!
//! Each is posted as JSON and signed, so that who gets it knows where it is from. What is to be posted is in the journal until it was taken, so that
//! it is posted after a restart as well; what was taken just before one may come twice, with the same `id`. What is not taken is tried again,
//! later and later, and given up after an hour; nobody waits for it, and what waits is bounded. The console and the log have it all the same.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ring::hmac;
use serde_json::json;
use zeroize::Zeroizing;

use super::calendar::rfc3339;
use super::record::Record;
use super::state::Flag;
use super::{Kept, Watch};
use crate::post::Poster;

/// How many announcements wait at most.
const WAITING_MAX: usize = 1024;
/// How often one is tried.
const TRIES: u32 = 64;
/// How long the first pause between two tries is; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(500);
/// And the longest.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Where to announce.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct WebhookSettings {
    /// Whether TLS is spoken.
    pub(crate) tls: bool,
    /// Host and port.
    pub(crate) authority: String,
    /// The path.
    pub(crate) path: String,
    /// What announcements are signed with.
    pub(crate) secret: Zeroizing<Vec<u8>>,
}

impl Watch {
    /// What is to be written down so that a flag is announced, after so many others; none if nobody wants to know, or if too much waits already.
    pub(super) fn announcement(&self, kept: &Kept, after: usize, flag: &Flag) -> Option<Record> {
        self.webhook.load().as_ref()?;
        if kept.state.announcements().len() + after >= WAITING_MAX {
            self.count(&self.counts.announcements_dropped);
            return None;
        }
        let number = kept.state.next_announcement() + after as u64;
        Some(Record::Announce { number, body: body(number, flag) })
    }

    /// The oldest announcement that nobody has taken.
    fn next_announcement(&self) -> Option<(u64, String)> {
        self.kept().state.announcements().front().cloned()
    }

    /// An announcement was taken, or given up.
    fn announced(&self, number: u64, taken: bool) {
        self.count(if taken { &self.counts.announcements } else { &self.counts.announcements_dropped });
        let mut kept = self.kept();
        let record = Record::Announced { number };
        kept.behind |= self.keep(&mut kept, std::slice::from_ref(&record)).is_err();
        kept.state.replay(record, self.calendar.now());
    }
}

fn body(number: u64, flag: &Flag) -> String {
    let cleared = flag.cleared.as_ref();
    let at = cleared.map_or(flag.flagged_at, |cleared| cleared.at);
    json!({
        "id": format!("{:x}-{number:x}", at.as_nanos()),
        "event": if cleared.is_some() { "flag-cleared" } else { "flag-set" },
        "account": flag.account,
        "flagged_at": rfc3339(flag.flagged_at),
        "rejected": flag.rejected,
        "cleared_at": cleared.map(|cleared| rfc3339(cleared.at)),
        "cleared_by": cleared.map(|cleared| &cleared.by),
        "note": cleared.map(|cleared| &cleared.note),
    })
    .to_string()
}

/// Sends what is to be announced, until the process ends. While nobody wants to be told, what waits goes on waiting.
pub(crate) async fn announce_all(watch: Arc<Watch>) {
    loop {
        while let Some((number, body)) = watch.aside(Watch::next_announcement).await.flatten() {
            let Some(taken) = send(&watch, &body).await else { break };
            watch.aside(move |watch| watch.announced(number, taken)).await;
        }
        watch.to_announce.notified().await;
    }
}

/// Sends one until it is taken, to whoever wants to be told by then. Says whether it was; nothing if nobody wants to be told.
async fn send(watch: &Watch, body: &str) -> Option<bool> {
    let mut pause = PAUSE;
    for tried in 1..=TRIES {
        let settings = watch.webhook.load_full()?;
        let Err(error) = post(&settings, body).await else { return Some(true) };
        if tried == 1 {
            tracing::warn!(to = settings.authority, %error, "an announcement of a flag was not taken; it is tried again for an hour");
        }
        if tried == TRIES {
            tracing::warn!(to = settings.authority, %error, "an announcement of a flag was given up");
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Some(false)
}

async fn post(settings: &WebhookSettings, body: &str) -> io::Result<()> {
    let WebhookSettings { tls, authority, path, secret } = settings;
    let signature = format!("sha256={}", signature(secret, body));
    let fields = [("Content-Type", "application/json"), ("X-Tollgate-Signature", signature.as_str())];
    match Poster::new(*tls, authority, path)?.post(&fields, body.as_bytes()).await? {
        200..=299 => Ok(()),
        status => Err(io::Error::other(format!("answered {status}"))),
    }
}

/// The body, under the secret: HMAC-SHA-256, in hexadecimal.
fn signature(secret: &[u8], body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    hmac::sign(&key, body.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 4231, 4.3.
    #[test]
    fn the_signature_is_the_one_that_others_compute() {
        let expect = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(signature(b"Jefe", "what do ya want for nothing?"), expect);
    }
}
