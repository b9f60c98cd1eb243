//! The log of engagements: who was held or refused, by which rule, and why. One line each, but under a storm not a million of them.
//!
//! The first engagement of a rule with a key is written at once. Those that follow within the interval are counted, and written
//! as one line when it is over, with the worst of them. The number of keys that are counted at a time is bounded; when it is
//! reached everything is written and counting begins anew.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// How long engagements of one key are collected.
const INTERVAL_MS: u64 = 30_000;
/// How many keys are collected for at a time.
const KEYS_MAX: usize = 512;
/// The most of a key that is shown.
const KEY_CHARS_MAX: usize = 120;

/// One engagement, as it is told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Engagement<'a> {
    /// `hold` or `refuse`.
    pub(crate) verdict: &'static str,
    /// The rule.
    pub(crate) rule: &'a str,
    /// How callers are told apart by it.
    pub(crate) class: &'a str,
    /// The caller.
    pub(crate) key: &'a [u8],
    /// Why.
    pub(crate) reason: &'static str,
    /// The band of load.
    pub(crate) band: &'static str,
    /// What was left of the limit.
    pub(crate) remaining: u64,
    /// How long the caller has to wait.
    pub(crate) wait: Duration,
    /// The level of escalation.
    pub(crate) level: u8,
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    verdict: &'static str,
    rule: String,
    class: String,
    key: String,
    reason: &'static str,
    band: &'static str,
    remaining: u64,
    wait_ms_max: u64,
    level_max: u8,
    count: u64,
}

/// Collects the engagements of one worker: each writes its own lines, so that nobody waits for a lock to refuse somebody.
#[derive(Debug, Default)]
pub(crate) struct Engagements {
    collected: RefCell<Collected>,
}

#[derive(Debug, Default)]
struct Collected {
    since_ms: Option<u64>,
    /// What followed the line that was written at once; a count of zero: nothing yet.
    by_key: HashMap<(String, String, &'static str), Line>,
}

impl Engagements {
    /// Tells of an engagement: now, or with those like it.
    pub(crate) fn tell(&self, engagement: &Engagement<'_>, now_ms: u64) {
        let lines = self.collected.borrow_mut().tell(engagement, now_ms);
        lines.iter().for_each(Line::write);
    }

    /// Writes what has been collected for long enough.
    pub(crate) fn flush(&self, now_ms: u64) {
        let lines = self.collected.borrow_mut().flush_if_due(now_ms);
        lines.iter().for_each(Line::write);
    }
}

impl Collected {
    fn tell(&mut self, engagement: &Engagement<'_>, now_ms: u64) -> Vec<Line> {
        let mut lines = self.flush_if_due(now_ms);
        let key = (engagement.rule.to_owned(), shown(engagement.key), engagement.verdict);
        if let Some(line) = self.by_key.get_mut(&key) {
            line.add(engagement);
            return lines;
        }
        if self.by_key.len() >= KEYS_MAX {
            lines.extend(self.take());
        }
        self.since_ms.get_or_insert(now_ms);
        let line = Line::new(engagement, &key.1);
        self.by_key.insert(key, Line { count: 0, ..line.clone() });
        lines.push(line);
        lines
    }

    fn flush_if_due(&mut self, now_ms: u64) -> Vec<Line> {
        match self.since_ms {
            Some(since_ms) if now_ms.saturating_sub(since_ms) >= INTERVAL_MS => self.take(),
            _ => Vec::new(),
        }
    }

    fn take(&mut self) -> Vec<Line> {
        self.since_ms = None;
        self.by_key.drain().map(|(_, line)| line).filter(|line| line.count > 0).collect()
    }
}

impl Line {
    fn new(engagement: &Engagement<'_>, key: &str) -> Self {
        Self {
            verdict: engagement.verdict,
            rule: engagement.rule.to_owned(),
            class: engagement.class.to_owned(),
            key: key.to_owned(),
            reason: engagement.reason,
            band: engagement.band,
            remaining: engagement.remaining,
            wait_ms_max: millis(engagement.wait),
            level_max: engagement.level,
            count: 1,
        }
    }

    fn add(&mut self, engagement: &Engagement<'_>) {
        self.count += 1;
        self.reason = engagement.reason;
        self.band = engagement.band;
        self.remaining = self.remaining.min(engagement.remaining);
        self.wait_ms_max = self.wait_ms_max.max(millis(engagement.wait));
        self.level_max = self.level_max.max(engagement.level);
    }

    fn write(&self) {
        tracing::info!(
            verdict = self.verdict,
            rule = self.rule,
            class = self.class,
            key = self.key,
            reason = self.reason,
            band = self.band,
            remaining = self.remaining,
            wait_ms = self.wait_ms_max,
            level = self.level_max,
            count = self.count,
            "{}",
            self
        );
    }
}

impl fmt::Display for Line {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = if self.verdict == "hold" { "held" } else { "refused" };
        write!(formatter, "{done} {} {} by {}", self.class, self.key, self.rule)?;
        if self.count > 1 { write!(formatter, ", {} times", self.count) } else { Ok(()) }
    }
}

fn millis(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
}

/// A key as it may be shown: control characters would let a caller write the log.
fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).chars().take(KEY_CHARS_MAX).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Engagement<'static> = Engagement {
        verdict: "refuse",
        rule: "login",
        class: "ip/32",
        key: b"192.0.2.1",
        reason: "over-limit",
        band: "normal",
        remaining: 0,
        wait: Duration::from_millis(1500),
        level: 0,
    };

    #[test]
    fn the_first_is_told_at_once_and_the_rest_together() {
        let (mut collected, start) = (Collected::default(), 5000);
        let first = collected.tell(&FIRST, start);
        assert_eq!(first.len(), 1);
        assert_eq!(first[0].to_string(), "refused ip/32 192.0.2.1 by login");
        for millis in 1..1000 {
            let worse = Engagement { wait: Duration::from_millis(millis), level: 3, ..FIRST };
            assert_eq!(collected.tell(&worse, start + millis), []);
        }
        let rest = collected.flush_if_due(start + INTERVAL_MS);
        assert_eq!((rest.len(), rest[0].count, rest[0].wait_ms_max, rest[0].level_max), (1, 999, 1500, 3));
        assert_eq!(rest[0].to_string(), "refused ip/32 192.0.2.1 by login, 999 times");
        assert_eq!(collected.flush_if_due(start + INTERVAL_MS * 2), []);
    }

    #[test]
    fn one_that_stays_alone_is_told_once() {
        let (mut collected, start) = (Collected::default(), 5000);
        assert_eq!(collected.tell(&FIRST, start).len(), 1);
        assert_eq!(collected.flush_if_due(start + INTERVAL_MS), []);
    }

    #[test]
    fn spraying_keys_neither_grows_nor_loses_anything() {
        let (mut collected, start) = (Collected::default(), 5000);
        let mut told = 0;
        for number in 0..10_000u32 {
            let key = number.to_string();
            for _ in 0..2 {
                let lines = collected.tell(&Engagement { key: key.as_bytes(), ..FIRST }, start);
                told += lines.iter().map(|line| line.count).sum::<u64>();
            }
            assert!(collected.by_key.len() <= KEYS_MAX);
        }
        told += collected.take().iter().map(|line| line.count).sum::<u64>();
        assert_eq!(told, 20_000);
    }

    #[test]
    fn a_key_cannot_write_the_log() {
        let lines = Collected::default().tell(&Engagement { key: b"a\r\nINFO fake \x1b[31m\xff", ..FIRST }, 0);
        assert_eq!(lines[0].key, "a\\r\\nINFO fake \\u{1b}[31m\u{fffd}");
        let long = Collected::default().tell(&Engagement { key: &[b'a'; 1000], ..FIRST }, 0);
        assert_eq!(long[0].key.len(), KEY_CHARS_MAX);
    }
}
