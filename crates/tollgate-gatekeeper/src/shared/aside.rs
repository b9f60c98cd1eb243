//! A connection off the way of requests, for what is asked now and then: nobody waits for the answer but who asked.

use core::fmt;
use core::time::Duration;

use redis::{ErrorKind, RedisError, RedisResult};
use tokio::time::timeout;

use super::address::Connection;
use super::{Address, Unanswered};

/// An answer that takes longer does not come, unless somebody is more patient.
const PATIENCE: Duration = Duration::from_secs(2);

/// The connection to a store, made when there is something to ask.
pub(super) struct Aside {
    address: Address,
    patience: Duration,
    connection: Option<Connection>,
    connections: u64,
}

impl fmt::Debug for Aside {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Aside").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Aside {
    pub(super) const fn new(address: Address) -> Self {
        Self { address, patience: PATIENCE, connection: None, connections: 0 }
    }

    pub(super) const fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// How many connections there have been, up to the one that was asked last.
    pub(super) const fn connections(&self) -> u64 {
        self.connections
    }

    /// Asks on the connection, which is made if there is none and given up if the answer is an error: after an error of the server
    /// another one may be the right one to ask.
    pub(super) async fn ask<T>(
        &mut self,
        question: impl AsyncFnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Result<T, Unanswered> {
        let asking = async {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => {
                    self.connections += 1;
                    self.address.connect(self.patience).await?
                }
            };
            let answer = question(&mut connection).await?;
            self.connection = Some(connection);
            Ok(answer)
        };
        match timeout(self.patience, asking).await {
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
