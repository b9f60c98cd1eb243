//! The state of one worker, a thread that serves connections ([`Worker`]), and the state that all workers share
//! ([`Shared`]). As much as possible belongs to one worker, so that requests on different threads do not contend for
//! it.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use tollgate_core::time::{Moment, Span};

use super::backend::h1::H1Connection;
use super::backend::pool::Pool;
use super::backend::sites::SiteBackends;
use super::backend::{Backend, connect, h2};
use super::scratch::Scratch;
use super::spool::Buffers;
use crate::gate::decide::admission::Admission;
use crate::gate::decide::domains::OtherDomains;
use crate::gate::decide::rules::Rules;
use crate::gate::net::caps::Caps;
use crate::gate::net::socket::Socket;
use crate::gate::net::timer::{TICK, Timers};
use crate::gate::observe::access_log::{LogCounts, LogWriter, WorkerLog};
use crate::gate::observe::counters::WorkerCounters;
use crate::gate::observe::engagement_log::EngagementLog;
use crate::gate::observe::failure_log::FailureLog;
use crate::gate::observe::proxy_detector::{ProxyDetector, Sampler};
use crate::gate::observe::reloads::Reloads;
use crate::gate::observe::request_stats::RequestStats;
use crate::http_date::HttpDate;
use crate::settings::{DEFAULT_DOMAIN, Gate as Settings};
use crate::telemetry::Tracer;

/// The state that all workers share.
pub(crate) struct Shared {
    pub(crate) settings: ArcSwap<Settings>,
    /// Decides about requests.
    pub(crate) admission: Arc<Admission>,
    /// The rules of other domains (sets of rules with a name), which only doors use.
    pub(crate) domains: ArcSwap<OtherDomains>,
    pub(crate) backends: ArcSwap<SiteBackends>,
    /// Limits on connections.
    pub(crate) caps: Caps,
    /// Response bytes that slow clients have not read yet.
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) reloads: Reloads,
    /// The counters of each worker.
    pub(crate) counters: Vec<Arc<WorkerCounters>>,
    pub(crate) stats: Arc<RequestStats>,
    /// The tracer, if traces are exported.
    pub(crate) tracer: Option<Arc<Tracer>>,
    pub(crate) proxy_detector: ProxyDetector,
    /// The access log, if there is one.
    pub(crate) access_log: ArcSwapOption<LogWriter>,
    /// The line counters of the access log.
    pub(crate) access_log_counts: Arc<LogCounts>,
    /// The TLS configuration for clients, if TLS is on.
    pub(crate) server_tls: ArcSwapOption<rustls::ServerConfig>,
    /// The TLS configuration for backends.
    pub(crate) backend_tls: ArcSwap<rustls::ClientConfig>,
}

impl Shared {
    /// The rules of all domains by name, the default domain first.
    pub(crate) fn all_rules(&self) -> Vec<(String, Arc<Rules>)> {
        let first = (DEFAULT_DOMAIN.to_owned(), self.admission.rules());
        std::iter::once(first).chain(self.domains.load().iter().cloned()).collect()
    }
}

/// Unused [`Scratch`] values that a worker keeps.
const SCRATCHES_MAX: usize = 64;

/// Connections of a worker that keep the memory of a request while their clients pause. Further ones return it to the
/// allocator after each request, which bounds the memory of idle connections.
const PAUSED_MAX: usize = 256;

/// The state of one worker.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) timers: Rc<Timers>,
    /// Idle HTTP/1.1 connections to backends.
    pub(crate) pool: Pool,
    /// HTTP/2 connections to backends.
    pub(crate) h2_connections: h2::H2Connections,
    pub(crate) counters: Arc<WorkerCounters>,
    /// The log of held and refused requests.
    pub(crate) engagements: EngagementLog,
    /// The log of failed backends.
    pub(crate) failures: FailureLog,
    /// Selects the requests that the proxy detector samples.
    pub(crate) proxy_sampler: Sampler,
    /// Lines of the access log that are not passed to its writer yet.
    pub(crate) access_log: WorkerLog,
    /// A copy of the settings for this worker, so that a request can keep it without an atomic counter that all threads
    /// share.
    settings: RefCell<Rc<Settings>>,
    /// The shared settings that `settings` is a copy of.
    settings_seen: RefCell<Arc<Settings>>,
    #[expect(clippy::vec_box, reason = "they move in and out of tasks, and a box is cheaper to move")]
    scratches: RefCell<Vec<Box<Scratch>>>,
    /// Whether the gate stops, so that connections are to be closed.
    draining: Cell<bool>,
    /// Open connections of clients.
    pub(crate) connections: Rc<Cell<usize>>,
    /// Connections that keep the memory of a request while their clients pause.
    paused: Rc<Cell<usize>>,
    /// The time of the last [`Worker::sweep`].
    swept_at: Cell<Moment>,
    date: HttpDate,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Rc<Self> {
        let settings = shared.settings.load_full();
        let access_log = WorkerLog::default();
        access_log.tick(shared.access_log.load().as_ref());
        Rc::new(Self {
            access_log,
            proxy_sampler: Sampler::default(),
            timers: Timers::new(),
            pool: Pool::default(),
            h2_connections: h2::H2Connections::default(),
            counters: shared.counters[index].clone(),
            engagements: EngagementLog::new(shared.stats.feed.clone(), shared.stats.refusals.clone()),
            failures: FailureLog::default(),
            settings: RefCell::new(Rc::new(Settings::clone(&settings))),
            settings_seen: RefCell::new(settings),
            scratches: RefCell::default(),
            draining: Cell::new(false),
            connections: Rc::default(),
            paused: Rc::default(),
            swept_at: Cell::new(shared.admission.now()),
            date: HttpDate::new(),
            shared,
        })
    }

    /// The settings in force.
    pub(crate) fn settings(&self) -> Rc<Settings> {
        let shared = self.shared.settings.load();
        if !Arc::ptr_eq(&shared, &self.settings_seen.borrow()) {
            *self.settings.borrow_mut() = Rc::new(Settings::clone(&shared));
            *self.settings_seen.borrow_mut() = Guard::into_inner(shared);
            self.access_log.tick(self.shared.access_log.load().as_ref());
        }
        self.settings.borrow().clone()
    }

    /// Whether connections are to be closed after their current request.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Closes connections after their current or next request.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.timers.wake_all();
    }

    /// Connects to a backend.
    pub(crate) async fn connect(&self, backend: &Backend) -> io::Result<Socket> {
        let timeout = self.settings.borrow().timeouts.connect;
        let socket = connect::connect(backend, &self.shared.backend_tls, timeout).await?;
        Ok(Socket::new(socket, self.timers.timer()))
    }

    /// Memory for an exchange.
    pub(crate) fn scratch(&self) -> Box<Scratch> {
        self.scratches.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the memory for the next exchange.
    pub(crate) fn keep_scratch(&self, scratch: Box<Scratch>) {
        let mut scratches = self.scratches.borrow_mut();
        if scratches.len() < SCRATCHES_MAX {
            scratches.push(scratch);
        }
    }

    /// Keeps a connection to the backend with this id for the next request.
    pub(crate) fn keep(&self, backend: u64, mut connection: H1Connection) {
        connection.buffer.free_if_empty();
        let bound = self.settings.borrow().bounds.backend_idle_max;
        self.pool.give(backend, connection, bound, self.timers.now_ms());
    }

    /// The current date for HTTP.
    pub(crate) fn date(&self) -> Rc<str> {
        self.date.refresh();
        self.date.get()
    }

    /// Permits a connection to keep the memory of a request while its client pauses, until the guard is dropped. None
    /// if [`PAUSED_MAX`] connections do.
    pub(crate) fn pause_request(&self) -> Option<CountGuard> {
        (self.paused.get() < PAUSED_MAX).then(|| CountGuard::new(&self.paused))
    }

    /// Counts the backend's connection of a tunnel until the guard is dropped.
    pub(crate) fn count_tunnel(self: &Rc<Self>) -> TotalGuard {
        self.shared.caps.add();
        TotalGuard(self.clone())
    }

    /// By how much later than planned this sweep runs. A busy thread is late, which shows the load of the gate itself.
    fn late(&self) -> Span {
        let now = self.shared.admission.now();
        let since = now.since(self.swept_at.replace(now));
        Span::from_nanos(since.as_nanos().saturating_sub(Span::from(TICK).as_nanos()))
    }

    /// Does the periodic work of the worker, at each [`TICK`].
    pub(crate) fn sweep(&self) {
        self.timers.sweep();
        self.shared.admission.tick(self.late());
        self.engagements.flush(self.shared.admission.now());
        self.failures.flush(self.shared.admission.now());
        self.access_log.tick(self.shared.access_log.load().as_ref());
        let settings = self.settings();
        let backends = self.shared.backends.load();
        self.pool.sweep(self.timers.now_ms(), settings.timeouts.backend_keep_alive, |id| backends.has(id));
        self.h2_connections.sweep(self.timers.now_ms(), settings.timeouts.backend_keep_alive, |id| backends.has(id));
    }
}

/// One of the things that a counter of a worker counts, until it is dropped.
pub(crate) struct CountGuard(Rc<Cell<usize>>);

impl CountGuard {
    pub(crate) fn new(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(count.clone())
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// A connection that was counted in the total, until it is dropped.
pub(crate) struct TotalGuard(pub(crate) Rc<Worker>);

impl Drop for TotalGuard {
    fn drop(&mut self) {
        self.0.shared.caps.leave();
    }
}
