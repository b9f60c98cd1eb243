//! The other roles that a file can name: `[master]`, `[doors]`, `[admin]`, `[watch]`, and `[redis]` for them all.

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use tollgate_core::time::Span;
use tollgate_gatekeeper::link::PublicKey;
use tollgate_gatekeeper::shared;
use toml::Spanned;
use toml::de::DeValue;

use super::fault::{Collector, shown};
use super::limit::nonzero;
use super::link::Key;
use super::shape::Shape;
use super::suggestion::did_you_mean;
use super::table::{Placed, Value, table};
use super::value::{Address, Name, read_text};

/// The bookkeeper off the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    /// Where gates report what they did.
    pub(crate) accounting: SocketAddr,
    /// Where gates are told whom to delay.
    pub(crate) control: SocketAddr,
    /// The key pair that links beyond loopback are authenticated with.
    pub(crate) key_file: Option<PathBuf>,
    /// The public keys of the gates that it knows.
    pub(crate) gates: Vec<PublicKey>,
    /// Where its state survives a restart.
    pub(crate) state_dir: Option<PathBuf>,
}

impl Default for Master {
    fn default() -> Self {
        let at = |port| SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, port));
        Self { accounting: at(10004), control: at(10005), key_file: None, gates: Vec::new(), state_dir: None }
    }
}

/// The ways in for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Doors {
    /// Checks over HTTP, and forward-auth.
    pub(crate) http: Option<SocketAddr>,
    /// Envoy's rate limit services.
    pub(crate) grpc: Option<SocketAddr>,
    /// `CL.THROTTLE` for Redis clients.
    pub(crate) resp: Option<SocketAddr>,
}

/// The address for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    /// Where the console, metrics and health checks are.
    pub(crate) listen: SocketAddr,
    /// The token that is asked for.
    pub(crate) token_file: Option<PathBuf>,
}

/// What turns refusals into episodes and flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    /// How many refusals within the window flag an account.
    pub(crate) flag_threshold: u64,
    /// The rolling window.
    pub(crate) flag_window: Span,
    /// The class whose keys are accounts.
    pub(crate) account_class: String,
    /// Where flags survive a restart.
    pub(crate) state_dir: Option<PathBuf>,
}

/// Redis or Valkey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redis {
    /// Where it is, and whether it is single, a cluster or behind sentinels.
    pub(crate) url: String,
    /// How long a decision waits for it.
    pub(crate) deadline: Duration,
    /// Certificates to trust instead of those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// What the names of all slots begin with.
    pub(crate) prefix: String,
    /// How many connections are made.
    pub(crate) connections: usize,
    /// How many calls may wait to be sent.
    pub(crate) waiting_max: usize,
}

/// A URL of Redis.
#[derive(Clone, Debug)]
pub(super) struct RedisUrl(String);

const REDIS_SCHEMES: [&str; 7] =
    ["redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel", "unix"];

impl Value for RedisUrl {
    fn shape() -> Shape {
        Shape::Text { what: "a URL", example: "redis://127.0.0.1:6379" }
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        let shape = Self::shape();
        read_text(value, faults, &shape, |url| {
            let scheme = url.split_once("://").map_or(url, |(scheme, _)| scheme);
            if !REDIS_SCHEMES.contains(&scheme) {
                let hint = did_you_mean(scheme, REDIS_SCHEMES);
                let hint = if hint.is_empty() { format!("; schemes are {}", REDIS_SCHEMES.join(", ")) } else { hint };
                return Err(format!("unknown scheme {} of Redis{hint}", shown(scheme)));
            }
            // Without the URL itself: it may have a password in it.
            let no_url = |fault| format!("no URL of Redis: {fault}; write one such as {}", shape.example());
            shared::Address::parse(url, None).map(|_| Self(url.to_string())).map_err(no_url)
        })
    }
}

table! {
    /// The bookkeeper off the request path, which tells many gates whom to delay.
    struct MasterTable {
        /// Where gates report what they admitted, held and refused.
        accounting: Address = "\"127.0.0.1:10004\"",
        /// Where gates are told whom to delay.
        control: Address = "\"127.0.0.1:10005\"",
        /// The key pair that authenticates the link, as `tollgate keys` makes it. Needed beyond loopback. With it, only gates with keys get in.
        key_file: PathBuf,
        /// The public keys of the gates that may come in, as `tollgate keys` prints them. Needed with `key_file`.
        gates: Vec<Placed<Key>>,
        /// The directory in which state survives a restart. Without it, memory only.
        state_dir: PathBuf,
    }
}

table! {
    /// Ways in for programs that are not behind this gate. One that is not named is closed.
    struct DoorsTable {
        /// Checks over HTTP, and forward-auth for nginx, Traefik and Caddy.
        http: Address,
        /// Envoy's rate limit service and rate limit quota service.
        grpc: Address,
        /// `CL.THROTTLE`, for Redis clients.
        resp: Address,
    }
}

table! {
    /// The address for operators: console, metrics, health checks.
    struct AdminTable {
        /// Where operators connect.
        listen: Address = "\"127.0.0.1:8889\"",
        /// A file with the token that operators show. Needed beyond loopback.
        token_file: PathBuf,
    }
}

table! {
    /// What turns refusals into episodes and flags. A flag marks an account for a person to look at; it never bans.
    struct WatchTable {
        /// How many refusals of an account within `flag_window` flag it.
        flag_threshold: NonZeroU64 = "1000",
        /// The rolling window in which refusals are counted.
        flag_window: Span = "\"10min\"",
        /// The class whose keys are accounts.
        account_class: Name = "\"user\"",
        /// The directory in which flags survive a restart. Without it, memory only.
        state_dir: PathBuf,
    }
}

table! {
    /// Redis or Valkey, for rules that must be exact across gates.
    struct RedisTable {
        /// Where it is: `redis://`, `rediss://` with TLS, `redis+cluster://`, `redis+sentinel://` (both also as `rediss+`), `unix://`.
        url: RedisUrl = required,
        /// How long a decision waits for it. After that, this gate's own state decides.
        deadline: Span = "\"5ms\"",
        /// A PEM file with the certificates to trust, for TLS. Without it, those of the system.
        ca_file: PathBuf,
        /// What the names of all slots begin with, so that others may use the same server.
        prefix: Name = "\"tollgate:\"",
        /// How many connections are made.
        connections: NonZeroU32 = "2",
        /// How many calls may wait to be sent. When there are more, this gate's own state decides.
        waiting: NonZeroU32 = "4096",
    }
}

impl MasterTable {
    pub(super) fn meaning(self, faults: &mut Collector) -> Master {
        for address in [&self.accounting, &self.control] {
            if !address.value.0.ip().is_loopback() && !self.written.has("key_file") {
                let message = "a master beyond loopback needs keys, or anyone could delay anyone: make them with `tollgate keys master.key`, and write `key_file` and the `gates` that it knows, or listen on 127.0.0.1";
                faults.missing(&address.span, message);
            }
        }
        let gates: Vec<_> = self.gates.iter().flat_map(|gates| &gates.value).map(|key| key.value.0).collect();
        if let Some(key_file) = self.key_file.as_ref().filter(|_| gates.is_empty() && !self.written.has("gates")) {
            let message = "a master with keys lets in the gates that it knows: write their public keys as `gates`";
            faults.missing(&key_file.span, message);
        }
        Master {
            accounting: self.accounting.value.0,
            control: self.control.value.0,
            key_file: self.key_file.map(|path| path.value),
            gates,
            state_dir: self.state_dir.map(|path| path.value),
        }
    }
}

impl DoorsTable {
    pub(super) fn meaning(self) -> Doors {
        let address = |address: Option<Placed<Address>>| address.map(|address| address.value.0);
        Doors { http: address(self.http), grpc: address(self.grpc), resp: address(self.resp) }
    }
}

impl AdminTable {
    pub(super) fn meaning(self, faults: &mut Collector) -> Admin {
        if !self.listen.value.0.ip().is_loopback() && !self.written.has("token_file") {
            let message = "an admin address beyond loopback needs a token: write `token_file`, or listen on 127.0.0.1";
            faults.missing(&self.listen.span, message);
        }
        Admin { listen: self.listen.value.0, token_file: self.token_file.map(|path| path.value) }
    }
}

impl WatchTable {
    pub(super) fn meaning(self, faults: &mut Collector) -> Watch {
        Watch {
            flag_threshold: self.flag_threshold.value.get(),
            flag_window: nonzero(&self.flag_window, faults).unwrap_or(Span::from_secs(1)),
            account_class: self.account_class.value.0,
            state_dir: self.state_dir.map(|path| path.value),
        }
    }
}

impl RedisTable {
    pub(super) fn meaning(self, faults: &mut Collector) -> Option<Redis> {
        let deadline = nonzero(&self.deadline, faults);
        let url = self.url?.value.0;
        if let Some(file) = self.ca_file.as_ref().filter(|_| !url.starts_with("rediss")) {
            faults.fault(&file.span, "`ca_file` is for TLS, which this `url` does not ask for: write `rediss` in it");
        }
        Some(Redis {
            url,
            deadline: deadline?.into(),
            ca_file: self.ca_file.map(|path| path.value),
            prefix: self.prefix.value.0,
            connections: self.connections.value.get() as usize,
            waiting_max: self.waiting.value.get() as usize,
        })
    }
}
