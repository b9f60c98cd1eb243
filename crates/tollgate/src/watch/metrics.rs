//! What the watch has done, as metrics. Never keys: there is no end of those.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::Watch;

/// The watch's metrics.
pub(crate) struct WatchMetrics(pub(crate) Arc<Watch>);

impl fmt::Debug for WatchMetrics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("WatchMetrics")
    }
}

impl Collector for WatchMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (counts, standing) = (self.0.counts(), self.0.standing());
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let omissions = standing.omissions;
        for (name, help, total) in [
            ("reports", "Reports of refusals that were counted", read(&counts.reports)),
            ("reports_repeated", "Reports that had been counted before", read(&counts.reports_repeated)),
            ("reports_refused", "Reports that could not be kept, and were not counted", read(&counts.reports_refused)),
            ("flags_set", "Accounts flagged", read(&counts.flags_set)),
            ("flags_cleared", "Flags cleared by operators", read(&counts.flags_cleared)),
            ("flags_dropped", "Accounts not flagged because too many are", omissions.flags_dropped),
            ("journal_failures", "Writes to the journal that failed", read(&counts.journal_failures)),
            ("refusals_ignored", "Reported refusals without a usable name or count", omissions.ignored),
            ("refusals_dropped", "Refusals of too many callers at once to be told apart", standing.feed_dropped),
            ("accounts_pushed_out", "Accounts whose count began anew for want of room", omissions.accounts_evicted),
            ("episodes_pushed_out", "Episodes that left the view for want of room", omissions.episodes_evicted),
            ("announcements", "Flags announced to others", read(&counts.announcements)),
            ("announcements_dropped", "Announcements given up", read(&counts.announcements_dropped)),
            ("flags_told", "Flags that other gates were told of through Redis", read(&counts.flags_told)),
            ("flags_heard", "Flags that other gates have set or cleared", read(&counts.flags_heard)),
            ("sharing_failures", "Times that Redis was not there to share flags", read(&counts.sharing_failures)),
        ] {
            let counter = ConstCounter::new(total);
            let name = format!("tollgate_watch_{name}");
            counter.encode(encoder.encode_descriptor(&name, help, None, counter.metric_type())?)?;
        }
        for (name, help, value) in [
            ("flags", "Accounts that are flagged now", standing.flags as u64),
            ("kept", "Whether everything that counts is on disk, or is not meant to be", u64::from(standing.is_kept)),
            ("journal_bytes", "The length of the journal", standing.journal_bytes.unwrap_or(0)),
            ("announcements_waiting", "Announcements that nobody has taken yet", standing.announcements_waiting as u64),
            ("flags_owed", "Flags of which other gates have not been told yet", standing.flags_owed as u64),
        ] {
            let gauge = ConstGauge::new(value);
            let name = format!("tollgate_watch_{name}");
            gauge.encode(encoder.encode_descriptor(&name, help, None, gauge.metric_type())?)?;
        }
        Ok(())
    }
}
