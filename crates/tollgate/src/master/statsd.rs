//! Metrics for statsd under Smockron's names: `request.total`, `request.status.STATUS` and `request.delayed_by`.
//!
//! Smockron sends a packet for every request, which would be more traffic than the reports. Here counts are sent a
//! few times a second, and delays as a sample with its sample rate.

use std::fmt::Write;
use std::net::{SocketAddr, UdpSocket};

use tollgate_core::fleet::{Outcome, Report};

/// The address of statsd, and the counts since the last packet.
pub(super) struct Statsd {
    socket: UdpSocket,
    /// Requests by the status of their report, in the order of [`STATUSES`].
    counts: [u64; 3],
    /// A sample of the delays, in milliseconds.
    delays: Vec<u64>,
    /// The number of all delays.
    delays_seen: u64,
}

const STATUSES: [&str; 3] = ["ACCEPTED", "DELAYED", "REJECTED"];
/// The maximum number of delays in one packet.
const DELAYS_MAX: usize = 32;

impl Statsd {
    pub(super) fn to(address: SocketAddr) -> std::io::Result<Self> {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.connect(address)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, counts: [0; 3], delays: Vec::new(), delays_seen: 0 })
    }

    /// Counts the requests of a report.
    pub(super) fn count(&mut self, report: &Report<'_>, outcome: Outcome) {
        let count = match outcome {
            Outcome::Charged(count) => count,
            Outcome::Refused => 1,
            _ => return,
        };
        self.counts[report.status as usize] += count;
        if let Some(until) = report.delayed_until_ms {
            self.delays_seen += 1;
            if self.delays.len() < DELAYS_MAX {
                self.delays.push(until.saturating_sub(report.received_ms));
            }
        }
    }

    /// Sends the counts. Lost packets are not repeated, as usual for statsd.
    pub(super) fn send(&mut self) {
        let text = self.take();
        if !text.is_empty() {
            let _ = self.socket.send(text.as_bytes());
        }
    }

    /// The text of the next packet. Resets the counts.
    fn take(&mut self) -> String {
        let mut text = String::new();
        let total: u64 = self.counts.iter().sum();
        if total > 0 {
            let _ = writeln!(text, "request.total:{total}|c");
        }
        for (status, count) in STATUSES.iter().zip(self.counts).filter(|(_, count)| *count > 0) {
            let _ = writeln!(text, "request.status.{status}:{count}|c");
        }
        let rate = self.delays.len() as f64 / self.delays_seen.max(1) as f64;
        for delay in self.delays.drain(..) {
            let _ = if rate < 1.0 {
                writeln!(text, "request.delayed_by:{delay}|ms|@{rate:.4}")
            } else {
                writeln!(text, "request.delayed_by:{delay}|ms")
            };
        }
        (self.counts, self.delays_seen) = ([0; 3], 0);
        text.truncate(text.trim_end().len());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_core::fleet::Status;

    fn report(status: Status, delayed_until_ms: Option<u64>) -> Report<'static> {
        Report {
            domain: b"d",
            status,
            identifier: b"i",
            received_ms: 1000,
            delayed_until_ms,
            note: b"",
            cpu: None,
            tally: None,
        }
    }

    #[test]
    fn counts_have_the_names_of_smockron_and_samples_their_rate() {
        let mut statsd = Statsd::to("127.0.0.1:9".parse().unwrap()).unwrap();
        assert_eq!(statsd.take(), "");
        statsd.count(&report(Status::Accepted, None), Outcome::Charged(3));
        statsd.count(&report(Status::Accepted, None), Outcome::Stale);
        statsd.count(&report(Status::Rejected, None), Outcome::Refused);
        statsd.count(&report(Status::Delayed, Some(1250)), Outcome::Charged(1));
        let expected = "request.total:5|c\nrequest.status.ACCEPTED:3|c\nrequest.status.DELAYED:1|c\nrequest.status.REJECTED:1|c\n\
                        request.delayed_by:250|ms";
        assert_eq!(statsd.take(), expected);
        for _ in 0..64 {
            statsd.count(&report(Status::Delayed, Some(1250)), Outcome::Charged(1));
        }
        let text = statsd.take();
        assert_eq!(text.matches("request.delayed_by:250|ms|@0.5000").count(), 32);
        assert!(text.len() < 1432, "fits in one packet");
    }
}
