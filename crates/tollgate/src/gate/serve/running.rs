//! A running gate: its start, its reloads and its end. [`crate::service`] calls these.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use tokio::sync::watch;
use tollgate_core::queue::IN_FLIGHT_MAX;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::link::{Link, LinkSettings};

use super::listener;
use super::worker_thread::{self, Phase};
use crate::client_tls;
use crate::gate::decide::admission::Admission;
use crate::gate::decide::domains::{self, OtherDomains};
use crate::gate::decide::keeper::Keeper;
use crate::gate::decide::masters;
use crate::gate::decide::redis::RedisLink;
use crate::gate::decide::remote_state::RemoteLinks;
use crate::gate::http::backend::sites::SiteBackends;
use crate::gate::http::spool::Buffers;
use crate::gate::http::worker::Shared;
use crate::gate::net::caps::Caps;
use crate::gate::net::tls::{CertificatePlan, Certificates};
use crate::gate::observe::access_log::{LogCounts, LogWriter};
use crate::gate::observe::counters::WorkerCounters;
use crate::gate::observe::proxy_detector::ProxyDetector;
use crate::gate::observe::reloads::Reloads;
use crate::gate::observe::request_stats::RequestStats;
use crate::mask;
use crate::settings::{Domain, Gate as Settings, Redis, ResponseBuffer, StateLocation};
use crate::telemetry::Tracer;

/// The number of concurrent lookups of backend names per worker: they run on blocking threads.
const RESOLVERS_MAX: usize = 4;
/// The number of file descriptors that are neither for clients nor for backends: listeners, logs, files.
const DESCRIPTORS_RESERVED: usize = 64;

/// A running gate.
pub(crate) struct Running {
    /// The state that all threads of the gate share.
    pub(crate) shared: Arc<Shared>,
    /// The certificates for clients; none without TLS.
    certificates: ArcSwapOption<Certificates>,
    redis: Mutex<Option<RedisLink>>,
    masters: Mutex<Option<Arc<Link>>>,
    phase: watch::Sender<Phase>,
    /// The listeners of each worker, until it starts.
    listeners: Vec<Vec<TcpListener>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// The configuration of a gate.
pub(crate) struct Orders {
    pub(crate) gate: Settings,
    /// The rules of the default domain.
    pub(crate) domain: Domain,
    /// The other domains, for doors; none without doors.
    pub(crate) other_domains: Vec<Domain>,
    /// The number of threads that serve doors. Each has its own counters.
    pub(crate) door_threads: usize,
    /// The shared store, whether or not a rule needs it.
    pub(crate) redis: Option<Redis>,
    /// The link to the masters, whether or not a rule needs it.
    pub(crate) link: Option<LinkSettings>,
}

impl Orders {
    /// The shared store, if any rule needs one.
    fn redis(&self) -> Option<&Redis> {
        let others = self.other_domains.iter().flat_map(|domain| &domain.rules);
        let is_needed =
            self.has(StateLocation::Redis) || others.into_iter().any(|rule| rule.state == StateLocation::Redis);
        self.redis.as_ref().filter(|_| is_needed)
    }

    /// The link to the masters, if any rule needs one.
    fn link(&self) -> Option<&LinkSettings> {
        self.link.as_ref().filter(|_| self.has(StateLocation::Master))
    }

    /// Whether a rule of the default domain has its state there.
    fn has(&self, state: StateLocation) -> bool {
        self.domain.rules.iter().any(|rule| rule.state == state)
    }
}

impl Running {
    /// A gate that is ready to start: on the sockets that systemd has `handed_over`, or else on the addresses of the
    /// settings. Clients can connect already, and are served after [`Running::open`].
    pub(crate) fn new(orders: Orders, handed_over: Vec<TcpListener>, tracer: Option<Arc<Tracer>>) -> io::Result<Self> {
        let clock = Clock::start();
        let redis = orders.redis().map(RedisLink::open).transpose()?;
        let masters = orders.link().map(|link| masters::open(link, &clock)).transpose()?;
        let Orders { gate: settings, domain, other_domains, door_threads, .. } = orders;
        let workers = settings.workers.max(1);
        let connections_max = ConnectionsMax::new(&settings);
        connections_max.log();
        let connections_max = connections_max.effective();
        let listeners = if handed_over.is_empty() {
            listener::bind_all(&settings.listen, workers)?
        } else {
            listener::share(&handed_over, workers)?
        };
        let certificates = certificates(CertificatePlan::new(&settings))?;
        let links = RemoteLinks { redis: redis.as_ref(), masters: masters.as_ref() };
        let admission = Admission::new(&domain, &settings, links, clock.clone()).map_err(io::Error::other)?;
        let admission = Arc::new(admission);
        let domains = domains::load(&other_domains, &settings, links, &clock, &OtherDomains::default());
        let domains = ArcSwap::from_pointee(domains.map_err(io::Error::other)?);
        if let Some(masters) = &masters {
            masters.begin(admission.apply_orders());
        }
        mask::set_off(settings.show_values);
        let counts = Arc::<LogCounts>::default();
        let access_log = settings.access_log.as_ref().map(|log| LogWriter::open(log, &counts)).transpose()?;
        let backends = SiteBackends::new(&settings, None, |url| admission.queues.of(url));
        let shared = Arc::new(Shared {
            backends: ArcSwap::from_pointee(backends),
            caps: Caps::new(connections_max),
            buffers: Arc::new(Buffers::new(&settings.buffer)?),
            admission,
            domains,
            reloads: Reloads::default(),
            stats: RequestStats::new(clock),
            tracer,
            access_log: ArcSwapOption::new(access_log),
            access_log_counts: counts,
            proxy_detector: ProxyDetector::default(),
            counters: (0..workers + door_threads).map(|_| Arc::new(WorkerCounters::default())).collect(),
            server_tls: ArcSwapOption::new(certificates.as_ref().map(server_config)),
            backend_tls: ArcSwap::new(backend_tls(&settings)?),
            settings: ArcSwap::from_pointee(settings),
        });
        for listener in &listeners[0] {
            tracing::info!(address = %listener.local_addr()?, workers, "listening");
        }
        let (phase, _) = watch::channel(Phase::Serving);
        let (redis, masters, certificates) = (Mutex::new(redis), Mutex::new(masters), ArcSwapOption::new(certificates));
        Ok(Self { shared, certificates, redis, masters, phase, listeners, threads: Vec::new() })
    }

    /// Restores the learned state of the backends, and keeps it across restarts: in the directory of the settings,
    /// otherwise in `default`, if there is one. Call it before [`Running::open`].
    pub(crate) fn keep_learned(&self, default: Option<&Path>) -> Option<Keeper> {
        let settings = self.shared.settings.load();
        let keeper = Keeper::start(settings.state_dir.as_deref().or(default)?, &self.shared.admission);
        keeper.inspect_err(|error| tracing::warn!(%error, "what is learned about the backends is not kept")).ok()
    }

    /// Starts the worker threads.
    pub(crate) fn open(&mut self) -> io::Result<()> {
        for (index, listeners) in std::mem::take(&mut self.listeners).into_iter().enumerate() {
            let (shared, watched) = (self.shared.clone(), self.phase.subscribe());
            let worker = std::thread::Builder::new().name(format!("gate-{index}"));
            self.threads.push(worker.spawn(move || {
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let runtime =
                    runtime.enable_all().max_blocking_threads(RESOLVERS_MAX).build_local(Default::default())?;
                runtime.block_on(worker_thread::serve(shared, index, listeners, watched))
            })?);
        }
        Ok(())
    }

    /// Applies new settings. No client is disconnected. Returns the keys of changed settings that take effect only
    /// after a restart.
    pub(crate) fn reload(&self, orders: Orders) -> io::Result<Vec<&'static str>> {
        // The steps that can fail come first, so that either everything is applied or nothing.
        let backend_tls = backend_tls(&orders.gate)?;
        let old = self.shared.settings.load_full();
        let certificates = self.changed_certificates(CertificatePlan::new(&orders.gate))?;
        let access_log = self.wanted_access_log(&orders.gate)?;
        self.reload_rules(&orders)?;
        self.shared.access_log.store(access_log);
        let (settings, waiting) = settled(&old, orders.gate);
        let queue_of = |url: &_| self.shared.admission.queues.of(url);
        let backends = SiteBackends::new(&settings, Some(&self.shared.backends.load()), queue_of);
        self.shared.backend_tls.store(backend_tls);
        self.shared.backends.store(Arc::new(backends));
        let connections_max = ConnectionsMax::new(&settings);
        if connections_max != ConnectionsMax::new(&old) {
            connections_max.log();
        }
        self.shared.caps.set_total_max(connections_max.effective());
        self.shared.buffers.budget.reload(&settings.buffer);
        mask::set_off(settings.show_values);
        let has_other_proxies = old.trusted_proxies != settings.trusted_proxies;
        self.shared.settings.store(Arc::new(settings));
        if has_other_proxies {
            self.shared.proxy_detector.reset();
        }
        match certificates {
            Some(certificates) => {
                self.shared.server_tls.store(certificates.as_ref().map(server_config));
                self.certificates.store(certificates);
            }
            None => self.refresh_certificates(),
        }
        Ok(waiting)
    }

    /// The certificates of `plan` (`Some(None)` without TLS); `None` if they are those in use.
    fn changed_certificates(&self, plan: CertificatePlan) -> io::Result<Option<Option<Arc<Certificates>>>> {
        let in_use = self.certificates.load();
        let is_same = in_use.as_ref().map_or(plan.is_empty(), |certificates| certificates.is_for(&plan));
        if is_same { Ok(None) } else { certificates(plan).map(Some) }
    }

    /// The access log of `settings`: the one in use, reopened, if its settings have not changed.
    fn wanted_access_log(&self, settings: &Settings) -> io::Result<Option<Arc<LogWriter>>> {
        let Some(wanted) = &settings.access_log else { return Ok(None) };
        if let Some(same) = self.shared.access_log.load_full().filter(|log| log.settings == *wanted) {
            same.reopen();
            return Ok(Some(same));
        }
        LogWriter::open(wanted, &self.shared.access_log_counts).map(Some)
    }

    /// Opens the file of the access log again, after it was renamed.
    pub(crate) fn reopen_access_log(&self) {
        if let Some(log) = &*self.shared.access_log.load() {
            log.reopen();
        }
    }

    /// The URL of the shared store without secrets; empty without a store.
    pub(crate) fn redis_name(&self) -> String {
        let redis = self.redis.lock();
        redis.as_ref().map(RedisLink::name).unwrap_or_default()
    }

    /// Applies new rules. The connections to the store and to the masters are kept if their settings have not changed.
    fn reload_rules(&self, orders: &Orders) -> io::Result<()> {
        let admission = &self.shared.admission;
        let mut redis = self.redis.lock();
        let mut masters = self.masters.lock();
        let wanted = self.wanted_masters(masters.as_ref(), orders.link())?;
        let reload = |redis: Option<&RedisLink>| {
            let links = RemoteLinks { redis, masters: wanted.as_ref() };
            let domains = &self.shared.domains;
            let others = domains::load(&orders.other_domains, &orders.gate, links, &admission.clock, &domains.load());
            let others = others.map_err(io::Error::other)?;
            admission.reload(&orders.domain, &orders.gate, links).map_err(io::Error::other)?;
            domains.store(Arc::new(others));
            io::Result::Ok(())
        };
        let store = orders.redis();
        let kept = redis.as_ref().filter(|link| store == Some(&link.settings));
        if kept.is_some() {
            reload(kept)?;
        } else {
            let link = store.map(RedisLink::open).transpose()?;
            reload(link.as_ref())?;
            *redis = link;
        }
        if let Some(masters) = &wanted {
            masters.begin(admission.apply_orders());
        }
        *masters = wanted;
        Ok(())
    }

    /// The link to the masters of `wanted`: the one `before` the reload, if the settings have not changed.
    fn wanted_masters(
        &self,
        before: Option<&Arc<Link>>,
        wanted: Option<&LinkSettings>,
    ) -> io::Result<Option<Arc<Link>>> {
        let Some(wanted) = wanted else { return Ok(None) };
        if let Some(same) = before.filter(|masters| masters.settings == *wanted) {
            return Ok(Some(same.clone()));
        }
        masters::open(wanted, &self.shared.admission.clock).map(Some)
    }

    /// Reads certificates again if their files have changed.
    pub(crate) fn refresh_certificates(&self) {
        let Some(certificates) = &*self.certificates.load() else { return };
        match certificates.refresh() {
            Ok(true) => tracing::info!("new certificates are in force"),
            Ok(false) => {}
            Err(error) => tracing::error!(%error, "certificates cannot be read; the old ones stay in force"),
        }
    }

    /// Whether connections are accepted and at least one backend can serve requests.
    pub(crate) fn is_ready(&self) -> bool {
        let backends = self.shared.backends.load();
        // Without a backend this process forwards nothing, but it serves doors. A site whose backends are down must not
        // take the others out of service.
        *self.phase.borrow() == Phase::Serving && (backends.all.is_empty() || backends.can_serve())
    }

    /// The longest time for requests in flight when the gate stops.
    pub(crate) fn drain_max(&self) -> Duration {
        self.shared.settings.load().timeouts.drain
    }

    /// Accepts no more connections, and waits until all connections have ended.
    pub(crate) async fn drain(&self) {
        let _ = self.phase.send(Phase::Draining);
        self.phase.closed().await;
    }

    /// Stops at once, even if requests are in flight, and waits for the threads, the access log and the shared store.
    pub(crate) fn end(self) -> io::Result<()> {
        let _ = self.phase.send(Phase::Over);
        for thread in self.threads {
            thread.join().map_err(|_| io::Error::other("a worker panicked"))??;
        }
        if let Some(log) = self.shared.access_log.load_full() {
            log.end();
        }
        drop(self.shared);
        if let Some(link) = self.redis.into_inner() {
            link.end();
        }
        Ok(())
    }
}

/// The settings key of the addresses that a gate listens on.
pub(crate) const LISTEN: &str = "gate.listen";

/// The settings in force after a reload, and the keys of changed settings that take effect only after a restart,
/// because sockets, threads and open files exist already.
fn settled(old: &Settings, new: Settings) -> (Settings, Vec<&'static str>) {
    let changed = [
        (old.listen != new.listen, LISTEN),
        (old.workers != new.workers, "gate.workers"),
        (old.buffer.dir != new.buffer.dir, "gate.buffer.dir"),
        (old.state_dir != new.state_dir, "gate.state_dir"),
    ];
    let waiting = changed.into_iter().filter_map(|(has_changed, key)| has_changed.then_some(key)).collect();
    let buffer = ResponseBuffer { dir: old.buffer.dir.clone(), ..new.buffer };
    let state_dir = old.state_dir.clone();
    (Settings { listen: old.listen.clone(), workers: old.workers, buffer, state_dir, ..new }, waiting)
}

/// The TLS configuration of connections to backends.
fn backend_tls(settings: &Settings) -> io::Result<Arc<rustls::ClientConfig>> {
    client_tls::config(settings.all_backends().iter().any(|backend| backend.tls))
}

/// The TLS configuration for clients, which can negotiate HTTP/2.
fn server_config(certificates: &Arc<Certificates>) -> Arc<rustls::ServerConfig> {
    certificates.server_config(&["h2", "http/1.1"])
}

/// The certificates for clients, if TLS is on.
fn certificates(plan: CertificatePlan) -> io::Result<Option<Arc<Certificates>>> {
    if plan.is_empty() { Ok(None) } else { Certificates::load(plan).map(Some) }
}

/// Number of connections below which a limit on open files is reported as a warning: the default of
/// `bounds.connections_per_address`, so that one address could take all of them.
const CONNECTIONS_FEW: usize = 1024;

/// The limit of client connections.
#[derive(Clone, Copy, PartialEq)]
struct ConnectionsMax {
    /// The limit in the settings.
    wanted: usize,
    /// The connections for which there are file descriptors.
    possible: usize,
    /// The number of files that the process may open.
    files: usize,
}

impl ConnectionsMax {
    fn new(settings: &Settings) -> Self {
        let files = files_max();
        Self { wanted: settings.bounds.connections_max, possible: connections_possible(files, settings), files }
    }

    fn effective(self) -> usize {
        self.wanted.min(self.possible)
    }

    /// The level of the message about this limit; none if the configured limit is in force.
    fn level(self) -> Option<tracing::Level> {
        let level = if self.possible < CONNECTIONS_FEW { tracing::Level::WARN } else { tracing::Level::INFO };
        (self.possible < self.wanted).then_some(level)
    }

    fn log(self) {
        let Self { wanted, possible, files } = self;
        let text = "fewer connections than wanted: raise the bound on open files";
        match self.level() {
            Some(tracing::Level::WARN) => tracing::warn!(wanted, possible, files, "{text}"),
            Some(_) => tracing::info!(wanted, possible, files, "{text}"),
            None => {}
        }
    }
}

/// The number of client connections for which there are file descriptors, after those for backends are subtracted: idle
/// connections to backends, and one per request in flight. It is at least half of all. A tunnel counts as two.
fn connections_possible(files: usize, settings: &Settings) -> usize {
    let count = settings.all_backends().len();
    let idle = settings.bounds.backend_idle_max.saturating_mul(settings.workers).saturating_mul(count);
    let in_flight = (IN_FLIGHT_MAX as usize).saturating_mul(count.max(1));
    let backends = idle.saturating_add(in_flight);
    let files = files.saturating_sub(DESCRIPTORS_RESERVED);
    files.saturating_sub(backends).max(files / 2).max(16)
}

/// Raises the limit on open files as far as the process may, and returns it, at most 2^20.
fn files_max() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // The current limit is often low only to protect old programs.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    current.map_or(1 << 20, |files| usize::try_from(files).unwrap_or(usize::MAX)).min(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_low_limit_on_open_files_is_a_warning_only_if_few_connections_are_possible() {
        let level = |wanted, possible| ConnectionsMax { wanted, possible, files: 20_000 }.level();
        assert_eq!(level(16_384, 16_384), None);
        assert_eq!(level(16_384, 16_383), Some(tracing::Level::INFO));
        assert_eq!(level(16_384, CONNECTIONS_FEW), Some(tracing::Level::INFO));
        assert_eq!(level(16_384, CONNECTIONS_FEW - 1), Some(tracing::Level::WARN));
        assert_eq!(level(100, 200), None);
    }
}
