//! No window of time admits more than the limit, and continuous retries get the full limit.

use proptest::prelude::*;
use tollgate_core::decision::Verdict;
use tollgate_core::limit::{Bucket, Legacy, Limit, Rate};
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::generators::*;

/// Retries exactly at the announced time, `tries` times. Returns the times of admission.
fn hammer(rule: &Rule, toll: Toll, tries: usize) -> Vec<Moment> {
    let mut record = fresh(rule);
    let mut now = millis(1);
    let mut admitted = Vec::new();
    for _ in 0..tries {
        match ask(rule, &mut record, toll, &at(now)).verdict {
            Verdict::Refuse(from) => now = from,
            verdict => {
                assert_eq!(verdict, Verdict::Admit);
                admitted.push(now);
            }
        }
    }
    admitted
}

/// The times of admission of arbitrary arrivals.
fn admitted(rule: &Rule, arrivals: Vec<(Span, Toll)>) -> Vec<(Moment, Toll)> {
    let mut record = fresh(rule);
    let mut now = Moment::ZERO;
    let mut admitted = Vec::new();
    for (gap, toll) in arrivals {
        now = now + gap;
        if !ask(rule, &mut record, toll, &at(now)).verdict.is_refusal() {
            admitted.push((now, toll));
        }
    }
    admitted
}

/// `units` per `period` over `span`, in whole units.
fn over(units: u64, period: Span, span: Span) -> u128 {
    u128::from(span.as_nanos()) * u128::from(units) / u128::from(period.as_nanos())
}

proptest! {
    #[test]
    fn any_window_admits_at_most_burst_and_rate(rate in rate_limits(), arrivals in arrivals()) {
        let (count, period, burst) = rate.parameters();
        let admitted = admitted(&rule(Limit::Rate(rate)), arrivals);
        for first in 0..admitted.len() {
            let mut sum = 0;
            for (moment, toll) in &admitted[first..] {
                sum += u128::from(toll.count);
                prop_assert!(sum <= u128::from(burst) + over(count, period, moment.since(admitted[first].0)));
            }
        }
    }

    #[test]
    fn hammering_a_rate_gets_all_of_it(rate in rate_limits(), tries in 1..300_usize) {
        let (count, period, burst) = rate.parameters();
        let admitted = hammer(&rule(Limit::Rate(rate)), Toll::ONE, tries);
        let span = admitted[admitted.len() - 1].since(admitted[0]);
        let bound = u128::from(burst) + over(count, period, span);
        prop_assert!(admitted.len() as u128 <= bound);
        // With a burst of one there is no credit in which a fraction of a nanosecond could wait for the next
        // whole one.
        let whole = period.as_nanos().is_multiple_of(count);
        if admitted.len() as u64 > burst && (burst > 1 || whole) {
            prop_assert!(admitted.len() as u128 + 1 >= bound, "{} of {bound}", admitted.len());
        }
    }

    #[test]
    fn a_rate_agrees_with_exact_fractions(rate in rate_limits(), arrivals in arrivals()) {
        // The same algorithm with time in units of 1/count nanoseconds, where nothing is rounded.
        let (count, period, burst) = rate.parameters();
        let (scale, interval) = (u128::from(count), u128::from(period.as_nanos()));
        let mut oracle = 0_u128;
        let limit = rule(Limit::Rate(rate));
        let mut record = fresh(&limit);
        let mut now = Moment::ZERO;
        for (gap, toll) in arrivals {
            now = now + gap;
            let now_scaled = u128::from(now.as_nanos()) * scale;
            let next = oracle.max(now_scaled) + u128::from(toll.count) * interval;
            let room = toll.count <= burst && next <= now_scaled + u128::from(burst) * interval;
            let verdict = ask(&limit, &mut record, toll, &at(now)).verdict;
            prop_assert_eq!(room, verdict == Verdict::Admit);
            if room {
                oracle = next;
            }
        }
    }

    #[test]
    fn any_window_of_a_bucket_admits_at_most_its_size_and_the_drips(bucket in buckets(), arrivals in arrivals()) {
        let (size, drip, every) = bucket.parameters();
        let admitted = admitted(&rule(Limit::Bucket(bucket)), arrivals);
        for first in 0..admitted.len() {
            let mut sum = 0;
            for (moment, toll) in &admitted[first..] {
                sum += u128::from(toll.count);
                let periods = u128::from(moment.since(admitted[first].0).as_nanos() / every.as_nanos());
                prop_assert!(sum <= u128::from(size) + u128::from(drip) * (periods + 1));
            }
        }
    }

    #[test]
    fn hammering_a_bucket_gets_all_of_it(bucket in buckets(), tries in 1..300_usize) {
        let (size, drip, every) = bucket.parameters();
        let drip = drip.min(size);
        let admitted = hammer(&rule(Limit::Bucket(bucket)), Toll::ONE, tries);
        let periods = admitted[admitted.len() - 1].since(admitted[0]).as_nanos() / every.as_nanos();
        let bound = u64::from(size) + u64::from(drip) * periods;
        prop_assert!(admitted.len() as u64 <= bound);
        if admitted.len() as u64 > u64::from(size) {
            prop_assert!(admitted.len() as u64 + u64::from(drip) >= bound, "{} of {bound}", admitted.len());
        }
    }

    #[test]
    fn a_bucket_agrees_with_counter_and_timestamp(bucket in buckets(), arrivals in arrivals()) {
        // Sharkey's description, with the timestamp moved by whole periods only.
        let (size, drip, every) = bucket.parameters();
        let (mut counter, mut anchor) = (0_u128, Moment::ZERO);
        let limit = rule(Limit::Bucket(bucket));
        let mut record = fresh(&limit);
        let mut now = Moment::ZERO;
        for (gap, toll) in arrivals {
            now = now + gap;
            let periods = now.since(anchor).as_nanos() / every.as_nanos();
            counter = counter.saturating_sub(u128::from(periods) * u128::from(drip));
            anchor = if counter == 0 { now } else { anchor + every.times(periods) };
            let room = counter + u128::from(toll.count) <= u128::from(size);
            let decision = ask(&limit, &mut record, toll, &at(now));
            prop_assert_eq!(room, decision.verdict == Verdict::Admit);
            if room {
                counter += u128::from(toll.count);
            }
            prop_assert_eq!(u128::from(decision.info.unwrap().remaining), u128::from(size) - counter);
        }
    }

    #[test]
    fn a_budget_admits_its_burst_its_share_and_at_most_one_request_more(budget in budgets(), arrivals in arrivals()) {
        let (millionths, burst) = budget.parameters();
        let admitted = admitted(&rule(Limit::Budget(budget)), arrivals);
        for first in 0..admitted.len() {
            let mut sum = 0;
            for (moment, toll) in &admitted[first..] {
                let span = moment.since(admitted[first].0);
                let earned = u128::from(span.as_nanos()) * u128::from(millionths) / 1_000_000;
                prop_assert!(sum <= u128::from(burst.as_nanos()) + earned + 1);
                sum += u128::from(toll.cpu.as_nanos());
            }
        }
    }

    #[test]
    fn no_window_holds_more_than_its_most(window in windows(), arrivals in arrivals()) {
        let (max, per, _) = window.parameters();
        let admitted = admitted(&rule(Limit::Window(window)), arrivals);
        for (index, (moment, _)) in admitted.iter().enumerate() {
            let inside = admitted[..=index].iter().filter(|(other, _)| moment.since(*other) < per);
            prop_assert!(inside.map(|(_, toll)| toll.count).sum::<u64>() <= u64::from(max));
        }
    }

    #[test]
    fn held_requests_are_spaced_and_never_released_together(rate in rate_limits(), requests in 1..40_usize) {
        let limit = Rule { hold_max: Span::MAX, ..rule(Limit::Rate(rate)) };
        let (count, period, _) = rate.parameters();
        let mut record = fresh(&limit);
        let mut last: Option<Moment> = None;
        for _ in 0..requests {
            if let Verdict::Hold(until) = ask(&limit, &mut record, Toll::ONE, &at(millis(1))).verdict {
                if let Some(last) = last {
                    prop_assert!(until.since(last).as_nanos() + 1 >= period.as_nanos() / count);
                }
                last = Some(until);
            }
        }
    }
}

#[test]
fn a_burst_of_ten_admits_ten_and_then_one_per_interval() {
    let limit = rule(Limit::Rate(Rate::new(1, Span::from_secs(1), 10).unwrap()));
    let admitted = hammer(&limit, Toll::ONE, 30);
    assert!(admitted[..10].iter().all(|moment| *moment == millis(1)));
    assert_eq!(admitted[10..13], [millis(1_001), millis(2_001), millis(3_001)]);
}

#[test]
fn a_billion_per_second_is_exact_over_a_day() {
    let limit = Limit::Rate(Rate::new(1_000_000_000, Span::from_secs(1), 5).unwrap());
    let day = Span::from_secs(86_400);
    let mut record = fresh(&rule(limit));
    limit.charge(&mut record, Toll { count: day.as_nanos(), cpu: Span::ZERO }, Moment::ZERO);
    assert_eq!(limit.clear_at(&record), Moment::ZERO + day);
}

#[test]
fn a_drip_of_two_is_not_leaked_twice_as_slowly() {
    // Under continuous retries for two minutes, Sharkey admits 140 of 260.
    let limit = rule(Limit::Bucket(Bucket::new(20, 2, Span::from_secs(1)).unwrap()));
    let mut record = fresh(&limit);
    let hundredths = (0..12_000).map(|hundredth| millis(hundredth * 10));
    let admitted = hundredths.filter(|now| !ask(&limit, &mut record, Toll::ONE, &at(*now)).verdict.is_refusal());
    assert_eq!(admitted.count(), 20 + 2 * 119);
}

#[test]
fn a_legacy_interval_is_enforced_beside_the_bucket() {
    let legacy =
        Legacy { quota: Some((10, Span::from_secs(10))), min_interval: Some(Span::from_secs(1)), is_spaced: true };
    let rules: Vec<Rule> = legacy.limits().unwrap().map(rule).collect();
    let mut records: Vec<_> = rules.iter().map(fresh).collect();
    let mut admitted = 0;
    for _ in 0..10 {
        let answers: Vec<_> =
            rules.iter().zip(&mut records).map(|(rule, record)| ask(rule, record, Toll::ONE, &at(millis(7)))).collect();
        admitted += u32::from(answers.iter().all(|answer| !answer.verdict.is_refusal()));
    }
    assert_eq!(admitted, 1);
}
