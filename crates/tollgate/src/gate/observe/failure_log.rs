//! The log of failures: responses with 502, 503 and 504 that the gate makes itself, and responses that are cut off.
//!
//! One line for each would be too many while a backend is down. So each worker writes the first [`LINES_MAX`] failures
//! of a kind in full, and counts further ones until the [`INTERVAL`] ends. A kind is a status, a reason, a kind of
//! system error and a backend. The number of kinds is limited; failures of further kinds are counted together.

use std::cell::RefCell;
use std::io;
use std::net::IpAddr;

use tollgate_core::time::{Moment, Span};
use tollgate_wire::http1::RequestHead;

use crate::settings::BackendUrl;

/// The interval after which counts are written.
const INTERVAL: Span = Span::from_secs(10);
/// The number of failures of one kind that are written in full within the interval.
const LINES_MAX: u64 = 5;
/// The number of kinds that are counted separately in one interval.
const KINDS_MAX: usize = 64;
/// The longest part of a path that is written, in bytes.
const PATH_BYTES_MAX: usize = 256;

/// One failure.
#[derive(Clone, Copy)]
pub(crate) struct Failure<'a> {
    /// The status of the gate's own response; none if a response of the backend was cut off.
    pub(crate) status: Option<u16>,
    pub(crate) reason: &'static str,
    /// The error of the system, if there was one.
    pub(crate) error: Option<&'a io::Error>,
    pub(crate) backend: Option<&'a BackendUrl>,
}

/// The log of one worker.
#[derive(Default)]
pub(crate) struct FailureLog(RefCell<Kinds>);

/// The failures of the current interval.
#[derive(Default)]
struct Kinds {
    /// The start of the interval; none before its first failure.
    since: Option<Moment>,
    kinds: Vec<Kind>,
    /// The number of failures of further kinds.
    others: u64,
}

/// Failures of one kind in this interval.
struct Kind {
    status: Option<u16>,
    reason: &'static str,
    error: Option<io::ErrorKind>,
    backend: Option<BackendUrl>,
    count: u64,
}

impl Kind {
    fn is_of(&self, failure: &Failure<'_>) -> bool {
        (self.status, self.reason) == (failure.status, failure.reason)
            && self.error == failure.error.map(io::Error::kind)
            && self.backend.as_ref() == failure.backend
    }
}

impl FailureLog {
    /// Records a failure: writes it, or counts it with others of its kind.
    pub(crate) fn record(&self, failure: &Failure<'_>, request: &RequestHead, client: IpAddr, now: Moment) {
        self.flush(now);
        if !self.0.borrow_mut().record(failure, now) {
            return;
        }
        let path = &request.target()[..request.target().len().min(PATH_BYTES_MAX)];
        tracing::warn!(
            status = failure.status,
            reason = failure.reason,
            error = failure.error.map(tracing::field::display),
            backend = failure.backend.map(tracing::field::display),
            %client,
            method = %request.method.escape_ascii(),
            path = %path.escape_ascii(),
            count = 1,
            "{}",
            text(failure.status, failure.reason)
        );
    }

    /// Writes the counts if the interval has ended.
    pub(crate) fn flush(&self, now: Moment) {
        let mut kinds = self.0.borrow_mut();
        if kinds.since.is_some_and(|since| now.since(since) >= INTERVAL) {
            std::mem::take(&mut *kinds).write();
        }
    }
}

/// Counts are written before the worker ends.
impl Drop for FailureLog {
    fn drop(&mut self) {
        self.0.take().write();
    }
}

impl Kinds {
    /// Counts a failure. Returns whether it is to be written in full.
    fn record(&mut self, failure: &Failure<'_>, now: Moment) -> bool {
        self.since.get_or_insert(now);
        if let Some(kind) = self.kinds.iter_mut().find(|kind| kind.is_of(failure)) {
            kind.count += 1;
            return kind.count <= LINES_MAX;
        }
        if self.kinds.len() >= KINDS_MAX {
            self.others += 1;
            return false;
        }
        self.kinds.push(Kind {
            status: failure.status,
            reason: failure.reason,
            error: failure.error.map(io::Error::kind),
            backend: failure.backend.cloned(),
            count: 1,
        });
        true
    }

    /// Writes the failures that were counted but not written in full.
    fn write(self) {
        for kind in &self.kinds {
            let count = kind.count.saturating_sub(LINES_MAX);
            if count > 0 {
                let (status, reason, text) = (kind.status, kind.reason, text(kind.status, kind.reason));
                let backend = kind.backend.as_ref().map(tracing::field::display);
                tracing::warn!(status, reason, backend, count, "{text}, {count} more times");
            }
        }
        if self.others > 0 {
            tracing::warn!(count = self.others, "answered 502, 503 or 504 for other reasons");
        }
    }
}

/// The message of a failure.
fn text(status: Option<u16>, reason: &str) -> String {
    match status {
        Some(status) => format!("answered {status}: {reason}"),
        None => format!("cut off an answer: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_failures_is_a_few_lines_and_no_failure_is_lost() {
        let (mut kinds, mut written) = (Kinds::default(), 0);
        let backends: Vec<_> =
            (1..100).map(|port| BackendUrl::parse(&format!("http://127.0.0.1:{port}")).unwrap()).collect();
        for backend in &backends {
            for _ in 0..100 {
                let failure = Failure { status: Some(502), reason: "test", error: None, backend: Some(backend) };
                written += u64::from(kinds.record(&failure, Moment::from_millis(5)));
            }
        }
        assert_eq!((kinds.kinds.len(), written), (KINDS_MAX, LINES_MAX * KINDS_MAX as u64));
        let counted: u64 = kinds.kinds.iter().map(|kind| kind.count).sum();
        assert_eq!(counted + kinds.others, 9900);
    }

    #[test]
    fn statuses_reasons_errors_and_backends_are_counted_separately() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        let mut kinds = Kinds::default();
        let unreachable = Failure { status: Some(502), reason: "unreachable", error: None, backend: None };
        for failure in [
            Failure { error: Some(&refused), ..unreachable },
            Failure { error: Some(&reset), ..unreachable },
            unreachable,
            Failure { status: Some(504), ..unreachable },
        ] {
            kinds.record(&failure, Moment::from_millis(5));
        }
        kinds.record(&Failure { error: Some(&refused), ..unreachable }, Moment::from_millis(5));
        assert_eq!(kinds.kinds.iter().map(|kind| kind.count).collect::<Vec<_>>(), [2, 1, 1, 1]);
    }
}
