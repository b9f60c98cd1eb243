//! Parallel requests of one client get its share and no more: the table in Tempomat's documentation. An address that
//! may use one CPU-second per second, and sends one, two or three requests of one second at a time, gets one request
//! per second in each case, and its requests wait for 0, 1 and 2 s.

use tollgate_core::decision::Verdict;
use tollgate_core::limit::{Budget, Limit};
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::generators::*;

/// Requests per second and the average wait in seconds of `parallel` clients with one key, each of which costs
/// `cost_ms` of CPU time and takes as long, with `millicores` of CPU time per second. Clients obey the gate, and send
/// the next request when the last one has ended. The credit of 30 s is used up before the measurement.
fn steady_state(parallel: usize, cost_ms: u64, millicores: u32) -> (f64, f64) {
    let budget = Budget::new(millicores * 1000, Span::from_secs(30)).unwrap();
    let rule = Rule { hold_max: Span::from_secs(5), ..rule(Limit::Budget(budget)) };
    let mut record = fresh(&rule);
    // When each client sends its request, and when it first did.
    let mut ready = vec![(Moment::ZERO, Moment::ZERO); parallel];
    let (warm, end) = (Moment::from_millis(200_000), Moment::from_millis(1_200_000));
    let (mut served, mut waited_ms) = (0, 0);
    loop {
        let (client, (now, sent)) = ready.iter().copied().enumerate().min_by_key(|(_, at)| *at).unwrap();
        if now >= end {
            let served = f64::from(served);
            return (served / end.since(warm).as_secs_ceil() as f64, waited_ms as f64 / served / 1000.0);
        }
        let cost = Span::from_millis(cost_ms);
        let begin = match ask(&rule, &mut record, Toll::of_cpu(cost), &at(now)).verdict {
            Verdict::Admit => Some(now),
            Verdict::Hold(until) => Some(until),
            Verdict::Refuse(from) => {
                ready[client] = (from, sent);
                None
            }
            verdict => panic!("{verdict:?}"),
        };
        if let Some(begin) = begin {
            ready[client] = (begin + cost, begin + cost);
            if begin >= warm {
                served += 1;
                waited_ms += begin.since(sent).as_millis_ceil();
            }
        }
    }
}

#[test]
fn one_two_and_three_parallel_clients_of_one_address_get_the_same_rate() {
    for (parallel, expected_wait) in [(1, 0.0), (2, 1.0), (3, 2.0)] {
        let (rate, wait) = steady_state(parallel, 1000, 1000);
        assert!((0.998..=1.002).contains(&rate), "{parallel} in parallel: {rate} per second");
        assert!((wait - expected_wait).abs() < 0.01, "{parallel} in parallel: {wait} s");
    }
}

#[test]
fn a_share_is_a_cap_however_many_requests_are_parallel() {
    // `slash32Share` of 0.10 and four CPUs: 0.4 CPU-seconds per second, for pages of 200 ms.
    for parallel in [1, 3, 20] {
        let (rate, _) = steady_state(parallel, 200, 400);
        assert!((1.99..=2.01).contains(&rate), "{parallel} in parallel: {rate} per second");
    }
}
