//! The addresses of stores, and connections to them: one Redis server, a Cluster, or a master behind Sentinels.

use core::fmt;
use core::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult,
    TlsCertificates,
};

/// The minimum timeout for connecting. Otherwise it equals `silence_max`, the longest time that an answer may take.
const CONNECT_MIN: Duration = Duration::from_millis(500);

/// The address of a store.
///
/// | written | means |
/// |---|---|
/// | `redis://user:password@host:6379/0` | one server |
/// | `rediss://host:6379` | one server, over TLS |
/// | `unix:///run/redis.sock` | one server on this machine |
/// | `redis+cluster://host:7000,host:7001` | a Cluster, by some of its nodes |
/// | `redis+sentinel://host:26379,host:26380/mymaster` | the master that Sentinels know by this name |
///
/// User, password, database and TLS are written as for one server.
#[derive(Clone)]
pub struct Address {
    kind: StoreTopology,
    certificates: TlsCertificates,
}

#[derive(Clone)]
enum StoreTopology {
    Single(Client),
    /// Some of its nodes.
    Cluster(Vec<ConnectionInfo>),
    Sentinel {
        sentinels: Vec<Client>,
        master: String,
        /// The master's address without host and port.
        template: ConnectionInfo,
    },
}

/// The reason why an address is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(String);

impl From<RedisError> for AddressError {
    fn from(error: RedisError) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Debug for Address {
    // The password is omitted.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            StoreTopology::Single(client) => write!(formatter, "{}", client.get_connection_info().addr()),
            StoreTopology::Cluster(_) => formatter.write_str("a cluster"),
            StoreTopology::Sentinel { master, .. } => write!(formatter, "{master}, by its sentinels"),
        }
    }
}

/// A connection for calls.
#[derive(Clone)]
pub(super) enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl StoreTopology {
    fn parse(text: &str, certificates: &TlsCertificates) -> Result<Self, AddressError> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| AddressError(format!("no scheme in {text:?}")))?;
        let (credentials, hosts, path) = parts(rest);
        match scheme.split_once('+') {
            None => Ok(Self::Single(client(text, certificates)?)),
            Some((scheme, "cluster")) => {
                let nodes: Vec<_> = hosts
                    .split(',')
                    .map(|host| format!("{scheme}://{credentials}{host}{path}").into_connection_info())
                    .collect::<RedisResult<_>>()?;
                // Detects errors now instead of at the first connection.
                cluster(&nodes, certificates).build()?;
                Ok(Self::Cluster(nodes))
            }
            Some((scheme, "sentinel")) => {
                let (master, database) =
                    path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_start_matches('/'), "0"));
                if master.is_empty() {
                    return Err(AddressError("a Sentinel address must end with /name-of-the-master".into()));
                }
                let sentinels = hosts
                    .split(',')
                    .map(|host| Client::open(format!("{scheme}://{host}")))
                    .collect::<RedisResult<_>>()?;
                let template = format!("{scheme}://{credentials}127.0.0.1/{database}").into_connection_info()?;
                Ok(Self::Sentinel { sentinels, master: master.into(), template })
            }
            Some((_, other)) => {
                Err(AddressError(format!("unknown kind of store {other:?}: expected cluster or sentinel")))
            }
        }
    }
}

impl Address {
    /// Parses an address. `roots` are certificates (PEM) that replace those of the system for TLS.
    pub fn parse(text: &str, roots: Option<Vec<u8>>) -> Result<Self, AddressError> {
        // The program may have installed a provider already, which is as good.
        drop(rustls::crypto::ring::default_provider().install_default());
        let certificates = TlsCertificates { client_tls: None, root_cert: roots };
        Ok(Self { kind: StoreTopology::parse(text, &certificates)?, certificates })
    }

    /// Whether the address is that of a Cluster, where different keys may be on different nodes.
    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.kind, StoreTopology::Cluster(_))
    }

    /// A client for the master at `host` and `port`, with the credentials and TLS of `template`.
    fn client_of(&self, template: &ConnectionInfo, host: String, port: u16) -> RedisResult<Client> {
        let addr = match template.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        client(template.clone().set_addr(addr), &self.certificates)
    }

    /// Connects to the current master. The connection is closed if an answer takes longer than `silence_max`.
    pub(super) async fn connect(&self, silence_max: Duration) -> RedisResult<Connection> {
        match &self.kind {
            StoreTopology::Single(client) => connect(client, silence_max).await.map(Connection::Single),
            StoreTopology::Cluster(nodes) => {
                let builder = cluster(nodes, &self.certificates)
                    .connection_timeout(silence_max.max(CONNECT_MIN))
                    .response_timeout(silence_max)
                    .overall_response_timeout(Some(silence_max))
                    .retries(2)
                    .min_retry_wait(1)
                    .max_retry_wait(4);
                builder.build()?.get_async_connection().await.map(Connection::Cluster)
            }
            StoreTopology::Sentinel { sentinels, master, template } => {
                let mut last =
                    RedisError::from((redis::ErrorKind::MasterNameNotFoundBySentinel, "no sentinel answers"));
                // A Sentinel that does not answer leaves time for the others and for the master.
                let share = silence_max / (sentinels.len() as u32 + 1);
                for sentinel in sentinels {
                    match ask_sentinel(sentinel, master, share).await {
                        Ok((host, port)) => {
                            let client = self.client_of(template, host, port)?;
                            return connect(&client, silence_max).await.map(Connection::Single);
                        }
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

fn client(info: impl IntoConnectionInfo, certificates: &TlsCertificates) -> RedisResult<Client> {
    let info = info.into_connection_info()?;
    match info.addr() {
        ConnectionAddr::TcpTls { .. } => Client::build_with_tls(info, certificates.clone()),
        _ => Client::open(info),
    }
}

fn cluster(nodes: &[ConnectionInfo], certificates: &TlsCertificates) -> ClusterClientBuilder {
    let builder = ClusterClientBuilder::new(nodes.to_vec());
    match nodes.first().map(ConnectionInfo::addr) {
        Some(ConnectionAddr::TcpTls { .. }) => builder.certs(certificates.clone()),
        _ => builder,
    }
}

/// The credentials with their at sign, the hosts, and the path with its slash.
fn parts(rest: &str) -> (&str, &str, &str) {
    let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
    let (credentials, hosts) = authority.rfind('@').map_or(("", authority), |at| authority.split_at(at + 1));
    (credentials, hosts, path)
}

async fn connect(client: &Client, silence_max: Duration) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(silence_max.max(CONNECT_MIN)))
        .set_response_timeout(Some(silence_max));
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// The host and port of the master with this name.
async fn ask_sentinel(sentinel: &Client, master: &str, silence_max: Duration) -> RedisResult<(String, u16)> {
    let mut connection = connect(sentinel, silence_max.max(CONNECT_MIN)).await?;
    redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(master).query_async(&mut connection).await
}
