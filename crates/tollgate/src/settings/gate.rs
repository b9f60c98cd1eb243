//! `[gate]`: the process in the request path.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;

use tollgate_core::band::{Band, Edges};
use tollgate_core::network::NetworkSet;
use tollgate_core::queue::Shares;
use tollgate_core::rule::Mode;
use tollgate_core::time::Span;
use tollgate_core::virtual_clock::Cores;
use toml::Spanned;
use toml::de::DeValue;

use super::access_log::{AccessLog, AccessLogTable};
use super::bounds::{Bounds, BoundsTable};
use super::buffer::{BufferTable, ResponseBuffer};
use super::fairness::{FairnessTable, UserClass};
use super::fault::{Collector, shown};
use super::health::{HealthCheck, HealthTable};
use super::pages::{Pages, PagesTable};
use super::shape::Shape;
use super::table::{Entries, Value, table};
use super::timeouts::{Timeouts, TimeoutsTable};
use super::trusted::{self, TrustedEntry};
use super::value::{Address, BackendUrl, Choice, HeaderName, OneOrMany, Size, Thousandths};

/// What a gate does, but for its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    /// Whether the queue and rules act, or only observe.
    pub(crate) mode: Mode,
    /// Where clients connect.
    pub(crate) listen: Vec<SocketAddr>,
    /// What is protected; an argument may name them instead.
    pub(crate) backends: Vec<BackendUrl>,
    /// Whose `X-Forwarded-For`, `Forwarded` and PROXY protocol headers are believed.
    pub(crate) trusted_proxies: NetworkSet,
    /// The header in which they name the client.
    pub(crate) forwarded_header: ForwardedHeader,
    /// Whether every connection must begin with a PROXY protocol header, from a trusted proxy.
    pub(crate) proxy_protocol: bool,
    /// Certificates to speak TLS with; none: plain HTTP.
    pub(crate) tls: Vec<CertificateFiles>,
    /// Whether HTTP/2 is spoken without TLS, to clients that begin with it.
    pub(crate) h2c: bool,
    /// How many threads serve.
    pub(crate) workers: usize,
    /// What the backend has.
    pub(crate) cores: Cores,
    /// How many requests may be at the backend at once; none means that the gate finds out.
    pub(crate) in_flight: Option<u32>,
    /// What is held at the gate.
    pub(crate) hold: Hold,
    /// How the backend is shared while it is scarce.
    pub(crate) fairness: Shares,
    /// How users are told apart beneath or in place of the address; none means by connection.
    pub(crate) user: Option<UserClass>,
    /// Bytes of memory for the state of all keys of all rules.
    pub(crate) memory_bytes: u64,
    /// How the price of a request is learned.
    pub(crate) toll: TollSource,
    /// Where the bands of load begin.
    pub(crate) bands: Edges,
    /// The response header with the load of the backend.
    pub(crate) load_header: Option<String>,
    /// The band that an operator sets, whatever the load is.
    pub(crate) band_pinned: Option<Band>,
    /// A file that tells how much the backend wants for CPU.
    pub(crate) pressure: Option<PathBuf>,
    /// Active health checks; none means that only the requests of clients show how a backend is.
    pub(crate) health: Option<HealthCheck>,
    /// Whether values of headers and cookies are shown as they are.
    pub(crate) show_values: bool,
    /// How much of responses is buffered for slow clients.
    pub(crate) buffer: ResponseBuffer,
    /// The operator's own pages for refusals and errors.
    pub(crate) pages: Pages,
    /// The access log; none: no line is written per request.
    pub(crate) access_log: Option<AccessLog>,
    /// How long each phase may take.
    pub(crate) timeouts: Timeouts,
    /// How much of everything there may be.
    pub(crate) bounds: Bounds,
    /// Where it is kept what was learned about the backends; none means where the watch keeps its flags.
    pub(crate) state_dir: Option<PathBuf>,
}

/// A certificate chain and its key, in PEM files that are read again when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateFiles {
    /// The chain, leaf first.
    pub(crate) chain: PathBuf,
    /// The private key.
    pub(crate) key: PathBuf,
}

/// Bounds on the requests that wait at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// The longest estimated wait.
    pub(crate) max: Span,
    /// How many requests may wait.
    pub(crate) total: u32,
    /// How many bytes they may hold.
    pub(crate) memory: u64,
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

/// The header in which trusted proxies name the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ForwardedHeader {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

impl Choice for ForwardedHeader {
    const WORDS: &'static [(&'static str, Self)] =
        &[("x-forwarded-for", Self::XForwardedFor), ("forwarded", Self::Forwarded)];
}

impl Choice for Band {
    const WORDS: &'static [(&'static str, Self)] =
        &[("normal", Self::Normal), ("elevated", Self::Elevated), ("critical", Self::Critical)];
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
        /// `enforce` holds and refuses. `observe` forwards every request at once: the queue and all rules decide and count, and log, metrics, console
        /// and doctor show which requests would have been held or refused. A reload switches the mode.
        mode: Mode = "\"enforce\"",
        /// Where clients connect: an address and port, or several.
        listen: OneOrMany<Address> = "\"127.0.0.1:8888\"",
        /// Where requests are forwarded to, one or several: `http://` and `https://` speak HTTP/1.1, `h2c://` and `h2://` HTTP/2 without and with TLS.
        /// Each has its own queue, in-flight limit and prices. Of several, a request goes to the one that is estimated to answer it
        /// first. `--backend` names them instead.
        backend: OneOrMany<BackendUrl>,
        /// Proxies whose `forwarded_header` names the client: addresses and networks, `"loopback"` (127.0.0.0/8 and ::1), `"private"` (RFC 1918, 100.64.0.0/10,
        /// link-local and fc00::/7), and `"file:/path"` for a file with one network per line and `#` for comments, which a reload reads again. From any other address the
        /// header is ignored. A proxy that a reload removes is not trusted on its open connections either.
        trusted_proxies: OneOrMany<TrustedEntry> = "[]",
        /// The header in which `trusted_proxies` name the client: `x-forwarded-for` or `forwarded` (RFC 7239). The other one is ignored and not passed on, since a
        /// proxy that does not maintain it passes on what the client wrote. With `forwarded`, so are `X-Forwarded-Host`, `X-Forwarded-Proto` and `X-Real-IP`.
        forwarded_header: ForwardedHeader = "\"x-forwarded-for\"",
        /// Whether every connection begins with a PROXY protocol header, version 1 or 2. Needs `trusted_proxies`; connections of
        /// others are closed.
        proxy_protocol: bool = "false",
        /// Certificates to speak TLS with, one or several, each as `{ cert = "chain.pem", key = "key.pem" }`. HTTP/2 is spoken where clients can. The files are read again
        /// when they change.
        tls: OneOrMany<TlsTable>,
        /// Whether HTTP/2 is spoken without TLS, to clients that begin with it.
        h2c: bool = "false",
        /// How many threads serve, each with its own connections. Without it, as many as this machine has cores.
        workers: NonZeroU32,
        /// How many cores each backend has: what a second of its time is worth. Without it, as many as this machine has.
        cores: Thousandths,
        /// How many requests may be in flight at each backend; the others wait at the gate, where the order can be chosen. `"auto"` finds the number.
        in_flight: Concurrency = "\"auto\"",
        /// Bounds on the requests that wait at the gate.
        hold: HoldTable = "{}",
        /// How the backend's time is shared while it is scarce.
        fairness: FairnessTable = "{}",
        /// Memory for the state of all keys, split over the rules that do not have `memory` themselves. It is taken at the start and never
        /// grows.
        memory: Size = "\"64MiB\"",
        /// How the price of a request is learned.
        toll: TollTable = "{}",
        /// Where the bands of load begin, by how long requests wait at the gate.
        bands: BandsTable = "{}",
        /// Active health checks of the backends.
        health: HealthTable = "{}",
        /// Whether values of headers and cookies that tell callers apart are shown in the log, in the console and by the admin address. They may be API keys and session ids, so
        /// they are masked by default: their first characters, at most four, and a keyed digest, such as `sk_l*3f9a01c2d4e5b607`. The masked form is accepted
        /// wherever a key is asked for, while the gate knows the caller; it changes with every start of the gate. Keys of `watch.account_class` are accounts, and are not masked.
        show_values: bool = "false",
        /// Buffers for responses to slow clients.
        buffer: BufferTable = "{}",
        /// Your own pages for refusals and errors.
        pages: PagesTable = "{}",
        /// The access log. Without it, no line is written per request.
        access_log: AccessLogTable,
        /// How long each phase of a connection may take.
        timeouts: TimeoutsTable = "{}",
        /// How much of everything there may be.
        bounds: BoundsTable = "{}",
        /// The directory in which the gate keeps what it has learned about each backend across restarts: the in-flight limit and the prices of routes. It
        /// is written at most once a minute, and at the end. Without it, the directory of `watch.state_dir`.
        state_dir: PathBuf,
    }
}

table! {
    /// A certificate that clients are shown.
    struct TlsTable {
        /// The PEM file with the certificate chain, leaf first.
        cert: PathBuf = required,
        /// The PEM file with the private key.
        key: PathBuf = required,
    }
}

table! {
    /// Bounds on the requests that wait at the gate.
    struct HoldTable {
        /// A request is refused if its wait is estimated to be longer than this.
        max: Span = "\"10s\"",
        /// How many requests may wait, split evenly among the backends. If the room is full, the newest request of the client furthest ahead of its share is refused.
        total: NonZeroU32 = "16384",
        /// How much memory waiting requests may hold, heads and small bodies included, split evenly among the backends.
        memory: Size = "\"64MiB\"",
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
    /// Where the bands of load begin, by how long requests wait at the gate, or by the load that an application reports with `POST /v1/load`. Each is left at half of where it begins. A band multiplies the
    /// penalty of who is over a limit, and touches nobody else.
    struct BandsTable {
        /// Where elevated begins.
        elevated: Span = "\"100ms\"",
        /// Where critical begins.
        critical: Span = "\"250ms\"",
        /// Sets the band, whatever the load is: `normal`, `elevated` or `critical`. A reload sets another, or ends it. Without it, the load decides.
        pin: Band,
        /// The response header in which a backend may report its own load: for how long its work waits, in milliseconds, such as the lag of an event loop. The header is removed from responses. Without it, no header is read.
        header: HeaderName,
        /// A file like `/proc/pressure/cpu` that tells how much the backend wants for CPU: 20 % of the last ten seconds count as much as a wait where elevated begins, 60 % as one where critical does. Without it, `cpu.pressure` of `toll.cgroup`, if that is set.
        pressure: PathBuf,
    }
}

/// More threads than any machine has use for.
const WORKERS_MAX: u32 = 1024;
/// More addresses than a gate has use for.
pub(super) const LISTEN_MAX: usize = 64;
/// The least memory that is of use.
const MEMORY_MIN: u64 = 64 << 10;

impl Default for Gate {
    fn default() -> Self {
        let (empty, mut faults) = (toml::de::DeTable::new(), Collector::default());
        GateTable::read_entries(Entries::new(&empty, 0..0, &mut faults)).meaning(&mut Collector::default())
    }
}

impl GateTable {
    /// What the table means. What is wrong has been reported and is as good as absent.
    pub(super) fn meaning(self, faults: &mut Collector) -> Gate {
        self.check(faults);
        let group = self.toll.value.cgroup.as_ref().map(|path| path.value.join("cpu.pressure"));
        let pressure = self.bands.value.pressure.as_ref().map(|path| path.value.clone()).or(group);
        let load_header = self.bands.value.header.as_ref().map(|header| header.value.0.clone());
        let band_pinned = self.bands.value.pin.as_ref().map(|band| band.value);
        let certificate = |tls: TlsTable| Some(CertificateFiles { chain: tls.cert?.value, key: tls.key?.value });
        Gate {
            mode: self.mode.value,
            listen: self.listen.value.values().map(|address| address.0).collect(),
            backends: self.backend.into_iter().flat_map(|backend| backend.value.values()).collect(),
            trusted_proxies: trusted::networks(self.trusted_proxies.value, faults),
            forwarded_header: self.forwarded_header.value,
            proxy_protocol: self.proxy_protocol.value,
            tls: self.tls.into_iter().flat_map(|tls| tls.value.values()).filter_map(certificate).collect(),
            h2c: self.h2c.value,
            workers: self.workers.map_or_else(machine_cores, |workers| workers.value.get()) as usize,
            cores: self.cores.map_or(Cores::whole(machine_cores()), |cores| Cores::from_milli(cores.value.0)),
            in_flight: self.in_flight.value.0.map(NonZeroU32::get),
            hold: self.hold.value.meaning(),
            user: self.fairness.value.user(faults),
            fairness: self.fairness.value.shares(faults),
            memory_bytes: self.memory.value.0,
            toll: self.toll.value.meaning(),
            bands: self.bands.value.meaning(faults),
            load_header,
            band_pinned,
            pressure,
            health: self.health.value.meaning(faults),
            show_values: self.show_values.value,
            buffer: self.buffer.value.meaning(),
            pages: self.pages.value.meaning(faults),
            access_log: self.access_log.and_then(|log| log.value.meaning(faults)),
            timeouts: self.timeouts.value.meaning(faults),
            bounds: self.bounds.value.meaning(faults),
            state_dir: self.state_dir.map(|path| path.value),
        }
    }

    fn check(&self, faults: &mut Collector) {
        if self.proxy_protocol.value && self.trusted_proxies.value.is_empty() {
            let message = "`proxy_protocol` needs `trusted_proxies`: write the addresses that may send the header";
            faults.missing(&self.proxy_protocol.span, message);
        }
        if self.listen.value.is_empty() {
            faults.fault(&self.listen.span, "a gate that listens nowhere serves nobody: write an address and port");
        }
        if self.listen.value.0.len() > LISTEN_MAX {
            faults.fault(&self.listen.span, format!("too many addresses: write at most {LISTEN_MAX}"));
        }
        if self.memory.value.0 < MEMORY_MIN {
            faults.fault(&self.memory.span, "too little to keep state in: write at least \"64KiB\"");
        }
        if let Some(workers) = self.workers.as_ref().filter(|workers| workers.value.get() > WORKERS_MAX) {
            let message = format!("more threads than cores only get in each other's way: write at most {WORKERS_MAX}");
            faults.fault(&workers.span, message);
        }
    }
}

/// The cores of this machine, as far as this process may use them.
fn machine_cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

impl BandsTable {
    fn meaning(self, faults: &mut Collector) -> Edges {
        let edges = Edges::new(self.elevated.value, self.critical.value);
        if edges.is_none() {
            let message = "critical load begins after elevated load, and both after 0: write a longer time";
            faults.fault(&self.critical.span, message);
        }
        edges.unwrap_or_else(|| Edges::new(Span::from_millis(100), Span::from_millis(250)).expect("100 is below 250"))
    }
}

impl HoldTable {
    fn meaning(self) -> Hold {
        Hold { max: self.max.value, total: self.total.value.get(), memory: self.memory.value.0 }
    }
}

impl TollTable {
    fn meaning(self) -> TollSource {
        TollSource { header: self.header.value.0, keep: self.keep.value, cgroup: self.cgroup.map(|path| path.value) }
    }
}
