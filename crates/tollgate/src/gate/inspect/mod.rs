//! The status and the metrics of a running gate, for operators.

pub(super) mod master_metrics;
pub(super) mod metrics;
pub(super) mod remote_status;
pub(super) mod view;
