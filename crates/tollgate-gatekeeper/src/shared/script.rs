//! The script that decides in the store, and the command that calls it.

use redis::Cmd;

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

    /// The command that runs the script on `errands`.
    pub(super) fn call(&self, errands: &[Errand]) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.digest).arg(errands.len());
        for errand in errands {
            command.arg(&errand.slot);
        }
        for errand in errands {
            command.arg(&errand.claim);
        }
        command
    }
}

/// What to do for one rule and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Errand {
    /// The name under which the state is kept.
    pub(super) slot: Vec<u8>,
    /// The rule's figures and what to do, as the script reads them.
    pub(super) claim: Vec<u8>,
}
