//! A separate connection to the store for flags and the pages of a master, so that these calls do not delay decisions.

use core::fmt;
use core::time::Duration;

use redis::{ErrorKind, FromRedisValue, RedisError, RedisResult, ScriptInvocation};
use tokio::time::timeout;

use super::address::Connection;
use super::{Address, Unanswered};

/// The default timeout of a call.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to a store, established on the first call.
pub(super) struct SideConnection {
    address: Address,
    /// The timeout of a call, with connecting.
    pub(super) timeout_max: Duration,
    connection: Option<Connection>,
    /// The number of connection attempts so far, the last of which made the current connection.
    pub(super) connections: u64,
}

impl fmt::Debug for SideConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SideConnection").field("address", &self.address).finish_non_exhaustive()
    }
}

impl SideConnection {
    pub(super) const fn new(address: Address) -> Self {
        Self { address, timeout_max: TIMEOUT, connection: None, connections: 0 }
    }

    /// Runs a script.
    pub(super) async fn invoke<T: FromRedisValue>(&mut self, call: &ScriptInvocation<'_>) -> Result<T, Unanswered> {
        self.ask(async |connection| match connection {
            Connection::Single(single) => call.invoke_async(single).await,
            Connection::Cluster(cluster) => call.invoke_async(cluster).await,
        })
        .await
    }

    /// Makes a call, on a new connection if there is none. The connection is closed after an error, because
    /// another server may be responsible by then.
    pub(super) async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Result<T, Unanswered> {
        let asking = async {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => {
                    self.connections += 1;
                    self.address.connect(self.timeout_max).await?
                }
            };
            let answer = question(&mut connection).await?;
            self.connection = Some(connection);
            Ok(answer)
        };
        match timeout(self.timeout_max, asking).await {
            Err(_) => Err(Unanswered::Late),
            Ok(answer) => answer.map_err(|error| why(&error)),
        }
    }
}

fn why(error: &RedisError) -> Unanswered {
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => Unanswered::Failed,
        ErrorKind::UnexpectedReturnType | ErrorKind::Parse => Unanswered::Garbled,
        _ => Unanswered::Down,
    }
}
