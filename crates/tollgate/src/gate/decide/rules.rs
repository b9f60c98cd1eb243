//! The rules in force, with their names and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::band::Band;
use tollgate_core::class::Class;
use tollgate_core::decision::{Decision, Reason, Verdict};
use tollgate_core::inputs::Inputs;
use tollgate_core::limit::{Factor, Limit, LimitError};
use tollgate_core::request::Request;
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::BuildError;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::hash::Seed;
use tollgate_gatekeeper::limit_status;
use tollgate_gatekeeper::limiter::{Limiter, Plan};
use tollgate_gatekeeper::names::Name;
use tollgate_wire::rate_limit_headers::LimitStatus;

use super::remote_state::{Charge, RemoteState};
use super::scaled_limiters::ScaledLimiters;
use crate::settings::{Domain, Hold};
use crate::watch::Flagged;

/// Names of throttled keys that are kept for the console.
const NAMES_MAX: usize = 4096;

/// The approximate number of requests to unknown routes that one key may have in flight under a budget with a full
/// burst.
const UNSEEN_IN_FLIGHT_MAX: u64 = 8;

/// The rules of one domain.
pub(crate) struct Rules {
    /// The limiter of these rules.
    pub(crate) limiter: Limiter,
    /// The shared state of rules.
    pub(crate) remote_state: RemoteState,
    /// The rules in order.
    pub(crate) faces: Vec<Face>,
    /// The bounds of held requests.
    pub(crate) hold: Hold,
    /// Whether any limit depends on the end of a request: an in-flight limit or a budget.
    pub(crate) has_open_limits: bool,
    /// The minimum expected cost of a request to an unknown route, if there is a budget.
    unseen_cost: Option<Span>,
    account: Option<Class>,
    /// The headers and cookies that the rules use.
    inputs: Inputs,
    scaled: ScaledLimiters,
    /// The number of reloads before this one.
    pub(crate) generation: u64,
}

/// The parts of a rule that its users see.
pub(crate) struct Face {
    /// The rule's name.
    pub(crate) name: String,
    /// The class of its keys.
    pub(crate) class: String,
    /// The status of its refusals, if configured.
    pub(crate) status: Option<u16>,
    /// Whether responses contain the state of its limit.
    headers: bool,
    pub(crate) counters: RuleCounters,
}

impl Face {
    /// Whether responses contain the state of its limit.
    pub(crate) fn tells(&self) -> bool {
        self.headers
    }
}

/// The counters of one rule. A request is counted for the rule that decided about it.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct RuleCounters {
    counts: [AtomicU64; RuleCounters::KINDS.len()],
    toll_ns: AtomicU64,
}

impl RuleCounters {
    /// The counted acts, as the strictest rule decided them.
    pub(crate) const KINDS: [&'static str; 4] = ["held", "refused", "would-hold", "would-refuse"];

    fn count(&self, decision: &Decision) {
        let kind = match (decision.verdict, decision.reason) {
            (Verdict::Hold(_), _) => 0,
            (verdict, _) if verdict.is_refusal() => 1,
            (_, Reason::WouldHold) => 2,
            (_, Reason::WouldRefuse) => 3,
            _ => return,
        };
        self.counts[kind].fetch_add(1, Ordering::Relaxed);
    }

    /// The cost of the requests that it admitted, in nanoseconds.
    pub(crate) fn toll_ns(&self) -> u64 {
        self.toll_ns.load(Ordering::Relaxed)
    }

    /// The count with this index in [`Self::KINDS`].
    pub(crate) fn read(&self, kind: usize) -> u64 {
        self.counts[kind].load(Ordering::Relaxed)
    }
}

impl Rules {
    /// Rules without any state.
    pub(crate) fn new(
        domain: &Domain,
        remote_state: RemoteState,
        hold: Hold,
        started: Moment,
    ) -> Result<Self, BuildError> {
        Ok(Self {
            limiter: heard(Limiter::new(plan(domain, started))?, &remote_state),
            remote_state,
            faces: faces(domain, None),
            hold,
            has_open_limits: has_open_limits(domain),
            unseen_cost: unseen_cost(domain),
            account: domain.account.clone(),
            inputs: inputs(domain),
            scaled: ScaledLimiters::default(),
            generation: 0,
        })
    }

    /// The rules that replace these at a reload. Unchanged rules keep their state and their counters.
    pub(crate) fn succeeded_by(
        &self,
        domain: &Domain,
        remote_state: RemoteState,
        hold: Hold,
    ) -> Result<Self, BuildError> {
        let limiter = heard(self.limiter.succeeded_by(plan(domain, Moment::ZERO))?, &remote_state);
        let faces = faces(domain, Some(&self.faces));
        let (unseen_cost, account, generation) = (unseen_cost(domain), domain.account.clone(), self.generation + 1);
        let (inputs, scaled) = (inputs(domain), ScaledLimiters::default());
        let has_open_limits = has_open_limits(domain);
        Ok(Self {
            limiter,
            remote_state,
            faces,
            hold,
            has_open_limits,
            unseen_cost,
            account,
            inputs,
            scaled,
            generation,
        })
    }

    /// The headers and cookies that the rules use.
    pub(crate) fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Whether the state of this gate is enough to decide about `request`. If so, call [`Self::decide`], otherwise
    /// [`Self::ask`].
    #[inline]
    pub(crate) fn know(&self, request: &impl Request) -> bool {
        !self.remote_state.concerns(request)
    }

    /// Decides from local state, and charges the request if it is not refused.
    pub(crate) fn decide(&self, request: &impl Request, toll: Toll, band: Band, now: Moment) -> (Decision, Charge) {
        let (decision, ticket) = self.limiter.decide(request, toll, band, now);
        (decision, ticket.into())
    }

    /// Decides and charges like [`Self::decide`], with the shared state.
    pub(crate) async fn ask(
        &self,
        request: &impl Request,
        toll: Toll,
        band: Band,
        clock: &Clock,
    ) -> (Decision, Charge) {
        self.remote_state.decide(&self.limiter, request, toll, band, clock).await
    }

    /// The refusal by a budget whose key has come into debt since its request was admitted. `reserved` is the charge of
    /// the request itself, which is not a debt.
    pub(crate) fn debt(&self, request: &impl Request, reserved: Span, band: Band, now: Moment) -> Option<Decision> {
        let of_budget = |(place, rule): (usize, &Rule)| {
            let Limit::Budget(budget) = rule.limit else { return None };
            if !rule.applies(request) {
                return None;
            }
            let repaid = now + budget.time_of(reserved);
            let in_debt = |at: Moment| self.limiter.explain_rule(place, request, band, at);
            in_debt(repaid).filter(|decision| decision.verdict.is_refusal()).and_then(|_| in_debt(now))
        };
        self.limiter.rules().enumerate().find_map(of_budget).filter(|decision| decision.verdict.is_refusal())
    }

    /// Counts the act on a request. It can differ from the decision: a request without room to be held is refused, and
    /// an exempt key passes.
    pub(crate) fn count(&self, decision: &Decision) {
        if let Some(face) = self.face(decision) {
            face.counters.count(decision);
        }
    }

    /// Reports the act on a request to the masters, if these rules have any.
    #[inline]
    pub(crate) fn report(&self, request: &impl Request, decision: &Decision, charge: &mut Charge, now: Moment) {
        if self.remote_state.masters().is_some() {
            self.limiter.report(request, decision, &mut charge.here, now);
        }
    }

    /// Replaces the charge of a finished request by its actual cost.
    pub(crate) fn settle(&self, charge: Charge, actual: Toll, now: Moment) {
        charge.settle(&self.limiter, actual, now);
    }

    /// Returns the charge of a request that was not served.
    pub(crate) fn refund(&self, charge: Charge, now: Moment) {
        charge.refund(&self.limiter, now);
    }

    /// The limiter with scaled limits and the same state.
    pub(crate) fn scaled(&self, factor: Factor) -> Result<Arc<Limiter>, LimitError> {
        self.scaled.of(&self.limiter, factor)
    }

    /// Whether any rule has a budget, so that costs must be predicted.
    pub(crate) fn has_budget(&self) -> bool {
        self.unseen_cost.is_some()
    }

    /// The charge of a request when it is admitted. A request to a route without a measured cost is charged a part of
    /// the smallest burst, which bounds the number of such requests of one key in flight.
    pub(crate) fn reservation(&self, (mean, is_unseen): (Span, bool)) -> Span {
        if is_unseen { mean.max(self.unseen_cost.unwrap_or(Span::ZERO)) } else { mean }
    }

    /// Whether the account of `request` is flagged, if any rule uses flags.
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

    /// The rule that decided.
    pub(crate) fn face(&self, decision: &Decision) -> Option<&Face> {
        self.faces.get(decision.rule?)
    }

    /// Writes the header fields with the state of the limit, if the rule permits it.
    pub(crate) fn tell(&self, decision: &Decision, mut push: impl FnMut(&[u8], &[u8])) {
        let Some(standing) = self.standing(decision) else { return };
        limit_status::write_fields(standing, decision.verdict.is_refusal(), |field, value| {
            push(field.name().as_bytes(), value)
        });
    }

    fn standing(&self, decision: &Decision) -> Option<LimitStatus<'_>> {
        self.face(decision).filter(|face| face.headers)?;
        self.figures(decision)
    }

    /// The state of the limit that decided, whether or not the rule shows it.
    pub(crate) fn figures(&self, decision: &Decision) -> Option<LimitStatus<'_>> {
        let rule = self.limiter.rule(decision.rule?)?;
        Some(limit_status::of(&self.face(decision)?.name, &rule.limit, decision.info?))
    }
}

/// Connects the limiter to the masters that receive its decisions.
fn heard(mut limiter: Limiter, remote_state: &RemoteState) -> Limiter {
    if let Some(masters) = remote_state.masters() {
        masters.hear(&mut limiter);
    }
    limiter
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

fn inputs(domain: &Domain) -> Inputs {
    Inputs::of(domain.rules.iter().map(|settings| &settings.rule), domain.account.as_ref())
}

fn has_open_limits(domain: &Domain) -> bool {
    let is_open = |limit: &Limit| matches!(limit, Limit::InFlight(_) | Limit::Budget(_));
    domain.rules.iter().any(|settings| is_open(&settings.rule.limit))
}

fn unseen_cost(domain: &Domain) -> Option<Span> {
    let bursts = domain.rules.iter().filter_map(|settings| match settings.rule.limit {
        Limit::Budget(budget) => Some(budget.parameters().1),
        _ => None,
    });
    bursts.min().map(|burst| Span::from_nanos(burst.as_nanos() / UNSEEN_IN_FLIGHT_MAX))
}

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
            Face { name, class, status: settings.status, headers: settings.headers, counters }
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
        Rules::new(&settings.domains[0], RemoteState::default(), Gate::default().hold, Moment::ZERO).unwrap()
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
    fn a_rule_can_keep_its_figures_to_itself() {
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
        let new = old.succeeded_by(&settings.domains[0], RemoteState::default(), old.hold).unwrap();
        assert_eq!(new.faces[0].counters.read(1), 1);
        assert!(ask(&new).verdict.is_refusal());
        assert_eq!((new.faces[0].counters.read(1), new.faces[1].counters.read(1)), (2, 0));
    }
}
