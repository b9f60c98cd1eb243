//! The other roles that a file can name: `[master]`, `[admin]`, `[watch]`, and `[redis]` for them all.

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
use toml::Spanned;
use toml::de::DeValue;

use super::fault::{Collector, shown};
use super::limit::nonzero;
use super::link::Key;
use super::secret::shown_scheme;
use super::shape::Shape;
use super::suggestion::did_you_mean;
use super::table::{Placed, Value, table};
use super::trusted::{TrustedEntry, networks};
use super::value::{Address, Choice, Name, OneOrMany, read_text, split_port};
use crate::bounded_file;

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
    /// The networks whose gates connect without keys.
    pub(crate) gates_without_keys: NetworkSet,
    /// Where figures go for statsd.
    pub(crate) statsd: Option<SocketAddr>,
    /// Where its state survives a restart.
    pub(crate) state_dir: Option<PathBuf>,
    /// What its books are called on Redis, if they are kept there.
    pub(crate) books: Option<String>,
}

impl Default for Master {
    fn default() -> Self {
        let at = |port| SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, port));
        Self {
            accounting: at(10004),
            control: at(10005),
            key_file: None,
            gates: Vec::new(),
            gates_without_keys: NetworkSet::default(),
            statsd: None,
            state_dir: None,
            books: None,
        }
    }
}

/// The address for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    /// Where the console, metrics and health checks are.
    pub(crate) listen: SocketAddr,
    /// The token that is asked for.
    pub(crate) token_file: Option<PathBuf>,
    /// The token of those who may only look.
    pub(crate) viewer_token_file: Option<PathBuf>,
    /// The token of those who may only report refusals.
    pub(crate) reporter_token_file: Option<PathBuf>,
    /// Names under which it is reached, besides addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
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
    /// What to say where nothing that this process itself refuses can lead to a flag.
    pub(crate) why_no_flags: Option<String>,
    /// Who shares them.
    pub(crate) state: FlagState,
    /// Where flags are announced.
    pub(crate) webhook: Option<Webhook>,
}

/// Where flags live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FlagState {
    /// Here alone.
    #[default]
    Local,
    /// Here, and on Redis for all gates.
    Redis,
}

impl Choice for FlagState {
    const WORDS: &'static [(&'static str, Self)] = &[("local", Self::Local), ("redis", Self::Redis)];
}

/// Who is told of flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Webhook {
    /// Whether TLS is spoken.
    pub(crate) tls: bool,
    /// Host and port.
    pub(crate) authority: String,
    /// The path.
    pub(crate) path: String,
    /// What announcements are signed with.
    pub(crate) secret_file: PathBuf,
}

/// Graphite, to which figures are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Graphite {
    /// Host and port.
    pub(crate) address: String,
    /// What names begin with.
    pub(crate) prefix: String,
    /// How often figures are sent.
    pub(crate) every: Span,
    /// The average wait of requests above which a caller is counted as waiting.
    pub(crate) delay_threshold: Span,
}

/// Redis or Valkey.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Redis {
    /// Where it is, and whether it is single, a cluster or behind sentinels.
    pub(crate) url: String,
    /// How long a decision waits for it.
    pub(crate) deadline: Duration,
    /// How long a decision waits for it by rules that wait.
    pub(crate) wait: Duration,
    /// Certificates to trust instead of those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    /// What the names of all slots begin with.
    pub(crate) prefix: String,
    /// How many connections are made.
    pub(crate) connections: usize,
    /// How many calls may wait to be sent.
    pub(crate) waiting_max: usize,
}

/// The largest file with certificates to trust, in bytes. Those of a whole system have less than a megabyte.
const ROOTS_BYTES_MAX: u64 = 16 << 20;

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
            // A text without a scheme may be a password.
            let Some(scheme) = shown_scheme(url) else {
                return Err(format!("no URL of Redis: it has no scheme; write one such as {}", shape.example()));
            };
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
        /// The key pair that authenticates the link, as `tollgate keys` makes it. Needed beyond loopback, unless `gates_without_keys` names
        /// the networks of all gates. With it, only gates with keys get in.
        key_file: PathBuf,
        /// The public keys of the gates that may come in, as `tollgate keys` prints them. Needed with `key_file`.
        gates: Vec<Placed<Key>>,
        /// Networks whose gates connect without keys, such as original Smockron gatekeepers on other machines. Their messages can be read and
        /// forged by anyone on the way, who could then delay any client: name only networks that you control. Gates of these networks must not use keys. Without it,
        /// no gate on another machine connects without a key.
        gates_without_keys: OneOrMany<TrustedEntry> = "[]",
        /// The directory in which state survives a restart, and in which `tollgate pardon` finds the master. Without it, memory only.
        state_dir: PathBuf,
        /// What its books are called on the Redis of `[redis]`. There, what everybody owes is written once a second, and another master with the same
        /// `books` carries on when this one is gone. Masters of other domains need other names. Without it, not on Redis.
        books: Name,
        /// Where figures go for statsd, under Smockron's names. Without it, nowhere.
        statsd: Address,
    }
}

table! {
    /// The address for operators: console, metrics, health checks.
    struct AdminTable {
        /// Where operators connect.
        listen: Address = "\"127.0.0.1:8889\"",
        /// A file with the token that operators show: one word, such as `openssl rand -hex 32` makes. Needed beyond loopback, where it has at least 16 bytes.
        token_file: PathBuf,
        /// A file with the token of those who may look and change nothing. Needs `token_file`.
        viewer_token_file: PathBuf,
        /// A file with the token of programs that report refusals to `POST /api/v1/rejections`, and may do nothing else. Needs `token_file`.
        reporter_token_file: PathBuf,
        /// Names under which this address is reached. Addresses and `localhost` are known; any other name is refused, so that nobody
        /// can point one of their own at it.
        hosts: OneOrMany<Name> = "[]",
    }
}

table! {
    /// What turns refusals into episodes and flags. A flag marks an account for a person to look at; it never bans.
    struct WatchTable {
        /// How many refusals of an account within `flag_window` flag it.
        flag_threshold: NonZeroU64 = "1000",
        /// The rolling window in which refusals are counted.
        flag_window: Span = "\"10min\"",
        /// Whether accounts are flagged. With `false`, refusals are only shown, as episodes.
        flags: bool = "true",
        /// The class whose keys are accounts. Refusals by rules of this class count for flags, and those that others report under this name. The default is
        /// no class of requests, so with it only reports count: if the file has `[watch]`, `tollgate check` and the log at the start note where no rule has the class.
        account_class: Name = "\"user\"",
        /// The directory in which flags, what was counted for them, announcements and the list of operators' changes survive a restart. No two processes can
        /// share one. Without it, what systemd gives with `StateDirectory=`; else `$XDG_STATE_HOME/tollgate/PORT` or `~/.local/state/tollgate/PORT`, with the port of the
        /// address for operators. Where that cannot be used, or the port is 0, memory only.
        state_dir: PathBuf,
        /// Where flags live: `local` is this gate alone; with `redis`, a flag that is set or cleared at one gate is at all of them. Each gate keeps them
        /// all and tells Redis what it missed, so one that is gone or forgets loses nothing.
        state: FlagState = "\"local\"",
        /// Where it is announced that a flag was set or cleared: a `POST` with JSON, tried again for an hour until it is taken. Needs
        /// `webhook_secret_file`.
        webhook: WebUrl,
        /// A file with the secret that announcements are signed with: `X-Tollgate-Signature` is `sha256=` and the HMAC-SHA-256 of the body in hexadecimal.
        webhook_secret_file: PathBuf,
    }
}

/// A URL to post to.
#[derive(Clone, Debug)]
pub(super) struct WebUrl {
    pub(super) tls: bool,
    pub(super) authority: String,
    pub(super) path: String,
}

impl Value for WebUrl {
    fn shape() -> Shape {
        Shape::Text { what: "a URL", example: "https://hooks.example/flags" }
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        let shape = Self::shape();
        read_text(value, faults, &shape, |url| {
            let found = || if shown_scheme(url).is_some() { shown(url) } else { "a text that is none".to_owned() };
            let wrong = || format!("expected {}, found {}", shape.words(), found());
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
        })
    }
}

/// A host and a port.
#[derive(Clone, Debug)]
pub(super) struct HostPort(String);

impl Value for HostPort {
    fn shape() -> Shape {
        Shape::Text { what: "a host and a port", example: "localhost:2003" }
    }

    fn read(value: &Spanned<DeValue<'_>>, faults: &mut Collector) -> Option<Self> {
        let shape = Self::shape();
        read_text(value, faults, &shape, |text| {
            let address = text.strip_prefix("tcp://").unwrap_or(text);
            let right = |(host, port): (&str, &str)| {
                !host.is_empty() && !host.contains(['/', ' ', '@']) && port.parse::<u16>().is_ok_and(|port| port > 0)
            };
            if address.rsplit_once(':').is_some_and(right) {
                Ok(Self(address.to_owned()))
            } else {
                Err(format!("expected {}, found {}", shape.words(), shown(text)))
            }
        })
    }
}

table! {
    /// Where figures are sent to, besides being shown at `/metrics`.
    struct MetricsTable {
        /// Graphite's address for plain text.
        graphite: HostPort,
        /// What the names of figures begin with. `{hostname}` stands for this machine's name.
        graphite_prefix: Name = "\"tollgate.{hostname}\"",
        /// How often figures are sent.
        graphite_every: Span = "\"10s\"",
        /// The average wait of a client's requests above which it is counted in `Slash32`, `Slash24`, `Slash16` and `UserAgent`: Tempomat's `delayThresholdSec`.
        graphite_delay_threshold: Span = "\"3s\"",
    }
}

table! {
    /// Redis or Valkey, for rules that must be exact across gates.
    struct RedisTable {
        /// Where it is: `redis://`, `rediss://` with TLS, `redis+cluster://`, `redis+sentinel://` (both also as `rediss+`), `unix://`.
        url: RedisUrl = required,
        /// How long a decision waits for it. After that, the rule's `on_timeout` decides; by default, this gate's own state does.
        deadline: Span = "\"50ms\"",
        /// How long a decision waits for it by rules with `on_timeout = "wait"`. At least `deadline`.
        wait: Span = "\"1s\"",
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
    pub(super) fn meaning(self, has_redis: bool, faults: &mut Collector) -> Master {
        if let Some(books) = self.books.as_ref().filter(|_| !has_redis) {
            let message = "`books` needs a `[redis]` table: write `url = \"redis://127.0.0.1:6379\"` there";
            faults.missing(&books.span, message);
        }
        let beyond = [&self.accounting, &self.control].map(|address| !address.value.0.ip().is_loopback());
        for (address, is_beyond) in [&self.accounting, &self.control].into_iter().zip(beyond) {
            if is_beyond && !self.written.has("key_file") && !self.written.has("gates_without_keys") {
                let message = "a master beyond loopback needs keys, or anyone could delay anyone: make them with `tollgate keys master.key`, and write `key_file` and the `gates` that it knows, or listen on 127.0.0.1; for original gatekeepers, which have no keys, write their networks as `gates_without_keys`";
                faults.missing(&address.span, message);
            }
        }
        let gates: Vec<_> = self.gates.iter().flat_map(|gates| &gates.value).map(|key| key.value.0).collect();
        if let Some(key_file) = self.key_file.as_ref().filter(|_| gates.is_empty() && !self.written.has("gates")) {
            let message = "a master with keys lets in the gates that it knows: write their public keys as `gates`";
            faults.missing(&key_file.span, message);
        }
        // Who was told above that keys are needed need not hear it again.
        let keyless = beyond == [false; 2] && !self.written.has("key_file");
        if let Some(gates) = self.gates.as_ref().filter(|_| keyless) {
            let message = "`gates` needs `key_file`: without it, every gate gets in; make one with `tollgate keys master.key`, or leave `gates` out";
            faults.missing(&gates.span, message);
        }
        Master {
            accounting: self.accounting.value.0,
            control: self.control.value.0,
            key_file: self.key_file.map(|path| path.value),
            gates,
            gates_without_keys: networks(self.gates_without_keys.value, faults),
            statsd: self.statsd.map(|address| address.value.0),
            state_dir: self.state_dir.map(|path| path.value),
            books: self.books.map(|name| name.value.0),
        }
    }
}

impl AdminTable {
    pub(super) fn meaning(self, faults: &mut Collector) -> Admin {
        if !self.listen.value.0.ip().is_loopback() && !self.written.has("token_file") {
            let message = "an admin address beyond loopback needs a token: write `token_file`, or listen on 127.0.0.1";
            faults.missing(&self.listen.span, message);
        }
        if let (Some(viewer), false) = (&self.viewer_token_file, self.written.has("token_file")) {
            faults
                .missing(&viewer.span, "`viewer_token_file` needs `token_file`: without it, everybody is an operator");
        }
        if let (Some(reporter), false) = (&self.reporter_token_file, self.written.has("token_file")) {
            let message = "`reporter_token_file` needs `token_file`: without it, everybody is an operator";
            faults.missing(&reporter.span, message);
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
    /// The class whose keys are accounts, if it is one that requests have.
    pub(super) fn account(&self) -> Option<Class> {
        Class::parse(&self.account_class.value.0).ok()
    }

    pub(super) fn meaning(self, has_redis: bool, faults: &mut Collector) -> Watch {
        if self.state.value == FlagState::Redis && !has_redis {
            faults.missing(
                &self.state.span,
                "`state = \"redis\"` needs a `[redis]` table: write `url = \"redis://127.0.0.1:6379\"` there",
            );
        }
        if let (Some(webhook), false) = (&self.webhook, self.written.has("webhook_secret_file")) {
            faults.missing(
                &webhook.span,
                "`webhook` needs `webhook_secret_file`: who gets announcements must know where they are from",
            );
        }
        if let (Some(secret_file), false) = (&self.webhook_secret_file, self.written.has("webhook")) {
            let message = "`webhook_secret_file` needs `webhook`: write where flags are announced, such as `webhook = \"https://hooks.example/flags\"`, or leave it out";
            faults.missing(&secret_file.span, message);
        }
        // Rules write their classes so, and only what is written alike is the same.
        let account = self.account();
        let secret_file = self.webhook_secret_file.map(|path| path.value);
        let webhook = self.webhook.map(|url| url.value).zip(secret_file).map(|(url, secret_file)| {
            let WebUrl { tls, authority, path } = url;
            Webhook { tls, authority, path, secret_file }
        });
        Watch {
            webhook,
            flag_threshold: if self.flags.value { self.flag_threshold.value.get() } else { NEVER },
            flag_window: nonzero(&self.flag_window, faults).unwrap_or(Span::from_secs(1)),
            account_class: account.map_or(self.account_class.value.0, |class| class.to_string()),
            state_dir: self.state_dir.map(|path| path.value),
            why_no_flags: None,
            state: self.state.value,
        }
    }
}

impl Redis {
    /// Where it is, with the certificates to trust.
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
    pub(super) fn meaning(self, faults: &mut Collector) -> Option<Graphite> {
        let others = [
            ("graphite_prefix", &self.graphite_prefix.span),
            ("graphite_every", &self.graphite_every.span),
            ("graphite_delay_threshold", &self.graphite_delay_threshold.span),
        ];
        let alone = others.into_iter().find(|(key, _)| self.written.has(key) && !self.written.has("graphite"));
        if let Some((key, span)) = alone {
            let message = format!(
                "`{key}` needs `graphite`: write where figures are sent, such as `graphite = \"localhost:2003\"`, or leave it out"
            );
            faults.missing(span, message);
        }
        let every = nonzero(&self.graphite_every, faults)?;
        let address = self.graphite?.value.0;
        let delay_threshold = self.graphite_delay_threshold.value;
        Some(Graphite { address, prefix: self.graphite_prefix.value.0, every, delay_threshold })
    }
}

impl RedisTable {
    pub(super) fn meaning(self, faults: &mut Collector) -> Option<Redis> {
        let (deadline, wait) = (nonzero(&self.deadline, faults), nonzero(&self.wait, faults));
        let url = self.url?.value.0;
        if let Some(file) = self.ca_file.as_ref().filter(|_| !url.starts_with("rediss")) {
            faults.fault(&file.span, "`ca_file` is for TLS, which this `url` does not ask for: write `rediss` in it");
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
