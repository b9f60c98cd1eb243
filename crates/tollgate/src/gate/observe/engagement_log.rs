//! The log of engagements (requests that a rule or the queue held or refused, or would have), with a bounded number of
//! lines.
//!
//! The first engagement of a rule with a key is written at once. Further ones within the interval are counted, and
//! written as one line at its end, with the last band and the largest amounts. Counting allocates nothing. The number
//! of keys and of lines per interval is bounded; engagements beyond that are counted in a line without a key.
//!
//! Every refusal also goes to the watch, and to the history of refusals that operators can search.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::RandomState;
use tollgate_core::time::{Moment, Span};

use super::engagement::{Engagement, EngagementSum};
use super::refusal_history::RefusalHistory;
use crate::mask;
use crate::watch::Feed;
use tollgate_core::decision::Act;

/// The interval after which counts are written.
const INTERVAL: Span = Span::from_secs(30);
/// The number of keys that are counted separately in one interval.
const KEYS_MAX: usize = 512;
/// The number of lines that are written immediately in one interval.
const AT_ONCE_MAX: usize = 64;

/// The log of one thread. Each has its own, so that a refusal never waits for a lock.
pub(crate) struct EngagementLog {
    feed: Arc<Feed>,
    history: Arc<RefusalHistory>,
    collected: RefCell<Collected>,
}

/// The engagements of the current interval.
#[derive(Default)]
struct Collected {
    /// The start of the interval; none before its first engagement.
    since: Option<Moment>,
    hasher: RandomState,
    /// Engagements that are not written yet, by the hash of act, rule and key. A count of 0 means that all are written.
    by_key: HashMap<u64, EngagementSum, foldhash::fast::RandomState>,
    /// The number of lines that were written immediately.
    at_once: usize,
    /// The number of engagements for which `by_key` had no room, by act.
    others: [u64; Act::ALL.len()],
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LogLine {
    Key(EngagementSum),
    /// The number of engagements without room.
    Others(Act, u64),
}

impl EngagementLog {
    /// A log that also passes refusals to `feed`, for the watch, and to `history`, for operators.
    pub(crate) fn new(feed: Arc<Feed>, history: Arc<RefusalHistory>) -> Self {
        Self { feed, history, collected: RefCell::default() }
    }

    /// Writes an engagement, or counts it.
    pub(crate) fn record(&self, engagement: &Engagement<'_>, now: Moment) {
        if engagement.act == Act::Refuse {
            self.feed.refused(engagement.class, engagement.key.as_bytes());
        }
        self.history.record(engagement, now);
        let lines = self.collected.borrow_mut().record(engagement, now);
        lines.iter().for_each(LogLine::write);
    }

    /// Writes the counts if the interval has ended.
    pub(crate) fn flush(&self, now: Moment) {
        let lines = self.collected.borrow_mut().take_if_due(now);
        lines.iter().for_each(LogLine::write);
    }
}

/// Counts are written before the worker ends.
impl Drop for EngagementLog {
    fn drop(&mut self) {
        let lines = self.collected.get_mut().take();
        lines.iter().for_each(LogLine::write);
    }
}

impl Collected {
    /// Counts an engagement. Returns the lines to write now.
    fn record(&mut self, engagement: &Engagement<'_>, now: Moment) -> Vec<LogLine> {
        let mut lines = self.take_if_due(now);
        self.since.get_or_insert(now);
        let id = self.hasher.hash_one((engagement.act, engagement.rule, engagement.key.as_bytes()));
        if let Some(sum) = self.by_key.get_mut(&id) {
            sum.add(engagement);
            return lines;
        }
        if self.by_key.len() >= KEYS_MAX {
            self.others[engagement.act as usize] += 1;
            return lines;
        }
        let mut sum = EngagementSum::of(engagement);
        if self.at_once < AT_ONCE_MAX {
            self.at_once += 1;
            lines.push(LogLine::Key(sum.clone()));
            sum.count = 0;
        }
        self.by_key.insert(id, sum);
        lines
    }

    fn take_if_due(&mut self, now: Moment) -> Vec<LogLine> {
        match self.since {
            Some(since) if now.since(since) >= INTERVAL => self.take(),
            _ => Vec::new(),
        }
    }

    /// Ends the interval, and returns a line for each count.
    fn take(&mut self) -> Vec<LogLine> {
        self.since = None;
        self.at_once = 0;
        let sums = self.by_key.drain().map(|(_, sum)| sum).filter(|sum| sum.count > 0).map(LogLine::Key);
        let others = Act::ALL.into_iter().zip(std::mem::take(&mut self.others)).filter(|(_, count)| *count > 0);
        sums.chain(others.map(|(act, count)| LogLine::Others(act, count))).collect()
    }
}

impl LogLine {
    fn write(&self) {
        match self {
            Self::Others(act, count) => {
                tracing::info!(verdict = act.as_str(), reason = "too many to name", count, "{self}");
            }
            Self::Key(sum) => tracing::info!(
                verdict = sum.act.as_str(),
                rule = sum.rule.as_deref(),
                class = &*sum.class,
                key = shown(sum),
                reason = sum.reason,
                band = sum.band.as_str(),
                observed = sum.observed,
                allowed = sum.allowed,
                backoff_ms = sum.backoff.as_millis_ceil(),
                escalation_level = sum.level,
                position = sum.standing.map(|standing| standing.position),
                wait_ms = sum.standing.map(|standing| standing.wait.as_millis_ceil()),
                count = sum.count,
                "{self}"
            ),
        }
    }
}

impl fmt::Display for LogLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sum = match self {
            Self::Others(act, count) => return write!(formatter, "{} others, {count} times", DONE[*act as usize]),
            Self::Key(sum) => sum,
        };
        let (rule, count) = (sum.rule.as_deref().unwrap_or("the queue"), sum.count);
        write!(formatter, "{} {} {} by {rule}", DONE[sum.act as usize], sum.class, shown(sum))?;
        if count > 1 { write!(formatter, ", {count} times") } else { Ok(()) }
    }
}

/// The acts in a message, in the order of [`Act`].
const DONE: [&str; Act::ALL.len()] = ["held", "refused", "would have held", "would have refused"];

/// A key in printable characters, masked if it is secret: control characters would let a client forge lines.
fn shown(sum: &EngagementSum) -> String {
    let key = mask::key(&sum.class, &sum.key);
    String::from_utf8_lossy(&key).chars().flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::band::Band;
    use tollgate_core::class::KeySink;
    use tollgate_gatekeeper::names::Name;

    fn engagement(key: &[u8]) -> Engagement<'static> {
        let name = Name::of(|writer| writer.write(key));
        Engagement {
            act: Act::Refuse,
            client: None,
            rule: Some("login"),
            class: "ip/32",
            key: name,
            reason: "over-limit",
            band: Band::Normal,
            observed: 11,
            allowed: 10,
            backoff: Span::from_millis(1500),
            level: 0,
            standing: None,
        }
    }

    const START: Moment = Moment::from_millis(5_000);

    #[test]
    fn the_first_engagement_is_written_at_once_and_the_rest_as_one_line_with_the_largest_amounts() {
        let mut collected = Collected::default();
        let first = collected.record(&engagement(b"192.0.2.1"), START);
        assert_eq!(first.len(), 1);
        assert_eq!(first[0].to_string(), "refused ip/32 192.0.2.1 by login");
        for millis in 1..1000 {
            let (backoff, level) = (Span::from_millis(millis), (millis == 500).into());
            let next = Engagement { backoff, level, observed: 1000 - millis, ..engagement(b"192.0.2.1") };
            assert_eq!(collected.record(&next, START + Span::from_millis(millis)), []);
        }
        let rest = collected.take_if_due(START + INTERVAL);
        let [LogLine::Key(sum)] = &rest[..] else { panic!("one line: {rest:?}") };
        assert_eq!((sum.count, sum.backoff.as_millis_ceil(), sum.level, sum.observed), (999, 1500, 1, 999));
        assert_eq!(rest[0].to_string(), "refused ip/32 192.0.2.1 by login, 999 times");
        assert_eq!(collected.take_if_due(START + INTERVAL.times(2)), []);
    }

    #[test]
    fn a_single_engagement_is_written_once() {
        let mut collected = Collected::default();
        assert_eq!(collected.record(&engagement(b"192.0.2.1"), START).len(), 1);
        assert_eq!(collected.take_if_due(START + INTERVAL), []);
        assert_eq!(collected.record(&engagement(b"192.0.2.1"), START + INTERVAL).len(), 1, "and again, later");
    }

    #[test]
    fn acts_rules_and_keys_are_counted_separately() {
        let mut collected = Collected::default();
        let held = Engagement { act: Act::Hold, ..engagement(b"a") };
        let queue = Engagement { rule: None, ..engagement(b"a") };
        for one in [engagement(b"a"), engagement(b"b"), held, queue] {
            assert_eq!(collected.record(&one, START).len(), 1, "{one:?}");
        }
    }

    #[test]
    fn spraying_keys_neither_grows_nor_floods_nor_loses_anything() {
        let (mut collected, mut counted, mut lines) = (Collected::default(), 0, 0);
        let mut add = |written: Vec<LogLine>| {
            lines += written.len();
            let count = |line: &LogLine| match line {
                LogLine::Key(sum) => sum.count,
                LogLine::Others(_, count) => *count,
            };
            counted += written.iter().map(count).sum::<u64>();
        };
        for number in 0..10_000u32 {
            for _ in 0..2 {
                add(collected.record(&engagement(number.to_string().as_bytes()), START));
            }
            assert!(collected.by_key.len() <= KEYS_MAX);
        }
        add(collected.take());
        assert_eq!(counted, 20_000);
        assert!(lines <= AT_ONCE_MAX + KEYS_MAX + Act::ALL.len(), "{lines} lines");
    }

    #[test]
    fn a_key_cannot_write_the_log() {
        let lines = Collected::default().record(&engagement(b"a\r\nINFO fake \x1b[31m\xff"), START);
        assert_eq!(lines[0].to_string(), "refused ip/32 a\\r\\nINFO fake \\u{1b}[31m\u{fffd} by login");
    }
}
