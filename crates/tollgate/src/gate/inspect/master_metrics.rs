//! The metrics of the links to masters, the processes that share the state of rules between gates.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use tollgate_gatekeeper::link::{Link, MasterReport};

use crate::metric::{counter, family};

/// A metric: its name, its help text, and for each value of the label `what` the function that reads the value.
type MasterMetric = (&'static str, &'static str, &'static [(&'static str, fn(MasterReport) -> u64)]);

const GAUGES: [MasterMetric; 3] = [
    (
        "tollgate_master_link_up",
        "Whether the connection to a master is up",
        &[("accounting", |report| report.accounting_up.into()), ("control", |report| report.control_up.into())],
    ),
    (
        "tollgate_master_heard",
        "Whether a Tollgate master sent a message in the last seconds, or an original master is connected",
        &[("control", |report| report.heard.into())],
    ),
    (
        "tollgate_master_identifiers_counted",
        "Keys that are counted for a master",
        &[("accounting", |report| report.identifiers)],
    ),
];

const COUNTERS: [MasterMetric; 4] = [
    (
        "tollgate_master_link_connections",
        "Connections to a master, and failed attempts",
        &[("made", |report| report.connections), ("failed", |report| report.failures)],
    ),
    ("tollgate_master_link_reports", "Reports sent to a master", &[("sent", |report| report.reports_sent)]),
    (
        "tollgate_master_link_reports_dropped",
        "Reports dropped, because the master was disconnected or too slow",
        &[("away", |report| report.reports_dropped_away), ("behind", |report| report.reports_dropped_behind)],
    ),
    (
        "tollgate_master_link_orders",
        "Orders of a master, and invalid messages",
        &[("obeyed", |report| report.orders), ("dropped", |report| report.order_faults)],
    ),
];

/// Writes the metrics.
pub(crate) fn encode(masters: &Link, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    for ((name, help, readings), kind) in GAUGES
        .iter()
        .map(|gauge| (gauge, MetricType::Gauge))
        .chain(COUNTERS.iter().map(|counter| (counter, MetricType::Counter)))
    {
        let values = masters.masters().flat_map(|(settings, report)| {
            let master = settings.accounting.to_string();
            readings
                .iter()
                .map(move |(what, read)| ([("master", master.clone()), ("what", what.to_string())], read(report)))
        });
        family(encoder, (name, help), kind, values)?;
    }
    let lost: [(&str, &str, u64); 2] = [
        ("displaced", "by newer ones before the link took them", masters.relay.dropped()),
        ("untold", "because the caller's key is empty", masters.relay.unreported()),
    ];
    for (what, why, count) in lost {
        let name = format!("tollgate_master_decisions_{what}");
        let help = format!("Decisions that are not reported to masters {why}");
        counter(encoder, &name, &help, count)?;
    }
    Ok(())
}
