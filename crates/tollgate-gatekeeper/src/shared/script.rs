//! The commands that load the script `script.lua` into the store and call it.

use redis::Cmd;

use super::rule::ClaimBytes;

/// Sets the script's time to the store's clock, the only one that all gates share.
const CLOCK: &str = "local time = redis.call('TIME')\n";
/// The script without its clock, which tests replace.
const BODY: &str = include_str!("script.lua");

/// The script's text, and the digest by which the store knows it.
#[derive(Clone, Debug)]
pub(super) struct Script {
    text: String,
    digest: String,
}

impl Script {
    pub(super) fn new() -> Self {
        Self::with_clock(CLOCK)
    }

    /// The script with another clock: `clock` must define `time` as seconds and microseconds.
    pub(super) fn with_clock(clock: &str) -> Self {
        let text = format!("{clock}{BODY}");
        let digest = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, digest }
    }

    /// The command that loads the script.
    pub(super) fn load(&self) -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(&self.text);
        command
    }

    /// The command that runs the script on the errands of several requests, in order. After `deadline_us` on the
    /// store's clock, nothing is decided.
    pub(super) fn call<'call>(
        &self,
        requests: impl Iterator<Item = &'call [Errand]> + Clone,
        deadline_us: Option<u64>,
    ) -> Cmd {
        let count: usize = requests.clone().map(<[Errand]>::len).sum();
        let names: usize = requests.clone().flatten().map(|errand| errand.slot.len()).sum();
        let mut command = Cmd::with_capacity(4 + 2 * count, 80 + names + count * size_of::<ClaimBytes>());
        command.arg("EVALSHA").arg(&self.digest).arg(count);
        for errand in requests.clone().flatten() {
            command.arg(&errand.slot[..]);
        }
        match deadline_us {
            Some(deadline_us) => command.arg(deadline_us),
            None => command.arg(&[][..] as &[u8]),
        };
        // A repeated claim is sent as an empty argument, and omitted at the end, because most callers of a
        // rule have the same claim.
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

/// The position of the operation in a claim.
const OPERATION_AT: usize = 1;
/// The flag of a request's last claim, which is added to the operation.
const LAST: u8 = 8;

/// An operation of the script for one rule and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Errand {
    /// The name of the value in the store that has the state of the key.
    pub(super) slot: Vec<u8>,
    /// The rule's parameters and the operation, in the script's format.
    pub(super) claim: ClaimBytes,
}
