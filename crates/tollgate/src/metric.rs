//! Helpers to export metrics for Prometheus whose values are computed when they are read, and counters per thread.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// A collector that calls a function.
struct CollectorFn<F>(F);

impl<F> fmt::Debug for CollectorFn<F> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CollectorFn")
    }
}

impl<F: Fn(&mut DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static> Collector for CollectorFn<F> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.0(&mut encoder)
    }
}

/// A collector that writes metrics with `encode`.
pub(crate) fn collector<F>(encode: F) -> Box<dyn Collector>
where
    F: Fn(&mut DescriptorEncoder<'_>) -> fmt::Result + Send + Sync + 'static,
{
    Box::new(CollectorFn(encode))
}

/// Writes a gauge without labels.
pub(crate) fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    metric(encoder, name, help, &ConstGauge::new(value))
}

/// Writes a counter without labels.
pub(crate) fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, total: u64) -> fmt::Result {
    metric(encoder, name, help, &ConstCounter::new(total))
}

/// Writes a metric without labels.
pub(crate) fn metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// Writes a gauge, or else a counter, once for each set of labels.
pub(crate) fn family<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    kind: MetricType,
    values: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in values {
        let encoder = family.encode_family(&labels)?;
        match kind {
            MetricType::Gauge => ConstGauge::new(value).encode(encoder)?,
            _ => ConstCounter::new(value).encode(encoder)?,
        }
    }
    Ok(())
}

/// Declares the counters of one thread: an enum `$counter` of them, and a type `$counters` that counts them. Each
/// variant is followed by the name and the help text of its metric. A thread has its own counters, so counting is an
/// addition to memory that no other thread writes.
macro_rules! counters {
    ($counter:ident, $counters:ident: $($variant:ident = $name:literal: $help:literal,)+) => {
        /// A counter of one thread.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum $counter { $(#[doc = $help] $variant),+ }

        /// The counters of one thread, aligned so that no two threads share a cache line.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(crate) struct $counters([std::sync::atomic::AtomicU64; [$($name),+].len()]);

        impl $counters {
            /// The metric names and help texts, in the order of the variants.
            pub(crate) const NAMES: [(&'static str, &'static str); [$($name),+].len()] = [$(($name, $help)),+];

            /// Counts one. There is one writer: a load and a store are enough, and cheaper than an atomic addition.
            pub(crate) fn count(&self, counter: $counter) {
                let value = &self.0[counter as usize];
                let relaxed = std::sync::atomic::Ordering::Relaxed;
                value.store(value.load(relaxed).wrapping_add(1), relaxed);
            }

            /// The counter with this index in [`Self::NAMES`].
            pub(crate) fn read(&self, index: usize) -> u64 {
                self.0[index].load(std::sync::atomic::Ordering::Relaxed)
            }
        }
    };
}

pub(crate) use counters;
