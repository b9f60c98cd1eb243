//! `[gate]`: the reverse proxy. The table [`Gate`] and most of the tables inside it, which the gate uses as they are.

use std::path::PathBuf;

use tollgate_core::band::{Band, Edges};
use tollgate_core::rule::Mode;
use tollgate_core::time::Span;
use tollgate_core::virtual_clock::Cores;
use toml::Spanned;
use toml::de::DeValue;

use super::access_log::AccessLog;
use super::bounds::Bounds;
use super::buffer::ResponseBuffer;
use super::error::{ErrorCollector, shown};
use super::fairness::Fairness;
use super::health::HealthCheck;
use super::listeners::Listener;
use super::pages::ErrorPages;
use super::shape::Shape;
use super::site::Site;
use super::table::{Entries, Located, Value, defaults, table};
use super::timeouts::Timeouts;
use super::trusted::{Networks, TrustedEntries};
use super::value::{BackendUrl, Choice, HeaderName, ListenAddress, OneOrMany, Size, WholeNumber};

/// The header in which trusted proxies send the client's address.
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

/// The maximum number of requests in flight at a backend: `"auto"`, or a number.
pub(crate) enum Concurrency {}

impl Value for Concurrency {
    /// None for `"auto"`: the gate adapts the limit.
    type Parsed = Option<u32>;

    fn shape() -> Shape {
        Shape::Either(vec![Shape::Choice(vec!["auto"]), WholeNumber::<u32>::shape()])
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Option<u32>> {
        match value.get_ref() {
            DeValue::String(text) if text == "auto" => Some(None),
            DeValue::String(text) => {
                let message =
                    format!("{} is not a number of requests: write \"auto\", or a number without quotes", shown(text));
                errors.refuse(&value.span(), message)
            }
            _ => WholeNumber::<u32>::read(value, errors).map(Some),
        }
    }
}

table! {
    /// The reverse proxy. Without any rules, a gate protects its backend with the fair queue alone.
    pub(crate) struct Gate {
        /// `enforce` holds and refuses requests. `observe` forwards every request at once: the queue and all rules
        /// decide and count, and log, metrics, console and doctor show which requests would have been held or refused.
        /// A reload applies a change of the mode.
        mode: Mode = "\"enforce\"",
        /// The addresses for clients, each with a port.
        listen: OneOrMany<ListenAddress> = "\"127.0.0.1:8888\"",
        /// The backends. `http://` and `https://` use HTTP/1.1; `h2c://` and `h2://` use HTTP/2 without and with TLS.
        /// Each backend has its own queue, in-flight limit and prices. A request goes to the backend with the earliest
        /// estimated response. The option `--backend` replaces this setting. With `[[site]]`, these backends serve the
        /// hosts of no site.
        backends as "backend": OneOrMany<BackendUrl> = empty,
        /// Proxies whose `forwarded_header` is trusted: addresses, networks, `"loopback"` (127.0.0.0/8 and ::1),
        /// `"private"` (RFC 1918, 100.64.0.0/10, link-local and fc00::/7), and `"file:/path"` for a file with one
        /// network per line and `#` for comments. A reload reads such files again. From any other address the header is
        /// ignored. If a reload removes a proxy, its open connections lose the trust as well.
        trusted_proxies: Networks = "[]",
        /// The header with the client's address, from `trusted_proxies`: `x-forwarded-for` or `forwarded` (RFC 7239).
        /// The other header is ignored and not forwarded, because a proxy that does not maintain it forwards the
        /// client's value. With `forwarded`, the same applies to `X-Forwarded-Host`, `X-Forwarded-Proto` and
        /// `X-Real-IP`.
        forwarded_header: ForwardedHeader = "\"x-forwarded-for\"",
        /// Whether every connection begins with a PROXY protocol header, version 1 or 2. Requires `trusted_proxies`;
        /// connections from other addresses are closed.
        proxy_protocol: bool = "false",
        /// TLS certificates, each as `{ cert = "chain.pem", key = "key.pem" }`. Clients can negotiate HTTP/2. The files
        /// are reloaded when they change.
        tls: OneOrMany<CertificateFiles> = empty,
        /// Whether clients may use HTTP/2 without TLS, with prior knowledge.
        h2c: bool = "false",
        /// Number of worker threads, each with its own connections. Default: the number of cores of this machine.
        workers: WholeNumber<usize> = (machine_cores() as usize) where ..=1024 =>
            "more threads than cores are of no use: write at most 1024",
        /// Number of CPU cores of each backend. Default: the number of cores of this machine. A backend that is one
        /// single-threaded process has 1.
        cores: Cores = (Cores::whole(machine_cores())),
        /// Maximum number of requests in flight at each backend; the others wait at the gate, which chooses their
        /// order. `"auto"` adapts the limit to the backend.
        in_flight: Concurrency = "\"auto\"",
        /// Bounds on the requests that wait at the gate.
        hold: Hold = "{}",
        /// The shares of clients while the backend is busy.
        fairness: Fairness = "{}",
        /// Memory for the state of all keys, divided among the rules without `memory`. It is allocated at the start and
        /// never grows.
        memory_bytes as "memory": Size = "\"64MiB\"" where MEMORY_MIN.. => MEMORY_ERROR,
        /// The sources of the cost of a request.
        toll: TollSource = "{}",
        /// The thresholds of the bands, as waiting times at the gate.
        bands: Bands = "{}",
        /// Active health checks of the backends.
        health: HealthCheck = "{}",
        /// Whether keys from headers, cookies and JSON bodies are shown in the log, in the console and by the admin
        /// address. They may be API keys and session ids, so they are masked by default: at most four characters and a
        /// keyed digest, such as `sk_l*3f9a01c2d4e5b607`. Commands and the admin API accept the masked form while the
        /// gate knows the key; it changes with every start of the gate. Keys of `watch.account_class` are accounts, and
        /// are not masked.
        show_values: bool = "false",
        /// Buffers for responses to slow clients.
        buffer: ResponseBuffer = "{}",
        /// Your own pages for refusals and errors.
        pages: ErrorPages = "{}",
        /// The access log. Without it, no line is written per request.
        access_log: AccessLog,
        /// Timeouts of each phase of a connection.
        timeouts: Timeouts = "{}",
        /// Bounds of requests and connections.
        bounds: Bounds = "{}",
        /// The directory in which the gate saves the learned in-flight limit and route prices of each backend. The file
        /// is written at most once a minute, and at shutdown. Default: the directory of `watch.state_dir`.
        state_dir: PathBuf,
    }
    beside {
        /// The sites behind the gate.
        sites: Vec<Site>,
    }
    check Gate::check;
}

table! {
    /// A TLS certificate of the gate.
    pub(crate) struct CertificateFiles as "tls" {
        /// The PEM file with the certificate chain, leaf first.
        chain as "cert": PathBuf = required,
        /// The PEM file with the private key.
        key: PathBuf = required,
    }
}

table! {
    /// Bounds on the requests that wait at the gate.
    pub(crate) struct Hold {
        /// Maximum estimated wait. A request with a longer estimate is refused.
        max: Span = "\"10s\"",
        /// Maximum number of waiting requests, divided evenly among the backends. If the queue is full, the newest
        /// request of the client furthest above its share is refused.
        total: WholeNumber<u32> = "16384",
        /// Maximum memory of waiting requests, heads and buffered bodies included, divided evenly among the backends:
        /// at least 96KiB for each, so that any request fits.
        memory: Size = "\"64MiB\"",
    }
}

impl Copy for Hold {}

table! {
    /// The sources of the cost of a request. By default, the gate estimates the cost: it divides the backend's time
    /// among the requests in flight.
    pub(crate) struct TollSource as "toll" {
        /// The response header in which the backend reports the cost: `server-timing` with `cpu;dur=` in milliseconds,
        /// or any other header with a number of milliseconds.
        header: HeaderName = "\"server-timing\"",
        /// Whether that header is forwarded to the client.
        keep: bool = "false",
        /// The cgroup of the backend, such as `/sys/fs/cgroup/site`: the gate reads the CPU time from its `cpu.stat`.
        cgroup: PathBuf,
    }
}

table! {
    /// The thresholds of the bands, as waiting times at the gate. The load that an application reports with `POST
    /// /v1/load` counts as well. A band ends below half of its threshold. A band multiplies the backoff of keys that
    /// exceed a limit; other keys are not affected.
    pub(crate) struct Bands {
        /// The waiting time at which the band `elevated` begins.
        elevated: Span = "\"100ms\"",
        /// The waiting time at which the band `critical` begins.
        critical: Span = "\"250ms\"",
        /// Sets the band to `normal`, `elevated` or `critical`, regardless of the load. A reload applies a change.
        /// Default: the load decides.
        pin: Band,
        /// The response header in which a backend may report its own load: the time that its work waits, in
        /// milliseconds, such as the lag of an event loop. The gate removes it from responses. Default: no header.
        header: HeaderName,
        /// A file in the format of `/proc/pressure/cpu` with the CPU pressure of the backend. A pressure of 20 % over
        /// the last ten seconds counts as a wait of `elevated`, 60 % as a wait of `critical`. Default: `cpu.pressure`
        /// of `toll.cgroup`, if that is set.
        pressure: PathBuf,
    }
    check Bands::check;
}

/// Maximum number of listening addresses of a gate.
const LISTEN_MAX: usize = 64;
/// Minimum memory for the state of keys, in bytes.
pub(super) const MEMORY_MIN: u64 = 64 << 10;
/// The error message for less than [`MEMORY_MIN`].
pub(super) const MEMORY_ERROR: &str = "too little memory for the state of keys: write at least \"64KiB\"";

/// The most memory that one waiting request takes: its task, its head, of at most 64 KiB, and a buffered body.
pub(crate) const WAITING_BYTES_MAX: u64 = 96 << 10;

impl Default for Gate {
    fn default() -> Self {
        defaults::<Self>()
    }
}

impl Gate {
    /// The file with the CPU pressure of the backend.
    pub(crate) fn pressure(&self) -> Option<PathBuf> {
        let of_group = || self.toll.cgroup.as_ref().map(|cgroup| cgroup.join("cpu.pressure"));
        self.bands.pressure.clone().or_else(of_group)
    }

    /// The error if `hold.memory` has no room for a waiting request of every backend.
    pub(super) fn hold_memory_error(&self) -> Option<String> {
        let least = self.all_backends().len().max(1) as u64 * WAITING_BYTES_MAX;
        let kib = least >> 10;
        (self.hold.memory < least).then(|| {
            format!(
                "`memory` of `hold` has no room for a waiting request of every backend: write at least \"{kib}KiB\""
            )
        })
    }

    fn check(&self, entries: &mut Entries<'_>) {
        if self.proxy_protocol
            && entries.read_again::<TrustedEntries>("trusted_proxies").is_none_or(|all| all.is_empty())
        {
            let message = "`proxy_protocol` needs `trusted_proxies`: write the addresses that may send the header";
            entries.missing("proxy_protocol", message);
        }
        if self.listen.is_empty() {
            entries.report("listen", "a gate needs an address for clients: write an address and port");
        }
        if self.listen.len() > LISTEN_MAX {
            entries.report("listen", format!("too many addresses: write at most {LISTEN_MAX}"));
        }
        if let Some(error) = self.hold_memory_error() {
            entries.report("hold", error);
        }
        match entries.read_again::<OneOrMany<Located<ListenAddress>>>("listen") {
            None => self.listen.iter().for_each(|address| entries.listen("gate.listen", *address)),
            Some(addresses) => {
                let listener =
                    |Located { value: address, span }| Listener { key: "gate.listen".to_owned(), address, span };
                entries.errors.listeners.extend(addresses.into_iter().take(LISTEN_MAX).map(listener));
            }
        }
    }
}

/// The number of CPU cores that this process may use; 1 if it is unknown.
fn machine_cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

impl Bands {
    /// The waiting times at which the bands begin.
    pub(crate) fn edges(&self) -> Edges {
        Edges::new(self.elevated, self.critical).expect("invalid ones are an error of the settings")
    }

    fn check(&self, entries: &mut Entries<'_>) {
        if Edges::new(self.elevated, self.critical).is_none() {
            let message = "`critical` must be longer than `elevated`, and both longer than 0: write a longer time";
            entries.report("critical", message);
        }
    }
}
