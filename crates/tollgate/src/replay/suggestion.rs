//! Suggests a rule that limits outliers and does not affect other clients, for the end of the summary. It is a budget,
//! or a rate if the recording has no costs.
//!
//! Clients are compared by their busiest minute. If a few of them spend several times as much as all others, the
//! suggested budget is in that gap, with a margin for the others. A client whose busiest minute is `p` can have spent
//! at most `T + 2` times `p` in any `T` minutes. A budget of `p` per minute with a burst of `2p` allows that, so
//! ordinary clients are never in debt. Clients that are already held or refused need no further rule. The narrowest
//! class with such a gap is used, unless the outliers of a wider one have spent much more. User agents are last, and
//! only those of robots, because many people use the same browser. A limit that would affect nobody is not suggested.

use serde::Serialize;

use super::key_name::KeyName;
use super::talkers::{CLASSES, PEAK_SPAN, Spending, Talkers};

/// The maximum number of outliers. A larger group is not exceptional.
const OUTLIERS_MAX: usize = 8;
/// The minimum ratio between the busiest minutes of the lightest outlier and the heaviest other client.
const GAP_MIN: f64 = 3.0;
/// The maximum margin: the ratio between the limit and the need of ordinary clients, if the gap allows it.
const MARGIN_MAX: u64 = 4;
/// The minimum share of all outliers together in the total.
const SHARE_MIN: f64 = 0.05;
/// Outliers with this share of the total explain the load: no wider class is looked at. A wider one could name a
/// network of thousands of ordinary clients.
const EXPLAINS_MIN: f64 = 0.2;
/// Otherwise, outliers of a wider class must have spent this much more than those of a narrower one.
const WIDER_MIN: f64 = 1.5;
/// The minimum cost of an outlier in its busiest minute.
const PEAK_COST_MS_MIN: u64 = 3000;
/// The same as a number of requests, for a recording without costs.
const PEAK_REQUESTS_MIN: u64 = 60;
/// An ordinary client with less than this cost in its busiest minute counts as one with this cost: smaller differences
/// are not significant.
const ORDINARY_COST_MS_MIN: u64 = 1000;
/// The same as a number of requests.
const ORDINARY_REQUESTS_MIN: u64 = 20;

/// A suggested rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Suggestion {
    /// The rule in TOML, for the configuration.
    pub(super) toml: String,
    /// The class of the rule.
    pub(super) class: &'static str,
    /// Whether it is a budget; otherwise it is a rate.
    pub(super) budget: bool,
    /// The outliers, the heaviest first.
    pub(super) outliers: Vec<Outlier>,
    /// The busiest minute of all other clients: milliseconds of cost, or requests.
    pub(super) others_busiest_minute: u64,
    /// The limit of the rule.
    #[serde(skip)]
    pub(super) limit: SuggestedLimit,
}

/// A client that stands out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Outlier {
    /// Its name.
    pub(super) key: String,
    /// Its busiest minute: milliseconds of cost, or requests.
    pub(super) busiest_minute: u64,
    /// Its total: milliseconds of cost, or requests.
    pub(super) spent: u64,
    /// Its maximum with the suggested limit: milliseconds of cost, or requests.
    pub(super) allowed: u64,
}

/// The limit of a suggested rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SuggestedLimit {
    /// CPU-seconds per second, and a burst of CPU-seconds.
    Budget {
        /// Hundredths of a core.
        cores_hundredths: u64,
        /// Seconds.
        burst_s: u64,
    },
    /// A rate, if the recording has no costs.
    Rate {
        /// Requests per minute.
        per_minute: u64,
        /// Requests.
        burst: u64,
    },
}

/// Suggests a limit if any client stands out. `has_costs` is whether the recording has costs; `total` is their sum in
/// milliseconds, or else the number of all requests. `cores` is the number of cores of the backend, if it is known.
pub(super) fn suggest(talkers: &Talkers, total: u64, has_costs: bool, cores: Option<f64>) -> Option<Suggestion> {
    // The last class is the path, which is not a client.
    let suggestions: Vec<_> = (0..CLASSES.len() - 1)
        .filter_map(|index| suggest_for(CLASSES[index], &talkers.heaviest(index), total, has_costs))
        .filter(|suggestion| suggestion.can_bind(cores))
        .collect();
    // A crawler that is spread over a network has many light addresses, so that a polite client with one address stands
    // out among addresses. A wide class, on the other hand, may have many ordinary clients in one key.
    let explains = |suggestion: &&Suggestion| suggestion.spent() as f64 >= total as f64 * EXPLAINS_MIN;
    if let Some(narrowest) = suggestions.iter().find(explains) {
        return Some(narrowest.clone());
    }
    let more = |best: Suggestion, next: Suggestion| {
        if next.spent() as f64 > best.spent() as f64 * WIDER_MIN { next } else { best }
    };
    suggestions.into_iter().reduce(more)
}

/// The suggestion for one class, given its heaviest keys. `amounts` are two values of a key: that of its busiest minute
/// and its total, both in milliseconds of cost, or in requests.
fn suggest_for(
    class: &'static str,
    heaviest: &[(&KeyName, &Spending)],
    total: u64,
    has_costs: bool,
) -> Option<Suggestion> {
    let amounts = |spending: &Spending| match has_costs {
        true => (spending.peak_cost.as_millis_ceil(), spending.cost.as_millis_ceil()),
        false => (spending.peak_requests, spending.requests),
    };
    let mut callers: Vec<_> = heaviest
        .iter()
        .filter(|(name, spending)| spending.throttled == 0 && (class != "user-agent" || is_robot(&name.to_text())))
        .map(|(name, spending)| (*name, *spending, amounts(spending)))
        .collect();
    callers.sort_by_key(|(_, _, (peak, _))| std::cmp::Reverse(*peak));
    let (ordinary_min, peak_min) = match has_costs {
        true => (ORDINARY_COST_MS_MIN, PEAK_COST_MS_MIN),
        false => (ORDINARY_REQUESTS_MIN, PEAK_REQUESTS_MIN),
    };
    let gap = |index: usize| {
        let next_peak = callers.get(index + 1).map_or(0, |caller| caller.2.0).max(ordinary_min);
        callers[index].2.0 as f64 / next_peak as f64
    };
    // The first gap, because the clients behind it may be heavy and still leave enough for others.
    let last = (0..callers.len().min(OUTLIERS_MAX)).find(|index| gap(*index) >= GAP_MIN)?;
    let (outliers, others) = callers.split_at(last + 1);
    let spent = outliers.iter().fold(0u64, |spent, caller| spent.saturating_add(caller.2.1));
    // An outlier needs others for comparison.
    let is_alone = others.is_empty() && class != "user-agent";
    if is_alone || outliers[last].2.0 < peak_min || (spent as f64) < total as f64 * SHARE_MIN {
        return None;
    }
    let others_busiest_minute = others.first().map_or(0, |caller| caller.2.0);
    let margin = (gap(last).sqrt() as u64).clamp(1, MARGIN_MAX);
    let limit = SuggestedLimit::around(others_busiest_minute.max(ordinary_min).saturating_mul(margin), has_costs);
    let outlier = |(name, spending, (peak, spent)): &(&KeyName, &Spending, (u64, u64))| {
        let allowed = limit.allowed(spending.stretches, spending.stretch_minutes);
        Outlier { key: name.to_string(), busiest_minute: *peak, spent: *spent, allowed }
    };
    let outliers = outliers.iter().map(outlier).collect();
    Some(Suggestion { toml: limit.toml(class), class, budget: has_costs, outliers, others_busiest_minute, limit })
}

/// Whether a user agent is that of a robot: by such a word, by the URL of a page about it, or by the name of a library.
fn is_robot(agent: &[u8]) -> bool {
    let agent = agent.to_ascii_lowercase();
    let signs: [&[u8]; 10] =
        [b"bot", b"crawl", b"spider", b"http://", b"https://", b"python", b"curl", b"wget", b"go-http", b"scrapy"];
    signs.iter().any(|sign| agent.windows(sign.len()).any(|window| window == *sign))
}

impl SuggestedLimit {
    /// The lowest limit, rounded up, that a client with `peak` in its busiest minute never reaches: `peak` per minute,
    /// with a burst of twice that. `peak` is in milliseconds of cost, or in requests.
    fn around(peak: u64, has_costs: bool) -> Self {
        if has_costs {
            let hundredths = peak.div_ceil(PEAK_SPAN.as_millis_ceil() / 100);
            let burst_s = peak.div_ceil(500);
            Self::Budget { cores_hundredths: round_up(hundredths), burst_s: round_up(burst_s).max(5) }
        } else {
            Self::Rate { per_minute: round_up(peak), burst: round_up(peak.saturating_mul(2)) }
        }
    }

    /// The maximum for a client that was active for `minutes` in total, in `stretches` separate periods, each of which
    /// begins with a full burst: milliseconds of cost, or requests.
    fn allowed(self, stretches: u64, minutes: u64) -> u64 {
        let (burst, per_minute) = match self {
            Self::Budget { cores_hundredths, burst_s } => {
                (burst_s.saturating_mul(1000), cores_hundredths.saturating_mul(600))
            }
            Self::Rate { per_minute, burst } => (burst, per_minute),
        };
        burst.saturating_mul(stretches).saturating_add(per_minute.saturating_mul(minutes))
    }

    /// The rule with this limit in TOML, for the configuration.
    fn toml(self, class: &str) -> String {
        let name = match class {
            "ip/32" => "per-address",
            "user-agent" => "robots",
            _ => "per-network",
        };
        let limit = match self {
            Self::Budget { cores_hundredths, burst_s } => {
                format!("budget = {{ cores = {}, burst = \"{burst_s}s\" }}", cores_hundredths as f64 / 100.0)
            }
            Self::Rate { per_minute, burst } => {
                format!("rate   = {{ rate = \"{per_minute}/min\", burst = {burst} }}")
            }
        };
        format!("[[rule]]\nname   = \"{name}\"\nclass  = \"{class}\"\n{limit}\n")
    }
}

impl Suggestion {
    fn spent(&self) -> u64 {
        self.outliers.iter().fold(0, |spent, outlier| spent.saturating_add(outlier.spent))
    }

    /// Whether the limit would affect anybody: it is lower than the capacity of the backend, and an outlier exceeds it
    /// in a minute or in total.
    fn can_bind(&self, cores: Option<f64>) -> bool {
        let is_within = match (self.limit, cores) {
            (SuggestedLimit::Budget { cores_hundredths, .. }, Some(cores)) => (cores_hundredths as f64) < cores * 100.0,
            _ => true,
        };
        let exceeds =
            |outlier: &Outlier| outlier.busiest_minute > self.limit.allowed(1, 1) || outlier.spent > outlier.allowed;
        is_within && self.outliers.iter().any(exceeds)
    }
}

/// The next number of the form 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40 and so on.
fn round_up(number: u64) -> u64 {
    let scales = (0..19).map(|power| 10u64.pow(power));
    let steps = |scale: u64| [10, 12, 15, 20, 25, 30, 40, 50, 60, 80].map(|step| u128::from(scale) * step);
    let round = scales.flat_map(steps).filter(|tenths| tenths % 10 == 0).map(|tenths| tenths / 10);
    round.filter_map(|round| u64::try_from(round).ok()).find(|round| *round >= number).unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::super::counts::Done;
    use super::super::recorded_request::with_recorded;
    use super::*;
    use proptest::prelude::*;
    use tollgate_core::limit::{Budget, Limit, Room};
    use tollgate_core::record::PlainRecord;
    use tollgate_core::time::Moment;
    use tollgate_core::time::Span;
    use tollgate_core::toll::Toll;

    /// Three minutes of requests: client, user agent, requests a second, milliseconds each.
    fn talkers(crowd: &[(&str, &str, u64, u64)]) -> (Talkers, u64) {
        let mut talkers = Talkers::new();
        let mut total = 0;
        for second in 0..180u64 {
            for (client, agent, rate, cost_ms) in crowd {
                let line = format!(r#"{{"at_ms": 0, "client": "{client}", "headers": {{"user-agent": "{agent}"}}}}"#);
                for _ in 0..*rate {
                    let cost = Span::from_millis(*cost_ms);
                    with_recorded(&line, |request| {
                        talkers.add(&request, cost, &Done::default(), Moment::from_millis(second * 1000))
                    });
                    total += cost.as_millis_ceil();
                }
            }
        }
        (talkers, total)
    }

    const HUMANS: [(&str, &str, u64, u64); 3] =
        [("192.0.2.1", "Firefox", 1, 20), ("198.51.100.2", "Firefox", 2, 20), ("203.0.113.3", "Chrome", 1, 30)];

    #[test]
    fn one_heavy_address_is_limited_by_address() {
        let (talkers, total) = talkers(&[&HUMANS[..], &[("203.0.113.77", "x", 2, 300)]].concat());
        let suggestion = suggest(&talkers, total, true, None).unwrap();
        assert_eq!((suggestion.class, suggestion.outliers.len()), ("ip/32", 1));
        assert_eq!(suggestion.outliers[0].key, "203.0.113.77");
        assert_eq!(suggestion.others_busiest_minute, 2400);
        assert_eq!(suggestion.limit, SuggestedLimit::Budget { cores_hundredths: 12, burst_s: 15 });
        // Three minutes at 0.12 cores, and 15 s in advance.
        assert_eq!((suggestion.outliers[0].allowed, suggestion.outliers[0].spent), (36_600, 108_000));
        assert_eq!(
            suggestion.toml,
            "[[rule]]\nname   = \"per-address\"\nclass  = \"ip/32\"\nbudget = { cores = 0.12, burst = \"15s\" }\n"
        );
    }

    #[test]
    fn a_crawler_spread_over_a_network_is_limited_by_network() {
        let addresses: Vec<_> = (1..60).map(|host| format!("100.64.7.{host}")).collect();
        let crawler: Vec<_> = addresses.iter().map(|address| (address.as_str(), "x", 1, 25)).collect();
        let (talkers, total) = talkers(&[&HUMANS[..], &crawler[..]].concat());
        assert_eq!(suggest(&talkers, total, true, None).unwrap().class, "ip/24");
    }

    #[test]
    fn a_robot_from_everywhere_is_limited_by_its_name() {
        let addresses: Vec<_> = (1..60).map(|net| format!("100.{net}.7.7")).collect();
        let crawler: Vec<_> = addresses.iter().map(|address| (address.as_str(), "GreedyBot/2.1", 1, 25)).collect();
        let (talkers, total) = talkers(&[&HUMANS[..], &crawler[..]].concat());
        let suggestion = suggest(&talkers, total, true, None).unwrap();
        assert_eq!((suggestion.class, suggestion.outliers[0].key.as_str()), ("user-agent", "GreedyBot/2.1"));
    }

    #[test]
    fn without_outliers_nothing_is_suggested() {
        let (humans, total) = talkers(&HUMANS);
        assert_eq!(suggest(&humans, total, true, None), None);
        let (alone, total) = talkers(&[("203.0.113.77", "x", 2, 300)]);
        assert_eq!(suggest(&alone, total, true, None), None);
        assert_eq!(suggest(&Talkers::new(), 0, true, None), None);
    }

    #[test]
    fn a_budget_that_cannot_bind_is_not_suggested() {
        let (talkers, total) = talkers(&[&HUMANS[..], &[("203.0.113.77", "x", 2, 300)]].concat());
        assert!(suggest(&talkers, total, true, Some(0.5)).is_some());
        assert_eq!(suggest(&talkers, total, true, Some(0.12)), None);
    }

    /// One client with one address must not hide a crawler with many.
    #[test]
    fn a_crawler_with_many_addresses_outweighs_a_polite_one_with_one() {
        let addresses: Vec<_> = (1..80).map(|host| format!("100.64.7.{host}")).collect();
        let mut crowd: Vec<_> = addresses.iter().map(|address| (address.as_str(), "x", 1, 10)).collect();
        crowd.extend(HUMANS);
        crowd.push(("192.0.2.200", "PoliteBot", 1, 90));
        let (talkers, total) = talkers(&crowd);
        let suggestion = suggest(&talkers, total, true, None).unwrap();
        assert_eq!((suggestion.class, suggestion.outliers.len()), ("ip/24", 1));
        assert_eq!(suggestion.outliers[0].key, "100.64.7.0/24");
    }

    /// The network of a university or of a telephone company has many light clients, and together they outweigh a
    /// crawler.
    #[test]
    fn a_crawler_is_limited_and_not_the_large_network_of_many_people() {
        let people: Vec<_> = (1..120).map(|net| format!("198.51.{net}.7")).collect();
        let mut crowd: Vec<_> = people.iter().map(|address| (address.as_str(), "Firefox", 1, 5)).collect();
        let addresses: Vec<_> = (1..60).map(|host| format!("203.0.113.{host}")).collect();
        crowd.extend(addresses.iter().map(|address| (address.as_str(), "x", 1, 4)));
        crowd.push(("192.0.2.1", "Chrome", 1, 10));
        let (talkers, total) = talkers(&crowd);
        let suggestion = suggest(&talkers, total, true, None).unwrap();
        assert_eq!((suggestion.class, suggestion.outliers.len()), ("ip/24", 1));
        assert_eq!(suggestion.outliers[0].key, "203.0.113.0/24");
    }

    #[test]
    fn without_costs_requests_are_limited() {
        let (talkers, _) = talkers(&[&HUMANS[..], &[("203.0.113.77", "x", 9, 0)]].concat());
        let suggestion = suggest(&talkers, 13 * 180, false, None).unwrap();
        assert_eq!(suggestion.limit, SuggestedLimit::Rate { per_minute: 250, burst: 500 });
        assert!(suggestion.toml.contains("rate   = { rate = \"250/min\", burst = 500 }"));
    }

    #[test]
    fn numbers_are_rounded_up_to_round_ones() {
        assert_eq!([0, 1, 3, 7, 11, 13, 61, 101, 1201].map(round_up), [1, 1, 3, 8, 12, 15, 80, 120, 1500]);
        assert_eq!(round_up(u64::MAX), u64::MAX);
    }

    proptest! {
        /// A client that never spends more than the peak in a minute is never in debt.
        #[test]
        fn an_ordinary_caller_never_meets_the_suggested_budget(
            peak_ms in 1000u64..60_000,
            steps in prop::collection::vec((0u64..90_000, 0.0f64..1.0), 1..200),
        ) {
            let SuggestedLimit::Budget { cores_hundredths, burst_s } = SuggestedLimit::around(peak_ms, true) else {
                unreachable!("costs are known")
            };
            let limit = Limit::Budget(Budget::new(cores_hundredths as u32 * 10_000, Span::from_secs(burst_s)).unwrap());
            let mut record = PlainRecord::new(limit.words());
            let (mut at_ms, mut spent) = (0, (0, 0));
            for (step_ms, part) in steps {
                at_ms += step_ms;
                if at_ms / 60_000 != spent.0 {
                    spent = (at_ms / 60_000, 0);
                }
                let cost_ms = ((peak_ms - spent.1) as f64 * part) as u64;
                spent.1 += cost_ms;
                let now = Moment::from_millis(at_ms);
                let toll = Toll::of_cpu(Span::from_millis(cost_ms));
                prop_assert_eq!(limit.room(&record, toll, now), Room::Now);
                limit.charge(&mut record, toll, now);
            }
        }
    }
}
