//! A message in transit.

use tollgate_core::fleet::{Command, Order, Report, Status, Tally};

#[derive(Clone, Debug)]
pub(crate) struct ReportPacket {
    domain: Vec<u8>,
    status: Status,
    identifier: Vec<u8>,
    received_ms: u64,
    delayed_until_ms: Option<u64>,
    pub(crate) tally: Option<Tally>,
}

impl ReportPacket {
    pub(crate) fn new(report: &Report<'_>) -> Self {
        Self {
            domain: report.domain.to_vec(),
            status: report.status,
            identifier: report.identifier.to_vec(),
            received_ms: report.received_ms,
            delayed_until_ms: report.delayed_until_ms,
            tally: report.tally,
        }
    }

    pub(crate) fn report(&self) -> Report<'_> {
        Report {
            domain: &self.domain,
            status: self.status,
            identifier: &self.identifier,
            received_ms: self.received_ms,
            delayed_until_ms: self.delayed_until_ms,
            note: &[],
            cpu: None,
            tally: self.tally,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct OrderPacket {
    domain: Vec<u8>,
    identifier: Vec<u8>,
    pub(crate) command: Command,
}

impl OrderPacket {
    pub(crate) fn new(order: &Order<'_>) -> Self {
        Self { domain: order.domain.to_vec(), identifier: order.identifier.to_vec(), command: order.command }
    }

    pub(crate) fn order(&self) -> Order<'_> {
        Order { domain: &self.domain, identifier: &self.identifier, command: self.command }
    }
}
