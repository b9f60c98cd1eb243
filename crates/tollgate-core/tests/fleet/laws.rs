//! The two laws of the fleet, over many seeds: over-admission is bounded, and no client is delayed without
//! cause.

use std::env;

use crate::plan::{MILLI, Plan, SECOND};
use crate::simulated_fleet::{ATTACKER, Findings, INNOCENT, SimulatedFleet};

const SEEDS: u64 = 100;

#[test]
fn over_admission_is_bounded_and_no_innocent_client_is_delayed() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number("TOLLGATE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TOLLGATE_SEEDS").unwrap_or(SEEDS),
    };
    let failures: Vec<String> = seeds.filter_map(|seed| check(seed).err()).collect();
    assert!(
        failures.is_empty(),
        "{} seeds failed, first:\n{}",
        failures.len(),
        failures[..failures.len().min(5)].join("\n")
    );
}

fn check(seed: u64) -> Result<(), String> {
    check_plan(&Plan::draw(seed), seed)
}

/// Runs a plan. Returns the law that it breaks.
pub(crate) fn check_plan(plan: &Plan, seed: u64) -> Result<(), String> {
    let findings = SimulatedFleet::new(plan.clone(), seed).run();
    let fail = |what: String| Err(format!("TOLLGATE_SEED={seed}: {what}\n{plan:?}"));
    let (most, bound) = (most_above_rate(&findings.passed, plan.rate), bound(plan, &findings));
    if most > bound {
        return fail(format!("{most:.1} more than the rate at some point, the bound is {bound:.1}"));
    }
    let lag = findings.knowledge_lag(INNOCENT);
    // Two transits, because the gate's copy of the clock is one transit old, plus the assumed clock drift.
    let delay = findings.innocent_delay_late(0);
    let allowed = lag + plan.round_trip + plan.length / 10_000 + MILLI;
    if delay > allowed {
        let (delay, allowed) = (delay / MILLI, allowed / MILLI);
        return fail(format!("an innocent client was delayed by {delay} ms, allowed are {allowed} ms"));
    }
    if findings.innocent_requests == 0 || findings.passed.is_empty() {
        return fail("nothing happened".into());
    }
    Ok(())
}

/// The largest excess of admitted requests over the rate, over all stretches of time.
fn most_above_rate(passed: &[u64], rate: u64) -> f64 {
    let (mut level, mut most, mut last) = (0.0_f64, 0.0_f64, 0);
    for &time in passed {
        level = (level - (time - last) as f64 * rate as f64 / SECOND as f64).max(0.0) + 1.0;
        most = most.max(level);
        last = time;
    }
    most
}

/// The stated bound, without the requests that the rate allows over time.
fn bound(plan: &Plan, findings: &Findings) -> f64 {
    // A held request has been promised, and requests that other gates admit later do not revoke it.
    let lag = findings.knowledge_lag(ATTACKER) + plan.round_trip + plan.hold_max;
    let (gates, burst) = (findings.gates as f64, plan.burst as f64);
    let offered = most_within(&findings.offered, lag) as f64;
    let others = (gates - 1.0) * (burst + plan.rate as f64 * lag as f64 / SECOND as f64);
    burst + offered.min(others) + gates
}

fn most_within(times: &[u64], span: u64) -> usize {
    let mut first = 0;
    let mut most = 0;
    for (place, time) in times.iter().enumerate() {
        while time - times[first] > span {
            first += 1;
        }
        most = most.max(place + 1 - first);
    }
    most
}
