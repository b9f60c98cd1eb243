//! Sends metrics and traces to the OpenTelemetry collector, and counts the outcomes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use tokio::sync::mpsc::Receiver;
use tollgate_wire::openmetrics;
use tollgate_wire::otlp::{Sender, Value, write_metrics, write_spans};

use super::request_trace::RequestTrace;
use super::tracer::Tracer;
use crate::bounded_file;
use crate::metric::{collector, counter};
use crate::post::Poster;
use crate::settings::{self, WebUrl};
use crate::wall_clock;

/// The maximum number of requests whose traces are sent together.
const BATCH_MAX: usize = 512;
/// The time for which the trace of a finished request waits for others to be sent with it. It is also the pause before
/// the first retry.
const BATCH_WAIT: Duration = Duration::from_secs(1);
/// Attempts to send traces. Metrics are not sent again, because the next export has the same cumulative counters.
const ATTEMPTS_MAX: u32 = 3;

/// The task that sends metrics and traces.
pub(crate) struct TelemetryExporter {
    /// The description of this process.
    sender: Sender,
    /// Names and values of header fields from the file in the settings, such as an API key.
    fields: Vec<(String, String)>,
    metrics_poster: Poster,
    traces_poster: Poster,
    /// The interval at which metrics are sent.
    every: Duration,
    /// The start of this process, since which counters count, in nanoseconds since 1970.
    start_ns: u64,
    counts: Arc<ExportCounts>,
    /// Traces of requests that have ended; none if traces are off.
    finished: Option<Receiver<Box<RequestTrace>>>,
}

/// Outcomes of exports.
#[derive(Debug, Default)]
struct ExportCounts {
    /// Requests whose traces the collector accepted.
    requests_accepted: AtomicU64,
    /// Requests whose traces were dropped, here or by the tracer because its queue was full.
    requests_dropped: Arc<AtomicU64>,
    /// Failed attempts to send metrics or traces.
    failures: AtomicU64,
}

impl TelemetryExporter {
    /// Creates the exporter for these settings, and the tracer that samples requests if traces are on.
    pub(crate) fn open(settings: &settings::TelemetrySettings) -> io::Result<(Self, Option<Arc<Tracer>>)> {
        let counts = Arc::new(ExportCounts::default());
        let (tracer, finished) =
            settings.traces_millionths.map(|share| Tracer::new(share, counts.requests_dropped.clone())).unzip();
        let poster = |end: &str| {
            let path = format!("{}{end}", settings.url.path.trim_end_matches('/'));
            Poster::new(WebUrl { path, ..settings.url.clone() })
        };
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let sender = Sender {
            attributes: vec![
                ("service.name", Value::Text(settings.service.clone())),
                ("service.version", Value::Text(env!("CARGO_PKG_VERSION").to_owned())),
                ("service.instance.id", Value::Text(format!("{host}:{}", std::process::id()))),
                ("host.name", Value::Text(host)),
            ],
            version: env!("CARGO_PKG_VERSION"),
        };
        let telemetry = Self {
            sender,
            fields: settings.headers_file.as_deref().map(read_fields).transpose()?.unwrap_or_default(),
            metrics_poster: poster("/v1/metrics")?,
            traces_poster: poster("/v1/traces")?,
            every: settings.every,
            start_ns: wall_clock::now().as_nanos(),
            counts,
            finished,
        };
        Ok((telemetry, tracer))
    }

    /// The outcomes of exports, as metrics.
    pub(crate) fn metrics(&self) -> Box<dyn Collector> {
        let counts = self.counts.clone();
        collector(move |encoder| {
            let help = "Requests whose traces the collector accepted";
            counter(encoder, "tollgate_traces", help, counts.requests_accepted.load(Ordering::Relaxed))?;
            let help = "Requests whose traces were dropped: the queue was full, or the collector did not accept them";
            counter(encoder, "tollgate_traces_dropped", help, counts.requests_dropped.load(Ordering::Relaxed))?;
            let (help, failures) = ("Failed exports of metrics or traces", counts.failures.load(Ordering::Relaxed));
            counter(encoder, "tollgate_telemetry_failures", help, failures)
        })
    }

    /// Exports until the process ends. `metrics` returns the text of `/metrics`.
    pub(crate) async fn run(mut self, metrics: impl Fn() -> String) {
        let finished = self.finished.take();
        let spans = async {
            if let Some(finished) = finished {
                self.export_traces(finished).await;
            }
        };
        tokio::join!(self.export_metrics(metrics), spans);
    }

    async fn export_metrics(&self, metrics: impl Fn() -> String) {
        let mut moments = tokio::time::interval(self.every);
        moments.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            moments.tick().await;
            let text = metrics();
            let now_ns = wall_clock::now().as_nanos();
            let body = write_metrics(&self.sender, &openmetrics::read(&text), self.start_ns, now_ns);
            if let Err(fault) = self.send(&self.metrics_poster, &body).await {
                self.complain(&fault);
            }
        }
    }

    async fn export_traces(&self, mut finished: Receiver<Box<RequestTrace>>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while finished.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let more = async {
                while batch.len() < BATCH_MAX {
                    let room = BATCH_MAX - batch.len();
                    if finished.recv_many(&mut batch, room).await == 0 {
                        break;
                    }
                }
            };
            let _ = tokio::time::timeout(BATCH_WAIT, more).await;
            let spans: Vec<_> = batch.iter().flat_map(|trace| trace.spans()).collect();
            let counted = if self.deliver(&write_spans(&self.sender, &spans)).await {
                &self.counts.requests_accepted
            } else {
                &*self.counts.requests_dropped
            };
            counted.fetch_add(batch.len() as u64, Ordering::Relaxed);
            batch.clear();
        }
    }

    /// Sends spans, and retries if that may help. Returns whether the collector accepted them.
    async fn deliver(&self, body: &[u8]) -> bool {
        let mut wait = BATCH_WAIT;
        for attempt in 1..=ATTEMPTS_MAX {
            let Err(fault) = self.send(&self.traces_poster, body).await else { return true };
            self.complain(&fault);
            if !fault.may_retry || attempt == ATTEMPTS_MAX {
                return false;
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
        false
    }

    async fn send(&self, poster: &Poster, body: &[u8]) -> Result<(), ExportError> {
        let mut fields = vec![("Content-Type", "application/x-protobuf")];
        fields.extend(self.fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        match poster.post(&fields, body).await {
            Ok(200..=299) => Ok(()),
            Ok(status) => Err(ExportError {
                may_retry: matches!(status, 429 | 502 | 503 | 504),
                what: format!("answered {status}"),
            }),
            Err(error) => Err(ExportError { may_retry: true, what: error.to_string() }),
        }
    }

    /// Counts a failure, and logs it at times.
    fn complain(&self, fault: &ExportError) {
        // Logs the first failure, then rarely: a collector that is down for long is not news.
        if self.counts.failures.fetch_add(1, Ordering::Relaxed).is_multiple_of(100) {
            let (address, error) = (self.metrics_poster.authority(), &fault.what);
            tracing::warn!(address, error, "the collector does not accept telemetry; it is dropped");
        }
    }
}

/// The reason for a failed export.
struct ExportError {
    /// Whether a retry may succeed.
    may_retry: bool,
    what: String,
}

/// The largest file with header fields, in bytes.
const FIELDS_BYTES_MAX: u64 = 64 << 10;

/// Header fields, one per line of a file.
fn read_fields(file: &std::path::Path) -> io::Result<Vec<(String, String)>> {
    let wrong = |message: String| io::Error::other(format!("the headers file {}: {message}", file.display()));
    let bytes = bounded_file::read(file, FIELDS_BYTES_MAX).map_err(|error| wrong(error.to_string()))?;
    let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    let field = |line: &str| {
        let (name, value) =
            line.split_once(':').filter(|(name, value)| is_name(name) && !value.contains(char::is_control))?;
        Some((name.to_owned(), value.trim().to_owned()))
    };
    let fields = lines.enumerate().map(|(index, line)| {
        // Without the line itself, which may be a secret.
        field(line).ok_or_else(|| wrong(format!("line {} is not `name: value`", index + 1)))
    });
    fields.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_from_a_file_and_errors_contain_no_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("headers");
        std::fs::write(&file, "api-key: s3cret\n\nX-Scope-OrgID:  one:two \n").unwrap();
        let fields = read_fields(&file).unwrap();
        let expect = [("api-key", "s3cret"), ("X-Scope-OrgID", "one:two")];
        assert_eq!(fields, expect.map(|(name, value)| (name.to_owned(), value.to_owned())));
        std::fs::write(&file, "a: b\nBearer s3cret\n").unwrap();
        let fault = read_fields(&file).unwrap_err().to_string();
        assert!(fault.contains("line 2") && !fault.contains("s3cret"), "{fault}");
    }
}
