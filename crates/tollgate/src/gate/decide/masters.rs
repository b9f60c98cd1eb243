//! The link to the masters, for rules with `state = "master"`: the gate reports its decisions, and masters order it to
//! delay keys.

use std::io;
use std::sync::{Arc, OnceLock};

use tollgate_core::fleet::Instruction;
use tollgate_core::time::Moment;
use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::link::{ApplyOrder, Link, LinkSettings};

/// The link to the masters, as long as rules use it.
pub(crate) struct Masters {
    pub(crate) link: Link,
    /// Applies an order of a master to the rules in force; set when there are rules.
    apply: Arc<OnceLock<ApplyToRules>>,
}

/// An [`ApplyOrder`] that any thread may call.
pub(crate) type ApplyToRules = Box<dyn Fn(&str, &[u8], Instruction, Moment) + Send + Sync>;

impl Masters {
    /// A link that connects to its masters once [`Masters::serve`] is called.
    pub(crate) fn open(settings: &LinkSettings, clock: &Clock) -> io::Result<Arc<Self>> {
        let apply: Arc<OnceLock<ApplyToRules>> = Arc::default();
        let known = apply.clone();
        let apply_order: ApplyOrder = Box::new(move |rule, identifier, instruction, now| {
            if let Some(apply) = known.get() {
                apply(rule, identifier, instruction, now);
            }
        });
        let link = Link::start(settings.clone(), clock.clone(), apply_order)?;
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
        Ok(Arc::new(Self { link, apply }))
    }

    /// Connects to the masters, without waiting for them, and passes their orders to `apply`. Later calls keep the
    /// first `apply`.
    pub(crate) fn serve(&self, apply: ApplyToRules) {
        let _ = self.apply.set(apply);
        self.link.begin();
    }
}
