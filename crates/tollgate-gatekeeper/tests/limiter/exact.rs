//! Check and charge are one step: under any race, exactly the free quota is admitted.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tollgate_core::band::Band;
use tollgate_core::time::Moment;
use tollgate_core::toll::Toll;

use crate::fixtures::*;

const THREADS: usize = 8;

/// Runs `work` on all threads at once and sums the results.
fn race(work: impl Fn(usize) -> u64 + Sync) -> u64 {
    let start = Barrier::new(THREADS);
    let total = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (work, start, total) = (&work, &start, &total);
            scope.spawn(move || {
                start.wait();
                total.fetch_add(work(number), Ordering::Relaxed);
            });
        }
    });
    total.into_inner()
}

#[test]
fn many_threads_on_one_bucket_admit_exactly_its_size() {
    for size in [1, 2, 100, 20_000] {
        let limiter = one(bucket(size), 1);
        let admitted = race(|_| (0..10_000).filter(|_| admits(&limiter, "key", Moment::ZERO)).count() as u64);
        assert_eq!(admitted, u64::from(size));
    }
}

#[test]
fn many_threads_on_many_keys_of_one_row_admit_exactly_their_quotas() {
    let limiter = one(bucket(1_000), 1);
    let admitted = race(|number| {
        let mut admitted = 0;
        for turn in 0..10_000_usize {
            let key = [((turn + number) % 5) as u8];
            admitted += u64::from(admits(&limiter, key, Moment::ZERO));
        }
        admitted
    });
    assert_eq!(admitted, 5 * 1_000);
}

#[test]
fn several_rules_are_charged_all_or_none_while_threads_race() {
    let limits = [bucket(3_000), bucket(2_000), bucket(2_500), rate(1, 86_400, 4_000)];
    let classes = ["identifier", "ip/32", "ip/24", "ip/16"];
    let rules = classes.iter().zip(limits).map(|(class, limit)| rule(class, class, limit)).collect();
    let limiter = limiter(rules, 1);
    let caller = Caller { name: "somebody", address: [203, 0, 113, 7] };
    let admitted = race(|_| {
        let admit = |_: &u32| !limiter.decide(&caller, Toll::ONE, Band::Normal, Moment::ZERO).0.verdict.is_refusal();
        (0..2_000).filter(admit).count() as u64
    });
    assert_eq!(admitted, 2_000);
    // Refused requests spent nothing: each rule has lost exactly the admitted requests.
    let left: Vec<u64> = limiter
        .explain(&caller, Toll::ONE, Band::Normal, Moment::ZERO)
        .iter()
        .map(|decision| decision.info.unwrap().remaining)
        .collect();
    assert_eq!(left, [1_000, 0, 500, 2_000]);
}

/// Two limiters that share tables in different orders, as after a reload, must not deadlock.
#[test]
fn threads_on_two_limiters_with_shared_tables_do_not_deadlock() {
    let rules = vec![rule("a", "identifier", bucket(50_000)), rule("b", "ip/32", bucket(40_000))];
    let reversed = rules.iter().rev().cloned().collect();
    let old = limiter(rules, 1);
    let new = old.succeeded_by(plan(reversed, 1)).unwrap();
    let caller = Caller { name: "somebody", address: [203, 0, 113, 7] };
    let admitted = race(|number| {
        let limiter = if number % 2 == 0 { &old } else { &new };
        let admit = |_: &u32| !limiter.decide(&caller, Toll::ONE, Band::Normal, Moment::ZERO).0.verdict.is_refusal();
        (0..10_000).filter(admit).count() as u64
    });
    assert_eq!(admitted, 40_000);
}

#[test]
fn in_flight_slots_are_never_exceeded_and_never_lost() {
    // Twenty keys in one row: some share the overflow record.
    let limiter = one(in_flight(3), 1);
    let in_flight: Vec<AtomicU64> = (0..20).map(|_| AtomicU64::new(0)).collect();
    race(|number| {
        for turn in 0..5_000_usize {
            let key = (turn * 7 + number * 3) % in_flight.len();
            let (verdict, ticket) = ask(&limiter, [key as u8], Toll::ONE, Moment::ZERO);
            if !verdict.is_refusal() {
                assert!(in_flight[key].fetch_add(1, Ordering::SeqCst) < 3);
                in_flight[key].fetch_sub(1, Ordering::SeqCst);
            }
            limiter.settle(ticket, Toll::ONE, Moment::ZERO);
        }
        0
    });
    for key in 0..20_u8 {
        let (held, tickets): (Vec<_>, Vec<_>) = (0..4).map(|_| ask(&limiter, [key], Toll::ONE, Moment::ZERO)).unzip();
        assert_eq!(held.iter().filter(|verdict| !verdict.is_refusal()).count(), 3, "key {key} has lost a place");
        tickets.into_iter().for_each(|ticket| limiter.settle(ticket, Toll::ONE, Moment::ZERO));
    }
}
