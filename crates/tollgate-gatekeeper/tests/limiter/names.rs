//! Names of throttled callers.

use tollgate_core::band::Band;
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;

use crate::fixtures::*;

#[test]
fn only_the_throttled_have_names_and_the_most_throttled_come_first() {
    let rules = vec![
        Rule { hold_max: Span::from_secs(1), ..rule("names", "identifier", rate(1, 1, 2)) },
        rule("networks", "ip/24", bucket(50)),
    ];
    let limiter = limiter(rules, 64);
    let now = Moment::from_millis(1);
    let ask = |name: &str, last: u8, times: u32| {
        let caller = Caller { name, address: [203, 0, last, 7] };
        (0..times).for_each(|_| drop(limiter.decide(&caller, Toll::ONE, Band::Normal, now)));
    };
    ask("calm", 1, 2);
    ask("eager", 2, 5);
    ask("stormer", 3, 90);
    let seen = limiter.throttled(|_| true, 10, now);
    let [stormer, eager] = &seen[..] else { panic!("two are throttled: {seen:?}") };
    assert_eq!((&stormer.key[..], stormer.rule, stormer.acts), (&b"stormer"[..], 0, [1, 87, 0, 0]));
    assert_eq!((&eager.key[..], eager.rule, eager.acts), (&b"eager"[..], 0, [1, 2, 0, 0]));
    assert_eq!(eager.info.clear, Span::from_secs(3));
    assert_eq!(limiter.throttled(|_| true, 1, now).len(), 1);
}

#[test]
fn what_a_rule_in_observe_mode_would_have_done_is_counted_apart() {
    let observing = Rule { mode: Mode::Observe, ..rule("names", "identifier", bucket(1)) };
    let limiter = limiter(vec![observing], 64);
    for _ in 0..4 {
        let caller = Caller { name: "eager", address: [203, 0, 113, 7] };
        let _ = limiter.decide(&caller, Toll::ONE, Band::Normal, Moment::ZERO);
    }
    let seen = limiter.throttled(|_| true, 10, Moment::ZERO);
    let [eager] = &seen[..] else { panic!("one would be throttled: {seen:?}") };
    assert_eq!((eager.acts[1], eager.acts[3]), (0, 3));
}

#[test]
fn a_network_is_shown_in_cidr_notation() {
    let limiter = limiter(vec![rule("networks", "ip/24", bucket(1))], 1);
    for _ in 0..2 {
        let caller = Caller { name: "", address: [203, 0, 113, 7] };
        let _ = limiter.decide(&caller, Toll::ONE, Band::Normal, Moment::ZERO);
    }
    assert_eq!(limiter.throttled(|_| true, 1, Moment::ZERO)[0].key, b"203.0.113.0/24");
}

#[test]
fn the_most_throttled_of_some_rules_are_not_hidden_by_other_rules() {
    let rules = vec![rule("names", "identifier", bucket(1)), rule("networks", "ip/24", bucket(3))];
    let limiter = limiter(rules, 64);
    for _ in 0..9 {
        let caller = Caller { name: "stormer", address: [203, 0, 113, 7] };
        let _ = limiter.decide(&caller, Toll::ONE, Band::Normal, Moment::ZERO);
    }
    for last in 0..4 {
        let caller = Caller { name: &format!("calm {last}"), address: [198, 51, 100, last] };
        let _ = limiter.decide(&caller, Toll::ONE, Band::Normal, Moment::ZERO);
    }
    let by = |wanted: usize| limiter.throttled(|rule| rule == wanted, 1, Moment::ZERO);
    let [name] = &by(0)[..] else { panic!("one name") };
    assert_eq!((name.rule, &name.key[..]), (0, &b"stormer"[..]));
    let [network] = &by(1)[..] else { panic!("one network") };
    assert_eq!((network.rule, &network.key[..]), (1, &b"198.51.100.0/24"[..]));
    assert!(by(2).is_empty());
}
