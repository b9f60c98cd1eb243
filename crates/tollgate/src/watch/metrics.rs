//! Metrics of the watch, which records refused keys and flags. Keys are never labels, because their number is
//! unbounded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;

use super::Watch;
use crate::metric::{collector, counter, gauge};

/// A collector of the metrics of the watch, for a registry.
pub(crate) fn watch_metrics(watch: Arc<Watch>) -> Box<dyn Collector> {
    collector(move |encoder| {
        let (counts, status) = (&watch.counts, watch.status());
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let omissions = status.omissions;
        for (name, help, total) in [
            ("reports", "Reports of refusals that were counted", read(&counts.reports)),
            ("reports_repeated", "Duplicate reports, which were not counted again", read(&counts.reports_repeated)),
            (
                "reports_refused",
                "Reports rejected because they could not be written to the journal",
                read(&counts.reports_refused),
            ),
            ("flags_set", "Accounts flagged", read(&counts.flags_set)),
            ("flags_cleared", "Flags cleared by operators", read(&counts.flags_cleared)),
            ("flags_dropped", "Accounts not flagged because the limit of flags was reached", omissions.flags_dropped),
            ("journal_failures", "Writes to the journal that failed", read(&counts.journal_failures)),
            ("refusals_ignored", "Reported refusals without a usable name or count", omissions.ignored),
            (
                "refusals_dropped",
                "Refusals not recorded because too many keys were refused at once",
                status.feed_dropped,
            ),
            ("accounts_pushed_out", "Accounts whose count was evicted to make room", omissions.accounts_evicted),
            ("episodes_pushed_out", "Episodes evicted to make room", omissions.episodes_evicted),
            ("announcements", "Flag announcements accepted by the webhook", read(&counts.announcements)),
            ("announcements_dropped", "Announcements given up", read(&counts.announcements_dropped)),
            ("flags_told", "Flags sent to other gates through Redis", read(&counts.flags_shared)),
            ("flags_heard", "Flags received from other gates", read(&counts.flags_received)),
            ("sharing_failures", "Failed attempts to share flags through Redis", read(&counts.sharing_failures)),
        ] {
            counter(encoder, &format!("tollgate_watch_{name}"), help, total)?;
        }
        for (name, help, value) in [
            ("flags", "Accounts that are flagged now", status.flags as u64),
            (
                "kept",
                "1 if all counted state is on disk or is not to be persisted, otherwise 0",
                u64::from(status.is_persisted),
            ),
            ("journal_bytes", "Size of the journal in bytes", status.journal_bytes.unwrap_or(0)),
            (
                "announcements_waiting",
                "Announcements that the webhook has not accepted yet",
                status.announcements_waiting as u64,
            ),
            ("flags_owed", "Flags not yet sent to other gates", status.flags_unshared as u64),
        ] {
            gauge(encoder, &format!("tollgate_watch_{name}"), help, value)?;
        }
        Ok(())
    })
}
