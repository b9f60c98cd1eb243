//! Encodes metrics, which were parsed from the text of `/metrics`, as an OTLP export: the message
//! `ExportMetricsServiceRequest` of `opentelemetry-proto`.

use super::protobuf::Writer;
use super::{Sender, Value, write_attribute};
use crate::openmetrics::{Family, MetricKind, Series};

/// The aggregation temporality of counts since the start of the process.
const CUMULATIVE: u64 = 2;

/// Encodes an export of metrics counted from `start_ns` to `now_ns`, in nanoseconds since 1970.
pub fn write_metrics(sender: &Sender, families: &[Family<'_>], start_ns: u64, now_ns: u64) -> Vec<u8> {
    sender.export(|metrics| {
        for family in families {
            metrics.message(2, |metric| write_family(metric, family, start_ns, now_ns));
        }
    })
}

fn write_family(metric: &mut Writer<'_>, family: &Family<'_>, start_ns: u64, now_ns: u64) {
    metric.bytes(1, family.name.as_bytes());
    metric.bytes(2, family.help.as_bytes());
    // The unit is the end of the name.
    if family.name.ends_with("_seconds") {
        metric.bytes(3, b"s");
    } else if family.name.ends_with("_ms") {
        metric.bytes(3, b"ms");
    }
    // A point of a gauge or of a sum.
    let number = |writer: &mut Writer<'_>, series: &Series<'_>| {
        writer.message(1, |point| {
            point.fixed(2, start_ns);
            point.fixed(3, now_ns);
            point.double(4, series.value);
            write_labels(point, 7, series);
        });
    };
    match family.kind {
        MetricKind::Gauge => metric.message(5, |gauge| family.series.iter().for_each(|series| number(gauge, series))),
        MetricKind::Counter => metric.message(7, |sum| {
            family.series.iter().for_each(|series| number(sum, series));
            sum.integer(2, CUMULATIVE);
            // `is_monotonic`
            sum.integer(3, 1);
        }),
        MetricKind::Histogram => metric.message(9, |histogram| {
            for series in &family.series {
                histogram.message(1, |point| {
                    point.fixed(2, start_ns);
                    point.fixed(3, now_ns);
                    // The count and the sum of all values.
                    point.fixed(4, series.buckets.last().map_or(0, |(_, count)| *count));
                    point.double(5, series.value);
                    // Buckets are cumulative in OpenMetrics, but not in OTLP.
                    let mut before = 0;
                    let counts = series.buckets.iter().map(|(_, count)| {
                        let here = count.saturating_sub(before);
                        before = *count;
                        here
                    });
                    point.packed(6, counts);
                    // The last bucket has no upper bound.
                    let bounds = series.buckets.len().saturating_sub(1);
                    point.packed(7, series.buckets[..bounds].iter().map(|(bound, _)| bound.to_bits()));
                    write_labels(point, 9, series);
                });
            }
            histogram.integer(2, CUMULATIVE);
        }),
    }
}

fn write_labels(point: &mut Writer<'_>, field: u32, series: &Series<'_>) {
    for (name, value) in &series.labels {
        write_attribute(point, field, name, &Value::Text(value.clone()));
    }
}
