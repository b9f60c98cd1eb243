//! Doors: interfaces for programs and proxies that are not behind the gate, and ask it for decisions about requests
//! that they serve themselves.
//!
//! A door implements a protocol and asks the [`Decider`] of its thread for decisions, which use the rules and the state
//! of the gate. Layout:
//!
//! - [`mod@thread`]: one thread with its own runtime, listeners and connections.
//! - [`station`]: the state of one thread, and references to the state of all threads.
//! - [`buffer`]: reads and writes of a connection.
//! - [`connections`]: bounds the connections of a thread.
//! - [`tls`]: certificates of a door and of its clients.
//! - [`request`]: a request as the caller of a door describes it.
//! - [`tickets`]: the charges of admitted requests, until their end is reported.
//! - [`grpc`]: Envoy's rate limit service and rate limit quota service.
//! - [`http`]: `/v1/check`, `/v1/report`, `/v1/auth`, `/v1/load` and `/json`.
//! - [`resp`]: `CL.THROTTLE` and `THROTTLE` for Redis clients.
//! - [`mod@log`]: costs from the access log of a proxy.
//! - [`metrics`]: the metrics of the doors.

mod buffer;
mod connections;
mod grpc;
mod http;
mod log;
mod metrics;
mod request;
mod resp;
mod station;
mod thread;
mod tickets;
mod tls;

use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use prometheus_client::collector::Collector;
use tokio::sync::watch;
use tollgate_gatekeeper::call_limit::CallLimitTable;
use tollgate_gatekeeper::cell::CellTable;
use tollgate_gatekeeper::hash::Seed;

use crate::gate::{Decider, bind_all};
use crate::http_date::HttpDate;
use crate::settings::{DoorListener, Doors, ServedLimits};
use crate::token::{TOKEN_BYTES_MIN, Token};
use log::BoundLog;
use metrics::{DoorCounters, door_metrics};
use station::{DoorLimits, Station};
use tickets::Tickets;
pub(crate) use tls::DoorCertificateFiles;
use tls::DoorCertificates;

/// Size of a table for limits that come with calls, if no door accepts such calls, in bytes: the minimum of a table.
const UNUSED_TABLE_BYTES: u64 = 4096;

/// The protocol of a door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Grpc,
    Http,
    Resp,
}

/// A listening socket of one thread.
struct BoundListener {
    protocol: Protocol,
    listener: TcpListener,
    /// None: connections are not encrypted.
    tls: Option<Arc<DoorCertificates>>,
}

/// Doors whose sockets are bound but not served yet.
pub(crate) struct BoundDoors {
    settings: Doors,
    /// The listeners of each thread.
    listeners: Vec<Vec<BoundListener>>,
    certificates: DoorCertificateFiles,
    /// The token that clients must send; none if they need none.
    token: Arc<ArcSwapOption<Token>>,
    limits: DoorLimits,
    log: Option<BoundLog>,
}

/// Doors that serve clients.
pub(crate) struct OpenDoors {
    settings: Doors,
    token: Arc<ArcSwapOption<Token>>,
    /// The limits of ratelimit files, which a reload replaces.
    served: Arc<ArcSwap<ServedLimits>>,
    counters: Arc<DoorCounters>,
    /// The certificates, whose files must be checked for changes periodically.
    pub(crate) certificates: DoorCertificateFiles,
    is_draining: watch::Sender<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl BoundDoors {
    /// Binds the addresses of the settings for this many threads. Clients can connect; they get responses after
    /// [`BoundDoors::open`].
    pub(crate) fn bind(settings: Doors, threads: usize) -> io::Result<Self> {
        let token = settings.token_file.as_deref().map(|path| Token::load(path, TOKEN_BYTES_MIN, None)).transpose()?;
        let mut listeners: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
        let mut certificates = DoorCertificateFiles::default();
        for (key, door) in settings.open() {
            let protocol = match key {
                "grpc" => Protocol::Grpc,
                "http" => Protocol::Http,
                "resp" => Protocol::Resp,
                other => return Err(io::Error::other(format!("the door `{other}` is not built"))),
            };
            let tls = door.tls.as_ref().map(|tls| DoorCertificates::load(tls, protocol)).transpose()?;
            certificates.0.extend(tls.clone());
            let bound = bind_all(&[door.address], threads)?;
            let address = bound[0][0].local_addr()?;
            let asks_for_certificate = door.client_ca().is_some();
            let asks_for_token = token.is_some() && !asks_for_certificate;
            tracing::info!(
                door = key,
                %address,
                tls = tls.is_some(),
                asks_for_token,
                asks_for_certificate,
                "a door is open"
            );
            for (own, listener) in listeners.iter_mut().zip(bound) {
                let bound = |listener| BoundListener { protocol, listener, tls: tls.clone() };
                own.extend(listener.into_iter().map(bound));
            }
        }
        for note in &settings.limits.notes {
            tracing::warn!(note, "a key of a ratelimit file has no effect");
        }
        let bytes = |is_used: bool| {
            let bytes = if is_used { settings.memory_bytes } else { UNUSED_TABLE_BYTES };
            usize::try_from(bytes).unwrap_or(usize::MAX)
        };
        let has_overrides = settings.grpc.is_some() || settings.ratelimit.is_some();
        let limits = DoorLimits {
            cells: Arc::new(CellTable::new(bytes(settings.resp.is_some()), Seed::random()).map_err(io::Error::other)?),
            overrides: Arc::new(CallLimitTable::new(bytes(has_overrides), Seed::random()).map_err(io::Error::other)?),
            served: Arc::new(ArcSwap::new(settings.limits.clone())),
            quotas: Arc::default(),
        };
        let log = settings.log.as_ref().map(BoundLog::bind).transpose()?;
        Ok(Self { settings, listeners, certificates, token: Arc::new(ArcSwapOption::new(token)), limits, log })
    }

    /// Starts the threads of the doors. `decider` creates the decider of a thread from its index.
    pub(crate) fn open(self, decider: impl Fn(usize) -> Decider) -> io::Result<OpenDoors> {
        let Self { settings, listeners, certificates, token, limits, mut log } = self;
        let (is_draining, drains) = watch::channel(false);
        let tickets = Arc::new(Tickets::new(listeners.len(), settings.tickets_max));
        let counters = Arc::new(DoorCounters::new(listeners.len(), tickets.clone()));
        let mut threads = Vec::new();
        let per_thread = settings.connections_max.div_ceil(listeners.len().max(1));
        for (index, listeners) in listeners.into_iter().enumerate() {
            let (decider, drains, log) = (decider(index), drains.clone(), log.take());
            let (tickets, counters) = (tickets.clone(), counters.clone());
            let (token, limits, ticket_deadline) = (token.clone(), limits.clone(), settings.ticket_deadline);
            let thread = std::thread::Builder::new().name(format!("door-{index}"));
            threads.push(thread.spawn(move || {
                let date = HttpDate::new();
                let station = Station { decider, index, tickets, ticket_deadline, limits, counters, token, date };
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let runtime = runtime.enable_all().build_local(Default::default())?;
                runtime.block_on(thread::serve(Rc::new(station), listeners, per_thread, log, drains))
            })?);
        }
        let served = limits.served;
        Ok(OpenDoors { settings, token, served, counters, certificates, is_draining, threads })
    }
}

impl OpenDoors {
    /// The metrics of all doors, for a registry.
    pub(crate) fn metrics(&self) -> Box<dyn Collector> {
        door_metrics(self.counters.clone())
    }

    /// Reloads the token and the limits of ratelimit files. Returns whether the settings have other changes, which need
    /// a restart.
    pub(crate) fn reload(&mut self, wanted: Option<&Doors>) -> io::Result<bool> {
        let Some(wanted) = wanted else { return Ok(true) };
        let token_now = self.token.load_full();
        let reload = |path| Token::load(path, TOKEN_BYTES_MIN, token_now.as_ref());
        let token = wanted.token_file.as_deref().map(reload).transpose()?;
        let (token_file, limits) = (self.settings.token_file.clone(), self.settings.limits.clone());
        let is_same = Doors { token_file, limits, ..wanted.clone() } == self.settings;
        self.served.store(wanted.limits.clone());
        // A door beyond loopback must keep its token. The settings require one for the new addresses only, and the
        // doors still listen on the old ones.
        let needs_token = |door: &DoorListener| !door.address.ip().is_loopback() && door.client_ca().is_none();
        if token.is_some() || !self.settings.open().any(|(_, door)| needs_token(door)) {
            self.token.store(token);
            self.settings.token_file.clone_from(&wanted.token_file);
        }
        Ok(!is_same)
    }

    /// Closes the listeners and waits for calls in progress, for at most `timeout`.
    pub(crate) fn end(self, timeout: Duration) {
        let _ = self.is_draining.send(true);
        let deadline = std::time::Instant::now() + timeout;
        for thread in self.threads {
            while !thread.is_finished() && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            if !thread.is_finished() {
                tracing::warn!("a door still had calls in progress at the end of the drain timeout");
            } else if let Ok(Err(error)) = thread.join() {
                tracing::error!(%error, "a thread of the doors failed");
            }
        }
    }
}
