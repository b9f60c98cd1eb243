//! Flags on accounts that all gates see: set once, by whoever comes first, and cleared for all of them.
//!
//! A flag is a hash that people can read in the store, under the name of its account. A second name keeps the accounts in the order in
//! which their flags changed last, so that a gate asks for what is new to it and not for everything. Both change in one step, on the
//! store's clock. Flags are off the way of requests: they have a connection of their own, and nobody waits for them but who asked.

use core::time::Duration;
use std::collections::HashMap;

use redis::{ErrorKind, Pipeline, RedisError, RedisResult, Script, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::address::Connection;
use super::{Address, Unanswered};

/// An answer that takes longer does not come.
const PATIENCE: Duration = Duration::from_secs(2);
/// So many changes are told at once.
const CHANGES_MAX: usize = 1_000;

const SET: &str = r"
if redis.call('HEXISTS', KEYS[1], 'flagged_at_ms') == 1 and redis.call('HEXISTS', KEYS[1], 'cleared_at_ms') == 0 then return 0 end
local known = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not known and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then return -1 end
local time = redis.call('TIME')
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'flagged_at_ms', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), 'rejected', ARGV[2])
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')
redis.call('ZADD', KEYS[2], (tonumber(last[2]) or 0) + 1, ARGV[1])
return 1";

const CLEAR: &str = r"
if redis.call('HEXISTS', KEYS[1], 'flagged_at_ms') == 0 or redis.call('HEXISTS', KEYS[1], 'cleared_at_ms') == 1 then return 0 end
local last, time = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES'), redis.call('TIME')
redis.call('HSET', KEYS[1], 'cleared_at_ms', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), 'cleared_by', ARGV[2], 'note', ARGV[3])
redis.call('ZADD', KEYS[2], (tonumber(last[2]) or 0) + 1, ARGV[1])
return 1";

/// The mark on an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFlag {
    /// Whose it is.
    pub account: String,
    /// When it was set, in milliseconds since 1970 on the store's clock.
    pub flagged_at_ms: u64,
    /// How many refusals led to it.
    pub rejected: u64,
    /// How it was cleared, if it was.
    pub cleared: Option<Clearing>,
}

/// How a flag was cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clearing {
    /// When, in milliseconds since 1970 on the store's clock.
    pub at_ms: u64,
    /// By whom.
    pub by: String,
    /// What they said about it.
    pub note: String,
}

/// What came of setting a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flagging {
    /// It is set now.
    Set,
    /// It was set already.
    WasSet,
    /// There are too many.
    Full,
}

/// Flags as of a moment, and what to ask with for those that change after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlagChanges {
    /// Flags that have been set or cleared since, the oldest change first.
    pub flags: Vec<SharedFlag>,
    /// Where to go on.
    pub last: u64,
    /// Whether there are more at once.
    pub more: bool,
}

/// The flags that gates share.
pub struct SharedFlags {
    address: Address,
    /// What names of accounts follow, and itself the name of their order.
    prefix: String,
    flags_max: usize,
    connection: Mutex<Option<Connection>>,
    set: Script,
    clear: Script,
}

impl core::fmt::Debug for SharedFlags {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("SharedFlags").field("address", &self.address).finish_non_exhaustive()
    }
}

impl SharedFlags {
    /// Flags at `address`, at most `flags_max` of them, under names that begin with `prefix`. Nothing is connected before something is asked.
    pub fn new(address: Address, prefix: &str, flags_max: usize) -> Self {
        Self {
            address,
            prefix: format!("{prefix}{{flags}}"),
            flags_max,
            connection: Mutex::default(),
            set: Script::new(SET),
            clear: Script::new(CLEAR),
        }
    }

    /// Flags `account` for so many refusals, unless it is flagged.
    pub async fn set(&self, account: &str, rejected: u64) -> Result<Flagging, Unanswered> {
        let mut call = self.set.prepare_invoke();
        call.key(self.name_of(account)).key(&self.prefix).arg(account).arg(rejected).arg(self.flags_max);
        let said: i64 = self
            .ask(async |connection| match connection {
                Connection::Single(single) => call.invoke_async(single).await,
                Connection::Cluster(cluster) => call.invoke_async(cluster).await,
            })
            .await?;
        Ok(match said {
            1 => Flagging::Set,
            0 => Flagging::WasSet,
            _ => Flagging::Full,
        })
    }

    /// Clears the flag of `account`, and says whether there was one.
    pub async fn clear(&self, account: &str, by: &str, note: &str) -> Result<bool, Unanswered> {
        let mut call = self.clear.prepare_invoke();
        call.key(self.name_of(account)).key(&self.prefix).arg(account).arg(by).arg(note);
        let said: i64 = self
            .ask(async |connection| match connection {
                Connection::Single(single) => call.invoke_async(single).await,
                Connection::Cluster(cluster) => call.invoke_async(cluster).await,
            })
            .await?;
        Ok(said == 1)
    }

    /// Flags that were set or cleared since [`FlagChanges::last`]; since ever for 0.
    pub async fn changes(&self, since: u64) -> Result<FlagChanges, Unanswered> {
        let mut range = redis::cmd("ZRANGEBYSCORE");
        range
            .arg(&self.prefix)
            .arg(format!("({since}"))
            .arg("+inf")
            .arg("WITHSCORES")
            .arg("LIMIT")
            .arg(0)
            .arg(CHANGES_MAX);
        let changed: Vec<(String, u64)> = self
            .ask(async |connection| match connection {
                Connection::Single(single) => range.query_async(single).await,
                Connection::Cluster(cluster) => range.query_async(cluster).await,
            })
            .await?;
        let Some((_, last)) = changed.last().cloned() else {
            return Ok(FlagChanges { last: since, ..FlagChanges::default() });
        };
        let mut pipeline = Pipeline::with_capacity(changed.len());
        for (account, _) in &changed {
            pipeline.hgetall(self.name_of(account));
        }
        let records: Vec<Value> = self
            .ask(async |connection| match connection {
                Connection::Single(single) => pipeline.query_async(single).await,
                Connection::Cluster(cluster) => pipeline.query_async(cluster).await,
            })
            .await?;
        let more = changed.len() == CHANGES_MAX;
        let flags = changed.into_iter().zip(records).filter_map(|((account, _), record)| flag(account, record));
        Ok(FlagChanges { flags: flags.collect(), last, more })
    }

    fn name_of(&self, account: &str) -> String {
        format!("{}:{account}", self.prefix)
    }

    /// Asks on the connection, which is made if there is none and given up if it does not answer.
    async fn ask<T>(&self, question: impl AsyncFnOnce(&mut Connection) -> RedisResult<T>) -> Result<T, Unanswered> {
        let mut kept = self.connection.lock().await;
        let asking = async {
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.address.connect(PATIENCE).await?,
            };
            let answer = question(&mut connection).await;
            if !answer.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
                *kept = Some(connection);
            }
            answer
        };
        match timeout(PATIENCE, asking).await {
            Err(_) => Err(Unanswered::Late),
            Ok(answer) => answer.map_err(|error| match error.kind() {
                ErrorKind::Server(_) | ErrorKind::Extension => Unanswered::Failed,
                ErrorKind::UnexpectedReturnType | ErrorKind::Parse => Unanswered::Garbled,
                _ => Unanswered::Down,
            }),
        }
    }
}

/// The flag that a record says, if it says one.
fn flag(account: String, record: Value) -> Option<SharedFlag> {
    let record: HashMap<String, String> = redis::from_redis_value(record).ok()?;
    let number = |name: &str| record.get(name)?.parse().ok();
    let text = |name: &str| record.get(name).cloned().unwrap_or_default();
    let cleared = number("cleared_at_ms").map(|at_ms| Clearing { at_ms, by: text("cleared_by"), note: text("note") });
    Some(SharedFlag { account, flagged_at_ms: number("flagged_at_ms")?, rejected: number("rejected")?, cleared })
}
