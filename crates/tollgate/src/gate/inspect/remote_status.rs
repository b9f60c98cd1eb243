//! The status of the processes with which the gate shares the state of rules, for the admin API: masters and Redis.

use std::collections::BTreeMap;

use serde::Serialize;
use tollgate_gatekeeper::link::MasterReport;
use tollgate_gatekeeper::shared::StoreHealth;

use crate::gate::serve::running::Running;

/// The status of one master, or of Redis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Other {
    /// `master` or `Redis`.
    pub(crate) kind: &'static str,
    /// Its address.
    pub(crate) name: String,
    /// Whether it is in use: a master with both connections, or a Redis of which a part is connected.
    pub(crate) up: bool,
    /// A description for operators.
    pub(crate) state: String,
    /// The 99th percentile of Redis' response times, in milliseconds; none for a master, which does not respond.
    pub(crate) lag_ms: Option<f64>,
    /// Its counters, by name.
    pub(crate) figures: BTreeMap<&'static str, u64>,
}

impl Running {
    /// The status of the masters and of Redis, if rules use them. Only rules of the default domain use masters.
    pub(crate) fn others(&self) -> Vec<Other> {
        let (rules, mut others) = (self.shared.all_rules(), Vec::new());
        let mut states = rules.iter().map(|(_, rules)| &rules.remote_state);
        if let Some(masters) = states.clone().find_map(|state| state.masters.as_ref()) {
            others.extend(masters.masters().map(|(settings, report)| master(settings.accounting.to_string(), report)));
        }
        if let Some(sharing) = states.find_map(|state| state.redis.as_ref()) {
            others.push(redis(self.redis_name(), sharing.store().health()));
        }
        others
    }
}

fn master(name: String, report: MasterReport) -> Other {
    let state = match (report.accounting_up, report.control_up) {
        (true, true) if report.heard => "connected",
        (true, true) => "connected, silent so far",
        (true, false) => "hears reports; its orders do not come through",
        (false, true) => "gives orders; reports do not get through",
        (false, false) => "away: this gate decides by itself",
    };
    Other {
        kind: "master",
        name,
        up: report.accounting_up && report.control_up,
        state: state.to_owned(),
        lag_ms: None,
        figures: BTreeMap::from([
            ("reports_sent", report.reports_sent),
            ("reports_dropped", report.reports_dropped_away + report.reports_dropped_behind),
            ("orders", report.orders),
            ("connections", report.connections),
        ]),
    }
}

fn redis(name: String, health: &StoreHealth) -> Other {
    let (counts, gone) = (health.counts(), health.gone());
    let state = if gone >= 1.0 {
        let why = health.connect_error().map(|trouble| format!(" ({trouble})")).unwrap_or_default();
        format!("away: this gate decides by itself{why}")
    } else if gone > 0.0 {
        "some of it is away: this gate decides by itself about those keys".to_owned()
    } else {
        "connected".to_owned()
    };
    let figures = BTreeMap::from([("decisions", counts.answered), ("fallbacks", counts.unanswered())]);
    let lag_ms = health.times().percentile(99).map(|time| time.as_nanos() as f64 / 1e6);
    Other { kind: "Redis", name, up: gone < 1.0, state, lag_ms, figures }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_there_when_both_ways_to_it_are() {
        let report = |accounting_up, control_up| MasterReport { accounting_up, control_up, ..MasterReport::default() };
        let up = |accounting, control| master("m".to_owned(), report(accounting, control)).up;
        assert_eq!([up(true, true), up(true, false), up(false, true), up(false, false)], [true, false, false, false]);
    }
}
