//! A client that waits as announced is admitted, a refusal costs nothing, and silence heals.

use proptest::prelude::*;
use tollgate_core::decision::Verdict;
use tollgate_core::limit::{Charge, InFlight, Limit};
use tollgate_core::record::{PlainRecord, Record};
use tollgate_core::rule::{Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::generators::*;

/// The words of the limit, without those of its escalation.
fn limit_part(rule: &Rule, record: &PlainRecord) -> (u32, Vec<u64>) {
    (record.aux(), (0..rule.limit.words()).map(|index| record.word(index)).collect())
}

proptest! {
    #[test]
    fn a_client_that_waits_as_announced_is_admitted(rule in rules(), arrivals in arrivals(), band in bands()) {
        let mut record = fresh(&rule);
        let mut now = Moment::ZERO;
        for (gap, toll) in and_a_storm(arrivals) {
            now = now + gap;
            let decision = ask(&rule, &mut record, toll, &Situation { band, ..at(now) });
            if let Verdict::Refuse(_) = decision.verdict {
                let exactly = now + decision.verdict.retry_after(now);
                let in_millis = now + Span::from_millis(decision.verdict.retry_after(now).as_millis_ceil());
                for later in [exactly, in_millis] {
                    let answer = ask(&rule, &mut record.clone(), toll, &at(later));
                    // A hold of zero length is wrong too: the announced time is the moment from which there
                    // is room.
                    prop_assert_eq!(answer.verdict, Verdict::Admit, "{:?} at {:?}, then at {:?}", decision, now, later);
                }
                prop_assert!(exactly > now);
            }
            prop_assert!(!matches!(decision.verdict, Verdict::Hold(until) if until <= now), "held for no time");
        }
    }

    #[test]
    fn no_announced_wait_is_longer_than_needed(limit in limits(), arrivals in arrivals()) {
        let rule = rule(limit);
        let mut record = fresh(&rule);
        let mut now = Moment::ZERO;
        for (gap, toll) in and_a_storm(arrivals) {
            now = now + gap;
            let verdict = ask(&rule, &mut record, toll, &at(now)).verdict;
            if let Verdict::Refuse(from) = verdict {
                let just_before = from.before(Span::from_nanos(1));
                prop_assert!(ask(&rule, &mut record.clone(), toll, &at(just_before)).verdict.is_refusal());
            }
        }
    }

    #[test]
    fn a_refusal_leaves_the_limit_unchanged(rule in rules(), arrivals in arrivals()) {
        let mut record = fresh(&rule);
        let mut now = Moment::ZERO;
        for (gap, toll) in arrivals {
            now = now + gap;
            let before = record.clone();
            if ask(&rule, &mut record, toll, &at(now)).verdict.is_refusal() {
                prop_assert_eq!(limit_part(&rule, &before), limit_part(&rule, &record));
            }
        }
    }

    #[test]
    fn a_zero_count_check_changes_no_later_answer(rule in rules(), arrivals in arrivals()) {
        let mut record = fresh(&rule);
        let mut looked_at = fresh(&rule);
        let mut now = Moment::ZERO;
        let look = Toll { count: 0, cpu: Span::ZERO };
        for (gap, toll) in arrivals {
            now = now + gap;
            let toll = Toll { count: 1, ..toll };
            ask(&rule, &mut looked_at, look, &at(now));
            prop_assert_eq!(ask(&rule, &mut record, toll, &at(now)), ask(&rule, &mut looked_at, toll, &at(now)));
        }
    }

    #[test]
    fn silence_always_heals(rule in rules(), arrivals in arrivals(), later in arrivals()) {
        let mut record = fresh(&rule);
        let mut now = Moment::ZERO;
        for (gap, toll) in arrivals {
            now = now + gap;
            ask(&rule, &mut record, toll, &at(now));
        }
        prop_assert!(rule.clear_at(&record) < Moment::MAX);
        let mut healed = record;
        let mut new = fresh(&rule);
        now = now.max(rule.clear_at(&healed));
        for (gap, toll) in later {
            prop_assert_eq!(ask(&rule, &mut healed, toll, &at(now)), ask(&rule, &mut new, toll, &at(now)));
            now = now + gap;
        }
    }

    #[test]
    fn a_clock_that_stands_still_or_jumps_a_year_blocks_no_client(rule in rules(), arrivals in arrivals()) {
        let mut record = fresh(&rule);
        for (_, toll) in &arrivals {
            ask(&rule, &mut record, *toll, &at(millis(5)));
        }
        let year = millis(5) + Span::from_secs(365 * 86_400);
        let late = year.max(rule.clear_at(&record));
        prop_assert!(!ask(&rule, &mut record, Toll::ONE, &at(late)).verdict.is_refusal());
        ask(&rule, &mut record, Toll { count: u64::MAX, cpu: Span::MAX }, &at(Moment::MAX));
    }

    #[test]
    fn a_refund_restores_the_quota(limit in limits(), arrivals in arrivals(), cpu in 1..3_000_u64) {
        let rule = rule(limit);
        let mut record = fresh(&rule);
        let mut now = Moment::ZERO;
        for (gap, toll) in arrivals {
            now = now + gap;
            ask(&rule, &mut record, toll, &at(now));
        }
        let toll = Toll::of_cpu(Span::from_millis(cpu));
        let before = limit.info(&record, now);
        limit.charge(&mut record, toll, now);
        let charged = Charge { at: now, mark: limit.mark(&record) };
        limit.refund(&mut record, toll, charged, now);
        let after = limit.info(&record, now);
        // The charge replaced the oldest entry of a full window, which was about to expire anyway.
        if !matches!(limit, Limit::Window(_)) {
            prop_assert_eq!(before.remaining, after.remaining);
        }
        prop_assert!(after.remaining >= before.remaining);
    }
}

#[test]
fn a_toll_larger_than_the_limit_is_refused_permanently() {
    for limit in [Limit::Rate(rate(10)), Limit::Bucket(bucket(10)), Limit::Window(window(10))] {
        let rule = rule(limit);
        let toll = Toll { count: 11, cpu: Span::ZERO };
        assert_eq!(ask(&rule, &mut fresh(&rule), toll, &at(Moment::ZERO)).verdict, Verdict::RefuseForGood);
    }
}

#[test]
fn an_in_flight_slot_is_free_when_its_request_ends() {
    let rule = rule(Limit::InFlight(InFlight::new(2).unwrap()));
    let mut record = fresh(&rule);
    let now = at(Moment::ZERO);
    assert_eq!(ask(&rule, &mut record, Toll::ONE, &now).verdict, Verdict::Admit);
    assert_eq!(ask(&rule, &mut record, Toll::ONE, &now).verdict, Verdict::Admit);
    assert_eq!(ask(&rule, &mut record, Toll::ONE, &now).verdict, Verdict::RefuseUntilRelease);
    rule.limit.settle(&mut record, Toll::ONE, Toll::ONE, Charge { at: now.now, mark: 0 }, now.now);
    assert_eq!(ask(&rule, &mut record, Toll::ONE, &now).verdict, Verdict::Admit);
    for _ in 0..2 {
        rule.limit.settle(&mut record, Toll::ONE, Toll::ONE, Charge { at: now.now, mark: 0 }, now.now);
    }
    assert_eq!(record, fresh(&rule));
}

fn rate(burst: u64) -> tollgate_core::limit::Rate {
    tollgate_core::limit::Rate::new(1, Span::from_secs(1), burst).unwrap()
}

fn bucket(size: u32) -> tollgate_core::limit::Bucket {
    tollgate_core::limit::Bucket::new(size, 1, Span::from_secs(1)).unwrap()
}

fn window(max: u32) -> tollgate_core::limit::Window {
    tollgate_core::limit::Window::new(max, Span::from_secs(1), None).unwrap()
}
