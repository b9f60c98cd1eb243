//! A master as operators see it.

use serde_json::{Value, json};

use crate::admin::Subject;
use crate::master::Figures;

/// A master, for the address for operators.
pub(super) struct MasterSubject(pub(super) Figures);

impl Subject for MasterSubject {
    fn role(&self) -> &'static str {
        "master"
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn status(&self) -> Value {
        let now = self.0.standing();
        let state = match now.gates {
            0 => "none was heard in the last minute".to_owned(),
            gates => format!("{gates} heard in the last minute"),
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
