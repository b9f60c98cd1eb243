//! `[doors]`: ways in for programs and proxies that are not behind the gate.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use tollgate_core::network::{Network, NetworkSet};
use tollgate_core::time::Span;
use toml::Spanned;
use toml::de::DeValue;

use super::fault::Collector;
use super::ratelimit::ServedLimits;
use super::rule::State;
use super::shape::Shape;
use super::table::{Placed, Value, table};
use super::value::{Address, OneOrMany, Size};

/// The doors that are open, and their bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doors {
    /// Checks over HTTP, and forward-auth.
    pub(crate) http: Option<SocketAddr>,
    /// Envoy's rate limit services.
    pub(crate) grpc: Option<SocketAddr>,
    /// `CL.THROTTLE` for Redis clients.
    pub(crate) resp: Option<SocketAddr>,
    /// The file or folder with limits in the format of envoyproxy/ratelimit.
    pub(crate) ratelimit: Option<PathBuf>,
    /// Where the state of those limits is kept.
    pub(crate) ratelimit_state: State,
    /// The limits of these files.
    pub(crate) limits: Arc<ServedLimits>,
    /// The file with the token that clients show.
    pub(crate) token_file: Option<PathBuf>,
    /// Threads that serve the doors; none: as many as the gate has workers.
    pub(crate) threads: Option<usize>,
    /// Connections at once, all doors together.
    pub(crate) connections_max: usize,
    /// Tickets that are kept until they are settled.
    pub(crate) tickets_max: usize,
    /// How long a ticket is kept if nobody settles it.
    pub(crate) ticket_deadline: Span,
    /// Memory for the keys of `CL.THROTTLE`.
    pub(crate) memory_bytes: u64,
    /// The access log of a proxy, whose lines settle tickets.
    pub(crate) log: Option<DoorLog>,
}

/// Where the access log of a proxy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DoorLog {
    /// The file that the proxy appends to.
    pub(crate) file: Option<PathBuf>,
    /// The UDP address for syslog messages.
    pub(crate) syslog: Option<SocketAddr>,
    /// The networks beyond loopback from which messages are accepted.
    pub(crate) from: NetworkSet,
}

impl Doors {
    /// The doors that are open: their keys and addresses.
    pub(crate) fn open(&self) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        let all = [("http", self.http), ("grpc", self.grpc), ("resp", self.resp)];
        all.into_iter().filter_map(|(key, address)| Some((key, address?)))
    }
}

/// An address to listen on, or a port of the loopback address.
#[derive(Clone, Copy, Debug)]
pub(super) struct DoorAddress(pub(super) Address);

impl Value for DoorAddress {
    fn shape() -> Shape {
        Shape::Either(vec![Address::shape(), Shape::Integer { min: 1, max: u64::from(u16::MAX) }])
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        let DeValue::Integer(number) = value.get_ref() else { return Address::read(value, faults).map(Self) };
        let port = u16::from_str_radix(number.as_str(), number.radix()).ok().filter(|port| *port > 0);
        if port.is_none() {
            faults.fault(&value.span(), format!("{number} is no port: write a number from 1 to 65535"));
        }
        port.map(|port| Self(Address(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))))
    }
}

table! {
    /// Ways in for programs and proxies that are not behind this gate: they ask, and the same rules and the same state decide. A door is open if it has an
    /// address. An address is written with its port; a port alone is one of 127.0.0.1.
    struct DoorsTable {
        /// Where `POST /v1/check`, `POST /v1/report` and `GET /v1/auth` are served, for applications and for proxies such as nginx, Traefik, Caddy and HAProxy.
        http: DoorAddress,
        /// Where Envoy connects: its rate limit service and its rate limit quota service, over gRPC without TLS.
        grpc: DoorAddress,
        /// Where Redis clients connect, for `CL.THROTTLE` and `THROTTLE`.
        resp: DoorAddress,
        /// A file with limits in the YAML format of envoyproxy/ratelimit, or a folder of such files. Each domain in them is a domain of its own, for the door
        /// `grpc` and for `POST /json` of the door `http`. The files are read again on a reload.
        ratelimit: PathBuf,
        /// Where the state of the limits in `ratelimit` is kept: `local` is the memory of this process, `redis` is exact across processes.
        ratelimit_state: State = "\"local\"",
        /// A file with the token that clients show: one word, such as `openssl rand -hex 32` makes. Over HTTP it is shown as `Authorization: Bearer TOKEN`, over RESP with
        /// `AUTH TOKEN`, over gRPC as the metadata `authorization: Bearer TOKEN`. Needed beyond loopback.
        token_file: PathBuf,
        /// How many threads serve the doors, each with its own connections. Without it, as many as `gate.workers`.
        threads: NonZeroU32,
        /// How many connections there may be at once, all doors together. When there are more, the one that has been idle the longest is closed.
        connections: NonZeroU32 = "4096",
        /// How many tickets are kept until they are settled. When there are more, the oldest is settled at its expected cost.
        tickets: NonZeroU32 = "16384",
        /// How long a ticket is kept if nobody settles it. Then requests in flight are counted as ended, at their expected cost. A check may name another time, of at most
        /// one hour.
        ticket_deadline: Span = "\"60s\"",
        /// Memory for the keys of `CL.THROTTLE` and of descriptors with a limit override, whose limits come with each call, and for the keys of the limits in
        /// `ratelimit`: this much for each of the three that is in use. It is taken at the start and never grows.
        memory: Size = "\"16MiB\"",
        /// The access log of a proxy that asks `/v1/auth`: each line settles the ticket that it has.
        log: DoorLogTable,
    }
}

table! {
    /// The access log of a proxy that asks `/v1/auth`. Each line with the ticket of a request, as `ticket=TICKET` or as the JSON field `ticket`, settles
    /// the request: its cost is its share of the cores for the logged duration, or what the line has as `cost=` in seconds.
    struct DoorLogTable {
        /// A file that the proxy appends to. It is followed through rotation; lines that are in it at the start are not read.
        file: PathBuf,
        /// A UDP address for syslog messages, or a port of the loopback address.
        syslog: DoorAddress,
        /// Networks beyond loopback from which syslog messages are accepted.
        from: OneOrMany<Network>,
    }
}

impl DoorLogTable {
    fn meaning(self, span: &Range<usize>, faults: &mut Collector) -> DoorLog {
        if self.file.is_none() && self.syslog.is_none() {
            faults.missing(span, "no log is named: write `file = \"/var/log/nginx/tollgate.log\"` or `syslog = 5514`");
        }
        let from: NetworkSet = self.from.into_iter().flat_map(|from| from.value.values()).collect();
        if let Some(syslog) = &self.syslog {
            let address = syslog.value.0.0;
            if !address.ip().is_loopback() && from.is_empty() {
                let message =
                    format!("{address} is beyond loopback: name the senders in `from`, or write a loopback address");
                faults.fault(&syslog.span, message);
            }
        }
        DoorLog { file: self.file.map(|file| file.value), syslog: self.syslog.map(|syslog| syslog.value.0.0), from }
    }
}

/// The longest time that a ticket is kept.
pub(crate) const TICKET_DEADLINE_MAX: Span = Span::from_secs(3600);
/// More threads than any machine has use for.
const THREADS_MAX: u32 = 256;
/// The least memory that is of use.
const MEMORY_MIN: u64 = 64 << 10;

impl DoorsTable {
    /// The meaning of the table, which is at `span`. Wrong values have been reported and are as good as absent.
    pub(super) fn meaning(self, span: &Range<usize>, has_redis: bool, faults: &mut Collector) -> Doors {
        if !["http", "grpc", "resp"].iter().any(|key| self.written.has(key)) {
            let message = "no door has an address: write `http = \"127.0.0.1:8890\"`, `grpc = \"127.0.0.1:8081\"` or `resp = \"127.0.0.1:6380\"`";
            faults.missing(span, message);
        }
        let has_token = self.written.has("token_file");
        for door in [&self.http, &self.grpc, &self.resp].into_iter().flatten() {
            refuse_open(door, has_token, faults);
        }
        self.check(has_redis, faults);
        Doors {
            http: self.http.map(|door| door.value.0.0),
            grpc: self.grpc.map(|door| door.value.0.0),
            ratelimit: self.ratelimit.map(|path| path.value),
            ratelimit_state: self.ratelimit_state.value,
            limits: Arc::default(),
            resp: self.resp.map(|door| door.value.0.0),
            token_file: self.token_file.map(|path| path.value),
            threads: self.threads.map(|threads| threads.value.get() as usize),
            connections_max: self.connections.value.get() as usize,
            tickets_max: self.tickets.value.get() as usize,
            ticket_deadline: self.ticket_deadline.value,
            memory_bytes: self.memory.value.0,
            log: self.log.map(|log| log.value.meaning(&log.span, faults)),
        }
    }

    fn check(&self, has_redis: bool, faults: &mut Collector) {
        self.check_ratelimit(has_redis, faults);
        if let Some(threads) = self.threads.as_ref().filter(|threads| threads.value.get() > THREADS_MAX) {
            faults.fault(&threads.span, format!("more threads than cores are of no use: write at most {THREADS_MAX}"));
        }
        let deadline = &self.ticket_deadline;
        if deadline.value.is_zero() || deadline.value > TICKET_DEADLINE_MAX {
            faults.fault(&deadline.span, "a ticket is kept for some time, and for one hour at most: write \"60s\"");
        }
        if self.memory.value.0 < MEMORY_MIN {
            faults.fault(&self.memory.span, "too little to keep state in: write at least \"64KiB\"");
        }
    }
}

impl DoorsTable {
    fn check_ratelimit(&self, has_redis: bool, faults: &mut Collector) {
        let state = &self.ratelimit_state;
        if state.value == State::Master {
            faults.fault(&state.span, "a master keeps no such limits: write `\"local\"` or `\"redis\"`");
        }
        if state.value == State::Redis && !has_redis {
            let message = "`\"redis\"` needs a `[redis]` table: write `url = \"redis://127.0.0.1:6379\"` there";
            faults.missing(&state.span, message);
        }
        if let Some(path) = self.ratelimit.as_ref().filter(|_| !self.written.has("grpc") && !self.written.has("http")) {
            faults.fault(&path.span, "nobody can ask for these limits: write `grpc = \"127.0.0.1:8081\"` too");
        }
    }
}

/// Reports a door beyond loopback that asks for no token.
fn refuse_open(door: &Placed<DoorAddress>, has_token: bool, faults: &mut Collector) {
    let address = door.value.0.0;
    if !address.ip().is_loopback() && !has_token {
        let message =
            format!("{address} is beyond loopback, where a token is needed: write `token_file`, or a loopback address");
        faults.fault(&door.span, message);
    }
}
