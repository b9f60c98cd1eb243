//! The link to the masters, for rules with `state = "master"`: the gate reports its decisions, and masters order it to
//! delay keys.

use std::io;
use std::sync::Arc;

use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::limiter::Limiter;
use tollgate_gatekeeper::link::{ApplyOrder, Link, LinkSettings, MasterReport, MasterSettings};
use tollgate_gatekeeper::relay::Relay;

/// The link to the masters, as long as rules use it.
pub(crate) struct Masters {
    link: Link,
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

    /// Whether these settings name the same masters.
    pub(crate) fn is_for(&self, settings: &LinkSettings) -> bool {
        self.link.settings == *settings
    }

    /// Reports the decisions of `limiter` to the masters.
    pub(crate) fn hear(&self, limiter: &mut Limiter) {
        limiter.report_to(&self.link.relay);
    }

    /// The ring through which decisions reach the link.
    pub(crate) fn relay(&self) -> &Relay {
        &self.link.relay
    }

    /// The state of the link to each master.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&MasterSettings, MasterReport)> {
        self.link.masters()
    }
}
