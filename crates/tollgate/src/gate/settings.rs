//! What a gate is told when it starts, in the units it works in.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tollgate_core::network::Network;

use super::buffer::LARGE;
use crate::settings::{BackendUrl, CertificateFiles, Gate};

/// Everything the proxy needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Where clients connect.
    pub(crate) listen: Vec<SocketAddr>,
    /// What is protected. At least one.
    pub(crate) backends: Vec<BackendUrl>,
    /// Whose `X-Forwarded-For`, `Forwarded` and PROXY protocol headers are believed.
    pub(crate) trusted_proxies: Vec<Network>,
    /// Whether every connection must begin with a PROXY protocol header, from a trusted proxy.
    pub(crate) proxy_protocol: bool,
    /// Whether HTTP/2 is spoken without TLS, to clients that begin with it.
    pub(crate) h2c: bool,
    /// Certificates to speak TLS with; none: plain HTTP.
    pub(crate) tls: Vec<CertificateFiles>,
    /// How many threads serve; each has its own runtime, listener and connections to the backends.
    pub(crate) workers: usize,
    /// How long each phase may take.
    pub(crate) timeouts: Timeouts,
    /// How much of everything there may be.
    pub(crate) bounds: Bounds,
}

impl Settings {
    /// What the file means for the proxy.
    pub(crate) fn new(gate: &Gate) -> Self {
        Self {
            listen: gate.listen.clone(),
            backends: gate.backends.clone(),
            trusted_proxies: gate.trusted_proxies.clone(),
            proxy_protocol: gate.proxy_protocol,
            h2c: gate.h2c,
            tls: gate.tls.clone(),
            workers: gate.workers,
            timeouts: Timeouts::new(gate),
            bounds: Bounds::new(gate),
        }
    }

    /// Whether what this address says about who is behind it is believed.
    pub(crate) fn trusts(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.contains(address))
    }
}

/// How long each phase of a connection may take.
#[derive(Clone, Debug)]
pub(crate) struct Timeouts {
    /// From the first byte of a head to its last; also for the first byte on a new connection, and for TLS.
    pub(crate) head: Duration,
    /// The longest silence within a request's body.
    pub(crate) body_idle: Duration,
    /// The slowest a request's body may come on average, in bytes per second.
    pub(crate) body_bytes_per_sec_min: Option<u64>,
    /// How long a client may take to accept the next bytes of an answer.
    pub(crate) write: Duration,
    /// How long a connection may wait for its next request.
    pub(crate) keep_alive: Duration,
    /// How long connecting to a backend may take.
    pub(crate) connect: Duration,
    /// How long a backend may take from the end of the request to the head of its answer.
    pub(crate) response_head: Duration,
    /// The longest silence within an answer's body, and the longest a backend may take to accept the next bytes.
    pub(crate) backend_idle: Duration,
    /// How long an unused connection to a backend is kept.
    pub(crate) backend_keep_alive: Duration,
    /// The longest silence in both directions of an upgraded connection.
    pub(crate) upgraded_idle: Duration,
    /// How long requests in flight may take to finish once the gate is told to stop.
    pub(crate) drain: Duration,
}

impl Timeouts {
    fn new(gate: &Gate) -> Self {
        let timeouts = &gate.timeouts;
        Self {
            head: timeouts.head,
            body_idle: timeouts.body_idle,
            body_bytes_per_sec_min: Some(gate.bounds.body_bytes_per_sec_min),
            write: timeouts.write,
            keep_alive: timeouts.keep_alive,
            connect: timeouts.connect,
            response_head: timeouts.response_head,
            backend_idle: timeouts.backend_idle,
            backend_keep_alive: timeouts.backend_keep_alive,
            upgraded_idle: timeouts.upgraded_idle,
            drain: timeouts.drain,
        }
    }
}

/// How much of everything there may be.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// The longest request line in bytes.
    pub(crate) line_bytes_max: usize,
    /// The largest head in bytes.
    pub(crate) head_bytes_max: usize,
    /// The most header fields.
    pub(crate) fields_max: usize,
    /// Connections from clients, all together.
    pub(crate) connections_max: usize,
    /// Connections from one address. Trusted proxies are not counted.
    pub(crate) connections_per_address_max: usize,
    /// Requests at once on one HTTP/2 connection.
    pub(crate) streams_max: u32,
    /// Idle connections that each worker keeps to each backend.
    pub(crate) backend_idle_max: usize,
    /// How much of the body of a refused request is read so that its connection can be kept.
    pub(crate) refused_body_bytes_max: u64,
    /// How much of an answer is read for a client that has left, so that the backend finishes and the toll is known.
    pub(crate) unheard_bytes_max: u64,
}

impl Bounds {
    fn new(gate: &Gate) -> Self {
        let bounds = &gate.bounds;
        Self {
            line_bytes_max: bounds.line_bytes_max.min(LARGE - 1),
            head_bytes_max: bounds.head_bytes_max.min(LARGE - 1),
            fields_max: bounds.fields_max,
            connections_max: bounds.connections_max,
            connections_per_address_max: bounds.connections_per_address_max,
            streams_max: bounds.streams_max,
            backend_idle_max: bounds.backend_idle_max,
            refused_body_bytes_max: bounds.refused_body_bytes_max,
            unheard_bytes_max: bounds.unheard_bytes_max,
        }
    }
}
