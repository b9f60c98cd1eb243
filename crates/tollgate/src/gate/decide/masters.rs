//! The link to the masters, for rules with `state = "master"`: the gate reports its decisions, and masters order it to
//! delay keys.

use std::io;
use std::sync::Arc;

use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::link::{Link, LinkSettings};

/// A link that connects to its masters once [`Link::begin`] is called.
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
