//! `[gate]`: the process in the request path.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use tollgate_core::class::Class;
use tollgate_core::network::Network;
use tollgate_core::time::Span;
use toml::Spanned;
use toml::de::DeValue;

use super::fault::{Collector, shown};
use super::limit::nonzero;
use super::shape::Shape;
use super::table::{Placed, Value, table};
use super::value::{Address, Backend, HeaderName, Map, Millionths, OneOrMany, Size};

/// What a gate does, but for its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    /// Where clients connect.
    pub(crate) listen: SocketAddr,
    /// Where requests are forwarded to; an argument may name them instead.
    pub(crate) backends: Vec<Backend>,
    /// Whose word about the client's address is taken.
    pub(crate) trusted_proxies: Vec<Network>,
    /// Whether every connection begins with a PROXY protocol header.
    pub(crate) proxy_protocol: bool,
    /// The certificate that clients are shown, if the gate speaks TLS.
    pub(crate) tls: Option<Tls>,
    /// Whether clients may speak HTTP/2 in the clear.
    pub(crate) h2c: bool,
    /// The backend's cores, in millionths.
    pub(crate) cores_millionths: u32,
    /// How many requests may be at the backend at once; none means that the gate finds out.
    pub(crate) in_flight: Option<u32>,
    /// What is held at the gate.
    pub(crate) hold: Hold,
    /// The classes among which the backend is shared fairly, and their weights.
    pub(crate) fairness: Vec<Weight>,
    /// Bytes of memory for the state of all keys of all rules.
    pub(crate) memory_bytes: u64,
    /// How the price of a request is learned.
    pub(crate) toll: TollSource,
    /// How long each phase may take.
    pub(crate) timeouts: Timeouts,
    /// How many connections there may be.
    pub(crate) connections: Connections,
    /// How large the head of a request may be.
    pub(crate) head: Head,
}

/// The files of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    /// The certificate chain, PEM.
    pub(crate) cert: PathBuf,
    /// The private key, PEM.
    pub(crate) key: PathBuf,
}

/// What is held at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// The longest that any request is held.
    pub(crate) max: Span,
    /// How many requests of one client are held.
    pub(crate) per_key: u32,
    /// How many requests are held.
    pub(crate) total: u32,
}

/// A class among which the backend is shared, and the weight of each of its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// The class.
    pub(crate) class: Class,
    /// The weight of each of its keys.
    pub(crate) millionths: u32,
}

/// How the price of a request is learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TollSource {
    /// The header in which the backend says what a request cost, in lower case.
    pub(crate) header: String,
    /// Whether the client sees that header too.
    pub(crate) keep: bool,
    /// The control group of the backend.
    pub(crate) cgroup: Option<PathBuf>,
}

/// How long each phase may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timeouts {
    /// Until the head of a request is complete.
    pub(crate) request_head: Span,
    /// Between two pieces of a request's body.
    pub(crate) request_body: Span,
    /// Until a backend accepts a connection.
    pub(crate) connect: Span,
    /// Until the head of a backend's answer is complete.
    pub(crate) response_head: Span,
    /// Between two pieces of an answer's body.
    pub(crate) response_body: Span,
    /// Until a client takes the next piece of an answer.
    pub(crate) write: Span,
    /// Between two requests of a client's connection.
    pub(crate) keep_alive: Span,
    /// Without a byte in either direction after an upgrade.
    pub(crate) upgraded: Span,
    /// For requests at work to end when the gate stops.
    pub(crate) drain: Span,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Connections {
    /// Of all clients.
    pub(crate) total: u32,
    /// Of one address.
    pub(crate) per_client: u32,
    /// That wait idle for the next request, for each backend and thread.
    pub(crate) idle_per_backend: u32,
}

/// How large the head of a request may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Bytes of the whole head.
    pub(crate) size_bytes: u64,
    /// Header fields.
    pub(crate) fields: u32,
    /// Bytes of path and query.
    pub(crate) target_bytes: u64,
}

/// `"auto"`, or a number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Concurrency(Option<NonZeroU32>);

impl Value for Concurrency {
    fn shape() -> Shape {
        Shape::Either(vec![Shape::Choice(vec!["auto"]), NonZeroU32::shape()])
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        match value.get_ref() {
            DeValue::String(text) if text == "auto" => Some(Self(None)),
            DeValue::String(text) => {
                let message =
                    format!("{} is no number of requests: write \"auto\", or a number without quotes", shown(text));
                faults.fault(&value.span(), message);
                None
            }
            _ => NonZeroU32::read(value, faults).map(|max| Self(Some(max))),
        }
    }
}

table! {
    /// The reverse proxy: where it listens, what it protects, and its bounds. With no file at all a gate protects its backend by
    /// fairness alone.
    struct GateTable {
        /// Where clients connect.
        listen: Address = "\"127.0.0.1:8888\"",
        /// Where requests are forwarded to: `http://` speaks HTTP/1.1, `https://` HTTP/2 or HTTP/1.1 over TLS, `h2c://` HTTP/2 in the clear. Of several, the one with the
        /// fewest requests at work is next. `--backend` names them instead.
        backend: OneOrMany<Backend>,
        /// Proxies whose word about the client's address is taken: `X-Forwarded-For` and `Forwarded` are looked at only when they come from one of these.
        trusted_proxies: OneOrMany<Network>,
        /// Whether every connection begins with a PROXY protocol header, version 1 or 2. Needs `trusted_proxies`, and connections of
        /// others are closed.
        proxy_protocol: bool = "false",
        /// Speaks TLS to clients, with HTTP/2 where they can. The files are read again when they change.
        tls: TlsTable,
        /// Whether clients may speak HTTP/2 in the clear, without asking first.
        h2c: bool = "false",
        /// How many cores the backend has: what a second of its time is worth. Without it, as many as this machine has.
        cores: Millionths,
        /// How many requests may be at the backend at once; the others wait at the gate, where the order can be chosen. `"auto"` finds the number.
        in_flight: Concurrency = "\"auto\"",
        /// What waits at the gate, and how long.
        hold: HoldTable = "{}",
        /// The classes among whose keys the backend's time is shared while it is scarce, each with the weight of one key: the
        /// part of the backend that it may count on.
        fairness: Map<Class, Millionths> = "{ \"ip/32\" = 0.10, \"ip/24\" = 0.25, \"ip/16\" = 0.50 }",
        /// Memory for the state of all keys of all rules. It is taken at the start and never grows.
        memory: Size = "\"64MiB\"",
        /// How the price of a request is learned.
        toll: TollTable = "{}",
        /// How long each phase of a request may take.
        timeouts: TimeoutsTable = "{}",
        /// How many connections there may be.
        connections: ConnectionsTable = "{}",
        /// How large the head of a request may be.
        head: HeadTable = "{}",
    }
}

table! {
    /// The certificate that clients are shown.
    struct TlsTable {
        /// The file with the certificate chain, PEM.
        cert: PathBuf = required,
        /// The file with the private key, PEM.
        key: PathBuf = required,
    }
}

table! {
    /// What waits at the gate, and how long.
    struct HoldTable {
        /// The longest that any request is held.
        max: Span = "\"10s\"",
        /// How many requests of one client are held; more are refused.
        per_key: NonZeroU32 = "16",
        /// How many requests are held; more are refused.
        total: NonZeroU32 = "1024",
    }
}

table! {
    /// How the price of a request is learned. With nothing set it is measured by a clock that shares the backend's time among the
    /// requests at work.
    struct TollTable {
        /// The header in which the backend may say what a request cost: `server-timing` is read as `cpu;dur=` in milliseconds, any other as milliseconds.
        header: HeaderName = "\"server-timing\"",
        /// Whether that header goes on to the client.
        keep: bool = "false",
        /// The backend's control group, such as `/sys/fs/cgroup/site`: what it really uses is read from `cpu.stat`.
        cgroup: PathBuf,
    }
}

table! {
    /// How long each phase of a request may take.
    struct TimeoutsTable {
        /// From the first byte of a request to the end of its head.
        request_head: Span = "\"10s\"",
        /// Between two pieces of a request's body.
        request_body: Span = "\"30s\"",
        /// Until a backend accepts a connection.
        connect: Span = "\"5s\"",
        /// Until the head of a backend's answer is complete.
        response_head: Span = "\"60s\"",
        /// Between two pieces of the body of a backend's answer.
        response_body: Span = "\"60s\"",
        /// Until a client takes the next piece of an answer.
        write: Span = "\"30s\"",
        /// Between two requests of one connection.
        keep_alive: Span = "\"75s\"",
        /// Without a byte in either direction after an upgrade, such as a websocket.
        upgraded: Span = "\"1h\"",
        /// For requests at work to end when the gate is told to stop.
        drain: Span = "\"30s\"",
    }
}

table! {
    /// How many connections there may be. When there are too many, the one that has been idle for longest is closed.
    struct ConnectionsTable {
        /// How many of all clients together.
        total: NonZeroU32 = "16384",
        /// How many of one address.
        per_client: NonZeroU32 = "1024",
        /// How many wait idle for the next request, for each backend and each thread of the gate.
        idle_per_backend: NonZeroU32 = "64",
    }
}

table! {
    /// How large the head of a request may be. A larger one is answered 431, a longer path 414.
    struct HeadTable {
        /// The whole head.
        size: Size = "\"32KiB\"",
        /// How many header fields.
        fields: NonZeroU32 = "100",
        /// The path and query.
        target: Size = "\"8KiB\"",
    }
}

const MILLION: u64 = 1_000_000;
/// The least memory that is of use.
const MEMORY_MIN: u64 = 64 << 10;

impl Default for Gate {
    fn default() -> Self {
        let empty = toml::de::DeTable::new();
        let mut faults = Collector::default();
        GateTable::read_entries(super::table::Entries::new(&empty, 0..0, &mut faults))
            .meaning(&mut Collector::default())
    }
}

impl GateTable {
    /// What the table means. What is wrong has been reported and is as good as absent.
    pub(super) fn meaning(self, faults: &mut Collector) -> Gate {
        let trusted_proxies: Vec<_> = values(self.trusted_proxies);
        if self.proxy_protocol.value && !self.written.has("trusted_proxies") {
            let message = "`proxy_protocol` needs `trusted_proxies`: write the addresses that may send the header";
            faults.missing(&self.proxy_protocol.span, message);
        }
        if self.memory.value.0 < MEMORY_MIN {
            faults.fault(&self.memory.span, "too little to keep state in: write at least \"64KiB\"");
        }
        if self.fairness.value.0.is_empty() {
            faults.fault(
                &self.fairness.span,
                "without a class nobody is told apart: write one such as `\"ip/32\" = 0.10`, or leave the key out",
            );
        }
        Gate {
            listen: self.listen.value.0,
            backends: values(self.backend),
            trusted_proxies,
            proxy_protocol: self.proxy_protocol.value,
            tls: self.tls.and_then(|tls| Some(Tls { cert: tls.value.cert?.value, key: tls.value.key?.value })),
            h2c: self.h2c.value,
            cores_millionths: self.cores.map_or_else(machine_cores_millionths, |cores| cores.value.0),
            in_flight: self.in_flight.value.0.map(NonZeroU32::get),
            hold: self.hold.value.meaning(),
            fairness: self
                .fairness
                .value
                .0
                .into_iter()
                .map(|(class, weight)| Weight { class: class.value, millionths: weight.0 })
                .collect(),
            memory_bytes: self.memory.value.0,
            toll: self.toll.value.meaning(),
            timeouts: self.timeouts.value.meaning(faults),
            connections: self.connections.value.meaning(),
            head: self.head.value.meaning(faults),
        }
    }
}

fn values<T>(list: Option<Placed<OneOrMany<T>>>) -> Vec<T> {
    list.map(|list| list.value.0.into_iter().map(|placed| placed.value).collect()).unwrap_or_default()
}

/// The cores of this machine, as far as this process may use them.
fn machine_cores_millionths() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get) as u64;
    u32::try_from(cores.saturating_mul(MILLION)).unwrap_or(u32::MAX)
}

impl HoldTable {
    fn meaning(self) -> Hold {
        Hold { max: self.max.value, per_key: self.per_key.value.get(), total: self.total.value.get() }
    }
}

impl TollTable {
    fn meaning(self) -> TollSource {
        TollSource { header: self.header.value.0, keep: self.keep.value, cgroup: self.cgroup.map(|path| path.value) }
    }
}

impl TimeoutsTable {
    fn meaning(self, faults: &mut Collector) -> Timeouts {
        let mut timeout = |span: Placed<Span>| nonzero(&span, faults).unwrap_or(Span::from_secs(1));
        Timeouts {
            request_head: timeout(self.request_head),
            request_body: timeout(self.request_body),
            connect: timeout(self.connect),
            response_head: timeout(self.response_head),
            response_body: timeout(self.response_body),
            write: timeout(self.write),
            keep_alive: timeout(self.keep_alive),
            upgraded: timeout(self.upgraded),
            drain: timeout(self.drain),
        }
    }
}

impl ConnectionsTable {
    fn meaning(self) -> Connections {
        Connections {
            total: self.total.value.get(),
            per_client: self.per_client.value.get(),
            idle_per_backend: self.idle_per_backend.value.get(),
        }
    }
}

/// What a request needs at the least, and what a connection may hold at the most.
const HEAD_BYTES: std::ops::RangeInclusive<u64> = 1 << 10..=1 << 16;

impl HeadTable {
    fn meaning(self, faults: &mut Collector) -> Head {
        for size in [&self.size, &self.target] {
            if !HEAD_BYTES.contains(&size.value.0) {
                faults.fault(&size.span, "the head of a request takes from \"1KiB\" to \"64KiB\"");
            }
        }
        Head { size_bytes: self.size.value.0, fields: self.fields.value.get(), target_bytes: self.target.value.0 }
    }
}
