//! The master for the admin address: its part of the status that the admin API returns.

use serde_json::{Value, json};

use crate::admin::MonitoredRole;
use crate::master::MasterMetrics;

/// A master for the admin address.
pub(super) struct MonitoredMaster(pub(super) MasterMetrics);

impl MonitoredRole for MonitoredMaster {
    fn role(&self) -> &'static str {
        "master"
    }

    fn status(&self) -> Value {
        let now = self.0.status();
        let state = match now.gates {
            0 => "none active in the last minute".to_owned(),
            gates => format!("{gates} active in the last minute"),
        };
        json!({ "fleet": [{
            "kind": "gates",
            "name": "",
            "up": now.gates > 0,
            "state": state,
            "lag_ms": now.lag_ms,
            "figures": {
                "listening": now.subscribers,
                "callers_known": now.identifiers,
                "callers_delayed": now.delayed,
                "orders_dropped": now.orders_dropped,
            },
        }] })
    }
}
