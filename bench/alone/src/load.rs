//! The loads: a closed loop over keep-alive connections, and bursts of 100 requests.
//!
//! All requests come from one address. One thread drives them, on the core that it shares with the gate.

use crate::{backend::Backend, page::Page};
use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};
use tollgate_storm::{
    client::Client,
    crowd::{self, Crowd},
    dice::Dice,
    tally::Failure,
    target::Target,
};

/// The address of the client.
pub(crate) const SOURCE: Ipv4Addr = crowd::human(0);

/// Requests of a burst: the assets of one page.
pub(crate) const PAGE_ASSETS: usize = 100;

/// The bursts begin this long after the gate's start.
pub(crate) const BURSTS_AT: [Duration; 3] = [Duration::ZERO, Duration::from_secs(3), Duration::from_secs(6)];

/// Requests that take longer than this after the end of their window count as failed.
const DRAIN_MAX: Duration = Duration::from_secs(15);

/// The number of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtOnce {
    /// A closed loop over this number of connections.
    Connections(usize),
    /// A page with 100 assets: over one HTTP/2 connection through a gate, over 100 connections without one.
    Page,
}

impl fmt::Display for AtOnce {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connections(count) => write!(out, "{count}"),
            Self::Page => write!(out, "page"),
        }
    }
}

impl FromStr for AtOnce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(count @ 1..=1024) => Ok(Self::Connections(count)),
            _ if text == "page" => Ok(Self::Page),
            _ => Err("write a number from 1 to 1024, or `page`".to_owned()),
        }
    }
}

/// One request: when it started and ended since the start of its window, and its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) start: Duration,
    pub(crate) end: Duration,
    pub(crate) outcome: Result<(), Failure>,
}

/// The connections of a closed loop.
pub(crate) struct Connections {
    clients: Vec<Client>,
    backend: Backend,
    dice: Dice,
}

impl Connections {
    pub(crate) fn new(count: usize, target: SocketAddr, backend: Backend) -> Self {
        let target = Arc::new(Target::new(target));
        let clients = (0..count).map(|_| Client::new(Crowd::Human, SOURCE, Arc::clone(&target))).collect();
        Self { clients, backend, dice: Dice::new(1) }
    }

    /// Keeps every connection busy for `window`, then waits for the last responses.
    pub(crate) async fn run(&mut self, window: Duration) -> Vec<Sample> {
        let start = Instant::now();
        let samples = Arc::new(Mutex::new(Vec::new()));
        let mut loops = JoinSet::new();
        for client in self.clients.drain(..) {
            let dice = Dice::new(self.dice.roll());
            loops.spawn(closed_loop(client, self.backend, dice, start, window, Arc::clone(&samples)));
        }
        self.clients.extend(loops.join_all().await);
        let mut samples = samples.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *samples)
    }
}

async fn closed_loop(
    mut client: Client,
    backend: Backend,
    mut dice: Dice,
    start: Instant,
    window: Duration,
    samples: Arc<Mutex<Vec<Sample>>>,
) -> Client {
    let deadline = start + window + DRAIN_MAX;
    while start.elapsed() < window {
        let path = backend.path(&mut dice);
        let sent = start.elapsed();
        let outcome = timeout_at(deadline, client.ask(&path)).await.unwrap_or(Err(Failure::Late));
        let sample = Sample { start: sent, end: start.elapsed(), outcome };
        samples.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
        // A refused client that retries in a loop without a system call that waits would keep the others from running.
        tokio::task::yield_now().await;
    }
    client
}

/// Requests a page with all its assets at each of [`BURSTS_AT`], and returns the samples of each burst.
pub(crate) async fn bursts(target: SocketAddr, backend: Backend, over_http2: bool) -> io::Result<Vec<Vec<Sample>>> {
    let mut page = Page::new(target, over_http2, PAGE_ASSETS);
    let mut dice = Dice::new(1);
    let start = Instant::now();
    let mut bursts = Vec::new();
    for at in BURSTS_AT {
        sleep_until(start + at).await;
        let paths = (0..PAGE_ASSETS).map(|_| backend.path(&mut dice)).collect();
        bursts.push(page.load(paths, DRAIN_MAX).await?);
    }
    Ok(bursts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::TcpListener, thread};
    use tollgate_storm::site;

    fn open(backend: Backend) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || site::serve(&listener, backend.settings()));
        address
    }

    #[test]
    fn a_load_is_a_number_of_connections_or_a_page() {
        assert_eq!("64".parse(), Ok(AtOnce::Connections(64)));
        assert_eq!("page".parse(), Ok(AtOnce::Page));
        for text in ["", "0", "1025", "-1", "pages"] {
            assert!(text.parse::<AtOnce>().is_err(), "{text:?}");
        }
    }

    #[tokio::test]
    async fn a_closed_loop_keeps_every_connection_busy_and_waits_for_the_last_response() {
        let backend = Backend::of_name("50ms-sleep").unwrap();
        let mut connections = Connections::new(4, open(backend), backend);
        for _ in 0..2 {
            let samples = connections.run(Duration::from_millis(120)).await;
            assert!((8..=12).contains(&samples.len()), "{samples:?}");
            assert!(samples.iter().all(|sample| sample.outcome.is_ok()), "{samples:?}");
            assert!(samples.iter().any(|sample| sample.end > Duration::from_millis(120)), "{samples:?}");
        }
    }
}
