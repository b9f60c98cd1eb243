//! The link to the masters, for rules with `state = "master"`: the gate reports its decisions, and masters order it to
//! delay keys.

use std::io;
use std::sync::Arc;

use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::link::{ApplyOrder, Link, LinkSettings};

/// The link to the masters, as long as rules use it.
pub(crate) struct Masters {
    pub(crate) link: Link,
}

impl Masters {
    /// A link that connects to its masters once [`Masters::serve`] is called.
    pub(crate) fn open(settings: &LinkSettings, clock: &Clock) -> io::Result<Arc<Self>> {
        let link = Link::start(settings.clone(), clock.clone())?;
        for master in &settings.masters {
            if master.key.is_none() && !(master.accounting.is_loopback() && master.control.is_loopback()) {
                tracing::warn!(
                    accounting = %master.accounting,
                    "the link to this master is not authenticated: anyone on the network path can delay any client; give \
                     it a `key`"
                );
            }
            tracing::info!(
                accounting = %master.accounting,
                control = %master.control,
                rules = master.rules.len(),
                "reporting to a master"
            );
        }
        Ok(Arc::new(Self { link }))
    }

    /// Connects to the masters, without waiting for them, and passes their orders to `apply`. Later calls keep the
    /// first `apply`.
    pub(crate) fn serve(&self, apply: ApplyOrder) {
        self.link.begin(apply);
    }
}
