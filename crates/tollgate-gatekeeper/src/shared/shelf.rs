//! Pages that one writer at a time keeps in the store, for whoever comes after it.
//!
//! A writer that dies says nothing, and one that only stood still does not know that another has taken its place. So whoever takes over
//! begins a new term, and in the same step with every write the store looks whether the writer's term still runs: two never write
//! over each other. Pages carry their term in their names, and the pages of a term count from when it has been finished once: a successor that dies
//! before that leaves the books of its predecessor as they were.
//!
//! Ages are told by the store's clock: writers may be on different machines. A page ends by itself when all that is on it is over.

use core::time::Duration;

use redis::{FromRedisValue, Script, ScriptInvocation};

use super::address::Connection;
use super::aside::Aside;
use super::{Address, Unanswered};

/// Terms are dates, so that none comes twice, even if the store forgets everything in between.
const BEGIN: &str = r"
local time = redis.call('TIME')
local term = math.max(time[1] * 1000 + math.floor(time[2] / 1000), (tonumber(redis.call('GET', KEYS[1])) or 0) + 1)
redis.call('SET', KEYS[1], string.format('%.0f', term))
return { string.format('%.0f', term), redis.call('GET', KEYS[2]) }";

const WRITE: &str = r"
local term = redis.call('GET', KEYS[1])
if term ~= ARGV[1] then return (tonumber(term) or 0) > tonumber(ARGV[1]) and 0 or -1 end
if ARGV[3] == '' then
  redis.call('SET', KEYS[2], ARGV[2])
else
  local time = redis.call('TIME')
  redis.call('SET', KEYS[2], string.format('%.0f ', time[1] * 1000000 + time[2]) .. ARGV[2], 'PX', ARGV[3])
end
return 1";

const READ: &str = r"
local time = redis.call('TIME')
return { string.format('%.0f', time[1] * 1000000 + time[2]), redis.call('GET', KEYS[1]) }";

/// Pages under one name.
pub struct Shelf {
    aside: Aside,
    name: String,
    term: Option<String>,
    begin: Script,
    write: Script,
    read: Script,
}

impl core::fmt::Debug for Shelf {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.debug_struct("Shelf").field("name", &self.name).field("term", &self.term).finish_non_exhaustive()
    }
}

/// What the last term that was finished has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Legacy {
    term: String,
    /// How many pages there were.
    pub pages: u32,
}

/// A page, and how long ago it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// How long ago.
    pub age: Duration,
    /// What is on it.
    pub bytes: Vec<u8>,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// It is kept.
    Done,
    /// Another writer has begun a term: nothing was written.
    Superseded,
    /// The store does not know of this term, and so of no page of it: it lost what it had, or has an older state. Begin again.
    Forgotten,
}

impl Shelf {
    /// The pages called `name` at `address`, under names that begin with `prefix`. Nothing is connected before something is asked.
    pub fn new(address: Address, prefix: &str, name: &str) -> Self {
        Self {
            aside: Aside::new(address),
            // The braces keep all pages on one node of a Cluster.
            name: format!("{prefix}{{books:{name}}}"),
            term: None,
            begin: Script::new(BEGIN),
            write: Script::new(WRITE),
            read: Script::new(READ),
        }
    }

    /// The same, for who can wait for so long for an answer instead of two seconds.
    #[must_use]
    pub const fn with_patience(mut self, patience: Duration) -> Self {
        self.aside.set_patience(patience);
        self
    }

    /// Begins a term: who wrote before can write no more. Gives what the last term that was finished has left.
    pub async fn begin(&mut self) -> Result<Option<Legacy>, Unanswered> {
        let (term, head) = (self.called("term"), self.called("head"));
        let script = self.begin.clone();
        let (term, head): (String, Option<String>) = self.ask(script.key(term).key(head)).await?;
        self.term = Some(term);
        Ok(head.and_then(|head| {
            let (term, pages) = head.split_once(' ')?;
            Some(Legacy { term: term.to_owned(), pages: pages.parse().ok()? })
        }))
    }

    /// Reads a page of a legacy, if it is still there.
    pub async fn read(&mut self, legacy: &Legacy, page: u32) -> Result<Option<Page>, Unanswered> {
        let (name, script) = (self.page_of(&legacy.term, page), self.read.clone());
        let (now, value): (u64, Option<Vec<u8>>) = self.ask(&mut script.key(name)).await?;
        Ok(value.and_then(|value| {
            let stamp = value.iter().position(|byte| *byte == b' ')?;
            let written: u64 = core::str::from_utf8(&value[..stamp]).ok()?.parse().ok()?;
            Some(Page { age: Duration::from_micros(now.saturating_sub(written)), bytes: value[stamp + 1..].to_vec() })
        }))
    }

    /// Writes a page of this term, which is of use for as long as `life`.
    pub async fn write(&mut self, page: u32, bytes: &[u8], life: Duration) -> Result<Writing, Unanswered> {
        let Some(term) = self.term.clone() else { return Ok(Writing::Forgotten) };
        let life = u64::try_from(life.as_millis()).unwrap_or(u64::MAX).clamp(1, LIFE_MS_MAX);
        let name = self.page_of(&term, page);
        self.put(&term, &name, bytes, &life.to_string()).await
    }

    /// All pages of this term are written, so many: they are what is left to whoever comes next.
    pub async fn finish(&mut self, pages: u32) -> Result<Writing, Unanswered> {
        let Some(term) = self.term.clone() else { return Ok(Writing::Forgotten) };
        let name = self.called("head");
        self.put(&term, &name, format!("{term} {pages}").as_bytes(), "").await
    }

    async fn put(&mut self, term: &str, name: &str, bytes: &[u8], life: &str) -> Result<Writing, Unanswered> {
        let (running, script) = (self.called("term"), self.write.clone());
        let said: i64 = self.ask(script.key(running).key(name).arg(term).arg(bytes).arg(life)).await?;
        Ok(match said {
            1 => Writing::Done,
            0 => Writing::Superseded,
            _ => Writing::Forgotten,
        })
    }

    fn called(&self, what: &str) -> String {
        format!("{}:{what}", self.name)
    }

    fn page_of(&self, term: &str, page: u32) -> String {
        format!("{}:{term}:{page}", self.name)
    }

    async fn ask<T: FromRedisValue>(&mut self, call: &mut ScriptInvocation<'_>) -> Result<T, Unanswered> {
        self.aside
            .ask(async |connection| match connection {
                Connection::Single(single) => call.invoke_async(single).await,
                Connection::Cluster(cluster) => call.invoke_async(cluster).await,
            })
            .await
    }
}

/// No page is of use for longer than a year.
const LIFE_MS_MAX: u64 = 365 * 86_400_000;
