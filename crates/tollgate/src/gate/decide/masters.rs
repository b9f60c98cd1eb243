//! Opens the link to the masters, the processes that share the state of rules with `state = "master"` between gates.
//! Through the link, the gate reports the use of each key of these rules, and a sample of its refusals if the settings
//! ask for it. Masters order it to delay the keys that exceed a limit.

use std::io;
use std::sync::Arc;

use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::link::{Link, LinkSettings};

/// Creates a link when the gate starts, and when a reload changes its settings. It connects to the masters after
/// [`Link::begin`], which the caller calls when the rules exist: a master sends the known debts only once, after the
/// connection. Warns of masters without a public key, whose connections are not authenticated.
pub(crate) fn open(settings: &LinkSettings, clock: &Clock) -> io::Result<Arc<Link>> {
    let link = Link::start(settings.clone(), clock.clone())?;
    for master in &settings.masters {
        // `accounting` is the endpoint that receives reports, `control` the one that sends orders.
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
            "the gate will report to this master"
        );
    }
    Ok(Arc::new(link))
}
