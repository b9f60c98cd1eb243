//! The link to masters, the processes that share the state of rules between gates: sends reports about requests, and
//! receives orders to delay clients. The gate uses it, and the tower layer of services that are linked to masters.
//!
//! Decisions never wait for the link. They write events to a [`Relay`], and orders change the limiter's own
//! records. One thread between them does everything that can block, fail or be attacked: it reconnects with
//! jittered backoff, so that a thousand gates do not reconnect at once, and it drops and counts reports while
//! no master is connected. The sockets of a message queue would keep them, and clients would be charged at
//! the end of an outage for requests that were paid back long ago.
//!
//! Smockron is an earlier rate limiter with gates and masters; its programs are called *original*.

mod accounting;
mod connect;
mod control;
mod dispatcher;
mod identifier_cache;
mod master_metrics;

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{Notify, mpsc};
use tokio::task::LocalSet;
use tollgate_core::fleet::Instruction;
use tollgate_core::time::Moment;
pub use tollgate_wire::zmtp::{KeyError, KeyPair, PublicKey};

pub use connect::{Endpoint, EndpointError, draw_entropy};
use dispatcher::Dispatcher;
pub use master_metrics::{MasterMetrics, MasterReport};

use crate::clock::Clock;
use crate::relay::Relay;

/// The masters and the reported rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkSettings {
    /// The masters.
    pub masters: Vec<MasterSettings>,
    /// One of this many refusals is reported; `None` reports none.
    pub refusals_sampled: Option<u32>,
    /// The maximum number of identifiers that are counted per master.
    pub identifiers_max: usize,
    /// Whether reports describe requests and their CPU time, in Smockron's log info.
    pub log_info: bool,
    /// The key pair that identifies this process to masters.
    pub keys: Option<Arc<KeyPair>>,
}

/// One master and its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterSettings {
    /// The endpoint for reports.
    pub accounting: Endpoint,
    /// The endpoint for orders.
    pub control: Endpoint,
    /// The master's public key, if the connection is authenticated.
    pub key: Option<PublicKey>,
    /// The rules.
    pub rules: Vec<LinkedRule>,
}

impl LinkSettings {
    /// One master without authentication, which accounts for these rules under the same domains as for the rules of a
    /// gate with default settings.
    ///
    /// A gate and this process share a rule if name, class and limit are the same and the gate's has `state =
    /// "master"`.
    pub fn new<'a>(accounting: Endpoint, control: Endpoint, rules: impl IntoIterator<Item = &'a str>) -> Self {
        let rule = |rule: &str| LinkedRule { rule: rule.into(), domain: format!("default/{rule}") };
        let master = MasterSettings { accounting, control, key: None, rules: rules.into_iter().map(rule).collect() };
        Self { masters: vec![master], refusals_sampled: None, identifiers_max: 65_536, log_info: false, keys: None }
    }
}

/// A rule that a master accounts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkedRule {
    /// The rule's name in this process.
    pub rule: String,
    /// The domain under which the master accounts for it. It must be unique among the rules of one master.
    pub domain: String,
}

/// Applies an order: the rule's name, the identifier, and the instruction for its record at this moment.
pub type ApplyOrder = Box<dyn Fn(&str, &[u8], Instruction, Moment) + Send>;

/// The link and its thread.
#[derive(Debug)]
pub struct Link {
    /// The settings of the link.
    pub settings: LinkSettings,
    /// The relay to which decisions write.
    pub relay: Relay,
    /// One for each master.
    metrics: Vec<Arc<MasterMetrics>>,
    /// Passes the argument of [`begin`](Self::begin) to the thread, which waits for it.
    begin: mpsc::Sender<ApplyOrder>,
    /// Ends the thread.
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Link {
    /// Creates a link, which connects after [`begin`](Self::begin). `clock` must be the limiter's.
    pub fn start(settings: LinkSettings, clock: Clock) -> io::Result<Self> {
        let [wake, stop] = [(); 2].map(|()| Arc::new(Notify::new()));
        let (begin, mut begun) = mpsc::channel(1);
        let rules =
            settings.masters.iter().flat_map(|master| &master.rules).map(|linked| linked.rule.clone()).collect();
        let wake_link = wake.clone();
        let relay = Relay::new(rules, settings.refusals_sampled, settings.log_info, move || wake_link.notify_one());
        let metrics: Vec<_> = settings.masters.iter().map(|_| Arc::new(MasterMetrics::default())).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = {
            let (settings, relay, metrics) = (settings.clone(), relay.clone(), metrics.clone());
            let stop = stop.clone();
            move || {
                let serve = async {
                    let Some(apply_order) = begun.recv().await else { return };
                    let dispatcher = Rc::new(Dispatcher::new(&settings, relay, &metrics, clock, apply_order, wake));
                    for master in 0..settings.masters.len() {
                        tokio::task::spawn_local(control::run(dispatcher.clone(), master));
                        tokio::task::spawn_local(accounting::run(dispatcher.clone(), master));
                    }
                    dispatcher.run().await;
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
        Ok(Self { settings, relay, metrics, begin, stop, thread: Some(thread) })
    }

    /// Starts to connect to the masters, and passes their orders to `apply_order`. A master sends the debts that it
    /// knows once, after a connection, so the rules must exist before this call. Later calls have no effect.
    pub fn begin(&self, apply_order: ApplyOrder) {
        let _ = self.begin.try_send(apply_order);
    }

    /// A snapshot of the metrics of each master, in the order of the settings.
    pub fn masters(&self) -> impl Iterator<Item = (&MasterSettings, MasterReport)> {
        self.settings.masters.iter().zip(&self.metrics).map(|(master, metrics)| (master, metrics.read()))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.notify_one();
        // The link's own thread may drop the last reference while it applies an order, and cannot join
        // itself.
        let other = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id());
        if let Some(thread) = other
            && thread.join().is_err()
        {
            // The panic message was printed. Decisions continue without masters.
            debug_assert!(std::thread::panicking(), "the link's thread panicked");
        }
    }
}
