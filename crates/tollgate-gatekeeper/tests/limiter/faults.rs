//! Faults 22, 23 and 32: invented keys, keys chosen for collisions, and races for the last token.

use std::hash::Hasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use siphasher::sip::SipHasher13;
use tollgate_core::band::Band;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limiter::{Limiter, Plan};

use crate::fixtures::*;

const ROWS: usize = 1_024;
const KNOWN_SEED: u64 = 7;

#[test]
fn fault_22_a_million_invented_keys_leave_the_table_as_large_and_every_debt_in_it() {
    let limiter = one(rate(10, 3_600, 10), ROWS);
    let now = Moment::from_millis(1);
    let offenders: Vec<_> = (0..20).map(|number| format!("offender {number}")).collect();
    for offender in &offenders {
        while admits(&limiter, offender, now) {}
    }
    let before = limiter.table(0).unwrap().bytes;
    for number in 0..1_000_000_u32 {
        admits(&limiter, format!("{number:x}").as_bytes(), now);
    }
    assert_eq!(limiter.table(0).unwrap().bytes, before);
    assert!(offenders.iter().all(|offender| !admits(&limiter, offender, now)));
}

/// Keys that all belong to the first row of a table whose seed is known.
fn colliding(count: usize) -> Vec<[u8; 8]> {
    let in_first_row = |key: &[u8; 8]| {
        let mut hasher = SipHasher13::new_with_keys(KNOWN_SEED, !KNOWN_SEED);
        hasher.write(key);
        (u128::from(hasher.finish()) * ROWS as u128) >> 64 == 0
    };
    (0_u64..).map(u64::to_le_bytes).filter(in_first_row).take(count).collect()
}

/// The number of refused keys of these, each of which has a limit of its own, and the time per decision.
fn try_each(seed: Seed, keys: &[[u8; 8]]) -> (usize, Duration) {
    let limiter = Limiter::new(Plan { seed, ..plan(vec![rule("one", "identifier", bucket(1))], ROWS) }).unwrap();
    let started = Instant::now();
    let refused = keys.iter().filter(|key| !admits(&limiter, key, Moment::ZERO)).count();
    (refused, started.elapsed() / keys.len() as u32)
}

#[test]
fn fault_23_keys_chosen_for_collisions_collide_only_for_those_who_know_the_seed() {
    let chosen = colliding(400);
    let ordinary: Vec<_> = (0_u64..400).map(u64::to_le_bytes).collect();
    let (refused, _) = try_each(Seed::fixed(KNOWN_SEED), &chosen);
    assert!(refused > 300, "{refused} of 400 chosen keys collide if the seed is known: the choice is wrong");
    for _ in 0..20 {
        let (refused, _) = try_each(Seed::random(), &chosen);
        assert!(refused < 20, "{refused} of 400 chosen keys collide without knowledge of the seed");
    }
    // Even in one row a decision takes constant time. The fastest of several runs, because other processes run too.
    let fastest = |keys: &[[u8; 8]]| (0..20).map(|_| try_each(Seed::fixed(KNOWN_SEED), keys).1).min().unwrap();
    let (in_one_row, spread) = (fastest(&chosen), fastest(&ordinary));
    assert!(in_one_row < spread * 10, "{in_one_row:?} in one row, {spread:?} in all");
}

/// Runs `work` on two threads, and sums the results.
fn twice(work: impl Fn() -> u64 + Sync) -> u64 {
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(&work));
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

#[test]
fn fault_32_of_two_threads_that_take_the_last_token_exactly_one_succeeds() {
    // Each of 40,000 keys has one token, and both threads try all keys in the same order. Every key has its slot.
    let limiter = one(bucket(1), 65_536);
    let admitted =
        twice(|| (0..40_000_u32).filter(|key| admits(&limiter, key.to_le_bytes(), Moment::ZERO)).count() as u64);
    assert_eq!(admitted, 40_000);
}

#[test]
fn fault_32_a_million_races_admit_no_more_than_burst_and_rate() {
    const OPERATIONS: u64 = 1_000_000;
    let limiter = one(rate(1_000, 1, 10), 1);
    let clock = AtomicU64::new(0);
    let admitted = twice(|| {
        // Each operation takes a microsecond of virtual time.
        let moments = std::iter::from_fn(|| Some(clock.fetch_add(1_000, Ordering::Relaxed)));
        let moments = moments.take_while(|nanos| *nanos < OPERATIONS * 1_000);
        let admit = |nanos: &u64| {
            let now = || Moment::from_nanos(1_000_000_000 + nanos);
            !limiter.decide_key(0, b"key", Toll::ONE, Band::Normal, now).unwrap().0.is_refusal()
        };
        moments.filter(admit).count() as u64
    });
    let second = Span::from_nanos(OPERATIONS * 1_000);
    let most = 10 + 1_000 * second.as_nanos() / 1_000_000_000;
    assert!((most - 20..=most).contains(&admitted), "{admitted} of {most}");
}
