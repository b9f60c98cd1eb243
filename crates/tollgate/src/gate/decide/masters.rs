//! The masters that this gate reports to about rules with `state = "master"`, and that say whom to delay.

use std::io;
use std::sync::{Arc, OnceLock, Weak};

use tollgate_gatekeeper::clock::Clock;
use tollgate_gatekeeper::limiter::Limiter;
use tollgate_gatekeeper::link::{Link, LinkSettings, MasterReport, MasterSettings};
use tollgate_gatekeeper::relay::Relay;

use super::admission::Admission;

/// The link to the masters, for as long as rules use it.
pub(crate) struct Masters {
    link: Link,
    /// Whose records are changed when a master says so.
    gate: Arc<OnceLock<Weak<Admission>>>,
}

impl Masters {
    /// A link to the masters, which are looked for as soon as there is [somebody to serve](Self::serve).
    pub(crate) fn open(settings: &LinkSettings, clock: &Clock) -> io::Result<Arc<Self>> {
        let gate: Arc<OnceLock<Weak<Admission>>> = Arc::default();
        let known = gate.clone();
        let obey = Box::new(move |rule: &str, identifier: &[u8], instruction, now| {
            if let Some(admission) = known.get().and_then(Weak::upgrade) {
                admission.rules().limiter().obey(rule, identifier, instruction, now);
            }
        });
        let link = Link::start(settings.clone(), clock.clone(), obey)?;
        for master in &settings.masters {
            if master.key.is_none() && !(master.accounting.is_loopback() && master.control.is_loopback()) {
                tracing::warn!(accounting = %master.accounting, "the link to this master is not authenticated: whoever is on the way can delay anyone; give it a `key`");
            }
            tracing::info!(accounting = %master.accounting, control = %master.control, rules = master.rules.len(), "reporting to a master");
        }
        Ok(Arc::new(Self { link, gate }))
    }

    /// From now on `admission` does as masters say. Whether they are there is not waited for.
    pub(crate) fn serve(&self, admission: &Arc<Admission>) {
        let _ = self.gate.set(Arc::downgrade(admission));
        self.link.begin();
    }

    /// Whether these settings mean these masters.
    pub(crate) fn is_for(&self, settings: &LinkSettings) -> bool {
        self.link.settings() == settings
    }

    /// From now on masters hear what `limiter` decides.
    pub(crate) fn hear(&self, limiter: &mut Limiter) {
        limiter.report_to(self.link.relay());
    }

    /// Where decisions drop what masters are to hear.
    pub(crate) fn relay(&self) -> &Relay {
        self.link.relay()
    }

    /// How it goes with each.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&MasterSettings, MasterReport)> {
        self.link.masters()
    }
}
