//! The rules of one domain as the gate uses them: the limiter that decides, with the settings and counters of each rule
//! that the limiter does not have. A reload replaces them as a whole.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::decision::Decision;
use tollgate_core::inputs::Inputs;
use tollgate_core::limit::{Factor, Limit, LimitError};
use tollgate_core::request::Request;
use tollgate_core::rule::{Mode, Rule};
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::BuildError;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limit_status;
use tollgate_gatekeeper::limiter::{Limiter, Plan};
use tollgate_gatekeeper::names::Name;
use tollgate_wire::rate_limit_headers::LimitStatus;

use super::remote_state::{Charge, RemoteLinks, RemoteState};
use super::scaled_limiters::ScaledLimiters;
use crate::settings::{Domain, Gate as Settings, Hold};
use crate::watch::Flagged;
use tollgate_core::decision::Act;

/// The number of throttled keys whose names are kept for the console.
const NAMES_MAX: usize = 4096;

/// The approximate number of requests to routes of unknown cost that a key with its full burst may have in flight under
/// a budget.
const UNSEEN_IN_FLIGHT_MAX: u64 = 8;

/// The rules of one domain.
pub(crate) struct Rules {
    /// The limiter of these rules.
    pub(crate) limiter: Limiter,
    /// The shared state of rules.
    pub(crate) remote_state: RemoteState,
    /// The settings and counters of each rule, by the index that the limiter uses in its decisions.
    pub(crate) faces: Vec<Face>,
    /// The bounds on held requests.
    pub(crate) hold: Hold,
    /// Whether any limit depends on the end of a request: an in-flight limit or a budget.
    pub(crate) has_open_limits: bool,
    /// The minimum charge of a request to a route of unknown cost; none if no rule has a budget.
    unseen_cost: Option<Span>,
    /// The class that identifies accounts, which the watch flags; none if no rule and no priority uses flags.
    account: Option<Class>,
    /// The headers, cookies and JSON values that the rules use.
    pub(crate) inputs: Inputs,
    scaled: ScaledLimiters,
    /// The number of reloads until these rules came into force.
    pub(crate) generation: u64,
}

/// The parts of a rule that clients and operators see.
pub(crate) struct Face {
    /// The rule's name.
    pub(crate) name: String,
    /// The class of its keys.
    pub(crate) class: String,
    /// The status of its refusals, if configured.
    pub(crate) status: Option<u16>,
    /// Whether responses contain the state of its limit.
    pub(crate) shows_limit: bool,
    /// Whether it only observes because the gate does: in an enforcing gate it would hold and refuse.
    pub(super) observes_with_gate: bool,
    pub(crate) counters: RuleCounters,
}

/// The counters of one rule. A request is counted for the rule that decided about it. The alignment keeps the counters
/// of two rules out of one cache line, so that threads do not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct RuleCounters {
    counts: [AtomicU64; RuleCounters::KINDS.len()],
    toll_ns: AtomicU64,
}

impl RuleCounters {
    /// The names of the counted acts in metrics, in the order of [`Act`].
    pub(crate) const KINDS: [&'static str; Act::ALL.len()] = ["held", "refused", "would-hold", "would-refuse"];

    /// The cost of the requests that it admitted or held, in nanoseconds.
    pub(crate) fn toll_ns(&self) -> u64 {
        self.toll_ns.load(Ordering::Relaxed)
    }

    /// The count with this index in [`Self::KINDS`].
    pub(crate) fn read(&self, kind: usize) -> u64 {
        self.counts[kind].load(Ordering::Relaxed)
    }
}

impl Rules {
    /// The rules of `domain` under `settings`, all in observe mode if the gate is. Rules that are unchanged since
    /// `before` a reload keep their state and their counters.
    pub(crate) fn load(
        domain: &Domain,
        settings: &Settings,
        links: RemoteLinks<'_>,
        clock: &Clock,
        before: Option<&Self>,
    ) -> Result<Self, BuildError> {
        let (mut domain, written) = (Cow::Borrowed(domain), domain);
        if settings.mode == Mode::Observe {
            domain.to_mut().rules.iter_mut().for_each(|settings| settings.rule.mode = Mode::Observe);
        }
        let remote_state = RemoteState::new(&domain, links, clock, before.map(|before| &before.remote_state))?;
        let mut rules = Self::new(&domain, remote_state, settings.hold, before, clock.now())?;
        for (face, written) in rules.faces.iter_mut().zip(&written.rules) {
            face.observes_with_gate = settings.mode == Mode::Observe && written.rule.mode == Mode::Enforce;
        }
        Ok(rules)
    }

    pub(super) fn new(
        domain: &Domain,
        remote_state: RemoteState,
        hold: Hold,
        before: Option<&Self>,
        started: Moment,
    ) -> Result<Self, BuildError> {
        let mut limiter = match before {
            Some(before) => before.limiter.succeeded_by(plan(domain, Moment::ZERO))?,
            None => Limiter::new(plan(domain, started))?,
        };
        if let Some(masters) = &remote_state.masters {
            limiter.report_to(&masters.relay);
        }
        let is_open = |limit: &Limit| matches!(limit, Limit::InFlight(_) | Limit::Budget(_));
        Ok(Self {
            limiter,
            remote_state,
            faces: faces(domain, before.map(|before| &before.faces[..])),
            hold,
            has_open_limits: domain.rules.iter().any(|settings| is_open(&settings.rule.limit)),
            unseen_cost: unseen_cost(domain),
            account: domain.account.clone(),
            inputs: Inputs::of(domain.rules.iter().map(|settings| &settings.rule), domain.account.as_ref()),
            scaled: ScaledLimiters::default(),
            generation: before.map_or(0, |before| before.generation + 1),
        })
    }

    /// Whether local state is enough to decide about `request`. If so, call [`Self::decide`], otherwise [`Self::ask`].
    #[inline]
    pub(crate) fn is_local(&self, request: &impl Request) -> bool {
        !self.remote_state.concerns(request)
    }

    /// Decides from local state, and charges the request if it is not refused.
    pub(crate) fn decide(&self, request: &impl Request, toll: Toll, band: Band, now: Moment) -> (Decision, Charge) {
        let (decision, ticket) = self.limiter.decide(request, toll, band, now);
        (decision, ticket.into())
    }

    /// Decides and charges like [`Self::decide`], with the shared store. If the store does not respond in time, the
    /// setting `on_timeout` of its rules decides: by local state, or by a refusal.
    pub(crate) async fn ask(
        &self,
        request: &impl Request,
        toll: Toll,
        band: Band,
        clock: &Clock,
    ) -> (Decision, Charge) {
        match &self.remote_state.redis {
            Some(sharing) => sharing.decide(&self.limiter, request, toll, band).await,
            None => self.decide(request, toll, band, clock.now()),
        }
    }

    /// The refusal by a budget whose key has come into debt since `request` was admitted. `reserved` is the charge of
    /// the request itself, which does not count as debt. `is_exempt` excludes rules, by index.
    pub(crate) fn debt(
        &self,
        request: &impl Request,
        reserved: Span,
        is_exempt: impl Fn(usize) -> bool,
        band: Band,
        now: Moment,
    ) -> Option<Decision> {
        let of_budget = |(index, rule): (usize, &Rule)| {
            let Limit::Budget(budget) = rule.limit else { return None };
            if !rule.applies(request) {
                return None;
            }
            // A debt that is older than this request remains when the request itself is repaid.
            let repaid = now + budget.time_of(reserved);
            let decision_at = |at: Moment| self.limiter.explain_rule(index, request, band, at);
            let is_refused = |decision: &Decision| decision.verdict.is_refusal() && !is_exempt(index);
            decision_at(repaid).filter(is_refused).and_then(|_| decision_at(now))
        };
        self.limiter.rules().enumerate().find_map(of_budget).filter(|decision| decision.verdict.is_refusal())
    }

    /// Counts the act on a request. `decision` is the final one: a request without room to be held is refused, and an
    /// exempt key passes.
    pub(crate) fn count(&self, decision: &Decision) {
        if let (Some(face), Some(act)) = (self.face(decision), decision.act()) {
            face.counters.counts[act as usize].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a rule would have refused the request if the gate did not only observe.
    pub(crate) fn would_refuse(&self, decision: &Decision) -> bool {
        let would_enforce = self.face(decision).is_some_and(|face| face.observes_with_gate);
        would_enforce && decision.act() == Some(Act::WouldRefuse)
    }

    /// Reports the act on a request to the masters, if these rules have any.
    #[inline]
    pub(crate) fn report(&self, request: &impl Request, decision: &Decision, charge: &mut Charge, now: Moment) {
        if self.remote_state.masters.is_some() {
            self.limiter.report(request, decision, &mut charge.here, now);
        }
    }

    /// The limiter with limits scaled by `factor` (2 halves them), and the same state.
    pub(crate) fn scaled(&self, factor: Factor) -> Result<Arc<Limiter>, LimitError> {
        self.scaled.of(&self.limiter, factor)
    }

    /// Whether any rule has a budget, so that costs must be predicted.
    pub(crate) fn has_budget(&self) -> bool {
        self.unseen_cost.is_some()
    }

    /// The charge of a request when it is admitted: the mean cost of its route. If no cost of the route is known
    /// (`is_unseen`), it is at least a part of the smallest burst, which bounds the number of such requests of one key
    /// in flight.
    pub(crate) fn reservation(&self, (mean, is_unseen): (Span, bool)) -> Span {
        if is_unseen { mean.max(self.unseen_cost.unwrap_or(Span::ZERO)) } else { mean }
    }

    /// Whether the account of `request` is flagged. Always false if no rule and no priority uses flags.
    #[inline]
    pub(crate) fn is_flagged(&self, request: &impl Request, flagged: &Flagged) -> bool {
        let Some(account) = self.account.as_ref().filter(|_| !flagged.is_empty()) else { return false };
        let mut has_account = false;
        let name = Name::of(|writer| has_account = account.write_key(request, writer));
        has_account && flagged.contains(name.as_bytes())
    }

    /// Adds the cost of a request to the rule that decided about it.
    pub(crate) fn cost(&self, decision: &Decision, toll: Span) {
        if let Some(face) = self.face(decision) {
            face.counters.toll_ns.fetch_add(toll.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Whether a rule has this class.
    pub(crate) fn has_class(&self, class: &str) -> bool {
        self.faces.iter().any(|face| face.class == class)
    }

    /// The settings and counters of the rule that decided.
    pub(crate) fn face(&self, decision: &Decision) -> Option<&Face> {
        self.faces.get(decision.rule?)
    }

    /// Passes the response headers with the state of the limit that decided to `push`, if the rule shows it.
    pub(crate) fn write_limit_headers(&self, decision: &Decision, mut push: impl FnMut(&[u8], &[u8])) {
        let Some(standing) = self.standing(decision) else { return };
        limit_status::write_fields(standing, decision.verdict.is_refusal(), |field, value| {
            push(field.as_str().as_bytes(), value)
        });
    }

    /// The state of the limit that decided, if the rule shows it.
    fn standing(&self, decision: &Decision) -> Option<LimitStatus<'_>> {
        self.face(decision).filter(|face| face.shows_limit)?;
        self.figures(decision)
    }

    /// The state of the limit that decided, whether or not the rule shows it.
    pub(crate) fn figures(&self, decision: &Decision) -> Option<LimitStatus<'_>> {
        let rule = self.limiter.rule(decision.rule?)?;
        Some(limit_status::of(&self.face(decision)?.name, &rule.limit, decision.info?))
    }
}

fn plan(domain: &Domain, started: Moment) -> Plan {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    Plan {
        rules: domain.rules.iter().map(|settings| (settings.rule.clone(), bytes(settings.memory_bytes))).collect(),
        started,
        seed: Seed::random(),
        names_max: NAMES_MAX,
    }
}

/// See [`Rules::unseen_cost`].
fn unseen_cost(domain: &Domain) -> Option<Span> {
    let bursts = domain.rules.iter().filter_map(|settings| match settings.rule.limit {
        Limit::Budget(budget) => Some(budget.parameters().1),
        _ => None,
    });
    bursts.min().map(|burst| Span::from_nanos(burst.as_nanos() / UNSEEN_IN_FLIGHT_MAX))
}

/// The settings and counters of the rules. A rule with the name and class of an earlier one continues its counters.
fn faces(domain: &Domain, before: Option<&[Face]>) -> Vec<Face> {
    let counts_of = |name: &str, class: &str| {
        let same = before.into_iter().flatten().find(|face| face.name == name && face.class == class);
        RuleCounters {
            counts: std::array::from_fn(|kind| AtomicU64::new(same.map_or(0, |face| face.counters.read(kind)))),
            toll_ns: AtomicU64::new(same.map_or(0, |face| face.counters.toll_ns())),
        }
    };
    domain
        .rules
        .iter()
        .map(|settings| {
            let (name, class) = (settings.rule.name.clone(), settings.rule.class.to_string());
            let counters = counts_of(&name, &class);
            Face {
                name,
                class,
                status: settings.status,
                shows_limit: settings.headers,
                observes_with_gate: false,
                counters,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::settings::{Gate, Settings};

    struct From(IpAddr);

    impl Request for From {
        fn client(&self) -> Option<IpAddr> {
            Some(self.0)
        }
        fn method(&self) -> &[u8] {
            b"GET"
        }
        fn target(&self) -> &[u8] {
            b"/"
        }
    }

    fn rules(text: &str) -> Rules {
        let settings = Settings::parse("test.toml", text).unwrap();
        Rules::new(&settings.domains[0], RemoteState::default(), Gate::default().hold, None, Moment::ZERO).unwrap()
    }

    fn ask(rules: &Rules) -> Decision {
        let from = From("203.0.113.7".parse().unwrap());
        let decision = rules.decide(&from, Toll::ONE, Band::Normal, Moment::from_millis(1)).0;
        rules.count(&decision);
        decision
    }

    const ONE_BUCKET: &str =
        "[[rule]]\nname = 'api'\nclass = 'ip/32'\nbucket = { size = 2, drip = 1, every = '30s' }\n";

    #[test]
    fn responses_show_the_state_of_the_limit() {
        let rules = rules(ONE_BUCKET);
        let decision = ask(&rules);
        let standing = rules.standing(&decision).unwrap();
        assert_eq!((standing.policy, standing.quota, standing.remaining), ("api", 2, 1));
        assert_eq!((standing.window, standing.clear), (Some(Span::from_secs(60)), Span::from_secs(30)));
    }

    #[test]
    fn a_rule_can_hide_the_state_of_its_limit() {
        let rules = rules(&format!("{ONE_BUCKET}headers = false\n"));
        assert_eq!(rules.standing(&ask(&rules)), None);
    }

    #[test]
    fn unchanged_rules_keep_state_and_counters_over_a_reload() {
        let old = rules(ONE_BUCKET);
        for _ in 0..3 {
            ask(&old);
        }
        let settings =
            Settings::parse("test.toml", &format!("{ONE_BUCKET}\n{}", ONE_BUCKET.replace("api", "new"))).unwrap();
        let new = Rules::new(&settings.domains[0], RemoteState::default(), old.hold, Some(&old), Moment::ZERO).unwrap();
        assert_eq!(new.faces[0].counters.read(1), 1);
        assert!(ask(&new).verdict.is_refusal());
        assert_eq!((new.faces[0].counters.read(1), new.faces[1].counters.read(1)), (2, 0));
    }
}
