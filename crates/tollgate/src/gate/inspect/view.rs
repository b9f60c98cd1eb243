//! The status of a running gate for the admin API, the doctor and the console: totals, backends, clients, and the
//! decisions of rules.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use tollgate_core::class::Class;
use tollgate_core::decision::{Act, Decision};
use tollgate_core::network::Network;
use tollgate_core::queue::Forecast;
use tollgate_core::request::Request;
use tollgate_core::rule::Rule;
use tollgate_core::time::{Moment, Span};
use tollgate_core::toll::Toll;
use tollgate_gatekeeper::names::{NAME_BYTES_MAX, Throttled};
use tollgate_gatekeeper::shared::{Authority, Explained, Unanswered};
use tollgate_gatekeeper::truncation::is_cut;

use super::metrics::named_in;
use crate::gate::decide::admission::ObservedCounts;
use crate::gate::decide::queue::QueueBound;
use crate::gate::decide::rules::{Face, Rules};
use crate::gate::observe::counters::WorkerCounter;
use crate::gate::observe::rates::Rates;
use crate::gate::observe::refusal_history::PastRefusal;
use crate::gate::observe::spenders::{SpenderRates, Spenders};
use crate::gate::serve::running::Running;

/// Totals of a gate.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// Requests read, those of doors included.
    pub(crate) requests: u64,
    /// Requests refused.
    pub(crate) refused: u64,
    /// Requests that rules have held, and requests that have waited in the queue.
    pub(crate) held: u64,
    /// Requests that rules hold now.
    pub(crate) holding: u64,
    /// Requests that wait in the queue now.
    pub(crate) waiting: u64,
    /// Requests in flight at the backends, and the sum of the in-flight limits.
    pub(crate) in_flight: u64,
    pub(crate) in_flight_max: u64,
    /// Open connections of clients.
    pub(crate) connections: u64,
    /// CPU time charged.
    pub(crate) toll_seconds: f64,
    /// CPU cores of all backends, according to the settings.
    pub(crate) cores: f64,
    /// The load level: normal, elevated or critical.
    pub(crate) band: &'static str,
    /// The waiting time on which the band is based.
    pub(crate) sustained_ms: u64,
    /// The waiting times at which the elevated and the critical band begin.
    pub(crate) edges_ms: (u64, u64),
    /// Keys that operators have exempted from rules.
    pub(crate) exemptions: usize,
    /// Requests whose clients did not fit into the statistics.
    pub(crate) unnamed: u64,
    /// The counts of observe mode.
    pub(crate) observed: ObservedCounts,
}

/// The statistics of one key.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// The key as received.
    pub(crate) key: Vec<u8>,
    /// Whether the key was too long and is truncated.
    pub(crate) cut: bool,
    /// Its use of the backend, if there are statistics of its class.
    pub(crate) rates: Option<Rates>,
    /// The rules that held or refused it, and how often.
    pub(crate) throttled: Vec<Throttled>,
}

/// One backend, as operators see it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct BackendInfo {
    pub(crate) url: String,
    /// The names of the sites that it serves.
    pub(crate) sites: Vec<String>,
    #[serde(rename = "up")]
    pub(crate) is_up: bool,
    /// Whether it is out of service, for messages to operators. Unlike `is_up`, it does not change when a single
    /// request is let through to test the backend.
    #[serde(skip)]
    pub(crate) is_down: bool,
    /// Requests in flight.
    pub(crate) in_flight: u32,
    /// Its in-flight limit.
    pub(crate) in_flight_max: u64,
    /// Requests that wait for it.
    pub(crate) waiting: u64,
    /// Its estimated cores.
    pub(crate) cores: f64,
}

/// The decision of one rule about a key.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) rule: String,
    pub(crate) class: String,
    pub(crate) decision: Decision,
    /// The excess over the limit, in the unit of the limit; none if the state of the limit is not known.
    pub(crate) over: Option<u64>,
    /// Whether the state of this gate or the shared store decided.
    pub(crate) by: Authority,
}

impl Running {
    /// Totals of the gate.
    pub(crate) fn figures(&self) -> Figures {
        let (shared, admission) = (&self.shared, &self.shared.admission);
        let total = |counter: WorkerCounter| shared.counters.iter().map(|own| own.read(counter as usize)).sum::<u64>();
        let (queue, settings) = (admission.queues.status(), shared.settings.load());
        let held_by_rules: u64 = admission.rules().faces.iter().map(|face| face.counters.read(0)).sum();
        Figures {
            requests: total(WorkerCounter::Request),
            refused: total(WorkerCounter::Refused),
            held: held_by_rules + queue.waited,
            holding: u64::from(admission.holds.total()),
            waiting: queue.waiting,
            in_flight: queue.in_flight,
            in_flight_max: queue.in_flight_max,
            connections: shared.caps.total() as u64,
            toll_seconds: queue.toll_ns as f64 / 1e9,
            cores: f64::from(settings.all_cores().as_milli()) / 1000.0,
            band: admission.load.band().as_str(),
            sustained_ms: admission.load.sustained().as_millis_ceil(),
            edges_ms: (settings.bands.elevated.as_millis_ceil(), settings.bands.critical.as_millis_ceil()),
            exemptions: admission.exemptions.count(),
            unnamed: shared.stats.spenders.unnamed(),
            observed: admission.observed(),
        }
    }

    /// Each backend.
    pub(crate) fn backends(&self) -> Vec<BackendInfo> {
        let (backends, settings) = (self.shared.backends.load(), self.shared.settings.load());
        let shown = backends.all.iter().map(|backend| {
            let queue = backend.queue.status();
            BackendInfo {
                url: backend.url.to_string(),
                sites: settings.sites_at(&backend.url).into_iter().map(str::to_owned).collect(),
                is_up: backend.is_up().is_ok(),
                is_down: backend.is_up().is_err() || !backend.is_reachable(),
                in_flight: backend.in_flight(),
                in_flight_max: queue.in_flight_max,
                waiting: queue.waiting,
                cores: queue.cores_milli as f64 / 1000.0,
            }
        });
        shown.collect()
    }

    /// The name of the site that a host belongs to.
    pub(crate) fn site_of(&self, host: Option<&[u8]>) -> Option<String> {
        let settings = self.shared.settings.load();
        settings.site_of(host?).map(|site| settings.sites[site].name.clone())
    }

    /// Totals of each rule of all domains, for the admin API.
    pub(crate) fn rule_figures(&self) -> Vec<Value> {
        let shown = |(domain, rules): &(String, Arc<Rules>)| {
            let of_face = |face: &Face| {
                let [held, refused, would_hold, would_refuse] = std::array::from_fn(|kind| face.counters.read(kind));
                json!({
                    "name": named_in(domain, &face.name), "class": face.class, "held": held, "refused": refused,
                    "would_hold": would_hold, "would_refuse": would_refuse,
                })
            };
            rules.faces.iter().map(of_face).collect::<Vec<_>>()
        };
        self.shared.all_rules().iter().flat_map(shown).collect()
    }

    /// Whether the account of a request is flagged. Always false if no rule and no priority uses flags.
    pub(crate) fn is_flagged(&self, request: &impl Request) -> bool {
        let admission = &self.shared.admission;
        admission.rules().is_flagged(request, &admission.flagged)
    }

    /// The clock of all moments of this module.
    pub(crate) fn clock(&self) -> &tollgate_gatekeeper::clock::Clock {
        &self.shared.stats.clock
    }

    /// Updates the rates of clients. Call it once a second.
    pub(crate) fn tick(&self) {
        let stats = &self.shared.stats;
        stats.spenders.tick(stats.clock.now());
    }

    /// The classes with statistics: addresses, networks, blocks and user agents, and the classes of the rules.
    pub(crate) fn classes(&self) -> Vec<String> {
        let mut classes: Vec<String> = Spenders::classes().map(str::to_owned).collect();
        for face in &self.shared.admission.rules().faces {
            if !classes.contains(&face.class) {
                classes.push(face.class.clone());
            }
        }
        classes
    }

    /// The keys of a class with the highest use, then those that were held or refused most. None if there is no such
    /// class.
    pub(crate) fn buckets(&self, class: &str, most: usize) -> Option<Vec<Bucket>> {
        if !self.classes().iter().any(|known| known == class) {
            return None;
        }
        let (stats, rules) = (&self.shared.stats, self.shared.admission.rules());
        let now = stats.clock.now();
        let spenders = stats.spenders.top(class, most, now).unwrap_or_default();
        let of_class = |rule: usize| rules.faces.get(rule).is_some_and(|face| face.class == class);
        // A key that is also among the spenders, or that several rules throttled, is listed once. So only the throttled
        // keys of a single rule can be limited here.
        let is_only_list = spenders.is_empty() && (0..rules.faces.len()).filter(|&rule| of_class(rule)).count() == 1;
        let throttled_max = if is_only_list { most } else { usize::MAX };
        let throttled = rules.limiter.throttled(of_class, throttled_max, now);
        let of_spender = |SpenderRates { key, rates }: SpenderRates| {
            let cut = is_cut(&key, NAME_BYTES_MAX);
            Bucket { key, cut, rates: Some(rates), throttled: Vec::new() }
        };
        let mut buckets: Vec<Bucket> = spenders.into_iter().map(of_spender).collect();
        let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
        for (place, bucket) in buckets.iter().enumerate() {
            places.entry(bucket.key.clone()).or_insert(place);
        }
        for caller in throttled {
            if let Some(&place) = places.get(&caller.key) {
                buckets[place].cut |= caller.cut;
                buckets[place].throttled.push(caller);
            } else if buckets.len() < most {
                places.insert(caller.key.clone(), buckets.len());
                let (key, cut) = (caller.key.clone(), caller.cut);
                buckets.push(Bucket { key, cut, rates: None, throttled: vec![caller] });
            }
        }
        Some(buckets)
    }

    /// The number of keys of a class whose requests wait at least this long on average.
    pub(crate) fn callers_waiting(&self, class: &str, least: Span) -> usize {
        let stats = &self.shared.stats;
        let callers = stats.spenders.top(class, usize::MAX, stats.clock.now()).unwrap_or_default();
        let least = least.as_nanos() as f64 / 1e9;
        callers.iter().filter(|caller| caller.rates.wait_secs() >= least).count()
    }

    /// The addresses with the most requests that would have been refused or held.
    pub(crate) fn would_throttle(&self, most: usize) -> Vec<(Vec<u8>, Rates)> {
        let stats = &self.shared.stats;
        let callers = stats.spenders.top("ip/32", usize::MAX, stats.clock.now()).unwrap_or_default();
        let mut callers: Vec<_> = callers.into_iter().map(|shown| (shown.key, shown.rates)).collect();
        let would = |rates: &Rates| [Act::WouldRefuse, Act::WouldHold].map(|act| rates.total.acts[act as usize]);
        callers.retain(|(_, rates)| would(rates) != [0, 0]);
        callers.sort_by_key(|(_, rates)| std::cmp::Reverse(would(rates)));
        callers.truncate(most);
        callers
    }

    /// The key of a client in the class `ip/32`.
    pub(crate) fn address_of(&self, client: IpAddr) -> String {
        Spenders::address(client).to_string()
    }

    /// The recent refusals of a key, the latest first, at most `max`. For an address or network, these are the refusals
    /// of its clients by any rule; for a key of any other class, the refusals under that key.
    pub(crate) fn refusals_of(&self, class: &str, key: &[u8], max: usize) -> Vec<PastRefusal> {
        let is_of_addresses = class.starts_with("ip/") && !class.contains('+');
        let network = std::str::from_utf8(key).ok().filter(|_| is_of_addresses).and_then(Network::parse);
        let is_meant = |refusal: &PastRefusal| match (network, refusal.client) {
            (Some(network), Some(client)) => network.contains(client.address()),
            _ => *refusal.sum.class == *class && *refusal.sum.key == *key,
        };
        self.shared.stats.refusals.find(is_meant, max, self.now())
    }

    /// How long a request would wait in the queue, and why; none if its client is unknown. If the request `has_route`,
    /// its cost is that of the route, otherwise that of an average request.
    pub(crate) fn forecast(&self, request: &impl Request, has_route: bool) -> Option<(Forecast, Option<QueueBound>)> {
        let client = request.client()?;
        self.shared.admission.forecast(client, has_route.then_some(request))
    }

    /// The decision of every rule that applies to a request with this cost, without charging it.
    pub(crate) async fn explain(&self, request: &impl Request, toll: Option<Span>) -> Vec<Standing> {
        let (rules, band, now) = (self.shared.admission.rules(), self.shared.admission.load.band(), self.now());
        let toll = toll.map_or(Toll::ONE, Toll::of_cpu);
        let own = rules.limiter.explain(request, toll, band, now);
        let explained = rules.remote_state.explain(&rules.limiter, own, request, toll, band).await;
        explained.into_iter().filter_map(|explained| standing(&rules, explained)).collect()
    }

    /// The decision of every rule of `class` about the key of `request`, from local state.
    pub(crate) fn standings(&self, class: &str, request: &impl Request) -> Vec<Standing> {
        let rules = self.shared.admission.rules();
        let own = self.local_decisions(&rules, |rule| rule.class.to_string() == class, request).into_iter();
        let own = own.map(|decision| Explained { decision, by: Authority::Own });
        own.filter_map(|explained| standing(&rules, explained)).collect()
    }

    /// The decision of every rule whose key follows from a key of `class`, from local and shared state. For an address,
    /// these include the rules of its networks.
    pub(crate) async fn standings_everywhere(&self, class: &Class, request: &impl Request) -> Vec<Standing> {
        let rules = self.shared.admission.rules();
        let own = self.local_decisions(&rules, |rule| rule.class.is_determined_by(class), request);
        let band = self.shared.admission.load.band();
        let explained = rules.remote_state.explain(&rules.limiter, own, request, Toll::ONE, band).await;
        explained.into_iter().filter_map(|explained| standing(&rules, explained)).collect()
    }

    /// The decisions of the rules that `among` selects about the key of `request`, from local state.
    fn local_decisions(&self, rules: &Rules, among: impl Fn(&Rule) -> bool, request: &impl Request) -> Vec<Decision> {
        let (band, now) = (self.shared.admission.load.band(), self.now());
        let asked = rules.limiter.rules().enumerate().filter(|(_, rule)| among(rule));
        asked.filter_map(|(place, _)| rules.limiter.explain_rule(place, request, band, now)).collect()
    }

    /// The decisions of the rules that throttled these keys, from local state. Unlike the functions above, it works for
    /// keys whose names are truncated.
    pub(crate) fn standings_throttled(&self, callers: &[Throttled]) -> Vec<Standing> {
        let (rules, band, now) = (self.shared.admission.rules(), self.shared.admission.load.band(), self.now());
        let decisions = callers.iter().filter_map(|caller| rules.limiter.explain_throttled(caller, band, now));
        decisions.filter_map(|decision| standing(&rules, Explained { decision, by: Authority::Own })).collect()
    }

    /// Deletes the state of a key for every rule of a class, here and in the shared store. Returns the number of rules
    /// that had any.
    pub(crate) async fn forget(&self, class: &str, request: &impl Request) -> Result<usize, Unanswered> {
        let (rules, now) = (self.shared.admission.rules(), self.now());
        let of_class = |place: usize| rules.faces.get(place).is_some_and(|face| face.class == class);
        let places = (0..rules.faces.len()).filter(|place| of_class(*place));
        let mut knew: Vec<usize> = places.filter(|place| rules.limiter.forget(*place, request, now)).collect();
        let mut unanswered = None;
        for (place, known) in rules.remote_state.forget(&rules.limiter, request, of_class).await {
            match known {
                Ok(true) if !knew.contains(&place) => knew.push(place),
                Ok(_) => {}
                Err(why) => unanswered = Some(why),
            }
        }
        unanswered.map_or(Ok(knew.len()), Err)
    }

    /// Deletes the local state of a throttled key, and returns the number of rules that had any. It works for a key
    /// whose name is truncated, too.
    pub(crate) fn forget_throttled(&self, callers: &[Throttled]) -> usize {
        let (rules, now) = (self.shared.admission.rules(), self.now());
        callers.iter().filter(|caller| rules.limiter.forget_throttled(caller, now)).count()
    }

    /// Exempts a key from the rules of a class for `span`, or ends the exemption if that is `None`. Returns false if
    /// there are too many exemptions.
    pub(crate) fn exempt(&self, class: &str, key: &[u8], span: Option<Span>) -> bool {
        let (exemptions, now) = (&self.shared.admission.exemptions, self.now());
        match span {
            Some(span) => exemptions.grant(class, key, now + span, now),
            None => {
                exemptions.end(class, key);
                true
            }
        }
    }

    fn now(&self) -> Moment {
        self.shared.stats.clock.now()
    }
}

/// Describes the decision of one rule.
fn standing(rules: &Rules, explained: Explained) -> Option<Standing> {
    let Explained { decision, by } = explained;
    let face = rules.face(&decision)?;
    let over = rules.figures(&decision).map(over);
    Some(Standing { rule: face.name.clone(), class: face.class.clone(), decision, over, by })
}

/// The excess over a limit. A key that is in debt needs longer than the window of the limit until it is clear; the
/// excess is proportional to that.
fn over(figures: tollgate_wire::rate_limit_headers::LimitStatus<'_>) -> u64 {
    let Some(window) = figures.window.filter(|window| *window > Span::ZERO) else { return 0 };
    let longer = figures.clear.as_nanos().saturating_sub(window.as_nanos());
    let over = (u128::from(longer) * u128::from(figures.quota)).div_ceil(u128::from(window.as_nanos()));
    u64::try_from(over).unwrap_or(u64::MAX)
}
