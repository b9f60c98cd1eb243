//! The master: a process that shares limits between gates. Gates report the requests that they admit; the master adds
//! them up by identifier (a key of a rule as text), and orders the gates to delay the identifiers that exceed a limit
//! together. The messages are those of Smockron, an earlier limiter. The debt of an identifier is the part of its
//! charges that is not paid back yet. The state machine is [`tollgate_core::fleet::Master`]; this module connects it to
//! sockets, files and metrics.
//!
//! One thread does everything. A report changes a few words of memory, so a second thread would mostly wait for
//! locks, and one order of events keeps the state easy to verify. Connections are tasks of that thread: those at the
//! accounting address apply reports to [`MasterState`], those at the control address send the resulting orders.

mod accounting;
mod clock;
mod control;
mod listener;
mod metrics;
pub(crate) mod operator;
mod page;
mod redis_copy;
mod state;
mod state_file;
mod statsd;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use tokio::net::TcpListener;
use tollgate_core::fleet::Domain;
use tollgate_gatekeeper::shared::FencedPages;
use tollgate_wire::zmtp::SocketKind;

use clock::Clock;
pub(crate) use listener::GateAccess;
pub(crate) use metrics::MasterMetrics;
use redis_copy::RedisCopy;
use state::MasterState;
use state_file::StateFile;
use statsd::Statsd;

use crate::durable;

/// The state, shared by the tasks of one thread. No task holds a borrow across an await.
type Shared = Rc<RefCell<MasterState>>;

/// The settings of a master that take effect only at its start.
#[derive(Clone, Debug)]
pub(crate) struct MasterSettings {
    /// The accounting address, for reports.
    pub(crate) accounting: SocketAddr,
    /// The control address, for orders.
    pub(crate) control: SocketAddr,
    /// The directory of the file that keeps the state across restarts, and of the socket for operators.
    pub(crate) state_dir: Option<PathBuf>,
    /// The address of a statsd server, which receives metrics.
    pub(crate) statsd: Option<SocketAddr>,
    /// The gates that may connect.
    pub(crate) access: GateAccess,
}

/// Serves gates with the limits of `domains` until `stop` resolves, and calls `ready` when they can connect.
/// `redis_copy` is the place on Redis for a copy of the state, for another master. `reloads` waits for the next reload
/// and returns its domains. Runs on its own thread, inside a [`tokio::task::LocalSet`].
pub(crate) async fn run(
    settings: MasterSettings,
    domains: Vec<Domain>,
    redis_copy: Option<FencedPages>,
    metrics: MasterMetrics,
    reloads: impl AsyncFnMut() -> Vec<Domain>,
    ready: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let accounting = bind(settings.accounting).await?;
    let control = bind(settings.control).await?;
    let clock = Clock::start();
    let statsd = settings.statsd.map(Statsd::to).transpose()?;
    let mut on_redis = redis_copy.map(|pages| RedisCopy::new(pages, metrics.redis_copy.clone()));
    let state: Shared = Rc::new(RefCell::new(MasterState::new(domains, clock, metrics, statsd)));
    if let Some(directory) = &settings.state_dir {
        let named = |error: io::Error| {
            io::Error::new(error.kind(), format!("{}, the state_dir of [master]: {error}", directory.display()))
        };
        durable::create_directory(directory).map_err(named)?;
    }
    let operators = settings.state_dir.as_deref().map(operator::open).transpose()?;
    let file = settings.state_dir.map(StateFile::in_directory);
    if let Some(file) = &file {
        file.restore(&state)?;
    }
    if let Some(on_redis) = &mut on_redis {
        on_redis.restore_soon(&state).await;
    }
    tracing::info!(accounting = %accounting.local_addr()?, control = %control.local_addr()?, "the master is ready");
    ready();
    tokio::select! {
        () = listener::accept(accounting, SocketKind::Sub, &settings.access, &state, accounting::read_reports) => {}
        () = listener::accept(control, SocketKind::Pub, &settings.access, &state, control::send_orders) => {}
        () = state::send_beacons(&state) => {}
        () = or_never(file.as_ref().map(|file| file.save_regularly(&state))) => {}
        () = or_never(on_redis.as_mut().map(|on_redis| on_redis.keep(&state))) => {}
        () = or_never(operators.map(|listener| operator::serve(listener, state.clone()))) => {}
        () = reload(reloads, &state) => {}
        () = stop => {}
    }
    if let Some(file) = &file {
        file.save_or_log(&state).await;
    }
    if let Some(on_redis) = &mut on_redis {
        on_redis.finish(&state).await;
    }
    Ok(())
}

/// Runs a task of an optional part of the master; never ends without it.
async fn or_never(task: Option<impl Future<Output = ()>>) {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

/// Applies new rules when a reload provides them.
async fn reload(mut reloads: impl AsyncFnMut() -> Vec<Domain>, state: &Shared) {
    loop {
        let domains = reloads().await;
        state.borrow_mut().reload(domains);
    }
}

async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| io::Error::new(error.kind(), format!("cannot listen for gates on {address}: {error}")))
}
