//! The log of engagements, with a bounded number of lines.
//!
//! The first engagement of a rule with a key is written at once. Further ones within the interval are counted, and
//! written as one line at its end, with the last band and the largest amounts. Counting allocates nothing. The number
//! of keys and of lines per interval is bounded; engagements beyond that are counted in a line without a key. Every
//! refusal also goes to the watch.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::RandomState;
use tollgate_core::band::Band;
use tollgate_core::time::{Moment, Span};

use super::engagement::{Act, Engagement};
use super::refusal_history::RefusalHistory;
use crate::mask;
use crate::watch::Feed;

/// The interval after which counts are written.
const INTERVAL: Span = Span::from_secs(30);
/// Keys that are counted separately in one interval.
const KEYS_MAX: usize = 512;
/// Lines that are written immediately in one interval.
const AT_ONCE_MAX: usize = 64;

/// The log of one worker. Workers share nothing, so that a refusal never waits for a lock.
pub(crate) struct EngagementLog {
    feed: Arc<Feed>,
    history: Arc<RefusalHistory>,
    collected: RefCell<Collected>,
}

#[derive(Default)]
struct Collected {
    since: Option<Moment>,
    hasher: RandomState,
    /// Unwritten engagements, by the hash of rule, key and act.
    by_key: HashMap<u64, LogLine, foldhash::fast::RandomState>,
    at_once: usize,
    /// Engagements without room, by act.
    others: [u64; Act::ALL.len()],
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogLine {
    act: Act,
    /// Its key; none for engagements without room.
    who: Option<EngagedKey>,
    reason: &'static str,
    band: Band,
    observed: u64,
    allowed: u64,
    backoff: Span,
    level: u8,
    count: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct EngagedKey {
    rule: Option<String>,
    class: String,
    key: String,
}

impl EngagementLog {
    /// A log that sends refusals to `feed`, for the watch, and to `history`, for operators.
    pub(crate) fn new(feed: Arc<Feed>, history: Arc<RefusalHistory>) -> Self {
        Self { feed, history, collected: RefCell::default() }
    }

    /// Writes an engagement, or counts it.
    pub(crate) fn tell(&self, engagement: &Engagement<'_>, now: Moment) {
        if engagement.act == Act::Refuse {
            self.feed.refused(engagement.class, engagement.key.as_bytes());
        }
        self.history.record(engagement, now);
        let lines = self.collected.borrow_mut().tell(engagement, now);
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
    fn tell(&mut self, engagement: &Engagement<'_>, now: Moment) -> Vec<LogLine> {
        let mut lines = self.take_if_due(now);
        self.since.get_or_insert(now);
        let id = self.hasher.hash_one((engagement.act, engagement.rule, engagement.key.as_bytes()));
        if let Some(line) = self.by_key.get_mut(&id) {
            line.add(engagement);
            return lines;
        }
        if self.by_key.len() >= KEYS_MAX {
            self.others[engagement.act as usize] += 1;
            return lines;
        }
        let mut line = LogLine::new(engagement);
        if self.at_once < AT_ONCE_MAX {
            self.at_once += 1;
            lines.push(line.clone());
            line.count = 0;
        }
        self.by_key.insert(id, line);
        lines
    }

    fn take_if_due(&mut self, now: Moment) -> Vec<LogLine> {
        match self.since {
            Some(since) if now.since(since) >= INTERVAL => self.take(),
            _ => Vec::new(),
        }
    }

    fn take(&mut self) -> Vec<LogLine> {
        self.since = None;
        self.at_once = 0;
        let others = std::mem::take(&mut self.others);
        let others = Act::ALL.into_iter().zip(others).map(|(act, count)| LogLine::of_others(act, count));
        self.by_key.drain().map(|(_, line)| line).chain(others).filter(|line| line.count > 0).collect()
    }
}

impl LogLine {
    fn new(engagement: &Engagement<'_>) -> Self {
        let who = EngagedKey {
            rule: engagement.rule.map(str::to_owned),
            class: engagement.class.to_owned(),
            key: shown(&mask::key(engagement.class, engagement.key.as_bytes())),
        };
        Self {
            act: engagement.act,
            who: Some(who),
            reason: engagement.reason,
            band: engagement.band,
            observed: engagement.observed,
            allowed: engagement.allowed,
            backoff: engagement.backoff,
            level: engagement.level,
            count: 1,
        }
    }

    fn of_others(act: Act, count: u64) -> Self {
        let (who, reason, band) = (None, "too many to name", Band::Normal);
        Self { act, who, reason, band, observed: 0, allowed: 0, backoff: Span::ZERO, level: 0, count }
    }

    fn add(&mut self, engagement: &Engagement<'_>) {
        self.count += 1;
        self.reason = engagement.reason;
        self.band = engagement.band;
        self.allowed = engagement.allowed;
        self.observed = self.observed.max(engagement.observed);
        self.backoff = self.backoff.max(engagement.backoff);
        self.level = self.level.max(engagement.level);
    }

    fn write(&self) {
        let Some(who) = &self.who else {
            return tracing::info!(verdict = self.act.as_str(), reason = self.reason, count = self.count, "{self}");
        };
        tracing::info!(
            verdict = self.act.as_str(),
            rule = who.rule,
            class = who.class,
            key = who.key,
            reason = self.reason,
            band = self.band.as_str(),
            observed = self.observed,
            allowed = self.allowed,
            backoff_ms = self.backoff.as_millis_ceil(),
            escalation_level = self.level,
            count = self.count,
            "{self}"
        );
    }
}

impl fmt::Display for LogLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = self.act.done();
        let Some(EngagedKey { rule, class, key }) = &self.who else {
            return write!(formatter, "{done} others, {} times", self.count);
        };
        write!(formatter, "{done} {class} {key} by {}", rule.as_deref().unwrap_or("the queue"))?;
        if self.count > 1 { write!(formatter, ", {} times", self.count) } else { Ok(()) }
    }
}

/// A key in printable characters: control characters would let a client forge lines.
fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).chars().flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
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
        }
    }

    const START: Moment = Moment::from_millis(5_000);

    #[test]
    fn the_first_engagement_is_written_at_once_and_the_rest_as_one_line_with_the_largest_amounts() {
        let mut collected = Collected::default();
        let first = collected.tell(&engagement(b"192.0.2.1"), START);
        assert_eq!(first.len(), 1);
        assert_eq!(first[0].to_string(), "refused ip/32 192.0.2.1 by login");
        for millis in 1..1000 {
            let (backoff, level) = (Span::from_millis(millis), (millis == 500).into());
            let next = Engagement { backoff, level, observed: 1000 - millis, ..engagement(b"192.0.2.1") };
            assert_eq!(collected.tell(&next, START + Span::from_millis(millis)), []);
        }
        let rest = collected.take_if_due(START + INTERVAL);
        let [line] = &rest[..] else { panic!("one line: {rest:?}") };
        assert_eq!((line.count, line.backoff.as_millis_ceil(), line.level, line.observed), (999, 1500, 1, 999));
        assert_eq!(line.to_string(), "refused ip/32 192.0.2.1 by login, 999 times");
        assert_eq!(collected.take_if_due(START + INTERVAL.times(2)), []);
    }

    #[test]
    fn a_single_engagement_is_written_once() {
        let mut collected = Collected::default();
        assert_eq!(collected.tell(&engagement(b"192.0.2.1"), START).len(), 1);
        assert_eq!(collected.take_if_due(START + INTERVAL), []);
        assert_eq!(collected.tell(&engagement(b"192.0.2.1"), START + INTERVAL).len(), 1, "and again, later");
    }

    #[test]
    fn acts_rules_and_keys_are_told_apart() {
        let mut collected = Collected::default();
        let held = Engagement { act: Act::Hold, ..engagement(b"a") };
        let queue = Engagement { rule: None, ..engagement(b"a") };
        for one in [engagement(b"a"), engagement(b"b"), held, queue] {
            assert_eq!(collected.tell(&one, START).len(), 1, "{one:?}");
        }
    }

    #[test]
    fn spraying_keys_neither_grows_nor_floods_nor_loses_anything() {
        let (mut collected, mut told, mut lines) = (Collected::default(), 0, 0);
        let mut hear = |heard: Vec<LogLine>| {
            lines += heard.len();
            told += heard.iter().map(|line| line.count).sum::<u64>();
        };
        for number in 0..10_000u32 {
            for _ in 0..2 {
                hear(collected.tell(&engagement(number.to_string().as_bytes()), START));
            }
            assert!(collected.by_key.len() <= KEYS_MAX);
        }
        hear(collected.take());
        assert_eq!(told, 20_000);
        assert!(lines <= AT_ONCE_MAX + KEYS_MAX + Act::ALL.len(), "{lines} lines");
    }

    #[test]
    fn a_key_cannot_write_the_log() {
        let lines = Collected::default().tell(&engagement(b"a\r\nINFO fake \x1b[31m\xff"), START);
        assert_eq!(lines[0].who.as_ref().unwrap().key, "a\\r\\nINFO fake \\u{1b}[31m\u{fffd}");
    }
}
