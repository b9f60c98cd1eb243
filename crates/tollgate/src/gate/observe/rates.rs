//! The recent use of a key (an address, network or user agent): averages over about ten seconds, for
//! [`super::spenders`].
//!
//! The averages are computed from sums that decay exponentially. Divided by a fixed time, such a sum would be too small
//! until it covers that time. So it is divided by the time that it can cover so far, and is correct from the first
//! second on.

use tollgate_core::decision::{Act, ActCounts};
use tollgate_core::time::{Moment, Span};

/// The time constant of the decay, in seconds.
const MEMORY_SECS: f64 = 10.0;
/// The time after which an idle key is removed.
const IDLE: Span = Span::from_secs(3600);

/// An amount of use: since the last call of [`Rates::add`], or in total.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// The number of requests, refused ones included.
    pub(crate) requests: u64,
    /// How often they were held or refused, or would have been.
    pub(crate) acts: ActCounts,
    /// The cost of the requests, in CPU time.
    pub(crate) toll_ns: u64,
    /// The time that they waited at the gate.
    pub(crate) wait_ns: u64,
}

/// The use of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    /// Totals since the key was first seen.
    pub(crate) total: Spent,
    /// The time of the first and of the last request.
    pub(crate) first: Option<Moment>,
    pub(crate) last: Moment,
    /// The time to which the sums below have decayed.
    at: Moment,
    /// CPU-seconds.
    toll: f64,
    /// Requests.
    count: f64,
    /// Seconds of waiting.
    wait: f64,
    /// Requests that were not refused.
    served: f64,
}

impl Spent {
    pub(crate) fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.acts.iter_mut().zip(other.acts).for_each(|(sum, count)| *sum += count);
        self.toll_ns = self.toll_ns.saturating_add(other.toll_ns);
        self.wait_ns = self.wait_ns.saturating_add(other.wait_ns);
    }
}

impl Rates {
    /// Adds the use of the second before `now`.
    pub(crate) fn add(&mut self, spent: Spent, now: Moment) {
        *self = self.at(now);
        self.first.get_or_insert(now.before(Span::from_secs(1)));
        self.last = now;
        self.total.add(spent);
        self.toll += spent.toll_ns as f64 / 1e9;
        self.count += spent.requests as f64;
        self.wait += spent.wait_ns as f64 / 1e9;
        self.served += spent.requests.saturating_sub(spent.acts[Act::Refuse as usize]) as f64;
    }

    /// The rates as of `now`.
    pub(crate) fn at(&self, now: Moment) -> Self {
        let keep = (-secs(now.since(self.at)) / MEMORY_SECS).exp();
        let mut rates = *self;
        rates.at = self.at.max(now);
        for sum in [&mut rates.toll, &mut rates.count, &mut rates.wait, &mut rates.served] {
            *sum *= keep;
        }
        rates
    }

    /// The use in CPU-seconds per second.
    pub(crate) fn cores(&self) -> f64 {
        self.toll / self.memory()
    }

    /// Requests per second.
    pub(crate) fn requests_per_sec(&self) -> f64 {
        self.count / self.memory()
    }

    /// The average wait of a request that was not refused, in seconds.
    pub(crate) fn wait_secs(&self) -> f64 {
        if self.served > 0.0 { self.wait / self.served } else { 0.0 }
    }

    /// The order in which keys are shown: by use, then by requests, then by the last request.
    pub(crate) fn order(&self) -> (u64, u64, Moment) {
        // The order of numbers that are not negative is the order of their bits.
        (self.cores().to_bits(), self.requests_per_sec().to_bits(), self.last)
    }

    /// The keys with the lowest weight are removed when there are too many: the use, and a little for each request.
    pub(crate) fn weight(&self) -> f64 {
        self.toll + 1e-6 * self.count
    }

    pub(crate) fn is_idle(&self, now: Moment) -> bool {
        now.since(self.last) >= IDLE
    }

    /// The time that the sums cover, in seconds: 1 after the first second, and at most about [`MEMORY_SECS`].
    fn memory(&self) -> f64 {
        let seen = self.first.map_or(0.0, |first| secs(self.at.since(first)));
        // The uses of all seconds so far, each decayed, relative to the use of one second.
        let kept = |secs: f64| 1.0 - (-secs / MEMORY_SECS).exp();
        (kept(seen) / kept(1.0)).max(0.5)
    }
}

fn secs(span: Span) -> f64 {
    span.as_nanos() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPENT: Spent = Spent { requests: 10, acts: [0; Act::ALL.len()], toll_ns: 500_000_000, wait_ns: 100_000_000 };

    #[test]
    fn an_average_is_right_from_the_first_second_and_follows() {
        let mut rates = Rates::default();
        for second in 1..=60 {
            let now = Moment::from_millis(second * 1000);
            rates.add(SPENT, now);
            assert!((rates.cores() - 0.5).abs() < 0.01, "{second}: {}", rates.cores());
            assert!((rates.requests_per_sec() - 10.0).abs() < 0.1);
            assert!((rates.wait_secs() - 0.01).abs() < 1e-9);
        }
        let later = rates.at(Moment::from_millis(90_000));
        assert!(later.cores() < 0.03, "{}", later.cores());
        assert_eq!(later.total.requests, 600);
    }

    #[test]
    fn keys_are_ordered_by_their_shown_use_however_long_they_have_been_active() {
        let (mut old, mut new, now) = (Rates::default(), Rates::default(), Moment::from_millis(60_000));
        (1..=60).for_each(|second| old.add(SPENT, Moment::from_millis(second * 1000)));
        new.add(Spent { toll_ns: SPENT.toll_ns + SPENT.toll_ns / 10, ..SPENT }, now);
        assert!(new.cores() > old.cores() && new.order() > old.order());
        assert!(new.weight() < old.weight(), "it is missed less");
    }

    #[test]
    fn keys_without_use_come_last_in_the_order_of_requests() {
        let rates = |spent: Spent| {
            let mut rates = Rates::default();
            rates.add(spent, Moment::from_millis(1000));
            rates
        };
        let asks = |requests| rates(Spent { requests, acts: [0, requests, 0, 0], ..Spent::default() });
        assert!(rates(SPENT).order() > asks(1_000_000).order());
        assert!(asks(3).order() > asks(2).order() && asks(2).order() > Rates::default().order());
    }
}
