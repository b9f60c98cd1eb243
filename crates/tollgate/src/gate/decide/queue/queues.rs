//! The queues of all backends: one for each, because in-flight limits and prices are those of one backend.
//!
//! A queue is found by the backend's address, so a backend that stays in the settings keeps its queue, and what was
//! learned, across reloads. Requests that wait in the queue of a backend that has left the settings go on waiting
//! there, and are then sent to another backend.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate_core::network::Network;
use tollgate_core::queue::{self as core, Client, Learned, Request, RouteKey};
use tollgate_core::site::{HostPattern, find_site};
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::clock::Clock;

use super::{LEVELS, Queue, QueueStatus, Waits, part_of};
use crate::gate::decide::claims::Claim;
use crate::gate::decide::kernel::CpuUsage;
use crate::settings::{BackendUrl, Gate as Settings};

/// How often the CPU time that the backends use is measured, where it can be.
const MEASURE_EVERY: Span = Span::from_millis(50);

/// One queue per backend.
pub(crate) struct Queues {
    clock: Clock,
    /// Makes the keys of clients.
    hasher: RandomState,
    all: ArcSwap<Arrangement>,
    /// The control group of the backends, if their CPU time is measured.
    metered: Mutex<Option<Metered>>,
}

/// The queues, and the sites whose requests wait in them.
#[derive(Default)]
struct Arrangement {
    queues: Vec<Arc<Queue>>,
    /// The hosts of each site, and the queues of its backends.
    sites: Vec<(Vec<HostPattern>, Vec<Arc<Queue>>)>,
    /// The queues for the hosts of no site.
    others: Vec<Arc<Queue>>,
    /// Counts of the queues that are not there any more.
    gone: QueueStatus,
}

struct Metered {
    usage: CpuUsage,
    measured_at: Moment,
}

impl Queues {
    pub(crate) fn new(settings: &Settings, clock: Clock) -> Self {
        let queues = Self { clock, hasher: RandomState::new(), all: ArcSwap::default(), metered: Mutex::default() };
        queues.reload(settings);
        queues
    }

    /// Takes over other settings. Every new backend gets a queue. Waiting requests go on waiting, and what was learned
    /// about the backends that stay is kept.
    pub(crate) fn reload(&self, settings: &Settings) {
        let group = settings.toll.cgroup.as_deref();
        let mut metered = self.metered.lock();
        *metered = group.map(|group| Metered { usage: CpuUsage::of_group(group), measured_at: Moment::ZERO });
        let before = self.all.load();
        before.queues.iter().for_each(|queue| queue.with_core(|core, now| core.measure(None, now)));
        let arranged = |url: Option<&BackendUrl>| {
            let own = settings.at_backend(url);
            let known = before.queues.iter().find(|known| known.url.as_ref() == url).cloned();
            let queue = known.unwrap_or_else(|| Queue::new(url.cloned(), &own, self.clock.clone()));
            queue.reload(&own);
            queue
        };
        let mut queues: Vec<_> = settings.all_backends().into_iter().map(|url| arranged(Some(url))).collect();
        if queues.is_empty() {
            queues.push(arranged(None));
        }
        // Without backends of its own, a host may wait at any.
        let of_backends = |backends: &[BackendUrl]| -> Vec<Arc<Queue>> {
            let is_at = |queue: &&Arc<Queue>| queue.url.as_ref().is_some_and(|url| backends.contains(url));
            queues.iter().filter(|queue| backends.is_empty() || is_at(queue)).cloned().collect()
        };
        let sites = settings.sites.iter().map(|site| (site.hosts.clone(), of_backends(&site.backends))).collect();
        let others = of_backends(&settings.backends);
        let mut gone = before.gone;
        for left in before.queues.iter().filter(|known| queues.iter().all(|kept| kept.url != known.url)) {
            gone.add(left.state.lock().counts);
        }
        self.all.store(Arc::new(Arrangement { queues, sites, others, gone }));
    }

    /// A request of this address for one of the queues. `bytes` is the memory that it holds while it waits.
    pub(crate) fn request(&self, address: IpAddr, claim: Claim, route: RouteKey, bytes: u32) -> Request {
        Request { client: self.client(address, claim), route, weight_milli: claim.weight_milli, bytes }
    }

    /// The keys of a client.
    pub(crate) fn client(&self, address: IpAddr, claim: Claim) -> Client {
        let Claim { user, tenant, account, .. } = claim;
        let hash = |(v4, v6): (u8, u8)| match user {
            Some(user) => self.hasher.hash_one((user, v4, account)),
            None => {
                let network = Network::of(address, if address.is_ipv4() { v4 } else { v6 });
                self.hasher.hash_one((network, account))
            }
        };
        let [address, network, block] = LEVELS.map(hash);
        Client { block, network, address, tenant }
    }

    /// The queue of a backend. A backend that is not in the settings shares the first queue.
    pub(crate) fn of(&self, url: &BackendUrl) -> Arc<Queue> {
        let all = self.all.load();
        let known = all.queues.iter().find(|known| known.url.as_ref() == Some(url));
        known.unwrap_or(&all.queues[0]).clone()
    }

    /// The first queue. There always is one, also where the settings name no backend.
    pub(crate) fn first(&self) -> Arc<Queue> {
        self.all.load().queues[0].clone()
    }

    /// The queues of all backends.
    pub(crate) fn all(&self) -> Vec<Arc<Queue>> {
        self.all.load().queues.clone()
    }

    /// The queues in which requests with this host can wait.
    pub(crate) fn at_host(&self, host: Option<&[u8]>) -> Vec<Arc<Queue>> {
        let all = self.all.load();
        let site = find_site(all.sites.iter().map(|(hosts, _)| hosts.as_slice()), host.unwrap_or_default());
        site.map_or(&all.others, |site| &all.sites[site].1).clone()
    }

    /// The knowledge about each backend, by its address. Each queue is locked for some microseconds.
    pub(crate) fn learned(&self) -> Vec<(String, Learned)> {
        let learned =
            |queue: &Arc<Queue>| Some((queue.url.as_ref()?.to_string(), queue.with_core(|core, _| core.learned())));
        self.all.load().queues.iter().filter_map(learned).collect()
    }

    /// Starts the queue of a backend from what was learned earlier. False if there is no such backend. Call it before
    /// the first request.
    pub(crate) fn restore(&self, url: &str, learned: &Learned) -> bool {
        let all = self.all.load();
        let known = all.queues.iter().find(|queue| queue.url.as_ref().is_some_and(|known| known.to_string() == url));
        known.inspect(|queue| queue.with_core(|core, now| core.restore(learned, now))).is_some()
    }

    /// The mean cost of requests of this route: the largest of all backends for the host, because it is not known yet
    /// which one serves the request. Also whether none of them knows anything about it.
    pub(crate) fn expected(&self, route: RouteKey, host: Option<&[u8]>) -> (Span, bool) {
        let queues = self.at_host(host).into_iter();
        let prices = queues.map(|queue| queue.with_core(|core, _| core.price(route)));
        prices.fold((Span::ZERO, true), |(mean, unseen), price| (mean.max(price.mean), unseen && price.is_unseen))
    }

    /// Measures the backends' CPU time, if it is time to. Any worker may call this at any time.
    pub(crate) fn tick(&self) {
        // The second worker has nothing to do.
        let Some(mut metered) = self.metered.try_lock() else { return };
        let Some(metered) = metered.as_mut() else { return };
        let now = self.clock.now();
        if now.since(metered.measured_at) < MEASURE_EVERY {
            return;
        }
        metered.measured_at = now;
        let cpu = metered.usage.look();
        let all = self.all.load();
        // All backends are in one control group: its CPU time is split as the requests of each queue are thought to
        // have used it, and evenly if none has.
        let work = |queue: &Arc<Queue>| queue.with_core(core::Queue::unmeasured_nanos) + 1;
        let work: Vec<u64> = all.queues.iter().map(work).collect();
        let total = work.iter().sum();
        for (queue, work) in all.queues.iter().zip(work) {
            let share = cpu.map(|cpu| part_of(cpu, work, total));
            queue.with_core(|core, now| core.measure(share, now));
        }
    }

    /// The sums over all backends.
    pub(crate) fn status(&self) -> QueueStatus {
        let all = self.all.load();
        let mut sum = all.gone;
        all.queues.iter().for_each(|queue| sum.add(queue.status()));
        sum
    }

    /// How long requests have waited since the last call: the mean of all whose wait has ended, or a quarter of the
    /// longest wait, so that a few clients that wait for seconds are not lost among many that do not wait. Requests
    /// that still wait have waited until now: while a backend hangs, no wait ends.
    pub(crate) fn take_wait(&self) -> Span {
        let mut sum = Waits::default();
        for queue in &self.all.load().queues {
            let mut state = queue.state.lock();
            let waits = std::mem::take(&mut state.waits);
            let still = state.waiters.values().map(|waiter| self.clock.now().since(waiter.since)).max();
            sum.sum = sum.sum + waits.sum;
            sum.longest = sum.longest.max(waits.longest).max(still.unwrap_or(Span::ZERO));
            sum.dispatched += waits.dispatched;
        }
        let mean = sum.sum.as_nanos().checked_div(sum.dispatched).unwrap_or(0);
        Span::from_nanos(mean.max(sum.longest.as_nanos() / 4))
    }
}

impl QueueStatus {
    /// Adds counters and present values.
    fn add(&mut self, other: Self) {
        self.toll_ns = self.toll_ns.wrapping_add(other.toll_ns);
        self.waited += other.waited;
        self.refused += other.refused;
        self.observed += other.observed;
        self.would_wait += other.would_wait;
        self.would_refuse += other.would_refuse;
        self.is_observing |= other.is_observing;
        self.waiting += other.waiting;
        self.in_flight_max += other.in_flight_max;
        self.in_flight += other.in_flight;
        self.cores_milli += other.cores_milli;
    }
}
