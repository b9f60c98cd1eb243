//! The script that decides in the store, and the command that calls it.

use redis::Cmd;

use super::rule::ClaimBytes;

/// The store's clock is the only clock that all gates share.
const CLOCK: &str = "local time = redis.call('TIME')\n";
const BODY: &str = include_str!("script.lua");

/// The script by its text and by its digest.
#[derive(Clone, Debug)]
pub(super) struct Script {
    text: String,
    digest: String,
}

impl Script {
    pub(super) fn new() -> Self {
        Self::with_clock(CLOCK)
    }

    /// The script on another clock: `clock` makes a `time` of seconds and microseconds.
    pub(super) fn with_clock(clock: &str) -> Self {
        let text = format!("{clock}{BODY}");
        let digest = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, digest }
    }

    /// The command that makes the script known to a server.
    pub(super) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&self.text);
        command
    }

    /// The command that runs the script on the errands of several requests, one after the other.
    pub(super) fn call<'call>(&self, requests: impl Iterator<Item = &'call [Errand]> + Clone) -> Cmd {
        let count: usize = requests.clone().map(<[Errand]>::len).sum();
        let names: usize = requests.clone().flatten().map(|errand| errand.slot.len()).sum();
        let mut command = Cmd::with_capacity(3 + 2 * count, 64 + names + count * size_of::<ClaimBytes>());
        command.arg("EVALSHA").arg(&self.digest).arg(count);
        for errand in requests.clone().flatten() {
            command.arg(&errand.slot[..]);
        }
        // The same once more is not said again, and at the end not even that: callers of one rule mostly ask the same.
        let (mut before, mut same) = (None, 0);
        for errands in requests {
            for (place, errand) in errands.iter().enumerate() {
                let mut claim = errand.claim;
                if place + 1 == errands.len() {
                    claim[OPERATION_AT] |= LAST;
                }
                if before == Some(claim) {
                    same += 1;
                    continue;
                }
                for _ in 0..core::mem::take(&mut same) {
                    command.arg(&[][..] as &[u8]);
                }
                command.arg(&claim[..]);
                before = Some(claim);
            }
        }
        command
    }
}

/// Where the operation is in a claim, and what is added to that of a request's last one.
const OPERATION_AT: usize = 1;
const LAST: u8 = 8;

/// What to do for one rule and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Errand {
    /// The name under which the state is kept.
    pub(super) slot: Vec<u8>,
    /// The rule's figures and what to do, as the script reads them.
    pub(super) claim: ClaimBytes,
}
