//! The rule in the section "Websocket fleet" of docs/recipes.md, evaluated in virtual time: during and after its
//! warm-up, and in every band.

use tollgate_core::band::Band;
use tollgate_core::decide::{Claim, decide};
use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::record::PlainRecord;
use tollgate_core::rule::{Rule, Situation};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use super::*;

const PAGE: &str = include_str!("../../../../../docs/recipes.md");

/// The rule of the recipe, as it is printed.
fn reconnect() -> Rule {
    let (_, section) = PAGE.split_once("\n## Websocket fleet\n").unwrap();
    let (_, config) = section.split_once("```toml\n").unwrap();
    let mut settings = read(config.split_once("```").unwrap().0);
    settings.domains.remove(0).rules.remove(0).rule
}

/// A device: its state and the time.
struct Device {
    record: PlainRecord,
    now: Moment,
}

impl Device {
    fn reconnect(&mut self, rule: &Rule, band: Band) -> Decision {
        let mut claims = [Claim::new(0, rule, self.record.clone())];
        let decision = decide(&mut claims, Toll::ONE, &Situation { now: self.now, started: Moment::ZERO, band });
        let [claim] = claims;
        self.record = claim.record;
        decision
    }

    /// Reconnects again and again until it is refused, then waits as announced. Returns the number of admissions, and
    /// the wait in seconds.
    fn flap(&mut self, rule: &Rule, band: Band) -> (usize, u64) {
        let mut admitted = 0;
        loop {
            let decision = self.reconnect(rule, band);
            let Verdict::Refuse(until) = decision.verdict else {
                admitted += 1;
                assert!(admitted <= 20, "a device is never admitted more often than the ceiling allows");
                continue;
            };
            let wait = until.since(self.now);
            self.now = until;
            return (admitted, wait.as_secs_ceil());
        }
    }
}

fn device_at(rule: &Rule, secs: u64) -> Device {
    Device { record: PlainRecord::new(rule.words()), now: Moment::ZERO + Span::from_secs(secs) }
}

#[test]
fn past_warm_up_each_wait_of_the_recipe_is_twice_the_one_before_in_every_band() {
    let rule = reconnect();
    for (band, waits) in [
        (Band::Normal, [10, 20, 40, 60, 60]),
        (Band::Elevated, [20, 40, 60, 60, 60]),
        (Band::Critical, [40, 60, 60, 60, 60]),
    ] {
        let mut device = device_at(&rule, 30);
        for wait in waits {
            assert_eq!(device.flap(&rule, band), (5, wait), "{band:?}");
        }
    }
}

#[test]
fn a_device_that_waits_as_announced_is_admitted_and_calm_forgives_it() {
    let rule = reconnect();
    let mut device = device_at(&rule, 60);
    for _ in 0..4 {
        device.flap(&rule, Band::Critical);
    }
    assert_eq!(device.reconnect(&rule, Band::Critical).verdict, Verdict::Admit);
    // Level 4 and four release periods.
    device.now = device.now + Span::from_secs(4 * 30);
    assert_eq!(device.flap(&rule, Band::Normal), (5, 10));
}

#[test]
fn warm_up_ends_after_30_seconds_and_no_band_counts_before() {
    let rule = reconnect();
    let mut early = device_at(&rule, 0);
    assert_eq!(early.flap(&rule, Band::Critical), (20, 10), "the ceiling, and the wait of the normal band");
    let mut late = device_at(&rule, 30);
    (0..5).for_each(|_| assert_eq!(late.reconnect(&rule, Band::Normal).verdict, Verdict::Admit));
    assert_eq!(late.reconnect(&rule, Band::Normal).reason, Reason::OverLimit);
}

/// Sharkey's `X-RateLimit-Remaining`: a key that is blocked can use nothing, whatever its limit has room for.
#[test]
fn nothing_remains_during_a_block_even_if_the_window_has_room() {
    let rule = reconnect();
    let mut device = device_at(&rule, 30);
    device.flap(&rule, Band::Critical);
    // The block lasts for 40 s, and the window has room after 10 s.
    device.now = Moment::ZERO + Span::from_secs(30 + 15);
    let blocked = device.reconnect(&rule, Band::Critical);
    assert_eq!(blocked.reason, Reason::InBackoff);
    let info = blocked.info.unwrap();
    assert_eq!((info.remaining, info.reset.as_secs_ceil()), (0, 25));
    assert!(info.clear >= info.reset);
}
