//! `[master]`, `[admin]`, `[watch]`, `[metrics]` and `[redis]`.

use std::io;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use tollgate_core::class::Class;
use tollgate_core::network::NetworkSet;
use tollgate_core::time::Span;
use tollgate_core::watch::NEVER;
use tollgate_gatekeeper::link::PublicKey;
use tollgate_gatekeeper::shared;

use super::error::{ErrorCollector, shown};
use super::limit::nonzero;
use super::link::PublicKeyValue;
use super::secret::shown_scheme;
use super::suggestion::did_you_mean;
use super::table::{Located, defaults, table};
use super::trusted::{TrustedEntry, networks};
use super::value::{Choice, ListenAddress, Name, OneOrMany, split_port, text_value};
use crate::bounded_file;

/// The settings of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Master {
    /// The address that receives the reports of gates.
    pub(crate) accounting: SocketAddr,
    /// The address that sends delays to gates.
    pub(crate) control: SocketAddr,
    /// The file with the key pair that authenticates links.
    pub(crate) key_file: Option<PathBuf>,
    /// The public keys of the accepted gates.
    pub(crate) gates: Vec<PublicKey>,
    /// The networks whose gates connect without keys.
    pub(crate) gates_without_keys: NetworkSet,
    /// The statsd server.
    pub(crate) statsd: Option<SocketAddr>,
    /// The directory of the persistent state.
    pub(crate) state_dir: Option<PathBuf>,
    /// The name of its state on Redis. None: not on Redis.
    pub(crate) books: Option<String>,
}

impl Default for Master {
    fn default() -> Self {
        defaults::<MasterTable>().resolve(false, &mut ErrorCollector::default())
    }
}

/// The settings of the admin address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    /// The address of the console, the metrics and the health checks.
    pub(crate) listen: SocketAddr,
    /// The file with the token of operators.
    pub(crate) token_file: Option<PathBuf>,
    /// The file with the token for read-only access.
    pub(crate) viewer_token_file: Option<PathBuf>,
    /// The file with the token of programs that may only report refusals.
    pub(crate) reporter_token_file: Option<PathBuf>,
    /// Accepted host names, besides IP addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
}

/// The settings of the watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchSettings {
    /// Number of refusals within the window that flags an account.
    pub(crate) flag_threshold: u64,
    /// The rolling window.
    pub(crate) flag_window: Span,
    /// The class whose keys are accounts.
    pub(crate) account_class: String,
    /// The directory of the persistent state.
    pub(crate) state_dir: Option<PathBuf>,
    /// A note for the operator if no refusal of this process can lead to a flag.
    pub(crate) why_no_flags: Option<String>,
    /// Whether gates share the flags.
    pub(crate) state: FlagState,
    /// The receiver of changes of flags.
    pub(crate) webhook: Option<Webhook>,
}

/// The location of flags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FlagState {
    /// This process.
    #[default]
    Local,
    /// This process, and Redis for all gates.
    Redis,
}

impl Choice for FlagState {
    const WORDS: &'static [(&'static str, Self)] = &[("local", Self::Local), ("redis", Self::Redis)];
}

/// The receiver of changes of flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Webhook {
    pub(crate) url: WebUrl,
    /// The file with the secret that signs the requests.
    pub(crate) secret_file: PathBuf,
}

/// The Graphite server that receives the metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Graphite {
    /// Host and port.
    pub(crate) address: String,
    /// The prefix of metric names.
    pub(crate) prefix: String,
    /// The interval between two transmissions.
    pub(crate) every: Span,
    /// The average wait of requests above which a caller is counted as waiting.
    pub(crate) delay_threshold: Span,
}

/// Redis or Valkey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redis {
    /// The URL. Its scheme selects a single server, a cluster or sentinels.
    pub(crate) url: String,
    /// Maximum time that a decision waits for Redis.
    pub(crate) deadline: Duration,
    /// The same for rules with `on_timeout = "wait"`.
    pub(crate) wait: Duration,
    /// The file with the trusted certificates. None: those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// The prefix of all Redis keys.
    pub(crate) prefix: String,
    /// Number of connections.
    pub(crate) connections: usize,
    /// Maximum number of calls that wait to be sent.
    pub(crate) waiting_max: usize,
}

/// Maximum size of a file with trusted certificates, in bytes. The list of a whole system is smaller than 1 MiB.
const ROOTS_BYTES_MAX: u64 = 16 << 20;

/// A URL of Redis.
#[derive(Clone, Debug)]
pub(super) struct RedisUrl(String);

const REDIS_SCHEMES: [&str; 7] =
    ["redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel", "unix"];

text_value!(RedisUrl, "a URL", "redis://127.0.0.1:6379", |url| {
    // The message omits a value without a scheme: it may be a password.
    let Some(scheme) = shown_scheme(url) else {
        return Err(format!("not a URL of Redis: it has no scheme; write one such as {}", Self::shape().example()));
    };
    if !REDIS_SCHEMES.contains(&scheme) {
        let hint = did_you_mean(scheme, REDIS_SCHEMES);
        let hint = if hint.is_empty() { format!("; schemes are {}", REDIS_SCHEMES.join(", ")) } else { hint };
        return Err(format!("unknown scheme {} of Redis{hint}", shown(scheme)));
    }
    // The message omits the URL: it may contain a password.
    let invalid = |error| format!("not a URL of Redis: {error}; write one such as {}", Self::shape().example());
    shared::Address::parse(url, None).map(|_| Self(url.to_string())).map_err(invalid)
});

table! {
    /// The master: it shares the state of rules between gates, outside of the request path.
    struct MasterTable {
        /// The address that receives reports of admitted, held and refused requests from gates.
        accounting: ListenAddress = "\"127.0.0.1:10004\"",
        /// The address that sends delays to gates.
        control: ListenAddress = "\"127.0.0.1:10005\"",
        /// The file with the key pair that authenticates the link, generated by `tollgate keys`. Required beyond
        /// loopback, unless `gates_without_keys` names the networks of all gates. With it, only the gates in `gates`
        /// are accepted.
        key_file: PathBuf,
        /// The public keys of the accepted gates, printed by `tollgate keys`. Required with `key_file`.
        gates: Vec<Located<PublicKeyValue>>,
        /// Networks whose gates connect without keys, such as original Smockron gatekeepers on other machines. Anyone
        /// on the network path can read and forge their messages, and so delay any client: name only networks that you
        /// control. Gates of these networks must not use keys. Default: every gate on another machine needs a key.
        gates_without_keys: OneOrMany<TrustedEntry> = "[]",
        /// The directory of the state that survives a restart. `tollgate pardon` finds the master through it. Default:
        /// no file.
        state_dir: PathBuf,
        /// The name of the master's state on the Redis of `[redis]`. The master writes all debts there once a second,
        /// and another master with the same `books` takes over when this one fails. Masters of other domains need other
        /// names. Default: not on Redis.
        books: Name,
        /// The statsd server that receives metrics, under Smockron's names. Default: none.
        statsd: ListenAddress,
    }
}

table! {
    /// The admin address: console, metrics and health checks.
    struct AdminTable {
        /// The address for operators.
        listen: ListenAddress = "\"127.0.0.1:8889\"",
        /// The file with the token of operators: one word, such as the output of `openssl rand -hex 32`. Required
        /// beyond loopback, where it has at least 16 bytes.
        token_file: PathBuf,
        /// The file with the token for read-only access. Requires `token_file`.
        viewer_token_file: PathBuf,
        /// The file with the token of programs that may only report refusals to `POST /api/v1/rejections`. Requires
        /// `token_file`.
        reporter_token_file: PathBuf,
        /// Host names of the admin address. IP addresses and `localhost` are always accepted. Requests with any other
        /// `Host` are refused, as a protection against DNS rebinding.
        hosts: OneOrMany<Name> = "[]",
    }
}

table! {
    /// The watch: it records refusals and flags accounts. A flag is a mark for operators; it never bans an account.
    struct WatchTable {
        /// Number of refusals within `flag_window` that flags an account.
        flag_threshold: NonZeroU64 = "1000",
        /// The rolling window in which refusals are counted.
        flag_window: Span = "\"10min\"",
        /// Whether accounts are flagged. With `false`, refusals are only shown, as episodes.
        flags: bool = "true",
        /// The class whose keys are accounts. Refusals by rules of this class count, and refusals that other programs
        /// report under this name. The default is not a class of requests, so only reports count. If the file has
        /// `[watch]` but no rule has the class, `tollgate check` and the log at the start note it.
        account_class: Name = "\"user\"",
        /// The directory of the persistent state: flags, counts, unsent webhooks and the list of operators' changes.
        /// Two processes cannot share one. Default: the directory that systemd provides with `StateDirectory=`, or
        /// `$XDG_STATE_HOME/tollgate/PORT` or `~/.local/state/tollgate/PORT`, with the port of the admin address. If
        /// that directory cannot be used, or the port is 0, the state is in memory only.
        state_dir: PathBuf,
        /// The location of flags. `local`: this gate alone. `redis`: all gates share their flags. Each gate keeps a
        /// full copy and restores flags that Redis has lost.
        state: FlagState = "\"local\"",
        /// The URL that receives a `POST` with JSON when a flag is set or cleared. A failed request is retried for one
        /// hour. Requires `webhook_secret_file`.
        webhook: WebUrl,
        /// The file with the secret that signs the requests of `webhook`: `X-Tollgate-Signature` is `sha256=` and the
        /// HMAC-SHA-256 of the body in hexadecimal.
        webhook_secret_file: PathBuf,
    }
}

/// An HTTP or HTTPS URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebUrl {
    /// Whether the connection uses TLS.
    pub(crate) tls: bool,
    /// Host and port.
    pub(crate) authority: String,
    pub(crate) path: String,
}

text_value!(WebUrl, "a URL", "https://hooks.example/flags", |url| {
    let found = || if shown_scheme(url).is_some() { shown(url) } else { "another text".to_owned() };
    let wrong = || format!("expected {}, found {}", Self::shape().words(), found());
    let (tls, rest) = match url.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        _ => return Err(wrong()),
    };
    let (host, path) = rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash));
    let odd = |text: &str| text.contains(|c: char| c.is_whitespace() || c.is_control() || !c.is_ascii());
    let (_, port) = split_port(host).filter(|_| !odd(path)).ok_or_else(wrong)?;
    let usual = if tls { 443 } else { 80 };
    let authority = if port.is_some() { host.to_owned() } else { format!("{host}:{usual}") };
    Ok(Self { tls, authority, path: path.to_owned() })
});

/// A host and a port.
#[derive(Clone, Debug)]
pub(super) struct HostPort(String);

text_value!(HostPort, "a host and a port", "localhost:2003", |text| {
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    let right = |(host, port): (&str, &str)| {
        !host.is_empty() && !host.contains(['/', ' ', '@']) && port.parse::<u16>().is_ok_and(|port| port > 0)
    };
    if address.rsplit_once(':').is_some_and(right) {
        Ok(Self(address.to_owned()))
    } else {
        Err(format!("expected {}, found {}", Self::shape().words(), shown(text)))
    }
});

table! {
    /// The Graphite server that receives the metrics, besides `/metrics`.
    struct MetricsTable {
        /// The address of Graphite's plaintext protocol.
        graphite: HostPort,
        /// The prefix of metric names. `{hostname}` is replaced by the name of this machine.
        graphite_prefix: Name = "\"tollgate.{hostname}\"",
        /// The interval between two transmissions.
        graphite_every: Span = "\"10s\"",
        /// The average wait of a client's requests above which it is counted in `Slash32`, `Slash24`, `Slash16` and
        /// `UserAgent`: Tempomat's `delayThresholdSec`.
        graphite_delay_threshold: Span = "\"3s\"",
    }
}

table! {
    /// Redis or Valkey, for limits that are exact across gates.
    struct RedisTable {
        /// The URL: `redis://`, `rediss://` with TLS, `redis+cluster://`, `redis+sentinel://` (both also as `rediss+`),
        /// `unix://`.
        url: RedisUrl = required,
        /// Maximum time that a decision waits for Redis. After it, the rule's `on_timeout` applies; by default, the
        /// state of this gate decides.
        deadline: Span = "\"50ms\"",
        /// Maximum time that a decision waits for Redis by rules with `on_timeout = "wait"`. At least `deadline`.
        wait: Span = "\"1s\"",
        /// The PEM file with the trusted certificates, for TLS. Default: the certificates of the system.
        ca_file: PathBuf,
        /// The prefix of all Redis keys, so that other programs can use the same server.
        prefix: Name = "\"tollgate:\"",
        /// Number of connections.
        connections: NonZeroU32 = "2",
        /// Maximum number of calls that wait to be sent. Beyond it, the state of this gate decides.
        waiting: NonZeroU32 = "4096",
    }
}

impl MasterTable {
    pub(super) fn resolve(self, has_redis: bool, errors: &mut ErrorCollector) -> Master {
        if let Some(books) = self.books.as_ref().filter(|_| !has_redis) {
            let message = "`books` needs a `[redis]` table: write `url = \"redis://127.0.0.1:6379\"` there";
            errors.missing(&books.span, message);
        }
        let beyond = [&self.accounting, &self.control].map(|address| !address.value.0.ip().is_loopback());
        for (address, is_beyond) in [&self.accounting, &self.control].into_iter().zip(beyond) {
            if is_beyond && !self.written.has("key_file") && !self.written.has("gates_without_keys") {
                let message = "a master beyond loopback needs keys, or any client could delay others: generate them \
                               with `tollgate keys master.key`, and write `key_file` and the keys of its `gates`, or \
                               listen on 127.0.0.1; for original gatekeepers, which have no keys, write their networks as \
                               `gates_without_keys`";
                errors.missing(&address.span, message);
            }
        }
        let gates: Vec<_> = self.gates.iter().flat_map(|gates| &gates.value).map(|key| key.value.0).collect();
        if let Some(key_file) = self.key_file.as_ref().filter(|_| gates.is_empty() && !self.written.has("gates")) {
            let message = "a master with keys accepts only known gates: write their public keys as `gates`";
            errors.missing(&key_file.span, message);
        }
        // Beyond loopback, the missing key has been reported above.
        let keyless = beyond == [false; 2] && !self.written.has("key_file");
        if let Some(gates) = self.gates.as_ref().filter(|_| keyless) {
            let message = "`gates` needs `key_file`: without it, every gate is accepted; generate one with \
                           `tollgate keys master.key`, or leave `gates` out";
            errors.missing(&gates.span, message);
        }
        Master {
            accounting: self.accounting.value.0,
            control: self.control.value.0,
            key_file: self.key_file.map(|path| path.value),
            gates,
            gates_without_keys: networks(self.gates_without_keys.value, errors),
            statsd: self.statsd.map(|address| address.value.0),
            state_dir: self.state_dir.map(|path| path.value),
            books: self.books.map(|name| name.value.0),
        }
    }
}

impl AdminTable {
    pub(super) fn resolve(self, errors: &mut ErrorCollector) -> Admin {
        if !self.listen.value.0.ip().is_loopback() && !self.written.has("token_file") {
            let message = "an admin address beyond loopback needs a token: write `token_file`, or listen on 127.0.0.1";
            errors.missing(&self.listen.span, message);
        }
        if let (Some(viewer), false) = (&self.viewer_token_file, self.written.has("token_file")) {
            errors
                .missing(&viewer.span, "`viewer_token_file` needs `token_file`: without it, any client is an operator");
        }
        if let (Some(reporter), false) = (&self.reporter_token_file, self.written.has("token_file")) {
            let message = "`reporter_token_file` needs `token_file`: without it, any client is an operator";
            errors.missing(&reporter.span, message);
        }
        Admin {
            listen: self.listen.value.0,
            token_file: self.token_file.map(|path| path.value),
            viewer_token_file: self.viewer_token_file.map(|path| path.value),
            reporter_token_file: self.reporter_token_file.map(|path| path.value),
            hosts: self.hosts.value.values().map(|name| name.0).collect(),
        }
    }
}

impl WatchTable {
    /// The class whose keys are accounts. None if requests have no such class.
    pub(super) fn account(&self) -> Option<Class> {
        Class::parse(&self.account_class.value.0).ok()
    }

    pub(super) fn resolve(self, has_redis: bool, errors: &mut ErrorCollector) -> WatchSettings {
        if self.state.value == FlagState::Redis && !has_redis {
            errors.missing(
                &self.state.span,
                "`state = \"redis\"` needs a `[redis]` table: write `url = \"redis://127.0.0.1:6379\"` there",
            );
        }
        if let (Some(webhook), false) = (&self.webhook, self.written.has("webhook_secret_file")) {
            errors.missing(
                &webhook.span,
                "`webhook` needs `webhook_secret_file`: the receiver verifies the signature of each request",
            );
        }
        if let (Some(secret_file), false) = (&self.webhook_secret_file, self.written.has("webhook")) {
            let message = "`webhook_secret_file` needs `webhook`: write the URL of the receiver, such as \
                           `webhook = \"https://hooks.example/flags\"`, or leave it out";
            errors.missing(&secret_file.span, message);
        }
        // In the canonical form, so that it compares equal to the class of a rule.
        let account = self.account();
        let secret_file = self.webhook_secret_file.map(|path| path.value);
        let webhook = self.webhook.map(|url| url.value).zip(secret_file);
        let webhook = webhook.map(|(url, secret_file)| Webhook { url, secret_file });
        WatchSettings {
            webhook,
            flag_threshold: if self.flags.value { self.flag_threshold.value.get() } else { NEVER },
            flag_window: nonzero(&self.flag_window, errors).unwrap_or(Span::from_secs(1)),
            account_class: account.map_or(self.account_class.value.0, |class| class.to_string()),
            state_dir: self.state_dir.map(|path| path.value),
            why_no_flags: None,
            state: self.state.value,
        }
    }
}

impl Redis {
    /// The parsed URL and the trusted certificates. Reads `ca_file`.
    pub(crate) fn address(&self) -> io::Result<shared::Address> {
        let roots = self.ca_file.as_ref().map(|file| {
            bounded_file::read(file, ROOTS_BYTES_MAX).map_err(|error| {
                io::Error::new(error.kind(), format!("`redis.ca_file` {} cannot be read: {error}", file.display()))
            })
        });
        shared::Address::parse(&self.url, roots.transpose()?).map_err(io::Error::other)
    }
}

impl MetricsTable {
    pub(super) fn resolve(self, errors: &mut ErrorCollector) -> Option<Graphite> {
        let others = [
            ("graphite_prefix", &self.graphite_prefix.span),
            ("graphite_every", &self.graphite_every.span),
            ("graphite_delay_threshold", &self.graphite_delay_threshold.span),
        ];
        let alone = others.into_iter().find(|(key, _)| self.written.has(key) && !self.written.has("graphite"));
        if let Some((key, span)) = alone {
            let message = format!(
                "`{key}` needs `graphite`: write its address, such as `graphite = \"localhost:2003\"`, or leave it out"
            );
            errors.missing(span, message);
        }
        let every = nonzero(&self.graphite_every, errors)?;
        let address = self.graphite?.value.0;
        let delay_threshold = self.graphite_delay_threshold.value;
        Some(Graphite { address, prefix: self.graphite_prefix.value.0, every, delay_threshold })
    }
}

impl RedisTable {
    pub(super) fn resolve(self, errors: &mut ErrorCollector) -> Option<Redis> {
        let (deadline, wait) = (nonzero(&self.deadline, errors), nonzero(&self.wait, errors));
        let url = self.url?.value.0;
        if let Some(file) = self.ca_file.as_ref().filter(|_| !url.starts_with("rediss")) {
            errors.report(&file.span, "`ca_file` is for TLS, which this `url` does not use: write `rediss` in it");
        }
        Some(Redis {
            url,
            deadline: deadline?.into(),
            wait: wait?.into(),
            ca_file: self.ca_file.map(|path| path.value),
            prefix: self.prefix.value.0,
            connections: self.connections.value.get() as usize,
            waiting_max: self.waiting.value.get() as usize,
        })
    }
}
