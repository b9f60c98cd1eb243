//! Pages of data in the store, written by one writer at a time (fencing). A master saves its state in them, which the
//! next master reads.
//!
//! A writer that dies cannot announce it, and one that only stalled does not know that it was replaced. A new
//! writer therefore starts a new term, and every write atomically checks that the writer's term is current,
//! so two writers never overwrite each other. Page names include the term, and the pages of a term become
//! valid when the writer first calls [`FencedPages::finish`]. A writer that dies before that leaves the previous term's
//! pages intact.
//!
//! Ages are measured by the store's clock, because writers may be on different machines. A page expires when
//! all of its content has.

use core::time::Duration;

use redis::Script;

use super::side_connection::SideConnection;
use super::{Address, Unanswered};

// Starts a term. KEYS: the term, the head (the last finished term and its number of pages). Terms are timestamps in
// milliseconds, so that none repeats even if the store loses all data.
const BEGIN: &str = r"
local time = redis.call('TIME')
local term = math.max(time[1] * 1000 + math.floor(time[2] / 1000), (tonumber(redis.call('GET', KEYS[1])) or 0) + 1)
redis.call('SET', KEYS[1], string.format('%.0f', term))
return { string.format('%.0f', term), redis.call('GET', KEYS[2]) }";

// Writes a value if the term is current. KEYS: the term, the value. ARGV: the writer's term, the content, the
// lifetime in milliseconds; a page has one, and begins with the time of writing. Returns 1, 0 if the term is later,
// -1 if it is missing or earlier.
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

// Reads a page. KEYS: the page. Returns the time in microseconds and the page.
const READ: &str = r"
local time = redis.call('TIME')
return { string.format('%.0f', time[1] * 1000000 + time[2]), redis.call('GET', KEYS[1]) }";

/// Pages under one name.
#[derive(Debug)]
pub struct FencedPages {
    side_connection: SideConnection,
    /// The prefix of the names of all pages.
    name: String,
    /// The term of this writer, once it has begun.
    term: Option<String>,
    begin: Script,
    write: Script,
    read: Script,
}

/// The last finished term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedTerm {
    term: String,
    /// The number of its pages.
    pub pages: u32,
}

/// A page and its age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The time since it was written.
    pub age: Duration,
    /// The content.
    pub bytes: Vec<u8>,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    /// The page was written.
    Done,
    /// Another writer has started a term: nothing was written.
    Superseded,
    /// The store does not know this term, because it lost data or has an older state. The writer must start
    /// again.
    Forgotten,
}

impl FencedPages {
    /// The pages `name` at `address`, under names that start with `prefix`. It connects on the first call.
    pub fn new(address: Address, prefix: &str, name: &str) -> Self {
        Self {
            side_connection: SideConnection::new(address),
            // The braces keep all pages on one node of a Cluster.
            name: format!("{prefix}{{books:{name}}}"),
            term: None,
            begin: Script::new(BEGIN),
            write: Script::new(WRITE),
            read: Script::new(READ),
        }
    }

    /// The same with another timeout than two seconds.
    #[must_use]
    pub const fn with_patience(mut self, timeout_max: Duration) -> Self {
        self.side_connection.timeout_max = timeout_max;
        self
    }

    /// Starts a term, which ends that of the previous writer. Returns the last finished term.
    pub async fn begin(&mut self) -> Result<Option<FinishedTerm>, Unanswered> {
        let (term, head) = (self.called("term"), self.called("head"));
        let (term, head): (String, Option<String>) =
            self.side_connection.invoke(self.begin.key(term).key(head)).await?;
        self.term = Some(term);
        Ok(head.and_then(|head| {
            let (term, pages) = head.split_once(' ')?;
            Some(FinishedTerm { term: term.to_owned(), pages: pages.parse().ok()? })
        }))
    }

    /// Reads a page of a finished term, if it still exists.
    pub async fn read(&mut self, finished: &FinishedTerm, page: u32) -> Result<Option<Page>, Unanswered> {
        let call = self.read.key(self.page_of(&finished.term, page));
        let (now, value): (u64, Option<Vec<u8>>) = self.side_connection.invoke(&call).await?;
        Ok(value.and_then(|value| {
            let stamp = value.iter().position(|byte| *byte == b' ')?;
            let written: u64 = core::str::from_utf8(&value[..stamp]).ok()?.parse().ok()?;
            Some(Page { age: Duration::from_micros(now.saturating_sub(written)), bytes: value[stamp + 1..].to_vec() })
        }))
    }

    /// Writes a page of this term that expires after `life`.
    pub async fn write(&mut self, page: u32, bytes: &[u8], life: Duration) -> Result<WriteOutcome, Unanswered> {
        let Some(term) = self.term.clone() else { return Ok(WriteOutcome::Forgotten) };
        let life = u64::try_from(life.as_millis()).unwrap_or(u64::MAX).clamp(1, LIFE_MS_MAX);
        let name = self.page_of(&term, page);
        self.put(&term, &name, bytes, &life.to_string()).await
    }

    /// Declares that this many pages of this term are complete. The next writer will read them. A term may be finished
    /// again after further writes.
    pub async fn finish(&mut self, pages: u32) -> Result<WriteOutcome, Unanswered> {
        let Some(term) = self.term.clone() else { return Ok(WriteOutcome::Forgotten) };
        let name = self.called("head");
        self.put(&term, &name, format!("{term} {pages}").as_bytes(), "").await
    }

    async fn put(&mut self, term: &str, name: &str, bytes: &[u8], life: &str) -> Result<WriteOutcome, Unanswered> {
        let mut call = self.write.key(self.called("term"));
        call.key(name).arg(term).arg(bytes).arg(life);
        Ok(match self.side_connection.invoke::<i64>(&call).await? {
            1 => WriteOutcome::Done,
            0 => WriteOutcome::Superseded,
            _ => WriteOutcome::Forgotten,
        })
    }

    fn called(&self, suffix: &str) -> String {
        format!("{}:{suffix}", self.name)
    }

    fn page_of(&self, term: &str, page: u32) -> String {
        format!("{}:{term}:{page}", self.name)
    }
}

/// The maximum lifetime of a page: one year.
const LIFE_MS_MAX: u64 = 365 * 86_400_000;
