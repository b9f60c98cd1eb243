//! The fair queue in front of the backend, for all workers.
//!
//! The queue is at the gate, not in the backend: only here can the order be chosen. At most as many requests as keep the backend busy are
//! at it at once; the rest wait, and the one whose client has had least of its share goes next. The order, the prices and the number
//! at once are the core's ([`FairQueue`](tollgate_core::fairness::FairQueue), [`VirtualClock`](tollgate_core::virtual_clock::VirtualClock),
//! [`Concurrency`](tollgate_core::concurrency::Concurrency)); this is the part that waits and wakes.
//!
//! While nobody waits and there is room for all who come nobody takes a lock ([`calm`]). Otherwise there is one ([`state`]), held for the arithmetic of one
//! event and never while anybody waits.

mod calm;
mod counts;
mod glance;
mod place;
mod roll;
mod state;
#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_core::fairness::Client;
use tollgate_core::network::Network;
use tollgate_core::prediction::RouteKey;
use tollgate_core::time::{Moment, Span};
use tollgate_core::virtual_clock::Load;
use tollgate_gatekeeper::clock::Clock;

use super::kernel::{Usage, Used};
use crate::settings::Gate as Settings;
use calm::Calm;
use counts::Counts;
use glance::Glance;
use place::Waiting;
pub(crate) use place::{Outcome, Place};
use roll::Roll;
use state::{Busy, Entry, State};

/// Never more requests at the backend than this, whatever is measured.
pub(super) const AT_ONCE_MAX: u32 = 4096;
/// How often what the backend really uses is looked at.
const LOOK_EVERY: Span = Span::from_millis(50);
/// Prefixes of an address, its network and its block, in IPv4 and in IPv6.
pub(super) const LEVELS: [(u8, u8); 3] = [(32, 64), (24, 56), (16, 48)];

/// The queue of all workers.
pub(crate) struct Queue {
    clock: Clock,
    hasher: RandomState,
    calm: Arc<Calm>,
    glance: Glance,
    counts: Counts,
    roll: Roll,
    /// What tells how much CPU time the backend uses, if anything does.
    usage: Mutex<Option<Metered>>,
    state: Mutex<State>,
}

struct Metered {
    group: PathBuf,
    usage: Usage,
    looked_at: Moment,
}

impl Metered {
    fn new(group: &Path) -> Self {
        Self { group: group.to_owned(), usage: Usage::of_group(group), looked_at: Moment::ZERO }
    }
}

/// What a queue shows of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    /// CPU time charged, in nanoseconds.
    pub(crate) toll_ns: u64,
    /// Requests that have waited.
    pub(crate) waited: u64,
    /// Requests turned away because too many waited.
    pub(crate) turned_away: u64,
    /// Requests that wait now.
    pub(crate) waiting: u64,
    /// How many requests may be at the backend.
    pub(crate) at_once: u64,
    /// Waiting time of the requests that went since [`Queue::take_wait`], and how many those were that did not pass in calm.
    wait_ns: u64,
    went: u64,
}

/// Why a request does not get a place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    /// When its turn would come.
    pub(crate) retry_after: Span,
    /// Whether that is because of what its own client has waiting, rather than of everybody's.
    pub(crate) own: bool,
}

impl Queue {
    pub(crate) fn new(settings: &Settings, clock: Clock) -> Arc<Self> {
        let calm = Arc::new(Calm::new(settings.cores));
        let state = State::new(settings, fairness(settings), calm.clone(), clock.now());
        Arc::new(Self {
            clock,
            hasher: RandomState::new(),
            calm,
            glance: Glance::new(),
            counts: Counts::new(),
            roll: Roll::new(),
            usage: Mutex::new(settings.toll.cgroup.as_deref().map(Metered::new)),
            state: Mutex::new(state),
        })
    }

    /// What a request of this route is expected to cost.
    pub(crate) fn expected(&self, route: RouteKey) -> Span {
        self.glance.at(route).1
    }

    /// A place at the backend, now or when it is this request's turn, but no later than after `wait_max`. Whoever stops waiting leaves.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        address: IpAddr,
        route: RouteKey,
        wait_max: Span,
    ) -> Result<Place, Refused> {
        let (load, expected) = self.glance.at(route);
        if let Some(began) = self.calm.enter(load, self.clock.now()) {
            self.calm.add_cost(expected);
            self.counts.went();
            return Ok(Place::calm(self, address, route, began, expected));
        }
        let client = self.client(address);
        let entry = self.busy().arrive(client, route)?;
        let (ticket, woken) = match entry {
            Entry::Goes(grant) => return Ok(Place::noticed(self, address, route, &grant)),
            Entry::Waits(ticket, woken) => (ticket, woken),
        };
        let mut waiting = Waiting { queue: self, ticket, woken };
        let turned = match tokio::time::timeout(wait_max.into(), &mut waiting.woken).await {
            Ok(Ok(Ok(grant))) => return Ok(Place::noticed(self, address, route, &grant)),
            Ok(Ok(Err(turned))) => Some(turned),
            Ok(Err(_)) => None,
            Err(_) => self.busy().give_up(ticket),
        };
        // A grant that came in the same instant is given back by the guard.
        Err(Refused { retry_after: turned.map_or(Span::from_secs(1), |turned| turned.retry_after), own: false })
    }

    /// Does what is due without anybody coming or going. Any worker may call this at any time.
    pub(crate) fn tick(&self) {
        // Whoever comes second has nothing to do.
        if let Ok(mut usage) = self.usage.try_lock()
            && let Some(metered) = usage.as_mut()
            && self.clock.now().since(metered.looked_at) >= LOOK_EVERY
        {
            metered.looked_at = self.clock.now();
            let used = metered.usage.look();
            self.busy().measure(used);
        }
        if self.calm.is_busy() {
            let mut busy = self.busy();
            busy.charge_overruns(&self.roll, |address| self.client(address));
        }
    }

    /// Takes over other settings. Who waits goes on waiting.
    pub(crate) fn reload(&self, settings: &Settings) {
        let group = settings.toll.cgroup.as_deref();
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        if usage.as_ref().map(|metered| metered.group.as_path()) != group {
            *usage = group.map(Metered::new);
            self.busy().measure(Used::Unknown);
        }
        drop(usage);
        self.busy().reload(settings, fairness(settings));
    }

    /// What is shown.
    pub(crate) fn figures(&self) -> Figures {
        let state = self.state();
        let at_once = state.places().open.as_256ths() / Load::ONE.as_256ths();
        let (waiting, toll_ns) = (state.queue.waiting() as u64, self.counts.toll_ns());
        Figures { toll_ns, waiting, at_once, ..state.figures }
    }

    /// How much is at the backend, in whole requests.
    pub(crate) fn at_backend(&self) -> u64 {
        let load = self.calm.load().unwrap_or_else(|| self.state().in_service());
        load.as_256ths() / Load::ONE.as_256ths()
    }

    /// How long requests have waited on average since the last call.
    pub(crate) fn take_wait(&self) -> Span {
        let mut state = self.state();
        let went = state.figures.went.saturating_add(self.counts.take_went());
        let wait = state.figures.wait_ns.checked_div(went).unwrap_or(0);
        (state.figures.wait_ns, state.figures.went) = (0, 0);
        Span::from_nanos(wait)
    }

    fn client(&self, address: IpAddr) -> Client {
        let hash = |(v4, v6): (u8, u8)| {
            let network = Network::of(address, if address.is_ipv4() { v4 } else { v6 });
            self.hasher.hash_one(network)
        };
        let [address, network, block] = LEVELS.map(hash);
        Client { address, network, block }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in there can be half done: a panic leaves at worst a request uncounted.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn busy(&self) -> Busy<'_> {
        let state = self.state();
        let now = self.clock.now();
        Busy::new(state, now)
    }
}

fn fairness(settings: &Settings) -> tollgate_core::fairness::Settings {
    tollgate_core::fairness::Settings {
        shares: settings.fairness,
        cores: settings.cores,
        per_key: settings.hold.per_key as usize,
        total: settings.hold.total as usize,
        ..tollgate_core::fairness::Settings::default()
    }
}
