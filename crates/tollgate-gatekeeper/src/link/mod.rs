//! The link to masters: what this process let through goes there, and whom to delay comes from there.
//!
//! Decisions never wait for it. They drop what they did into a [`Relay`], and whoever a master delays is delayed in the limiter's own records.
//! Between the two is one thread with everything that can block, fail or be attacked: connections that are made again when they
//! break, at growing and random pauses, so that a thousand gates do not come back in one instant; and what is to be said, which is dropped
//! and counted while nobody hears it. A message queue's sockets would keep it, and charge clients at the end of an outage for
//! what was forgiven long ago.

mod accounting;
mod bound_names;
mod connect;
mod control;
mod desk;
mod figures;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::Notify;
use tokio::task::LocalSet;
use tollgate_core::fleet::Instruction;
use tollgate_core::time::Moment;
use tollgate_wire::zmtp::Identity;
pub use tollgate_wire::zmtp::{KeyError, KeyPair, PublicKey};

pub use connect::{Endpoint, NoEndpoint, draw_entropy};
use desk::Desk;
pub use figures::{MasterFigures, MasterReport};

use crate::clock::Clock;
use crate::relay::Relay;

/// Whom to report to, and about what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// The masters.
    pub masters: Vec<MasterSettings>,
    /// One of how many refusals is reported; none are if absent.
    pub refusals_sampled: Option<u32>,
    /// How many identifiers are counted at most for each master.
    pub identifiers_max: usize,
    /// Whether reports say what a request was about and what CPU time it took, in Smockron's log info.
    pub log_info: bool,
    /// The keys that masters know this process by.
    pub keys: Option<Arc<KeyPair>>,
}

/// One master, and the rules that it keeps the books of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterSettings {
    /// Where it hears reports.
    pub accounting: Endpoint,
    /// Where it says whom to delay.
    pub control: Endpoint,
    /// Its public key, if the link is authenticated.
    pub key: Option<PublicKey>,
    /// The rules.
    pub rules: Vec<LinkedRule>,
}

impl MasterSettings {
    /// Who this process is to this master, on a link that is authenticated.
    fn identity(&self, keys: Option<&Arc<KeyPair>>) -> Option<Identity> {
        Some(Identity::Client { keys: keys?.clone(), server: self.key? })
    }
}

/// A rule that a master knows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedRule {
    /// Its name here.
    pub rule: String,
    /// The domain that the master keeps its books under. Different for all rules of one master.
    pub domain: String,
}

/// Does as a master says: the rule's name, the identifier, and what to do with its record at this moment.
pub type Obey = Box<dyn Fn(&str, &[u8], Instruction, Moment) + Send>;

/// The link, for as long as it lives.
pub struct Link {
    settings: LinkSettings,
    relay: Relay,
    figures: Vec<Arc<MasterFigures>>,
    begin: Arc<Notify>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl core::fmt::Debug for Link {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Link").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Link {
    /// A link that looks for the masters once it is told to [`begin`](Self::begin). `clock` is the one that the limiter decides by.
    pub fn start(settings: LinkSettings, clock: Clock, obey: Obey) -> io::Result<Self> {
        let [woken, begin, stop] = [(); 3].map(|()| Arc::new(Notify::new()));
        let rules =
            settings.masters.iter().flat_map(|master| &master.rules).map(|linked| linked.rule.clone()).collect();
        let wake = woken.clone();
        let relay = Relay::new(rules, settings.refusals_sampled, settings.log_info, move || wake.notify_one());
        let figures: Vec<_> = settings.masters.iter().map(|_| Arc::new(MasterFigures::default())).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = {
            let (settings, relay, figures) = (settings.clone(), relay.clone(), figures.clone());
            let (begin, stop) = (begin.clone(), stop.clone());
            move || {
                let desk = Rc::new(Desk::new(&settings, relay, &figures, clock, obey, woken));
                let serve = async {
                    begin.notified().await;
                    for master in 0..settings.masters.len() {
                        tokio::task::spawn_local(control::run(desk.clone(), master));
                        tokio::task::spawn_local(accounting::run(desk.clone(), master));
                    }
                    desk.clone().carry_on().await;
                };
                LocalSet::new().block_on(&runtime, async {
                    tokio::select! {
                        () = serve => {}
                        () = stop.notified() => {}
                    }
                });
            }
        };
        let thread = std::thread::Builder::new().name("link".to_string()).spawn(run)?;
        Ok(Self { settings, relay, figures, begin, stop, thread: Some(thread) })
    }

    /// Begins to look for the masters. What is in force is told to whoever comes, once: so nobody comes before there are records that can be
    /// changed.
    pub fn begin(&self) {
        self.begin.notify_one();
    }

    /// Where decisions drop what masters are to hear.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// What it was started with.
    pub fn settings(&self) -> &LinkSettings {
        &self.settings
    }

    /// How it goes with each master, in the order of the settings.
    pub fn masters(&self) -> impl Iterator<Item = (&MasterSettings, MasterReport)> {
        self.settings.masters.iter().zip(&self.figures).map(|(master, figures)| (master, figures.read()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.notify_one();
        // Whoever carries out an order may be the last to let go of the link, and cannot wait for itself.
        let other = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id());
        if let Some(thread) = other
            && thread.join().is_err()
        {
            // It has said why where panics are said. Decisions go on without masters.
            debug_assert!(std::thread::panicking(), "the link's thread panicked");
        }
    }
}
