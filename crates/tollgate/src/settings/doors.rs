//! `[doors]`: interfaces for programs and proxies that are not behind the gate.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate_core::network::Network;
use tollgate_core::time::Span;
use toml::Spanned;
use toml::de::DeValue;

use super::error::ErrorCollector;
use super::gate::{CertificateFiles, error_of_memory};
use super::listeners::Listener;
use super::ratelimit::ServedLimits;
use super::rule::StateLocation;
use super::shape::Shape;
use super::table::{Entries, Located, Value, table};
use super::value::{ListenAddress, OneOrMany, Size, WholeNumber};

/// The settings of the doors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doors {
    /// The HTTP door: checks and forward-auth.
    pub(crate) http: Option<DoorListener>,
    /// The gRPC door: Envoy's rate limit services.
    pub(crate) grpc: Option<DoorListener>,
    /// The RESP door: `CL.THROTTLE` for Redis clients.
    pub(crate) resp: Option<DoorListener>,
    /// The file or folder with limits in the format of envoyproxy/ratelimit.
    pub(crate) ratelimit: Option<PathBuf>,
    /// The location of the state of those limits.
    pub(crate) ratelimit_state: StateLocation,
    /// The limits of these files.
    pub(crate) limits: Arc<ServedLimits>,
    /// The file with the token of clients.
    pub(crate) token_file: Option<PathBuf>,
    /// Number of threads. None: as many as the gate has workers.
    pub(crate) threads: Option<usize>,
    /// Maximum number of connections of all doors together.
    pub(crate) connections_max: usize,
    /// Maximum number of unsettled tickets.
    pub(crate) tickets_max: usize,
    /// The time after which an unsettled ticket expires.
    pub(crate) ticket_deadline: Span,
    /// Memory for the keys of `CL.THROTTLE`, in bytes.
    pub(crate) memory_bytes: u64,
    /// The access log of a proxy, whose lines settle tickets.
    pub(crate) log: Option<DoorLog>,
}

/// The address of a door, and its TLS files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DoorListener {
    pub(crate) address: SocketAddr,
    /// None: connections are not encrypted.
    pub(crate) tls: Option<DoorTls>,
}

impl DoorListener {
    /// The file with the authorities of client certificates, if clients authenticate with certificates.
    pub(crate) fn client_ca(&self) -> Option<&Path> {
        self.tls.as_ref()?.client_ca.as_deref()
    }
}

/// The TLS files of a door. They are reloaded when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DoorTls {
    pub(crate) files: CertificateFiles,
    /// The authorities of client certificates. None: clients need no certificate.
    pub(crate) client_ca: Option<PathBuf>,
}

impl Doors {
    /// The names and listeners of the open doors.
    pub(crate) fn open(&self) -> impl Iterator<Item = (&'static str, &DoorListener)> {
        let all = [("http", &self.http), ("grpc", &self.grpc), ("resp", &self.resp)];
        all.into_iter().filter_map(|(key, door)| Some((key, door.as_ref()?)))
    }
}

/// An address and port, or a port on the loopback address.
pub(crate) enum DoorAddress {}

impl Value for DoorAddress {
    type Parsed = SocketAddr;

    fn shape() -> Shape {
        Shape::Either(vec![ListenAddress::shape(), Shape::Integer { min: 1, max: u64::from(u16::MAX) }])
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<SocketAddr> {
        let DeValue::Integer(number) = value.get_ref() else { return ListenAddress::read(value, errors) };
        let port = u16::from_str_radix(number.as_str(), number.radix()).ok().filter(|port| *port > 0);
        if port.is_none() {
            errors.report(&value.span(), format!("{number} is not a port: write a number from 1 to 65535"));
        }
        port.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }
}

/// An address and port, a port on the loopback address, or a table with TLS files.
#[derive(Clone, Debug)]
pub(super) struct DoorValue {
    /// The address, and its position in the file. None if it was reported as an error.
    listen: Option<Located<SocketAddr>>,
    tls: Option<Located<DoorTlsTable>>,
}

impl Value for DoorValue {
    type Parsed = Self;

    fn shape() -> Shape {
        let Shape::Either(mut shapes) = DoorAddress::shape() else { return DoorTable::shape() };
        shapes.push(DoorTable::shape());
        Shape::Either(shapes)
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<Self> {
        if let DeValue::Table(_) = value.get_ref() {
            return DoorTable::read(value, errors).map(|table| Self { listen: table.listen, tls: table.tls });
        }
        let address = DoorAddress::read(value, errors)?;
        Some(Self { listen: Some(Located { value: address, span: value.span() }), tls: None })
    }
}

table! {
    /// A door with TLS.
    struct DoorTable {
        /// The address and port, or a port on 127.0.0.1.
        listen: DoorAddress = required,
        /// The TLS files. Without them, connections are not encrypted.
        tls: DoorTlsTable,
    }
}

table! {
    /// The TLS files of a door. Changed files are read again within seconds. If they have an error, the previous ones
    /// stay in force.
    struct DoorTlsTable {
        /// The PEM file with the certificate chain, leaf first.
        cert: PathBuf = required,
        /// The PEM file with the private key.
        key: PathBuf = required,
        /// The PEM file with the certificates of authorities. Each client must then have a certificate that one of them
        /// has signed (mutual TLS), and needs no token.
        client_ca: PathBuf,
    }
}

table! {
    /// Interfaces for programs and proxies that are not behind this gate. They ask for decisions, which use the rules
    /// and the state of the gate. A door is open if it has an address: an address and port, or a port on 127.0.0.1. For
    /// TLS, it is a table with `listen` and `tls`.
    struct DoorsTable {
        /// The HTTP door: `POST /v1/check`, `POST /v1/report` and `GET /v1/auth`, for applications and for proxies such
        /// as nginx, Traefik, Caddy and HAProxy.
        http: DoorValue,
        /// The gRPC door: Envoy's rate limit service and rate limit quota service.
        grpc: DoorValue,
        /// The RESP door: `CL.THROTTLE` and `THROTTLE` for Redis clients.
        resp: DoorValue,
        /// A file with limits in the YAML format of envoyproxy/ratelimit, or a folder of such files. Each domain in
        /// them is a domain of its own, for the door `grpc` and for `POST /json` of the door `http`. The files are read
        /// again on a reload.
        ratelimit: PathBuf,
        /// The location of the state of the limits in `ratelimit`. `local`: the memory of this process. `redis`: exact
        /// across processes.
        ratelimit_state: StateLocation = "\"local\"",
        /// The file with the token of clients: one word of at least 16 bytes, such as the output of
        /// `openssl rand -hex 32`. HTTP clients send it as `Authorization: Bearer TOKEN`, Redis clients with
        /// `AUTH TOKEN`, gRPC clients as the metadata `authorization: Bearer TOKEN`. Required beyond loopback, except
        /// for a door with `client_ca`, which requires a client certificate instead.
        token_file: PathBuf,
        /// Number of threads, each with its own connections. Default: the value of `gate.workers`.
        threads: WholeNumber<u32> where error_of_threads,
        /// Maximum number of connections of all doors together. Beyond it, the connection that has been idle the
        /// longest is closed.
        connections: WholeNumber<usize> = "4096",
        /// Maximum number of unsettled tickets. Beyond it, the oldest is settled at its expected cost.
        tickets: WholeNumber<usize> = "16384",
        /// The time after which an unsettled ticket expires: its request counts as ended, at its expected cost. A check
        /// can set another time of at most one hour.
        ticket_deadline: Span = "\"60s\"" where error_of_deadline,
        /// Memory for the keys of `CL.THROTTLE` and of descriptors with a limit override, whose limits come with each
        /// call, and for the keys of the limits in `ratelimit`: this much for each of the three that is in use. It is
        /// allocated at the start and never grows.
        memory: Size = "\"16MiB\"" where error_of_memory,
        /// The access log of a proxy that asks `/v1/auth`: each line settles the ticket that it has.
        log: DoorLog,
    }
}

table! {
    /// The access log of a proxy that asks `/v1/auth`. Each line with the ticket of a request, as `ticket=TICKET` or as
    /// the JSON field `ticket`, settles the request: its cost is its share of the cores for the logged duration, or
    /// what the line has as `cost=` in seconds.
    pub(crate) struct DoorLog {
        /// A file that the proxy appends to. It is followed through rotation; lines that are in it at the start are not
        /// read.
        file: PathBuf,
        /// A UDP address for syslog messages, or a port of the loopback address.
        syslog: DoorAddress,
        /// Networks beyond loopback from which syslog messages are accepted.
        from: OneOrMany<Network> = empty,
    }
    check DoorLog::check;
}

impl DoorLog {
    fn check(&self, entries: &mut Entries<'_>) {
        if self.file.is_none() && self.syslog.is_none() {
            let message = "no log is named: write `file = \"/var/log/nginx/tollgate.log\"` or `syslog = 5514`";
            entries.errors.missing(&entries.span, message);
        }
        if let Some(address) = self.syslog.filter(|address| !address.ip().is_loopback() && self.from.is_empty()) {
            let message =
                format!("{address} is beyond loopback: name the senders in `from`, or write a loopback address");
            entries.report("syslog", message);
        }
    }
}

/// Maximum value of a ticket's deadline.
pub(crate) const TICKET_DEADLINE_MAX: Span = Span::from_secs(3600);
/// Maximum number of threads: more than any machine needs.
const THREADS_MAX: u32 = 256;
fn error_of_threads(threads: &u32) -> Option<String> {
    let message = format!("more threads than cores are of no use: write at most {THREADS_MAX}");
    (*threads > THREADS_MAX).then_some(message)
}

fn error_of_deadline(deadline: &Span) -> Option<String> {
    let message = "a ticket expires after more than 0s and at most one hour: write \"60s\"";
    (deadline.is_zero() || *deadline > TICKET_DEADLINE_MAX).then(|| message.to_owned())
}

impl DoorsTable {
    /// Converts the table, whose position is `span`. Values with an error have been reported and count as absent.
    pub(super) fn resolve(self, span: &Range<usize>, errors: &mut ErrorCollector) -> Doors {
        if !["http", "grpc", "resp"].iter().any(|key| self.written.has(key)) {
            let message = "no door has an address: write `http = \"127.0.0.1:8890\"`, `grpc = \"127.0.0.1:8081\"` or `resp = \"127.0.0.1:6380\"`";
            errors.missing(span, message);
        }
        let has_token = self.written.has("token_file");
        for (key, door) in [("doors.http", &self.http), ("doors.grpc", &self.grpc), ("doors.resp", &self.resp)] {
            if let Some(door) = door {
                door.value.check(key, has_token, errors);
            }
        }
        self.check_ratelimit(errors);
        Doors {
            http: self.http.and_then(|door| door.value.resolve()),
            grpc: self.grpc.and_then(|door| door.value.resolve()),
            ratelimit: self.ratelimit.map(|path| path.value),
            ratelimit_state: self.ratelimit_state.value,
            limits: Arc::default(),
            resp: self.resp.and_then(|door| door.value.resolve()),
            token_file: self.token_file.map(|path| path.value),
            threads: self.threads.map(|threads| threads.value as usize),
            connections_max: self.connections.value,
            tickets_max: self.tickets.value,
            ticket_deadline: self.ticket_deadline.value,
            memory_bytes: self.memory.value,
            log: self.log.map(|log| log.value),
        }
    }

    fn check_ratelimit(&self, errors: &mut ErrorCollector) {
        let state = &self.ratelimit_state;
        if state.value == StateLocation::Master {
            errors.report(&state.span, "a master keeps no such limits: write `\"local\"` or `\"redis\"`");
        }
        if state.value == StateLocation::Redis {
            errors.need_redis(&state.span, "`\"redis\"`");
        }
        if let Some(path) = self.ratelimit.as_ref().filter(|_| !self.written.has("grpc") && !self.written.has("http")) {
            errors.report(&path.span, "nobody can ask for these limits: write `grpc = \"127.0.0.1:8081\"` too");
        }
    }
}

impl DoorValue {
    fn resolve(self) -> Option<DoorListener> {
        let tls = self.tls.and_then(|tls| {
            let DoorTlsTable { cert, key, client_ca, .. } = tls.value;
            let files = CertificateFiles { chain: cert?.value, key: key?.value };
            Some(DoorTls { files, client_ca: client_ca.map(|file| file.value) })
        });
        Some(DoorListener { address: self.listen?.value, tls })
    }

    /// Notes the address. Reports one beyond loopback that requires neither a token nor a client certificate.
    fn check(&self, key: &'static str, has_token: bool, errors: &mut ErrorCollector) {
        let Some(Located { value: address, span }) = self.listen.clone() else { return };
        let has_client_ca = self.tls.as_ref().is_some_and(|tls| tls.value.written.has("client_ca"));
        if !address.ip().is_loopback() && !has_token && !has_client_ca {
            let message = format!(
                "{address} is beyond loopback and needs a token or client certificates: write `token_file` in [doors], \
                 `client_ca` in the `tls` of the door, or a loopback address"
            );
            errors.report(&span, message);
        }
        errors.listeners.push(Listener { key, address, span });
    }
}
