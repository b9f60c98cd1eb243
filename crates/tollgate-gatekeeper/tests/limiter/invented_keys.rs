//! Invented keys free no offender, affect no regular client, and use no memory.

use std::time::Instant;

use tollgate_core::band::Band;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::limiter::{Limiter, Plan};
use tollgate_gatekeeper::table::table_bytes_for;

use crate::fixtures::*;

/// A quarter of a megabyte: 18,432 slots, eight thousand of them hot.
const LINES: usize = 2_048;

#[test]
fn a_million_invented_keys_do_not_free_an_offender() {
    let limiter = one(rate(10, 3_600, 10), LINES);
    let now = Moment::from_millis(1);
    while admits(&limiter, "offender", now) {}
    let before = limiter.table(0).unwrap();
    for number in 0..1_000_000_u32 {
        admits(&limiter, number.to_le_bytes(), now);
        if number % 1_000 == 0 {
            assert!(!admits(&limiter, "offender", now), "free after {number} keys");
        }
    }
    assert!(!admits(&limiter, "offender", now));
    let after = limiter.table(0).unwrap();
    assert_eq!((before.bytes, before.places), (after.bytes, after.places));
    assert!(after.evicted > 0 && after.from_overflow > 0, "the table was large enough: {after:?}");
    // Time clears all debt.
    let healed = now + Span::from_secs(3_600);
    assert!(admits(&limiter, "offender", healed));
    assert!(admits(&limiter, "somebody new", healed));
}

#[test]
fn regular_clients_are_served_during_a_flood_of_keys() {
    let limiter = one(rate(100, 1, 20), LINES);
    let mut refused = 0;
    // 20,000 invented keys per second, and a hundred regular clients at half their rate.
    for step in 0..15_000_u64 {
        let now = Moment::from_millis(1_000 + step);
        for number in 0..20_u64 {
            admits(&limiter, (step * 20 + number).to_le_bytes(), now);
        }
        if step % 20 == 0 {
            refused += (0..100).filter(|regular| !admits(&limiter, format!("regular {regular}"), now)).count();
        }
    }
    assert_eq!(refused, 0);
}

#[test]
fn new_clients_are_served_during_a_flood_of_keys() {
    let limiter = one(rate(1, 1, 5), LINES);
    let mut refused = 0;
    // 2,000 invented keys per second, each with debt for a second: one for every nine slots.
    for step in 0..30_000_u64 {
        let now = Moment::from_millis(1_000 + step);
        admits(&limiter, (step * 2).to_le_bytes(), now);
        admits(&limiter, (step * 2 + 1).to_le_bytes(), now);
        refused += u64::from(!admits(&limiter, format!("new {step}"), now));
    }
    assert_eq!(refused, 0);
}

/// Keys that differ in only one way, as an attacker would choose them, are distributed to rows as if at
/// random.
#[test]
fn chosen_keys_cannot_target_a_row() {
    let patterns: [fn(u64) -> Vec<u8>; 4] = [
        |number| number.to_le_bytes().to_vec(),
        |number| (number << 32).to_be_bytes().to_vec(),
        |number| number.wrapping_mul(1 << 20).to_le_bytes().to_vec(),
        |number| format!("{:0>100}", number % 100_000).into_bytes(),
    ];
    for pattern in patterns {
        let limiter = one(bucket(1), LINES);
        // 27 keys per 50 cold slots, as in large tables, which have few hot slots. One key in thirty finds
        // its row full and an overflow record that refuses it. With the hot slots of this table, 62 keys
        // share 90 slots.
        let keys = LINES as u64 * 62 / 10;
        let refused = (0..keys).filter(|&number| !admits(&limiter, pattern(number), Moment::ZERO)).count() as u64;
        assert!(refused < keys / 20, "{refused} of {keys}");
    }
}

#[test]
fn the_cost_of_a_decision_does_not_depend_on_the_number_of_keys() {
    let limiter = one(rate(1, 3_600, 5), LINES);
    let mut number = 0_u64;
    let mut spell = |limiter: &Limiter| {
        let start = Instant::now();
        for _ in 0..5_000 {
            number += 1;
            admits(limiter, number.to_le_bytes(), Moment::ZERO);
        }
        start.elapsed()
    };
    spell(&limiter);
    let early = (0..5).map(|_| spell(&limiter)).min().unwrap();
    for _ in 0..20 {
        spell(&limiter);
    }
    let late = (0..5).map(|_| spell(&limiter)).min().unwrap();
    // A scan of all slots would be a thousand times slower.
    assert!(late < early * 20, "{early:?}, then {late:?}");
}

/// A table of this size has few hot groups and several cold groups per hot group.
#[test]
fn a_large_table_keeps_every_debt() {
    let rule = rule("one", "identifier", bucket(1));
    let bytes = table_bytes_for(&rule, 4_000_000);
    let limiter = Limiter::new(Plan { rules: vec![(rule, bytes)], ..plan(vec![], 1) }).unwrap();
    let admitted = || (0..300_000_u32).filter(|number| admits(&limiter, number.to_le_bytes(), Moment::ZERO)).count();
    assert_eq!(admitted(), 300_000);
    assert_eq!(admitted(), 0);
    assert_eq!(limiter.table(0).unwrap().evicted, 0);
}

#[test]
fn refusals_evict_no_key() {
    let rules = vec![rule("all", "ip/16", bucket(5)), rule("each", "identifier", bucket(5))];
    let limiter = limiter(rules, 1);
    let decide = |name: &str| {
        let caller = Caller { name, address: [203, 0, 113, 7] };
        limiter.decide(&caller, Toll::ONE, Band::Normal, Moment::ZERO).0.verdict.is_refusal()
    };
    for name in ["a", "b", "c", "d", "e"] {
        assert!(!decide(name));
    }
    // The network is at its limit. A thousand more names try, and none takes a slot in the table of names.
    assert!((0..1_000).all(|number| decide(&format!("late {number}"))));
    assert_eq!(limiter.table(1).unwrap().evicted, 0);
}
