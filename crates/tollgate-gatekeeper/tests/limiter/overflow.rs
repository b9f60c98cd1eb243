//! The law of the overflow record: in a table that is far too small, no key gets more than in an unbounded
//! one.

use std::collections::HashMap;

use proptest::prelude::*;
use tollgate_core::band::Band;
use tollgate_core::decision::Verdict;
use tollgate_core::limit::{Limit, Room};
use tollgate_core::record::PlainRecord;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::fixtures::*;

/// The record of every key in an unbounded table. It is charged what the limiter admits.
struct Endless {
    limit: Limit,
    records: HashMap<u8, PlainRecord>,
}

impl Endless {
    fn new(limit: Limit) -> Self {
        Self { limit, records: HashMap::new() }
    }

    fn record(&mut self, key: u8) -> &mut PlainRecord {
        self.records.entry(key).or_insert_with(|| PlainRecord::new(self.limit.words()))
    }

    fn fits(&mut self, key: u8, toll: Toll, now: Moment) -> bool {
        let limit = self.limit;
        let record = self.record(key);
        // The period of an empty bucket starts with its next request, so a bucket that starts from an
        // overflow record may leak earlier than its own would have, by less than one drip, until it is empty.
        let phase = match limit {
            Limit::Bucket(bucket) => u64::from(bucket.parameters().1),
            _ => 0,
        };
        limit.room(record, toll, now) == Room::Now
            || phase > 0 && limit.info(record, now).remaining + phase >= toll.count
    }

    /// A free request leaves no trace; otherwise a thread with an older time would see that a newer one was
    /// there.
    fn charge(&mut self, key: u8, toll: Toll, now: Moment) {
        let limit = self.limit;
        if !limit.is_free(toll) {
            limit.charge(self.record(key), toll, now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_key_gets_more_than_in_an_unbounded_table(
        limit in debts(), arrivals in arrivals(40), lines in 1..4_usize, late_ms in prop::collection::vec(0..5_u64, 1..8),
    ) {
        let limiter = one(limit, lines);
        let mut endless = Endless::new(limit);
        let mut time = Moment::from_millis(1_000);
        for (turn, (key, gap, toll)) in arrivals.into_iter().enumerate() {
            time = time + gap;
            // Threads read the clock before they decide, so a thread may arrive with an older time than the
            // previous one.
            let now = time.before(Span::from_millis(late_ms[turn % late_ms.len()]));
            let (verdict, _) = ask(&limiter, [key], toll, now);
            if verdict == Verdict::Admit {
                prop_assert!(endless.fits(key, toll, now), "{key} at {now:?}");
                endless.charge(key, toll, now);
            }
        }
    }

    #[test]
    fn a_key_with_a_slot_gets_exactly_what_an_unbounded_table_gives(limit in debts(), arrivals in arrivals(7)) {
        let limiter = one(limit, 1);
        let mut endless = Endless::new(limit);
        let mut now = Moment::from_millis(1_000);
        for (key, gap, toll) in arrivals {
            now = now + gap;
            let (verdict, _) = ask(&limiter, [key], toll, now);
            let admits = limit.room(endless.record(key), toll, now) == Room::Now;
            prop_assert_eq!(verdict == Verdict::Admit, admits);
            if admits {
                endless.charge(key, toll, now);
            }
        }
        prop_assert_eq!(limiter.table(0).unwrap().evicted, 0);
    }

    /// Space-saving: the smallest of five counts is at most a fifth of their sum.
    #[test]
    fn a_new_key_starts_with_at_most_a_fifth_of_its_rows_charges(keys in prop::collection::vec(0..60_u8, 1..400)) {
        let limiter = one(rate(1, 1, 1_000_000), 1);
        for key in &keys {
            prop_assert!(admits(&limiter, [*key], Moment::ZERO));
        }
        let newcomer = Caller { name: "newcomer", address: [0; 4] };
        let [decision] = limiter.explain(&newcomer, Toll::ONE, Band::Normal, Moment::ZERO)[..] else { panic!("one rule") };
        let owed = 1_000_000 - decision.info.unwrap().remaining;
        prop_assert!(owed * 5 <= keys.len() as u64, "{owed} of {}", keys.len());
    }

    #[test]
    fn in_flight_slots_are_neither_exceeded_nor_lost(
        max in 1..4_u32, steps in prop::collection::vec((any::<bool>(), 0..30_u8, any::<prop::sample::Index>()), 1..400),
    ) {
        let limiter = one(in_flight(max), 1);
        let mut in_flight: HashMap<u8, u32> = HashMap::new();
        let mut tickets = Vec::new();
        for (start, key, which) in steps {
            if start {
                let (verdict, ticket) = ask(&limiter, [key], Toll::ONE, Moment::ZERO);
                if verdict == Verdict::Admit {
                    let count = in_flight.entry(key).or_default();
                    prop_assert!(*count < max);
                    *count += 1;
                    tickets.push((key, ticket));
                }
            } else if !tickets.is_empty() {
                let (key, ticket) = tickets.swap_remove(which.index(tickets.len()));
                *in_flight.entry(key).or_default() -= 1;
                limiter.settle(ticket, Toll::ONE, Moment::ZERO);
            }
        }
        tickets.into_iter().for_each(|(_, ticket)| limiter.refund(ticket, Moment::ZERO));
        for key in 0..30 {
            let answers: Vec<_> = (0..=max).map(|_| ask(&limiter, [key], Toll::ONE, Moment::ZERO)).collect();
            prop_assert_eq!(answers.iter().filter(|(verdict, _)| *verdict == Verdict::Admit).count(), max as usize);
            answers.into_iter().for_each(|(_, ticket)| limiter.settle(ticket, Toll::ONE, Moment::ZERO));
        }
    }
}
