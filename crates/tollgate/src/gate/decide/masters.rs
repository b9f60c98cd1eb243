//! Opens the link to the masters, the processes that share the state of rules with `state = "master"` between gates.
//! Through the link, the gate reports its decisions, and masters order it to delay keys.

use std::io;
use std::sync::Arc;

use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::link::{Link, LinkSettings};

/// Creates a link, which connects to its masters once [`Link::begin`] is called. Warns of masters without a key.
pub(crate) fn open(settings: &LinkSettings, clock: &Clock) -> io::Result<Arc<Link>> {
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
    Ok(Arc::new(link))
}
