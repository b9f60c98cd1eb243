//! One record can stand for many keys, and none of them gets more room than before.

use proptest::prelude::*;
use tollgate_core::decision::Reason;
use tollgate_core::limit::{Limit, Room};
use tollgate_core::record::PlainRecord;
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::generators::*;

fn lived(rule: &Rule, arrivals: &[(Span, Toll)]) -> (PlainRecord, Moment) {
    let mut record = fresh(rule);
    let mut now = Moment::ZERO;
    for &(gap, toll) in arrivals {
        now = now + gap;
        ask(rule, &mut record, toll, &at(now));
    }
    (record, now)
}

/// Orders rooms by the length of the wait.
fn order(room: Room) -> (u8, Moment) {
    match room {
        Room::Now => (0, Moment::ZERO),
        Room::From(moment) => (1, moment),
        Room::OnRelease => (2, Moment::ZERO),
        Room::Never => (3, Moment::ZERO),
    }
}

fn is_no_looser(limit: &Limit, merged: &PlainRecord, part: &PlainRecord, toll: Toll, now: Moment) -> bool {
    order(limit.room(merged, toll, now)) >= order(limit.room(part, toll, now))
        && limit.info(merged, now).remaining <= limit.info(part, now).remaining
        && limit.info(merged, now).clear >= limit.info(part, now).clear
}

proptest! {
    #[test]
    fn a_merged_record_never_leaves_more_than_either_part(
        limit in limits(), one in arrivals(), other in arrivals(), later in arrivals(),
    ) {
        let rule = rule(limit);
        let ((one, one_end), (other, other_end)) = (lived(&rule, &one), lived(&rule, &other));
        let mut merged = one.clone();
        rule.absorb(&mut merged, &other);
        let mut now = one_end.max(other_end);
        for (gap, toll) in later {
            for part in [&one, &other] {
                prop_assert!(is_no_looser(&limit, &merged, part, toll, now), "{merged:?} absorbed {part:?} at {now:?}");
            }
            now = now + gap;
        }
    }

    #[test]
    fn a_merged_record_admits_nothing_that_either_part_refuses(
        limit in limits(), one in arrivals(), other in arrivals(), later in arrivals(),
    ) {
        let rule = rule(limit);
        let ((one, one_end), (other, other_end)) = (lived(&rule, &one), lived(&rule, &other));
        let mut merged = one.clone();
        rule.absorb(&mut merged, &other);
        let mut parts = [one, other];
        let mut now = one_end.max(other_end);
        // The period of an empty bucket starts with its next request, so it may leak one drip later than the
        // bucket that absorbed it.
        let slack = match limit { Limit::Bucket(bucket) => u64::from(bucket.parameters().1), _ => 0 };
        for (gap, toll) in later {
            if limit.room(&merged, toll, now) == Room::Now {
                for part in &parts {
                    let fits = limit.room(part, toll, now) == Room::Now
                        || limit.info(part, now).remaining + slack >= toll.count && slack > 0;
                    prop_assert!(fits, "{merged:?} absorbed {part:?} at {now:?}");
                }
                limit.charge(&mut merged, toll, now);
                parts.iter_mut().for_each(|part| limit.charge(part, toll, now));
            }
            now = now + gap;
        }
    }

    #[test]
    fn a_merged_record_is_clear_when_the_later_part_is(rule in rules(), one in arrivals(), other in arrivals()) {
        let ((one, _), (other, _)) = (lived(&rule, &one), lived(&rule, &other));
        let mut merged = one.clone();
        rule.absorb(&mut merged, &other);
        let latest = rule.clear_at(&one).max(rule.clear_at(&other));
        prop_assert!(rule.clear_at(&merged) >= latest);
        if rule.escalation.is_none() {
            prop_assert_eq!(rule.clear_at(&merged), latest);
        }
    }

    #[test]
    fn absorbing_a_fresh_record_changes_no_answer(rule in rules(), lived_through in arrivals(), later in arrivals()) {
        let (record, mut now) = lived(&rule, &lived_through);
        let mut into_record = record.clone();
        rule.absorb(&mut into_record, &fresh(&rule));
        let mut into_fresh = fresh(&rule);
        rule.absorb(&mut into_fresh, &record);
        let mut records = [record, into_record, into_fresh];
        for (gap, toll) in later {
            let answers = records.each_mut().map(|record| ask(&rule, record, toll, &at(now)));
            prop_assert_eq!(answers[0], answers[1]);
            prop_assert_eq!(answers[0], answers[2]);
            now = now + gap;
        }
    }

    #[test]
    fn a_merged_block_lasts_as_long_and_recovers_no_earlier(
        limit in limits(), escalation in escalations(), one in arrivals(), other in arrivals(), waits in arrivals(),
    ) {
        let rule = Rule { escalation: Some(escalation), ..rule(limit) };
        let ((one, one_end), (other, other_end)) = (lived(&rule, &one), lived(&rule, &other));
        let mut merged = one.clone();
        rule.absorb(&mut merged, &other);
        let mut now = one_end.max(other_end);
        let look = Toll { count: 0, cpu: Span::ZERO };
        for (wait, _) in waits {
            let answer = ask(&rule, &mut merged.clone(), look, &at(now));
            for part in [&one, &other] {
                let of_part = ask(&rule, &mut part.clone(), look, &at(now));
                // A blocked client commits no new violation with another attempt, so its backoff does not
                // change.
                let shielded = answer.reason == Reason::InBackoff && of_part.reason == Reason::OverLimit;
                prop_assert!(shielded || answer.verdict >= of_part.verdict, "{answer:?} is looser than {of_part:?}");
                prop_assert!(answer.verdict.is_refusal() || answer.level >= of_part.level);
            }
            now = now + wait;
        }
        prop_assert!(rule.clear_at(&merged) >= rule.clear_at(&one).max(rule.clear_at(&other)));
    }
}
