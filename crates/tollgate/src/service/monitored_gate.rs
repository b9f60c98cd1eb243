//! The gate for the admin address: makes the JSON that the admin API returns about a running gate, and which the
//! console and `tollgate doctor` show, and carries out what operators order (exempt a key, reset its state).

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tollgate_core::class::Class;
use tollgate_core::decision::{Decision, Verdict};
use tollgate_core::queue::{Fate, Forecast};
use tollgate_core::request::Request;
use tollgate_core::time::{Moment, Span};
use tollgate_gatekeeper::histogram::HistogramSnapshot;
use tollgate_gatekeeper::names::NAME_BYTES_MAX;
use tollgate_gatekeeper::shared::{Authority, Unanswered};

use super::observe_log::ObserveLog;
use crate::admin::{BoxFuture, CurrentValues, ExplainRequest, KeyRef, MonitoredRole, Totals};
use crate::gate::{BackendInfo, Bucket, Figures, KeyText, ObservedCounts, PastRefusal, Running, Standing};
use crate::mask;
use crate::watch::{Calendar, escape_key, rfc3339};

/// Number of histograms that are kept for latency percentiles. One is added every second, so they cover 10 seconds.
const LOOK_BACK: usize = 10;
/// Maximum number of keys of a class that are searched.
const SEARCHED_MAX: usize = 10_000;

/// A gate for the admin address.
pub(super) struct MonitoredGate {
    gate: Arc<Running>,
    /// Converts moments of the gate's clock to dates.
    calendar: Calendar,
    /// Histograms of latency at the last seconds, each cumulative since the start of the gate, the oldest first.
    answers: Mutex<Vec<HistogramSnapshot>>,
    observe_log: ObserveLog,
}

/// Number of recent refusals listed for a key.
const REFUSALS_SHOWN: usize = 20;
/// Number of clients listed that a gate in observe mode would have held or refused most.
const OBSERVED_CLIENTS: usize = 5;

impl MonitoredGate {
    pub(super) fn new(gate: Arc<Running>, calendar: Calendar) -> Self {
        Self { gate, calendar, answers: Mutex::default(), observe_log: ObserveLog::default() }
    }

    /// Formats a moment of the gate's clock as a date.
    fn date(&self, moment: Moment) -> String {
        rfc3339(self.calendar.date_of(moment))
    }

    /// Median and 99th percentile of the latency in the last seconds, in milliseconds. To be called once a second.
    fn percentiles(&self) -> (Option<f64>, Option<f64>) {
        let now = self.gate.shared.stats.answers.read();
        let mut answers = self.answers.lock();
        let lately = answers.first().map(|then| now.since(then));
        answers.push(now);
        if answers.len() > LOOK_BACK {
            answers.remove(0);
        }
        let of = |percent| {
            let span = lately.as_ref().and_then(|lately| lately.percentile(percent))?;
            Some((span.as_nanos() as f64 / 1e4).round() / 100.0)
        };
        (of(50), of(99))
    }

    /// One key of a class with its use, its refusals and the decisions of its rules. `cores` are those of the backends.
    fn bucket(&self, class: &str, bucket: &Bucket, cores: f64) -> Value {
        let (rates, now) = (bucket.rates, self.gate.clock().now());
        let shown = mask::key(class, &bucket.key);
        let key = escape_key(&shown);
        let last = bucket.throttled.iter().map(|key| key.last).chain(rates.map(|rates| rates.last)).max();
        let first = bucket.throttled.iter().map(|key| key.first).chain(rates.and_then(|rates| rates.first)).min();
        // Rules count what they hold and refuse, even for keys whose requests are not counted.
        let [held, refused, would_hold, would_refuse] = std::array::from_fn(|act| {
            let by_rules = bucket.throttled.iter().map(|key| key.acts[act]).sum::<u64>();
            rates.map_or(by_rules, |rates| rates.total.acts[act].max(by_rules))
        });
        let request = ExplainRequest::of_key(class, &bucket.key).filter(|_| !bucket.cut);
        let standings = match request {
            Some(request) => self.gate.standings(class, &request),
            None => self.gate.standings_throttled(&bucket.throttled),
        };
        json!({
            "key": key,
            "cut": bucket.cut,
            "cpu_per_second": rates.map(|rates| thousandths(rates.cores())),
            // Costs are charged when requests end, so a short time can have more of them than the backend has cores.
            "share": rates.map(|rates| thousandths((rates.cores() / cores.max(0.001)).min(1.0))),
            "requests_per_second": rates.map(|rates| thousandths(rates.requests_per_sec())),
            "wait_ms": rates.map(|rates| thousandths(rates.wait_secs() * 1000.0)),
            "cpu_ms": rates.map(|rates| rates.total.toll_ns / 1_000_000),
            "requests": rates.map(|rates| rates.total.requests),
            "held": held,
            "refused": refused,
            "would_hold": would_hold,
            "would_refuse": would_refuse,
            "first_seen": first.map(|first| self.date(first)),
            "last_seen": last.map(|last| self.date(last)),
            "idle_ms": last.map(|last| now.since(last).as_nanos() / 1_000_000),
            "rules": standings.iter().map(|standing| self.standing(standing)).collect::<Vec<_>>(),
        })
    }

    /// Decisions that a gate in observe mode did not enforce, and the clients with the most.
    fn observed(&self, observed: &ObservedCounts) -> Value {
        let clients = if observed.requests > 0 { self.gate.would_throttle(OBSERVED_CLIENTS) } else { Vec::new() };
        let clients = clients.into_iter().map(|(key, rates)| {
            let [_, _, would_hold, would_refuse] = rates.total.acts;
            json!({ "key": escape_key(&key), "would_hold": would_hold, "would_refuse": would_refuse })
        });
        json!({
            "requests": observed.requests,
            "would_hold": observed.queue_would_hold + observed.rules_would_hold,
            "would_refuse": observed.queue_would_refuse + observed.rules_would_refuse,
            "queue_would_hold": observed.queue_would_hold,
            "queue_would_refuse": observed.queue_would_refuse,
            "clients": clients.collect::<Vec<_>>(),
        })
    }

    /// The recent refusals of a key, the latest first.
    fn refusals(&self, class: &str, key: &[u8]) -> Vec<Value> {
        let refusals = self.gate.refusals_of(class, key, REFUSALS_SHOWN);
        refusals.iter().map(|refusal| self.refusal(refusal)).collect()
    }

    fn refusal(&self, PastRefusal { sum, first, last, .. }: &PastRefusal) -> Value {
        json!({
            "decision": sum.act.as_str(),
            "rule": sum.rule,
            "class": sum.class,
            "key": escape_key(&mask::key(&sum.class, &sum.key)),
            "reason": sum.reason,
            "observed": sum.observed,
            "allowed": sum.allowed,
            "retry_after_ms": sum.backoff.as_millis_ceil(),
            "count": sum.count,
            "first_at": self.date(*first),
            "last_at": self.date(*last),
        })
    }

    /// Faults and advice for the operator, with the setting that resolves them if there is one.
    fn notices(&self) -> Vec<Value> {
        let backends = self.gate.backends();
        let down = backends.iter().filter(|backend| backend.is_down).map(|backend| {
            let message = format!("backend {} is down: {}", backend.url, effect_of_outage(backend, &backends));
            json!({ "name": "backend-down", "message": message, "setting": "" })
        });
        let proxy = self.gate.shared.proxy_detector.notice().into_iter().map(
            |notice| json!({ "name": "untrusted-proxy", "message": notice.to_string(), "setting": notice.setting() }),
        );
        down.chain(proxy).collect()
    }

    /// The decision of the fair queue about a request, as JSON. Unless the request `has_route`, a method and a path,
    /// its cost is that of an average request.
    fn forecast(&self, request: &ExplainRequest, has_route: bool) -> Value {
        let Some((Forecast { standing, fate }, bound)) = self.gate.forecast(request, has_route) else {
            return Value::Null;
        };
        let decision = match fate {
            Fate::Go => "admit",
            Fate::Wait => "hold",
            Fate::Refuse(_) => "refuse",
        };
        json!({
            "decision": decision,
            "reason": bound.map(|bound| bound.reason),
            "observed": bound.map(|bound| bound.observed),
            "allowed": bound.map(|bound| bound.allowed),
            "is_ahead": standing.is_ahead,
            "position": standing.position,
            "wait_ms": standing.wait.as_millis_ceil(),
            "in_force": !self.gate.figures().observed.is_observing,
        })
    }

    /// The statistics of a key, if the gate has any.
    fn find(&self, key_ref: &KeyRef) -> Option<Bucket> {
        let buckets = self.gate.buckets(&key_ref.class, SEARCHED_MAX).unwrap_or_default();
        buckets.into_iter().find(|bucket| bucket.key == key_ref.key)
    }

    /// Whether only a truncated form of this key is stored.
    fn is_cut(&self, key_ref: &KeyRef) -> bool {
        key_ref.key.len() == NAME_BYTES_MAX && self.find(key_ref).is_some_and(|bucket| bucket.cut)
    }

    /// The decision of one rule about a key, as JSON.
    fn standing(&self, standing: &Standing) -> Value {
        let mut shown = decision(&standing.decision, Some(&standing.rule), self.gate.clock().now());
        shown["class"] = json!(standing.class);
        shown["over"] = json!(standing.over);
        let until = match standing.decision.verdict {
            Verdict::Hold(until) | Verdict::Refuse(until) => Some(self.date(until)),
            _ => None,
        };
        shown["until"] = json!(until);
        let (by, unanswered) = match standing.by {
            Authority::Own => ("gate", None),
            Authority::Store => ("redis", None),
            Authority::Instead(why) => ("gate", Some(why.as_str())),
        };
        shown["by"] = json!(by);
        shown["redis_unanswered"] = json!(unanswered);
        shown
    }
}

impl MonitoredRole for MonitoredGate {
    fn role(&self) -> &'static str {
        "gate"
    }

    fn is_ready(&self) -> bool {
        self.gate.is_ready()
    }

    fn tick(&self) {
        self.gate.tick();
        let observed = self.gate.figures().observed;
        if observed.is_observing {
            self.observe_log.tick(self.gate.clock().now(), || self.observed(&observed));
        }
    }

    fn status(&self) -> Value {
        let figures = self.gate.figures();
        json!({
            "fleet": self.gate.others(),
            "band": {
                "name": figures.band,
                "sustained_ms": figures.sustained_ms,
                "elevated_ms": figures.edges_ms.0,
                "critical_ms": figures.edges_ms.1,
            },
            "requests": {
                "total": figures.requests,
                "admitted": figures.requests.saturating_sub(figures.refused),
                "held": figures.held,
                "refused": figures.refused,
                "holding": figures.holding,
                "waiting": figures.waiting,
                "in_flight": figures.in_flight,
                "in_flight_max": figures.in_flight_max,
            },
            "notices": self.notices(),
            "mode": if figures.observed.is_observing { "observe" } else { "enforce" },
            "observed": self.observed(&figures.observed),
            "connections": figures.connections,
            "cores": figures.cores,
            "cpu_seconds": thousandths(figures.toll_seconds),
            "exemptions": figures.exemptions,
            "callers_unnamed": figures.unnamed,
            "backends": self.gate.backends(),
            "rules": self.gate.rule_figures(),
        })
    }

    fn totals(&self) -> Option<Totals> {
        let (figures, (p50_ms, p99_ms)) = (self.gate.figures(), self.percentiles());
        let Figures { requests, refused, held, toll_seconds, in_flight, in_flight_max, .. } = figures;
        let Figures { connections, band, sustained_ms, .. } = figures;
        let waiting = figures.waiting + figures.holding;
        let current =
            CurrentValues { waiting, in_flight, in_flight_max, connections, band, sustained_ms, p50_ms, p99_ms };
        Some(Totals { requests, refused, held, toll_seconds, current })
    }

    fn classes(&self) -> Vec<String> {
        self.gate.classes()
    }

    fn buckets(&self, class: &str, top: usize, search: &str) -> Option<Vec<Value>> {
        let cores = self.gate.figures().cores;
        let buckets = self.gate.buckets(class, if search.is_empty() { top } else { SEARCHED_MAX })?;
        // A search in the secret value itself would let a viewer find it out character by character.
        let is_wanted = |bucket: &&Bucket| {
            escape_key(&mask::key(class, &bucket.key)).to_lowercase().contains(search)
                || escape_key(&bucket.key).to_lowercase() == search
        };
        let wanted = buckets.iter().filter(is_wanted);
        Some(wanted.take(top).map(|bucket| self.bucket(class, bucket, cores)).collect())
    }

    fn unmask(&self, class: &str, shown: &[u8]) -> Option<Vec<u8>> {
        if !mask::is_masked(shown) {
            return None;
        }
        let buckets = self.gate.buckets(class, SEARCHED_MAX).unwrap_or_default();
        let keys =
            buckets.into_iter().map(|bucket| bucket.key).chain(self.gate.shared.admission.exemptions.keys(class));
        keys.into_iter().find(|key| mask::is_shown_as(class, key, shown))
    }

    fn concentrated_class(&self) -> String {
        let cores = self.gate.figures().cores;
        let spent = NESTED_CLASSES.map(|class| {
            let buckets = self.gate.buckets(class, SEARCHED_MAX).unwrap_or_default();
            buckets.iter().map(|bucket| bucket.rates.map_or(0.0, |rates| rates.cores())).collect::<Vec<_>>()
        });
        concentrated(&spent, cores).to_owned()
    }

    fn explain<'a>(&'a self, request: &'a ExplainRequest) -> BoxFuture<'a, Option<Value>> {
        Box::pin(async move {
            let request = &ExplainRequest { is_flagged: self.gate.is_flagged(request), ..request.clone() };
            let (standings, now) = (self.gate.explain(request, request.toll).await, self.gate.clock().now());
            let strictest = standings.iter().map(|standing| standing.decision).reduce(|mut all, one| {
                all.tighten(one);
                all
            });
            let rule = |decision: &Decision| {
                let mut named = standings.iter().filter(|standing| standing.decision.rule == decision.rule);
                named.next().map(|standing| &*standing.rule)
            };
            let strictest = strictest.unwrap_or_else(|| Decision::no_rule(self.gate.shared.admission.load.band()));
            let mut answer = decision(&strictest, rule(&strictest), now);
            let queue = self.forecast(request, true);
            if answer["decision"] == "admit" {
                take_queue_verdict(&mut answer, &queue);
            }
            answer["rules"] = standings.iter().map(|standing| self.standing(standing)).collect();
            answer["queue"] = queue;
            answer["site"] = json!(self.gate.site_of(request.host()));
            let client = request.client.map(|client| self.gate.address_of(client));
            answer["refusals"] =
                client.map_or_else(Vec::new, |client| self.refusals("ip/32", client.as_bytes())).into();
            Some(answer)
        })
    }

    fn key<'a>(&'a self, key_ref: &'a KeyRef) -> BoxFuture<'a, Option<Value>> {
        Box::pin(async move {
            let bucket = self.find(key_ref);
            let cut = bucket.as_ref().is_some_and(|bucket| bucket.cut);
            let rules = match (&key_ref.request, Class::parse(&key_ref.class)) {
                (Some(request), Ok(class)) if !cut => self.gate.standings_everywhere(&class, request).await,
                _ => self.gate.standings_throttled(bucket.as_ref().map_or(&[], |bucket| &bucket.throttled)),
            };
            let cores = self.gate.figures().cores;
            let exemptions = &self.gate.shared.admission.exemptions;
            let until = key_of(key_ref)
                .and_then(|key| exemptions.until(&key_ref.class, key.as_bytes(), self.gate.clock().now()));
            Some(json!({
                "bucket": bucket.map(|bucket| self.bucket(&key_ref.class, &bucket, cores)),
                "cut": cut,
                "rules": rules.iter().map(|standing| self.standing(standing)).collect::<Vec<_>>(),
                "exempt_until": until.map(|until| self.date(until)),
                "refusals": self.refusals(&key_ref.class, &key_ref.key),
                "queue": key_ref.request.as_ref().filter(|_| key_ref.class == "ip/32").map_or(Value::Null, |request| self.forecast(request, false)),
            }))
        })
    }

    fn forget<'a>(&'a self, key_ref: &'a KeyRef) -> BoxFuture<'a, Result<usize, &'static str>> {
        Box::pin(async move {
            if let (Some(request), false) = (&key_ref.request, self.is_cut(key_ref)) {
                return self.gate.forget(&key_ref.class, request).await.map_err(Unanswered::as_str);
            }
            let forgotten =
                self.gate.forget_throttled(&self.find(key_ref).map_or(Vec::new(), |bucket| bucket.throttled));
            let may_be_on_redis = forgotten > 0 && self.gate.shared.admission.rules().remote_state.redis.is_some();
            if may_be_on_redis {
                Err("the key is too long: only a truncated form of it is stored here")
            } else {
                Ok(forgotten)
            }
        })
    }

    fn exempt(&self, key_ref: &KeyRef, span: Option<Span>) -> Result<(), &'static str> {
        // An exemption that was granted before a reload can be ended even if no rule has its class any more.
        if span.is_some() && !self.gate.shared.admission.rules().has_class(&key_ref.class) {
            return Err("no rule has that class: there is nothing to exempt the key from");
        }
        if self.is_cut(key_ref) {
            return Err(
                "the key is longer than 255 bytes and was truncated: use the complete key, or set `unless` in the rule",
            );
        }
        let key = key_of(key_ref).ok_or("not a key of that class, or its parts cannot be separated")?;
        let granted = self.gate.exempt(&key_ref.class, key.as_bytes(), span);
        if granted { Ok(()) } else { Err("too many exemptions: end some of them first") }
    }
}

/// The effect on clients while a backend is down.
fn effect_of_outage(backend: &BackendInfo, backends: &[BackendInfo]) -> String {
    let is_down =
        |serves: &dyn Fn(&BackendInfo) -> bool| backends.iter().filter(|one| serves(one)).all(|one| one.is_down);
    let sites_down = backend.sites.iter().filter(|site| is_down(&|one| one.sites.contains(site)));
    let sites_down: Vec<_> = sites_down.map(String::as_str).collect();
    if is_down(&|_| true) {
        "all requests are answered with 503".to_owned()
    } else if !sites_down.is_empty() {
        format!("requests for {} are answered with 503", sites_down.join(", "))
    } else if backend.sites.is_empty() && is_down(&|one| one.sites.is_empty()) {
        "requests for the hosts of no site are answered with 503".to_owned()
    } else {
        "requests go to the other backends".to_owned()
    }
}

/// Classes from the narrowest to the widest: each key contains keys of the class before it.
const NESTED_CLASSES: [&str; 3] = ["ip/32", "ip/24", "ip/16"];
/// Load, as a part of the backend's cores, below which only addresses are considered.
const LOAD_MIN: f64 = 0.05;
/// A wider class is selected only if its heaviest key has at least this part of the load.
const CONCENTRATED_MIN: f64 = 0.25;
/// A wider class is selected only if its heaviest key has at least this many times the load of the heaviest key of the
/// narrower class. So a single heavy client does not select its network.
const WIDER_GAIN: f64 = 2.0;

/// The class in which the load is concentrated on one key: the narrowest, unless a wider one has a much heavier key.
/// `spent` are the cores that each key of each class uses; `cores` are those of the backends.
fn concentrated(spent: &[Vec<f64>; NESTED_CLASSES.len()], cores: f64) -> &'static str {
    let total: f64 = spent[0].iter().sum();
    if total < cores * LOAD_MIN {
        return NESTED_CLASSES[0];
    }
    let share = |class: usize| spent[class].iter().copied().fold(0.0, f64::max) / total;
    let mut chosen = 0;
    for wider in 1..NESTED_CLASSES.len() {
        if share(wider) >= CONCENTRATED_MIN && share(wider) >= share(chosen) * WIDER_GAIN {
            chosen = wider;
        }
    }
    NESTED_CLASSES[chosen]
}

/// The text of a key as rules use it. None if the class is not one of requests, or the key has no valid form.
fn key_of(key_ref: &KeyRef) -> Option<KeyText> {
    let mut key = KeyText::default();
    Class::parse(&key_ref.class).ok()?.write_key(key_ref.request.as_ref()?, &mut key).then_some(key)
}

/// A decision of the rules, with the fields of `tollgate replay --decisions` except the time.
fn decision(decision: &Decision, rule: Option<&str>, now: Moment) -> Value {
    let info = decision.info.unwrap_or_default();
    json!({
        "decision": decision.verdict.as_str(),
        "rule": rule,
        "reason": decision.reason.as_str(),
        "hold_ms": decision.verdict.hold(now).as_millis_ceil(),
        "retry_after_ms": decision.verdict.retry_after(now).as_millis_ceil(),
        "remaining": decision.info.map(|info| info.remaining),
        "reset_ms": info.reset.as_millis_ceil(),
        "clear_ms": info.clear.as_millis_ceil(),
        "level": decision.level,
        "band": decision.band.as_str(),
    })
}

/// Minimum and maximum of `Retry-After` in refusals by the queue, in milliseconds.
const QUEUE_RETRY_MS: (u64, u64) = (1_000, 60_000);

/// Replaces the decision of rules that admit a request by that of the queue, if the queue would hold or refuse it and
/// the gate is not in observe mode.
fn take_queue_verdict(answer: &mut Value, queue: &Value) {
    let would_wait = matches!(queue["decision"].as_str(), Some("hold" | "refuse"));
    if !would_wait || queue["in_force"] == false {
        return;
    }
    let wait_ms = queue["wait_ms"].as_u64().unwrap_or_default();
    for name in ["decision", "reason"] {
        answer[name] = queue[name].clone();
    }
    answer["rule"] = Value::Null;
    if queue["decision"] == "hold" {
        answer["hold_ms"] = json!(wait_ms);
    } else {
        // Like the queue, which limits the estimate of a long wait to 1.25 times the longest hold.
        let hold_max_ms = queue["allowed"].as_u64().filter(|_| queue["reason"] == "wait-too-long");
        let wait_ms = hold_max_ms.map_or(wait_ms, |hold_max_ms| wait_ms.min(hold_max_ms / 4 * 5));
        answer["retry_after_ms"] = json!(wait_ms.clamp(QUEUE_RETRY_MS.0, QUEUE_RETRY_MS.1));
    }
}

/// The number, rounded to three decimals.
fn thousandths(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_decision_of_the_queue_replaces_that_of_rules_that_admit() {
        let verdict = |queue: Value| {
            let mut answer = json!({ "decision": "admit", "rule": "r", "reason": "within-limit", "hold_ms": 0, "retry_after_ms": 0 });
            take_queue_verdict(&mut answer, &queue);
            ["decision", "rule", "reason", "hold_ms", "retry_after_ms"].map(|name| answer[name].clone())
        };
        let queue = |decision: &str, reason: &str, wait_ms: u64, in_force: bool| json!({ "decision": decision, "reason": reason, "wait_ms": wait_ms, "allowed": 4000, "in_force": in_force });
        let by_rules = [json!("admit"), json!("r"), json!("within-limit"), json!(0), json!(0)];
        let held = [json!("hold"), Value::Null, json!("backend-busy"), json!(700), json!(0)];
        let refused =
            |reason: &str, retry_ms: u64| [json!("refuse"), Value::Null, json!(reason), json!(0), json!(retry_ms)];
        assert_eq!(verdict(Value::Null), by_rules);
        assert_eq!(verdict(json!({ "decision": "admit", "reason": null, "wait_ms": 0, "in_force": true })), by_rules);
        assert_eq!(verdict(queue("refuse", "queue-full", 9000, false)), by_rules, "the gate only observes");
        assert_eq!(verdict(queue("hold", "backend-busy", 700, true)), held);
        assert_eq!(verdict(queue("refuse", "wait-too-long", 9000, true)), refused("wait-too-long", 5000));
        assert_eq!(verdict(queue("refuse", "queue-full", 9000, true)), refused("queue-full", 9000));
        assert_eq!(verdict(queue("refuse", "queue-full", 10, true)), refused("queue-full", 1000));
    }

    #[test]
    fn the_class_is_the_narrowest_in_which_the_load_is_concentrated() {
        let check = |spent: [Vec<f64>; 3], expect: &str| assert_eq!(concentrated(&spent, 1.0), expect, "{spent:?}");
        // Fifty addresses of one /24, and fourteen people.
        let crawler = vec![0.86 / 50.0; 50].into_iter().chain(vec![0.01; 14]).collect();
        check([crawler, [vec![0.86], vec![0.01; 14]].concat(), [vec![0.86], vec![0.01; 14]].concat()], "ip/24");
        // One address.
        check([vec![0.8, 0.1], vec![0.8, 0.1], vec![0.8, 0.1]], "ip/32");
        // A crawler in two hundred /24 of one /16.
        check([vec![0.004; 200], vec![0.004; 200], vec![0.8]], "ip/16");
        // Many people in many networks.
        check([vec![0.01; 90], vec![0.01; 90], vec![0.02; 45]], "ip/32");
        // Almost no load.
        check([vec![0.0001; 50], vec![0.005], vec![0.005]], "ip/32");
        check([vec![], vec![], vec![]], "ip/32");
    }
}
