//! The metrics of a gate, for Prometheus and OpenTelemetry. They are computed from counters when they are read.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use tollgate_gatekeeper::histogram::HistogramSnapshot;
use tollgate_gatekeeper::shared::Sharing;

use super::master_metrics;
use crate::gate::decide::queue::QueueStatus;
use crate::gate::decide::rules::RuleCounters;
use crate::gate::http::backend::Backend;
use crate::gate::http::worker::Shared;
use crate::gate::observe::counters::WorkerCounters;
use crate::gate::serve::running::Running;
use crate::metric::{collector, counter, family, gauge, metric};
use crate::settings::DEFAULT_DOMAIN;

/// A metric of each backend: its name after `tollgate_backend_`, its help text, its type, and its value.
type BackendMetric = (&'static str, &'static str, MetricType, fn(&Backend, QueueStatus) -> u64);

impl Running {
    /// A collector of all metrics of this gate, for a registry.
    pub(crate) fn metrics(&self) -> Box<dyn Collector> {
        let shared = self.shared.clone();
        collector(move |encoder| shared.encode_metrics(encoder))
    }
}

impl Shared {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (place, (name, help)) in WorkerCounters::NAMES.into_iter().enumerate() {
            let total: u64 = self.counters.iter().map(|counters| counters.read(place)).sum();
            counter(encoder, &format!("tollgate_{name}"), help, total)?;
        }
        gauge(encoder, "tollgate_connections", "Connections of clients", self.caps.total() as u64)?;
        gauge(
            encoder,
            "tollgate_requests_at_backend",
            "Requests in flight at the backends",
            self.admission.queues.status().in_flight,
        )?;
        let (memory, spool) = self.buffers.budget.used();
        let help = "Bytes of responses in memory that slow clients have not read yet";
        gauge(encoder, "tollgate_buffered_memory_bytes", help, memory)?;
        let help = "Bytes of responses in the spool file that slow clients have not read yet";
        gauge(encoder, "tollgate_buffered_spool_bytes", help, spool)?;
        let held = u64::from(self.admission.holds.total());
        gauge(encoder, "tollgate_requests_held", "Requests that rules hold", held)?;
        let (reloads, read) = (&self.reloads, |count: &AtomicU64| count.load(Ordering::Relaxed));
        counter(encoder, "tollgate_reloads", "Reloads of the settings that took effect", read(&reloads.done))?;
        let help = "Reloads that changed nothing because the file was invalid";
        counter(encoder, "tollgate_reloads_failed", help, read(&reloads.failed))?;
        let help = "Whether the settings in force are older than the file, because its last reload failed";
        gauge(encoder, "tollgate_settings_stale", help, reloads.is_stale.load(Ordering::Relaxed).into())?;
        let help = "Settings of the file that need a restart";
        gauge(encoder, "tollgate_settings_waiting", help, read(&reloads.waiting))?;
        let log = &self.access_log_counts;
        counter(encoder, "tollgate_access_log_lines", "Lines written to the access log", read(&log.written))?;
        let help = "Lines of the access log that were dropped because the destination does not keep up or fails";
        counter(encoder, "tollgate_access_log_dropped", help, read(&log.dropped))?;
        self.encode_times(encoder)?;
        self.encode_queue(encoder)?;
        self.encode_rules(encoder)?;
        self.encode_redis(encoder)?;
        if let Some(masters) = &self.admission.rules().remote_state.masters {
            master_metrics::encode(masters, encoder)?;
        }
        self.encode_backends(encoder)
    }

    fn encode_times(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stats = &self.stats;
        for (name, help, histogram) in [
            (
                "tollgate_wait_seconds",
                "Time that requests were held and waited before they were forwarded",
                &stats.waits,
            ),
            ("tollgate_request_toll_seconds", "Cost of requests in CPU time", &stats.tolls),
            ("tollgate_backend_seconds", "Response time of the backends", &stats.backend),
            ("tollgate_answer_seconds", "Response time including the wait at the gate", &stats.answers),
        ] {
            encode_histogram(encoder, name, help, &histogram.read())?;
        }
        let help = "Requests of clients that did not fit into the statistics";
        counter(encoder, "tollgate_callers_unnamed", help, stats.spenders.unnamed())?;
        let help = "Keys that an operator has exempted";
        gauge(encoder, "tollgate_exemptions", help, self.admission.exemptions.count() as u64)
    }

    fn encode_queue(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let admission = &self.admission;
        let (queue, load) = (admission.queues.status(), &admission.load);
        gauge(encoder, "tollgate_requests_waiting", "Requests that wait in the queue", queue.waiting)?;
        gauge(encoder, "tollgate_in_flight_max", "In-flight limit of the backends", queue.in_flight_max)?;
        let help = "Band of the backends: 0 normal, 1 elevated, 2 critical";
        gauge(encoder, "tollgate_band", help, load.band() as u64)?;
        let help = "Waiting time that determined the band, in milliseconds";
        gauge(encoder, "tollgate_band_sustained_ms", help, load.sustained().as_millis_ceil())?;
        counter(encoder, "tollgate_requests_waited", "Requests that have waited in the queue", queue.waited)?;
        counter(encoder, "tollgate_queue_turned_away", "Requests that the queue refused", queue.refused)?;
        let observed = admission.observed();
        let help = "Whether the gate only observes: nothing is held or refused";
        gauge(encoder, "tollgate_observing", help, u64::from(observed.is_observing))?;
        let help = "Requests that the gate only observed";
        counter(encoder, "tollgate_requests_observed", help, observed.requests)?;
        let help = "Requests that the queue would have held if the gate did not only observe";
        counter(encoder, "tollgate_queue_would_hold", help, observed.queue_would_hold)?;
        let help = "Requests that the queue would have refused if the gate did not only observe";
        counter(encoder, "tollgate_queue_would_refuse", help, observed.queue_would_refuse)?;
        let help = "Costs and loads reported by backends that were invalid or impossible";
        counter(encoder, "tollgate_toll_reports_ignored", help, admission.reports_ignored.load(Ordering::Relaxed))?;
        let seconds = ConstCounter::new(queue.toll_ns as f64 / 1e9);
        metric(encoder, "tollgate_toll_seconds", "CPU time charged", &seconds)
    }

    fn encode_rules(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Requests that a rule held or refused, or would have";
        let mut decisions = encoder.encode_descriptor("tollgate_rule_decisions", help, None, MetricType::Counter)?;
        let rules = self.all_rules();
        let faces = || rules.iter().flat_map(|(domain, rules)| rules.faces.iter().map(move |face| (domain, face)));
        for (domain, face) in faces() {
            let name = named_in(domain, &face.name);
            for (kind, verdict) in RuleCounters::KINDS.into_iter().enumerate() {
                let labels = [("rule", &*name), ("class", face.class.as_str()), ("verdict", verdict)];
                ConstCounter::new(face.counters.read(kind)).encode(decisions.encode_family(&labels)?)?;
            }
        }
        let help =
            "CPU time of the requests that a rule admitted; of several rules, the one that was nearest to its limit";
        let mut tolls = encoder.encode_descriptor("tollgate_rule_toll_seconds", help, None, MetricType::Counter)?;
        for (domain, face) in faces() {
            let name = named_in(domain, &face.name);
            let labels = [("rule", &*name), ("class", face.class.as_str())];
            ConstCounter::new(face.counters.toll_ns() as f64 / 1e9).encode(tolls.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// The metrics of Redis, if rules use it.
    fn encode_redis(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let rules = self.all_rules();
        // All domains use the same store, each with its own leases.
        let sharings = || rules.iter().filter_map(|(_, rules)| rules.remote_state.redis.as_ref());
        let Some(sharing) = sharings().next() else { return Ok(()) };
        let counts = sharing.store().counts();
        let help = "Connections made to Redis";
        counter(encoder, "tollgate_redis_connects", help, counts.connects)?;
        let help = "Decisions from local state or refusals by on_timeout, by the reason why Redis did not decide";
        let fallbacks = counts.fallbacks().map(|(why, count)| ([("why", why.as_str())], count));
        family(encoder, ("tollgate_redis_fallbacks", help), MetricType::Counter, fallbacks)?;
        counter(encoder, "tollgate_redis_decisions", "Decisions by Redis", counts.answered)?;
        let help = "Charges on Redis that were refunded because the request was gone or another node refused";
        counter(encoder, "tollgate_redis_given_back", help, counts.given_back)?;
        let help = "Ends or costs of requests that could not be reported to Redis";
        counter(encoder, "tollgate_redis_unsettled", help, counts.unsettled)?;
        counter(encoder, "tollgate_redis_calls", "Script calls sent to Redis", counts.calls)?;
        counter(encoder, "tollgate_redis_pipelines", "Pipelines of calls sent to Redis", counts.pipelines)?;
        let help = "Unused requests of leases from Redis: keys may exceed their limits by this many";
        gauge(encoder, "tollgate_redis_leased", help, sharings().map(Sharing::leased).sum())?;
        let health = sharing.store().health();
        let help = "Part of Redis that does not respond and is not used, from 0 to 1";
        metric(encoder, "tollgate_redis_gone", help, &ConstGauge::new(health.gone()))?;
        let help = "Response time of decisions by Redis";
        encode_histogram(encoder, "tollgate_redis_decision_seconds", help, &health.times())
    }

    /// The metrics of each backend, with the sites that it serves if there are any.
    fn encode_backends(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (backends, settings) = (self.backends.load(), self.settings.load());
        let labels = |backend: &Backend| {
            let site = settings.sites_at(&backend.url).join(",");
            let site = (!settings.sites.is_empty()).then_some(("site", site));
            std::iter::once(("backend", backend.url.to_string())).chain(site).collect::<Vec<_>>()
        };
        let statuses: Vec<_> = backends.all.iter().map(|backend| (backend, backend.queue.status())).collect();
        let metrics: [BackendMetric; 5] = [
            ("up", "Whether requests go to the backend", MetricType::Gauge, |backend, _| {
                u64::from(backend.is_up().is_ok())
            }),
            ("in_flight", "Requests in flight at the backend", MetricType::Gauge, |backend, _| {
                u64::from(backend.in_flight())
            }),
            ("in_flight_max", "In-flight limit of the backend", MetricType::Gauge, |_, queue| queue.in_flight_max),
            ("waiting", "Requests that wait for the backend", MetricType::Gauge, |_, queue| queue.waiting),
            ("turned_away", "Requests that the queue of the backend refused", MetricType::Counter, |_, queue| {
                queue.refused
            }),
        ];
        for (name, help, kind, value) in metrics {
            let name = format!("tollgate_backend_{name}");
            let values = statuses.iter().map(|(backend, status)| (labels(backend), value(backend, *status)));
            family(encoder, (&name, help), kind, values)?;
        }
        Ok(())
    }
}

/// The name of a rule, with its domain unless that is the default one.
pub(crate) fn named_in<'a>(domain: &str, rule: &'a str) -> Cow<'a, str> {
    if domain == DEFAULT_DOMAIN { Cow::Borrowed(rule) } else { Cow::Owned(format!("{domain}/{rule}")) }
}

fn encode_histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    counted: &HistogramSnapshot,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    metric.encode_histogram::<NoLabelSet>(counted.sum_seconds(), counted.total(), &counted.buckets(), None)
}
