//! A gate from its start to its end.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::link::LinkSettings;

use super::decider::Decider;
use super::listener;
use super::worker_thread::{self, Phase};
use crate::gate::decide::admission::Admission;
use crate::gate::decide::domains::OtherDomains;
use crate::gate::decide::keeper::Keeper;
use crate::gate::decide::masters::Masters;
use crate::gate::decide::queue::IN_FLIGHT_MAX;
use crate::gate::decide::redis::RedisLink;
use crate::gate::decide::remote_state::RemoteLinks;
use crate::gate::http::backend::{Backends, connect};
use crate::gate::http::spool::Buffers;
use crate::gate::http::worker::Shared;
use crate::gate::net::caps::Caps;
use crate::gate::net::tls::Certificates;
use crate::gate::observe::access_log::{LogCounts, LogWriter};
use crate::gate::observe::counters::WorkerCounters;
use crate::gate::observe::proxy_detector::{ProxyDetector, ProxyNotice};
use crate::gate::observe::reloads::Reloads;
use crate::gate::observe::request_stats::RequestStats;
use crate::mask;
use crate::settings::{Domain, Gate as Settings, Redis, ResponseBuffer, State};
use crate::telemetry::Tracer;

/// File descriptors that are neither for clients nor for backends: listeners, logs, files.
const DESCRIPTORS_RESERVED: usize = 64;

/// A gate that serves.
pub(crate) struct Running {
    pub(crate) shared: Arc<Shared>,
    certificates: ArcSwapOption<Certificates>,
    redis: Mutex<Option<RedisLink>>,
    masters: Mutex<Option<Arc<Masters>>>,
    phase: watch::Sender<Phase>,
    /// What each worker will listen on, until it does.
    listeners: Vec<Vec<TcpListener>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// What a gate is to do.
pub(crate) struct Orders {
    /// How it serves.
    pub(crate) gate: Settings,
    /// By which rules.
    pub(crate) domain: Domain,
    /// The other domains, for doors; none without doors.
    pub(crate) other_domains: Vec<Domain>,
    /// Threads that serve doors, and count what they do.
    pub(crate) door_threads: usize,
    /// The store that it shares with others.
    pub(crate) redis: Option<Redis>,
    /// The masters that it reports to.
    pub(crate) link: Option<LinkSettings>,
}

impl Orders {
    /// The store, if any rule needs one.
    fn redis(&self) -> Option<&Redis> {
        let others = self.other_domains.iter().flat_map(|domain| &domain.rules);
        let is_needed = self.has(State::Redis) || others.into_iter().any(|rule| rule.state == State::Redis);
        self.redis.as_ref().filter(|_| is_needed)
    }

    /// The masters, if any rule needs one.
    fn link(&self) -> Option<&LinkSettings> {
        self.link.as_ref().filter(|_| self.has(State::Master))
    }

    fn has(&self, state: State) -> bool {
        self.domain.rules.iter().any(|rule| rule.state == state)
    }
}

impl Running {
    /// A gate that is ready to serve: on the sockets that were handed over, or else on the addresses of the settings. Clients can connect, and
    /// are answered once it is opened.
    pub(crate) fn new(orders: Orders, handed_over: Vec<TcpListener>, tracer: Option<Arc<Tracer>>) -> io::Result<Self> {
        let clock = Clock::start();
        let redis = orders.redis().map(RedisLink::open).transpose()?;
        let masters = orders.link().map(|link| Masters::open(link, &clock)).transpose()?;
        let Orders { gate: settings, domain, other_domains, door_threads, .. } = orders;
        let workers = settings.workers.max(1);
        let connections_max = connections_max(&settings);
        let listeners = if handed_over.is_empty() {
            listener::bind_all(&settings.listen, workers)?
        } else {
            listener::share(&handed_over, workers)?
        };
        let certificates = certificates(&settings)?;
        let links = RemoteLinks { redis: redis.as_ref(), masters: masters.as_ref() };
        let admission = Admission::new(&domain, &settings, links, clock.clone()).map_err(io::Error::other)?;
        let admission = Arc::new(admission);
        let domains = OtherDomains::new(&other_domains, &settings, links, &clock).map_err(io::Error::other)?;
        if let Some(masters) = &masters {
            masters.serve(admission.apply_orders());
        }
        mask::set_off(settings.show_values);
        let counts = Arc::<LogCounts>::default();
        let access_log = settings.access_log.as_ref().map(|log| LogWriter::open(log, &counts)).transpose()?;
        let backends = Backends::new(&settings.backends, None, |url| admission.queues().of(url));
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
            server_tls: ArcSwapOption::new(certificates.as_ref().map(Certificates::server_config)),
            backend_tls: ArcSwap::new(connect::tls_config(&settings.backends)?),
            settings: ArcSwap::from_pointee(settings),
        });
        for listener in &listeners[0] {
            tracing::info!(address = %listener.local_addr()?, workers, "listening");
        }
        let (phase, _) = watch::channel(Phase::Serving);
        let (redis, masters, certificates) = (Mutex::new(redis), Mutex::new(masters), ArcSwapOption::new(certificates));
        Ok(Self { shared, certificates, redis, masters, phase, listeners, threads: Vec::new() })
    }

    /// Restores what was learned about the backends, and keeps it across restarts from now on: in the directory of the settings, otherwise in
    /// `default`, if there is one. Call it before [`Running::open`].
    pub(crate) fn keep_learned(&self, default: Option<&Path>) -> Option<Keeper> {
        let settings = self.shared.settings.load();
        let keeper = Keeper::start(settings.state_dir.as_deref().or(default)?, &self.shared.admission);
        keeper.inspect_err(|error| tracing::warn!(%error, "what is learned about the backends is not kept")).ok()
    }

    /// Starts to serve.
    pub(crate) fn open(&mut self) -> io::Result<()> {
        for (index, listeners) in std::mem::take(&mut self.listeners).into_iter().enumerate() {
            let (shared, watched) = (self.shared.clone(), self.phase.subscribe());
            let worker = std::thread::Builder::new().name(format!("gate-{index}"));
            self.threads.push(worker.spawn(move || worker_thread::run(shared, index, listeners, watched))?);
        }
        Ok(())
    }

    /// Takes over other settings. Nobody is disconnected. Gives the keys of what can only change by a new start and has stayed as it was.
    pub(crate) fn reload(&self, orders: Orders) -> io::Result<Vec<&'static str>> {
        // What can go wrong comes first, so that all is taken over or nothing.
        let backend_tls = connect::tls_config(&orders.gate.backends)?;
        let old = self.shared.settings.load_full();
        let certificates = if old.tls == orders.gate.tls { None } else { Some(certificates(&orders.gate)?) };
        let access_log = self.wanted_access_log(&orders.gate)?;
        self.reload_rules(&orders)?;
        self.shared.access_log.store(access_log);
        let (settings, waiting) = settled(&old, orders.gate);
        let queue_of = |url: &_| self.shared.admission.queues().of(url);
        let backends = Backends::new(&settings.backends, Some(&self.shared.backends.load()), queue_of);
        self.shared.backend_tls.store(backend_tls);
        self.shared.backends.store(Arc::new(backends));
        self.shared.caps.set_total_max(connections_max(&settings));
        self.shared.buffers.reload(&settings.buffer);
        mask::set_off(settings.show_values);
        let has_other_proxies = old.trusted_proxies != settings.trusted_proxies;
        self.shared.settings.store(Arc::new(settings));
        if has_other_proxies {
            self.shared.proxy_detector.reset();
        }
        match certificates {
            Some(certificates) => {
                self.shared.server_tls.store(certificates.as_ref().map(Certificates::server_config));
                self.certificates.store(certificates);
            }
            None => self.refresh_certificates(),
        }
        Ok(waiting)
    }

    /// The access log that `settings` ask for: the one in use, reopened, if nothing about it has changed.
    fn wanted_access_log(&self, settings: &Settings) -> io::Result<Option<Arc<LogWriter>>> {
        let Some(wanted) = &settings.access_log else { return Ok(None) };
        if let Some(same) = self.shared.access_log.load_full().filter(|log| log.is_for(wanted)) {
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

    /// The notice about a proxy in front of the gate that is not trusted, if there is one.
    pub(crate) fn proxy_notice(&self) -> Option<Arc<ProxyNotice>> {
        self.shared.proxy_detector.notice()
    }

    /// Where the store is, without what is secret about it.
    pub(crate) fn redis_name(&self) -> String {
        let redis = self.redis.lock().unwrap_or_else(PoisonError::into_inner);
        redis.as_ref().map(RedisLink::name).unwrap_or_default()
    }

    /// How reloads went.
    pub(crate) fn reloads(&self) -> &Reloads {
        &self.shared.reloads
    }

    /// Puts other rules into force, on the same store if that has not changed.
    fn reload_rules(&self, orders: &Orders) -> io::Result<()> {
        let admission = &self.shared.admission;
        let mut redis = self.redis.lock().unwrap_or_else(PoisonError::into_inner);
        let mut masters = self.masters.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = self.wanted_masters(masters.as_ref(), orders.link())?;
        let reload = |redis: Option<&RedisLink>| {
            let links = RemoteLinks { redis, masters: wanted.as_ref() };
            let domains = &self.shared.domains;
            let others = domains.read(&orders.other_domains, &orders.gate, links, admission.clock());
            let others = others.map_err(io::Error::other)?;
            admission.reload(&orders.domain, &orders.gate, links).map_err(io::Error::other)?;
            domains.take_over(others);
            io::Result::Ok(())
        };
        let store = orders.redis();
        let kept = redis.as_ref().filter(|link| store.is_some_and(|settings| link.is_for(settings)));
        if kept.is_some() {
            reload(kept)?;
        } else {
            let link = store.map(RedisLink::open).transpose()?;
            reload(link.as_ref())?;
            *redis = link;
        }
        if let Some(masters) = &wanted {
            masters.serve(admission.apply_orders());
        }
        *masters = wanted;
        Ok(())
    }

    /// The masters that are wanted now: the same, if they have not changed.
    fn wanted_masters(
        &self,
        before: Option<&Arc<Masters>>,
        wanted: Option<&LinkSettings>,
    ) -> io::Result<Option<Arc<Masters>>> {
        let Some(wanted) = wanted else { return Ok(None) };
        if let Some(same) = before.filter(|masters| masters.is_for(wanted)) {
            return Ok(Some(same.clone()));
        }
        Masters::open(wanted, self.shared.admission.clock()).map(Some)
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

    /// Decides about requests that come through doors. The door thread with this number uses the counters after those of the workers.
    pub(crate) fn decider(&self, door_thread: usize) -> Decider {
        Decider::new(self.shared.clone(), door_thread)
    }

    /// Whether requests are taken, and somebody can answer them.
    pub(crate) fn is_ready(&self) -> bool {
        let backends = self.shared.backends.load();
        // Without a backend this process forwards nothing, and doors are served all the same.
        *self.phase.borrow() == Phase::Serving && (backends.len() == 0 || backends.can_serve())
    }

    /// How long requests may take to finish once the gate is told to stop.
    pub(crate) fn drain_max(&self) -> Duration {
        self.shared.settings.load().timeouts.drain
    }

    /// Accepts nothing more, and waits until everything in flight is done.
    pub(crate) async fn drain(&self) {
        let _ = self.phase.send(Phase::Draining);
        self.phase.closed().await;
    }

    /// Ends, whatever is in flight.
    pub(crate) fn end(self) -> io::Result<()> {
        let _ = self.phase.send(Phase::Over);
        for thread in self.threads {
            thread.join().map_err(|_| io::Error::other("a worker panicked"))??;
        }
        if let Some(log) = self.shared.access_log.load_full() {
            log.end();
        }
        drop(self.shared);
        if let Some(link) = self.redis.into_inner().unwrap_or_else(PoisonError::into_inner) {
            link.end();
        }
        Ok(())
    }
}

/// The settings that are in force after a reload, and the keys of those that stay as they were because sockets and threads are there already.
fn settled(old: &Settings, new: Settings) -> (Settings, Vec<&'static str>) {
    let changed = [
        (old.listen != new.listen, "gate.listen"),
        (old.workers != new.workers, "gate.workers"),
        (old.buffer.dir != new.buffer.dir, "gate.buffer.dir"),
        (old.state_dir != new.state_dir, "gate.state_dir"),
    ];
    let waiting = changed.into_iter().filter_map(|(has_changed, key)| has_changed.then_some(key)).collect();
    let buffer = ResponseBuffer { dir: old.buffer.dir.clone(), ..new.buffer };
    let state_dir = old.state_dir.clone();
    (Settings { listen: old.listen.clone(), workers: old.workers, buffer, state_dir, ..new }, waiting)
}

/// The certificates that clients are shown, if any are.
fn certificates(settings: &Settings) -> io::Result<Option<Arc<Certificates>>> {
    if settings.tls.is_empty() { Ok(None) } else { Certificates::load(&settings.tls).map(Some) }
}

/// As many connections as are wanted, or as there are file descriptors for.
fn connections_max(settings: &Settings) -> usize {
    let (wanted, files) = (settings.bounds.connections_max, files_max());
    let possible = connections_possible(files, settings);
    if possible < wanted {
        tracing::warn!(wanted, possible, files, "fewer connections than wanted: raise the bound on open files");
    }
    wanted.min(possible)
}

/// Connections for which there are file descriptors. Not every client has a connection to a backend: only requests at a backend
/// do, and those that wait to be used again. An upgraded connection counts as two.
fn connections_possible(files: usize, settings: &Settings) -> usize {
    let idle =
        settings.bounds.backend_idle_max.saturating_mul(settings.workers).saturating_mul(settings.backends.len());
    let in_flight = (IN_FLIGHT_MAX as usize).saturating_mul(settings.backends.len().max(1));
    let backends = idle.saturating_add(in_flight);
    let files = files.saturating_sub(DESCRIPTORS_RESERVED);
    files.saturating_sub(backends).max(files / 2).max(16)
}

/// How many files the process may open.
fn files_max() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // The bound on open files is often low only to protect programs that are older than it.
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    current.map_or(1 << 20, |files| usize::try_from(files).unwrap_or(usize::MAX)).min(1 << 20)
}
