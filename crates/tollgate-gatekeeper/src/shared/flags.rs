//! Flags on accounts that all gates see: set once, by whoever comes first, and cleared for all of them.
//!
//! A flag is a hash that people can read in the store, under the name of its account. A second name keeps the accounts in the order in
//! which their flags changed last, so that a gate asks for what is new to it and not for everything. All of it changes in one step. Flags
//! are off the way of requests: they have a connection of their own, and nobody waits for them but who asked.
//!
//! Gates keep flags themselves and tell the store when they can, which may be hours later. So what counts is not who comes last but what
//! happened last: whoever tells says when, by the store's clock ([`FlagChanges::now_us`]), and a flag that was set before it was cleared stays cleared. A
//! store can also forget. It has an era, a random word that is gone when everything else is; when that is another one, or the connection
//! is, or the order has gone back, everything is told from the beginning ([`FlagChanges::anew`]), so that who asks can see what is missing.

use core::time::Duration;
use std::collections::HashMap;

use redis::{Pipeline, RedisResult, Script, Value};
use tokio::sync::Mutex;

use super::address::Connection;
use super::aside::Aside;
use super::{Address, Unanswered, random};

/// So many changes are told at once.
const CHANGES_MAX: usize = 1_000;
/// So many cleared flags are kept; the oldest go.
const CLEARED_MAX: usize = 10_000;

// KEYS: the flag, the order, the cleared ones. ARGV: account, refusals, set at, cleared at or nothing, by whom, why, most flags, most cleared ones,
// what names of flags begin with. Nobody's clock is far ahead of this one.
const TELL: &str = r"
local time = redis.call('TIME')
local soon = time[1] * 1000000 + time[2] + 1000000
local flagged, told = math.min(tonumber(ARGV[3]), soon), ARGV[1]
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
  redis.call('ZREM', KEYS[3], told)
else
  local cleared = math.min(tonumber(ARGV[4]), soon)
  if cleared_before then return 2 end
  if flagged_before and flagged_before > cleared then return 0 end
  if not flagged_before then redis.call('HSET', KEYS[1], 'flagged_at_us', text(flagged), 'rejected', ARGV[2]) end
  redis.call('HSET', KEYS[1], 'cleared_at_us', text(cleared), 'cleared_by', ARGV[5], 'note', ARGV[6])
  redis.call('ZADD', KEYS[3], last + 1, told)
  if redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[8]) then
    local oldest = redis.call('ZRANGE', KEYS[3], 0, 0)[1]
    redis.call('ZREM', KEYS[3], oldest)
    redis.call('ZREM', KEYS[2], oldest)
    redis.call('DEL', ARGV[9] .. oldest)
  end
end
redis.call('ZADD', KEYS[2], last + 1, told)
return 1";

// KEYS: the order, the era. ARGV: since, most, a new era if there is none.
const LOOK: &str = r"
if redis.call('EXISTS', KEYS[2]) == 0 then redis.call('SET', KEYS[2], ARGV[3]) end
local time, last = redis.call('TIME'), redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2] or '0'
local changed = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
return {redis.call('GET', KEYS[2]), time[1] * 1000000 + time[2], last, changed}";

/// The mark on an account. Moments are in microseconds since 1970 on the store's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFlag {
    /// Whose it is.
    pub account: String,
    /// When it was set.
    pub flagged_at_us: u64,
    /// How many refusals led to it.
    pub rejected: u64,
    /// How it was cleared, if it was.
    pub cleared: Option<Clearing>,
}

/// How a flag was cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clearing {
    /// When, in microseconds since 1970 on the store's clock.
    pub at_us: u64,
    /// By whom.
    pub by: String,
    /// What they said about it.
    pub note: String,
}

/// What came of telling the store of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// It is now as was told.
    Taken,
    /// It is set: it had been set before, or again since it was cleared.
    IsSet,
    /// It is cleared: it had been cleared before, or since it was set.
    IsCleared,
    /// There are too many.
    Full,
}

/// Up to where the changes of flags are known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Since {
    era: String,
    connection: u64,
    last: u64,
}

/// Flags as of a moment, and what to ask with for those that change after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlagChanges {
    /// Flags that have been set or cleared since, the oldest change first.
    pub flags: Vec<SharedFlag>,
    /// Where to go on.
    pub since: Since,
    /// Whether there are more at once.
    pub more: bool,
    /// Whether this begins at the beginning, because the store may have forgotten something.
    pub anew: bool,
    /// What time it is by the store's clock, in microseconds since 1970.
    pub now_us: u64,
}

/// What the store says first: its era, its time, the number of the latest change, and changes.
type Look = (String, u64, u64, Vec<(String, u64)>);

/// The flags that gates share.
pub struct SharedFlags {
    aside: Mutex<Aside>,
    /// What names of accounts follow, and itself the name of their order.
    prefix: String,
    flags_max: usize,
    tell: Script,
    look: Script,
}

impl core::fmt::Debug for SharedFlags {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("SharedFlags").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl SharedFlags {
    /// Flags at `address`, at most `flags_max` of them, under names that begin with `prefix`. Nothing is connected before something is asked.
    pub fn new(address: Address, prefix: &str, flags_max: usize) -> Self {
        Self {
            aside: Mutex::new(Aside::new(address)),
            prefix: format!("{prefix}{{flags}}"),
            flags_max,
            tell: Script::new(TELL),
            look: Script::new(LOOK),
        }
    }

    /// The same, for who can wait for so long for an answer instead of two seconds.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.aside.get_mut().set_patience(patience);
        self
    }

    /// Tells the store how a flag stands. What happened later counts.
    pub async fn tell(&self, flag: &SharedFlag) -> Result<Telling, Unanswered> {
        let mut call = self.tell.prepare_invoke();
        call.key(self.name_of(&flag.account)).key(&self.prefix).key(format!("{}.cleared", self.prefix));
        call.arg(&flag.account).arg(flag.rejected).arg(flag.flagged_at_us);
        match &flag.cleared {
            Some(Clearing { at_us, by, note }) => call.arg(at_us).arg(by).arg(note),
            None => call.arg("").arg("").arg(""),
        };
        call.arg(self.flags_max).arg(CLEARED_MAX).arg(self.name_of(""));
        let (said, _): (i64, u64) = self
            .ask(async |connection| match connection {
                Connection::Single(single) => call.invoke_async(single).await,
                Connection::Cluster(cluster) => call.invoke_async(cluster).await,
            })
            .await?;
        Ok(match said {
            1 => Telling::Taken,
            0 => Telling::IsSet,
            2 => Telling::IsCleared,
            _ => Telling::Full,
        })
    }

    /// Flags that were set or cleared since then; since ever for the default.
    pub async fn changes(&self, since: &Since) -> Result<FlagChanges, Unanswered> {
        let ((mut era, mut now_us, latest, mut changed), connection) = self.look(since.last).await?;
        let anew =
            *since == Since::default() || era != since.era || connection != since.connection || latest < since.last;
        if anew && since.last > 0 {
            ((era, now_us, _, changed), _) = self.look(0).await?;
        }
        let last = changed.last().map_or(if anew { 0 } else { since.last }, |(_, last)| *last);
        let more = changed.len() == CHANGES_MAX;
        let flags = self.flags_of(changed).await?;
        Ok(FlagChanges { flags, since: Since { era, connection, last }, more, anew, now_us })
    }

    async fn look(&self, since: u64) -> Result<(Look, u64), Unanswered> {
        let mut call = self.look.prepare_invoke();
        call.key(&self.prefix).key(format!("{}.era", self.prefix));
        call.arg(since).arg(CHANGES_MAX).arg(format!("{:016x}", random::bits()));
        self.ask(async |connection| match connection {
            Connection::Single(single) => call.invoke_async(single).await,
            Connection::Cluster(cluster) => call.invoke_async(cluster).await,
        })
        .await
    }

    /// The flags of these accounts, as they are now.
    async fn flags_of(&self, accounts: Vec<(String, u64)>) -> Result<Vec<SharedFlag>, Unanswered> {
        if accounts.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = Pipeline::with_capacity(accounts.len());
        for (account, _) in &accounts {
            pipeline.hgetall(self.name_of(account));
        }
        let (records, _): (Vec<Value>, u64) = self
            .ask(async |connection| match connection {
                Connection::Single(single) => pipeline.query_async(single).await,
                Connection::Cluster(cluster) => pipeline.query_async(cluster).await,
            })
            .await?;
        Ok(accounts.into_iter().zip(records).filter_map(|((account, _), record)| flag(account, record)).collect())
    }

    fn name_of(&self, account: &str) -> String {
        format!("{}:{account}", self.prefix)
    }

    /// Asks, and says on which connection it was, too.
    async fn ask<T>(
        &self,
        question: impl AsyncFnOnce(&mut Connection) -> RedisResult<T>,
    ) -> Result<(T, u64), Unanswered> {
        let mut aside = self.aside.lock().await;
        let answer = aside.ask(question).await?;
        Ok((answer, aside.connections()))
    }
}

/// The flag that a record says, if it says one.
fn flag(account: String, record: Value) -> Option<SharedFlag> {
    let record: HashMap<String, String> = redis::from_redis_value(record).ok()?;
    let number = |name: &str| record.get(name)?.parse().ok();
    let text = |name: &str| record.get(name).cloned().unwrap_or_default();
    let cleared = number("cleared_at_us").map(|at_us| Clearing { at_us, by: text("cleared_by"), note: text("note") });
    Some(SharedFlag { account, flagged_at_us: number("flagged_at_us")?, rejected: number("rejected")?, cleared })
}
