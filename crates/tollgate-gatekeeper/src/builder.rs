//! Builds a limiter in a few lines, for services that embed one.
//!
//! A [`Plan`] states everything explicitly, which suits a gate with a settings file. A service that needs a few limits
//! uses [`Limiter::builder`] instead: rules have defaults, and the built [`ClockedLimiter`] has a clock of its own.

use core::fmt;
use core::time::Duration;

use tollgate_core::band::Band;
use tollgate_core::class::{Class, ClassError};
use tollgate_core::condition::Condition;
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::limit::{Bucket, Budget, InFlight, Limit, LimitError, Rate, Window};
use tollgate_core::path::PathPattern;
use tollgate_core::request::Request;
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::Span;
use tollgate_core::toll::Toll;

use crate::build_error::BuildError;
use crate::clock::Clock;
use crate::hash::Seed;
use crate::limiter::{Limiter, Plan};
use crate::table::table_bytes_for;
use crate::ticket::Ticket;

/// The default number of keys for which a rule has memory. Further keys evict idle ones.
const KEYS: usize = 10_000;
/// The number of throttled callers whose names are kept for display.
const NAMES_MAX: usize = 64;

/// This many requests per second and key.
pub fn per_second(requests: u64) -> RuleBuilder {
    RuleBuilder::rate(requests, Span::from_secs(1))
}

/// This many requests per minute and key.
pub fn per_minute(requests: u64) -> RuleBuilder {
    RuleBuilder::rate(requests, Span::from_secs(60))
}

/// This many requests per hour and key.
pub fn per_hour(requests: u64) -> RuleBuilder {
    RuleBuilder::rate(requests, Span::from_secs(3600))
}

/// A bucket of `size` requests per key, which gets back `drip` of them at once after each period `every`.
pub fn bucket(size: u32, drip: u32, every: Duration) -> RuleBuilder {
    RuleBuilder::new(Bucket::new(size, drip, every.into()).map(Limit::Bucket))
}

/// At most `max` requests per key in any period of length `per`.
pub fn window(max: u32, per: Duration) -> RuleBuilder {
    RuleBuilder::new(Window::new(max, per.into(), None).map(Limit::Window))
}

/// At most `max` requests per key at the same time.
pub fn in_flight(max: u32) -> RuleBuilder {
    RuleBuilder::new(InFlight::new(max).map(Limit::InFlight))
}

/// CPU time per key: `cores` of a CPU on average, and up to `burst` of CPU time in advance.
pub fn budget(cores: f64, burst: Duration) -> RuleBuilder {
    let millionths = (cores * 1e6).round();
    // NaN and negative numbers become 0, which is not a budget.
    RuleBuilder::new(Budget::new(millionths as u32, burst.into()).map(Limit::Budget))
}

/// One rule of a [`LimiterBuilder`].
#[must_use]
#[derive(Clone, Debug)]
pub struct RuleBuilder {
    limit: Result<Limit, LimitError>,
    name: Option<String>,
    class: Result<Class, ClassError>,
    when: Condition,
    hold: Span,
    mode: Mode,
    /// The number of keys for which the table has memory.
    keys: usize,
}

impl RuleBuilder {
    fn new(limit: Result<Limit, LimitError>) -> Self {
        Self {
            limit,
            name: None,
            class: Class::parse("identifier"),
            when: Condition::default(),
            hold: Span::ZERO,
            mode: Mode::Enforce,
            keys: KEYS,
        }
    }

    fn rate(requests: u64, period: Span) -> Self {
        Self::new(Rate::new(requests, period, requests).map(Limit::Rate))
    }

    /// Sets the number of requests that a key may make at once after a pause. The default is the number per period.
    /// Only rates have a burst.
    pub fn burst(mut self, requests: u64) -> Self {
        if let Ok(Limit::Rate(rate)) = self.limit {
            let (count, period, _) = rate.parameters();
            self.limit = Rate::new(count, period, requests).map(Limit::Rate);
        }
        self
    }

    /// Sets the class that identifies callers, such as `ip/32` or `header:x-api-key`. The default is `identifier`: the
    /// key given to [`ClockedLimiter::check`].
    pub fn by(mut self, class: &str) -> Self {
        self.class = Class::parse(class);
        self
    }

    /// Sets the name, for headers, explanations and other processes. The default is `rule-1` for the first rule.
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Limits the rule to a path: `/login`, or `/api/*` for everything below it.
    pub fn path(mut self, pattern: &str) -> Self {
        self.when.paths.push(PathPattern::new(pattern));
        self
    }

    /// Limits the rule to requests that meet this condition.
    pub fn when(mut self, condition: Condition) -> Self {
        self.when = condition;
        self
    }

    /// Sets the longest time for which a request is held until it is within the limit. Longer waits are refused. The
    /// default is zero.
    pub fn hold(mut self, longest: Duration) -> Self {
        self.hold = longest.into();
        self
    }

    /// Decides and counts, and admits every request.
    pub fn observe(mut self) -> Self {
        self.mode = Mode::Observe;
        self
    }

    /// Sets the number of keys for which the rule has memory. The default is 10,000.
    pub fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    fn build(self, place: usize) -> Result<(Rule, usize), BuildError> {
        let name = self.name.unwrap_or_else(|| format!("rule-{}", place + 1));
        let class = self.class.map_err(|cause| BuildError::new(place, cause))?;
        let limit = self.limit.map_err(|cause| BuildError::new(place, cause))?;
        let rule = Rule { when: self.when, hold_max: self.hold, mode: self.mode, ..Rule::new(name, class, limit) };
        let bytes = table_bytes_for(&rule, self.keys);
        Ok((rule, bytes))
    }
}

/// Builds a limiter. Created by [`Limiter::builder`].
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct LimiterBuilder {
    rules: Vec<RuleBuilder>,
    clock: Option<Clock>,
}

impl Limiter {
    /// A builder for a limiter with its own clock.
    ///
    /// ```
    /// use tollgate_gatekeeper::{Limiter, per_second};
    ///
    /// let limiter = Limiter::builder().rule(per_second(10).burst(20)).build()?;
    /// match limiter.check("ann") {
    ///     Ok(_) => println!("served"),
    ///     Err(refused) => println!("retry in {:?}", refused.retry_after),
    /// }
    /// # Ok::<(), tollgate_gatekeeper::BuildError>(())
    /// ```
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }
}

impl LimiterBuilder {
    /// Adds a rule. All rules that apply to a request are checked, and then all or none are charged.
    pub fn rule(mut self, rule: RuleBuilder) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets the clock, for tests: see [`Clock::by_hand`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The plan of these rules, for a [`SharedPlan`](crate::shared::SharedPlan) or a
    /// [`Keeper`](crate::tower::Keeper).
    pub fn plan(self) -> Result<Plan, BuildError> {
        let started = self.clock.as_ref().map_or(tollgate_core::time::Moment::ZERO, Clock::now);
        let rules = self.rules.into_iter().enumerate().map(|(place, rule)| rule.build(place));
        Ok(Plan { rules: rules.collect::<Result<_, _>>()?, started, seed: Seed::random(), names_max: NAMES_MAX })
    }

    /// Builds the limiter.
    pub fn build(mut self) -> Result<ClockedLimiter, BuildError> {
        let clock = self.clock.take().unwrap_or_else(Clock::start);
        let plan = Plan { started: clock.now(), ..self.plan()? };
        let has_budget = plan.rules.iter().any(|(rule, _)| matches!(rule.limit, Limit::Budget(_)));
        Ok(ClockedLimiter { limiter: Limiter::new(plan)?, clock, has_budget })
    }

    /// Builds a layer for services of axum, hyper, tonic and tower.
    #[cfg(feature = "tower")]
    pub fn layer(self) -> Result<crate::tower::KeeperLayer, crate::tower::KeeperError> {
        crate::tower::Keeper::new(self.plan()?).map(crate::tower::KeeperLayer::new)
    }
}

/// A limiter with a clock. It decides from memory on any number of threads.
#[derive(Debug)]
pub struct ClockedLimiter {
    limiter: Limiter,
    clock: Clock,
    /// Whether a rule is a budget, for which the time of requests must be measured.
    has_budget: bool,
}

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The time after which the caller is admitted, other things equal. `None` if it is unknown, because it depends on
    /// the end of other requests, or never.
    pub retry_after: Option<Duration>,
    /// The decision, with its reason and the state of the limit.
    pub decision: Decision,
}

impl fmt::Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retry_after {
            Some(wait) => write!(formatter, "over the limit, retry in {} ms", wait.as_millis() + 1),
            None => formatter.write_str("over the limit"),
        }
    }
}

impl core::error::Error for Refused {}

/// An admitted request. Keep it for as long as the request runs: dropping it ends the request, which matters for the
/// limits [`in_flight`] and [`budget`]. A budget is charged the time until then, or the cost given to
/// [`settle`](Self::settle).
#[derive(Debug)]
pub struct Admitted<'limiter> {
    limiter: &'limiter ClockedLimiter,
    ticket: Option<Ticket>,
    /// The time for which a rule with [`hold`](RuleBuilder::hold) wants the request to wait before it begins.
    pub wait: Duration,
    /// The decision, with the state of the limit.
    pub decision: Decision,
    /// The time at which the request begins, after `wait`.
    begun: tollgate_core::time::Moment,
}

impl ClockedLimiter {
    /// Decides on a request of the caller with this key, by the rules of the class `identifier`, and charges it if it
    /// is admitted.
    pub fn check(&self, key: impl AsRef<[u8]>) -> Result<Admitted<'_>, Refused> {
        self.check_request(&Identified(key.as_ref()))
    }

    /// Decides on a request by all rules, and charges it if it is admitted.
    pub fn check_request(&self, request: &impl Request) -> Result<Admitted<'_>, Refused> {
        let now = self.clock.now();
        let (decision, ticket) = self.limiter.decide(request, Toll::ONE, Band::Normal, now);
        match decision.verdict {
            Verdict::Admit | Verdict::Hold(_) => {
                let hold = decision.verdict.hold(now);
                Ok(Admitted { limiter: self, ticket: Some(ticket), wait: hold.into(), decision, begun: now + hold })
            }
            Verdict::Refuse(until) => Err(Refused { retry_after: Some(until.since(now).into()), decision }),
            Verdict::RefuseUntilRelease | Verdict::RefuseForGood => Err(Refused { retry_after: None, decision }),
        }
    }

    /// The limiter without its clock.
    pub const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    /// The clock.
    pub const fn clock(&self) -> &Clock {
        &self.clock
    }
}

impl Admitted<'_> {
    /// Ends the request, which has cost this CPU time.
    pub fn settle(mut self, cpu: Duration) {
        self.end(cpu.into());
    }

    /// Returns the charge of a request that did not take place.
    pub fn refund(mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.limiter.limiter.refund(ticket, self.limiter.clock.now());
        }
    }

    fn end(&mut self, cpu: Span) {
        if let Some(ticket) = self.ticket.take() {
            self.limiter.limiter.settle(ticket, Toll { count: 1, cpu }, self.limiter.clock.now());
        }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let is_timed = self.limiter.has_budget && self.ticket.is_some();
        let spent = if is_timed { self.limiter.clock.now().since(self.begun) } else { Span::ZERO };
        self.end(spent);
    }
}

/// A caller with a key, and nothing else.
pub(crate) struct Identified<'a>(pub(crate) &'a [u8]);

impl Request for Identified<'_> {
    fn attribute(&self, name: &str) -> Option<&[u8]> {
        (name == "identifier").then_some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter(rule: RuleBuilder) -> (ClockedLimiter, crate::clock::Hand) {
        let (clock, hand) = Clock::by_hand();
        (Limiter::builder().rule(rule).clock(clock).build().unwrap(), hand)
    }

    #[test]
    fn a_caller_that_waits_as_announced_is_admitted() {
        let (limiter, hand) = limiter(per_second(2).burst(3));
        assert_eq!((0..4).filter(|_| limiter.check("ann").is_ok()).count(), 3);
        let refused = limiter.check("ann").unwrap_err();
        assert_eq!(refused.retry_after, Some(Duration::from_millis(500)));
        assert!(limiter.check("bob").is_ok(), "each key has a limit of its own");
        hand.advance(Span::from_nanos(499_999_999));
        assert!(limiter.check("ann").is_err());
        hand.advance(Span::from_nanos(1));
        assert!(limiter.check("ann").is_ok());
    }

    #[test]
    fn a_request_is_in_flight_until_its_admission_is_dropped() {
        let (limiter, _hand) = limiter(in_flight(1));
        let first = limiter.check("ann").unwrap();
        let refused = limiter.check("ann").unwrap_err();
        assert_eq!(refused.retry_after, None);
        drop(first);
        assert!(limiter.check("ann").is_ok());
    }

    #[test]
    fn a_budget_is_charged_the_time_or_the_stated_cost() {
        let (limiter, hand) = limiter(budget(0.5, Duration::from_secs(1)));
        let slow = limiter.check("slow").unwrap();
        hand.advance(Span::from_secs(3));
        drop(slow);
        assert!(limiter.check("slow").is_err(), "three seconds are more than the burst");
        let cheap = limiter.check("cheap").unwrap();
        hand.advance(Span::from_secs(3));
        cheap.settle(Duration::from_millis(10));
        assert!(limiter.check("cheap").is_ok());
        limiter.check("never").unwrap().refund();
        assert!(limiter.check("never").is_ok());
    }

    #[test]
    fn a_held_request_has_its_wait() {
        let (limiter, _hand) = limiter(per_second(1).hold(Duration::from_secs(2)));
        assert_eq!(limiter.check("ann").unwrap().wait, Duration::ZERO);
        assert_eq!(limiter.check("ann").unwrap().wait, Duration::from_secs(1));
    }

    #[test]
    fn several_rules_charge_all_or_none() {
        let (clock, _hand) = Clock::by_hand();
        let builder = Limiter::builder().clock(clock).rule(per_minute(5).named("minute")).rule(bucket(
            2,
            1,
            Duration::from_secs(9),
        ));
        let limiter = builder.build().unwrap();
        assert!(limiter.check("ann").is_ok() && limiter.check("ann").is_ok());
        let refused = limiter.check("ann").unwrap_err();
        assert_eq!((refused.decision.rule, limiter.limiter().rule(0).unwrap().name.as_str()), (Some(1), "minute"));
        assert_eq!(limiter.limiter().rule(1).unwrap().name, "rule-2");
    }

    #[test]
    fn errors_name_the_rule() {
        let build =
            |rule| Limiter::builder().rule(per_second(1)).rule(rule).build().map(|_| ()).unwrap_err().to_string();
        for (rule, starts) in [
            (per_second(0), "rule 2: "),
            (per_second(1).by("ip/99"), "rule 2: "),
            (budget(f64::NAN, Duration::from_secs(1)), "rule 2: "),
            (budget(-1.0, Duration::from_secs(1)), "rule 2: "),
            (window(0, Duration::from_secs(1)), "rule 2: "),
        ] {
            let message = build(rule);
            assert!(message.starts_with(starts) && message.len() > starts.len() + 5, "{message}");
        }
    }
}
