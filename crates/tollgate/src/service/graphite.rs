//! Sends the metrics of a gate to Graphite in its plain-text protocol: one connection, one batch of lines per interval.
//!
//! The metric names of Tempomat are kept for existing charts: `Slash32`, `Slash24`, `Slash16` and `UserAgent` are the
//! numbers of keys with a long average wait. A batch that cannot be sent is dropped and counted; nothing waits for
//! Graphite.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tollgate_core::time::Span;

use crate::gate::Running;
use crate::metric::{collector, counter};
use crate::settings;
use crate::wall_clock;
use crate::watch::Watch;

/// Timeout for connecting and for sending a batch.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Tempomat's name of each class, which is the name of the metric.
const CLASSES: [(&str, &str); 4] =
    [("Slash32", "ip/32"), ("Slash24", "ip/24"), ("Slash16", "ip/16"), ("UserAgent", "user-agent")];

/// Numbers of batches sent and of failures.
pub(super) type GraphiteCounts = Arc<[AtomicU64; 2]>;

/// The counts as metrics.
pub(super) fn graphite_metrics(counts: GraphiteCounts) -> Box<dyn Collector> {
    collector(move |encoder| {
        let [batches, failures] = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        counter(encoder, "tollgate_graphite_batches", "Batches of metrics sent to Graphite", batches)?;
        let help = "Batches of metrics dropped because they could not be sent to Graphite";
        counter(encoder, "tollgate_graphite_failures", help, failures)
    })
}

/// Sends metrics until the task is aborted.
pub(super) async fn run(settings: settings::Graphite, gate: Arc<Running>, watch: Arc<Watch>, counts: GraphiteCounts) {
    let Some(address) = settings.address else { return };
    let [batches, failures] = &*counts;
    let prefix = settings.prefix.replace("{hostname}", &hostname());
    let mut connection = None;
    let mut moments = tokio::time::interval(settings.every);
    moments.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        moments.tick().await;
        let secs = wall_clock::now().as_nanos() / 1_000_000_000;
        let batch = lines(&prefix, &figures(&gate, &watch, settings.delay_threshold), secs);
        let sent = tokio::time::timeout(TIMEOUT, send(&mut connection, &address, &batch)).await;
        if matches!(sent, Ok(Ok(()))) {
            batches.fetch_add(1, Ordering::Relaxed);
        } else {
            connection = None;
            // Log the first failure, then one in 100.
            if failures.fetch_add(1, Ordering::Relaxed).is_multiple_of(100) {
                tracing::warn!(address, "cannot send metrics to Graphite: they are dropped");
            }
        }
    }
}

async fn send(connection: &mut Option<TcpStream>, address: &str, batch: &str) -> std::io::Result<()> {
    let stream = match connection {
        // A write to a connection that the peer has closed would succeed once, and that batch would be lost.
        Some(stream) if !is_closed(stream) => stream,
        _ => connection.insert(TcpStream::connect(address).await?),
    };
    stream.write_all(batch.as_bytes()).await
}

fn is_closed(stream: &TcpStream) -> bool {
    !matches!(stream.try_read(&mut [0; 64]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// The names and values of all metrics. The band is 0, 1 or 2.
fn figures(gate: &Running, watch: &Watch, delay_threshold: Span) -> Vec<(&'static str, f64)> {
    let standing = gate.figures();
    let mut figures: Vec<(&str, f64)> =
        CLASSES.iter().map(|(name, class)| (*name, gate.callers_waiting(class, delay_threshold) as f64)).collect();
    let band = ["normal", "elevated", "critical"].iter().position(|band| *band == standing.band).unwrap_or(0);
    figures.extend([
        ("requests", standing.requests as f64),
        ("refused", standing.refused as f64),
        ("held", standing.held as f64),
        ("waiting", (standing.waiting + standing.holding) as f64),
        ("in_flight", standing.in_flight as f64),
        ("in_flight_max", standing.in_flight_max as f64),
        ("connections", standing.connections as f64),
        ("toll_seconds", standing.toll_seconds),
        ("band", band as f64),
        ("band_sustained_ms", standing.sustained_ms as f64),
        ("flags", watch.status().flags as f64),
    ]);
    figures
}

fn lines(prefix: &str, figures: &[(&str, f64)], secs: u64) -> String {
    let mut text = String::new();
    for (name, value) in figures {
        let _ = writeln!(text, "{prefix}.{name} {value} {secs}");
    }
    text
}

/// Host name with characters that are special in Graphite replaced.
fn hostname() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_name_a_value_and_a_time_in_seconds() {
        let text = lines("some.place.vm", &[("Slash32", 1.0), ("toll_seconds", 0.25)], 1_794_705_426);
        assert_eq!(text, "some.place.vm.Slash32 1 1794705426\nsome.place.vm.toll_seconds 0.25 1794705426\n");
        assert!(!hostname().contains('.'));
    }
}
