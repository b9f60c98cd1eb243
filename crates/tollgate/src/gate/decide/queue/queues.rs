//! The queues of all backends: one for each, because in-flight limits and prices are those of one backend.
//!
//! A queue is found by the backend's address, so a backend that stays in the settings keeps its queue, and what was
//! learned, across reloads. Requests that wait in the queue of a backend that has left the settings go on waiting
//! there, and are then sent to another backend.

use std::hash::RandomState;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tollgate_core::queue::{Learned, RouteKey};
use tollgate_core::site::{HostPattern, find_site};
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::clock::Clock;

use super::{Queue, QueueStatus, Waits};
use crate::gate::decide::kernel::{CpuUsage, Used};
use crate::settings::{BackendUrl, Gate as Settings};

/// How often the CPU time that the backends use is measured, where it can be.
const MEASURE_EVERY: Span = Span::from_millis(50);

/// One queue per backend.
pub(crate) struct Queues {
    clock: Clock,
    /// Makes the keys of clients in every queue.
    hasher: RandomState,
    all: ArcSwap<Arrangement>,
    /// The control group of the backends, if their CPU time is measured.
    metered: Mutex<Option<Metered>>,
    /// Counts of the queues that are not there any more.
    gone: Mutex<QueueStatus>,
}

/// The queues, and the sites whose requests wait in them.
#[derive(Default)]
struct Arrangement {
    queues: Vec<BackendQueue>,
    /// The hosts of each site.
    sites: Vec<Vec<HostPattern>>,
}

struct BackendQueue {
    /// None if the settings name no backend.
    url: Option<BackendUrl>,
    queue: Arc<Queue>,
    /// The sites that the backend serves, by index. None: the hosts of no site.
    sites: Vec<Option<usize>>,
}

impl Arrangement {
    /// The queues in which requests with this host can wait.
    fn at_host(&self, host: Option<&[u8]>) -> impl Iterator<Item = &BackendQueue> {
        let site = find_site(self.sites.iter().map(Vec::as_slice), host.unwrap_or_default());
        let has_one = self.queues.iter().any(|one| one.sites.contains(&site));
        self.queues.iter().filter(move |one| !has_one || one.sites.contains(&site))
    }
}

struct Metered {
    group: PathBuf,
    usage: CpuUsage,
    measured_at: Moment,
    /// The work of each queue at the last measurement.
    work_at: Vec<(Arc<Queue>, u64)>,
}

impl Metered {
    fn new(group: &Path) -> Self {
        Self {
            group: group.to_owned(),
            usage: CpuUsage::of_group(group),
            measured_at: Moment::ZERO,
            work_at: Vec::new(),
        }
    }
}

impl Queues {
    pub(crate) fn new(settings: &Settings, clock: Clock) -> Self {
        let queues = Self {
            clock,
            hasher: RandomState::new(),
            all: ArcSwap::default(),
            metered: Mutex::new(settings.toll.cgroup.as_deref().map(Metered::new)),
            gone: Mutex::default(),
        };
        queues.arrange(settings);
        queues
    }

    /// Makes a queue for every new backend. The others keep theirs.
    fn arrange(&self, settings: &Settings) {
        let before = self.all.load();
        let urls = settings.all_backends().into_iter().map(|url| Some(url.clone()));
        let mut urls: Vec<Option<BackendUrl>> = urls.collect();
        if urls.is_empty() {
            urls.push(None);
        }
        let arranged = |url: Option<BackendUrl>| {
            let known = before.queues.iter().find(|known| known.url == url);
            let queue = match known {
                Some(known) => known.queue.clone(),
                None => Queue::new(&settings.at_backend(url.as_ref()), self.hasher.clone(), self.clock.clone()),
            };
            let is_at = |backends: &[BackendUrl]| url.as_ref().is_none_or(|url| backends.contains(url));
            let of_sites = settings.sites.iter().enumerate().filter(|(_, site)| is_at(&site.backends));
            let of_sites = of_sites.map(|(index, _)| Some(index));
            let sites = of_sites.chain(is_at(&settings.backends).then_some(None)).collect();
            BackendQueue { url, queue, sites }
        };
        let queues: Vec<BackendQueue> = urls.into_iter().map(arranged).collect();
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        for left in before.queues.iter().filter(|known| queues.iter().all(|kept| kept.url != known.url)) {
            gone.add_counts(left.queue.status());
        }
        let sites = settings.sites.iter().map(|site| site.hosts.clone()).collect();
        self.all.store(Arc::new(Arrangement { queues, sites }));
    }

    /// Takes over other settings. Waiting requests go on waiting, and what was learned about the backends that stay is
    /// kept.
    pub(crate) fn reload(&self, settings: &Settings) {
        let group = settings.toll.cgroup.as_deref();
        let mut metered = self.metered.lock().unwrap_or_else(PoisonError::into_inner);
        if metered.as_ref().map(|metered| metered.group.as_path()) != group {
            *metered = group.map(Metered::new);
            self.all.load().queues.iter().for_each(|one| one.queue.measure(None));
        }
        drop(metered);
        self.arrange(settings);
        for one in &self.all.load().queues {
            one.queue.reload(&settings.at_backend(one.url.as_ref()));
        }
    }

    /// The queue of a backend. A backend that is not in the settings shares the first queue.
    pub(crate) fn of(&self, url: &BackendUrl) -> Arc<Queue> {
        let all = self.all.load();
        let known = all.queues.iter().find(|known| known.url.as_ref() == Some(url));
        known.map_or_else(|| self.first(), |known| known.queue.clone())
    }

    /// The first queue. There always is one, also where the settings name no backend.
    pub(crate) fn first(&self) -> Arc<Queue> {
        self.all.load().queues[0].queue.clone()
    }

    /// The queues of all backends.
    pub(crate) fn all(&self) -> Vec<Arc<Queue>> {
        self.all.load().queues.iter().map(|one| one.queue.clone()).collect()
    }

    /// The queues in which requests with this host can wait.
    pub(crate) fn at_host(&self, host: Option<&[u8]>) -> Vec<Arc<Queue>> {
        self.all.load().at_host(host).map(|one| one.queue.clone()).collect()
    }

    /// The knowledge about each backend, by its address. Each queue is locked for some microseconds.
    pub(crate) fn learned(&self) -> Vec<(String, Learned)> {
        let of = |one: &BackendQueue| Some((one.url.as_ref()?.to_string(), one.queue.learned()));
        self.all.load().queues.iter().filter_map(of).collect()
    }

    /// Starts the queue of a backend from what was learned earlier. False if there is no such backend. Call it before
    /// the first request.
    pub(crate) fn restore(&self, url: &str, learned: &Learned) -> bool {
        let all = self.all.load();
        let known = all.queues.iter().find(|one| one.url.as_ref().is_some_and(|known| known.to_string() == url));
        known.inspect(|one| one.queue.restore(learned)).is_some()
    }

    /// The mean cost of requests of this route: the largest of all backends for the host, because it is not known yet
    /// which one serves the request. Also whether none of them knows anything about it.
    pub(crate) fn expected(&self, route: RouteKey, host: Option<&[u8]>) -> (Span, bool) {
        let all = self.all.load();
        let expected = all.at_host(host).map(|one| one.queue.expected(route));
        expected.fold((Span::ZERO, true), |(mean, unseen), (other, is_unseen)| (mean.max(other), unseen && is_unseen))
    }

    /// Measures the backends' CPU time, if it is time to. Any worker may call this at any time.
    pub(crate) fn tick(&self) {
        // The second worker has nothing to do.
        let Ok(mut metered) = self.metered.try_lock() else { return };
        let Some(metered) = metered.as_mut() else { return };
        let now = self.clock.now();
        if now.since(metered.measured_at) < MEASURE_EVERY {
            return;
        }
        metered.measured_at = now;
        let cpu = match metered.usage.look() {
            Used::Since(cpu) => Some(cpu),
            Used::Begins | Used::Unknown => None,
        };
        let all = self.all.load();
        if let [one] = &all.queues[..] {
            one.queue.measure(cpu);
            return;
        }
        // All backends are in one control group: its CPU time is split as the requests of each queue are thought to
        // have used it.
        let work_at = |one: &BackendQueue| (one.queue.clone(), one.queue.work_nanos());
        let before = std::mem::replace(&mut metered.work_at, all.queues.iter().map(work_at).collect());
        let work_of = |(queue, work): &(Arc<Queue>, u64)| {
            let before = before.iter().find(|(known, _)| Arc::ptr_eq(known, queue));
            before.map_or(0, |(_, before)| work.wrapping_sub(*before))
        };
        let total: u128 = metered.work_at.iter().map(|one| u128::from(work_of(one))).sum();
        for one in &metered.work_at {
            let share = |cpu: Span| {
                let part = u128::from(cpu.as_nanos()) * u128::from(work_of(one)) / total.max(1);
                Span::from_nanos(u64::try_from(part).unwrap_or(u64::MAX))
            };
            one.0.measure(cpu.map(share));
        }
    }

    /// The sums over all backends.
    pub(crate) fn status(&self) -> QueueStatus {
        let mut sum = *self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        for one in &self.all.load().queues {
            let status = one.queue.status();
            sum.add_counts(status);
            sum.is_observing |= status.is_observing;
            sum.waiting += status.waiting;
            sum.in_flight_max += status.in_flight_max;
            sum.in_flight += status.in_flight;
            sum.cores_milli += status.cores_milli;
        }
        sum
    }

    /// How long requests have waited since the last call: the mean of all that were dispatched, or a quarter of the
    /// longest wait, so that a few clients that wait for seconds are not lost among many that do not wait.
    pub(crate) fn take_wait(&self) -> Span {
        let mut sum = Waits::default();
        for one in &self.all.load().queues {
            let waits = one.queue.take_waits();
            sum.sum_ns = sum.sum_ns.saturating_add(waits.sum_ns);
            sum.longest = sum.longest.max(waits.longest);
            sum.dispatched += waits.dispatched;
        }
        let mean = sum.sum_ns.checked_div(sum.dispatched).unwrap_or(0);
        Span::from_nanos(mean.max(sum.longest.as_nanos() / 4))
    }
}

impl QueueStatus {
    /// Adds what only grows.
    fn add_counts(&mut self, other: Self) {
        self.toll_ns = self.toll_ns.wrapping_add(other.toll_ns);
        self.waited += other.waited;
        self.refused += other.refused;
        self.observed += other.observed;
        self.would_wait += other.would_wait;
        self.would_refuse += other.would_refuse;
    }
}
