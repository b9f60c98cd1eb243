//! Flags in the store that all gates share. A flag is a mark on an account that was refused too often; the watch of a
//! gate sets it, and an operator clears it.
//!
//! A flag is a Redis hash under the name of its account. A sorted set, the *order*, has the accounts in the order of
//! their last change, so that a gate fetches only what is new. Each change is atomic. Flags use a separate
//! connection, so that they do not delay requests.
//!
//! Gates keep flags themselves and write them to the store when possible, which may be hours later. The
//! latest event wins, not the latest write: a write includes the time of the event on the store's clock
//! ([`FlagChanges::now_us`]), and a flag that was set before it was cleared stays cleared. A store can also
//! lose its data. It has an era, a random text that is lost with everything else. If the era or the
//! connection changes, or the number of the last change decreases, all flags are returned from the start
//! ([`FlagChanges::is_from_start`]), so that a gate can detect what is missing.

use core::time::Duration;
use std::collections::HashMap;

use redis::{Pipeline, Script, Value};
use tokio::sync::Mutex;

use super::address::Connection;
use super::side_connection::SideConnection;
use super::{Address, Unanswered};

/// The maximum number of changes per reply.
const CHANGES_MAX: usize = 1_000;
/// The number of cleared flags that are kept; older ones are removed.
const CLEARED_MAX: usize = 10_000;

// Sets or clears a flag. KEYS: the flag, the order, the cleared flags. ARGV: account, refusals, time of setting, time
// of clearing or empty, name of the operator, note, maximum number of flags, maximum number of cleared flags, prefix
// of flag names. Returns 1 if the flag was written, 0 if it stays set, 2 if it stays cleared, -1 if there are too
// many flags. Times are in microseconds, and capped at one second after the store's time. Two times of setting within
// one second are those of the same flag: gates convert them to the store's clock, with an error.
const WRITE_FLAG: &str = r"
local time = redis.call('TIME')
local soon = time[1] * 1000000 + time[2] + 1000000
local flagged, account = math.min(tonumber(ARGV[3]), soon), ARGV[1]
local known = redis.call('HMGET', KEYS[1], 'flagged_at_us', 'cleared_at_us')
local flagged_before, cleared_before = tonumber(known[1] or nil), tonumber(known[2] or nil)
local function text(number) return string.format('%.0f', number) end
local last = tonumber(redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]) or 0
if ARGV[4] == '' then
  if flagged_before and not cleared_before then return 0 end
  if cleared_before and flagged <= cleared_before then return 2 end
  if redis.call('ZCARD', KEYS[2]) - redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[7]) then return -1 end
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'flagged_at_us', text(flagged), 'rejected', ARGV[2])
  redis.call('ZREM', KEYS[3], account)
else
  local cleared = math.min(tonumber(ARGV[4]), soon)
  if cleared_before then return 2 end
  if flagged_before and flagged_before > math.max(cleared, flagged + 1000000) then return 0 end
  if not flagged_before then redis.call('HSET', KEYS[1], 'flagged_at_us', text(flagged), 'rejected', ARGV[2]) end
  redis.call('HSET', KEYS[1], 'cleared_at_us', text(cleared), 'cleared_by', ARGV[5], 'note', ARGV[6])
  redis.call('ZADD', KEYS[3], last + 1, account)
  if redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[8]) then
    local oldest = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
    redis.call('ZREM', KEYS[3], oldest)
    redis.call('ZREM', KEYS[2], oldest)
    redis.call('DEL', ARGV[9] .. oldest)
  end
end
redis.call('ZADD', KEYS[2], last + 1, account)
return 1";

// Lists changes. KEYS: the order, the era. ARGV: last known change, maximum number, a new era in case there is none.
const QUERY: &str = r"
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('SET', KEYS[2], ARGV[3]) end
local time, last = redis.call('TIME'), redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2] or '0'
local changed = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
return {redis.call('GET', KEYS[2]), time[1] * 1000000 + time[2], last, changed}";

/// A flag on an account. Times are in microseconds since 1970 on the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFlag {
    /// The account.
    pub account: String,
    /// The time at which it was set.
    pub flagged_at_us: u64,
    /// The number of refusals that led to it.
    pub rejected: u64,
    /// The clearing, if it was cleared.
    pub cleared: Option<Clearing>,
}

/// The clearing of a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clearing {
    /// The time, in microseconds since 1970 on the store's clock.
    pub at_us: u64,
    /// The operator.
    pub by: String,
    /// The operator's note.
    pub note: String,
}

/// The result of writing a flag to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagWriteOutcome {
    /// The store has the flag as written.
    Taken,
    /// The flag is set: it was set before, or again since it was cleared.
    IsSet,
    /// The flag is cleared: it was cleared before, or since it was set.
    IsCleared,
    /// There are too many flags.
    Full,
}

/// The position up to which changes of flags are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Since {
    era: String,
    /// The number of the connection.
    connection: u64,
    /// The number of the last known change.
    last: u64,
}

/// Changes of flags, and the position for the next query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlagChanges {
    /// Flags that were set or cleared, the oldest change first.
    pub flags: Vec<SharedFlag>,
    /// The position for the next query.
    pub since: Since,
    /// Whether more changes are available now.
    pub more: bool,
    /// Whether this starts from the beginning, because the store may have lost data.
    pub is_from_start: bool,
    /// The store's time, in microseconds since 1970.
    pub now_us: u64,
}

/// The result of a query: era, time, number of the latest change, and changes.
type QueryResult = (String, u64, u64, Vec<(String, u64)>);

/// The flags that gates share.
#[derive(Debug)]
pub struct SharedFlags {
    side_connection: Mutex<SideConnection>,
    /// The name of the order, and the prefix of all other names.
    prefix: String,
    /// The maximum number of flags that are set.
    flags_max: usize,
    write: Script,
    query: Script,
}

impl SharedFlags {
    /// Flags at `address`, at most `flags_max`, under names that start with `prefix`. It connects on the
    /// first call.
    pub fn new(address: Address, prefix: &str, flags_max: usize) -> Self {
        Self {
            side_connection: Mutex::new(SideConnection::new(address)),
            prefix: format!("{prefix}{{flags}}"),
            flags_max,
            write: Script::new(WRITE_FLAG),
            query: Script::new(QUERY),
        }
    }

    /// The same with another timeout than two seconds.
    #[must_use]
    pub fn with_patience(mut self, timeout_max: Duration) -> Self {
        self.side_connection.get_mut().timeout_max = timeout_max;
        self
    }

    /// Writes a flag to the store. The later event wins.
    pub async fn write(&self, flag: &SharedFlag) -> Result<FlagWriteOutcome, Unanswered> {
        let mut call = self.write.prepare_invoke();
        call.key(self.name_of(&flag.account)).key(&self.prefix).key(format!("{}.cleared", self.prefix));
        call.arg(&flag.account).arg(flag.rejected).arg(flag.flagged_at_us);
        match &flag.cleared {
            Some(Clearing { at_us, by, note }) => call.arg(at_us).arg(by).arg(note),
            None => call.arg("").arg("").arg(""),
        };
        call.arg(self.flags_max).arg(CLEARED_MAX).arg(self.name_of(""));
        Ok(match self.side_connection.lock().await.invoke::<i64>(&call).await? {
            1 => FlagWriteOutcome::Taken,
            0 => FlagWriteOutcome::IsSet,
            2 => FlagWriteOutcome::IsCleared,
            _ => FlagWriteOutcome::Full,
        })
    }

    /// Flags that were set or cleared since `since`; all flags for `Since::default()`.
    pub async fn changes(&self, since: &Since) -> Result<FlagChanges, Unanswered> {
        let ((mut era, mut now_us, latest, mut changed), connection) = self.query(since.last).await?;
        let is_from_start =
            *since == Since::default() || era != since.era || connection != since.connection || latest < since.last;
        if is_from_start && since.last > 0 {
            ((era, now_us, _, changed), _) = self.query(0).await?;
        }
        let last = changed.last().map_or(if is_from_start { 0 } else { since.last }, |(_, last)| *last);
        let more = changed.len() == CHANGES_MAX;
        let flags = self.flags_of(changed).await?;
        Ok(FlagChanges { flags, since: Since { era, connection, last }, more, is_from_start, now_us })
    }

    /// Queries changes after the one with the number `since`. Also returns the number of the connection.
    async fn query(&self, since: u64) -> Result<(QueryResult, u64), Unanswered> {
        let mut call = self.query.prepare_invoke();
        call.key(&self.prefix).key(format!("{}.era", self.prefix));
        call.arg(since).arg(CHANGES_MAX).arg(format!("{:016x}", fastrand::u64(..)));
        let mut side_connection = self.side_connection.lock().await;
        let answer = side_connection.invoke(&call).await?;
        Ok((answer, side_connection.connections))
    }

    /// The current flags of these accounts.
    async fn flags_of(&self, accounts: Vec<(String, u64)>) -> Result<Vec<SharedFlag>, Unanswered> {
        if accounts.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = Pipeline::with_capacity(accounts.len());
        for (account, _) in &accounts {
            pipeline.hgetall(self.name_of(account));
        }
        let ask = async |connection: &mut Connection| match connection {
            Connection::Single(single) => pipeline.query_async(single).await,
            Connection::Cluster(cluster) => pipeline.query_async(cluster).await,
        };
        let records: Vec<Value> = self.side_connection.lock().await.ask(ask).await?;
        Ok(accounts.into_iter().zip(records).filter_map(|((account, _), record)| flag(account, record)).collect())
    }

    fn name_of(&self, account: &str) -> String {
        format!("{}:{account}", self.prefix)
    }
}

/// The flag in a record, if there is one.
fn flag(account: String, record: Value) -> Option<SharedFlag> {
    let record: HashMap<String, String> = redis::from_redis_value(record).ok()?;
    let number = |name: &str| record.get(name)?.parse().ok();
    let text = |name: &str| record.get(name).cloned().unwrap_or_default();
    let cleared = number("cleared_at_us").map(|at_us| Clearing { at_us, by: text("cleared_by"), note: text("note") });
    Some(SharedFlag { account, flagged_at_us: number("flagged_at_us")?, rejected: number("rejected")?, cleared })
}
