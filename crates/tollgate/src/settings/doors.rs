//! `[doors]`: interfaces through which programs and proxies that are not behind the gate ask for its decisions.
//!
//! The HTTP door gives the caller a ticket for each admitted request. When the request has ended, the caller returns
//! the ticket, or the proxy logs it ([`DoorLog`]). This settles it: the cost of the request is charged.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate_core::network::Network;
use tollgate_core::time::Span;
use toml::Spanned;
use toml::de::DeValue;

use super::error::ErrorCollector;
use super::gate::{CertificateFiles, MEMORY_ERROR, MEMORY_MIN};
use super::listeners::Listener;
use super::ratelimit::ServedLimits;
use super::rule::StateLocation;
use super::shape::Shape;
use super::table::{Entries, Value, Written, table};
use super::value::{ListenAddress, OneOrMany, Size, WholeNumber};

impl Doors {
    /// The doors that have an address, each with its key (`http`, `grpc` or `resp`).
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

/// The value of a door's key: an address and port, a port on the loopback address, or a table with `listen` and `tls`.
pub(crate) enum DoorValue {}

impl Value for DoorValue {
    type Parsed = DoorListener;

    fn shape() -> Shape {
        let Shape::Either(mut shapes) = DoorAddress::shape() else { return DoorListener::shape() };
        shapes.push(DoorListener::shape());
        Shape::Either(shapes)
    }

    fn read(value: &Spanned<DeValue<'_>>, errors: &mut ErrorCollector) -> Option<DoorListener> {
        match value.get_ref() {
            DeValue::Table(_) => DoorListener::read(value, errors),
            _ => DoorAddress::read(value, errors).map(|address| DoorListener { address, tls: None }),
        }
    }
}

table! {
    /// A door, with its address and optionally TLS.
    pub(crate) struct DoorListener as "door" {
        /// The address and port, or a port on 127.0.0.1.
        address as "listen": DoorAddress = required,
        /// The TLS files. Without them, connections are not encrypted.
        tls: DoorTls,
    }
}

table! {
    /// The TLS files of a door. Changed files are read again within seconds. If they have an error, the previous ones
    /// stay in force.
    pub(crate) struct DoorTls {
        /// The PEM file with the certificate chain, leaf first.
        chain as "cert": PathBuf = required,
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
    pub(crate) struct Doors {
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
        threads: WholeNumber<usize> where ..=256 =>
            "more threads than cores are of no use: write at most 256",
        /// Maximum number of connections of all doors, divided evenly among the threads. At the bound of a thread, a
        /// new connection closes one without a call in progress: first one that never sent a valid call, then the one
        /// that has been idle the longest.
        connections_max as "connections": WholeNumber<usize> = "4096",
        /// Maximum number of tickets of requests in progress, divided evenly among the threads. Beyond it, the oldest
        /// of the thread is settled at its expected cost.
        tickets_max as "tickets": WholeNumber<usize> = "16384",
        /// The time after which an unsettled ticket expires: its request counts as ended, at its expected cost. A check
        /// can set another time of at most one hour.
        ticket_deadline: Span = "\"60s\"" where Span::from_nanos(1)..=TICKET_DEADLINE_MAX =>
            "a ticket expires after more than 0s and at most one hour: write \"60s\"",
        /// Memory for the keys of `CL.THROTTLE` and of descriptors with a limit override, whose limits come with each
        /// call, and for the keys of the limits in `ratelimit`: this much for each of the three that is in use. It is
        /// allocated at the start and never grows.
        memory_bytes as "memory": Size = "\"16MiB\"" where MEMORY_MIN.. => MEMORY_ERROR,
        /// The access log of a proxy that asks `/v1/auth`: each line settles the ticket that it has.
        log: DoorLog,
    }
    beside {
        /// The limits of the files that `ratelimit` names.
        limits: Arc<ServedLimits>,
    }
    check Doors::check;
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

/// Maximum of `ticket_deadline`: one hour, which is also the maximum that a single check may ask for.
const TICKET_DEADLINE_MAX: Span = Span::from_secs(3600);

impl DoorTls {
    /// The certificate and its key, without the authorities of clients.
    pub(crate) fn files(&self) -> CertificateFiles {
        CertificateFiles { chain: self.chain.clone(), key: self.key.clone() }
    }
}

impl Doors {
    fn check(&self, entries: &mut Entries<'_>) {
        if !["http", "grpc", "resp"].iter().any(|key| entries.written.has(key)) {
            let message = "no door has an address: write `http = \"127.0.0.1:8890\"`, `grpc = \"127.0.0.1:8081\"` or `resp = \"127.0.0.1:6380\"`";
            entries.errors.missing(&entries.span, message);
        }
        for (key, door) in self.open() {
            door.check(key, entries);
        }
        match self.ratelimit_state {
            StateLocation::Local => {}
            StateLocation::Redis => entries.errors.need_redis(&entries.span_of("ratelimit_state"), "`\"redis\"`"),
            StateLocation::Master => {
                entries.report("ratelimit_state", "a master keeps no such limits: write `\"local\"` or `\"redis\"`");
            }
        }
        if self.ratelimit.is_some() && !entries.written.has("grpc") && !entries.written.has("http") {
            entries.report("ratelimit", "nobody can ask for these limits: write `grpc = \"127.0.0.1:8081\"` too");
        }
    }
}

impl DoorListener {
    /// The value of `client_ca`. If it is set, clients authenticate with certificates instead of a token.
    pub(crate) fn client_ca(&self) -> Option<&Path> {
        self.tls.as_ref()?.client_ca.as_deref()
    }

    /// Checks the door at `key` of `[doors]`, whose `entries` these are, and records its address as a listener. Reports
    /// an address that other machines can reach without a token or a client certificate. `written` decides whether
    /// `token_file` and `client_ca` are set, so that an invalid value of theirs is not reported as missing.
    fn check(&self, key: &'static str, entries: &mut Entries<'_>) {
        let Some(value) = entries.value(key) else { return };
        let (address, span) = (self.address, value.get_ref().get("listen").unwrap_or(value).span());
        let tls = value.get_ref().get("tls").and_then(|tls| tls.get_ref().as_table());
        let has_client_ca = tls.is_some_and(|tls| Written::of(tls, &DoorTls::SHAPE).has("client_ca"));
        if !address.ip().is_loopback() && !entries.written.has("token_file") && !has_client_ca {
            let message = format!(
                "{address} is beyond loopback and needs a token or client certificates: write `token_file` in [doors], \
                 `client_ca` in the `tls` of the door, or a loopback address"
            );
            entries.errors.report(&span, message);
        }
        entries.errors.listeners.push(Listener { key: format!("doors.{key}"), address, span });
    }
}
