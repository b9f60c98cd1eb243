//! Makes the [`Engagement`] of a rule: the description of a request that the rule held or refused, or in observe mode
//! would have, for the log and the statistics.

use tollgate_core::decision::{Decision, Reason};
use tollgate_core::limit::Limit;
use tollgate_core::request::Request;
use tollgate_core::time::Moment;
use tollgate_gatekeeper::names::Name;
use tollgate_wire::rate_limit_headers::LimitStatus;

use super::rules::Rules;
use crate::gate::observe::engagement::Engagement;
use tollgate_core::decision::Act;

/// The engagement that follows from a decision; none if the request passed.
pub(crate) fn by_rule<'a>(
    rules: &'a Rules,
    request: &impl Request,
    decision: &Decision,
    now: Moment,
) -> Option<Engagement<'a>> {
    let act = decision.act()?;
    let rule = rules.limiter.rule(decision.rule?)?;
    let (face, standing) = (rules.face(decision)?, rules.figures(decision)?);
    let key = Name::of(|writer| {
        rule.class.write_key(request, writer);
    });
    let backoff = match act {
        Act::Hold => decision.verdict.hold(now),
        Act::Refuse => decision.verdict.retry_after(now),
        Act::WouldHold | Act::WouldRefuse => standing.reset,
    };
    let (observed, allowed) = match (&rule.limit, decision.reason) {
        // The ceiling applies during warm-up; the status is about the maximum of the window.
        (Limit::Window(window), Reason::Ceiling) => {
            let (max, _, ceiling) = window.parameters();
            let ceiling = u64::from(ceiling.unwrap_or(max));
            (ceiling + 1, ceiling)
        }
        (limit, _) => (observed(limit, &standing, act), standing.quota),
    };
    Some(Engagement {
        act,
        client: request.client(),
        rule: Some(&face.name),
        class: &face.class,
        key,
        reason: decision.reason.as_str(),
        band: decision.band,
        observed,
        allowed,
        backoff,
        level: decision.level,
        standing: None,
    })
}

/// The used amount of the limit, this request included; more than the limit if the key is in debt.
fn observed(limit: &Limit, standing: &LimitStatus<'_>, act: Act) -> u64 {
    let used = match (limit, standing.window) {
        // These refill at a steady rate, so the time until they are full gives the used part, debt included.
        (Limit::Budget(_) | Limit::Rate(_), Some(window)) if !window.is_zero() => {
            let used = u128::from(standing.quota) * u128::from(standing.clear.as_nanos());
            u64::try_from(used.div_ceil(u128::from(window.as_nanos()))).unwrap_or(u64::MAX)
        }
        _ => standing.quota.saturating_sub(standing.remaining),
    };
    // A held request is charged already. One that was refused or only observed is added here if the limit counts
    // requests; under a budget its cost is not known.
    let is_charged = matches!(act, Act::Hold) || matches!(limit, Limit::Budget(_));
    used.saturating_add(u64::from(!is_charged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Gate, Settings};
    use std::net::IpAddr;
    use tollgate_core::band::Band;
    use tollgate_core::time::Span;
    use tollgate_core::toll::Toll;

    struct ClientAt(&'static str);

    impl Request for ClientAt {
        fn client(&self) -> Option<IpAddr> {
            self.0.parse().ok()
        }
        fn method(&self) -> &[u8] {
            b"GET"
        }
        fn target(&self) -> &[u8] {
            b"/"
        }
    }

    /// The act, the observed and allowed amounts and the backoff in ms, for the third request at one moment.
    fn third(limit: &str) -> Option<(Act, u64, u64, u64)> {
        let text = format!("[[rule]]\nname = 'r'\nclass = 'ip/32'\n{limit}\n");
        let settings = Settings::parse("test.toml", &text).unwrap();
        let rules = Rules::new(
            &settings.domains[0],
            crate::gate::decide::remote_state::RemoteState::default(),
            Gate::default().hold,
            None,
            Moment::ZERO,
        )
        .unwrap();
        let (request, now) = (ClientAt("203.0.113.7"), Moment::from_millis(60_000));
        let mut last = None;
        for _ in 0..3 {
            let (decision, _) = rules.decide(&request, Toll::of_cpu(Span::from_millis(800)), Band::Normal, now);
            last = by_rule(&rules, &request, &decision, now);
        }
        let last = last?;
        assert_eq!((last.key.as_bytes(), last.rule, last.class), (&b"203.0.113.7/32"[..], Some("r"), "ip/32"));
        Some((last.act, last.observed, last.allowed, last.backoff.as_millis_ceil()))
    }

    #[test]
    fn an_engagement_has_the_observed_and_allowed_amounts_and_the_backoff() {
        assert_eq!(third("bucket = { size = 2, drip = 1, every = '4s' }"), Some((Act::Refuse, 3, 2, 4_000)));
        assert_eq!(third("rate = { rate = '1/s', burst = 2 }\nhold = '0s'"), Some((Act::Refuse, 3, 2, 1_000)));
        assert_eq!(third("rate = { rate = '1/s', burst = 2 }"), Some((Act::Hold, 3, 2, 1_000)));
        assert_eq!(third("window = { max = 2, per = '9s' }"), Some((Act::Refuse, 3, 2, 9_000)));
        assert_eq!(
            third("window = { max = 1, per = '9s', ceiling = 2 }\nwarmup = '1h'"),
            Some((Act::Refuse, 3, 2, 9_000)),
            "the ceiling, not the maximum"
        );
        assert_eq!(
            third("bucket = { size = 2, drip = 1, every = '4s' }\nmode = 'observe'"),
            Some((Act::WouldRefuse, 3, 2, 4_000))
        );
        assert_eq!(third("in_flight = { max = 2 }"), Some((Act::Refuse, 3, 2, 1_000)));
        // 1.6 of 1.5 CPU-seconds are used, and a tenth of a second of debt takes one second to repay.
        assert_eq!(
            third("budget = { cores = 0.1, burst = '1.5s' }\nhold = '0s'"),
            Some((Act::Refuse, 1600, 1500, 1_000))
        );
        assert_eq!(third("bucket = { size = 3, drip = 1, every = '4s' }"), None);
    }
}
