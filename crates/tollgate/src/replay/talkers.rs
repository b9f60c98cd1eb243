//! The keys with the highest cost in a replayed log, for several classes at once: addresses, networks, user agents and
//! paths. The report shows them, and the suggested rule is computed from those of clients.

use tollgate_core::class::Class;
use tollgate_core::time::{Moment, Span};

use super::counts::Done;
use super::heavy_hitters::HeavyHitters;
use super::key_name::{KeyName, key_hash};
use super::recorded_request::RecordedRequest;

/// The classes of the lists: addresses and networks from the narrowest to the widest, then the others.
pub(super) const CLASSES: [&str; 5] = ["ip/32", "ip/24", "ip/16", "user-agent", "path"];
/// The number of sets in each list, of eight keys each ([`HeavyHitters`]). A key with more than an eighth of the cost
/// of its set is never missed. One with more than a few thousandths of the total cost is very rarely missed.
const SETS: usize = 64;
/// The length of the minutes in which peaks and active periods are counted. They begin at multiples of it.
pub(super) const PEAK_SPAN: Span = Span::from_secs(60);

/// The heaviest keys of each class.
pub(super) struct Talkers {
    lists: [(Class, HeavyHitters<Spending>); CLASSES.len()],
}

/// The requests of one key and their cost, since the key entered the list. A key that entered late, or again, has had
/// more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spending {
    /// The number of its requests.
    pub(super) requests: u64,
    /// Their cost.
    pub(super) cost: Span,
    /// The highest cost of its requests in one minute, without refused ones.
    pub(super) peak_cost: Span,
    /// The highest number of its requests in one minute, without refused ones.
    pub(super) peak_requests: u64,
    /// The number of its requests that were held or refused, or would have been in observe mode.
    pub(super) throttled: u64,
    /// The number of its active periods. A period ends after [`CALM_MINUTES`] without a request.
    pub(super) stretches: u64,
    /// The total duration of these periods, in minutes, with the first and the last minute of each.
    pub(super) stretch_minutes: u64,
    /// The minute of its latest request, counted from 1; 0 before the first request.
    minute: u64,
    /// The cost of its requests in that minute, without refused ones.
    minute_cost: Span,
    /// Their number.
    minute_requests: u64,
}

/// The number of minutes after the latest request at which an active period ends: a request that is more minutes later
/// begins another one.
const CALM_MINUTES: u64 = 5;

impl Talkers {
    pub(super) fn new() -> Self {
        let list = |class| (Class::parse(class).expect("a known class"), HeavyHitters::new(SETS));
        Self { lists: CLASSES.map(list) }
    }

    /// Counts a request in each class of which it has a key. `done` is the effect of the decision on it.
    #[inline]
    pub(super) fn add(&mut self, request: &RecordedRequest<'_>, cost: Span, done: &Done, now: Moment) {
        // In a log without costs, every request weighs the same.
        let weight = cost.as_nanos().max(1);
        for (class, list) in &mut self.lists {
            if let Some(hash) = key_hash(class, request) {
                list.add(hash, weight, |name| name.rewrite(class, request)).add(cost, done, now);
            }
        }
    }

    /// The heaviest keys of the class with this index in [`CLASSES`], the heaviest first.
    pub(super) fn heaviest(&self, class: usize) -> Vec<(&KeyName, &Spending)> {
        self.lists[class].1.heaviest().into_iter().map(|(_, hitter)| (&hitter.name, &hitter.fact)).collect()
    }
}

impl Spending {
    fn add(&mut self, cost: Span, done: &Done, now: Moment) {
        self.requests += 1;
        self.cost = self.cost + cost;
        self.throttled += u64::from(!done.is_nothing());
        let minute = 1 + now.as_nanos() / PEAK_SPAN.as_nanos();
        if minute != self.minute {
            self.begin_minute(minute);
        }
        if done.refused == 0 {
            self.minute_cost = self.minute_cost + cost;
            self.minute_requests += 1;
            self.peak_cost = self.peak_cost.max(self.minute_cost);
            self.peak_requests = self.peak_requests.max(self.minute_requests);
        }
    }

    fn begin_minute(&mut self, minute: u64) {
        let passed = minute.saturating_sub(self.minute);
        if self.minute == 0 || passed > CALM_MINUTES {
            self.stretches += 1;
            self.stretch_minutes += 1;
        } else {
            self.stretch_minutes += passed;
        }
        (self.minute, self.minute_cost, self.minute_requests) = (minute, Span::ZERO, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::recorded_request::with_recorded;
    use super::*;

    #[test]
    fn a_talker_is_found_in_every_class_with_its_busiest_minute() {
        let mut talkers = Talkers::new();
        for second in 0..600 {
            let client = second % 5;
            let line = format!(
                r#"{{"at_ms": 0, "client": "203.0.113.{client}", "path": "/p/{second}", "headers": {{"user-agent": "bot"}}}}"#
            );
            let cost = Span::from_millis(if client == 3 { 500 } else { 1 });
            let done = Done { refused: u64::from(second >= 300), ..Done::default() };
            with_recorded(&line, |request| talkers.add(&request, cost, &done, Moment::from_millis(second * 1000)));
        }
        let (name, spending) = talkers.heaviest(0)[0];
        assert_eq!(name.to_string(), "203.0.113.3");
        assert_eq!(
            (spending.requests, spending.cost, spending.peak_cost),
            (120, Span::from_secs(60), Span::from_secs(6))
        );
        assert_eq!((spending.throttled, spending.stretches, spending.stretch_minutes), (60, 1, 10));
        let heaviest =
            |place: usize| talkers.heaviest(place).iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
        assert_eq!(heaviest(1), ["203.0.113.0/24"]);
        assert_eq!(heaviest(3), ["bot"]);
        assert_eq!(heaviest(4), ["/p/:id"]);
        assert_eq!(talkers.heaviest(4)[0].1.peak_requests, 60);
    }
}
